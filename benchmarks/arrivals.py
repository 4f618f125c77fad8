"""Three streams of small files at a steady rate: the files, made beforehand, and the process that puts them in place.

Every tick each stream gets one file. Every key is once in each stream; its three rows are less than `SPREAD` ticks
apart, so a join has to keep rows, and every row has found its partners in the end. A row carries the number of its
tick, so that a result says which files it was made of.

The writer links a file to its place at its time: the whole file appears at once, and what that costs does not depend on
its size. It runs in a process of its own (`python -m benchmarks.arrivals`), so that it keeps time while an engine is
busy, and says when each file came. It waits for no engine: a slow one gets no less to do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engines import RESULT_MARK
from benchmarks.workloads import ALIASES, Dataset, Tables, Workload

SPREAD = 4
"""Ticks. The three rows of a key come within so many; the first so many ticks are there before the clock starts."""
MAX_LATE_SECONDS = 0.25
"""A file that comes later than this after its time means that the machine could not even keep the load up."""


@dataclass(frozen=True)
class Load:
    rate: int
    """Rows per second and stream."""
    seconds: float
    """Of arrivals, warm-up included."""
    interval: float = 0.25

    @property
    def ticks(self) -> int:
        return SPREAD + round(self.seconds / self.interval)

    @property
    def rows(self) -> int:
        """Of each stream, which is also how many results there are."""
        return round(self.rate * self.interval) * self.ticks

    def dataset(self, directory: Path) -> Dataset:
        """The streams below a directory, as the engines of the other benchmarks take them."""
        return Dataset(_workload(self), 1.0, self.ticks, directory)


def _workload(load: Load) -> Workload:
    return Workload(
        "latency",
        "three streams on one key",
        "r JOIN s ON s.id = r.id JOIN t ON t.id = r.id",
        ("r.id", *(f"{alias}.{alias}_{column}" for column in ("tick", "value") for alias in ALIASES)),
        load.ticks,
        lambda scale: tables(load),
        lambda scale: load.rows,
    )


def tables(load: Load) -> Tables:
    """All rows of each stream in the order in which they come; the same for the same load."""
    rows, per_tick = load.rows, load.rows // load.ticks
    tick = np.repeat(np.arange(load.ticks), per_tick)
    found = {}
    for seed, alias in enumerate(ALIASES):
        rng = np.random.default_rng([load.rate, seed])
        # A key moves back by less than the spread, so it comes less than that many ticks from where it comes elsewhere.
        order = np.argsort(np.arange(rows) + rng.uniform(0, (SPREAD - 1) * per_tick, rows), kind="stable")
        columns = {"id": order, f"{alias}_tick": tick.astype(np.int32), f"{alias}_value": rng.integers(0, 2**40, rows)}
        found[alias] = pa.table(columns)
    return found


def prepare(load: Load, directory: Path) -> None:
    """Write one file for each tick of each stream below the directory."""
    bounds = np.linspace(0, load.rows, load.ticks + 1).astype(int)
    for alias, table in tables(load).items():
        (directory / alias).mkdir(parents=True)
        for tick, (start, end) in enumerate(pairwise(bounds)):
            pq.write_table(table.slice(start, end - start), directory / alias / _file(tick))


def _file(tick: int) -> str:
    return f"{tick:06d}.parquet"


@dataclass(frozen=True)
class Delivery:
    """What the writer is to do: ticks `first` to `last` (exclusive), one every interval."""

    prepared: str
    into: str
    first: int
    last: int
    interval: float

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Delivered:
    start: float
    """Unix time of the first tick."""
    came: list[list[float]]
    """Seconds from the start at which each file was in place, by tick and stream."""
    late: float
    """The longest that a file came after its time."""


def deliver(delivery: Delivery) -> Delivered:
    """Put the files in place, each at its time."""
    start, late = time.time(), 0.0
    came = []
    for number in range(delivery.last - delivery.first):
        due = start + number * delivery.interval
        time.sleep(max(0.0, due - time.time()))
        moments = [_place(delivery, alias, delivery.first + number) for alias in ALIASES]
        came.append([moment - start for moment in moments])
        late = max(late, moments[-1] - due)
    return Delivered(start, came, late)


def _place(delivery: Delivery, alias: str, tick: int) -> float:
    made = Path(delivery.prepared, alias, _file(tick))
    os.utime(made)  # streams of files go by this time: a file is as old as its arrival
    into = Path(delivery.into, alias)
    into.mkdir(parents=True, exist_ok=True)
    os.link(made, into / made.name)
    return time.time()


def main() -> None:
    print(RESULT_MARK + json.dumps(asdict(deliver(Delivery(**json.loads(sys.stdin.read()))))), flush=True)


if __name__ == "__main__":
    main()
