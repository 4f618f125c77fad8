"""Sets of keys that stay and know how old each of their entries is: the oldest are forgotten first.

    words   ranges, as in `keysets`; a range that grows is as young as what it was last extended by
    bytes   values in order of their age, in one flat buffer with an index over their hashes; and a few ranges

    add 1,000 keys ──hash──> index ──> those that are not there yet ──> [ bytes ...... | room ]  numbers, hashes, links

To look up or to add a key costs the same however many there are. A value that goes is marked, and values move together
once an eighth are: until then the index stays as it is.

What is in a set, its order and its ages are a function of what was put in and taken out. So a set that was written and
read again (`entries_since`, `take`) is the one that was left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spark_mjoin import kernel
from spark_mjoin.model import Array, KeyDomain
from spark_mjoin.state.columns import Buffer, BytesColumn, bytes_parts
from spark_mjoin.state.keysets import ByteSet, Ends, KeySet, WordSet, in_order
from spark_mjoin.state.table import HashIndex, Key, index_bytes

WORD_BYTES = 24  # of a range of words: its ends and its number
VALUE_BYTES = 17  # of a value, besides its bytes and the index: where it ends, its number, whether it is there
INDEXED_BYTES = 12  # of a value, at the least: its hash and its link
RANGE_BYTES = 200  # of a range of byte strings, besides its ends: objects of Python
DEAD = 8  # values for each that is gone and takes room

LATEST = 2**63 - 1  # a number that nothing has yet
VALUES, RANGES = 0, 1
Written = tuple[int, pa.Array, Array]  # VALUES or RANGES, as byte strings, with their numbers


class RememberedWords(WordSet):
    """With a number for each range; larger is younger."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.empty(0, np.int64)

    def add(self, keys: Array, number: int = 0) -> None:
        self.unite(WordSet.of(keys), number)

    def add_range(self, low: int | None, high: int | None, number: int = 0) -> None:
        added = WordSet()
        added.add_range(low, high)
        self.unite(added, number)

    def unite(self, added: KeySet, numbers: Array | int) -> None:
        """Add what is in another set. What is there already says nothing new, and makes nothing younger."""
        assert isinstance(added, WordSet)
        lows, highs, numbers = added.lows, added.highs, np.broadcast_to(numbers, added.lows.shape)
        if self:
            at = np.searchsorted(self.lows, lows, side="right") - 1
            new = (at < 0) | (highs > self.highs[np.maximum(at, 0)])
            lows, highs, numbers = lows[new], highs[new], numbers[new]
        self._merge(lows, highs, numbers)

    def _merge(self, lows: Array, highs: Array, numbers: Array) -> None:
        """Add ranges; each that they touch becomes one with them, as young as the youngest."""
        if not lows.size:
            return
        lows, highs = np.concatenate([self.lows, lows]), np.concatenate([self.highs, highs])
        order = np.argsort(lows, kind="stable")
        numbers = np.concatenate([self.numbers, numbers])[order]
        lows, reach = lows[order], np.maximum.accumulate(highs[order])
        apart = (lows[1:] > reach[:-1]) & (lows[1:] - 1 != reach[:-1])  # as in WordSet
        starts = np.flatnonzero(np.concatenate([[True], apart]))
        self.lows, self.highs = lows[starts], reach[np.concatenate([apart, [True]])]
        self.numbers = np.maximum.reduceat(numbers, starts)

    def discard(self, keys: KeySet, since: int = 0) -> KeySet:
        """Take keys out; returns those that were there: a range may be younger than its keys, whatever `since` says."""
        assert isinstance(keys, WordSet)
        gone = self.common(keys)
        if gone:
            self.lows, self.highs, own = self.pieces(keys)
            self.numbers = self.numbers[own]
        return gone

    def drop(self, marked: Array, since: int = 0) -> KeySet:
        """Take out entries, marked in the order of `ages`; returns their keys."""
        gone = WordSet(self.lows[marked], self.highs[marked])
        self.lows, self.highs, self.numbers = self.lows[~marked], self.highs[~marked], self.numbers[~marked]
        return gone

    def ages(self) -> tuple[Array, Array]:
        """The number of every entry, and the bytes that go with it, at the least."""
        return self.numbers, np.full(self.numbers.size, WORD_BYTES, np.int64)

    def nbytes(self) -> int:
        return WORD_BYTES * self.entries

    def entries_since(self, number: int) -> list[Written]:
        """Entries that are not older than a number, to be written."""
        young = self.numbers >= number
        return [(RANGES, _encoded_words(self.lows[young], self.highs[young]), self.numbers[young])]

    def take(self, kind: int, keys: pa.Array, numbers: Array) -> None:
        """Entries as they were written: what is there of one already is older, and as young as the entry now."""
        ends = _decoded_words(keys)
        self._merge(ends[:, 0], ends[:, 1], numbers)


class RememberedBytes(ByteSet):
    """With a number for each value and range; larger is younger."""

    def __init__(self) -> None:
        self.ranges = []
        self._range_numbers: dict[Ends, int] = {}
        self._column = BytesColumn(pa.binary())
        self._key = Key((self._column,))
        self._index = HashIndex(self._key)
        self._numbers, self._alive = Buffer(np.int64), Buffer(np.bool_)
        self._rows = self._dead = 0
        self._bytes = 0  # of the values that are there

    @property
    def values(self) -> pa.Array:
        values = self._column.arrow(0, self._rows)
        return values.filter(pa.array(self._alive.array[: self._rows])) if self._dead else values

    @property
    def entries(self) -> int:
        return self._rows - self._dead + len(self.ranges)

    def contains(self, keys: pa.Array) -> Array:
        out: Array = self._find(keys) >= 0
        return out | self.in_ranges(keys) if self.ranges else out

    def _find(self, keys: pa.Array) -> Array:
        """For some keys the rows that have them; -1: none that is there."""
        rows = np.full(len(keys), -1, np.int32)
        if not self._rows or not rows.size:
            return rows
        offsets, data = bytes_parts(keys)
        offsets, data = offsets.astype(np.int64) - offsets[0], data[int(offsets[0]) : int(offsets[-1])]
        padded = np.empty(data.size + kernel.PADDING, np.uint8)
        padded[: data.size] = data
        hashes = np.empty(rows.size, np.uint64)
        kernel.hash_bytes(offsets, padded, self._key.mask, hashes)
        index, column = self._index, self._column
        index.extend(self._rows)
        known = self._key.values(self._rows)
        slots, head, link = index.slots(hashes), index.head, index.link.array
        kernel.find_bytes(
            hashes, slots, head, link, known, offsets, padded, column.offsets.array, column.data.array, rows
        )
        rows[(rows >= 0) & ~self._alive.array[rows]] = -1  # a key that comes again is found in its newest row
        return rows

    def add(self, keys: pa.Array, number: int = 0) -> None:
        keys = keys.unique()
        keys = keys.filter(pa.array(~self.contains(keys)))
        self._append(keys, number)

    def unite(self, added: KeySet, number: int) -> None:
        """Add what is in another set."""
        assert isinstance(added, ByteSet)
        self.add(added.values, number)
        for low, high in added.ranges:
            self.add_range(low, high, number)

    def _append(self, keys: pa.Array, numbers: Array | int) -> None:
        start, self._rows = self._rows, self._rows + len(keys)
        before = int(self._column.offsets.array[start])
        self._column.append(keys, start)
        self._bytes += int(self._column.offsets.array[self._rows]) - before
        self._numbers.reserve(self._rows)[start : self._rows] = numbers
        self._alive.reserve(self._rows)[start : self._rows] = True

    def add_range(self, low: bytes | None, high: bytes | None, number: int = 0) -> None:
        """It takes the place of what it meets: ranges, and values inside it."""
        if (low is not None and high is not None and low > high) or self.covers((low or None, high)):
            return
        merged, rest = self._merged(low, high)
        number = max([number, *(n for r, n in self._range_numbers.items() if r not in rest)])
        self._range_numbers = {r: self._range_numbers[r] for r in rest} | {merged: number}
        self.ranges = in_order(self._range_numbers)
        if self._rows:
            self._bury(self._there(ByteSet(None, [merged]).in_ranges))

    def discard(self, keys: KeySet, since: int = LATEST) -> KeySet:
        """Take keys out; returns those that were there, without single ones that have come since a number.

        Ranges go whole or not at all, as in ByteSet.minus.
        """
        assert isinstance(keys, ByteSet)
        rows = self._find(keys.values)
        rows = rows[rows >= 0]
        if keys.ranges:
            rows = np.union1d(rows, self._there(keys.in_ranges))
        return self._take_out(rows, [r for r in self.ranges if keys.covers(r)], since)

    def drop(self, marked: Array, since: int = LATEST) -> KeySet:
        """Take out entries, marked in the order of `ages`; returns their keys, as `discard` does."""
        ranges = [r for r, gone in zip(self.ranges, marked, strict=False) if gone]
        return self._take_out(self._living()[marked[len(self.ranges) :]], ranges, since)

    def _take_out(self, rows: Array, ranges: Sequence[Ends], since: int) -> KeySet:
        older = rows[self._numbers.array[rows] < since]
        gone = ByteSet(self._column.arrow(0, self._rows).take(pa.array(older)), ranges)
        for range in ranges:
            del self._range_numbers[range]
        self.ranges = in_order(self._range_numbers)
        self._bury(rows)
        return gone

    def _living(self) -> Array:
        return np.flatnonzero(self._alive.array[: self._rows]).astype(np.int32)

    def _there(self, inside: Callable[[pa.Array], Array]) -> Array:
        """The rows whose values are inside something."""
        return self._living()[inside(self.values)]

    def _bury(self, rows: Array) -> None:
        """Values of some rows go."""
        offsets = self._column.offsets.array
        self._bytes -= int((offsets[rows + 1] - offsets[rows]).sum())
        self._alive.array[rows] = False
        self._dead += rows.size
        if DEAD * self._dead > self._rows:
            stays = self._alive.array[: self._rows].copy()
            self._key.values(self._rows)
            self._key.keep(stays)
            self._column.keep(stays)
            self._numbers = Buffer(np.int64, contents=self._numbers.array[: self._rows][stays])
            self._rows, self._dead = self._rows - self._dead, 0
            self._alive = Buffer(np.bool_, contents=np.ones(self._rows, np.bool_))
            self._index = HashIndex(self._key)

    def ages(self) -> tuple[Array, Array]:
        """The number of every entry, and the bytes that go with it, at the least: ranges first."""
        rows, offsets = self._living(), self._column.offsets.array
        numbers = [self._range_numbers[r] for r in self.ranges]
        sizes = offsets[rows + 1] - offsets[rows] + (VALUE_BYTES + INDEXED_BYTES)
        return (
            np.concatenate([np.array(numbers, np.int64), self._numbers.array[rows]]),
            np.concatenate([np.array([_range_bytes(r) for r in self.ranges], np.int64), sizes]),
        )

    def nbytes(self) -> int:
        values = self._rows - self._dead
        return self._bytes + VALUE_BYTES * values + index_bytes(values, True) + sum(map(_range_bytes, self.ranges))

    def entries_since(self, number: int) -> list[Written]:
        """Entries that are not older than a number, to be written."""
        first = int(np.searchsorted(self._numbers.array[: self._rows], number))  # values are in order of their numbers
        alive, numbers = self._alive.array[first : self._rows], self._numbers.array[first : self._rows]
        young = [r for r in self.ranges if self._range_numbers[r] >= number]
        return [
            (VALUES, self._column.arrow(first, self._rows).filter(pa.array(alive)), numbers[alive]),
            (RANGES, _encoded_ranges(young), np.array([self._range_numbers[r] for r in young], np.int64)),
        ]

    def take(self, kind: int, keys: pa.Array, numbers: Array) -> None:
        """Entries as they were written: each once, and none that is there."""
        if kind == VALUES:
            self._append(keys, numbers)
            return
        for (low, high), number in zip(_decoded_ranges(keys), numbers.tolist(), strict=True):
            self.add_range(low, high, number)


Remembered = RememberedWords | RememberedBytes


def nothing(domains: Sequence[KeyDomain]) -> Remembered:
    """An empty set for keys of some classes taken together."""
    return RememberedWords() if len(domains) == 1 and domains[0].is_word else RememberedBytes()


def written(keys: KeySet) -> list[tuple[int, pa.Array]]:
    """Keys as byte strings, each with its kind; see `read`."""
    if isinstance(keys, WordSet):
        return [(RANGES, _encoded_words(keys.lows, keys.highs))]
    return [(VALUES, keys.values), (RANGES, _encoded_ranges(keys.ranges))]


def read(like: Remembered, kind: int, keys: pa.Array) -> KeySet:
    """The keys of some byte strings of one kind."""
    if isinstance(like, WordSet):
        out = WordSet()
        ends = _decoded_words(keys)
        out._unite(ends[:, 0], ends[:, 1])
        return out
    return ByteSet(keys) if kind == VALUES else ByteSet(None, _decoded_ranges(keys))


def _encoded_words(lows: Array, highs: Array) -> pa.Array:
    raw = np.ascontiguousarray(np.stack([lows, highs], axis=1), "<i8")
    return pa.Array.from_buffers(pa.binary(16), lows.size, [None, pa.py_buffer(raw)]).cast(pa.large_binary())


def _decoded_words(keys: pa.Array) -> Array:
    offsets, data = bytes_parts(keys)
    ends: Array = data[int(offsets[0]) : int(offsets[-1])].view("<i8").reshape(-1, 2)
    return ends


def _encoded_ranges(ranges: Sequence[Ends]) -> pa.Array:
    """Which ends there are, the length of the lower one, and both."""
    found = []
    for low, high in ranges:
        there = bytes([(low is not None) + 2 * (high is not None)])
        found.append(there + len(low or b"").to_bytes(8, "little") + (low or b"") + (high or b""))
    return pa.array(found, pa.large_binary())


def _decoded_ranges(keys: pa.Array) -> list[Ends]:
    out = list[Ends]()
    for key in keys.to_pylist():
        middle = 9 + int.from_bytes(key[1:9], "little")
        out.append((key[9:middle] if key[0] & 1 else None, key[middle:] if key[0] & 2 else None))
    return out


def _range_bytes(range: Ends) -> int:
    return RANGE_BYTES + sum(len(end) for end in range if end is not None)


def runs(kinds: Array) -> list[tuple[int, int]]:
    """Where runs of equal kinds begin and end."""
    cuts = np.flatnonzero(kinds[1:] != kinds[:-1]) + 1
    return list(pairwise([0, *cuts.tolist(), kinds.size])) if kinds.size else []
