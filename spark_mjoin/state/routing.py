"""Which partition a row is in: its key hashes to one of 4,096 slots, and a partition owns a range of them.

    key ──hash──> slot 0..4095 ──> partition

             |  slots 0..1365  |  1366..2730  |  2731..4095  |
                 partition 0      partition 1     partition 2       three partitions

A slot is a fact about the key alone, and which partition owns it a fact about the number of partitions alone. So rows
that are divided otherwise are known by their slots, one by one, whatever divided them before.

Slots are the lowest bits of the hash. Buckets are the bits from 32 on (`state.buckets`), and indexes use the top ones:
rows of one partition spread over all buckets, and over all of an index. Which bits is part of the state's format.

A row that has no key to go by (its key is NULL, or a filter drops it first) has the slot of its number in its input.
Whatever is counted once for all partitions, though each of them sees it, is counted by the owner of that slot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_mjoin import kernel
from spark_mjoin.model import SLOTS, Array


def of_hashes(hashes: Array) -> Array:
    """The slots of some hashes."""
    return (hashes & np.uint64(SLOTS - 1)).astype(np.int32)


def of_numbers(numbers: Array) -> Array:
    """The slots of rows without a key, by their numbers in their input."""
    return (numbers % SLOTS).astype(np.int32)


@dataclass(frozen=True)
class Slots:
    """A range of slots: what one partition owns."""

    first: int
    end: int

    @property
    def is_all(self) -> bool:
        return self.first == 0 and self.end == SLOTS

    def select(self, hashes: Array) -> Array:
        """The positions of those hashes that are in these slots."""
        out = np.empty(hashes.size, np.int32)
        return out[: kernel.select_slots(hashes, SLOTS - 1, self.first, self.end, out)]

    def have(self, slots: Array) -> Array:
        """For some slots, whether each is one of these."""
        out: Array = (slots >= self.first) & (slots < self.end)
        return out


ALL_SLOTS = Slots(0, SLOTS)


@dataclass(frozen=True)
class Routing:
    """How the slots are divided among partitions: in ranges that differ by one slot at the most."""

    partitions: int

    def slots(self, partition: int) -> Slots:
        return Slots(self._first(partition), self._first(partition + 1))

    def _first(self, partition: int) -> int:
        return -(-partition * SLOTS // self.partitions)

    def partition_of(self, slots: Array) -> Array:
        """The partitions that own some slots."""
        out: Array = slots.astype(np.int64) * self.partitions // SLOTS
        return out
