"""The resident rows of one input, and the hash indexes over them.

Rows are numbered from 0 in the order of arrival; they move only when others are evicted or dropped (`keep`). An index
covers a set of key classes: the classes through which some probing order reaches this input. Indexes are made when they
are first asked for and brought up to date then, and are never persisted: rows are, and building an index takes a few
nanoseconds per row. A probe that scans (`mjoin.operator`) asks for no index, but for the key: words, or hashes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_mjoin import kernel
from spark_mjoin.errors import StateError
from spark_mjoin.model import Array, InputSpec
from spark_mjoin.state import buckets, columns
from spark_mjoin.state.arrivals import Arrivals
from spark_mjoin.state.columns import Buffer, BytesColumn, Column, FixedColumn, GatherTooLarge
from spark_mjoin.state.keysets import Keys, keys_of, together

MAX_ROWS = 2**31 - 1  # row numbers are 32-bit
ARRIVED = "arrived"  # the column of a segment that says how many events were before a row's arrival: no stored field
BUILD_ROWS = 1 << 16  # rows that go into an index at a time: their slots stay in the cache


KeyColumn = FixedColumn | BytesColumn


class Key:
    """A key of one or more columns as probes compare it.

    A key of one word is compared directly; any other is found by its stored 64-bit hash and verified afterwards.
    """

    def __init__(self, columns: tuple[KeyColumn, ...]) -> None:
        self.columns = columns
        self.mask = kernel.hash_mask()
        self._hashes = None if len(columns) == 1 and isinstance(columns[0], FixedColumn) else Buffer(np.uint64)
        self._hashed = 0  # rows

    @property
    def is_word(self) -> bool:
        return self._hashes is None

    def values(self, rows: int) -> Array:
        """What a probe compares, for so many rows at the least."""
        if self._hashes is None:
            column = self.columns[0]
            assert isinstance(column, FixedColumn)
            return column.values.array
        if self._hashed < rows:
            out = self._hashes.reserve(rows)
            hash_keys(self.columns, self._hashed, rows, self.mask, out[self._hashed : rows])
            self._hashed = rows
        return self._hashes.array

    def keep(self, mask: Array) -> None:
        """Forget the rows for which the mask is false."""
        if self._hashes is not None:
            kept = self._hashes.array[: self._hashed][mask[: self._hashed]]
            self._hashes, self._hashed = Buffer(np.uint64, contents=kept), kept.size

    def cut(self, rows: int) -> None:
        """Forget all rows but the first so many."""
        self._hashed = min(self._hashed, rows)


class HashIndex:
    """A chained hash index over a key (see kernel.fast for the structure)."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.rows = 0
        self.shift = 64
        self.head: Array = np.empty(0, np.int32)
        self.link = Buffer(np.int32)
        self._resize(1)

    def extend(self, rows: int) -> None:
        """Take in the rows that came since the last call."""
        start, self.rows = self.rows, rows
        if start == rows:
            return
        if rows > self.head.size:
            self._resize(rows)
            start = 0
        link, values = self.link.reserve(rows), self.key.values(rows)
        for low in range(start, rows, BUILD_ROWS):
            kernel.insert(self.slots(values[low : min(low + BUILD_ROWS, rows)]), low, self.head, link)

    def cut(self, rows: int) -> None:
        """Forget all rows but the first so many, which are older: a slot's head is what the first one gone links to."""
        if rows >= self.rows:
            return
        slots, first = np.unique(self.slots(self.key.values(self.rows)[rows : self.rows]), return_index=True)
        self.head[slots] = self.link.array[rows + first]
        self.rows = rows

    def slots(self, values: Array) -> Array:
        """The slots of some values of the key."""
        out = np.empty(values.size, np.uint32)
        if self.key.is_word:
            kernel.slot_words(values, self.key.mask, self.shift, out)
        else:
            kernel.slot_hashes(values, self.shift, out)
        return out

    def _resize(self, rows: int) -> None:
        bits = _slot_bits(rows)
        self.shift = 64 - bits
        self.head = np.full(1 << bits, -1, np.int32)


def _slot_bits(rows: int) -> int:
    """Of an index: room for twice the rows at the least, since short chains are worth four bytes a row."""
    return max(10, (rows - 1).bit_length() + 1)


MEAN_SLOTS = 3  # of an index, per row: between two, before it doubles, and four


def index_bytes(rows: int, hashed: bool) -> int:
    """Bytes of an index over so many rows: slots, links, and hashes where they are stored."""
    return (4 << _slot_bits(rows)) + rows * (12 if hashed else 4) if rows else 0


def indexes_bytes(spec: InputSpec, rows: int) -> int:
    """Bytes of all indexes that probes may ask for, over so many rows of an input."""
    hashed = [columns.is_bytes(spec.stored[ordinal].type) for _, ordinal in spec.keys]  # else the key is its own hash
    return sum(index_bytes(rows, each) for each in ([*hashed, True] if len(hashed) > 1 else hashed))


def steady_index_bytes(spec: InputSpec) -> int:
    """Bytes of all indexes per row, in the mean over numbers of rows: slots double, so with any one it is another.

    Whoever compares inputs by the memory of a row must not see a difference where an index has just doubled.
    """
    hashed = [columns.is_bytes(spec.stored[ordinal].type) for _, ordinal in spec.keys]
    every = [*hashed, True] if len(hashed) > 1 else hashed
    return sum(4 * MEAN_SLOTS + (12 if each else 4) for each in every)


def hash_keys(keys: tuple[KeyColumn, ...], start: int, end: int, mask: np.uint64, out: Array) -> None:
    """The hash of a key of one or more columns, for rows start..end-1."""
    for number, key in enumerate(keys):
        into = out if number == 0 else np.empty(end - start, np.uint64)
        if isinstance(key, FixedColumn):
            kernel.hash_words(key.values.array[start:end], mask, into)
        else:
            kernel.hash_bytes(key.offsets.array[start : end + 1], key.data.array, mask, into)
        if number:
            kernel.combine_hashes(into, mask, out)


class Table:
    """With `bucket_class` the table also knows of every row its bucket and how many events were before its arrival.

    No row has a byte for either: a bucket follows from the key, and arrivals are kept in runs (`arrivals`).
    """

    def __init__(self, spec: InputSpec, bucket_class: int | None = None) -> None:
        self.spec = spec
        self.rows = 0
        self.bucket_class = bucket_class
        self.arrivals = Arrivals()
        self.columns: list[Column] = [columns.create(stored.type) for stored in spec.stored]
        self._key_columns: dict[int, KeyColumn] = {}
        for key_class, ordinal in spec.keys:
            column = self.columns[ordinal]
            assert isinstance(column, FixedColumn | BytesColumn)
            self._key_columns[key_class] = column
        self._payload = {name: self.columns[ordinal] for name, ordinal in spec.payload}
        self._keys: dict[tuple[int, ...], Key] = {}
        self._indexes: dict[tuple[int, ...], HashIndex] = {}

    def append(self, arrays: list[pa.Array], arrived: Array | int = 0) -> tuple[int, int]:
        """Add rows, given as one array per stored column; returns the row numbers start, end.

        arrived is the number of events before the arrival of each row, or of all.
        """
        start, end = self.rows, self.rows + len(arrays[0])
        if end > MAX_ROWS:
            raise StateError(
                f"input '{self.spec.alias}' has more than {MAX_ROWS:,} rows in one partition; "
                "set option 'partitions' higher"
            )
        for column, array in zip(self.columns, arrays, strict=True):
            column.append(array, start)
        self.rows = end
        if self.bucket_class is not None:
            self.arrivals.append(arrived, end - start)
        return start, end

    @property
    def bucket_key(self) -> str:
        """The field of a segment by which rows fall into buckets."""
        assert self.bucket_class is not None
        return self.spec.stored[dict(self.spec.keys)[self.bucket_class]].field

    @property
    def buckets(self) -> Array:
        """The bucket of every row."""
        return self.buckets_between(0, self.rows)

    def buckets_between(self, start: int, end: int) -> Array:
        """The buckets of rows start..end-1."""
        assert self.bucket_class is not None
        hashes = self._bucket_hashes()
        if hashes is not None:
            return buckets.of_hashes(hashes[start:end])
        found = np.empty(end - start, np.uint64)
        hash_keys((self.column(self.bucket_class),), start, end, kernel.ALL_BITS, found)
        return buckets.of_hashes(found)

    def buckets_of(self, rows: Array) -> Array:
        """The buckets of some rows, given by their numbers."""
        assert self.bucket_class is not None
        column, hashes = self.column(self.bucket_class), self._bucket_hashes()
        if isinstance(column, FixedColumn):
            out = np.empty(rows.size, np.uint8)
            kernel.bucket_words(column.values.array, rows, buckets.BUCKET_SHIFT, buckets.BUCKETS - 1, out)
            return out
        return self.buckets[rows] if hashes is None else buckets.of_hashes(hashes[rows])

    def _bucket_hashes(self) -> Array | None:
        """The hashes by which rows fall into buckets, where probes need them stored: not of words, nor of few bits."""
        assert self.bucket_class is not None
        key = self.key((self.bucket_class,))
        return None if key.is_word or key.mask != kernel.ALL_BITS else key.values(self.rows)

    @property
    def arrived(self) -> Array:
        """For every row the number of events before its arrival."""
        return self.arrivals.between(0, self.rows)

    def position(self, ordinal: int) -> Array:
        """Of every row what a window is measured on: an event time or the number of the row in its input."""
        column = self.columns[ordinal]
        assert isinstance(column, FixedColumn)
        return column.values.array[: self.rows]

    def keep(self, mask: Array) -> None:
        """Forget the rows for which the mask is false; the others are numbered anew, in the same order."""
        self.arrivals.keep(mask)
        for column in self.columns:
            column.keep(mask)
        for key in self._keys.values():
            key.keep(mask)
        self.rows = int(mask.sum())
        self._indexes = {}

    def keep_of_last(self, start: int, mask: Array) -> None:
        """The same among the rows from number `start` on; those before stay where they are, and so do indexes."""
        kept, at = list[pa.RecordBatch](), 0
        for piece in self.pieces(start, self.rows, max(self.rows, 1)):
            kept.append(piece.filter(pa.array(mask[at : at + piece.num_rows])))
            at += piece.num_rows
        for index in self._indexes.values():
            index.cut(start)
        for key in self._keys.values():
            key.cut(start)
        for column in self.columns:
            column.cut(start)
        self.arrivals.cut(start)
        self.rows = start
        for piece in kept:
            self.append(piece.columns[:-1], piece.column(ARRIVED).to_numpy())

    def put_in_order(self) -> None:
        """Number the rows in order of arrival. Only one column at a time is in memory twice."""
        if self.arrivals.in_order:
            return
        arrived = self.arrived
        order = np.argsort(arrived, kind="stable").astype(np.int32)
        first = int(np.argmax(order != np.arange(order.size)))
        for index in self._indexes.values():
            index.cut(first)
        for key in self._keys.values():
            key.cut(first)
        for column, stored in zip(self.columns, self.spec.stored, strict=True):
            parts, at = list(_gathered(column, order[first:], stored.type)), first
            column.cut(first)
            for part in parts:
                column.append(part, at)
                at += len(part)
        self.arrivals = Arrivals()
        self.arrivals.append(arrived[order], order.size)

    def joint_keys(self) -> Keys:
        """The keys of all classes of every row, as one (see keysets)."""
        stored = [(self.columns[ordinal], self.spec.stored[ordinal].domain) for _, ordinal in self.spec.keys]
        return together(
            [keys_of(column.arrow(0, self.rows), domain) for column, domain in stored if domain is not None]
        )

    def column(self, key_class: int) -> KeyColumn:
        """The column of one key class."""
        return self._key_columns[key_class]

    def key(self, key_classes: tuple[int, ...]) -> Key:
        """The key over these key classes."""
        if key_classes not in self._keys:
            self._keys[key_classes] = Key(tuple(self._key_columns[c] for c in key_classes))
        return self._keys[key_classes]

    def index(self, key_classes: tuple[int, ...]) -> HashIndex:
        """The index over these key classes, up to date."""
        index = self._indexes.get(key_classes)
        if index is None:
            index = self._indexes[key_classes] = HashIndex(self.key(key_classes))
        index.extend(self.rows)
        return index

    def gather(self, column: str, rows: Array, dtype: pa.DataType) -> pa.Array:
        """The values of a payload column for some rows."""
        return self._payload[column].gather(rows, dtype)

    def arrow(self, start: int, end: int) -> pa.RecordBatch:
        """Rows start..end-1 as stored, for a segment; GatherTooLarge where nested values are too many for one batch."""
        arrays = [column.arrow(start, end) for column in self.columns]
        tracked = self.bucket_class is not None
        arrived = self.arrivals.between(start, end) if tracked else np.zeros(end - start, np.int32)
        names = [stored.field for stored in self.spec.stored]
        return pa.RecordBatch.from_arrays([*arrays, pa.array(arrived)], names=[*names, ARRIVED])

    def pieces(self, start: int, end: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """The same in batches of at most so many rows, and of fewer where nested values are large."""
        for low in range(start, end, most_rows):
            high = min(low + most_rows, end)
            try:
                yield self.arrow(low, high)
            except GatherTooLarge:
                yield from self.pieces(low, high, (high - low + 1) // 2)

    def nbytes(self) -> int:
        """Accounted bytes: rows, and the indexes that they may need. A function of the rows alone.

        Indexes are counted whether they are there yet or not: a state that was just loaded has none, and must take the
        same decisions as one that was not.
        """
        return self._rows_bytes() + indexes_bytes(self.spec, self.rows)

    def _rows_bytes(self) -> int:
        return sum(column.nbytes(self.rows) for column in self.columns)

    def steady_bytes(self) -> int:
        """As nbytes, with indexes of the mean size: in proportion to the rows, without the jumps of an index."""
        return self._rows_bytes() + steady_index_bytes(self.spec) * self.rows

    def row_bytes(self) -> float:
        """The mean of a row, without indexes; 0 where there is none."""
        return self._rows_bytes() / self.rows if self.rows else 0.0


def _gathered(column: Column, rows: Array, dtype: pa.DataType) -> Iterator[pa.Array]:
    """The values of some rows, in as many arrays as it takes."""
    try:
        yield column.gather(rows, dtype)
    except GatherTooLarge:
        middle = rows.size // 2
        yield from _gathered(column, rows[:middle], dtype)
        yield from _gathered(column, rows[middle:], dtype)
