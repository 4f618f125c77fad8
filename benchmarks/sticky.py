"""How often a partition finds its state in its worker's memory: `python -m benchmarks.sticky [--batches 20]`.

The same query, a star join of three generated streams in four partitions, on `local[2]` and on a cluster of two
executors, with the jar's sticky partitions and without (option `stickyPartitions`, and no jar at all). Each in a
process of its own. A partition hits when it resumes from what its worker has and reads nothing; the first batch, which
starts with nothing, is left out. The time is the mean of a batch's `addBatch`, also without the first.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

MASTERS = ("local[2]", "local-cluster[2,2,1024]")
WAYS = {"sticky": "jar, sticky", "roaming": "jar, stickyPartitions = false", "no jar": "no jar"}
SOURCES = "abc"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sticky", description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rows", type=int, default=20_000, help="per source and batch")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child, options.batches, options.rows)))
        return
    print("| master | way | partitions that hit | batches in which all did | addBatch, mean |")
    print("|---|---|---|---|---|")
    for master in MASTERS:
        for way, label in WAYS.items():
            command = [sys.executable, "-m", "benchmarks.sticky", "--child", master, way]
            command += ["--batches", str(options.batches), "--rows", str(options.rows)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr[-3000:])
            hits, milliseconds = json.loads(done.stdout.splitlines()[-1])
            share = sum(hits) / (4 * len(hits))
            full = sum(h == 4 for h in hits) / len(hits)
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
        join = spark.readStream.format("mjoin").option("on", "unique1").option("partitions", "4")
        join = join.option("stickyPartitions", str(way == "sticky").lower()).option("maxRowsPerTrigger", str(rows))
        join = join.option("stateLocation", f"{directory}/state")
        for seed, alias in enumerate(SOURCES):
            join = join.option(f"source.{alias}.format", "wisconsin").option(f"source.{alias}.seed", str(seed))
            join = join.option(f"source.{alias}.rows", str(batches * rows))
        query = (
            join.load()
            .writeStream.format("noop")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    first = 2 if way == "no jar" else 1  # without the jar metrics come a batch late
    hits = [int(spark_mjoin.metrics_of(p)["stateCacheHits"]) for p in query.recentProgress[first:]]
    times = [p["durationMs"]["addBatch"] for p in query.recentProgress[1:]]
    spark.stop()
    return hits, sum(times) / len(times)


if __name__ == "__main__":
    main()
