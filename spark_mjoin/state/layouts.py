"""Layouts: to which partitions a row goes.

    even        partition 0 of 3: slots 0..1365, partition 1: 1366..2730, partition 2: 2731..4095
    assigned    partition 0 of 3: slots 1, 7, 8, ..., partition 1: 0, 2, ..., partition 2: 3, 5, ...
    ranges      partition 0 of 3: keys up to 40, partition 1: up to 900, partition 2: all above
    split       one of these, but the rows of key 17 go to partitions 0 and 2, some there, some here

    cube    a.i = b.i, b.j = c.j      cells      j: 0  1  2       two shares of key i, three of key j: six partitions
            a row of b is in one      i: 0     | 0 | 1 | 2 |
            a row of a in three,         1     | 3 | 4 | 5 |
            a row of c in two

Mostly a row is in one partition, which owns the slot of its key. A layout may send copies of a row to several. What it
must see to is that each combination can be found in one partition, and in no other. Then a join of each partition's
rows is a join of all rows, and nothing has to be known of other partitions.

When rows are divided otherwise from some version on (`state.routing`), partitions take over rows from those before. A
row with several copies is taken from the first one, so a layout knows which copies are first.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Protocol

import numpy as np

from spark_mjoin.model import SLOTS, Array
from spark_mjoin.state.slots import ALL_SLOTS, Slots, of_hashes


class Keys(Protocol):
    """Rows of one input, to those who divide them among partitions."""

    @property
    def input(self) -> int: ...

    @property
    def count(self) -> int:
        """How many rows there are."""
        ...

    def has(self, key_class: int) -> bool:
        """Whether the input has keys of a class."""
        ...

    def hashes(self, key_class: int | None = None) -> Array | None:
        """Of their keys of a class, by default that which all inputs have; None where the input does not have it."""
        ...

    def orders(self) -> Array:
        """Of the keys that all inputs have, words that sort as they do: equal keys have equal words."""
        ...

    def row_hashes(self, rows: Array) -> Array:
        """Of all that is known of each of some rows."""
        ...


@dataclass(frozen=True)
class Divided:
    """Where some rows go: copies of them, each with its target."""

    targets: Array
    rows: Array | None = None  # of each copy, the number of the row; None: one copy of each row, in their order
    besides: tuple[int, ...] = ()  # each copy goes to its target plus these, too

    def numbers(self, partition: int) -> Array:
        """The numbers of those rows of which a partition gets a copy."""
        bases = [partition, *(partition - more for more in self.besides)]
        here = np.flatnonzero(np.isin(self.targets, bases) if self.besides else self.targets == partition)
        out: Array = here if self.rows is None else np.sort(self.rows[here])
        return out.astype(np.int32)


class Layout(Protocol):
    """How rows are divided among a number of partitions. Frozen and hashable: it is a part of plans.

    A combination is in one partition: in the only one that has copies of all its rows.
    """

    @property
    def replicates(self) -> bool:
        """Whether some rows go to several partitions."""
        ...

    @property
    def by_slots(self) -> bool:
        """Whether a partition has the rows of its own slots, and no others."""
        ...

    @property
    def hot_keys(self) -> tuple[int, ...]:
        """The hashes of keys whose rows go elsewhere than those of others."""
        ...

    def slots(self, partition: int, partitions: int) -> Slots:
        """That a partition owns: it counts what is counted once for all. There is at least one."""
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

    gave_up: bool = False  # ranges of keys, which had soon become uneven: they are not tried again

    replicates = False
    by_slots = True
    hot_keys = ()

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
        return Divided((of_hashes(_common(keys)).astype(np.int64) * partitions // SLOTS).astype(np.int16))

    def firsts(self, keys: Keys, partition: int, partitions: int) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "even", **({"gaveUp": True} if self.gave_up else {})}

    def __str__(self) -> str:
        return "hash, since ranges did not last" if self.gave_up else "hash"


EVEN: Layout = Even()


@dataclass(frozen=True)
class Assigned:
    """Each partition owns some slots, whichever."""

    targets: bytes  # of each slot, the partition, in two bytes

    replicates = False
    by_slots = True
    hot_keys = ()

    @staticmethod
    def of(targets: Array) -> Assigned:
        return Assigned(np.ascontiguousarray(targets, "<i2").tobytes())

    @cached_property
    def partition_of(self) -> Array:
        """Of each slot."""
        return np.frombuffer(self.targets, "<i2")

    def slots(self, partition: int, partitions: int) -> Slots:
        return Slots(self.partition_of == partition)

    def holds(self, partition: int, partitions: int) -> Slots:
        return self.slots(partition, partitions)

    def divide(self, keys: Keys, partitions: int) -> Divided:
        return Divided(self.partition_of[of_hashes(_common(keys))])

    def firsts(self, keys: Keys, partition: int, partitions: int) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "assigned", "targets": b64encode(zlib.compress(self.targets)).decode()}

    def __str__(self) -> str:
        return "rate"


@dataclass(frozen=True)
class Ranges:
    """Each partition has a range of the keys, in their order."""

    ends: tuple[int, ...]  # of the ranges but the last one: the first order that is not in it, ascending

    replicates = False
    by_slots = False
    hot_keys = ()

    @cached_property
    def _ends(self) -> Array:
        return np.array(self.ends, np.uint64)

    def slots(self, partition: int, partitions: int) -> Slots:
        return EVEN.slots(partition, partitions)

    def holds(self, partition: int, partitions: int) -> Slots:
        return ALL_SLOTS  # keys that follow each other have any slots

    def divide(self, keys: Keys, partitions: int) -> Divided:
        return Divided(np.searchsorted(self._ends, keys.orders(), side="right").astype(np.int16))

    def firsts(self, keys: Keys, partition: int, partitions: int) -> None:
        return None

    def to_json(self) -> dict[str, Any]:
        return {"kind": "ranges", "ends": list(self.ends)}

    def __str__(self) -> str:
        return "range"


@dataclass(frozen=True)
class Hot:
    """A key whose rows are spread over several partitions."""

    key: int  # its hash
    shares: tuple[int, ...]  # of each input, into how many parts its rows are divided
    cells: tuple[int, ...]  # the partitions; as many as all shares multiplied

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """What a step along the axis of each input adds to the number of a cell."""
        return tuple(prod(self.shares[axis + 1 :]) for axis in range(len(self.shares)))

    @cached_property
    def places(self) -> Array:
        """The cells, with an axis for each input."""
        return np.array(self.cells, np.int64).reshape(self.shares)

    def copies(self, input: int) -> int:
        """In how many cells a row of an input is."""
        return len(self.cells) // self.shares[input]


@dataclass(frozen=True)
class Split:
    """As another layout, but the rows of some hot keys go to several partitions each.

        hot key, shares: a 3, b 2, c 1        a:  0   1   2
        a row of a is in two cells,         b: 0  p4  p0  p7
        one of b in three,                     1  p2  p6  p3
        one of c in all six

    The rows of a key are a small cube, with an axis for each input: a row's coordinate on its own axis follows from a
    hash of all that it has, and it has copies along the other axes. A combination has one row of each input, and so one
    cell. The first copy of a row is that whose other coordinates are 0.

    Not covered: rows of a hot key that are equal in all columns. They have one hash, and stay together.
    """

    base: Layout
    hot: tuple[Hot, ...]  # by key

    replicates = True
    by_slots = False

    @cached_property
    def hot_keys(self) -> tuple[int, ...]:
        return tuple(each.key for each in self.hot)

    @cached_property
    def _keys(self) -> Array:
        return np.array(self.hot_keys, np.uint64)

    def slots(self, partition: int, partitions: int) -> Slots:
        return self.base.slots(partition, partitions)

    def holds(self, partition: int, partitions: int) -> Slots:
        owned = self.base.holds(partition, partitions).owned.copy()
        for each in self.hot:
            if partition in each.cells:
                owned[of_hashes(np.array([each.key], np.uint64))] = 1
        return Slots(owned)

    def divide(self, keys: Keys, partitions: int) -> Divided:
        plain, hashes = self.base.divide(keys, partitions), _common(keys)
        is_hot = np.isin(hashes, self._keys)
        if not is_hot.any():
            return plain
        assert plain.rows is None and not plain.besides, "there is one copy of each other row"
        cold = np.flatnonzero(~is_hot)
        targets, rows = [plain.targets[cold]], [cold]
        for each in self.hot:
            mine = np.flatnonzero(hashes == np.uint64(each.key))
            if mine.size:
                cells = np.moveaxis(each.places, keys.input, 0).reshape(each.shares[keys.input], -1)
                there = cells[coordinates(keys.row_hashes(mine), 0, each.shares[keys.input])]
                targets.append(there.reshape(-1).astype(np.int16))
                rows.append(np.repeat(mine, there.shape[1]))
        return Divided(np.concatenate(targets), np.concatenate(rows))

    def firsts(self, keys: Keys, partition: int, partitions: int) -> Array:
        out, hashes = np.ones(keys.count, np.bool_), _common(keys)
        for each in self.hot:
            if partition in each.cells:
                at = np.unravel_index(each.cells.index(partition), each.shares)
                if any(at[: keys.input]) or any(at[keys.input + 1 :]):
                    out[hashes == np.uint64(each.key)] = False
        return out

    def to_json(self) -> dict[str, Any]:
        hot = [[each.key, list(each.shares), list(each.cells)] for each in self.hot]
        return {"kind": "split", "base": self.base.to_json(), "hot": hot}

    def __str__(self) -> str:
        return f"{self.base}, {len(self.hot)} hot {'key' if len(self.hot) == 1 else 'keys'}"


def _common(keys: Keys) -> Array:
    hashes = keys.hashes()
    assert hashes is not None, "only a join with a key common to all inputs has partitions"
    return hashes


@dataclass(frozen=True)
class Cube:
    """Each partition is a cell, with a coordinate for some key classes. A row is in all cells that agree with its keys.

    Inputs need not have a key in common: an input without a key class has copies along that axis. A combination has one
    key of each class, and so one cell; a row of it is there because its own keys agree. Each input has all keys that
    it has, or the row can be in no result (engine.exchange).

    The first copy of a row is that whose coordinates of classes which its input does not have are 0. So all rows of an
    input in a cell are first copies, or none are.

    A coordinate is a function of all bits of the key's hash and of the class: rows of a cell spread over buckets and
    indexes as rows of all do, and two keys of a row that are equal do not put it on a diagonal. It is part of the
    state's format.
    """

    shares: tuple[tuple[int, int], ...]  # (key class, share) by class

    replicates = True
    by_slots = False
    hot_keys = ()

    @cached_property
    def cells(self) -> int:
        return prod(share for _, share in self.shares)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        """What a step along each axis adds to the number of a cell."""
        return tuple(prod(share for _, share in self.shares[axis + 1 :]) for axis in range(len(self.shares)))

    def slots(self, partition: int, partitions: int) -> Slots:
        return EVEN.slots(partition, partitions)

    def holds(self, partition: int, partitions: int) -> Slots:
        return ALL_SLOTS  # of whichever key: rows are not divided by one

    def divide(self, keys: Keys, partitions: int) -> Divided:
        assert partitions == self.cells, "each partition is a cell"
        first, others = np.zeros(keys.count, np.int64), list[range]()
        for (key_class, share), stride in zip(self.shares, self._strides, strict=True):
            hashes = keys.hashes(key_class)
            if hashes is None:
                others.append(range(0, share * stride, stride))
            else:
                first += stride * coordinates(hashes, key_class, share)
        copies = sorted(map(sum, product(*others)))
        return Divided(first.astype(np.int16), besides=tuple(copies[1:]))

    def firsts(self, keys: Keys, partition: int, partitions: int) -> Array:
        at = [partition // stride % share for (_, share), stride in zip(self.shares, self._strides, strict=True)]
        there = all(not c or keys.has(key_class) for (key_class, _), c in zip(self.shares, at, strict=True))
        return np.full(keys.count, there)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "cube", "shares": [list(each) for each in self.shares]}

    def __str__(self) -> str:
        return f"cube({', '.join(f'k{key_class + 1}={share}' for key_class, share in self.shares)})"


def coordinates(hashes: Array, key_class: int, share: int) -> Array:
    """The coordinates of some keys of a class along its axis: splitmix64's last steps, and then the upper half."""
    mixed = hashes + np.uint64((_GOLDEN * (key_class + 1)) & _WORD)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    out: Array = ((mixed >> np.uint64(32)) * np.uint64(share) >> np.uint64(32)).astype(np.int64)
    return out


_GOLDEN, _WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1


def read_layout(body: Mapping[str, Any]) -> Layout:
    """A layout as it is in a plan."""
    if body["kind"] == "even":
        return Even(body.get("gaveUp", False))
    if body["kind"] == "assigned":
        return Assigned(zlib.decompress(b64decode(body["targets"])))
    if body["kind"] == "ranges":
        return Ranges(tuple(body["ends"]))
    if body["kind"] == "split":
        hot = (Hot(key, tuple(shares), tuple(cells)) for key, shares, cells in body["hot"])
        return Split(read_layout(body["base"]), tuple(hot))
    if body["kind"] == "cube":
        return Cube(tuple((key_class, share) for key_class, share in body["shares"]))
    raise ValueError(f"no layout is called {body['kind']}")
