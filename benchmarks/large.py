"""A join that is larger than its memory, on a cluster: `python -m benchmarks.large [--rows 10000000]`.

The star of workload (a) through `spark_mjoin.join` on `local-cluster[2,1,…]`: executors and Python workers are
processes of their own. `memory` is a quarter of what the inputs take as Arrow tables, which is less than their state
takes. The results must be as many as an input has rows, and the sums of four columns those of the inputs.

The memory of every process is sampled twice a second: anonymous memory (`RssAnon`), without files that are mapped. Each
kind of process has a bound:

* a JVM: its heap, and what Spark reserves for it beyond the heap (384 MiB by default);
* a Python process: 384 MiB for the interpreter, the engine with its compiled code, and batches on their way; and for a
  worker its part of `memory`, and twice what it may hold of rows before it joins them (docs/streams.md). Both count
  twice: buffers double when they grow, and what was freed may not be with the system yet.

Exits with 1 if a result is wrong or a process is above its bound.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc

import spark_mjoin
from benchmarks.engines import REPOSITORY
from benchmarks.workloads import WORKLOADS, Dataset
from spark_mjoin.engine.delivered import LEAST_SPOOL_BYTES, SPOOL_SHARE

MIB = 1 << 20
JVM_BEYOND_HEAP = 384 * MIB
PYTHON = 384 * MIB
GROWTH = 2
INTERVAL_SECONDS = 0.5
SUMS = ("k", "r_x", "s_x", "t_x")


class Peaks:
    """The most anonymous memory of each process below this one, by its kind."""

    def __init__(self) -> None:
        self.bytes: dict[str, dict[int, int]] = defaultdict(dict)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peaks", daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        me = psutil.Process()
        while not self._done.wait(INTERVAL_SECONDS):
            for process in me.children(recursive=True):
                try:
                    kind, size = kind_of(process), anonymous_bytes(process.pid)
                except (psutil.Error, OSError, ValueError):
                    continue  # it has just ended
                if size:
                    self.bytes[kind][process.pid] = max(size, self.bytes[kind].get(process.pid, 0))


def kind_of(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if process.name() == "java":
        backend = "CoarseGrainedExecutorBackend" in command
        return "executor JVM" if backend else "driver JVM"
    return "planner" if "planner_process" in command else "Python worker" if "pyspark.daemon" in command else "other"


def anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def bounds(memory: int, partitions: int, heap: int) -> dict[str, int]:
    """The bytes that a process of each kind may take."""
    share = memory // partitions
    held = max(LEAST_SPOOL_BYTES, share // SPOOL_SHARE)
    return {
        "executor JVM": heap + JVM_BEYOND_HEAP,
        "driver JVM": heap + JVM_BEYOND_HEAP,
        "planner": PYTHON,
        "Python worker": PYTHON + GROWTH * (share + 2 * held),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="of each input")
    parser.add_argument("--files", type=int, default=20, help="of each input, one of each in a micro-batch")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--heap-mib", type=int, default=1024, help="of the driver and of each executor")
    parser.add_argument("--share", type=float, default=0.25, help="of the inputs' bytes, for 'memory'")
    parser.add_argument("--data", type=Path, default=REPOSITORY / "out" / "bench-data")
    options = parser.parse_args()
    data = WORKLOADS["a"].prepare(options.data, options.rows / 1_000_000, options.files)
    size, expected = known(data)
    memory = int(options.share * size)
    print(f"{options.rows:,} rows per input, {size / MIB:,.0f} MiB; memory = {memory / MIB:,.0f} MiB", flush=True)
    started = time.perf_counter()
    with Peaks() as peaks:
        found, figures = run(data, memory, options.partitions, options.heap_mib)
    print(
        f"{time.perf_counter() - started:.0f} s with the session; {', '.join(f'{n} {v}' for n, v in figures.items())}"
    )
    right = found == expected
    print("results: " + ("right" if right else f"WRONG: {found}, and not {expected}"))
    return 0 if shown(peaks.bytes, bounds(memory, options.partitions, options.heap_mib * MIB)) and right else 1


def shown(peaks: Mapping[str, Mapping[int, int]], bounds: Mapping[str, int]) -> bool:
    """Prints the peaks; whether all are within their bounds."""
    print("| process | number | peak MiB, largest | bound MiB | |")
    print("|---|---|---|---|---|")
    within = True
    for kind, bound in bounds.items():
        sizes = sorted(peaks.get(kind, {}).values())
        if sizes:
            met = sizes[-1] <= bound
            within = within and met
            verdict = "met" if met else "MISSED"
            print(f"| {kind} | {len(sizes)} | {sizes[-1] / MIB:,.0f} | {bound / MIB:,.0f} | {verdict} |")
    return within


def known(data: Dataset) -> tuple[int, tuple[int, ...]]:
    """The bytes of all inputs, and what must come out: the number of results, and sums of columns."""
    tables = data.tables()
    size = sum(table.nbytes for table in tables.values())
    rows = tables["r"].num_rows
    sums = [pc.sum(tables["r"]["k"]).as_py()]
    sums += [pc.sum(tables[name[0]][name]).as_py() for name in SUMS[1:]]
    return size, (rows, *sums)


def run(data: Dataset, memory: int, partitions: int, heap_mib: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """What came out, and figures of the run."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    scratch = Path(tempfile.mkdtemp(prefix="mjoin-large-"))
    builder = SparkSession.builder.master(f"local-cluster[2,1,{heap_mib}]").config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.memory": f"{heap_mib}m",
        "spark.executor.memory": f"{heap_mib}m",
        "spark.local.dir": str(scratch),
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    streams = {
        alias: spark.readStream.schema(data.ddl(alias)).option("maxFilesPerTrigger", "1").parquet(str(data.path(alias)))
        for alias in data.workload.aliases
    }
    joined = spark_mjoin.join(streams, data.workload.query, partitions=partitions, memory=str(memory))
    seen: dict[int, tuple[int, ...]] = {}

    def add(batch: Any, number: int) -> None:
        row = batch.agg(F.count("*"), *(F.coalesce(F.sum(name), F.lit(0)) for name in SUMS)).collect()[0]
        seen[number] = tuple(int(value) for value in row)

    try:
        writer = joined.writeStream.foreachBatch(add).option("checkpointLocation", str(scratch / "checkpoint"))
        started = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
        every = [spark_mjoin.metrics_of(progress) for progress in query.recentProgress]
        figures = {
            "query s": round(seconds),
            "micro-batches": len(every),
            "rows on disk at the end": f"{int(every[-1]['numRowsOnDisk']):,}",
            "peak of the accounted memory MiB": max(int(m["memoryPeakBytes"]) for m in every) // MIB,
        }
    finally:
        spark.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    return tuple(map(sum, zip(*seen.values(), strict=True))), figures


if __name__ == "__main__":
    sys.exit(main())
