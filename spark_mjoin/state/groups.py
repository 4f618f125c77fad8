"""What a partition knows about its buckets: rows in memory and on disk, arrivals, results. Counted, never timed.

These figures choose what leaves memory (flush) and which disk work comes first (driver.manager), so they are part of
the state: a replayed batch finds the same ones and chooses the same.

Rows are counted per input and bucket, results per bucket of the main class. An input without the main class has
buckets of its own; for results it counts as a whole.

A task has the figures of one partition. The driver has those of many, `stacked`, and asks about all of them at once:
what follows from the figures is computed for each partition alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS, main_inputs
from spark_mjoin.state.manifest import GroupsFigures
from spark_mjoin.state.records import Packed

FADE = 0.5  # what is left of the recent figures after each flush

MOST_RECORDS = 4096  # departures and visits that a partition keeps before a pass is due, whatever arrives
MOST_HELD = 1 / 3  # of the rows in segments that may wait for a pass to be dropped: so what is on disk stays bounded


@dataclass
class Groups:
    """Arrays over [input, bucket] or [bucket]; stacked, the first axis is that of partitions."""

    main: list[int]  # the inputs with the main class
    resident: Array  # rows in memory
    disk: Array  # rows that left it
    waiting: Array  # rows since the last pass over the bucket; those of other inputs wait for each bucket
    recent: Array  # arrivals, faded with every flush
    results: Array  # results so far
    chances: Array  # combinations of rows that were together, as products of row counts
    turnover: Array  # per disk part: rows of the others that came since it was last joined with them
    completed: Array  # per input, results that its arrivals completed, faded as `recent` is
    young: int = 0  # half of the rows in memory had arrived before this event when it was last looked at
    young_results: float = 0.0  # recent results of which all rows arrived since then
    all_results: float = 0.0  # recent results

    @staticmethod
    def empty(spec: JoinSpec) -> Groups:
        n = len(spec.inputs)

        def grid() -> Array:
            return np.zeros((n, BUCKETS))

        def row() -> Array:
            return np.zeros(BUCKETS)

        return Groups(main_inputs(spec), grid(), grid(), grid(), grid(), row(), row(), grid(), np.zeros(n))

    # --- what happens ----------------------------------------------------------------------------------------

    def arrive(self, input: int, counts: Array) -> None:
        """Rows of an input have come into memory, counts[b] in each bucket, and have met what was there."""
        met = self.partners(input)
        if input in self.main:
            self.chances += counts * met
            self.waiting[input] += counts
        else:
            self.chances += counts.sum() * met
            self.waiting[input] += counts.sum()
        self.resident[input] += counts
        self.recent[input] += counts
        for i in range(len(self.turnover)):
            if i != input:
                both_main = i in self.main and input in self.main
                self.turnover[i] += counts if both_main else counts.sum() / BUCKETS

    def begin_loading(self) -> None:
        """A state is about to be loaded: nothing is in memory yet."""
        self.disk += self.resident
        self.resident[:] = 0

    def load(self, input: int, counts: Array) -> None:
        """Rows of an input have come into memory from segments, where they were when they last counted."""
        self.disk[input] -= counts
        self.resident[input] += counts

    def leave(self, input: int, counts: Array) -> None:
        """Rows of an input have left memory."""
        before = self.disk[input].copy()
        self.resident[input] -= counts
        self.disk[input] += counts
        self.turnover[input] *= before / np.maximum(self.disk[input], 1.0)  # those that leave now have met all

    def drop(self, input: int, resident: Array, disk: Array) -> None:
        """Rows of an input have left the state: so many in memory and on disk, in each bucket."""
        before = self.possible()
        self.resident[input] -= resident
        self.disk[input] -= disk
        left = self.resident[input] + self.disk[input]
        self.waiting[input] = np.minimum(self.waiting[input], left if input in self.main else left.sum())
        self.chances *= self.possible() / np.maximum(before, 1.0)

    def flushed(self, young: int) -> None:
        """A flush is complete: what was recent is less so. `young` is the event since which half of the rows came."""
        self.recent *= FADE
        self.completed *= FADE
        kept = FADE if self.young else 0.0  # before the first flush there was no age to tell results apart by
        self.young_results *= kept
        self.all_results *= kept
        self.young = young

    def complete(self, input: int, results: int) -> None:
        """Arrivals of an input have completed results."""
        self.completed[input] += results

    def give_out(self, buckets: Array, young: int) -> None:
        """Results of arrivals: the bucket of each, and of how many all rows came since the event `young`."""
        self.results += np.bincount(buckets, minlength=BUCKETS)
        self.young_results += young
        self.all_results += buckets.size

    def give_out_late(self, buckets: Array) -> None:
        """Results of disk work, the bucket of each."""
        self.results += np.bincount(buckets, minlength=BUCKETS)

    def visited(self, input: int, bucket: int) -> None:
        """A disk part was joined with what the others have in memory."""
        gained = float(self.unseen(input)[bucket])
        if input in self.main:
            self.chances[bucket] += gained
        else:
            self.chances += gained / BUCKETS
        self.turnover[input, bucket] = 0

    def passed(self, buckets: Sequence[int]) -> None:
        """Everything in these buckets is out."""
        chosen = list(buckets)
        self.waiting[:, chosen] = 0
        self.turnover[np.ix_(self.main, chosen)] = 0
        self.chances[chosen] = self.possible()[chosen]

    # --- what follows from it --------------------------------------------------------------------------------

    def partners(self, input: int) -> Array:
        """Per bucket, the product of the others' rows in memory."""
        out = np.ones(BUCKETS)
        for j in range(self.inputs):
            if j != input:
                out = out * self._per_bucket(self.resident, j)
        return out

    def unseen(self, input: int) -> Array:
        """Per disk part of an input, combinations with the others' rows in memory that have not been looked at."""
        others = [j for j in range(self.inputs) if j != input]
        in_memory = sum((self._per_bucket(self.resident, j) for j in others), np.zeros(BUCKETS))
        share = np.minimum(self.turnover[..., input, :] / np.maximum(self._own(input, in_memory), 1.0), 1.0)
        combinations: Array = self.disk[..., input, :] * self._own(input, self.partners(input)) * share
        return combinations

    def possible(self) -> Array:
        """Per bucket, the product of all inputs' rows, in memory and on disk."""
        rows = self.resident + self.disk
        out = np.ones(BUCKETS)
        for j in range(self.inputs):
            out = out * self._per_bucket(rows, j)
        return out

    def selectivity(self) -> Array:
        """Per bucket, results per combination of rows that were together; the whole's where a bucket has few."""
        whole = _total(self.results) / np.maximum(_total(self.chances), 1.0)
        own = self.results / np.maximum(self.chances, 1.0)
        return np.where(self.results >= 16, own, whole)

    def pending(self) -> tuple[Array, Array]:
        """Per bucket, whether a pass could give results, and an estimate of how many."""
        possible = self.possible()
        debt = self._in_debt(possible)
        return debt, np.where(debt, self.selectivity() * np.maximum(possible - self.chances, 0.0), 0.0)

    def in_debt(self) -> Array:
        """Per bucket, whether a pass could give results: rows have left memory, others have come since the last one."""
        return self._in_debt(self.possible())

    def _in_debt(self, possible: Array) -> Array:
        on_disk = self.disk[..., self.main, :].sum(axis=-2) > 0
        for j in self.others:
            on_disk = on_disk | (_total(self.disk[..., j, :]) > 0)
        debt: Array = on_disk & (self.waiting.sum(axis=-2) > 0) & (possible > 0)
        return debt

    def worth(self, input: int) -> Array:
        """Results that an arriving row of an input has completed, in the mean, recently."""
        out: Array = self.completed[..., input] / np.maximum(self.recent[..., input, :].sum(axis=-1), 1.0)
        return out

    def deferred_rows(self) -> int:
        """Input rows whose results are not complete."""
        debt, waiting = self.in_debt(), self.waiting
        return int(waiting[self.main][:, debt].sum() + waiting[self.others][:, debt].max(axis=1, initial=0).sum())

    @property
    def inputs(self) -> int:
        return int(self.resident.shape[-2])

    @property
    def others(self) -> list[int]:
        """The inputs without the main class."""
        return [j for j in range(self.inputs) if j not in self.main]

    def _per_bucket(self, rows: Array, input: int) -> Array:
        """An input's rows per bucket of the main class; all of them where it does not have it."""
        return rows[..., input, :] if input in self.main else _total(rows[..., input, :])

    def _own(self, input: int, per_main_bucket: Array) -> Array:
        """A figure per main bucket as one per bucket of the input's own."""
        return per_main_bucket if input in self.main else per_main_bucket.mean(axis=-1, keepdims=True)

    # --- manifests -------------------------------------------------------------------------------------------

    def figures(self) -> GroupsFigures:
        named = vars(self).items()
        frozen: dict[str, Any] = {n: Packed.of(v, "d") if isinstance(v, np.ndarray) else v for n, v in named}
        del frozen["main"]
        return GroupsFigures(**frozen)

    @staticmethod
    def of(spec: JoinSpec, kept: GroupsFigures) -> Groups:
        named: dict[str, Any] = {n: v.array() if isinstance(v, Packed) else v for n, v in vars(kept).items()}
        return Groups(main_inputs(spec), **{n: _shaped(spec, n, v) for n, v in named.items()})

    @staticmethod
    def stacked(spec: JoinSpec, partitions: Sequence[GroupsFigures]) -> Groups:
        """Of several partitions, to be asked and not to be changed."""

        def stack(name: str, found: list[Any]) -> Any:
            if not isinstance(found[0], Packed):
                return np.array(found)
            return _shaped(spec, name, Packed.joined(found).view(), len(found))

        return Groups(main_inputs(spec), **{n: stack(n, [vars(p)[n] for p in partitions]) for n in vars(partitions[0])})


def _shaped(spec: JoinSpec, name: str, numbers: Any, *partitions: int) -> Any:
    """The numbers of a manifest, or of several, as `Groups` has them."""
    if name in ("resident", "disk", "waiting", "recent", "turnover"):
        return numbers.reshape(*partitions, len(spec.inputs), BUCKETS)
    return numbers.reshape(*partitions, -1) if partitions else numbers


def _total(per_bucket: Array) -> Array:
    """The sum over buckets, as figures that are the same for every bucket."""
    out: Array = per_bucket.sum(axis=-1, keepdims=True)
    return out
