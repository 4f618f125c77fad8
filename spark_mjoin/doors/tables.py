"""Tables beside streams, as Spark sees them: joined with the results of the streams, and loaded once.

    orders, payments ─ the join of the streams ─┐
    customers ─ filter, keys, columns ─ cached ─┴─ Spark's join ─ conditions, SELECT

Spark joins a stream with a table without any state. It plans each micro-batch anew, and would read the table each time;
so the table, with its filters and columns as the query needs them, is cached where Spark caches DataFrames. The first
batch fills the cache. `join` forgets what an earlier call has cached of the same table, so that a query that is started
again reads it again.

Equality here is the equality of the join (`query.graph`): where one side is a floating-point number, both are compared
as DOUBLE, whatever mode the session is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

FLOATS = (DoubleType, FloatType)


@dataclass(frozen=True)
class Table:
    """A table with the columns `<alias>.<column>`, and what they are equal to."""

    frame: DataFrame
    equalities: tuple[tuple[str, str], ...]  # of a column that is there before and one of the table


def with_tables(joined: DataFrame, tables: Sequence[Table]) -> DataFrame:
    """The rows of `joined` with those of the tables that are equal."""
    for table in tables:
        loaded = _loaded(table.frame)
        kinds = {**_types(joined), **_types(loaded)}
        equal = reduce(Column.__and__, [_equal(before, own, kinds) for before, own in table.equalities])
        joined = joined.join(loaded, equal, "inner")
    return joined


def _loaded(frame: DataFrame) -> DataFrame:
    """A table that is read when it is first needed, and not again."""
    frame.unpersist()
    return frame.persist()


def _types(frame: DataFrame) -> dict[str, object]:
    return {field.name: field.dataType for field in frame.schema}


def _equal(before: str, own: str, kinds: Mapping[str, object]) -> Column:
    sides = [column(before), column(own)]
    if any(isinstance(kinds[name], FLOATS) for name in (before, own)):
        sides = [side.cast("double") for side in sides]
    return sides[0] == sides[1]


def column(name: str) -> Column:
    """A column by its very name, whatever is in it."""
    return F.col("`" + name.replace("`", "``") + "`")
