"""Two checkouts in turns on the same workloads: `python -m benchmarks.turns --against <checkout>`.

    session of this checkout     query  .  .  query  query  .  .  query        the other one waits meanwhile
    session of the other         .  query  query  .  .  query  query  .

Cores that are shared with others are faster now and slower a minute later, by more than what a change costs. In turns
both sides get the same of it. What is compared are medians, of the time and of the processor's time of all processes.
With `--memory` only peaks of memory are compared, of the JVM and of all other processes each, in as many turns.

The other checkout needs an environment of its own in `.venv`, with its jar (`make install` there).
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent.parent
KINDS = {"micro-batches": 1, "defaults": None}  # files per trigger


@dataclass(frozen=True)
class Turn:
    seconds: float
    cpu: float
    peak_bytes: int = 0
    jvm_bytes: int = 0
    other_bytes: int = 0


class Side:
    """A session of one checkout, which runs a query when it is asked to."""

    def __init__(self, checkout: Path, letter: str, kind: str, data: Path) -> None:
        python = checkout / ".venv" / "bin" / "python"
        environment = {**os.environ, "PYTHONPATH": str(checkout), "PYSPARK_PYTHON": str(python)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).resolve()), "--child", letter, kind, str(data)],
            cwd=checkout,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def turn(self, memory: bool = False) -> Turn:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("memory\n" if memory else "time\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("TURN "):
                return Turn(**json.loads(line[5:]))
        raise SystemExit("a session has ended; run benchmarks.bench there to see why")

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def compare(letter: str, kind: str, against: Path, data: Path, rounds: int, memory: bool) -> list[list[Turn]]:
    """The turns of the other checkout, and of this one, in one session each. The last one has the peak of memory.

    memory: all of them have it.
    """
    sides = [Side(checkout, letter, kind, data) for checkout in (against, HERE)]
    turns: list[list[Turn]] = [[], []]
    try:
        for number in range(rounds + 2):  # the first two warm up
            for side in (0, 1) if number % 2 else (1, 0):
                turn = sides[side].turn(memory)
                if number >= 2:
                    turns[side].append(turn)
        for side in (0, 1):
            turns[side].append(sides[side].turn(memory=True))
    finally:
        for each in sides:
            each.end()
    return turns


def line(letter: str, kind: str, sessions: Sequence[Sequence[Sequence[Turn]]]) -> str:
    timed = [[turn for session in sessions for turn in session[side][:-1]] for side in (0, 1)]
    seconds = [statistics.median(t.seconds for t in side) for side in timed]
    best = [min(t.seconds for t in side) for side in timed]
    cpu = [statistics.median(t.cpu for t in side) for side in timed]
    peaks = [statistics.median(session[side][-1].peak_bytes for session in sessions) / 1e9 for side in (0, 1)]
    shown = [f"{a:.2f} → {b:.2f}" for a, b in (seconds, best, cpu, peaks)]
    ratio = f"{seconds[1] / seconds[0]:.2f}, {best[1] / best[0]:.2f}, {cpu[1] / cpu[0]:.2f}"
    return f"| ({letter}) {kind} | {' | '.join(shown)} | {ratio} |"


def memory_line(letter: str, kind: str, sessions: Sequence[Sequence[Sequence[Turn]]]) -> str:
    turns = [[turn for session in sessions for turn in session[side]] for side in (0, 1)]
    shown = []
    for of in ("peak_bytes", "jvm_bytes", "other_bytes"):
        sizes = [sorted(getattr(turn, of) / 1e9 for turn in side) for side in turns]
        low, high = ([f"{statistics.quantiles(side, n=4)[q]:.2f}" for side in sizes] for q in (0, 2))
        middle = [statistics.median(side) for side in sizes]
        spread = f"{low[0]}-{high[0]} → {low[1]}-{high[1]}"
        shown.append(f"{middle[0]:.2f} → {middle[1]:.2f} ({spread})")
    return f"| ({letter}) {kind} | {' | '.join(shown)} |"


# --- in a session of a checkout --------------------------------------------------------------------------------------


def child(letter: str, kind: str, data: str) -> None:
    """Runs in either checkout, with its own modules."""
    from benchmarks.child import session
    from benchmarks.engines import Engine
    from benchmarks.workloads import WORKLOADS

    peak_memory = runpy.run_path(str(Path(__file__).with_name("memory.py")))["PeakMemory"]  # the same for both

    dataset = WORKLOADS[letter].prepare(Path(data), 1.0)
    scratch = tempfile.mkdtemp(prefix="mjoin-turns-")
    spark = session(Engine("turns", "mjoin", kind, KINDS[kind], driver_memory="1g", jar=True), scratch)
    for said in sys.stdin:
        spark._jvm.System.gc()
        directory = Path(tempfile.mkdtemp(dir=scratch))
        joined = _frame(spark, dataset, KINDS[kind])
        writer = joined.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
        with peak_memory() if said.strip() == "memory" else _Nothing() as memory:
            before, started = processor_seconds(), time.perf_counter()
            writer.trigger(availableNow=True).start().awaitTermination()
            seconds, cpu = time.perf_counter() - started, processor_seconds() - before
        shutil.rmtree(directory, ignore_errors=True)
        peaks = {name: getattr(memory, name) for name in ("peak_bytes", "jvm_bytes", "other_bytes")}
        print("TURN", json.dumps({"seconds": seconds, "cpu": cpu, **peaks}), flush=True)
    spark.stop()
    shutil.rmtree(scratch, ignore_errors=True)


def _frame(spark: Any, dataset: Any, files: int | None) -> Any:
    reader = spark.readStream.format("mjoin").option("query", dataset.workload.query)
    for alias in dataset.workload.aliases:
        reader = reader.option(f"source.{alias}.format", "parquet")
        reader = reader.option(f"source.{alias}.path", str(dataset.path(alias)))
        if files is not None:
            reader = reader.option(f"source.{alias}.maxFilesPerTrigger", str(files))
    return reader.load()


class _Nothing:
    """In place of a measurement of memory, which would take time."""

    peak_bytes = jvm_bytes = other_bytes = 0

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def processor_seconds() -> float:
    """The processor's time of all processes below this one so far, in seconds; those that have ended, too."""
    me = psutil.Process()
    found = [me.cpu_times(), *(p.cpu_times() for p in me.children(recursive=True) if p.is_running())]
    return sum(t.user + t.system + t.children_user + t.children_system for t in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, required=True, help="another checkout, with its .venv")
    parser.add_argument("--workloads", default="a,b,c,d,e", help="letters, with commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each side in a session")
    parser.add_argument("--sessions", type=int, default=2, help="of each side: the JVM compiles otherwise in each")
    parser.add_argument("--data", type=Path, default=HERE / "out" / "bench-data")
    parser.add_argument("--memory", action="store_true", help="compare peaks of memory, and no times")
    options = parser.parse_args()
    if options.memory:
        print("| workload | peak of all, GB (quartiles) | of the JVM | of the other processes |")
        print("|---|---|---|---|")
    else:
        print("| workload | median s | best s | processor s | peak GB | ratios of the first three |")
        print("|---|---|---|---|---|---|")
    for letter in options.workloads.split(","):
        for kind in options.kinds.split(","):
            given = letter, kind, options.against.resolve(), options.data.resolve(), options.rounds, options.memory
            sessions = [compare(*given) for _ in range(options.sessions)]
            print((memory_line if options.memory else line)(letter, kind, sessions), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main()
