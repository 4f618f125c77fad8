"""Queries over streams and tables: what joins the streams, and in which order tables follow."""

import pyarrow as pa
import pytest

from spark_mjoin.config import SourceOptions
from spark_mjoin.errors import QueryError
from spark_mjoin.model import Call, Cast, Col
from spark_mjoin.query.beside import Attached, Parted, part
from spark_mjoin.query.division import divide
from spark_mjoin.query.graph import spec_of
from spark_mjoin.query.sql import Query

SOURCES = ["a", "b", "t", "u"]
COLUMNS = ["k", "j", "d"]
SCHEMA = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("d", pa.float64())])


def parted(joins: str, *tables: int) -> Parted:
    division = divide(f"SELECT 1 AS one FROM {joins}", SOURCES, [COLUMNS] * 4)
    keys = [[str(key.column) for key in input.keys] for input in division.inputs]
    conjuncts = [Call("=", tuple(Col(i, keys[i][k]) for i, k in pair)) for pair in division.equalities]
    inputs = [(input.alias, number) for number, input in enumerate(division.inputs)]
    options = [SourceOptions(alias, "stream", ()) for alias, _ in inputs]
    return part(division, spec_of(Query(tuple(inputs), tuple(conjuncts), ()), options, [SCHEMA] * len(inputs)), tables)


def test_tables_follow_what_they_are_equal_to() -> None:
    found = parted("a JOIN u ON a.k = a.k JOIN t ON u.k = t.k AND a.j = t.j JOIN b ON a.k = b.k", 1, 2)
    assert found.streams == (0, 3)
    assert found.implied == ()
    assert found.tables == (Attached(2, (((0, 0), (2, 1)),)), Attached(1, (((2, 0), (1, 0)),)))


def test_streams_that_are_equal_to_one_column_are_equal() -> None:
    found = parted("a JOIN t ON a.k = t.k JOIN b ON b.j = t.k", 1)
    assert found.implied == (Call("=", (Col(0, "k"), Col(1, "j"))),)
    assert found.tables == (Attached(1, (((0, 0), (1, 0)), ((2, 0), (1, 0)))),)


def test_they_are_equal_as_the_table_compares() -> None:
    """2^53 and 2^53 + 1 are equal to one double and not to each other as integers."""
    found = parted("a JOIN t ON a.k = t.d JOIN b ON b.d = t.d", 1)
    assert found.implied == (Call("=", (Cast(Col(0, "k"), pa.float64()), Col(1, "d"))),)


def test_nothing_is_implied_without_tables() -> None:
    found = parted("a JOIN b ON a.k = b.k JOIN t ON t.j = b.j", 2)
    assert found.implied == ()
    assert [found.keys_with_tables(input) for input in range(3)] == [[], [1], [0]]


def test_streams_that_two_columns_of_a_table_connect_are_refused() -> None:
    with pytest.raises(QueryError, match=r"the streams \{a\} and \{b\} are connected by tables only \(t\).*before"):
        parted("a JOIN t ON a.k = t.k JOIN b ON b.j = t.j", 1)
