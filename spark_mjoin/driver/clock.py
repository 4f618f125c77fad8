"""Everything on the driver that reads a clock: rates, free time, overload, and how long each source has been idle.

    looking ──> tasks of a batch are asked for ──> tasks work ──> they have committed ──> looking again
       └ when sources were asked    └ `begins`          └ `Worked`, from the manifests      └ `learn…`, then decisions

The plan records what follows from it, so a batch that runs again reads no clock. The engine has none.

The clock is a parameter. Tests have one that they set; the system's is the module `time`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from spark_mjoin.driver.admission import Load, Parts

IDLE_SECONDS = 1.0  # without arrivals, until there is a batch that drops useless rows
SPARK_SECONDS = 0.2  # from the end of a batch's tasks to the next look at the sources, when Spark does not wait
CLOCKS_DIFFER = 0.004  # seconds by which the time of a file may be behind that of a process on the same machine
SMOOTHING = 0.3  # the weight of the last batch in a rate


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some moment; never set back."""

    def time(self) -> float:
        """Seconds since 1970, as tasks and files have them."""


SYSTEM: Clock = time


@dataclass(frozen=True)
class Worked:
    """What the tasks of a batch took in together, and when they did; times are in seconds since 1970."""

    rows_in: tuple[int, ...]  # per input
    began: float  # the first of them
    written: float  # when the last of them committed
    disk_seconds: float = 0.0  # of disk work, in the partition that did the most

    @property
    def seconds(self) -> float:
        return self.written - self.began


class Pace:
    """The pace of one query, as far as this process has seen it."""

    def __init__(self, inputs: int, sources: Iterable[str], clock: Clock = SYSTEM) -> None:
        now = clock.monotonic()
        self.clock = clock
        self.rates = [0.0] * inputs  # rows per second of each input that are admitted, smoothed over batches
        self.spare = 0.0  # seconds that the last batch left free, for each that its arrivals took
        self.load = Load(inputs)  # what batches took, for admission
        self._delivered = dict.fromkeys(sources, now)  # when each last had something new
        self._batches = now, now  # when the last two began; before them, this beginning
        self._quiet_since: float | None = None  # when nothing was new for the first time
        self._looked: float | None = None  # when sources were last asked what is new: more has arrived since
        self._looking = now
        self._arrived: float | None = None  # the seconds in which the input of the last batch arrived
        self._planned = 0.0  # the last batch, in seconds since 1970

    # --- moments ---------------------------------------------------------------------------------------------

    @contextmanager
    def looking(self) -> Iterator[None]:
        """A look at the sources for new rows. One that fails does not count."""
        self._looking = self.clock.monotonic()
        yield
        self._looked = self._looking

    def begins(self) -> None:
        """The tasks of a batch are asked for the first time."""
        self._batches = self._batches[1], self.clock.monotonic()

    @property
    def between_batches(self) -> float:
        """Seconds from the beginning of the batch before to that of the last one."""
        return self._batches[1] - self._batches[0]

    @property
    def since_batch(self) -> float:
        """Seconds since the last batch began."""
        return self.clock.monotonic() - self._batches[1]

    # --- silence ---------------------------------------------------------------------------------------------

    def news(self) -> None:
        """Some source has new rows."""
        self._quiet_since = None

    def delivers(self, sources: Iterable[str]) -> None:
        """The next batch takes new rows of some sources."""
        self._delivered |= dict.fromkeys(sources, self.clock.monotonic())

    def silent(self, seconds: float | None) -> frozenset[str]:
        """The sources without new rows for longer than that; None: no source is ever idle."""
        if seconds is None:
            return frozenset()
        now = self.clock.monotonic()
        return frozenset(alias for alias, since in self._delivered.items() if now - since > seconds)

    def is_quiet(self) -> bool:
        """Whether all sources have had no new rows for IDLE_SECONDS, in which this was asked before."""
        now = self.clock.monotonic()
        if self._quiet_since is None:
            self._quiet_since = now
        return now - self._quiet_since >= IDLE_SECONDS

    # --- what a batch teaches --------------------------------------------------------------------------------

    def learn_rates(self, rows_in: Sequence[int]) -> None:
        """Learn from the last batch, which had this many rows of each input. A batch without rows teaches nothing."""
        seconds = self.since_batch
        if any(rows_in) and seconds > 0:
            share = SMOOTHING if any(self.rates) else 1.0
            pairs = zip(self.rates, rows_in, strict=True)
            self.rates = [(1 - share) * old + share * new / seconds for old, new in pairs]

    def learn_spare(self, worked: Worked) -> None:
        """Learn from the last batch. A batch of disk work alone teaches nothing.

        Disk work may use free time. That includes the time that disk work takes now, if there is more free time.
        Without more, disk work already delays input.
        """
        if not any(worked.rows_in):
            return
        idle = self.since_batch - SPARK_SECONDS - worked.seconds
        arrivals = max(worked.seconds - worked.disk_seconds, CLOCKS_DIFFER)
        self.spare = (idle + worked.disk_seconds if idle > 0 else 0.0) / arrivals

    def learn_load(self, worked: Worked, parts: Parts) -> None:
        """Learn from the last batch, which admitted these parts of its input."""
        overhead, seconds = max(0.0, worked.began - self._planned), max(worked.seconds, CLOCKS_DIFFER)
        self.load.note(worked.rows_in, parts, self._arrived, seconds, overhead)

    def plans_load(self) -> float:
        """The seconds in which the input of the next batch has arrived, which is planned now."""
        self._arrived = None if self._looked is None else self._looking - self._looked
        self._planned = self.clock.time()
        return self._arrived or 0.0
