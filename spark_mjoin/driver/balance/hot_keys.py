"""Which keys are split, and into which partitions: see the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from spark_mjoin.driver.balance import rules
from spark_mjoin.driver.balance.seen import Known, Seen
from spark_mjoin.model import Array
from spark_mjoin.state.layouts import Hot, Layout


class Splitting:
    """Frequent keys, one after the other: each stays where its slot or range is, or is split."""

    def __init__(self, base: Layout, others: Array, mean: float, seen: Seen) -> None:
        self._loads, self._mean, self._seen = others.copy(), mean, seen
        self._order = sorted(seen.keys, key=lambda key: (-float(seen.keys[key].sum()), key))
        orders = np.array([seen.orders[key] for key in self._order], np.uint64)
        at = base.divide(Known(np.array(self._order, np.uint64), orders), others.size).targets
        self._home = dict(zip(self._order, at.tolist(), strict=True))

    @property
    def slowest(self) -> float:
        return float(self._loads.max())

    def chosen(self, running: Sequence[Hot]) -> tuple[Hot, ...]:
        """The keys that are split; those that are already stay as they are, while that is good enough."""
        start, known = self._loads.copy(), {each.key: each for each in running}
        kept = self._all(known, rules.SKEWED, keep=True)
        loads, self._loads = self._loads, start
        if {each.key for each in kept} <= known.keys() and loads.max() <= rules.SKEWED * self._mean:
            self._loads = loads
            return kept
        anew = self._all(known, rules.CALM, keep=False)  # while something changes: as even as it goes
        if self._loads.max() > rules.BETTER * loads.max() and {each.key for each in kept} <= known.keys():
            self._loads = loads
            return kept
        return anew

    def _all(self, running: Mapping[int, Hot], most: float, keep: bool) -> tuple[Hot, ...]:
        """most: times the mean, that a partition may have because of a key that was not split."""
        found: dict[int, Hot] = {}
        for key in self._order:
            rows, home = self._seen.keys[key], self._home[key]
            limit = rules.CALM if key in running else most
            if self._loads[home] + rows.sum() <= limit * self._mean:
                self._loads[home] += rows.sum()
            elif key in running and (keep or len(running[key].cells) == 1 or self._gathers(running[key])):
                found[key] = self._whole(running[key]) if self._gathers(running[key]) else running[key]
                self._loads[list(found[key].cells)] += (rows / found[key].shares).sum()
            else:
                split = self._split(key, rows)
                if split is None:
                    self._loads[home] += rows.sum()
                else:
                    found[key] = split
                    self._loads[list(split.cells)] += (rows / split.shares).sum()
        return tuple(found[key] for key in sorted(found))

    def _gathers(self, hot: Hot) -> bool:
        """Whether the rows of a key that was split are in few of its cells: they are alike in all columns."""
        expected = float((self._seen.keys[hot.key] / hot.shares).sum())
        most = float(self._seen.there[hot.key].max())
        return len(hot.cells) > 1 and expected >= rules.TELLING and most > rules.GATHERED * expected

    def _whole(self, hot: Hot) -> Hot:
        """A key in one partition, the emptiest, from which it is not split again."""
        return Hot(hot.key, (1,) * len(hot.shares), (int(np.argmin(self._loads)),))

    def _split(self, key: int, rows: Array) -> Hot | None:
        """The cells that leave the slowest partition the least to do; None where one does."""
        emptiest = np.argsort(self._loads, kind="stable")
        best = max(self._loads.max(), float(self._loads[self._home[key]] + rows.sum()))
        found: Hot | None = None
        for cells in range(2, min(self._loads.size, rules.MOST_CELLS) + 1):
            shares = shares_of(rows, cells)
            there = emptiest[:cells]
            slowest = max(float(self._loads.max()), float(self._loads[there].max() + (rows / shares).sum()))
            if slowest < rules.MORE_CELLS * best:
                best, found = slowest, Hot(key, shares, tuple(sorted(there.tolist())))
        return found


def shares_of(rows: Array, cells: int) -> tuple[int, ...]:
    """Into how many parts the rows of each input are divided: each prime of the cells goes where most rows are left."""
    shares = [1] * rows.size
    for prime in _primes(cells):
        left = rows / shares
        shares[int(np.argmax(left))] *= prime
    assert prod(shares) == cells
    return tuple(shares)


def _primes(number: int) -> list[int]:
    """The prime factors, the largest first."""
    found, factor = list[int](), 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found[::-1]
