"""`random`: buckets of single inputs in no particular order (Viglas 2003, section 2.5). Works on every join graph.

The order comes from a checksum over the number of events: it differs from flush to flush and is the same in a replay.
"""

from __future__ import annotations

import zlib

from spark_mjoin.flush.protocol import Residents, enough
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.residency import Victim


class Scattered:
    def victims(self, residents: Residents, need: int) -> list[Victim]:
        sizes = residents.bytes()
        pairs = [(i, b) for i in range(len(sizes)) for b in range(BUCKETS)]
        pairs.sort(key=lambda pair: zlib.crc32(f"{residents.events} {pair[0]} {pair[1]}".encode()))
        return enough(((sizes[i, b], [Victim(i, b)]) for i, b in pairs), need)
