"""`largest`: the bucket of one input that frees most memory, then the next. Few and large victims, on every graph."""

from __future__ import annotations

from collections.abc import Sequence

from spark_mjoin.flush.protocol import Residents, buckets_of, enough
from spark_mjoin.state.residency import Victim


class Largest:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        found = sorted(buckets_of(residents), key=lambda b: (-b[0], b[1].operator, b[1].input, b[1].bucket))
        return enough(((size, [victim]) for size, victim in found), need)
