"""Work and shuffled bytes by the number of partitions: `python -m benchmarks.scaling [--partitions 2,8,32]`.

Workload (a), a star of three streams, through `spark_mjoin.join` in micro-batches, in one session: with each number of
partitions in turn a query that warms up, and as many as `--rounds` says that are measured. Spark ends Python workers
after a minute without work, so the others would start anew in between. For each number it prints

* the processor's time of all processes per input row, as the median over the rounds, and its ratio to the least number;
* shuffled bytes, as Spark counts what its tasks have written (after its compression), per byte of the rows in memory
  (the columns that the query uses, as Arrow has them), and per byte that Spark has read from the files.

The bars: the work within 30 % from the least number to the largest, and below 1.2 shuffled bytes per byte. A task costs
some 20 to 30 ms of the processor in Spark and Python before it does anything (`--tasks` measures it). So the first bar
is about micro-batches with many rows: `--scale 10 --files 10` has a million rows of each input in each.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import child
from benchmarks.engines import REPOSITORY, Engine
from benchmarks.turns import processor_seconds
from benchmarks.workloads import WORKLOADS, Dataset

MOST_WORK = 1.3
MOST_SHUFFLED = 1.2


@dataclass(frozen=True)
class Run:
    processor: float
    seconds: float
    shuffled_bytes: int
    read_bytes: int
    results: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", default="2,8,32", help="with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the million rows of each input")
    parser.add_argument("--files", type=int, default=20, help="of each input, one of each in a micro-batch")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "out" / "bench-data")
    parser.add_argument("--tasks", action="store_true", help="measure tasks that do nothing, and end")
    options = parser.parse_args()
    if options.tasks:
        print(f"a mapInArrow that returns its rows: {1000 * bare_task():.1f} ms of the processor per task")
        return
    data = WORKLOADS["a"].prepare(options.data, options.scale, options.files)
    tables = data.tables()
    rows, size = sum(t.num_rows for t in tables.values()), sum(t.nbytes for t in tables.values())
    results = tables["r"].num_rows
    del tables
    numbers = [int(text) for text in options.partitions.split(",")]
    runs = measure(data, numbers, options.rounds)
    print(f"{rows:,} input rows, {size:,} bytes, {options.files} micro-batches, {options.rounds} rounds")
    print("| partitions | processor µs per row | ratio | s | shuffled per byte | shuffled per byte of the files |")
    print("|---|---|---|---|---|---|")
    least = work(runs[numbers[0]])
    for number in numbers:
        found = runs[number]
        assert all(run.results == results for run in found), f"{number} partitions: {[run.results for run in found]}"
        shuffled = statistics.median(run.shuffled_bytes for run in found)
        shown = (
            f"{1e6 * work(found) / rows:.2f}",
            f"{work(found) / least:.2f}",
            f"{statistics.median(run.seconds for run in found):.2f}",
            f"{shuffled / size:.3f}",
            f"{shuffled / statistics.median(run.read_bytes for run in found):.3f}",
        )
        print(f"| {number} | {' | '.join(shown)} |")
    most = max(work(found) for found in runs.values()) / least
    bytes_ = max(run.shuffled_bytes for found in runs.values() for run in found) / size
    print(f"work: {most:.2f} times, {verdict(most <= MOST_WORK)} the bar of {MOST_WORK}")
    print(f"shuffled: {bytes_:.3f} bytes per byte, {verdict(bytes_ < MOST_SHUFFLED)} the bar of {MOST_SHUFFLED}")


def work(runs: Sequence[Run]) -> float:
    return statistics.median(run.processor for run in runs)


def verdict(met: bool) -> str:
    return "meets" if met else "MISSES"


def measure(data: Dataset, numbers: Sequence[int], rounds: int) -> dict[int, list[Run]]:
    scratch = tempfile.mkdtemp(prefix="mjoin-scaling-")
    spark = child.session(Engine("scaling", "streams", "", 1, driver_memory="1g", jar=True), scratch)
    found: dict[int, list[Run]] = {}
    try:
        for number in numbers:
            runs = [_run(spark, data, number, Path(tempfile.mkdtemp(dir=scratch))) for _ in range(rounds + 1)]
            found[number] = runs[1:]
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return found


def _run(spark: Any, data: Dataset, partitions: int, directory: Path) -> Run:
    engine = Engine("scaling", "streams", "", 1, options={"partitions": str(partitions)}, jar=True)
    joined = child.frame(spark, engine, data, directory)
    writer = joined.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
    moved, before, started = _moved(spark), processor_seconds(), time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    processor, seconds = processor_seconds() - before, time.perf_counter() - started
    read, written = (after - earlier for after, earlier in zip(_moved(spark), moved, strict=True))
    shutil.rmtree(directory, ignore_errors=True)
    results = sum(progress.sink.numOutputRows for progress in query.recentProgress)
    return Run(processor, seconds, written, read, results)


def bare_task(tasks: int = 32, batches: int = 20) -> float:
    """The processor's seconds for a task of Spark with Python in which a row comes and goes."""
    scratch = tempfile.mkdtemp(prefix="mjoin-scaling-")
    spark = child.session(Engine("tasks", "spark", "", 1, driver_memory="1g"), scratch)

    def same(rows: Any) -> Any:
        yield from rows

    try:
        frame = spark.range(0, tasks, 1, tasks).mapInArrow(same, "id long")
        for _ in range(batches):
            frame.write.format("noop").mode("overwrite").save()
        before = processor_seconds()
        for _ in range(batches):
            frame.write.format("noop").mode("overwrite").save()
        return (processor_seconds() - before) / (tasks * batches)
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def _moved(spark: Any) -> tuple[int, int]:
    """Bytes that tasks have read from files, and written for shuffles, so far."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    each = [executors.apply(number) for number in range(executors.size())]
    return sum(e.totalInputBytes() for e in each), sum(e.totalShuffleWrite() for e in each)


if __name__ == "__main__":
    main()
