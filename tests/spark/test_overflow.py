"""Overflow under a real Spark: ticks do the disk work, progress tells of it, and triggers wait for it."""

import json
import time
from pathlib import Path

from pyspark.sql import SparkSession

from spark_mjoin.metrics import report
from spark_mjoin.state.manifest import Manifests
from tests.harness import rows
from tests.spark.joins import FileJoin

CRAMPED = {"maxFilesPerTrigger": "1", "memory": "60k", "blockingThreshold": "1", "diskFuel": "60k"}


def metrics_of(query: object) -> list[dict[str, str]]:
    """The metrics that progress events showed, one for each version."""
    shown = {}
    for progress in query.recentProgress:
        latest = json.loads(progress["sources"][0]["latestOffset"] or "{}")
        if latest.get("metrics"):
            shown[latest["version"]] = latest["metrics"]
    return [shown[version] for version in sorted(shown)]


def test_available_now_ends_when_nothing_is_left_on_disk(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options=CRAMPED).fill(files=5, rows=200, keys=400)
    query = join.run(spark_session)
    assert join.collected == join.expected()
    metrics = metrics_of(query)
    assert len(metrics) > 5, "there must have been ticks"
    (partition,) = join.state.glob("*/partition-0-of-1")
    newest = Manifests(str(partition.parent), 0)
    last = report([newest.manifest(newest.versions()[-1])], ["a", "b", "c"])
    assert int(last["deferredRows"]) == 0
    assert float(last["completeness"]) == 1.0
    assert int(last["numRowsOnDisk"]) > 0
    assert int(last["numRowsInMemory"]) + int(last["numRowsOnDisk"]) == int(last["numRowsTotal"])
    assert int(last["resultsTotal"]) == join.collected.total()
    assert sum(int(m["flushes"]) for m in metrics) > 0
    assert sum(int(m["diskToDiskRows"]) for m in metrics) > 0
    assert min(float(m["completeness"]) for m in metrics) < 1.0


def test_idle_triggers_complete_what_overflow_has_deferred(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={**CRAMPED, "partitions": "2"}).fill(files=4, rows=200, keys=400)
    query = join.start(spark_session, processingTime="0 seconds")
    try:
        deadline = time.monotonic() + 120
        while join.collected != join.expected() and time.monotonic() < deadline:
            assert query.exception() is None
            time.sleep(0.3)
        assert join.collected == join.expected()
    finally:
        query.stop()


def test_a_restart_finishes_the_disk_work_of_a_stopped_query(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={**CRAMPED, "maxFilesPerTrigger": ""}).fill(files=4, rows=200, keys=400)
    join.run(spark_session, once=True)  # one batch: all the input, and none of the disk work
    assert 0 < join.collected.total() < join.expected().total()
    join.run(spark_session)
    assert join.collected == join.expected()


def test_a_batch_read_spills(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"memory": "60k", "partitions": "2"}).fill(files=3, rows=200, keys=400)
    assert rows(join.read(spark_session).toArrow()) == join.expected()
