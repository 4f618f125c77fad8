"""How often a partition finds its state in its worker's memory: `python -m benchmarks.sticky [--batches 20]`.

A star join of three streams in four partitions, on `local[2]` and on a cluster of two executors: by `format("mjoin")`
with the jar's sticky partitions and without (option `stickyPartitions`, and no jar at all), and by `spark_mjoin.join`,
where partitions are always sticky. Each in a process of its own. `--doors` chooses the doors.

A partition hits when it resumes from what its worker has and reads nothing; the first batch, which starts with nothing,
is left out. The time is the mean of a batch's `addBatch`, also without the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MASTERS = ("local[2]", "local-cluster[2,2,1024]")
DOORS = ("format", "join")
WAYS = {
    "sticky": "`format`: jar, sticky",
    "roaming": "`format`: jar, `stickyPartitions` = `false`",
    "no jar": "`format`: no jar",
    "join": "`spark_mjoin.join`",
}
SOURCES = "abc"
PARTITIONS = 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sticky", description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=20_000, help="per source and batch")
    parser.add_argument("--doors", nargs="+", choices=DOORS, default=DOORS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child, options.batches, options.rows)))
        return
    print("| master | way | partitions that hit | batches in which all did | addBatch, mean |")
    print("|---|---|---|---|---|")
    for master in MASTERS:
        for way, label in WAYS.items():
            if ("join" if way == "join" else "format") not in options.doors:
                continue
            command = [sys.executable, "-m", "benchmarks.sticky", "--child", master, way]
            command += ["--batches", str(options.batches), "--rows", str(options.rows)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            hits, milliseconds = json.loads(done.stdout.splitlines()[-1])
            share = sum(hits) / (PARTITIONS * len(hits))
            full = sum(h == PARTITIONS for h in hits) / len(hits)
            print(f"| `{master}` | {label} | {share:.0%} | {full:.0%} | {milliseconds:.0f} ms |", flush=True)


def measure(master: str, way: str, batches: int, rows: int) -> tuple[list[int], float]:
    """Hits of each batch but the first, and the mean of addBatch in ms."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import spark_mjoin

    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.executor.memory", "512m")
    spark = builder.getOrCreate()
    if way != "no jar":
        spark_mjoin.enable(spark)
    with tempfile.TemporaryDirectory() as directory:
        if way == "join":
            frame = joined(spark, Path(directory), batches, rows)
        else:
            frame = loaded(spark, way, directory, batches, rows)
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    first = 2 if way == "no jar" else 1  # without the jar metrics come a batch late
    hits = [int(metrics(p, way)["stateCacheHits"]) for p in query.recentProgress[first:]]
    times = [p["durationMs"]["addBatch"] for p in query.recentProgress[1:]]
    spark.stop()
    return hits, sum(times) / len(times)


def metrics(progress: Any, way: str) -> Any:
    """Of one batch: a join of DataFrames is a stateful operator to Spark, the format a source."""
    import spark_mjoin

    return progress["stateOperators"][0]["customMetrics"] if way == "join" else spark_mjoin.metrics_of(progress)


def loaded(spark: Any, way: str, directory: str, batches: int, rows: int) -> Any:
    """A join of generated streams."""
    join = spark.readStream.format("mjoin").option("on", "unique1").option("partitions", PARTITIONS)
    join = join.option("stickyPartitions", str(way == "sticky").lower()).option("maxRowsPerTrigger", str(rows))
    join = join.option("stateLocation", f"{directory}/state")
    for seed, alias in enumerate(SOURCES):
        join = join.option(f"source.{alias}.format", "wisconsin").option(f"source.{alias}.seed", str(seed))
        join = join.option(f"source.{alias}.rows", str(batches * rows))
    return join.load()


def joined(spark: Any, directory: Path, batches: int, rows: int) -> Any:
    """A join of streams of files: one file of each comes with each batch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    import spark_mjoin

    inputs = {}
    for seed, alias in enumerate(SOURCES):
        keys = np.random.default_rng(seed).permutation(batches * rows)
        (directory / alias).mkdir()
        for number in range(batches):
            some = keys[number * rows : (number + 1) * rows]
            pq.write_table(pa.table({"k": some, f"{alias}1": some}), directory / alias / f"{number:06d}.parquet")
        reader = spark.readStream.schema(f"k BIGINT, {alias}1 BIGINT").option("maxFilesPerTrigger", 1)
        inputs[alias] = reader.parquet(str(directory / alias))
    return spark_mjoin.join(inputs, on="k", partitions=PARTITIONS)


if __name__ == "__main__":
    main()
