"""Windows under a real Spark: results, a restart, and event time that goes on through the output."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_mjoin.state.manifest import parsed
from tests.harness import Rows, rows
from tests.spark.joins import FileJoin

QUERY = "SELECT a.k, a.ts AS a_ts, b.ts AS b_ts, c.ts AS c_ts FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
WINDOWS = {"a": 20, "b": 10, "c": 30}  # seconds
LATENESS = {"a": 5, "b": 12, "c": 5}
DELAY = WINDOWS["a"] + max(WINDOWS[i] + LATENESS[i] for i in "bc")  # as docs/windows.md says
INSIDE = " AND ".join(
    f"epoch_us({i}.ts) > epoch_us(greatest(a.ts, b.ts, c.ts)) - {WINDOWS[i] * 1_000_000}" for i in WINDOWS
)


def windowed(root: Path) -> FileJoin:
    options = {"maxFilesPerTrigger": "1"}
    for alias in WINDOWS:
        options[f"source.{alias}.window"] = f"{WINDOWS[alias]} seconds"
        options[f"source.{alias}.timestamp"] = "ts"
        options[f"source.{alias}.watermark"] = f"{LATENESS[alias]} seconds"
    return FileJoin(root, QUERY, options)


def add(join: FileJoin, file: int) -> None:
    """One more file of each source: ten seconds of event time, out of order within what is allowed."""
    for seed, alias in enumerate(WINDOWS):
        dice = np.random.default_rng((seed, file))
        seconds = 10 * file + dice.uniform(0, 10, 40) - dice.uniform(0, LATENESS[alias], 40)
        times = pa.array((seconds * 1e6).astype(np.int64) + 1_700_000_000_000_000).cast(pa.timestamp("us", "UTC"))
        join.add(alias, pa.table({"k": dice.integers(0, 12, 40), "ts": times}))


def test_results_across_a_restart_and_in_a_batch_read(spark_session: SparkSession, tmp_path: Path) -> None:
    join = windowed(tmp_path)
    for file in range(8):
        add(join, file)
        if file == 4:
            join.run(spark_session)
    join.run(spark_session)
    expected = join.expected(f"{QUERY} WHERE {INSIDE}")
    assert join.collected == expected and expected.total() > 1000
    assert rows(join.read(spark_session).toArrow()) == expected


def test_aggregations_by_event_time_lose_nothing(spark_session: SparkSession, tmp_path: Path) -> None:
    join = windowed(tmp_path)
    for file in range(20):
        add(join, file)
    found: dict[tuple[object, int], int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found.update({(row["start"], row["k"]): row["count"] for row in batch.collect()})

    counted = (
        join.load(spark_session)
        .withWatermark("a_ts", f"{DELAY} seconds")
        .groupBy(F.window("a_ts", "10 seconds"), "k")
        .count()
        .select("window.start", "k", "count")
    )
    query = join.start_with(counted.writeStream.outputMode("update").foreachBatch(keep))
    query.awaitTermination()
    whole = f"SELECT k, a_ts FROM ({QUERY} WHERE {INSIDE})"
    expected = join.expected(
        f"SELECT epoch_us(a_ts) // 10000000 * 10000000 AS start, k, count(*) AS n FROM ({whole}) GROUP BY ALL"
    )
    assert {(round(start.timestamp() * 1e6), k, n) for (start, k), n in found.items()} == set(expected)
    states = [p["stateOperators"][0] for p in query.recentProgress if p["stateOperators"]]
    assert sum(s["numRowsDroppedByWatermark"] for s in states) == 0
    assert sum(s["numRowsRemoved"] for s in states) > 0, "the watermark moves, and closes windows"


def test_late_rows_are_dropped_as_sparks_own_join_drops_them(spark_session: SparkSession, tmp_path: Path) -> None:
    """The same files through Spark's interval join: it counts the same rows as late, and gives the same results.

    Spark has one watermark for both inputs, which the slower sets, and what is late by it is one batch behind; so the
    inputs go on alike, and what is late is so by either.
    """
    options = {"window": "20 seconds", "maxFilesPerTrigger": "1"}
    for alias in "ab":
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": "5 seconds"}
    join = FileJoin(tmp_path, "SELECT a.k, a.ts AS a_ts, b.ts AS b_ts FROM a JOIN b ON a.k = b.k", options)
    for a, b in (
        ([0, 10], [1, 9]),
        ([20, 16], [18, 20]),
        ([30], [29, 30]),
        ([26, 31, 12, 3], [11, 25, 31]),
        ([40], [41]),
    ):
        for alias, seconds in (("a", a), ("b", b)):
            times = pa.array([1_700_000_000_000_000 + s * 1_000_000 for s in seconds], pa.timestamp("us", "UTC"))
            join.add(alias, pa.table({"k": [1] * len(seconds), "ts": times}))
    assert join.run(spark_session).exception() is None
    texts = [path.read_bytes().partition(b" ")[2] for path in join.state_files("partition-0-*/version-*")]
    manifests = [parsed(text, "a manifest") for text in texts]
    late = sum(manifest.done.dropped.late for manifest in manifests)

    def side(alias: str) -> DataFrame:
        path = str(tmp_path / "in" / alias)
        schema = spark_session.read.parquet(path).schema
        read = spark_session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(path)
        return read.withColumnsRenamed({"k": f"{alias}_k", "ts": f"{alias}_ts"}).withWatermark(
            f"{alias}_ts", "5 seconds"
        )

    near = "a_k = b_k AND a_ts > b_ts - INTERVAL 20 SECONDS AND b_ts > a_ts - INTERVAL 20 SECONDS"
    joined = side("a").join(side("b"), F.expr(near)).select("a_k", "a_ts", "b_ts")
    found: dict[int, Rows] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = rows(batch.toArrow())

    writer = joined.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "sparks"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    states = [s for p in query.recentProgress for s in p["stateOperators"]]
    assert late == sum(s["numRowsDroppedByWatermark"] for s in states) == 3
    assert join.collected == sum(found.values(), Counter()) and join.collected.total() > 20
