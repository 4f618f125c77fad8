"""How much of an input was let in: which of its rows, and what share of those in the state they are.

A row is let in if and only if the hash of its number is below the fraction that its batch lets in. Rows are numbered
as their source delivers them, before filters, so whatever reads an input again lets the same rows in.

    cohorts    rows that arrived under like fractions: how many are in the state, and how many they stand for

A row that was let in with fraction f stands for 1/f rows. The fraction of an input is its rows in the state over the
rows that they stand for, and what an arrival finds there is expected to be that part of what it would find.

Not covered: which fraction a batch has (driver.admission), and what rows that are results of another join stand for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from spark_mjoin import kernel
from spark_mjoin.model import WHOLE, Array
from spark_mjoin.state.manifest import AdmittedFigures, CohortFigures

MOST_COHORTS = 32  # more are merged, the oldest first
_BITS = WHOLE.bit_length() - 1
_STEP, _SEED = np.uint64(0x9E3779B97F4A7C15), 0xD1B54A32D192ED03  # so that numbers are not hashed as keys are


def sampled(input: int, numbers: Array, parts: int) -> Array:
    """For rows of an input of the join, by their numbers, whether each is let in: `parts` of WHOLE are."""
    seed = np.uint64((input + 1) * _SEED % 2**64)
    words = numbers.astype(np.uint64) * _STEP + seed
    hashes = np.empty(words.size, np.uint64)
    kernel.hash_words(words.view(np.int64), kernel.ALL_BITS, hashes)
    out: Array = (hashes >> np.uint64(64 - _BITS)) < np.uint64(parts)
    return out


@dataclass
class Cohort:
    since: int  # the event from which on its rows arrived
    last: float  # the fraction of the newest
    least: float  # the smallest fraction of any
    rows: int = 0  # in the state
    weight: float = 0.0  # rows that they stand for


@dataclass
class Admitted:
    delivered: int = 0  # rows, let in or not, of all partitions
    cohorts: list[Cohort] = field(default_factory=list)

    def admit(self, rows: int, fraction: float, event: int) -> None:
        """Rows have come into the state, in a batch that lets such a fraction in."""
        if not rows:
            return
        if not self.cohorts or self.cohorts[-1].last != fraction:
            self.cohorts.append(Cohort(event, fraction, fraction))
        self._add(rows, rows / fraction)

    def _add(self, rows: int, weight: float) -> None:
        """To the newest cohort."""
        newest = self.cohorts[-1]
        newest.rows += rows
        newest.weight += weight
        if len(self.cohorts) > MOST_COHORTS:
            first, second = self.cohorts[:2]
            merged = Cohort(first.since, second.last, min(first.least, second.least))
            merged.rows, merged.weight = first.rows + second.rows, first.weight + second.weight
            self.cohorts[:2] = [merged]

    def inherit(self, other: Admitted, cohort: int | None, rows: int, event: int) -> None:
        """Rows of another partition have come into the state: of one of its cohorts, or with None of all of them."""
        if not rows:
            return
        of = other.cohorts if cohort is None else [other.cohorts[cohort]]
        last, least = of[-1].last, min(each.least for each in of)
        if not self.cohorts or (self.cohorts[-1].last, self.cohorts[-1].least) != (last, least):
            self.cohorts.append(Cohort(event, last, least))
        self._add(rows, rows * other.mean_weight(cohort))

    def mean_weight(self, cohort: int | None) -> float:
        """How many rows one of a cohort stands for, or with None one of any."""
        of = self.cohorts if cohort is None else [self.cohorts[cohort]]
        rows = sum(each.rows for each in of)
        return sum(each.weight for each in of) / rows if rows else 1.0

    def forget(self, rows: int) -> None:
        """Rows that came last were not kept: those that are there stand for them too."""
        if rows:
            self.cohorts[-1].rows -= rows

    def leave(self, arrived: Array, others: int = 0) -> None:
        """Rows were dropped: some that arrived at such events, and others, taken to be the oldest."""
        gone = [arrived.size]
        if len(self.cohorts) != 1:
            gone = np.bincount(self.cohort_of(arrived), minlength=len(self.cohorts)).tolist()
        for cohort, rows in zip(self.cohorts, gone, strict=True):
            older = min(others, cohort.rows - rows)
            others -= older
            cohort.weight *= 1 - (rows + older) / max(cohort.rows, 1)
            cohort.rows -= rows + older
        self.cohorts = [c for c in self.cohorts[:-1] if c.rows] + self.cohorts[-1:]

    def weights(self, arrived: Array) -> Array | float:
        """How many rows each of some stands for, which arrived at such events."""
        if len(self.cohorts) == 1:
            return self.cohorts[0].weight / max(self.cohorts[0].rows, 1)
        each = np.array([cohort.weight / max(cohort.rows, 1) for cohort in self.cohorts])
        out: Array = each[self.cohort_of(arrived)]
        return out

    def cohort_of(self, arrived: Array) -> Array:
        """The numbers of the cohorts of some rows, which arrived at such events."""
        since = np.array([cohort.since for cohort in self.cohorts])
        return np.maximum(np.searchsorted(since, arrived, side="right") - 1, 0)

    @property
    def rows(self) -> int:
        return sum(cohort.rows for cohort in self.cohorts)

    @property
    def weight(self) -> float:
        return sum(cohort.weight for cohort in self.cohorts)

    @property
    def fraction(self) -> float:
        """The rows in the state, of those that would be there if all had been let in."""
        weight = self.weight
        return self.rows / weight if weight else 1.0

    @property
    def is_whole(self) -> bool:
        """Whether every row in the state stands for itself alone."""
        return self.least == 1.0  # weights have rounding errors

    @property
    def least(self) -> float:
        """The smallest fraction by which any row in the state was let in."""
        return min((cohort.least for cohort in self.cohorts if cohort.rows), default=1.0)

    def figures(self) -> AdmittedFigures:
        return AdmittedFigures(self.delivered, tuple(CohortFigures(**vars(c)) for c in self.cohorts))

    @staticmethod
    def of(kept: AdmittedFigures) -> Admitted:
        return Admitted(kept.delivered, [Cohort(*values) for values in kept.cohorts])
