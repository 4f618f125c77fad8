"""The rule that no combination is emitted twice (DESIGN, invariant 1; Viglas 2003, section 2.6).

A combination has been emitted if and only if all its rows were together at some instant:

    in memory      the youngest arrived before the first of them left: max(arrived) < min(flushed)
    in a pass      a pass over its bucket came after all of them: max(arrived) < cleaned
    in a visit     a visit of one row's disk part, after that row had left, saw all the others in memory

Everything is counted in events (state.residency), so no two of them coincide.

Where all inputs share a key and a bucket is evicted in all of them at once, this comes down to less (PermJoin's disk
merge). Between two flushes of the bucket lies an *epoch*: all rows that arrive in it leave at its end, and each meets
all others of it in memory, and none of another epoch. So a combination has been emitted if and only if its rows left at
the same event; those still in memory, which have not left, are an epoch too.

    bucket 5      a1 b1 c1 | a2 b2 c2 | a3 c3
    left at           7         12       never         a1 b1 c1: emitted    a1 b2 c1, a3 b2 c3: not yet

A pass ends nothing in memory, so it does not end an epoch either. But it emits all combinations of rows that came
before it, and a later pass finds only those with a row that came after it (`engine.cleanup`). Among these the rule
still holds: whatever left before that row came belongs to another epoch than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.residency import EVERY


def not_yet(
    arrived: Sequence[Array],
    flushed: Sequence[Array],
    cleaned: Array | int,
    visits: Sequence[Sequence[tuple[int, int]]],
    buckets: Sequence[Array] | Mapping[int, Array],
) -> Array:
    """Which combinations have not been emitted: a boolean for each.

    arrived[i], flushed[i] and buckets[i] are about the row of input i in each combination; cleaned is the last pass
    over the combination's bucket; visits[i] lists (event, bucket) of input i. Only inputs with visits need buckets.
    """
    youngest = np.maximum.reduce(list(arrived))
    together = youngest < np.minimum.reduce(list(flushed))
    out: Array = ~(together | (youngest < cleaned))
    for i, visited in enumerate(visits):
        for event, bucket in visited:
            seen = (youngest < event) & (flushed[i] < event)
            if bucket != EVERY:
                seen &= buckets[i] == bucket
            for j in range(len(arrived)):
                if j != i:
                    seen &= flushed[j] > event
            out &= ~seen
    return out


def in_several_epochs(flushed: Sequence[Array]) -> Array:
    """The same where rows leave in epochs (`Residency.in_epochs`), of combinations with a row that is new to a pass.

    flushed[i] is about the row of input i in each combination.
    """
    out = np.zeros(flushed[0].size, np.bool_)
    for other in flushed[1:]:
        out |= other != flushed[0]
    return out
