"""Generated expressions against Spark's own answer: types, values, and for which rows they fail."""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_mjoin.config import Options
from spark_mjoin.errors import QueryError
from spark_mjoin.join.casts import type_name
from spark_mjoin.join.expressions import FUNCTIONS, columns_of, evaluate
from spark_mjoin.model import Expr
from spark_mjoin.planner.graph import plan_join
from tests.examples import FACTOR
from tests.oracle.expressions import COLUMNS, Generated, Generator, table, templates
from tests.oracle.spark_answers import Answer, answers, row_by_row

EXPRESSIONS = 1000
BATCH = 300
NOT_HERE = (
    "not supported here"  # a value, seen only when it comes, for which Spark has an answer and the engine has none
)
KEPT = Path(os.environ.get("TMPDIR", "/tmp")) / "spark-mjoin-expressions"


# --- the engine ------------------------------------------------------------------------------------------------


def planned(sqls: Sequence[str]) -> list[Expr]:
    """The expressions as a query of the product has them in its select list."""
    schema = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
    listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(sqls))
    options = {"query": f"SELECT {listed} FROM t JOIN u ON t.i64 = u.i64"}
    options |= {f"source.{alias}.format": "parquet" for alias in "tu"}
    spec = plan_join(Options.parse(options), [schema, schema])
    return [column.expr for column in spec.output]


def ours(expr: Expr, rows: pa.Table) -> Answer:
    """The engine's answer; `failed` is NULL for rows of which it says that it cannot give Spark's."""
    columns = {name: rows.column(name).chunk(0) for name in rows.column_names}

    def over(start: int, size: int) -> tuple[pa.Array, list[bool | None]]:
        """Over some of the rows, halved until those that fail are found."""
        try:
            return evaluate(expr, lambda c: columns[c.name].slice(start, size), size), [False] * size
        except QueryError as e:
            if size == 1:
                return over(0, 0)[0].take(pa.array([None], pa.int64())), [None if NOT_HERE in str(e) else True]
        halves = over(start, size // 2), over(start + size // 2, size - size // 2)
        return pa.concat_arrays([values for values, _ in halves]), halves[0][1] + halves[1][1]

    size = rows.num_rows if columns_of(expr) else 1
    values, failed = over(0, size)
    if size < rows.num_rows:  # a constant
        values, failed = values.take(pa.array([0] * rows.num_rows)), failed * rows.num_rows
    return Answer(values, pa.array(failed, pa.bool_()))


# --- comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    made: Generated
    what: str

    def __str__(self) -> str:
        return f"{self.made.sql}\n    {self.what}"


def words(values: pa.Array) -> pa.Array:
    """Values that are equal only if nothing tells them apart: -0.0 is not 0.0, all NaN are one."""
    if pa.types.is_floating(values.type):
        width = pa.int32() if values.type == pa.float32() else pa.int64()
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
        numbers[np.isnan(numbers)] = np.nan
        return pa.array(numbers.view(width.to_pandas_dtype()), mask=values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if pa.types.is_string(values.type):
        return values.view(pa.binary())
    return values


def difference(made: Generated, rows: pa.Table, mine: Answer, spark: Answer) -> str | None:
    if spark.refused:
        return f"Spark refuses it: {spark.refused[:200]}"
    if spark.values is None:
        return None if pc.all(pc.fill_null(mine.failed, True)).as_py() else "in Spark it fails whatever the row"
    if not mine.values.type.equals(spark.values.type):
        return f"the type is {mine.values.type}, and {spark.values.type} in Spark"
    a, b = words(mine.values).to_pylist(), words(spark.values).to_pylist()
    for row in range(rows.num_rows):
        mine_fails, spark_fails = mine.failed[row].as_py(), spark.failed[row].as_py()
        if mine_fails is None or (mine_fails and spark_fails):
            continue
        if mine_fails != spark_fails or a[row] != b[row]:
            used = {n: _shown(rows.column(n)[row]) for n in COLUMNS if re.search(rf"\bt\.{n}\b", made.sql)}
            answer = [
                "an error" if f else _shown(v)
                for f, v in ((mine_fails, mine.values[row]), (spark_fails, spark.values[row]))
            ]
            return f"{answer[0]}, and in Spark {answer[1]}, for {used}"
    return None


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # beyond what Python has a date for
        return repr(words(pa.repeat(value, 1))[0].as_py())


def differences(spark: SparkSession, view: DataFrame, rows: pa.Table, batch: Sequence[Generated]) -> list[Difference]:
    found = []
    said = answers(spark, view, [made.sql for made in batch])
    for made, expr, answer in zip(batch, planned([m.sql for m in batch]), said, strict=True):
        what = difference(made, rows, ours(expr, rows), answer)
        if what:
            found.append(Difference(made, what))
    return found


def view_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    schema = ", ".join(f"{field.name} {type_name(field.type)}" for field in rows.schema)
    return spark.createDataFrame(rows, schema).alias("t")


def smallest(spark: SparkSession, view: DataFrame, rows: pa.Table, found: Sequence[Difference]) -> list[Difference]:
    """The parts that differ by themselves, instead of what contains them."""
    parts = {part.sql: part for d in found for part in d.made.all_parts()}
    every = {d.made.sql: d for d in differences(spark, view, rows, list(parts.values()))}
    return [d for d in every.values() if not any(p.sql in every for p in d.made.all_parts()[1:])]


# --- tests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(spark_session: SparkSession) -> Iterator[SparkSession]:
    logging.getLogger("SQLQueryContextLogger").disabled = True  # of what Spark refuses
    with row_by_row(spark_session):
        yield spark_session


def test_every_function_of_the_engine_has_a_spelling() -> None:
    assert set(FUNCTIONS) - set(templates()) == set()


def oracle_generated_expressions(evaluated: SparkSession) -> None:
    seed = int(os.environ.get("SPARK_MJOIN_SEED") or random.randrange(2**32))
    generator = Generator(seed)
    made = generator.expressions(max(100, round(FACTOR * EXPRESSIONS)))
    rows = table(seed)
    view = view_of(evaluated, rows)
    found = []
    for start in range(0, len(made), BATCH):
        found += differences(evaluated, view, rows, made[start : start + BATCH])
    if found:
        least = sorted(smallest(evaluated, view, rows, found), key=lambda d: len(d.made.sql))
        report = f"seed {seed}: {len(found)} of {len(made)} expressions differ\n" + "\n".join(map(str, least))
        KEPT.mkdir(exist_ok=True)
        (KEPT / f"{seed}.txt").write_text(report)
        pytest.fail(f"{report}\n(kept in {KEPT / f'{seed}.txt'}; SPARK_MJOIN_SEED={seed} runs it again)", pytrace=False)
