"""`random`: buckets of single inputs in no particular order (Viglas 2003, section 2.5). Works on every join graph.

The order comes from a checksum over the number of events: it differs from flush to flush and is the same in a replay.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from spark_mjoin.flush.protocol import Residents, buckets_of, enough
from spark_mjoin.state.residency import Victim


class Scattered:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        events = sum(of.events for of in residents)

        def shuffled(victim: Victim) -> int:
            return zlib.crc32(f"{events} {victim.operator} {victim.input} {victim.bucket}".encode())

        found = sorted(buckets_of(residents), key=lambda b: shuffled(b[1]))
        return enough(((size, [victim]) for size, victim in found), need)
