"""The benchmark run: `python -m benchmarks.bench`.

For each workload: write the data once, compute the reference checksum, run every engine in a process of its own on
the same files, compare. Verdicts are printed and never end the run; the exit code is 1 only when an engine's rows
differ from the reference.

Not measured: start of the JVM and the session, restart and recovery, latency (`benchmarks.latency`), more than one
machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import get_args

from benchmarks import check, report
from benchmarks.engines import REPOSITORY, Engine, Kind, Measurement, Request, engines, run
from benchmarks.workloads import WORKLOADS, Workload


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    chosen = engines(
        options.only,
        rocksdb=options.rocksdb,
        one_batch=options.spark_one_batch,
        partitions=options.partitions,
        mjoin_memory=options.mjoin_memory,
        spark_memory=options.spark_memory,
        forkless_checkpoints=options.forkless_checkpoints,
        jar=options.jar,
        unix_sockets=options.unix_sockets,
        state_memory=options.memory,
    )
    results = report.Results(options.scale, machine())
    for letter in options.workloads:
        for measurement in run_workload(WORKLOADS[letter], chosen, options):
            results.add(measurement)
            say(line(measurement))
            report.write(results, options.out)
    report.show(results)
    print(f"written: {options.out / 'results.json'}, {options.out / 'results.md'}")
    return 1 if results.wrong else 0


def run_workload(workload: Workload, chosen: list[Engine], options: argparse.Namespace) -> Iterable[Measurement]:
    say(f"({workload.letter}) {workload.title}, scale {options.scale:g}")
    data = workload.prepare(options.data, options.scale)
    expected = check.reference(data) if options.verify else None
    for engine in chosen:
        scratch = Path(tempfile.mkdtemp(prefix="mjoin-bench-", dir=options.scratch))
        try:
            request = Request(
                engine=engine,
                workload=workload.letter,
                scale=options.scale,
                cache=str(options.data),
                scratch=str(scratch),
                repeats=options.repeats,
                budget_seconds=options.budget,
                verify=options.verify,
            )
            log = options.out / "logs" / f"{workload.letter}-{engine.name}.log"
            found = run(request, log, options.timeout)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        yield from (compared(measurement, expected) for measurement in found)


def compared(measurement: Measurement, expected: check.Checksum | None) -> Measurement:
    """With `same` filled in. The timed run must have written as many rows as the checked one."""
    if expected is None or measurement.checksum is None:
        return measurement
    same = measurement.checksum == asdict(expected) and measurement.rows == expected.rows
    return replace(measurement, same=same)


def machine() -> dict[str, object]:
    """What the figures depend on, for results.json."""
    packages = ("pyspark", "duckdb", "pyarrow", "numpy", "numba", "spark-mjoin")
    facts: dict[str, object] = {
        "cores": os.cpu_count(),
        "usable cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _cpu_model(),
        "memory MB": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6,
        "load before the run": ", ".join(f"{load:.2f}" for load in os.getloadavg()),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _first_line("java", "-version"),
        "commit": _first_line("git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"),
    }
    return facts | {name: _version(name) for name in packages}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return (done.stdout or done.stderr).splitlines()[0]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def line(it: Measurement) -> str:
    times = " ".join(f"{seconds:.3f}" for seconds in it.times) or "no time"
    if it.cold is not None:
        times = f"cold {it.cold:.3f}, warm {times}"
    state = {True: "same rows", False: "WRONG ROWS", None: "not checked"}[it.same]
    return f"  {it.label}: {times} s, {it.error or state}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--workloads", type=choice(WORKLOADS), default=list(WORKLOADS), help="letters, with commas (default: all)")
    add("--only", type=choice(get_args(Kind)), default=list(get_args(Kind)), help="mjoin,streams,spark,duckdb,kernel")
    add("--scale", type=float, default=1.0, help="share of the full row numbers")
    add("--repeats", type=int, default=3, help="warm runs of each engine; the best counts")
    add("--budget", type=float, default=120.0, help="no further repeat after so many seconds of timed runs")
    add("--timeout", type=float, default=1800.0, help="seconds after which one engine on one workload is given up")
    add("--no-verify", dest="verify", action="store_false", help="skip the untimed runs that compare the rows")
    add("--rocksdb", action="store_true", help="Spark's own joins with the RocksDB state store as well")
    add("--spark-one-batch", action="store_true", help="Spark's own joins without a per-trigger limit as well")
    add("--forkless-checkpoints", action="store_true", help="Spark's own joins without a fork per file as well")
    add("--partitions", type=int, help="mjoin's option of that name (default: not set)")
    add("--no-jar", dest="jar", action="store_false", help="mjoin in Python alone, without its jar in the session")
    add("--unix-sockets", action="store_true", help="mjoin with Unix domain sockets between Spark and Python")
    add("--memory", help="mjoin with its option of that name as well, to see it overflow")
    add("--mjoin-memory", default="1g", help="spark.driver.memory for mjoin")
    add("--spark-memory", default="6g", help="spark.driver.memory for Spark's own joins")
    add("--data", type=absolute, default=REPOSITORY / "out" / "bench-data", help="where the parquet files are kept")
    add("--scratch", type=absolute, help="where checkpoints and state go (default: the system's temporary directory)")
    add("--out", type=absolute, default=REPOSITORY / "out" / "bench", help="where results.json and results.md go")
    return parser


def absolute(text: str) -> Path:
    return Path(text).resolve()


class choice:
    """An argparse type: a comma-separated list of known names."""

    def __init__(self, known: Iterable[str]) -> None:
        self.known = list(known)

    def __call__(self, text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        unknown = [name for name in names if name not in self.known]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is not among {', '.join(self.known)}")
        return names


if __name__ == "__main__":
    sys.exit(main())
