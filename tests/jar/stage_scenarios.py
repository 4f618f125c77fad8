"""What must hold of `spark_mjoin.join` where inputs have no key in common, so that it runs in stages: see scenarios.py.

duckdb has the answers.
"""

import datetime as dt
import json
import random
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import spark_mjoin
from spark_mjoin import Stream
from tests.harness import Rows, duckdb_join, rows
from tests.jar.scenarios import BOTH, CLASSIC, Scenario, scenario
from tests.jar.stream_scenarios import LIMITED, StreamJoin, failure_of
from tests.spark.joins import CHAIN

STAGES: dict[str, Scenario] = {}
on_classic, on_both = scenario(*CLASSIC, of=STAGES), scenario(*BOTH, of=STAGES)

CHAIN_OF_5 = """SELECT a.n AS n0, b.n AS n1, c.n AS n2, d.n AS n3, e.n AS n4, c.s
                FROM a JOIN b ON a.i = b.i JOIN c ON b.j = c.j JOIN d ON c.s = d.s JOIN e ON d.i = e.j"""
TREE = """SELECT a.n AS n0, b.n AS n1, c.n AS n2, d.n AS n3
          FROM a JOIN b ON a.i = b.i JOIN c ON a.j = c.j JOIN d ON a.s = d.s AND a.i + d.i < 9"""
CYCLE = """SELECT a.n AS n0, b.n AS n1, c.n AS n2 FROM a, b, c
           WHERE a.i = b.i AND b.j = c.j AND c.s = a.s"""
SELF = """SELECT one.n AS n0, b.n AS n1, two.n AS n2 FROM a one JOIN b ON one.i = b.i JOIN a two ON two.j = b.j"""


def names(query: Any) -> list[str]:
    return [operator["operatorName"] for operator in query.lastProgress["stateOperators"]]


def table(seed: int, size: int, values: int = 7) -> pa.Table:
    """Rows with three keys, some of them NULL, and a number that tells each from the others."""
    chosen = [(seed * 31 + 17 * i * (seed + 3)) % 1009 for i in range(size)]
    return pa.table(
        {
            "n": pa.array([seed * 10_000 + i for i in range(size)], pa.int64()),
            "i": pa.array([None if v % 23 == 0 else v % values for v in chosen], pa.int32()),
            "j": pa.array([(v // 7) % values for v in chosen], pa.int64()),
            "s": pa.array([f"key {(v // 5) % values}" for v in chosen], pa.string()),
        }
    )


def filled(join: StreamJoin, aliases: str, files: int, size: int, values: int = 7) -> StreamJoin:
    for number in range(files):
        for place, alias in enumerate(aliases):
            join.add(alias, table(5 * len(join.tables.get(alias, [])) + place + number, size, values))
    return join


# --- results ---------------------------------------------------------------------------------------------------------


@on_both
def stages_of_a_chain(spark: Any, root: Path) -> None:
    """Each stage is an operator of its own, with a name that says which it is."""
    join = StreamJoin(root, query=CHAIN, options={**LIMITED, "plan": "((a b) c)"}).fill(files=3)
    writer = join.load(spark).writeStream.format("parquet").option("path", str(root / "sink"))
    query = join.start_with(writer)
    query.awaitTermination()
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == join.expected()
    found = query.lastProgress["stateOperators"]
    assert [o["operatorName"] for o in found] == ["mjoin ((a b) c)", "mjoin (a b)"]
    assert all(o["numShufflePartitions"] == 3 for o in found)
    assert int(found[0]["customMetrics"]["resultsTotal"]) == join.expected().total()
    assert "(a b)NumRowsTotal" in found[0]["customMetrics"]


@on_classic
def stages_of_other_graphs(spark: Any, root: Path) -> None:
    """Streams in small batches, and the same as tables. One plan has a stage over the results of two others."""
    cases = [
        (CHAIN_OF_5, "abcde", "(((a b) c) (d e))"),
        (TREE, "abcd", "(((a b) c) d)"),
        (CYCLE, "abc", "((a b) c)"),
        (SELF, "ab", "((one b) two)"),
    ]
    for number, (query, aliases, plan) in enumerate(cases):
        join = filled(StreamJoin(root / str(number), query), aliases, files=2, size=14)
        found = join.collect(spark, spark_mjoin.join(join.inputs(spark), query, partitions=2, plan=plan))
        assert found == join.expected() and found, query
        tables = {alias: spark.read.parquet(join.path(alias)) for alias in aliases}
        assert rows(spark_mjoin.join(tables, query, partitions=3, plan=plan).toArrow()) == join.expected(), query


# --- budget, ticks, restarts -----------------------------------------------------------------------------------------


@on_classic
def stages_keep_to_a_budget_and_end_complete(spark: Any, root: Path) -> None:
    """With rows on disk in both stages. A batch fails on the way; then the query resumes, and again with more files."""
    options = {**LIMITED, "partitions": "2", "memory": "24k", "blockingThreshold": "1", "plan": "((a b) c)"}
    join = filled(StreamJoin(root, CYCLE, options), "abc", files=3, size=200, values=40)
    batches: dict[int, Rows] = {}
    failing = [1]

    def keep(batch: Any, number: int) -> None:
        batches[number] = rows(batch.toArrow())
        if number in failing:
            failing.remove(number)
            raise RuntimeError("the batch is done, and is not recorded")

    def run(join: StreamJoin) -> Any:
        query = join.start_with(join.load(spark).writeStream.foreachBatch(keep))
        return query, failure_of(query.awaitTermination)

    _, said = run(join)
    assert "the batch is done" in said
    query, said = run(join)
    assert said == "" and sum(batches.values(), Rows()) == join.expected(), said
    progress = [o for p in query.recentProgress for o in p["stateOperators"]]
    for name in set(names(query)):
        own = [o["customMetrics"] for o in progress if o["operatorName"] == name]
        assert sum(int(m["rowsFlushed"]) for m in own) > 0 and int(own[-1]["deferredRows"]) == 0, name
    assert len(batches) > 4, "batches without input finish the disk work"
    filled(join, "abc", files=1, size=100, values=40)
    query, said = run(join.changed(partitions="3"))
    assert said == "" and sum(batches.values(), Rows()) == join.expected(), said


@on_classic
def stages_stay_as_they_are_at_a_restart(spark: Any, root: Path) -> None:
    """Other expectations would give other stages: Spark refuses them by name, and option `plan` keeps the old ones."""
    join = filled(StreamJoin(root, CHAIN_OF_5), "abcde", files=1, size=14)
    sink = root / "sink"

    def run(rates: dict[str, float], **options: Any) -> tuple[str, list[str]]:
        inputs = {a: Stream(df, expectedRowsPerSecond=rates.get(a, 100)) for a, df in join.inputs(spark).items()}
        joined = spark_mjoin.join(inputs, CHAIN_OF_5, partitions=2, **options)
        query = join.start_with(joined.writeStream.format("parquet").option("path", str(sink)))
        return failure_of(query.awaitTermination), names(query) if query.lastProgress else []

    said, before = run({"a": 1})
    assert said == "" and before[0].startswith("mjoin ((")
    filled(join, "abcde", files=1, size=7)
    said, _ = run({"e": 1})
    assert "mjoin" in said and before[0] in said, said
    said, after = run({"e": 1}, plan=before[0].removeprefix("mjoin "))
    assert said == "" and after == before, said
    assert rows(spark.read.parquet(str(sink)).toArrow()) == join.expected()


@on_classic
def stages_are_not_for_windows_in_rows(spark: Any, root: Path) -> None:
    """Such a join runs in one task, and `explain` says why."""
    join = filled(StreamJoin(root, TREE), "abcd", files=1, size=14)
    said = str(spark_mjoin.explain(join.inputs(spark), query=TREE, partitions=4, window="9 rows", show=False))
    assert "because: it has windows in rows" in said, said
    assert "none: to one task" in said and "STAGES: 1, in one task" in said, said


@on_both
def stages_with_windows_let_rows_go_in_each(spark: Any, root: Path) -> None:
    """Ten minutes of event time per file, and windows of five: both stages keep a part of their rows."""
    join = StreamJoin(root, CHAIN)
    start = dt.datetime(2026, 1, 1)
    for number in range(6):
        for place, alias in enumerate("abc"):
            times = [start + dt.timedelta(seconds=600 * number + (37 * i + 5 * place) % 600) for i in range(60)]
            keys = {"k": [i % 6 for i in range(60)], "m": [i % 5 for i in range(60)], "n": range(60)}
            columns = {name: pa.array([60 * number + v if name == "n" else v for v in of]) for name, of in keys.items()}
            join.add(alias, pa.table(columns | {"at": pa.array(times, pa.timestamp("us", "UTC"))}))
    text = "SELECT a.n, b.n AS n1, c.n AS n2 FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    inputs = {
        alias: Stream(df, timestamp="at", watermark="10 minutes", window="5 minutes")
        for alias, df in join.inputs(spark).items()
    }
    sink = root / "sink"
    writer = spark_mjoin.join(inputs, text, partitions=2, plan="((a b) c)").writeStream
    query = join.start_with(writer.format("parquet").option("path", str(sink)))
    query.awaitTermination()
    youngest = "greatest(a.at, b.at, c.at)"
    inside = " AND ".join(f"{youngest} - {alias}.at < INTERVAL 5 MINUTES" for alias in "abc")
    expected = rows(duckdb_join(f"{text} WHERE {inside}", join.whole()))
    assert rows(spark.read.parquet(str(sink)).toArrow()) == expected and expected
    for name in ("mjoin ((a b) c)", "mjoin (a b)"):
        own = [o for p in query.recentProgress for o in p["stateOperators"] if o["operatorName"] == name]
        assert sum(o["numRowsRemoved"] for o in own) > 0, name
        assert all(int(o["customMetrics"]["rowsLate"]) == 0 for o in own), name


@on_classic
def stages_with_promises_let_rows_go(spark: Any, root: Path) -> None:
    """The keys of the first input are unique, so each row of the second leaves when it has met its own."""
    join = StreamJoin(root, CHAIN)
    for number in range(3):
        first = range(20 * number, 20 * number + 20)
        join.add("a", pa.table({"k": pa.array(first, pa.int64()), "n": pa.array(first, pa.int64())}))
        join.add("b", pa.table({"k": pa.array(first, pa.int64()), "m": pa.array([i % 4 for i in first], pa.int64())}))
        join.add("c", pa.table({"m": pa.array(range(4), pa.int64()), "n": pa.array(first[:4], pa.int64())}))
    text = "SELECT a.n, c.n AS n1 FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    inputs = join.inputs(spark)
    inputs = {"a": Stream(inputs["a"], unique="k"), "b": Stream(inputs["b"], unique="k"), "c": inputs["c"]}
    sink = root / "sink"
    writer = spark_mjoin.join(inputs, text, partitions=2, plan="((a b) c)", purgeEvery=1).writeStream
    query = join.start_with(writer.format("parquet").option("path", str(sink)))
    query.awaitTermination()
    assert rows(spark.read.parquet(str(sink)).toArrow()) == rows(duckdb_join(text, join.whole()))
    own = [o for p in query.recentProgress for o in p["stateOperators"] if o["operatorName"] == "mjoin (a b)"]
    kept, gone = own[-1]["numRowsTotal"], sum(o["numRowsRemoved"] for o in own)
    print(f"promises over stages: {kept} of 120 rows are kept, {gone} have gone", flush=True)
    assert kept == 0 < gone, (kept, gone)


# --- what is moved ---------------------------------------------------------------------------------------------------


def written(spark: Any) -> int:
    """The bytes that Spark has written for shuffles so far."""
    context = spark.sparkContext
    with urllib.request.urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/stages") as page:
        return sum(stage["shuffleWriteBytes"] for stage in json.load(page))


def inputs_of(spark: Any, root: Path, size: int) -> Iterator[tuple[str, Any]]:
    """Tables in which each key is there once, so that each join has as many results as rows.

    Spark compresses what it shuffles, and random values cannot be compressed.
    """
    chance = random.Random(17)
    keys, others = ([chance.getrandbits(63) for _ in range(size)] for _ in range(2))
    for alias in "abc":
        pairs = list(zip(keys, others, strict=True))
        chance.shuffle(pairs)
        columns = {
            "k": [k for k, _ in pairs],
            "m": [m for _, m in pairs],
            "x": [chance.getrandbits(63) for _ in range(size)],
            "unused": range(size),
        }
        path = root / alias
        path.mkdir()
        pq.write_table(pa.table({n: pa.array(v, pa.int64()) for n, v in columns.items()}), path / "0.parquet")
        yield alias, spark.readStream.schema(spark.read.parquet(str(path)).schema).parquet(str(path))


@on_classic
def stages_move_the_bytes_that_were_expected(spark: Any, root: Path) -> None:
    """A star and a chain, within 20 %."""
    size = 100_000
    rated = {a: Stream(df, expectedRowsPerSecond=size) for a, df in inputs_of(spark, root, size)}
    star = "SELECT a.x, b.x AS y, c.x AS z FROM a JOIN b ON a.k = b.k JOIN c ON c.k = b.k"
    chain = "SELECT a.x, b.x AS y, c.x AS z FROM a JOIN b ON a.k = b.k JOIN c ON c.m = b.m"
    for number, text in enumerate([star, chain]):
        expected = spark_mjoin.explain(rated, query=text, partitions=4, seconds=1, show=False)
        join, before = StreamJoin(root / str(number)), written(spark)
        assert join.collect(spark, spark_mjoin.join(rated, text, partitions=4)).total() == size
        wanted, moved = sum(stage.bytes for stage in expected.stages), written(spark) - before
        print(f"shuffled bytes: {wanted:,.0f} expected, {moved:,} written, {moved / wanted:.3f}", flush=True)
        assert 0.8 < moved / wanted < 1.2, (text, moved, wanted)
        assert len(expected.stages) == 1 + number
