"""Virtual time: arrivals in slices, the work that they cause, and results over time. What runs is a subclass's affair.

    while rows come:   wait for the next slice ──> arrive, stream by stream ──> slice_ended ──> time passes
                       no arrival for `blocking` seconds: disk_work, piece by piece, until the next
    then:              disk_work, until nothing is left

The engine works in batches: a slice of time is taken in at once, and what it gives is counted at its end.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from benchmarks.paper.inputs import Stream
from benchmarks.paper.machine import Work
from spark_mjoin.model import Array

_IN_MEMORY = "/dev/shm"  # where there is one, segments need not wait for a disk: its time is virtual anyway


@dataclass(frozen=True)
class Run:
    """Results over time, and what they took."""

    plan: str
    seconds: Array
    results: Array  # emitted by then
    ended: float  # when the last arrival had been dealt with, and clean-up began
    arrived: float  # when the last row arrived
    work: Work
    rows_flushed: int
    comparisons: tuple[int, ...] = ()  # of the root, by the input that probed
    compared: Array = field(default_factory=lambda: np.zeros(1))  # comparisons by then, of all joins
    most_rows: int = 0  # in memory at a time, where it was counted
    held: Array = field(default_factory=lambda: np.zeros(1))  # rows in memory by then, where they were counted

    def after(self, results: int) -> float:
        """When so many results had been emitted."""
        return float(self.seconds[int(np.searchsorted(self.results, results))])

    def at(self, seconds: float) -> int:
        """Results emitted by a time."""
        position = int(np.searchsorted(self.seconds, seconds, side="right"))
        return int(self.results[position - 1]) if position else 0

    def between(self, start: float, end: float) -> int:
        return self.at(end) - self.at(start)

    @property
    def before_clean_up(self) -> int:
        return self.at(self.ended)

    @property
    def total(self) -> int:
        return int(self.results[-1])

    @property
    def finished(self) -> float:
        return float(self.seconds[-1])


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for segments."""
    place = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="mjoin-paper-", dir=place) as directory:
        yield Path(directory)


class Simulation(ABC):
    """Streams through joins, on a processor `slower` times slower than the paper's."""

    takes_all = False  # whether a slice that was late takes all that has arrived, or no more than others

    def __init__(self, name: str, streams: Mapping[str, Stream], slower: float, blocking: float, slices: int) -> None:
        self.streams, self.results, self.held = streams, 0, 0
        self._name, self._slower, self._blocking, self._slices = name, slower, blocking, slices
        self._now = self._charged = 0.0
        self._samples: list[tuple[float, int, int, int]] = [(0.0, 0, 0, 0)]

    @abstractmethod
    def arrive(self, stream: str, rows: pa.RecordBatch) -> None:
        """Rows of a stream, and the results that they complete."""

    @abstractmethod
    def slice_ended(self) -> None:
        """All of a slice has arrived."""

    @abstractmethod
    def disk_work(self, ended: bool) -> bool:
        """Do the piece of disk work that comes first; False where there is none. ended: nothing more will arrive."""

    @abstractmethod
    def work(self) -> Work:
        """All that was done so far."""

    @abstractmethod
    def rows_flushed(self) -> int: ...

    @abstractmethod
    def comparisons(self) -> tuple[int, ...]:
        """Of the root, by the input that probed."""

    def run(self) -> Run:
        names = list(self.streams)
        seconds = np.concatenate([self.streams[name].seconds for name in names])
        owner = np.repeat(np.arange(len(names)), [self.streams[name].seconds.size for name in names])
        order = np.argsort(seconds, kind="stable")
        seconds, owner = seconds[order], owner[order]
        taken = [0] * len(names)
        slice_seconds = float(seconds[-1]) / self._slices
        slice_rows = seconds.size if self.takes_all else max(1, seconds.size // self._slices)
        position = 0
        while position < seconds.size:
            if seconds[position] > self._now:
                if seconds[position] - self._now > self._blocking:
                    self._idle(float(seconds[position]))
                if seconds[position] > self._now:  # wait for the end of the slice in which the next row comes
                    self._now = math.ceil(float(seconds[position]) / slice_seconds) * slice_seconds
            end = min(int(np.searchsorted(seconds, self._now, side="right")), position + slice_rows)
            for stream, count in enumerate(np.bincount(owner[position:end], minlength=len(names))):
                if count:
                    name = names[stream]
                    self.arrive(name, self.streams[name].rows.slice(taken[stream], int(count)))
                    taken[stream] += int(count)
            position = end
            self.slice_ended()
            self.tick()
        ended = self._now
        while self.disk_work(ended=True):
            self.tick()
        times, results, compared, held = map(np.array, zip(*self._samples, strict=True))
        return Run(
            self._name,
            times,
            results,
            ended,
            float(seconds[-1]),
            self.work(),
            self.rows_flushed(),
            self.comparisons(),
            compared,
            held=held,
        )

    def tick(self) -> None:
        """Let the time pass that the work since the last call takes."""
        work = self.work()
        spent = work.seconds(self._slower)
        self._now += spent - self._charged
        self._charged = spent
        self._samples.append((self._now, self.results, work.comparisons, self.held))

    def _idle(self, until: float) -> None:
        """Disk work while inputs block."""
        while self._now < until and self.disk_work(ended=False):
            self.tick()
