"""`coordinated`: the same bucket of all inputs (Viglas 2003, section 2.5). For star joins.

Buckets that have a disk part come first: their new rows find few partners in memory. So buckets go to disk one after
the other, and those that have not gone yet are whole: an arrival there finds all its partners. In a plan of several
operators a bucket goes in all of them: every operator of a star join has the common key.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import Victim


class Coordinated:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        sizes = sum(of.bytes().sum(axis=0) for of in residents)
        on_disk = sum(of.groups.disk.sum(axis=0) for of in residents) > 0
        order = sorted(range(BUCKETS), key=lambda b: (not on_disk[b], b))

        def members(bucket: int) -> list[Victim]:
            return [Victim(i, bucket, operator=of.operator) for of in residents for i in range(len(of.row_bytes))]

        return enough(((float(sizes[b]), members(b)) for b in order), need)
