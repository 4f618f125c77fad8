"""Layouts: to which partitions a row goes.

    even    partition 0 of 3: slots 0..1365, partition 1: 1366..2730, partition 2: 2731..4095

Mostly a row is in one partition, which owns the slot of its key. A layout may send copies of a row to several. What it
must see to is that each combination can be found in one partition, and in no other. Then a join of each partition's
rows is a join of all rows, and nothing has to be known of other partitions.

When rows are divided otherwise from some version on (`state.routing`), partitions take over rows from those before. A
row with several copies is taken from the first one, so a layout knows which copies are first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from spark_mjoin.model import SLOTS, Array
from spark_mjoin.state.slots import Slots, of_hashes


class Keys(Protocol):
    """Rows of one input, to those who divide them among partitions."""

    @property
    def input(self) -> int: ...

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    def hashes(self, key_class: int | None = None) -> Array | None:
        """Of their keys of a class, by default that which all inputs have; None where the input does not have it."""
        ...

    def row_hashes(self) -> Array:
        """Of all that is known of each row."""
        ...


@dataclass(frozen=True)
class Divided:
    """Where some rows go: copies of them, each with its target."""

    targets: Array
    rows: Array | None = None  # of each copy, the number of the row; None: one copy of each row, in their order


class Layout(Protocol):
    """How rows are divided among a number of partitions. Frozen and hashable: it is a part of plans.

    A combination is in one partition: in the only one that has copies of all its rows.
    """

    @property
    def replicates(self) -> bool:
        """Whether some rows go to several partitions."""
        ...

    def slots(self, partition: int, partitions: int) -> Slots:
        """That a partition owns: it counts what is counted once for all, and is the only one with rows of their keys,
        unless rows are replicated.
        """
        ...

    def holds(self, partition: int, partitions: int) -> Slots:
        """The slots of the keys of all rows that a partition may have: its own, and those of copies."""
        ...

    def divide(self, keys: Keys, partitions: int) -> Divided:
        """To which partitions rows go."""
        ...

    def firsts(self, keys: Keys, partition: int, partitions: int) -> Array | None:
        """Of rows that are in a partition, which are there as the first copy of their row; None: all of them."""
        ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Even:
    """Each partition owns a range of slots, and they differ by one slot at the most."""

    replicates = False

    def slots(self, partition: int, partitions: int) -> Slots:
        return Slots.between(self._first(partition, partitions), self._first(partition + 1, partitions))

    @staticmethod
    def _first(partition: int, partitions: int) -> int:
        return -(-partition * SLOTS // partitions)

    def holds(self, partition: int, partitions: int) -> Slots:
        return self.slots(partition, partitions)

    def divide(self, keys: Keys, partitions: int) -> Divided:
        if partitions == 1:
            return Divided(np.zeros(keys.count, np.int16))
        hashes = keys.hashes()
        assert hashes is not None, "only a join with a key common to all inputs has partitions"
        return Divided((of_hashes(hashes).astype(np.int64) * partitions // SLOTS).astype(np.int16))

    def firsts(self, keys: Keys, partition: int, partitions: int) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "even"}


EVEN: Layout = Even()


def read_layout(body: Mapping[str, Any]) -> Layout:
    """A layout as it is in a plan."""
    if body["kind"] == "even":
        return EVEN
    raise ValueError(f"no layout is called {body['kind']}")
