"""When rows were evicted and what was joined with them since: all that decides whether a combination is emitted.

Time is counted in events: a flush, a visit of a disk part, a pass over buckets. A row knows how many events were before
its arrival. Events are numbered from 1, so a row with `arrived` = 3 has seen events 4, 5, ... and event e concerns the
rows with `arrived` < e.

    departures   (event, bucket, below): the rows of the bucket with arrived < below were evicted, if they were there
    visits       (event, bucket): the disk part of the bucket was joined with what the other inputs had in memory
    cleaned      per bucket of the main class, the last pass: all combinations of rows that came before are out

`mjoin.emitted` draws the conclusion. Entries that a later pass has made irrelevant are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from spark_mjoin import kernel
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.manifest import ResidencyFigures
from spark_mjoin.state.records import Packed

NEVER = 2**31 - 1  # the departure of a row that is in memory
EVERY = -1  # as a bucket: all of them


@dataclass(frozen=True)
class Victim:
    """Rows to evict: one bucket of one input, or of all its buckets; all rows, or those of early arrivals."""

    input: int
    bucket: int  # or EVERY
    below: int = NEVER  # only rows with arrived < below
    operator: int = 0  # of the plan


@dataclass
class Residency:
    inputs: int
    events: int = 0
    departures: list[list[tuple[int, int, int]]] = field(default_factory=list)
    visits: list[list[tuple[int, int]]] = field(default_factory=list)
    cleaned: Array = field(default_factory=lambda: np.zeros(BUCKETS, np.int32))
    _sorted: dict[int, tuple[tuple[int, int], tuple[Array, Array, Array]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # what _by_bucket has found, and after which event

    def __post_init__(self) -> None:
        self.departures = self.departures or [[] for _ in range(self.inputs)]
        self.visits = self.visits or [[] for _ in range(self.inputs)]

    # --- events ----------------------------------------------------------------------------------------------

    def flush(self, victims: Iterable[Victim]) -> int:
        """Record that some rows are evicted now; returns the event."""
        self.events += 1
        for victim in victims:
            self.departures[victim.input].append((self.events, victim.bucket, min(victim.below, self.events)))
        return self.events

    def visit(self, input: int, bucket: int) -> int:
        """Record that a disk part has been joined with the others' memory; returns the event."""
        self.events += 1
        self.visits[input].append((self.events, bucket))
        return self.events

    def clean(self, buckets: Iterable[int], main_inputs: Iterable[int]) -> int:
        """Record a pass over buckets of the main class; forgets what it has made irrelevant; returns the event."""
        self.events += 1
        self.cleaned[list(buckets)] = self.events
        main = set(main_inputs)
        for i in range(self.inputs):
            everywhere = int(self.cleaned.min())
            self.visits[i] = [
                (event, bucket)
                for event, bucket in self.visits[i]
                if event > (int(self.cleaned[bucket]) if i in main else everywhere)
            ]
            self.departures[i] = self._compact(self.departures[i], i in main, everywhere)
        return self.events

    def _compact(
        self, departures: list[tuple[int, int, int]], is_main: bool, everywhere: int
    ) -> list[tuple[int, int, int]]:
        """One entry per bucket instead of all those before its last pass.

        What left before a pass can be in no combination that is out by residency but not by the pass, so it only
        matters that the rows left.
        """
        merged: dict[int, tuple[int, int, int]] = {}
        rest = []
        for event, bucket, below in departures:
            limit = int(self.cleaned[bucket]) if is_main and bucket != EVERY else everywhere
            if event < limit:
                before = merged.get(bucket, (0, bucket, 0))
                merged[bucket] = (max(before[0], event), bucket, max(before[2], below))
            else:
                rest.append((event, bucket, below))
        return sorted([*merged.values(), *rest])

    # --- rows ------------------------------------------------------------------------------------------------

    def flushed(self, input: int, buckets: Array, arrived: Array) -> Array:
        """For some rows of an input the event at which each was evicted; NEVER for those that are there."""
        out = np.full(arrived.size, NEVER, np.int32)
        if self.departures[input]:
            starts, events, below = self._by_bucket(input)
            kernel.departed(buckets, arrived, starts, events, below, out)
        return out

    def _by_bucket(self, input: int) -> tuple[Array, Array, Array]:
        """The departures of each bucket, ascending; those that no row is the first to heed are left out."""
        known, now = self._sorted.get(input), (self.events, len(self.departures[input]))
        if known is not None and known[0] == now:
            return known[1]
        of: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]
        for event, bucket, below in self.departures[input]:
            for entries in of if bucket == EVERY else (of[bucket],):
                if not entries or below > entries[-1][1]:
                    entries.append((event, below))
        starts = np.cumsum([0, *map(len, of)], dtype=np.int32)
        flat = np.array([entry for entries in of for entry in entries], np.int32).reshape(-1, 2)
        self._sorted[input] = now, (starts, flat[:, 0].copy(), flat[:, 1].copy())
        return self._sorted[input][1]

    def in_epochs(self, buckets: Iterable[int]) -> bool:
        """Whether, since the last pass over each of some buckets, its rows have only left as a whole, of all inputs.

        And no part of it was visited. Then the rows that left at one event were all together, and no others (see
        `mjoin.emitted`).
        """
        chosen = list(buckets)
        since = {bucket: int(self.cleaned[bucket]) for bucket in chosen}
        since[EVERY] = min(since.values(), default=0)
        if any(event > since.get(bucket, NEVER) for of in self.visits for event, bucket in of):
            return False
        recent = [[d for d in of if d[0] > since.get(d[1], NEVER)] for of in self.departures]
        whole = all(below == event for event, _, below in recent[0])
        return whole and all(of == recent[0] for of in recent)

    def all_gone(self, input: int, bucket: int, last: int) -> bool:
        """Whether no row of a bucket that arrived at `last` or before is in memory."""
        return any(below > last and of in (bucket, EVERY) for _, of, below in self.departures[input])

    def overflowed(self) -> bool:
        """Whether any row was ever evicted."""
        return any(self.departures)

    # --- manifests -------------------------------------------------------------------------------------------

    def figures(self) -> ResidencyFigures:
        departures, visits = (tuple(Packed.of(of, "i") for of in each) for each in (self.departures, self.visits))
        return ResidencyFigures(self.events, departures, visits, Packed.of(self.cleaned, "i"))

    @staticmethod
    def of(kept: ResidencyFigures) -> Residency:
        departures = [[(e, b, w) for e, b, w in of.array().reshape(-1, 3).tolist()] for of in kept.departures]
        visits = [[(e, b) for e, b in of.array().reshape(-1, 2).tolist()] for of in kept.visits]
        return Residency(len(departures), kept.events, departures, visits, kept.cleaned.array())
