"""Which partition a row is in: its key hashes to one of 4,096 slots, and a partition owns a range of them.

    key ──hash──> slot 0..4095 ──> partition

             |  slots 0..1365  |  1366..2730  |  2731..4095  |
                 partition 0      partition 1     partition 2       three partitions

A slot is a fact about the key alone, and which partition owns it a fact about the number of partitions alone. So rows
that are divided otherwise are known by their slots, one by one, whatever divided them before.

Slots are the lowest bits of the hash. Buckets are the bits from 32 on (`state.buckets`), and indexes use the top ones:
rows of one partition spread over all buckets, and over all of an index. Which bits is part of the state's format.

The number of partitions may change at a restart. A routing says since which version rows are divided as it says, and
how they were divided before. Each routing has directories of its own, so the files of two never mix. It is part of the
plan of a batch: a batch that is run again has the partitions that it had, whatever the options say by then.

A row that has no key to go by (its key is NULL, or a filter drops it first) has the slot of its number in its input.
Whatever is counted once for all partitions, though each of them sees it, is counted by the owner of that slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_mjoin.model import SLOTS, Array

_DIRECTORY = re.compile(r"partition-\d+-of-(\d+)(?:-since-(\d+))?")


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

    @property
    def size(self) -> int:
        return self.end - self.first

    def common(self, other: Slots) -> int:
        """How many slots two ranges share."""
        return max(0, min(self.end, other.end) - max(self.first, other.first))

    def have(self, slots: Array) -> Array:
        """For some slots, whether each is one of these."""
        out: Array = (slots >= self.first) & (slots < self.end)
        return out


ALL_SLOTS = Slots(0, SLOTS)


@dataclass(frozen=True)
class Routing:
    """How the slots are divided among partitions, in ranges that differ by one slot at the most, and since when."""

    partitions: int = 1
    since: int = 1  # the first version of the state that is divided like this
    before: Routing | None = None  # how the version before that one was divided; None where there was none

    def followed_by(self, partitions: int, version: int) -> Routing:
        """As many partitions from a version on."""
        return Routing(partitions, version, replace(self, before=None))

    def slots(self, partition: int) -> Slots:
        return Slots(self._first(partition), self._first(partition + 1))

    def _first(self, partition: int) -> int:
        return -(-partition * SLOTS // self.partitions)

    def partition_of(self, slots: Array) -> Array:
        """The partitions that own some slots."""
        out: Array = slots.astype(np.int64) * self.partitions // SLOTS
        return out

    def directory(self, partition: int) -> str:
        """The name of the directory of a partition."""
        later = f"-since-{self.since}" if self.since > 1 else ""
        return f"partition-{partition}-of-{self.partitions}{later}"

    # --- JSON ------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        earlier = {} if self.before is None else {"before": self.before.to_json()}
        return {"partitions": self.partitions, "since": self.since, **earlier}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Routing:
        before = Routing.from_json(body["before"]) if "before" in body else None
        return Routing(body["partitions"], body["since"], before)


ALONE = Routing()


def in_directories(names: Iterable[str]) -> list[Routing]:
    """The routings whose directories are among some names, the oldest first."""
    found = (_DIRECTORY.fullmatch(name) for name in names)
    known = {(int(each[2] or 1), int(each[1])) for each in found if each is not None}
    return [Routing(partitions, since) for since, partitions in sorted(known)]
