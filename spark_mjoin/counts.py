"""What one batch did in one partition: counted by its task, kept by its manifest, shown to people.

    BatchCounts ──> Taken, Held     what the planner learns from (evidence)
               └──> Done, Standing  what people read besides (metrics)

`Done` is what the batch did. It can be added up over partitions, and is zero where a batch does nothing. `Standing` is
how things are after the batch. It is valid until the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, Self, TypeVar

from spark_mjoin.evidence import Held, Taken, WorkCounts


class _Sized(Protocol):
    @property
    def num_rows(self) -> int: ...


Counted = TypeVar("Counted", bound=_Sized)


class Summed:
    """Figures that are added up field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            *(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass(frozen=True)
class Phase(Summed):
    rows: int = 0  # results
    probes: int = 0


@dataclass(frozen=True)
class Operations(Summed):
    hashes: int = 0
    moves: int = 0
    comparisons: int = 0


@dataclass(frozen=True)
class Evicted(Summed):
    flushes: int = 0
    rows: int = 0
    bytes: int = 0


class Reason(Enum):
    """Why a row leaves for good, or never comes into the state."""

    LATE = "late"  # behind the watermark of its input
    SHED = "shed"  # not let in, as the join cannot keep up
    PASSED = "passed"  # it met what was there, and is not kept for lack of memory
    UNMATCHED = "unmatched"  # it met what was there, and nothing that comes can match it
    EXPIRED = "expired"  # outside its window for all that can still come
    PURGED = "purged"  # the inputs' promises have made it useless
    SHRUNK = "shrunk"  # inside its window, and dropped for lack of memory


class Departures(Counter[Reason]):
    """How many rows have departed in a batch, by the reason."""

    def dropped(self) -> Dropped:
        """The same as people read it."""
        return Dropped(
            late=self[Reason.LATE],
            shed=self[Reason.SHED] + self[Reason.PASSED],
            purged=self[Reason.EXPIRED] + self[Reason.PURGED],
            unmatched=self[Reason.UNMATCHED],
            shrunk=self[Reason.SHRUNK],
        )


@dataclass(frozen=True)
class Dropped(Summed):
    """Rows that were dropped, or were never stored, by what people want to know of the reason."""

    late: int = 0
    shed: int = 0
    purged: int = 0
    unmatched: int = 0  # that arrived and were never stored, since no row to come can match them
    shrunk: int = 0


@dataclass(frozen=True)
class Promised(Summed):
    punctuations: int = 0  # that arrived; every partition gets all, and one partition counts each
    broken: int = 0
    forgotten: int = 0  # keys and ranges of keys, because there was no room for more


@dataclass(frozen=True)
class Recall(Summed):
    """Results that arrivals completed, emitted or pending, and those that they would have completed besides."""

    completed: float = 0.0
    lost: float = 0.0  # because rows were shed or dropped


@dataclass(frozen=True)
class Done(Summed):
    """What a batch did, as people read it."""

    memory_to_memory: Phase = Phase()
    disk_to_memory: Phase = Phase()
    disk_to_disk: Phase = Phase()
    operations: Operations = Operations()
    evicted: Evicted = Evicted()
    dropped: Dropped = Dropped()
    promised: Promised = Promised()
    recall: Recall = Recall()
    rows_waited: int = 0  # that other rows of their input overtook
    peak_bytes: int = 0  # the most bytes at any time
    cache_hits: int = 0  # 1 when the worker had the state that the batch needs
    rows_taken_over: int = 0  # from the partitions that there were before, when their number has changed


@dataclass(frozen=True)
class Standing:
    """How things are after a batch, as people read it."""

    disk_bytes: int = 0
    sample_bytes: int = 0  # of the sample that estimates are made from
    rows_deferred: int = 0
    expected_results: float = 0.0  # results that are expected of all rows so far
    windows: tuple[tuple[int, bool], ...] = ()  # effective, and whether in rows; none: as given
    fractions: tuple[float, ...] = ()  # per input, how much of it was admitted
    kept_weights: tuple[float, ...] = ()  # per input, its rows in the state as if nothing had been shed


@dataclass
class PhaseCounts:
    """What one phase does in one batch."""

    rows: int = 0  # results
    seconds: float = 0.0  # without the time in which Spark took results
    peak_bytes: int = 0  # the most that its own tables needed, besides the rows in memory
    work: WorkCounts = field(default_factory=WorkCounts)

    def timed(self, batches: Iterable[Counted], clock: Callable[[], float]) -> Iterator[Counted]:
        """Pass results on, counting them and the time that they took."""
        started = clock()
        for results in batches:
            self.rows += results.num_rows
            self.seconds += clock() - started
            yield results
            started = clock()
        self.seconds += clock() - started

    @property
    def ms(self) -> int:
        return round(1000 * self.seconds)


@dataclass
class BatchCounts:
    """What a task counts while it runs a batch, and how things are when it ends."""

    rows_in: list[int]  # per input, rows that reached the state
    copies: list[int] = field(default_factory=list)  # per input, of these, those that are counted elsewhere; or none
    copies_among: Callable[[Any], int] | None = None  # how many of some rows (engine.kept.Kept) are; None: none are
    began: float = 0.0  # when the task began, in seconds since 1970
    memory_to_memory: PhaseCounts = field(default_factory=PhaseCounts)
    disk_to_memory: PhaseCounts = field(default_factory=PhaseCounts)
    disk_to_disk: PhaseCounts = field(default_factory=PhaseCounts)
    below: dict[int, WorkCounts] = field(default_factory=dict)  # of arrivals, per operator of the plan under the root
    purging: WorkCounts = field(default_factory=WorkCounts)  # of checking rows and moving those that stay
    evicted: Evicted = Evicted()
    departures: Departures = field(default_factory=Departures)
    promised: Promised = Promised()
    recall: Recall = Recall()
    rows_waited: int = 0
    peak_bytes: int = 0
    cache_hits: int = 0
    taken_over: int = 0
    brought: tuple[tuple[int, int], ...] = ()  # what was brought to the task: see state.manifest
    held: Held = Held()  # when the batch ends
    standing: Standing = Standing()

    @property
    def phases(self) -> tuple[PhaseCounts, PhaseCounts, PhaseCounts]:
        return self.memory_to_memory, self.disk_to_memory, self.disk_to_disk

    @property
    def dropped(self) -> Dropped:
        return self.departures.dropped()

    @property
    def rows_out(self) -> int:
        return sum(phase.rows for phase in self.phases)

    def work(self, operator: int = 0) -> WorkCounts:
        """Of arrivals at one operator of the plan: the planner learns from these."""
        return self.below.setdefault(operator, WorkCounts()) if operator else self.memory_to_memory.work

    def taken(self) -> Taken:
        """What the planner learns from."""
        copies = tuple(self.copies) if any(self.copies) else ()
        in_memory, to_memory, to_disk = (phase.ms for phase in self.phases)
        return Taken(tuple(self.rows_in), self.began, in_memory, to_memory, to_disk, copies)

    def arrived(self, input: int) -> int:
        """Rows of an input that reached the state and are counted here."""
        return self.rows_in[input] - (self.copies[input] if self.copies else 0)

    def note_copies(self, input: int, rows: int) -> None:
        self.copies = self.copies or [0] * len(self.rows_in)
        self.copies[input] += rows

    def done(self) -> Done:
        """What people read."""
        in_memory, to_memory, to_disk = (Phase(phase.rows, phase.work.probes) for phase in self.phases)
        below = Phase(probes=sum(work.probes for work in self.below.values()))
        works = (*(phase.work for phase in self.phases), *self.below.values(), self.purging)
        operations = (Operations(work.hashes, work.moves, work.comparisons) for work in works)
        return Done(
            in_memory + below,
            to_memory,
            to_disk,
            sum(operations, Operations()),
            self.evicted,
            self.dropped,
            self.promised,
            self.recall,
            self.rows_waited,
            self.peak_bytes,
            self.cache_hits,
            self.taken_over,
        )
