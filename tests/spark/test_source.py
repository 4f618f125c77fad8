"""`format("mjoin")` in a real Spark: it is found, its schema is known, its rows are those of duckdb and of Spark."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.harness import rows
from tests.spark.joins import CHAIN, STAR, FileJoin

NAN = float("nan")


def oracle_formats_mix_in_one_join(spark_session: SparkSession, tmp_path: Path) -> None:
    formats = {
        "a": {"format": "parquet"},
        "b": {"format": "csv", "schema": "k BIGINT, y BIGINT", "header": "true"},
        "c": {"format": "json", "schema": "k BIGINT, z BIGINT"},
    }
    join = FileJoin(tmp_path, formats=formats).fill(files=2)
    loaded = join.load(spark_session)
    assert loaded.isStreaming
    assert loaded.schema.simpleString() == "struct<k:bigint,x:bigint,y:bigint,z:bigint>"
    join.run(spark_session)
    assert join.collected == join.expected()
    assert join.collected.total() > 100


GRAPHS = {
    "chain": CHAIN,
    "cycle": "SELECT a.k, b.y, c.z FROM a JOIN b ON a.k = b.k JOIN c ON b.y = c.z AND c.k = a.x",
    "several columns": "SELECT a.*, c.z FROM a JOIN b ON a.k = b.k AND a.x = b.y JOIN c ON c.k = a.k AND c.z = b.y",
    "commas": "SELECT a.k, b.y, c.z FROM a, b, c WHERE a.k = b.k AND b.k = c.k",
    "using": "SELECT k, x, y, z FROM a JOIN b USING (k) JOIN c USING (k)",
    "self-join": "SELECT l.k, l.x, r.x AS other, b.y FROM a l JOIN a r ON l.k = r.k JOIN b ON b.k = r.k",
    "residuals": f"{STAR} AND a.x + b.y > c.z WHERE a.x <> c.z OR b.y IS NULL",
    "filters": f"{STAR} WHERE a.x > 3 AND b.y % 2 = 0 AND c.z IN (1, 4, 9, 16)",
    "expressions": "SELECT a.x + b.y AS s, upper('k') AS u, c.z FROM a JOIN b ON a.k + 1 = b.k JOIN c ON c.k = b.k",
}


@pytest.mark.parametrize("graph", GRAPHS)
def oracle_join_graphs(spark_session: SparkSession, tmp_path: Path, graph: str) -> None:
    join = FileJoin(tmp_path, GRAPHS[graph])
    for alias, column, step in (("a", "x", 1), ("b", "y", 3), ("c", "z", 5)):
        if graph == "self-join" and alias == "c":
            continue  # a source that the query does not name is an error
        keys = [None if i == 7 else i * step % 13 for i in range(40)]
        join.add(alias, pa.table({"k": pa.array(keys, pa.int64()), column: [i * step % 11 for i in range(40)]}))
    found = rows(join.read(spark_session).toArrow())
    assert found == join.expected()
    assert found.total() > 3


def oracle_short_form(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, "", {"on": "k"}).fill(files=1)
    assert rows(join.read(spark_session).toArrow()) == join.expected(STAR)


def at(day: int, hour: int = 0) -> dt.datetime:
    return dt.datetime(2024, 2, day, hour, 30, 1, 250, tzinfo=dt.UTC)


KEYS: dict[str, tuple[pa.DataType, pa.DataType, Sequence[object], Sequence[object]]] = {
    # name: types of the two key columns, and values
    "tinyint and bigint": (pa.int8(), pa.int64(), [1, -128, 127, None], [1, 127, -128, 255, 2**40]),
    "smallint and int": (pa.int16(), pa.int32(), [1, -1, 32767, None], [32767, -1, -1, 65535]),
    "bigint": (pa.int64(), pa.int64(), [2**63 - 1, -(2**63), 0, None], [0, 2**63 - 1, -(2**63), 2**53 + 1]),
    "string": (pa.string(), pa.string(), ["", "a", "ä", "a\0", None, "x" * 300], ["", "ä", "a", "A", "x" * 300]),
    "binary": (pa.binary(), pa.binary(), [b"", b"\0", b"\xff\0", None], [b"", b"\0\0", b"\xff\0", b"\0"]),
    "boolean": (pa.bool_(), pa.bool_(), [True, False, None], [True, True, None]),
    "date": (pa.date32(), pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), None], [dt.date(2024, 2, 29)] * 2),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        pa.timestamp("us", "UTC"),
        [at(1), at(2), at(2, 5), None],
        [at(2), at(2), at(3)],
    ),
    "timestamp without a zone": (
        pa.timestamp("us"),
        pa.timestamp("us"),
        [at(1).replace(tzinfo=None), at(2).replace(tzinfo=None), None],
        [at(2).replace(tzinfo=None), at(4).replace(tzinfo=None)],
    ),
    "decimal": (
        pa.decimal128(9, 2),
        pa.decimal128(12, 4),
        [Decimal("1.50"), Decimal("-0.01"), Decimal("9999999.99"), None],
        [Decimal("1.5000"), Decimal("1.5001"), Decimal("9999999.9900"), Decimal("-0.0100")],
    ),
    "long decimal and bigint": (
        pa.decimal128(30, 5),
        pa.int64(),
        [Decimal("7.00000"), Decimal("7.00001"), Decimal("-9223372036854775808.00000"), None],
        [7, 7, -(2**63)],
    ),
    "double": (pa.float64(), pa.float64(), [NAN, -0.0, 1.5, float("inf"), None], [NAN, NAN, 0.0, -1.5, float("inf")]),
    "float and double": (pa.float32(), pa.float64(), [0.5, 0.1, NAN, -0.0, None], [0.5, 0.1, NAN, 0.0, 0.0]),
    "int and double": (pa.int32(), pa.float64(), [3, 0, -1, None], [3.0, -0.0, -1.5, NAN]),
}


@pytest.mark.parametrize("key", KEYS)
def oracle_keys_match_as_in_spark(spark_session: SparkSession, tmp_path: Path, key: str) -> None:
    left, right, some, others = KEYS[key]
    join = FileJoin(tmp_path, "SELECT a.k, a.x, b.k AS l, b.y FROM a JOIN b ON a.k = b.k")
    join.add("a", pa.table({"k": pa.array(some, left), "x": list(range(len(some)))}))
    join.add("b", pa.table({"k": pa.array(others, right), "y": list(range(len(others)))}))
    check_against_spark(spark_session, join)


def oracle_payload_of_every_type_passes_through(spark_session: SparkSession, tmp_path: Path) -> None:
    nested = pa.struct([("tags", pa.list_(pa.string())), ("at", pa.timestamp("us", "UTC"))])
    columns = {
        "struct": pa.array([{"tags": ["p", None], "at": at(1)}, None, {"tags": None, "at": None}], nested),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "deep": pa.array([[[1], []], None, [None]], pa.list_(pa.list_(pa.int64()))),
        "map": pa.array([[("u", 1.5), ("v", None)], [], None], pa.map_(pa.string(), pa.float64())),
        "flag": pa.array([True, None, False]),
        "small": pa.array([1, None, -1], pa.int8()),
        "real": pa.array([0.5, NAN, None], pa.float32()),
        "money": pa.array([Decimal("1.10"), None, Decimal("-99999999999999999.99")], pa.decimal128(19, 2)),
        "day": pa.array([dt.date(1969, 12, 31), None, dt.date(9999, 12, 31)]),
        "local": pa.array([at(1).replace(tzinfo=None), None, at(2).replace(tzinfo=None)], pa.timestamp("us")),
        "raw": pa.array([b"\0\xff", None, b""], pa.binary()),
        "text": pa.array(["", None, "日本"], pa.string()),
    }
    join = FileJoin(tmp_path, "SELECT a.*, b.y, a.struct.tags AS tags FROM a JOIN b ON a.k = b.k")
    join.add("a", pa.table({"k": [1, 2, 3], **columns}))
    join.add("b", pa.table({"k": [3, 1, 1, 2], "y": [10, 20, 30, 40]}))
    check_against_spark(spark_session, join)
    join.add("b", pa.table({"k": [3, 2, 9], "y": [50, 60, 70]}))
    join.options["source.b.maxFilesPerTrigger"] = "1"
    join.run(spark_session)
    assert join.collected == rows(spark_join(spark_session, join).toArrow())


def oracle_keys_of_every_kind_survive_in_the_state(spark_session: SparkSession, tmp_path: Path) -> None:
    kinds = ("string", "binary", "boolean", "timestamp", "long decimal and bigint", "double")
    conditions = " ".join(f"JOIN s{i} ON a.k{i} = s{i}.k" for i in range(len(kinds)))
    join = FileJoin(tmp_path, f"SELECT a.*, {', '.join(f's{i}.y{i}' for i in range(len(kinds)))} FROM a {conditions}")
    hub = {}
    for i, kind in enumerate(kinds):
        left, _, some, _ = KEYS[kind]
        keys = pa.array([some[n % (len(some) - 1)] for n in range(4)], left)  # all but the last
        hub[f"k{i}"] = keys
        join.add(f"s{i}", pa.table({"k": keys.slice(0, 3), f"y{i}": [1, 2, 3]}))
    join.add("a", pa.table({**hub, "n": [1, 2, 3, 4]}))
    join.run(spark_session)
    moved = join.elsewhere("moved")  # so that the state is read from its files
    moved.add("a", pa.table({**hub, "n": [5, 6, 7, 8]}))
    moved.add("s0", pa.table({"k": hub["k0"].slice(1), "y0": [4, 5, 6]}))
    moved.run(spark_session)
    assert moved.collected == rows(spark_join(spark_session, moved).toArrow())
    assert moved.collected.total() > moved.batches[0].total() > 0


def check_against_spark(spark: SparkSession, join: FileJoin) -> None:
    """Rows and types are those of Spark's own join of the same files."""
    truth = spark_join(spark, join)
    batch = join.read(spark)
    assert [(f.name, f.dataType) for f in batch.schema] == [(f.name, f.dataType) for f in truth.schema]
    expected = rows(truth.toArrow())
    assert rows(batch.toArrow()) == expected
    assert expected.total() > 0


def spark_join(spark: SparkSession, join: FileJoin) -> DataFrame:
    for alias in join.formats:
        spark.read.parquet(str(join.root / "in" / alias)).createOrReplaceTempView(alias)
    return spark.sql(join.query)


# --- what is wrong with the options, said by load() ------------------------------------------------------------------

WRONG = {
    "unknown option": ({"partitons": "2"}, ["'partitons'", "Did you mean 'partitions'?"]),
    "unknown option of a source": (
        {"source.b.maxFilesPerTriger": "2"},
        ["'source.b.maxfilespertriger'", "maxFilesPerTrigger"],
    ),
    "missing path": ({"source.b.path": "/nowhere/at/all"}, ["'source.b.path'", "/nowhere/at/all", "does not exist"]),
    "no path": ({"source.b.path": ""}, ["'source.b.path'"]),
    "unknown format": ({"source.c.format": "parket"}, ["'source.c.format'", "Did you mean 'parquet'?"]),
    "text without a schema": ({"source.c.format": "csv"}, ["'source.c.schema'", "BIGINT"]),
    "unknown column": ({"query": "SELECT a.x FROM a JOIN b ON a.k = b.kk"}, ["'b'", "'kk'", "Did you mean 'k'?"]),
    "unknown source": ({"query": "SELECT a.x FROM a JOIN bb ON a.k = bb.k"}, ["'bb'", "'source.bb.format'"]),
    "keys that cannot match": (
        {"query": "SELECT a.x FROM a JOIN b ON CAST(a.k AS STRING) = b.k"},
        ["do not match", "b.k is BIGINT", "CAST("],
    ),
    "disconnected": ({"query": "SELECT a.x FROM a JOIN b ON a.k = b.k, c"}, ["{a, b} and {c}", "not connected", "ON"]),
    "syntax": ({"query": "SELECT a.x FROM a JOIN b ON a.k = = b.k"}, ["syntax error at line 1, column"]),
    "outer join": ({"query": "SELECT a.x FROM a LEFT JOIN b ON a.k = b.k"}, ["LEFT JOIN", "inner join"]),
    "source that is not joined": (
        {"query": "SELECT a.x FROM a JOIN b ON a.k = b.k"},
        ["source 'c' is not in option 'query'", "remove"],
    ),
    "no query": ({"query": ""}, ["'query' is missing", "'on'"]),
    "not a number": ({"partitions": "two"}, ["'partitions'", "'two'", "at least 1"]),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_load_names_what_is_wrong(spark_session: SparkSession, tmp_path: Path, mistake: str) -> None:
    options, words = WRONG[mistake]
    join = FileJoin(tmp_path).fill(files=1, rows=3).changed(**options)
    with pytest.raises(Exception) as error:
        join.load(spark_session)
    assert [word for word in words if word.lower() not in str(error.value).lower()] == []
