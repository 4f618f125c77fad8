"""`adaptive`: what is expected to contribute least to the query's results (PermJoin's AdaptiveGlobalFlush).

A group is a bucket of the main class over all inputs that have it, or a bucket of an input that does not. What a group
would give if it stayed is expected to be

    sum over inputs of   arrivals in the bucket  x  product of the others' rows in memory  x  results per combination

which takes in the three things that the paper asks for: what the group has contributed so far (results per combination
that was in memory), how rows arrive (recent arrivals per bucket, faded with every flush), and how keys are distributed
(rows per bucket). Groups with the least expected results per byte go first.

Sorted input is the case that buckets cannot see: a hash spreads neighbours over all of them. It shows in the age of
what joins. When results hardly ever hold a row of the older half of memory, the oldest rows of all inputs go instead,
if that is expected to cost fewer results.
"""

from __future__ import annotations

import numpy as np

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import EVERY, Victim

FEW_RESULTS = 64  # below this the age of what joins is not judged


class Adaptive:
    def victims(self, residents: Residents, need: int) -> list[Victim]:
        by_bucket, lost = _by_bucket(residents, need)
        by_age, lost_by_age = _by_age(residents, need)
        return by_age if by_age and lost_by_age < lost else by_bucket


def expected_results(residents: Residents) -> Array:
    """Per bucket of the main class, the results of arrivals with what is in memory, if they go on as recently."""
    groups = residents.groups
    out = np.zeros(BUCKETS)
    for i in range(len(groups.recent)):
        arrivals = groups.recent[i] if i in groups.main else np.full(BUCKETS, groups.recent[i].sum())
        out += arrivals * groups.partners(i)
    return out * groups.selectivity()


def _by_bucket(residents: Residents, need: int) -> tuple[list[Victim], float]:
    """The groups with the least expected results per byte, and the results that leaving costs."""
    groups, sizes = residents.groups, residents.bytes()
    expected = expected_results(residents)
    scored: list[tuple[float, int, float, float, list[Victim]]] = []
    main_sizes = sizes[groups.main].sum(axis=0)
    for b in range(BUCKETS):
        size = float(main_sizes[b])
        members = [Victim(i, b) for i in groups.main]
        # Where nothing is expected of either, new rows of a bucket that is on disk already are the better victims.
        on_disk = bool(groups.disk[groups.main, b].sum() > 0)
        scored.append((expected[b] / max(size, 1.0), not on_disk, size, float(expected[b]), members))
    for j in set(range(len(sizes))) - set(groups.main):
        whole = max(float(groups.resident[j].sum()), 1.0)
        for b in range(BUCKETS):
            loss = float(expected.sum() * groups.resident[j, b] / whole)
            size = float(sizes[j, b])
            scored.append((loss / max(size, 1.0), True, size, loss, [Victim(j, b)]))
    scored.sort(key=lambda s: (s[0], s[1], s[4][0].input, s[4][0].bucket))
    victims = enough(((size, members) for _, _, size, _, members in scored), need)
    chosen = {(v.input, v.bucket) for v in victims}
    lost = sum(loss for _, _, size, loss, members in scored if size and (members[0].input, members[0].bucket) in chosen)
    return victims, lost


def _by_age(residents: Residents, need: int) -> tuple[list[Victim], float]:
    """The oldest rows of all inputs, and the results that leaving is expected to cost."""
    groups = residents.groups
    if groups.all_results < FEW_RESULTS:
        return [], 0.0
    ages = np.concatenate(residents.arrived)
    sizes = np.repeat(residents.row_bytes, [a.size for a in residents.arrived])
    order = np.argsort(ages, kind="stable")
    freed = np.cumsum(sizes[order])
    last = min(int(np.searchsorted(freed, need)), ages.size - 1)
    below = int(ages[order[last]]) + 1
    leaving = float(sizes[ages < below].sum())
    if leaving > 2 * need or not (ages < groups.young).any():
        return [], 0.0  # arrivals came in few large pieces: ages do not tell rows apart
    # Of the results with old rows, those stay whose old rows all stay. An input that ended long ago has no others.
    kept = 1.0
    for arrived in residents.arrived:
        old = int((arrived < groups.young).sum())
        kept *= 1.0 - min(int((arrived < below).sum()) / old, 1.0) if old else 1.0
    involving_old = 1.0 - groups.young_results / groups.all_results
    lost = float(expected_results(residents).sum()) * involving_old * (1.0 - kept)
    return [Victim(i, EVERY, below) for i in range(len(residents.arrived))], lost
