"""One key with a large part of a stream: how much slower its task is than the others, split and not.

Three streams, of which one has Zipf's distribution and one key with `--part` of all its rows, joined by
`spark_mjoin.join` in `--partitions` on `local[2]`, micro-batch after micro-batch; once with option `splitHotKeys` =
`false`, once as by default. For each micro-batch it prints the rows of the fullest partition and the time of the
slowest task, both over the mean of all; times are Spark's run times of the tasks of the join's stage. The first batches
are without a split either way: nothing has been counted yet.

The bar: over the last half of the batches, the slowest task takes at most twice the mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_mjoin
from benchmarks.child import session
from benchmarks.engines import Engine

BAR = 2.0
QUERY = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"


@dataclass(frozen=True)
class Batch:
    rows: float  # of the fullest partition, over the mean
    slowest: float  # seconds, of a task
    mean: float
    all: float  # seconds of the micro-batch
    hot_keys: int

    @property
    def skew(self) -> float:
        return self.slowest / self.mean


def write(directory: Path, given: argparse.Namespace) -> None:
    """A file of each stream for each batch."""
    dice = np.random.default_rng(11)
    for alias, rows in (("a", given.rows), ("b", given.rows // 4), ("c", given.rows // 4)):
        (directory / alias).mkdir(parents=True)
        for batch in range(given.batches):
            if alias == "a":
                keys = np.minimum(dice.zipf(1.3, rows), given.rows)
                keys[dice.random(rows) < given.part] = 0
            else:
                keys = dice.integers(1, given.rows, rows)
                keys[: given.matching if batch == 0 else 0] = 0
            values = dice.integers(0, 2**62, rows)
            pq.write_table(pa.table({"k": keys, "v": values}), directory / alias / f"{batch:04}.parquet")


def run(spark: Any, directory: Path, given: argparse.Namespace, split: bool) -> list[Batch]:
    inputs = {
        alias: spark.readStream.schema("k BIGINT, v BIGINT").option("maxFilesPerTrigger", 1).parquet(
            str(directory / alias)
        )
        for alias in "abc"
    }  # fmt: skip
    joined = spark_mjoin.join(inputs, QUERY, partitions=given.partitions, splitHotKeys=split)
    before = {stage["stageId"] for stage in asked(spark, "stages?status=complete")}
    with tempfile.TemporaryDirectory() as checkpoint:
        query = joined.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        if query.exception() is not None:
            raise query.exception()
    stages = [s for s in asked(spark, "stages?status=complete") if s["stageId"] not in before and s["shuffleReadBytes"]]
    stages.sort(key=lambda stage: stage["stageId"])
    progresses = [p for p in query.recentProgress if p["numInputRows"]]
    assert len(stages) == len(progresses) == given.batches, (len(stages), len(progresses))
    return [batch_of(spark, *both) for both in zip(stages, progresses, strict=True)]


def batch_of(spark: Any, stage: dict[str, Any], progress: Any) -> Batch:
    tasks = asked(spark, f"stages/{stage['stageId']}/{stage['attemptId']}/taskList?length=10000")
    seconds = [task["taskMetrics"]["executorRunTime"] / 1000 for task in tasks]
    metrics = spark_mjoin.metrics_of(progress)
    return Batch(
        float(metrics["partitionSkew"]),
        max(seconds),
        mean(seconds),
        progress["durationMs"]["triggerExecution"] / 1000,
        int(metrics["hotKeys"]),
    )


def asked(spark: Any, what: str) -> Any:
    context = spark.sparkContext
    with urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}", timeout=60) as answer:
        return json.load(answer)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hot_keys", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_500_000, help="of the skewed stream in a batch")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--part", type=float, default=0.3, help="of the skewed stream's rows that one key has")
    parser.add_argument("--matching", type=int, default=3, help="rows with that key in each other stream")
    given = parser.parse_args()
    conf = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        spark = session(Engine("hot keys", "mjoin", "hot keys", conf=conf, jar=True), f"{directory}/spark")
        write(Path(directory) / "in", given)
        for split in (False, True):
            found[split] = run(spark, Path(directory) / "in", given, split)
        spark.stop()
    print("| batch | rows, whole | rows, split | slowest task, whole | split | batch, whole | split | hot keys |")
    print("|---|---|---|---|---|---|---|---|")
    for number, (whole, split) in enumerate(zip(found[False], found[True], strict=True)):
        print(
            f"| {number} | {whole.rows:.2f} | {split.rows:.2f} | {whole.skew:.2f} | {split.skew:.2f} |"
            f" {whole.all:.2f} s | {split.all:.2f} s | {split.hot_keys} |"
        )
    half = given.batches // 2
    for split, name in ((False, "whole"), (True, "split")):
        last = found[split][half:]
        print(
            f"{name}: the slowest task {median(b.skew for b in last):.2f} times the mean, at most"
            f" {max(b.skew for b in last):.2f}; a batch {median(b.all for b in last):.2f} s"
        )
    if median(b.skew for b in found[True][half:]) > BAR:
        sys.exit(f"the slowest task takes more than {BAR} times the mean")


if __name__ == "__main__":
    main()
