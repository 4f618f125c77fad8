"""What a memory budget means in a process: accounted bytes against resident set size, and what overflow costs in time.

    python -m benchmarks.budget [--workload a] [--memory 32m,64m,128m,none] [--scale 1]

Each budget runs in a process of its own, which does what a Python worker of Spark does, without Spark: the reader plans
micro-batches of one file per input, the tasks run one after the other, results are dropped. Prints for each the time,
the accounted peak, and the most that the process had above what it had before the first batch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.engines import REPOSITORY
from benchmarks.workloads import ALIASES, WORKLOADS
from spark_mjoin.config import parse_bytes

MARK = "BUDGET-RESULT "


@dataclass(frozen=True)
class Found:
    seconds: float
    batches: int
    results: int
    early: int  # results that arrivals gave, before any disk work
    accounted_bytes: int
    rss_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget", description=__doc__.split("\n")[0])
    parser.add_argument("--workload", default="a", choices=sorted(WORKLOADS))
    parser.add_argument("--memory", default="none,256m,128m,64m,32m")
    parser.add_argument("--flush", default="adaptive")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(MARK + json.dumps(asdict(run(options.workload, options.scale, options.child, options.flush))))
        return
    print("| memory | time | micro-batches | results | before disk work | accounted peak | RSS above idle | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for memory in options.memory.split(","):
        command = [sys.executable, "-m", "benchmarks.budget", *sys.argv[1:], "--child", memory]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        line = next(text for text in done.stdout.splitlines() if text.startswith(MARK))
        found = Found(**json.loads(line.removeprefix(MARK)))
        factor = "" if memory == "none" else f"{found.rss_bytes / parse_bytes(memory, 'memory'):.2f}"
        print(
            f"| {memory} | {found.seconds:.2f} s | {found.batches} | {found.results:,} | "
            f"{found.early / found.results:.0%} | {found.accounted_bytes / 2**20:.0f} MiB | "
            f"{found.rss_bytes / 2**20:.0f} MiB | {factor} |",
            flush=True,
        )


def run(letter: str, scale: float, memory: str, flush: str) -> Found:
    workload = WORKLOADS[letter]
    data = workload.prepare(REPOSITORY / "out" / "bench-data", scale)
    small = workload.prepare(REPOSITORY / "out" / "bench-data", 0.01, 2)
    settings = {"flush": flush} | ({} if memory == "none" else {"memory": memory})
    with tempfile.TemporaryDirectory() as scratch:
        _stream(small, settings | ({} if memory == "none" else {"memory": "64k"}), Path(scratch) / "warm")
        idle = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        started = time.perf_counter()
        batches, results, early, accounted = _stream(data, settings, Path(scratch) / "timed")
        seconds = time.perf_counter() - started
        return Found(seconds, batches, results, early, accounted, _status("VmHWM") - idle)


def _stream(data: object, options: dict[str, str], state: Path) -> tuple[int, int, int, int]:
    """A whole query without Spark: micro-batches, results, results of arrivals, the accounted peak."""
    from pyspark.sql.datasource import CaseInsensitiveDict
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from spark_mjoin.datasource import MJoinDataSource
    from spark_mjoin.state.manifests import Manifests

    given = {"query": data.workload.query, "stateLocation": str(state), **options}  # type: ignore[attr-defined]
    for alias in ALIASES:
        given |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(data.path(alias))}  # type: ignore[attr-defined]
        given[f"source.{alias}.maxFilesPerTrigger"] = "1"
    source = MJoinDataSource(CaseInsensitiveDict(given))
    reader = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    batches = results = early = accounted = 0
    while (end := reader.latestOffset(start, ReadMaxRows(2**62))) != start:
        for partition in reader.partitions(start, end):
            results += sum(batch.num_rows for batch in reader.read(partition))
        manifest = Manifests(f"{state}/{end['query']}", 0).manifest(end["version"])["batch"]
        early += manifest["memoryToMemoryRows"]
        accounted = max(accounted, manifest["memoryPeakBytes"])
        batches += 1
        start = end
    return batches, results, early, accounted


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    main()
