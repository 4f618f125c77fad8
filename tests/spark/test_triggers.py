"""Triggers, limits, sinks and partitions: what Structured Streaming promises about any source."""

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count_distinct, sum
from pyspark.sql.streaming import StreamingQuery

from tests.harness import rows
from tests.spark.joins import CHAIN, FileJoin, arrivals, positions


def wait_for_all(query: StreamingQuery, join: FileJoin, seconds: float = 90) -> None:
    """Wait until the results of all that was added are there, and not one more."""
    expected = join.expected()
    deadline = time.monotonic() + seconds
    while join.collected.total() < expected.total():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "the query did not get there in time"
        time.sleep(0.05)
    assert join.collected == expected


def test_processing_time_takes_files_as_they_come(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path).fill(files=1)
    query = join.start(spark_session, processingTime="50 milliseconds")
    try:
        wait_for_all(query, join)
        for number, alias in enumerate("abc", 1):
            join.add(alias, arrivals(alias, number))
            wait_for_all(query, join)
    finally:
        query.stop()
    assert len(join.batches) >= 4
    assert all(join.batches.values()), "a batch without input was run"


def test_a_query_may_begin_before_its_input(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"partitions": "2"})
    for alias, column in (("a", "x"), ("b", "y"), ("c", "z")):
        (tmp_path / "in" / alias).mkdir(parents=True)
        join.formats[alias] = {"format": "parquet", "schema": f"k BIGINT, {column} BIGINT"}
    join.run(spark_session)
    assert not join.collected
    query = join.start(spark_session, processingTime="50 milliseconds")
    try:
        for number in range(2):
            for alias in "abc":
                join.add(alias, arrivals(alias, number))
            wait_for_all(query, join)
    finally:
        query.stop()


def test_available_now_takes_all_in_limited_batches_and_ends(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "2", "source.b.maxFilesPerTrigger": "1"}).fill(files=4)
    query = join.run(spark_session)
    assert positions(query, "a") == [(2, 0), (4, 0), (4, 0), (4, 0)]
    assert positions(query, "b") == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert [p["numInputRows"] for p in query.recentProgress[:4]] == [join.batches[i].total() for i in range(4)]
    assert join.collected == join.expected()

    before = dict(join.batches)
    join.run(spark_session)
    assert join.batches == before, "a batch was run with nothing left"

    join.add("b", arrivals("b", 9))
    assert positions(join.run(spark_session), "b") == [(5, 0)]
    assert join.collected == join.expected()


def test_rows_per_trigger_are_exact_and_end_inside_files(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxRowsPerTrigger": "30"}).fill(files=2, rows=40)
    query = join.run(spark_session)
    assert positions(query, "c") == [(0, 30), (1, 20), (2, 0)]
    assert join.collected == join.expected()


def test_once_ignores_limits(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "maxRowsPerTrigger": "3"}).fill(files=3)
    assert positions(join.run(spark_session, once=True), "a") == [(3, 0)]
    assert join.collected == join.expected()
    join.fill(files=2)
    assert positions(join.run(spark_session, once=True), "a") == [(5, 0)]
    assert join.collected == join.expected()


# --- sinks -------------------------------------------------------------------------------------------------------


def oracle_parquet_sink(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"}).fill(files=2)
    sink = str(tmp_path / "sink")
    for _ in range(2):
        writer = join.load(spark_session).writeStream.format("parquet").option("path", sink)
        join.start_with(writer).awaitTermination()
        assert rows(spark_session.read.parquet(sink).toArrow()) == join.expected()
        join.fill(files=1)


def oracle_memory_sink(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1"}).fill(files=2)
    writer = join.load(spark_session).writeStream.format("memory").queryName("joined")
    join.start_with(writer).awaitTermination()
    assert rows(spark_session.table("joined").toArrow()) == join.expected()


def oracle_aggregation_downstream(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"}).fill(files=3)
    summed = join.load(spark_session).groupBy("k").agg(sum("x").alias("x"))
    writer = summed.writeStream.format("memory").queryName("summed").outputMode("complete")
    join.start_with(writer).awaitTermination()
    query = "SELECT a.k, sum(a.x)::BIGINT FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k GROUP BY a.k"
    assert rows(spark_session.table("summed").toArrow()) == join.expected(query)


# --- partitions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2, 3])
def oracle_partitions_do_not_change_the_result(spark_session: SparkSession, tmp_path: Path, partitions: int) -> None:
    join = FileJoin(tmp_path, options={"partitions": str(partitions), "maxFilesPerTrigger": "2"}).fill(files=4)
    tasks = run_counting_partitions(spark_session, join)
    assert set(tasks) == {partitions}
    assert join.collected == join.expected()
    assert len(join.state_files("partition-*/version-*2.json")) == partitions


def oracle_a_join_without_a_common_key_has_one_partition(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, CHAIN, {"partitions": "3", "maxFilesPerTrigger": "1"}).fill(files=2)
    tasks = run_counting_partitions(spark_session, join)
    assert set(tasks) == {1}
    assert join.collected == join.expected()
    assert join.collected.total() > 20


def run_counting_partitions(spark: SparkSession, join: FileJoin) -> Counter[int]:
    """Run the query to its end; how many partitions its batches had."""
    seen: Counter[int] = Counter()

    def keep(batch: DataFrame, number: int) -> None:
        seen[batch.rdd.getNumPartitions()] += 1
        join.batches[number] = rows(batch.toArrow())

    join.start_with(join.load(spark).writeStream.foreachBatch(keep)).awaitTermination()
    return seen


def test_distinct_counts_downstream_of_a_batch_read(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"partitions": "2", "stateLocation": ""}).fill(files=2)
    (found,) = join.read(spark_session).agg(count_distinct("k", "x", "y", "z")).collect()
    assert found[0] == len(join.expected())
