"""`largest`: the bucket of one input that frees most memory, then the next. Few and large victims, on every graph."""

from __future__ import annotations

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import Victim


class Largest:
    def victims(self, residents: Residents, need: int) -> list[Victim]:
        sizes = residents.bytes()
        pairs = [(i, b) for i in range(len(sizes)) for b in range(BUCKETS)]
        pairs.sort(key=lambda pair: (-sizes[pair], pair))
        return enough(((sizes[i, b], [Victim(i, b)]) for i, b in pairs), need)
