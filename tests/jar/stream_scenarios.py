"""What must hold of `spark_mjoin.join`, in a session with the jar: see scenarios.py and child.py.

Joins are over the same files as those of the format, with Spark's own readers, and duckdb has the answers.
"""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from pyspark.sql import functions as F

import spark_mjoin
from spark_mjoin import Stream
from spark_mjoin.errors import MJoinError, OptionError, QueryError
from tests.harness import Rows, duckdb_join, rows
from tests.jar.scenarios import BOTH, CLASSIC, Scenario, command, scenario, wait_for_executors, wait_until
from tests.spark.joins import STAR, FileJoin, arrivals

STREAMS: dict[str, Scenario] = {}
on_classic, on_both = scenario(*CLASSIC, of=STREAMS), scenario(*BOTH, of=STREAMS)

NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
LIMITED = {"maxFilesPerTrigger": "1", "stateLocation": "", "partitions": "3"}


@dataclass
class StreamJoin(FileJoin):
    """A join of files that Spark reads."""

    def load(self, spark: Any) -> Any:
        return spark_mjoin.load(spark, self.all_options())

    def inputs(self, spark: Any) -> dict[str, Any]:
        return {
            alias: spark.readStream.schema(spark.read.parquet(self.path(alias)).schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(self.path(alias))
            for alias in self.tables
        }

    def path(self, alias: str) -> str:
        return str(self.root / "in" / alias)

    def collect(self, spark: Any, frame: Any) -> Rows:
        """All rows of a streaming DataFrame, to its end, by way of a parquet sink."""
        self.root.mkdir(exist_ok=True)
        sink = self.root / "sink"
        writer = frame.writeStream.format("parquet").option("path", str(sink))
        self.start_with(writer).awaitTermination()
        return rows(spark.read.parquet(str(sink)).toArrow())


def operators(query: Any) -> list[dict[str, Any]]:
    """The join's entry in the progress of each batch."""
    return [next(o for o in p["stateOperators"] if o["operatorName"] == "mjoin") for p in query.recentProgress]


def batches(query: Any) -> list[Any]:
    """The progress of each batch. On slow cores there may be one more, of a trigger that had nothing to do."""
    return [progress for progress in query.recentProgress if "addBatch" in progress["durationMs"]]


def refused(action: Callable[[], object]) -> str:
    """What an action is refused with."""
    try:
        action()
    except MJoinError as e:
        return str(e)
    raise AssertionError("nothing was refused")


def failure_of(action: Callable[[], object]) -> str:
    """What an action fails with; empty where it does not."""
    try:
        action()
    except Exception as e:  # noqa: BLE001 - Spark's own class, whichever it is
        return str(e)
    return ""


# --- results ---------------------------------------------------------------------------------------------------------


@on_both
def streams_star(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options=LIMITED).fill(files=4)
    writer = join.load(spark).writeStream.format("parquet").option("path", str(root / "sink"))
    query = join.start_with(writer)
    query.awaitTermination()
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == join.expected()
    found = operators(query)
    assert [p["batchId"] for p in batches(query)] == [0, 1, 2, 3]
    assert int(found[-1]["customMetrics"]["resultsTotal"]) == join.expected().total()
    assert found[-1]["numRowsTotal"] == int(found[-1]["customMetrics"]["numRowsTotal"]) > found[0]["numRowsTotal"] > 0
    assert found[-1]["memoryUsedBytes"] > 0 and found[-1]["numShufflePartitions"] == 3


@on_both
def streams_evaluate_what_spark_has(spark: Any, root: Path) -> None:
    """Functions that the engine does not know, a UDF, a session's time zone, a column of an expression as key."""
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    spark.udf.register("thrice", lambda n: 3 * n, "bigint")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    query = """SELECT a.k, thrice(a.x) AS t, aggregate(sequence(1, 3), 0, (s, i) -> s + i) AS six,
                      hour(TIMESTAMP'1970-01-01 00:00:00Z') AS h,
                      levenshtein(CAST(a.x AS STRING), CAST(b.y AS STRING)) AS l
               FROM a JOIN b ON abs(a.k) + 1 = b.k + 1 WHERE thrice(b.y) % 2 = 0 AND a.x < b.y + 1000"""
    try:
        del join.tables["c"]
        inputs = join.inputs(spark)
        found = join.collect(spark, spark_mjoin.join(inputs, query, partitions=2))
        for alias in inputs:
            spark.read.parquet(join.path(alias)).createOrReplaceTempView(alias)
        assert found == rows(spark.sql(query).toArrow()) and found
        assert {h for *_, h, _ in found} == {9}
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


@on_classic
def streams_push_filters_and_columns_down(spark: Any, root: Path) -> None:
    join = StreamJoin(root).fill(files=1)
    tables = {alias: spark.read.parquet(join.path(alias)).withColumn("more", F.lit(1)) for alias in "ab"}
    joined = spark_mjoin.join(tables, "SELECT a.k, b.y FROM a JOIN b ON a.k = b.k WHERE a.x > 3 AND b.more = 1")
    plan = joined._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(x,3)" in plan and "ReadSchema: struct<k:bigint,x:" in plan, plan


@on_both
def streams_of_streams(spark: Any, root: Path) -> None:
    """Two joins in one query, on different keys, and a self-join in one of them."""
    join = StreamJoin(root).fill(files=2, rows=12)
    inputs = join.inputs(spark)
    first = spark_mjoin.join(
        {"a": inputs["a"], "b": inputs["b"]},
        "SELECT one.k, one.x, b.y, two.x AS x2 FROM a one JOIN b ON one.k = b.k JOIN a two ON two.k = b.k",
        partitions=2,
    )
    found = join.collect(
        spark, spark_mjoin.join({"f": first, "c": inputs["c"]}, on="k", partitions=3).select("k", "x", "y", "x2", "z")
    )
    query = """SELECT one.k, one.x, b.y, two.x AS x2, c.z
               FROM a one JOIN b ON one.k = b.k JOIN a two ON two.k = b.k JOIN c ON c.k = b.k"""
    assert found == rows(duckdb_join(query, join.whole())) and found


@on_classic
def streams_keep_to_a_budget_and_end_complete(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options={**LIMITED, "memory": "24k", "blockingThreshold": "1"}).fill(
        files=4, rows=400, keys=200
    )
    query = join.run(spark)
    assert join.collected == join.expected()
    flushed = sum(int(o["customMetrics"]["rowsFlushed"]) for o in operators(query))
    assert flushed > 0 and int(operators(query)[-1]["customMetrics"]["deferredRows"]) == 0
    assert len(query.recentProgress) > 4, "batches without input finish the disk work"


def own(join: StreamJoin, alias: str) -> dict[str, str]:
    """The options of a source of the format's."""
    return {"format": "parquet", "path": join.path(alias), "maxFilesPerTrigger": "1"}


def timed(join: FileJoin, spark: Any) -> dict[str, Any]:
    start = dt.datetime(2026, 1, 1)
    for number in range(4):
        for alias, column in (("a", "x"), ("b", "y")):
            made = arrivals(alias, number, 60, 8)
            times = [start + dt.timedelta(seconds=20 * number + (7 * i) % 40) for i in range(60)]
            at = pa.array(times, pa.timestamp("us", "UTC"))
            join.add(alias, pa.table({"k": made["k"], column: made[column], "at": at}))
    return join.inputs(spark)


@on_both
def streams_have_windows_and_their_own_watermarks(spark: Any, root: Path) -> None:
    """The same results as the format's, whose windows have oracles of their own; the watermark of a stream counts."""
    join = StreamJoin(root, "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k")
    inputs = timed(join, spark)
    windowed = spark_mjoin.join(
        {
            "a": Stream(inputs["a"].withWatermark("at", "25 seconds"), window="15 seconds"),
            "b": Stream(inputs["b"], timestamp="at", watermark="25 seconds", window="30 seconds"),
        },
        join.query,
        partitions=2,
    )
    found = join.collect(spark, windowed)
    options = {f"source.{alias}.watermark": "25 seconds" for alias in "ab"} | {"source.a.window": "15 seconds"}
    options |= {f"source.{alias}.timestamp": "at" for alias in "ab"} | {"source.b.window": "30 seconds"}
    options |= {f"source.{alias}.{name}": value for alias in "ab" for name, value in own(join, alias).items()}
    same = spark.readStream.format("mjoin").options(query=join.query, **options).load()
    other = StreamJoin(root / "format")
    assert found == other.collect(spark, same) and 0 < found.total() < join.expected().total()


@on_classic
def streams_drop_what_punctuations_make_useless(spark: Any, root: Path) -> None:
    join = StreamJoin(root, "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k")
    for alias, column in (("a", "x"), ("b", "y")):
        for number in range(3):
            keys = [10 * number + i % 10 for i in range(30)]
            data = pa.table({"k": pa.array(keys, pa.int64()), column: pa.array(range(30), pa.int64())})
            said = pa.table({"k": pa.array(sorted(set(keys)), pa.int64()), column: pa.nulls(10, pa.int64())})
            join.add(alias, pa.concat_tables([data, said]))
    inputs = join.inputs(spark)
    marked = {"a": Stream(inputs["a"], punctuation="x IS NULL"), "b": Stream(inputs["b"], punctuation="y IS NULL")}
    query = join.start_with(
        spark_mjoin.join(marked, join.query, partitions=2, purge="immediate")
        .writeStream.format("parquet").option("path", str(root / "sink"))
    )  # fmt: skip
    query.awaitTermination()
    data = {alias: table.filter(table[1].is_valid()) for alias, table in join.whole().items()}
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == rows(duckdb_join(join.query, data))
    assert operators(query)[-1]["numRowsTotal"] == 0


# --- progress --------------------------------------------------------------------------------------------------------


@on_both
def streams_show_true_numbers(spark: Any, root: Path) -> None:
    """Each number of the join's entry in each progress, against what is known of the input and of Spark's own times."""
    join = StreamJoin(root, options=LIMITED).fill(files=3)
    query = join.start_with(join.load(spark).writeStream.format("parquet").option("path", str(root / "sink")))
    query.awaitTermination()
    with_keys = {a: [len(t) - t["k"].null_count for t in tables] for a, tables in join.tables.items()}
    progresses = batches(query)
    assert [progress["batchId"] for progress in progresses] == [0, 1, 2]
    for batch, progress in enumerate(progresses):
        (found,) = (o for o in progress["stateOperators"] if o["operatorName"] == "mjoin")
        metrics, until = spark_mjoin.metrics_of(progress), {a: t[: batch + 1] for a, t in join.tables.items()}
        held = {alias: sum(counts[: batch + 1]) for alias, counts in with_keys.items()}
        results = rows(duckdb_join(STAR, {alias: pa.concat_tables(tables) for alias, tables in until.items()})).total()
        assert found["numRowsTotal"] == int(metrics["numRowsTotal"]) == sum(held.values())
        assert found["numRowsUpdated"] == sum(counts[batch] for counts in with_keys.values())
        assert found["numRowsRemoved"] == found["numRowsDroppedByWatermark"] == 0
        assert found["memoryUsedBytes"] == int(metrics["memoryUsedBytes"]) > 0
        assert found["numShufflePartitions"] == found["numStateStoreInstances"] == 3
        assert 0 < found["commitTimeMs"] <= 3 * progress["durationMs"]["addBatch"], found
        assert found["allUpdatesTimeMs"] == int(metrics["memoryToMemoryTimeMs"])
        assert int(metrics["resultsTotal"]) == results and float(metrics["completeness"]) == 1.0
        assert float(metrics["estimatedRecall"]) == float(metrics["aAdmittedFraction"]) == 1.0
        for alias, counts in with_keys.items():
            assert int(metrics[f"{alias}NumRowsTotal"]) == held[alias]
            assert int(metrics[f"{alias}NumInputRows"]) == counts[batch]
            assert float(metrics[f"{alias}RowsPerSecond"]) >= 0
        assert set(found["customMetrics"]) >= {"completenessMillionths", "aRowsPerSecondMillionths"}


@on_classic
def streams_show_words_in_their_plan(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    query = join.start_with(join.load(spark).writeStream.format("noop"), processingTime="0 seconds")
    try:
        query.processAllAvailable()
        shown = query._jsq.explainInternal(False)
        assert "plan=(a b c)" in shown and "aProbeOrder=" in shown, shown
        assert shown.count("MJoinSend") >= 3, "the jar sends the rows of each input"
    finally:
        query.stop()


# --- exactly once ----------------------------------------------------------------------------------------------------


@on_both
def streams_resume(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    assert join.collect(spark, join.load(spark)) == join.expected()
    join.fill(files=2)
    assert join.collect(spark, join.load(spark)) == join.expected()


@on_both
def streams_emit_after_a_restart_what_was_pending(spark: Any, root: Path) -> None:
    """Without new data: one batch begins it, and batches without data go on. Without `memory` none runs."""
    join = StreamJoin(root, options={**LIMITED, "memory": "24k", "diskFuel": "40k"}).fill(files=2, rows=300, keys=150)
    spark.conf.set(NO_DATA, "false")
    try:
        found = join.collect(spark, join.load(spark))
        assert 0 < found.total() < join.expected().total(), found.total()
    finally:
        spark.conf.set(NO_DATA, "true")
    assert join.collect(spark, join.load(spark)) == join.expected()

    plain = StreamJoin(root / "plain", options=LIMITED).fill(files=1)
    plain.collect(spark, plain.load(spark))
    writer = plain.load(spark).writeStream.format("parquet").option("path", str(root / "plain" / "sink"))
    again = plain.start_with(writer)
    again.awaitTermination()
    assert [len(progress["sources"]) for progress in again.recentProgress] == [3] and not batches(again)


@on_classic
def streams_resume_with_other_partitions(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    for partitions in ("5", "1", "2"):
        join.run(spark)
        join.fill(files=1)
        join = join.changed(partitions=partitions)
    join.run(spark)
    assert join.collected == join.expected()


@on_classic
def streams_refuse_another_join_of_the_same_state(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    join.run(spark)
    join.fill(files=1)
    other = join.changed(query=STAR.replace("ON a.k = b.k", "ON a.k = b.k + 1"))
    said = failure_of(lambda: other.run(spark))
    assert "option keys was" in said, said
    join.run(spark)
    assert join.collected == join.expected()


@on_both
def streams_under_a_limit_lose_nothing(spark: Any, root: Path) -> None:
    """A downstream LIMIT is content with few rows; the state has all of them, and its counts all results."""
    join = StreamJoin(root, options=LIMITED).fill(files=3, rows=400, keys=50)
    query = join.start_with(join.load(spark).limit(1).writeStream.format("noop"))
    query.awaitTermination()
    found = operators(query)[-1]
    with_keys = sum(len(table["k"]) - table["k"].null_count for table in join.whole().values())
    assert found["numRowsTotal"] == with_keys
    assert int(found["customMetrics"]["resultsTotal"]) == join.expected().total()


@on_classic
def streams_in_a_foreach_batch(spark: Any, root: Path) -> None:
    """Two actions give each the same rows, and so do those on a batch that is kept."""
    seen: list[tuple[Rows, Rows]] = []

    def twice(batch: Any, number: int) -> None:
        seen.append((rows(batch.toArrow()), rows(batch.toArrow())))

    join = StreamJoin(root / "twice", options=LIMITED).fill(files=2)
    join.start_with(join.load(spark).writeStream.foreachBatch(twice)).awaitTermination()
    assert all(one == two for one, two in seen) and sum((one for one, _ in seen), Rows()) == join.expected()

    def kept(batch: Any, number: int) -> None:
        batch.persist()
        batch.count()
        batch.take(1)
        seen.append((rows(batch.toArrow()), Rows()))
        batch.unpersist()

    seen.clear()
    join = StreamJoin(root / "kept", options=LIMITED).fill(files=2)
    join.start_with(join.load(spark).writeStream.foreachBatch(kept)).awaitTermination()
    assert sum((one for one, _ in seen), Rows()) == join.expected()


@on_classic
def streams_in_a_foreach_batch_that_reads_a_part(spark: Any, root: Path) -> None:
    """What it leaves out is in the state all the same, and the last batch joins with it."""
    for name in ("take", "nothing", "kept in part"):
        join = StreamJoin(root / name, options=LIMITED).fill(files=3)

        def act(batch: Any, number: int, name: str = name, path: str = str(join.root / "last")) -> None:
            if number == 2:
                batch.write.parquet(path)
            elif name == "take":
                batch.take(1)
            elif name == "kept in part":
                batch.persist().take(1)
                batch.unpersist()

        query = join.start_with(join.load(spark).writeStream.foreachBatch(act))
        query.awaitTermination()
        two = {alias: pa.concat_tables(tables[:2]) for alias, tables in join.tables.items()}
        found = rows(spark.read.parquet(str(join.root / "last")).toArrow())
        assert found == join.expected() - rows(duckdb_join(join.query, two)) and found, name
        last = operators(query)[-1]
        assert int(last["customMetrics"]["resultsTotal"]) == join.expected().total()


@on_classic
def streams_that_nobody_reads_fail_before_the_batch_is_done(spark: Any, root: Path) -> None:
    """A task that runs because the sink has left it out fails: the query resumes with that batch."""
    join = StreamJoin(root, options=LIMITED).fill(files=2)
    broken = root / "broken"
    broken.touch()

    def checked(n: int) -> int:
        if broken.exists():
            raise OSError("a fault that the test wants")
        return n

    inputs = join.inputs(spark)
    inputs["a"] = inputs["a"].withColumn("x", F.udf(checked, "bigint")("x"))
    joined = spark_mjoin.join(inputs, join.query, partitions=3)
    query = join.start_with(joined.writeStream.foreachBatch(lambda batch, number: None))
    assert "a fault that the test wants" in failure_of(query.awaitTermination)
    assert not list((root / "checkpoint" / "commits").glob("[0-9]*"))
    broken.unlink()
    assert join.collect(spark, joined) == join.expected()


@on_classic
def streams_advance_in_batches_without_data(spark: Any, root: Path) -> None:
    """An aggregation behind the join has batches of its own, for which there is no input."""
    join = StreamJoin(root, "SELECT a.k, a.x, a.at FROM a JOIN b ON a.k = b.k")
    inputs = timed(join, spark)
    counted = (
        spark_mjoin.join(inputs, join.query, partitions=2)
        .withWatermark("at", "1 second").groupBy(F.window("at", "10 seconds")).count()
    )  # fmt: skip
    query = join.start_with(counted.writeStream.format("parquet").option("path", str(root / "sink")))
    query.awaitTermination()
    total = spark.read.parquet(str(root / "sink")).agg(F.sum("count")).collect()[0][0]
    assert len(query.recentProgress) == 5 and 0 < total <= join.expected().total()
    query = join.start_with(counted.writeStream.format("parquet").option("path", str(root / "sink")))
    query.awaitTermination()
    assert query.exception() is None


# --- placement -------------------------------------------------------------------------------------------------------


def hits(query: Any) -> list[int]:
    """Of each batch with input, how many partitions found their state in the memory of their workers."""
    reported = {
        p["batchId"]: o for p, o in zip(query.recentProgress, operators(query), strict=True) if p["numInputRows"]
    }
    return [int(o["customMetrics"]["stateCacheHits"]) for o in reported.values()]


@on_classic
def streams_find_their_state_in_their_workers(spark: Any, root: Path) -> None:
    """Of three partitions on two cores."""
    join = StreamJoin(root, options=LIMITED).fill(files=4)
    query = join.start_with(join.load(spark).writeStream.format("noop"))
    query.awaitTermination()
    assert hits(query) == [0, 3, 3, 3]


@scenario("local-cluster", of=STREAMS)
def streams_move_when_an_executor_dies_and_find_their_state_again(spark: Any, root: Path) -> None:
    join = StreamJoin(root, options={**LIMITED, "partitions": "4"}).fill(files=4)

    def all_came_out() -> bool:
        found = operators(query)
        return bool(found) and int(found[-1]["customMetrics"]["resultsTotal"]) == join.expected().total()

    wait_for_executors(2)
    writer = join.load(spark).writeStream.format("parquet").option("path", str(root / "sink"))
    query = join.start_with(writer, processingTime="50 milliseconds")
    wait_until(all_came_out, query, seconds=300)
    assert hits(query) == [0, 4, 4, 4]

    victims = [p for p in psutil.Process().children(recursive=True) if "CoarseGrainedExecutorBackend" in command(p)]
    assert len(victims) == 2
    victims[0].kill()
    join.fill(files=1)
    wait_until(all_came_out, query, seconds=300)
    wait_for_executors(2)
    join.fill(files=4)
    wait_until(all_came_out, query, seconds=300)
    query.stop()
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == join.expected()
    found = hits(query)
    assert found[4] == 2, f"the two partitions of the executor that lives had their state: {found}"
    assert found[-1] == 4, f"all have it again: {found}"


# --- refusals --------------------------------------------------------------------------------------------------------


@on_both
def streams_are_checked_when_join_is_called(spark: Any, root: Path) -> None:
    join = StreamJoin(root).fill(files=1)
    a, b = (join.inputs(spark)[alias] for alias in "ab")
    on = "FROM a JOIN b ON a.k = b.k"

    def said(inputs: dict[str, Any], query: str | None = None, **options: Any) -> str:
        return refused(lambda: spark_mjoin.join(inputs, query, **options))

    both = {"a": a, "b": b}
    assert "has no column 'kk'" in said(both, f"SELECT a.kk {on}")
    assert "'k' is ambiguous" in said(both, f"SELECT k {on}")
    assert "types that do not match" in said(both, "SELECT a.x FROM a JOIN b ON a.k = CAST(b.k AS STRING)")
    assert "not connected" in said(both, "SELECT a.x FROM a JOIN b ON a.x < b.y")
    assert "Did you mean 'memory'" in said(both, f"SELECT a.x {on}", memori="1m")
    assert "'clustered' of input 'a'" in said({"a": Stream(a, clustered="k"), "b": b}, f"SELECT a.x {on}")
    assert "two to 10 inputs" in said({"a": a}, "SELECT 1")
    assert "is not in the query" in said({**both, "c": a}, f"SELECT a.x {on}")
    assert issubclass(QueryError, MJoinError) and issubclass(OptionError, MJoinError)
