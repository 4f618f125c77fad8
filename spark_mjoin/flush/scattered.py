"""`random`: buckets of single inputs in no particular order (Viglas 2003, section 2.5). Works on every join graph.

The order comes from a digest over the number of events: it differs from flush to flush and is the same in a replay. A
checksum such as CRC-32 would not do. It is linear, so the orders of neighbouring events resemble each other, and the
same buckets would be evicted again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from spark_mjoin.flush.protocol import Residents, buckets_of, enough
from spark_mjoin.state.residency import Victim


class Scattered:
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        events = sum(of.events for of in residents)

        def shuffled(victim: Victim) -> bytes:
            text = f"{events} {victim.operator} {victim.input} {victim.bucket}"
            return blake2b(text.encode(), digest_size=8).digest()

        found = sorted(buckets_of(residents), key=lambda b: shuffled(b[1]))
        return enough(((size, [victim]) for size, victim in found), need)
