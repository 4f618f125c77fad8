"""The rule that no combination is given out twice (DESIGN, invariant 1; Viglas 2003, section 2.6).

A combination has been given out if and only if all its rows were together at some instant:

    in memory      the youngest arrived before the first of them left: max(arrived) < min(flushed)
    in a pass      a pass over its bucket came after all of them: max(arrived) < cleaned
    in a visit     a visit of one row's disk part, after that row had left, saw all the others in memory

Everything is counted in events (state.residency), so no two of them coincide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.residency import EVERY


def not_yet(
    arrived: Sequence[Array],
    flushed: Sequence[Array],
    cleaned: Array | int,
    visits: Sequence[Sequence[tuple[int, int]]],
    buckets: Sequence[Array],
) -> Array:
    """Which combinations have not been given out: a boolean for each.

    arrived[i], flushed[i] and buckets[i] are about the row of input i in each combination; cleaned is the last pass
    over the combination's bucket; visits[i] lists (event, bucket) of input i.
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
