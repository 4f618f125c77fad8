"""Sets of keys: which rows a promise is about, which were purged, which were announced.

    words   keys of one 64-bit word: disjoint ranges in ascending order, of which a single key is the shortest
    bytes   all other keys, and keys of several classes taken together: values, and ranges as they come

Words of one domain differ exactly and have nothing between two neighbours, so 3, 4, 5 is the range 3..5, and
what was said about many keys one by one stays short. Doubles are turned so that their words have the order of their
values (`ordered`). Keys of several classes are written one behind the other, each with its length, so that different
keys are different bytes.

All of it is exact: a set is never larger than what was put into it. Sets that stay, and know the age of what is in
them, are in `remembered`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.model import Array, KeyDomain

Keys = Any  # an array of words (int64), or a pyarrow array of large_binary
FIRST, LAST = -(2**63), 2**63 - 1
_BYTES = pa.large_binary()
Ends = tuple[bytes | None, bytes | None]  # of a range of byte strings


# --- keys ----------------------------------------------------------------------------------------------------------


def keys_of(array: pa.Array, domain: KeyDomain) -> Keys:
    """Encoded keys (mjoin.keys), none of them NULL, as words in their order, or as bytes."""
    if not domain.is_word:
        return array.cast(_BYTES)
    words = np.frombuffer(array.buffers()[1] or b"", np.int64, offset=8 * array.offset, count=len(array))
    return ordered(words, domain)


def ordered(words: Array, domain: KeyDomain) -> Array:
    """Words in the order of their values; its own inverse."""
    if domain.kind != "double":
        return words
    out: Array = words ^ ((words >> np.int64(63)) & np.int64(LAST))
    return out


def together(keys: Sequence[Keys]) -> Keys:
    """The keys of several classes as one."""
    if len(keys) == 1:
        return keys[0]
    parts = []
    for of in keys:
        if isinstance(of, np.ndarray):
            parts.append(_fixed(of))
        else:
            lengths = pc.binary_length(of).to_numpy(zero_copy_only=False).astype(np.int64)
            parts += [_fixed(lengths), of]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BYTES))


def apart(domains: Sequence[KeyDomain], keys: pa.Array) -> list[Keys]:
    """The keys of each of several classes, with such domains, from keys of all of them `together`."""
    out: list[list[int | bytes]] = [[] for _ in domains]
    for key in keys.to_pylist():
        at = 0
        for found, domain in zip(out, domains, strict=True):
            word = int.from_bytes(key[at : at + 8], "little", signed=True)
            at += 8
            if domain.is_word:
                found.append(word)
            else:
                found.append(key[at : at + word])
                at += word
    return [
        np.array(found, np.int64) if domain.is_word else pa.array(found, _BYTES)
        for found, domain in zip(out, domains, strict=True)
    ]


def _fixed(words: Array) -> pa.Array:
    raw = np.ascontiguousarray(words, np.int64)
    return pa.Array.from_buffers(pa.binary(8), raw.size, [None, pa.py_buffer(raw)]).cast(_BYTES)


def size(keys: Keys) -> int:
    return int(keys.size) if isinstance(keys, np.ndarray) else len(keys)


def chosen(keys: Keys, mask: Array) -> Keys:
    """Those keys for which the mask is true."""
    return keys[mask] if isinstance(keys, np.ndarray) else keys.filter(pa.array(mask))


def joined(parts: Sequence[Keys]) -> Keys:
    """Keys one after the other; there must be a first."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return pa.concat_arrays(parts)


def among(keys: Keys, others: Keys) -> Array:
    """Which keys are among the others."""
    if isinstance(keys, np.ndarray):
        return np.isin(keys, others)
    found: Array = pc.is_in(keys, value_set=others).to_numpy(zero_copy_only=False)
    return found


def distinct(keys: Keys) -> Keys:
    return np.unique(keys) if isinstance(keys, np.ndarray) else _sorted(keys)


def _sorted(values: pa.Array) -> pa.Array:
    values = values.unique()
    return values.take(pc.sort_indices(values))


# --- sets ----------------------------------------------------------------------------------------------------------


class WordSet:
    """Words, as the ends of ranges that neither meet nor touch."""

    def __init__(self, lows: Array | None = None, highs: Array | None = None) -> None:
        self.lows = np.empty(0, np.int64) if lows is None else lows
        self.highs = np.empty(0, np.int64) if highs is None else highs

    def __bool__(self) -> bool:
        return bool(self.lows.size)

    @property
    def entries(self) -> int:
        return int(self.lows.size)

    @property
    def is_all(self) -> bool:
        """Whether every word is in it."""
        return self.lows.size == 1 and int(self.lows[0]) == FIRST and int(self.highs[0]) == LAST

    def add(self, keys: Array) -> None:
        self._unite(keys, keys)

    def add_range(self, low: int | None, high: int | None) -> None:
        low, high = FIRST if low is None else low, LAST if high is None else high
        if low <= high:
            self._unite(np.array([low], np.int64), np.array([high], np.int64))

    def _unite(self, lows: Array, highs: Array) -> None:
        lows, highs = np.concatenate([self.lows, lows]), np.concatenate([self.highs, highs])
        if not lows.size:
            return
        order = np.argsort(lows, kind="stable")
        lows, reach = lows[order], np.maximum.accumulate(highs[order])
        apart = (lows[1:] > reach[:-1]) & (lows[1:] - 1 != reach[:-1])  # where > holds, - 1 does not overflow
        starts = np.concatenate([[True], apart])
        self.lows, self.highs = lows[starts], reach[np.concatenate([apart, [True]])]

    def contains(self, keys: Array) -> Array:
        if not self.lows.size:
            return np.zeros(keys.size, np.bool_)
        at = np.searchsorted(self.lows, keys, side="right") - 1
        out: Array = (at >= 0) & (keys <= self.highs[np.maximum(at, 0)])
        return out

    def minus(self, other: WordSet) -> WordSet:
        lows, highs, _ = self.pieces(other)
        return WordSet(lows, highs)

    def pieces(self, other: WordSet) -> tuple[Array, Array, Array]:
        """What another set leaves of the ranges: their ends, and of which range each is."""
        if not (self and other):
            return self.lows, self.highs, np.arange(self.lows.size)
        first = np.searchsorted(other.highs, self.lows)  # the first of the others that reaches into a range
        behind = np.searchsorted(other.lows, self.highs, side="right")
        pieces = np.maximum(behind - first, 0) + 1
        own = np.repeat(np.arange(self.lows.size), pieces)
        at = np.arange(own.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # number of the piece in its range
        left, right = first[own] + at - 1, first[own] + at
        is_first, is_last = at == 0, at == pieces[own] - 1
        left_high = other.highs[np.clip(left, 0, other.highs.size - 1)]
        right_low = other.lows[np.clip(right, 0, other.lows.size - 1)]
        there = (is_first | (left_high < LAST)) & (is_last | (right_low > FIRST))
        lows = np.where(is_first, self.lows[own], np.minimum(left_high, LAST - 1) + 1)
        highs = np.where(is_last, self.highs[own], np.maximum(right_low, FIRST + 1) - 1)
        there &= lows <= highs
        return lows[there], highs[there], own[there]

    def common(self, other: WordSet) -> WordSet:
        return self.minus(self.minus(other))

    def single(self) -> Array:
        """Which ranges are a single key."""
        out: Array = self.lows == self.highs
        return out

    def each(self) -> Array:
        """All keys, one by one: for sets that were made of such."""
        counts = self.highs - self.lows + 1
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        out: Array = np.repeat(self.lows, counts) + (np.arange(int(counts.sum())) - starts)
        return out

    @staticmethod
    def of(keys: Array) -> WordSet:
        out = WordSet()
        out.add(keys)
        return out


class ByteSet:
    """Byte strings: distinct values, and ranges, whose ends belong to them; None is open."""

    def __init__(self, values: pa.Array | None = None, ranges: Sequence[Ends] = ()) -> None:
        self._values = pa.nulls(0, _BYTES) if values is None else values
        self.ranges = in_order(ranges)

    @property
    def values(self) -> pa.Array:
        return self._values

    def __bool__(self) -> bool:
        return self.entries > 0

    @property
    def entries(self) -> int:
        return len(self.values) + len(self.ranges)

    @property
    def is_all(self) -> bool:
        """Whether every string is in it."""
        return self.ranges == [(None, None)]

    def add(self, keys: pa.Array) -> None:
        self._values = _sorted(pa.concat_arrays([self.values, keys]))

    def add_range(self, low: bytes | None, high: bytes | None) -> None:
        """Ranges that meet become one; they do not touch, since there is always something between two strings."""
        if low is not None and high is not None and low > high:
            return
        merged, rest = self._merged(low, high)
        self.ranges = in_order([*rest, merged])
        self._values = self.values.filter(pa.array(~self.in_ranges(self.values)))

    def _merged(self, low: bytes | None, high: bytes | None) -> tuple[Ends, list[Ends]]:
        """A range with all that it meets, and the ranges that it does not meet."""
        low, rest = low or None, list[Ends]()  # nothing is before the empty string
        for a, b in self.ranges:
            if (b is None or low is None or b >= low) and (a is None or high is None or a <= high):
                low = None if low is None or a is None else min(low, a)
                high = None if high is None or b is None else max(high, b)
            else:
                rest.append((a, b))
        return (low, high), rest

    def in_ranges(self, keys: pa.Array) -> Array:
        out = np.zeros(len(keys), np.bool_)
        for low, high in self.ranges:
            inside = np.ones(len(keys), np.bool_)
            if low is not None:
                inside &= pc.greater_equal(keys, pa.scalar(low, _BYTES)).to_numpy(zero_copy_only=False)
            if high is not None:
                inside &= pc.less_equal(keys, pa.scalar(high, _BYTES)).to_numpy(zero_copy_only=False)
            out |= inside
        return out

    def contains(self, keys: pa.Array) -> Array:
        out = among(keys, self.values) if len(self.values) else np.zeros(len(keys), np.bool_)
        return out | self.in_ranges(keys) if self.ranges else out

    def minus(self, other: ByteSet) -> ByteSet:
        """Ranges stay whole unless a range of the other set has all of them."""
        values = self.values.filter(pa.array(~other.contains(self.values)))
        return ByteSet(values, [r for r in self.ranges if not other.covers(r)])

    def covers(self, range: Ends) -> bool:
        """Whether one of the ranges has all of another."""
        at = bisect_right(self.ranges, range[0] or b"", key=lambda r: r[0] or b"") - 1
        if at < 0:
            return False
        end = self.ranges[at][1]
        return end is None or (range[1] is not None and range[1] <= end)

    def common(self, other: ByteSet) -> ByteSet:
        mine = self.values.filter(pa.array(other.contains(self.values)))
        if not self.ranges:
            return ByteSet(mine)
        theirs = other.values.filter(pa.array(self.contains(other.values)))
        ranges = _overlaps(self.ranges, other.ranges)
        single = pa.array([low for low, high in ranges if low is not None and low == high], _BYTES)
        values = _sorted(pa.concat_arrays([mine, theirs, single]))
        return ByteSet(values, [(low, high) for low, high in ranges if low is None or low != high])

    @staticmethod
    def of(keys: pa.Array) -> ByteSet:
        return ByteSet(_sorted(keys))


def in_order(ranges: Iterable[Ends]) -> list[Ends]:
    """Ranges that do not meet, by where they begin."""
    return sorted(set(ranges), key=lambda r: (r[0] or b"", r[1] is None, r[1] or b""))


def _overlaps(one: Sequence[Ends], other: Sequence[Ends]) -> list[Ends]:
    """Where ranges of two sets meet; those of a set do not meet each other, and are in order."""
    out: list[Ends] = []
    i = j = 0
    while i < len(one) and j < len(other):
        (a, b), (c, d) = one[i], other[j]
        low = a if c is None else c if a is None else max(a, c)
        high = b if d is None else d if b is None else min(b, d)
        if low is None or high is None or low <= high:
            out.append((low, high))
        if high == b:
            i += 1
        if high == d:
            j += 1
    return out


KeySet = WordSet | ByteSet


def empty_set(domains: Sequence[KeyDomain]) -> KeySet:
    """For keys of some classes taken together."""
    return WordSet() if len(domains) == 1 and domains[0].is_word else ByteSet()


def set_of(keys: Keys) -> KeySet:
    return WordSet.of(keys) if isinstance(keys, np.ndarray) else ByteSet.of(keys)
