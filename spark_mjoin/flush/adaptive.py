"""`adaptive`: evicts the rows with the fewest expected results of the query (PermJoin's AdaptiveGlobalFlush).

A group is a bucket of the main class over all inputs that have it, or a bucket of an input that does not. The results
that are expected of a group in memory are

    sum over inputs of   arrivals in the bucket  x  product of the others' rows in memory  x  results per combination

This has the three things that the paper asks for: the results of the group so far (per combination that was in memory),
how rows arrive (recent arrivals per bucket, faded with every flush), and how keys are distributed (rows per bucket). In
a plan of several operators, the results of one count by the results at the top that they have lately led to. Groups
with the fewest expected results per byte are evicted first, wherever they are in the plan.

Buckets do not show that input is sorted: a hash spreads neighbours over all of them. The age of rows in results shows
it. When results hardly ever have a row of the older half of memory, the policy evicts the oldest rows of all inputs
instead, if it expects that to cost fewer results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import EVERY, Victim

FEW_RESULTS = 64  # with fewer, the age of rows in results is not judged


class Adaptive:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        by_bucket, lost = _by_bucket(residents, need)
        by_age, lost_by_age = oldest_rows(residents, need)
        return by_age if by_age and lost_by_age < lost else by_bucket


def expected_results(residents: Residents) -> Array:
    """Per bucket of the main class, the results of the whole join that arrivals give with the rows in memory here.

    This assumes that rows arrive as they lately did.
    """
    groups = residents.groups
    out = np.zeros(BUCKETS)
    for i in range(len(groups.recent)):
        arrivals = groups.recent[i] if i in groups.main else np.full(BUCKETS, groups.recent[i].sum())
        out += arrivals * groups.partners(i)
    return out * groups.selectivity() * residents.worth


@dataclass(frozen=True)
class _Group:
    """Rows that are evicted together: their bytes, and the results of the whole join that are expected of them."""

    bytes: float
    results: float
    on_disk: bool
    victims: list[Victim]

    @property
    def rank(self) -> tuple[float, bool, int, int, int]:
        # Where nothing is expected of either, new rows of a bucket with rows on disk are the better victims.
        first = self.victims[0]
        return self.results / max(self.bytes, 1.0), not self.on_disk, first.operator, first.input, first.bucket


def _by_bucket(residents: Sequence[Residents], need: int) -> tuple[list[Victim], float]:
    """The groups with the fewest expected results per byte, and the results that evicting them costs."""
    groups = sorted((group for of in residents for group in _groups(of)), key=lambda group: group.rank)
    victims = enough(((group.bytes, group.victims) for group in groups), need)
    chosen = set(victims)
    return victims, sum(group.results for group in groups if group.bytes and group.victims[0] in chosen)


def _groups(residents: Residents) -> Iterator[_Group]:
    """The groups of one operator."""
    groups, sizes, operator = residents.groups, residents.bytes(), residents.operator
    expected = expected_results(residents)
    main_sizes, on_disk = sizes[groups.main].sum(axis=0), groups.disk[groups.main].sum(axis=0) > 0
    for b in range(BUCKETS):
        members = [Victim(i, b, operator=operator) for i in groups.main]
        yield _Group(float(main_sizes[b]), float(expected[b]), bool(on_disk[b]), members)
    for j in set(range(len(sizes))) - set(groups.main):
        whole = max(float(groups.resident[j].sum()), 1.0)
        for b in range(BUCKETS):
            loss = float(expected.sum() * groups.resident[j, b] / whole)
            yield _Group(float(sizes[j, b]), loss, False, [Victim(j, b, operator=operator)])


def oldest_rows(residents: Sequence[Residents], need: int) -> tuple[list[Victim], float]:
    """The oldest rows of all inputs of all operators, and the expected cost of evicting them, in results.

    Every operator counts its own events, so each evicts in proportion to its bytes.
    """
    sizes = [float(of.bytes().sum()) for of in residents]
    victims, lost = list[Victim](), 0.0
    for of, size in zip(residents, sizes, strict=True):
        share = int(need * size / max(sum(sizes), 1.0))
        if share:
            oldest, cost = _oldest(of, share)
            if not oldest:
                return [], 0.0
            victims, lost = victims + oldest, lost + cost
    return victims, lost


def _oldest(residents: Residents, need: int) -> tuple[list[Victim], float]:
    """The oldest rows of one operator; none where ages do not tell rows apart, or old rows still join."""
    groups = residents.groups
    if groups.all_results < FEW_RESULTS:
        return [], 0.0
    by_age = [arrivals.by_age() for arrivals in residents.arrivals]
    ages = np.concatenate([events for events, _ in by_age])
    sizes = np.concatenate([rows * each for (_, rows), each in zip(by_age, residents.row_bytes, strict=True)])
    order = np.argsort(ages, kind="stable")
    freed = np.cumsum(sizes[order])
    last = min(int(np.searchsorted(freed, need)), ages.size - 1)
    below = int(ages[order[last]]) + 1
    leaving = float(sizes[ages < below].sum())
    if leaving > 2 * need or not (ages < groups.young).any():
        return [], 0.0  # arrivals came in few large pieces: ages do not tell rows apart
    # Of the results with old rows, those stay whose old rows all stay. An input that ended long ago has no others.
    kept = 1.0
    for events, rows in by_age:
        old = int(rows[events < groups.young].sum())
        kept *= 1.0 - min(int(rows[events < below].sum()) / old, 1.0) if old else 1.0
    involving_old = 1.0 - groups.young_results / groups.all_results
    lost = float(expected_results(residents).sum()) * involving_old * (1.0 - kept)
    return [Victim(i, EVERY, below, residents.operator) for i in range(len(residents.arrivals))], lost
