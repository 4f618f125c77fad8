"""`coordinated`: the same bucket of all inputs (Viglas 2003, section 2.5). For star joins.

Buckets that have a disk part come first: their new rows find few partners in memory. So buckets go to disk one after
the other, and those that have not gone yet are whole: an arrival there finds all its partners.
"""

from __future__ import annotations

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import Victim


class Coordinated:
    def victims(self, residents: Residents, need: int) -> list[Victim]:
        inputs = range(len(residents.row_bytes))
        sizes = residents.bytes().sum(axis=0)
        on_disk = residents.groups.disk.sum(axis=0) > 0
        order = sorted(range(BUCKETS), key=lambda b: (not on_disk[b], b))
        return enough(((sizes[b], [Victim(i, b) for i in inputs]) for b in order), need)
