"""Everything on the driver that looks at a clock: rates, free time, overload, and who has been silent for how long.

    looking ──> tasks of a batch are asked for ──> tasks work ──> they have committed ──> looking again
       └ when sources were asked    └ `begins`          └ `Worked`, from the manifests      └ `learn…`, then decisions

What follows from it is recorded with the plan, so a batch that is run again asks no clock. The engine has none.

The clock is handed in. Tests have one that they set; the system's is the module `time`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from spark_mjoin.driver.admission import Load, Parts

IDLE_SECONDS = 1.0  # in which nothing arrives, until there is a batch to let useless rows go
SPARK_SECONDS = 0.2  # from the end of a batch's tasks to the next look at the sources, when Spark does not wait
CLOCKS_DIFFER = 0.004  # seconds by which the time of a file may be behind that of a process on the same machine
SMOOTHING = 0.3  # of a rate, what the last batch counts for


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
    """How one query goes, as far as this process has seen it."""

    def __init__(self, inputs: int, sources: Iterable[str], clock: Clock = SYSTEM) -> None:
        now = clock.monotonic()
        self.clock = clock
        self.rates = [0.0] * inputs  # rows per second of each input that are let in, smoothed over batches
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
        """While sources are asked what is new; a look that fails was none."""
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
        """Some source has something new."""
        self._quiet_since = None

    def delivers(self, sources: Iterable[str]) -> None:
        """The next batch takes something new of some sources."""
        self._delivered |= dict.fromkeys(sources, self.clock.monotonic())

    def silent(self, seconds: float | None) -> frozenset[str]:
        """The sources that have given nothing for longer than that; None: none of them ever counts as silent."""
        if seconds is None:
            return frozenset()
        now = self.clock.monotonic()
        return frozenset(alias for alias, since in self._delivered.items() if now - since > seconds)

    def is_quiet(self) -> bool:
        """Whether all sources have had nothing new for IDLE_SECONDS, in which this was asked before."""
        now = self.clock.monotonic()
        if self._quiet_since is None:
            self._quiet_since = now
        return now - self._quiet_since >= IDLE_SECONDS

    # --- what a batch teaches --------------------------------------------------------------------------------

    def learn_rates(self, rows_in: Sequence[int]) -> None:
        """The last batch is over, with so many rows of each input; one without any says nothing."""
        seconds = self.since_batch
        if any(rows_in) and seconds > 0:
            share = SMOOTHING if any(self.rates) else 1.0
            pairs = zip(self.rates, rows_in, strict=True)
            self.rates = [(1 - share) * old + share * new / seconds for old, new in pairs]

    def learn_spare(self, worked: Worked) -> None:
        """The last batch is over; one of disk work alone says nothing.

        Free time is what disk work may use. That includes what disk work takes now, if there is free time besides:
        without any, it delays input already.
        """
        if not any(worked.rows_in):
            return
        idle = self.since_batch - SPARK_SECONDS - worked.seconds
        arrivals = max(worked.seconds - worked.disk_seconds, CLOCKS_DIFFER)
        self.spare = (idle + worked.disk_seconds if idle > 0 else 0.0) / arrivals

    def learn_load(self, worked: Worked, parts: Parts) -> None:
        """The last batch is over, which let in such parts of its input."""
        overhead, seconds = max(0.0, worked.began - self._planned), max(worked.seconds, CLOCKS_DIFFER)
        self.load.note(worked.rows_in, parts, self._arrived, seconds, overhead)

    def plans_load(self) -> float:
        """The next batch is planned now: the seconds in which its input has arrived."""
        self._arrived = None if self._looked is None else self._looking - self._looked
        self._planned = self.clock.time()
        return self._arrived or 0.0
