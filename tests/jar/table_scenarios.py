"""What must hold of `spark_mjoin.join` with tables beside streams, in a session with the jar: see scenarios.py."""

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import spark_mjoin
from spark_mjoin import Stream
from tests.harness import duckdb_join, rows
from tests.jar.scenarios import BOTH, CLASSIC, Scenario, scenario
from tests.jar.stream_scenarios import LIMITED, StreamJoin, operators, refused

TABLES: dict[str, Scenario] = {}
on_classic, on_both = scenario(*CLASSIC, of=TABLES), scenario(*BOTH, of=TABLES)

NAMES = pa.table(
    {"id": pa.array([*range(0, 20, 2), 4, None], pa.int32()), "name": [f"n{i}" for i in range(12)], "more": [1] * 12}
)
PLACES = pa.table({"name": [f"n{i}" for i in range(0, 12, 3)], "place": [f"p{i}" for i in range(4)]})
CHANGED = [NAMES]  # the last is what table `t` has
STAR = """SELECT a.k, a.x, b.y, t.name, upper(u.place) AS place
          FROM a JOIN t ON a.k = t.id JOIN u ON u.name = t.name JOIN b ON b.k = t.id
          WHERE t.name <> 'n3' AND a.x + length(u.place) < b.y + 1500"""


def table(spark: Any, root: Path, alias: str, content: pa.Table) -> Any:
    """A table of files."""
    path = root / "tables" / alias
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(content, path / "part.parquet")
    return spark.read.parquet(str(path))


def joined(spark: Any, join: StreamJoin, **options: Any) -> Any:
    """Two streams, which only a column of a table makes equal, and two tables."""
    inputs = {alias: frame for alias, frame in join.inputs(spark).items() if alias != "c"}
    inputs |= {"t": table(spark, join.root, "t", CHANGED[-1]), "u": table(spark, join.root, "u", PLACES)}
    return spark_mjoin.join(inputs, join.query, **options)


def expected(join: StreamJoin) -> Any:
    return rows(duckdb_join(join.query, {**join.whole(), "t": CHANGED[-1], "u": PLACES}))


@on_both
def tables_join_streams_across_restarts(spark: Any, root: Path) -> None:
    join = StreamJoin(root, STAR).fill(files=3)
    assert join.collect(spark, joined(spark, join, partitions=2)) == expected(join)
    join.fill(files=2)
    found = join.collect(spark, joined(spark, join, partitions=2))
    assert found == expected(join) and found


@on_both
def tables_are_read_once_for_each_start(spark: Any, root: Path) -> None:
    """Their files are deleted after the first batch. A later start, of the same join, sees what is there then."""
    join = StreamJoin(root, STAR).fill(files=1)

    def start() -> Any:
        writer = joined(spark, join).writeStream.format("parquet").option("path", str(root / "sink"))
        return join.start_with(writer, processingTime="0 seconds")

    query = start()
    query.processAllAvailable()
    shutil.rmtree(root / "tables")
    join.fill(files=2)
    query.processAllAvailable()
    query.stop()
    assert len(list((join.checkpoint / "commits").glob("[0-9]"))) >= 3, "a batch with the tables, and two without"
    before = expected(join)
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == before and before

    seen = len(join.tables["a"])
    try:
        CHANGED.append(NAMES.slice(0, 3))
        query = start()
        join.fill(files=1)
        query.processAllAvailable()
        query.stop()
        assert len(join.tables["a"]) == seen + 1
        small = {alias: pa.concat_tables(tables[:seen]) for alias, tables in join.tables.items()}
        of_old = rows(duckdb_join(join.query, {**small, "t": CHANGED[-1], "u": PLACES}))
        found = rows(spark.read.parquet(str(root / "sink")).toArrow()) - before
        assert found == expected(join) - of_old and found
    finally:
        CHANGED.pop()


@on_both
def tables_beside_one_stream(spark: Any, root: Path) -> None:
    """Spark joins them, without any state."""
    query = "SELECT a.*, u.place FROM a JOIN t ON abs(a.k) = t.id + 1 JOIN u USING (name) WHERE a.x > 3"
    join = StreamJoin(root, query).fill(files=3)
    inputs = {"a": join.inputs(spark)["a"]}
    inputs |= {"t": table(spark, root, "t", NAMES), "u": table(spark, root, "u", PLACES)}
    found = join.collect(spark, spark_mjoin.join(inputs, query))
    assert found == expected(join) and found


@on_classic
def tables_get_their_filters_and_columns(spark: Any, root: Path) -> None:
    join = StreamJoin(root, STAR).fill(files=1)
    query = join.start_with(joined(spark, join).writeStream.format("noop"))
    query.awaitTermination()
    plan = query._jsq.explainInternal(False)
    assert "Not(EqualTo(name,n3))], ReadSchema: struct<id:int,name:string>" in plan, plan


@on_both
def tables_have_keys_as_streams_have(spark: Any, root: Path) -> None:
    """Numbers of several kinds: a double in a table makes two streams equal as doubles."""
    big = 2**53
    join = StreamJoin(root, "SELECT a.n AS an, b.n AS bn, t.d FROM a JOIN t ON a.n = t.d JOIN b ON b.n = t.d")
    join.add("a", pa.table({"n": pa.array([1, big, big + 1, 7, None], pa.int64())}))
    join.add("b", pa.table({"n": pa.array([1, big, 8, None], pa.int64())}))
    content = pa.table({"d": pa.array([1.0, float(big), float("nan"), None], pa.float64())})
    inputs = {**join.inputs(spark), "t": table(spark, root, "t", content)}
    found = join.collect(spark, spark_mjoin.join(inputs, join.query, partitions=2))
    assert found == rows(duckdb_join(join.query, {**join.whole(), "t": content})) and found.total() == 3


@on_classic
def tables_by_the_options_of_the_format(spark: Any, root: Path) -> None:
    join = StreamJoin(root, STAR, options=LIMITED).fill(files=2)
    del join.formats["c"]
    for alias, content in (("t", NAMES), ("u", PLACES)):
        table(spark, root, alias, content)
        join.formats[alias] = {"format": "parquet", "path": str(root / "tables" / alias), "static": "true"}
    query = join.run(spark)
    assert join.collected == expected(join) and len(operators(query)) == 2
    join.formats["t"]["static"] = "maybe"
    assert "'source.t.static': 'maybe' is neither" in refused(lambda: join.load(spark))


@on_both
def tables_beside_streams_are_checked(spark: Any, root: Path) -> None:
    join = StreamJoin(root).fill(files=1)
    a, b = (join.inputs(spark)[alias] for alias in "ab")
    t = table(spark, root, "t", NAMES)
    both, on = {"a": a, "b": b, "t": t}, "FROM a JOIN b ON a.k = b.k JOIN t ON a.k = t.id"

    def said(inputs: dict[str, Any], query: str, **options: Any) -> str:
        return refused(lambda: spark_mjoin.join(inputs, query, **options))

    assert "has no column 'kk'" in said(both, f"SELECT t.kk {on}")
    assert "types that do not match" in said(both, "SELECT a.x FROM a JOIN b ON a.k = b.k JOIN t ON a.k = t.name")
    assert "not connected by equalities: {a, b} and {t}" in said(
        both, "SELECT a.x FROM a JOIN b ON a.k = b.k JOIN t ON a.k < t.id"
    )
    through = said(both, "SELECT a.x FROM a JOIN t ON a.k = t.id JOIN b ON CAST(b.k AS STRING) = t.name")
    assert "the streams {a} and {b} are connected by tables only (t)" in through and "stream.join(table" in through
    windowed = {**both, "t": Stream(t, window="10 rows")}
    assert "'window' of input 't': it is a table beside streams" in said(windowed, f"SELECT a.x {on}")
    one = {"a": a, "t": t}
    assert "'memory' has no effect: 'a' is the only stream" in said(
        one, "SELECT a.x FROM a JOIN t ON a.k = t.id", memory="1m"
    )
    unique = {"a": Stream(a, unique="x"), "t": t}
    assert "'unique' has no effect" in said(unique, "SELECT a.x FROM a JOIN t ON a.k = t.id")
