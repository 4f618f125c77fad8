"""`coordinated`: the same bucket of all inputs of a star (Viglas 2003, section 2.5), star by star in a larger join.

A star is the inputs whose rows fall into buckets by the same key (`state.buckets`), in whichever operators of the plan
they are. A star join is one star, and a bucket is evicted from all of its inputs. In `((a b c) (d e f))` with a key of
each triple, a bucket of one triple is evicted without the other.

Buckets that have a disk part come first: their new rows find few partners in memory. So the buckets of a star are
evicted one after the other, and the remaining ones are whole: an arrival there finds all its partners.

The next whole bucket comes from the star with the most bytes in memory. A result needs a row of each star, so the
probability of finding it is the product of the fractions that the stars have in memory. For a given sum of bytes the
product is greatest where all stars have the same bytes in memory, or all of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import Victim


class Coordinated:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        stars: dict[int, _Star] = {}
        for of in residents:
            sizes = of.bytes()
            for input, key_class in enumerate(of.classes):
                stars.setdefault(key_class, _Star()).add(of, input, sizes[input])
        return enough(_in_order([stars[c] for c in sorted(stars)]), need)


@dataclass
class _Star:
    members: list[tuple[int, int]] = field(default_factory=list)  # operator and input
    sizes: Array = field(default_factory=lambda: np.zeros(BUCKETS))
    on_disk: Array = field(default_factory=lambda: np.zeros(BUCKETS, np.bool_))

    def add(self, of: Residents, input: int, sizes: Array) -> None:
        self.members.append((of.operator, input))
        self.sizes += sizes
        self.on_disk |= of.groups.disk[input] > 0

    def group(self, bucket: int) -> tuple[float, list[Victim]]:
        return float(self.sizes[bucket]), [Victim(i, bucket, operator=operator) for operator, i in self.members]


def _in_order(stars: Sequence[_Star]) -> Iterator[tuple[float, list[Victim]]]:
    """The buckets of all stars, in the order in which they are evicted."""
    for bucket in range(BUCKETS):
        yield from (star.group(bucket) for star in stars if star.on_disk[bucket])
    whole = [[int(b) for b in np.flatnonzero(~star.on_disk)] for star in stars]
    left = [float(star.sizes[buckets].sum()) for star, buckets in zip(stars, whole, strict=True)]
    while any(whole):
        number = max((n for n, buckets in enumerate(whole) if buckets), key=lambda n: (left[n], -n))
        size, victims = stars[number].group(whole[number].pop(0))
        left[number] -= size
        yield size, victims
