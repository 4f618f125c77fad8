"""The disk work of one operator, in many partitions at once: what could be done, and what of it comes first.

A pass over a bucket completes its results. A visit joins the disk part of one member with what the others have in
memory. Both are scored by the results that they promise per byte read, from what tasks have counted (state.groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spark_mjoin.model import Array, DiskWork, JoinSpec
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.groups import MOST_HELD, MOST_RECORDS, Groups
from spark_mjoin.state.manifest import OperatorFigures

NOTHING = -1.0  # the score of what is of no use; every other is larger
MOST_VISITS = 16  # in one batch
PASS = -1  # in place of the member that is visited


@dataclass(frozen=True)
class Candidates:
    """What an operator could do: arrays over [partition] or [partition, bucket]."""

    groups: Groups  # stacked
    row_bytes: Array  # [partition, member]
    due: Array  # whether passes are, whatever arrives

    @staticmethod
    def of(spec: JoinSpec, partitions: Sequence[OperatorFigures]) -> Candidates | None:
        """Of partitions that all track their states; None where none does, so that no row was ever evicted."""
        groups = [f.groups for f in partitions if f.groups is not None]
        if not groups:
            return None
        stored = np.array([f.stored for f in partitions], float).reshape(len(partitions), -1, 2)
        rows, sizes = stored[:, :, 0], stored[:, :, 1]
        records = np.array([0 if f.residency is None else f.residency.records for f in partitions])
        held = np.array([0 if f.progress is None else f.progress.held for f in partitions])
        due = (records > MOST_RECORDS) | (held / np.maximum(rows.sum(axis=1), 1.0) > MOST_HELD)
        return Candidates(Groups.stacked(spec, groups), sizes / np.maximum(rows, 1.0), due)

    # --- passes ------------------------------------------------------------------------------------------------

    @cached_property
    def _pending(self) -> tuple[Array, Array]:
        return self.groups.pending()

    @property
    def in_debt(self) -> Array:
        """Whether a pass over a bucket could give results."""
        return self._pending[0]

    @cached_property
    def costs(self) -> Array:
        """Bytes that a pass over a bucket reads. Members without the main class are read once for all buckets."""
        rows, sizes, groups = self.groups.resident + self.groups.disk, self.row_bytes, self.groups
        whole = sum((rows[:, j].sum(axis=1) * sizes[:, j] for j in groups.others), np.zeros(len(rows)))
        out = np.repeat((whole / np.maximum(self.in_debt.sum(axis=1), 1))[:, None], BUCKETS, axis=1)
        for i in groups.main:
            out += sizes[:, i, None] * rows[:, i]
        return out

    @cached_property
    def scores(self) -> Array:
        """Results per byte of a pass over a bucket."""
        return np.where(self.in_debt, self._pending[1] / np.maximum(self.costs, 1.0), NOTHING)

    @property
    def debt_bytes(self) -> Array:
        """Per partition, what a pass over everything that is pending would read."""
        out: Array = np.where(self.in_debt, self.costs, 0.0).sum(axis=1)
        return out

    # --- all of it ---------------------------------------------------------------------------------------------

    def options(self, partitions: Array, with_visits: bool) -> Options:
        """Everything that could be done in some of the partitions; no visits where a pass is due anyway."""
        groups, selectivity = self.groups, self.groups.selectivity()
        members = len(groups.main)
        scores, costs = (np.empty((len(self.due), BUCKETS, members)) for _ in range(2))
        for at, i in enumerate(groups.main):
            gained = groups.unseen(i) * selectivity
            costs[:, :, at] = groups.disk[:, i] * self.row_bytes[:, i, None]
            scores[:, :, at] = np.where(gained > 0, gained / np.maximum(costs[:, :, at], 1.0), NOTHING)
        scores[self.due | (not with_visits)] = NOTHING
        buckets = np.arange(BUCKETS)
        return Options(
            np.concatenate((self.scores, scores.reshape(-1, BUCKETS * members)), axis=1)[partitions],
            np.concatenate((self.costs, costs.reshape(-1, BUCKETS * members)), axis=1)[partitions],
            np.concatenate((buckets, buckets.repeat(members))),
            np.concatenate((np.full(BUCKETS, PASS), np.tile(groups.main, BUCKETS))),
            self.due[partitions],
        )


@dataclass(frozen=True)
class Options:
    """Pieces of disk work, in some partitions: arrays [partition, option], [option] or [partition]."""

    scores: Array  # results per byte
    costs: Array  # bytes
    buckets: Array  # of each option: first a pass over each bucket, then the visits of each
    members: Array  # that an option visits, or PASS
    due: Array  # whether passes are urgent, whatever they promise

    def best(
        self, fuel_bytes: int, bar: Array, earned: Array, operator: int
    ) -> list[tuple[tuple[DiskWork, ...], float]]:
        """Per partition what is done, and the bytes of what is urgent in it because it gives more per byte than `bar`.

        The most promising comes first, and a pass before visits. The last piece may cost more than there is left, of
        the fuel and of what was earned: pieces are not divided.
        """
        order = np.argsort(-self.scores, axis=1, kind="stable")
        scores, costs = (np.take_along_axis(of, order, axis=1) for of in (self.scores, self.costs))
        is_visit = self.members[order] != PASS
        done = (scores != NOTHING) & ~(is_visit & self._passed_before(order))
        done &= ~is_visit | (np.cumsum(done & is_visit, axis=1) <= MOST_VISITS)
        done &= _before(np.where(done, costs, 0.0)) < fuel_bytes
        promising = done & (scores > bar[:, None])
        urgent = promising & (_before(np.where(promising, costs, 0.0)) < earned[:, None])
        spent = np.where(urgent, costs, 0.0).cumsum(axis=1)[:, -1]
        urgent |= self.due[:, None]
        found = zip(order, done, urgent, spent.tolist(), strict=True)
        return [(self._work(o[d], u[d], operator), bytes_spent) for o, d, u, bytes_spent in found]

    def _passed_before(self, order: Array) -> Array:
        """For each option, in an order, whether a pass over its bucket comes before it."""
        places = np.argsort(order, axis=1)
        passes = places[:, :BUCKETS]
        return np.take_along_axis(passes, self.buckets[order], axis=1) < np.arange(order.shape[1])

    def _work(self, chosen: Array, urgent: Array, operator: int) -> tuple[DiskWork, ...]:
        """Chosen options of one partition, in order, as urgent passes, visits and other passes."""
        passes: dict[bool, list[int]] = {True: [], False: []}
        visits = []
        found = (of.tolist() for of in (self.buckets[chosen], self.members[chosen], urgent))
        for bucket, member, is_urgent in zip(*found, strict=True):
            if member == PASS:
                passes[is_urgent].append(bucket)
            else:
                visits.append(DiskWork((bucket,), member, is_urgent, operator))
        hurried, others = (
            [DiskWork(tuple(sorted(passes[is_urgent])), None, is_urgent, operator)] if passes[is_urgent] else []
            for is_urgent in (True, False)
        )
        return (*hurried, *visits, *others)


def _before(numbers: Array) -> Array:
    """For each of a row, the sum of those before it."""
    out = np.zeros_like(numbers)
    np.cumsum(numbers[:, :-1], axis=1, out=out[:, 1:])
    return out
