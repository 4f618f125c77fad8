"""Slots: a key hashes to one of 4,096, and partitions own them.

A slot is a fact about the key alone, whatever divides slots among partitions. Slots are the lowest bits of the hash.
Buckets are the bits from 32 on (`state.buckets`), and indexes use the top ones: rows of one partition spread over all
buckets, and over all of an index. Which bits is part of the state's format.

A row that has no key to go by (its key is NULL, or a filter drops it first) has the slot of its number in its input.
Whatever is counted once for all partitions, though each of them sees it, is counted by the owner of that slot.
"""

from __future__ import annotations

import numpy as np

from spark_mjoin.model import SLOTS, Array


def of_hashes(hashes: Array) -> Array:
    """The slots of some hashes."""
    return (hashes & np.uint64(SLOTS - 1)).astype(np.int32)


def of_numbers(numbers: Array) -> Array:
    """The slots of rows without a key, by their numbers in their input."""
    return (numbers % SLOTS).astype(np.int32)


class Slots:
    """Some slots: what one partition owns."""

    def __init__(self, owned: Array) -> None:
        """owned: for each slot, whether it is one of these."""
        self.owned = np.ascontiguousarray(owned, np.uint8)
        self.size = int(np.count_nonzero(self.owned))
        self.is_all = self.size == SLOTS

    @staticmethod
    def between(first: int, end: int) -> Slots:
        numbers = np.arange(SLOTS)
        return Slots((numbers >= first) & (numbers < end))

    @property
    def first(self) -> int:
        """The lowest of them; SLOTS where there are none."""
        return int(np.argmax(self.owned)) if self.size else SLOTS

    def common(self, other: Slots) -> int:
        """How many slots two sets share."""
        return int(np.count_nonzero(self.owned & other.owned))

    def have(self, slots: Array) -> Array:
        """For some slots, whether each is one of these."""
        out: Array = self.owned[slots].astype(np.bool_)
        return out


ALL_SLOTS = Slots(np.ones(SLOTS))
