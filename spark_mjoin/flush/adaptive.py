"""`adaptive`: what is expected to contribute least to the query's results (PermJoin's AdaptiveGlobalFlush).

A group is a bucket of the main class over all inputs that have it, or a bucket of an input that does not. What a group
would give if it stayed is expected to be

    sum over inputs of   arrivals in the bucket  x  product of the others' rows in memory  x  results per combination

which takes in the three things that the paper asks for: what the group has contributed so far (results per combination
that was in memory), how rows arrive (recent arrivals per bucket, faded with every flush), and how keys are distributed
(rows per bucket). In a plan of several operators, what one gives counts by what the operators above have lately made of
it. Groups with the least expected results per byte go first, wherever they are in the plan.

Sorted input is the case that buckets cannot see: a hash spreads neighbours over all of them. It shows in the age of
what joins. When results hardly ever hold a row of the older half of memory, the oldest rows of all inputs go instead,
if that is expected to cost fewer results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import EVERY, Victim

FEW_RESULTS = 64  # below this the age of what joins is not judged


class Adaptive:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        by_bucket, lost = _by_bucket(residents, need)
        by_age, lost_by_age = oldest_rows(residents, need)
        return by_age if by_age and lost_by_age < lost else by_bucket


def expected_results(residents: Residents) -> Array:
    """Per bucket of the main class, what arrivals give to the whole join with what is in memory here.

    If they go on as recently.
    """
    groups = residents.groups
    out = np.zeros(BUCKETS)
    for i in range(len(groups.recent)):
        arrivals = groups.recent[i] if i in groups.main else np.full(BUCKETS, groups.recent[i].sum())
        out += arrivals * groups.partners(i)
    return out * groups.selectivity() * residents.worth


@dataclass(frozen=True)
class _Group:
    """Rows that leave together: what they take, and what they are expected to give to the whole join."""

    bytes: float
    results: float
    on_disk: bool
    victims: list[Victim]

    @property
    def rank(self) -> tuple[float, bool, int, int, int]:
        # Where nothing is expected of either, new rows of a bucket that is on disk already are the better victims.
        first = self.victims[0]
        return self.results / max(self.bytes, 1.0), not self.on_disk, first.operator, first.input, first.bucket


def _by_bucket(residents: Sequence[Residents], need: int) -> tuple[list[Victim], float]:
    """The groups with the least expected results per byte, and the results that leaving costs."""
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
    """The oldest rows of all inputs of all operators, and the results that leaving is expected to cost.

    Every operator counts its own events, so each gives up its share of the bytes.
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
