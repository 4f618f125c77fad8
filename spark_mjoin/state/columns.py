"""Columns of resident rows: append-only, contiguous, addressed by row number.

    arriving Arrow array ──append──> [ values ........ | room ]      gather(rows, type) ──> Arrow array for the output
                                     [ validity ...... | room ]      arrow(start, end)  ──> Arrow array for a segment

A column never holds chunks: the kernels index one flat buffer. `FixedColumn` holds everything of fixed width as raw
integers of that width, `BytesColumn` strings and binary as 64-bit offsets and bytes, `ArrowColumn` nested types, which
no kernel touches, as Arrow chunks. Values leave in the type that the caller asks for: a key stored as a 64-bit word
comes back as the INT or DATE that it was.

Arrow's offsets have 32 bits. A column may hold more than they reach; what leaves it at once may not, and whoever asks
for too much gets an error (`GatherTooLarge`) and asks for fewer rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from spark_mjoin import kernel
from spark_mjoin.model import Array
from spark_mjoin.state.slots import Slots

MAX_GATHERED_BYTES = 256 << 20
MAX_STORED_BYTES = 1 << 30  # of a nested column in one record batch
KEEP_ROWS = 1 << 16  # rows that move together at a time when others are forgotten: little extra memory


class GatherTooLarge(Exception):
    """The values of the rows asked for have more bytes than may leave a column at once: ask for fewer rows."""


class Buffer:
    """A growable flat array; `room` elements are always readable behind the used ones.

    It doubles: numpy asks for huge pages where an array is large, and what is not written yet costs no memory.
    """

    __slots__ = ("array", "room")

    def __init__(self, dtype: Any, room: int = 0, contents: Array | None = None) -> None:
        self.room = room
        size = 0 if contents is None else contents.size
        self.array: Array = np.empty(max(size, 1024) + room, dtype)
        if contents is not None:
            self.array[:size] = contents

    def reserve(self, size: int) -> Array:
        """The array, with space for `size` elements; the old contents are kept."""
        if size + self.room > self.array.size:
            grown = np.empty(max(size, 2 * self.array.size) + self.room, self.array.dtype)
            grown[: self.array.size] = self.array
            self.array = grown
        return self.array


class Column(Protocol):
    def append(self, array: pa.Array, start: int) -> None:
        """Add the values of an arriving array as rows start, start + 1, ..."""

    def gather(self, rows: Array, dtype: pa.DataType) -> pa.Array:
        """The values of some rows."""

    def arrow(self, start: int, end: int) -> pa.Array:
        """Rows start..end-1 as they are stored; may share memory with the column. GatherTooLarge for nested types."""

    def keep(self, mask: Array) -> None:
        """Forget the rows for which the mask is false; the others move together."""

    def cut(self, rows: int) -> None:
        """Forget all rows but the first so many."""

    def nbytes(self, rows: int) -> int:
        """Bytes in use: a function of the rows that are there, not of how they came."""


def create(dtype: pa.DataType) -> Column:
    if raw_dtype(dtype) is not None:
        return FixedColumn(dtype)
    if is_bytes(dtype):
        return BytesColumn(dtype)
    return ArrowColumn(dtype)


def is_bytes(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_string(dtype) or pa.types.is_binary(dtype))


def raw_dtype(dtype: pa.DataType) -> Any | None:
    """The numpy type in which a fixed-width Arrow type is held; None for all others."""
    if pa.types.is_boolean(dtype):
        return np.uint8
    if pa.types.is_decimal128(dtype):
        return np.complex128  # sixteen bytes that the kernels only copy
    if pa.types.is_primitive(dtype):
        return {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}[dtype.bit_width]
    return None


class _Validity:
    """Which rows are not NULL: one byte per row, and nothing at all until the first NULL arrives."""

    def __init__(self) -> None:
        self.bytes: Buffer | None = None

    def append(self, array: pa.Array, start: int) -> None:
        if self.bytes is None:
            if array.null_count == 0:
                return
            self.bytes = Buffer(np.uint8)
            self.bytes.reserve(start)[:start] = 1
        flags = self.bytes.reserve(start + len(array))
        if array.null_count:
            flags[start : start + len(array)] = array.is_valid().cast(pa.uint8()).to_numpy()
        else:
            flags[start : start + len(array)] = 1

    def gather(self, rows: Array) -> pa.Buffer | None:
        if self.bytes is None:
            return None
        out = np.empty(rows.size, np.uint8)
        kernel.gather(self.bytes.array, rows, out)
        return _bitmap(out)

    def arrow(self, start: int, end: int) -> pa.Buffer | None:
        return None if self.bytes is None else _bitmap(self.bytes.array[start:end])

    def keep(self, mask: Array) -> None:
        if self.bytes is not None:
            kept = self.bytes.array[: mask.size][mask]
            self.bytes = None if kept.all() else Buffer(np.uint8, contents=kept)

    def cut(self, rows: int) -> None:
        if self.bytes is not None and self.bytes.array[:rows].all():
            self.bytes = None

    def nbytes(self, rows: int) -> int:
        return 0 if self.bytes is None else rows


class FixedColumn:
    def __init__(self, dtype: pa.DataType) -> None:
        self.type = dtype
        self.values = Buffer(raw_dtype(dtype))
        self._validity = _Validity()

    def append(self, array: pa.Array, start: int) -> None:
        self._validity.append(array, start)
        if pa.types.is_boolean(array.type):
            array = array.cast(pa.uint8())
        end = start + len(array)
        self.values.reserve(end)[start:end] = fixed_values(array, self.values.array.dtype)

    def gather(self, rows: Array, dtype: pa.DataType) -> pa.Array:
        out = np.empty(rows.size, raw_dtype(dtype))
        kernel.gather(self.values.array, rows, out)
        return _fixed(dtype, out, self._validity.gather(rows))

    def arrow(self, start: int, end: int) -> pa.Array:
        return _fixed(self.type, self.values.array[start:end], self._validity.arrow(start, end))

    def keep(self, mask: Array) -> None:
        self.values = Buffer(self.values.array.dtype, contents=self.values.array[: mask.size][mask])
        self._validity.keep(mask)

    def cut(self, rows: int) -> None:
        self._validity.cut(rows)

    def nbytes(self, rows: int) -> int:
        return rows * self.values.array.itemsize + self._validity.nbytes(rows)


class BytesColumn:
    """Strings and binary; `hashes` are kept by the indexes that need them, not here."""

    def __init__(self, dtype: pa.DataType) -> None:
        self.type = dtype
        self.offsets = Buffer(np.int64, room=1)
        self.offsets.array[0] = 0
        self.data = Buffer(np.uint8, room=kernel.PADDING)
        self._validity = _Validity()

    def append(self, array: pa.Array, start: int) -> None:
        self._validity.append(array, start)
        offsets, data = bytes_parts(array)
        base = int(self.offsets.array[start])
        low, high = int(offsets[0]), int(offsets[-1])
        self.data.reserve(base + high - low)[base : base + high - low] = data[low:high]
        kernel.append_offsets(offsets, base, start, self.offsets.reserve(start + len(array)))

    def gather(self, rows: Array, dtype: pa.DataType) -> pa.Array:
        offsets = np.empty(rows.size + 1, np.int32)
        total = kernel.gather_offsets(self.offsets.array, rows, offsets)
        if total > MAX_GATHERED_BYTES and rows.size > 1:
            raise GatherTooLarge
        if total > np.iinfo(np.int32).max:
            raise OverflowError(f"a single value of {total} bytes does not fit an Arrow {dtype}")
        out = np.empty(total + kernel.PADDING, np.uint8)
        kernel.gather_bytes(self.offsets.array, self.data.array, rows, offsets, out)
        buffers = [self._validity.gather(rows), pa.py_buffer(offsets), pa.py_buffer(out[:total])]
        return pa.Array.from_buffers(dtype, rows.size, buffers)

    def arrow(self, start: int, end: int) -> pa.Array:
        dtype = pa.large_string() if pa.types.is_string(self.type) else pa.large_binary()
        offsets = self.offsets.array[start : end + 1]
        low, high = int(offsets[0]), int(offsets[-1])
        buffers = [
            self._validity.arrow(start, end),
            pa.py_buffer(offsets - low),
            pa.py_buffer(self.data.array[low:high]),
        ]
        return pa.Array.from_buffers(dtype, end - start, buffers)

    def keep(self, mask: Array) -> None:
        kept, rows = BytesColumn(self.type), 0
        for low in range(0, mask.size, KEEP_ROWS):
            high = min(low + KEEP_ROWS, mask.size)
            part = self.arrow(low, high).filter(pa.array(mask[low:high]))
            kept.append(part, rows)
            rows += len(part)
        self.offsets, self.data, self._validity = kept.offsets, kept.data, kept._validity

    def cut(self, rows: int) -> None:
        self._validity.cut(rows)

    def nbytes(self, rows: int) -> int:
        return 8 * rows + int(self.offsets.array[rows]) + self._validity.nbytes(rows)


class ArrowColumn:
    """Nested types: payload that is only carried.

    Chunks grow as a binary counter does, up to MAX_GATHERED_BYTES: a row is copied a few times, and there are few. Rows
    are taken from the chunks that have them; Arrow itself would put all chunks together first.
    """

    def __init__(self, dtype: pa.DataType) -> None:
        self.type = dtype
        self._chunks: list[pa.Array] = []
        self._starts: list[int] = []  # the first row of each chunk
        self._bytes: list[int] = []  # of each chunk
        self._sizes = Buffer(np.uint32)  # bytes of each row, or the most that fits

    def append(self, array: pa.Array, start: int) -> None:
        if not len(array):
            return
        end = start + len(array)
        self._sizes.reserve(end)[start:end] = np.minimum(_nested_bytes(array), np.iinfo(np.uint32).max)
        self._chunks.append(array)
        self._starts.append(start)
        self._bytes.append(self._between(start, end))
        while len(self._chunks) > 1 and self._bytes[-2] <= self._bytes[-1] <= MAX_GATHERED_BYTES - self._bytes[-2]:
            self._chunks[-2:] = [pa.concat_arrays(self._chunks[-2:])]
            self._bytes[-2:] = [sum(self._bytes[-2:])]
            del self._starts[-1]

    def gather(self, rows: Array, dtype: pa.DataType) -> pa.Array:
        if rows.size > 1 and self._sizes.array[rows].sum(dtype=np.int64) > MAX_GATHERED_BYTES:
            raise GatherTooLarge
        if not rows.size:
            return pa.nulls(0, self.type)
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(rows))
        chunk = (np.searchsorted(self._starts, rows, "right") - 1).astype(np.uint16)  # which is sorted fast
        order = np.argsort(chunk, kind="stable")
        numbers, first = np.unique(chunk[order], return_index=True)
        parts = [
            self._chunks[number].take(pa.array(rows[of] - self._starts[number]))
            for number, of in zip(numbers, np.split(order, first[1:]), strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        back = np.empty(rows.size, np.int64)
        back[order] = np.arange(rows.size)
        return pa.concat_arrays(parts).take(pa.array(back))

    def arrow(self, start: int, end: int) -> pa.Array:
        if end - start > 1 and self._between(start, end) > MAX_STORED_BYTES:
            raise GatherTooLarge
        parts = [
            chunk.slice(max(start - low, 0), min(end - low, len(chunk)) - max(start - low, 0))
            for low, chunk in zip(self._starts, self._chunks, strict=True)
            if low < end and start < low + len(chunk)
        ]
        return pa.concat_arrays(parts) if parts else pa.nulls(0, self.type)

    def keep(self, mask: Array) -> None:
        kept, rows = ArrowColumn(self.type), 0
        for low, chunk in zip(self._starts, self._chunks, strict=True):
            part = chunk.filter(pa.array(mask[low : low + len(chunk)]))
            kept.append(part, rows)
            rows += len(part)
        self._chunks, self._starts, self._bytes, self._sizes = kept._chunks, kept._starts, kept._bytes, kept._sizes

    def cut(self, rows: int) -> None:
        while self._starts and self._starts[-1] >= rows:
            del self._chunks[-1], self._starts[-1], self._bytes[-1]
        if self._starts:
            self._chunks[-1] = self._chunks[-1].slice(0, rows - self._starts[-1])
            self._bytes[-1] = self._between(self._starts[-1], rows)

    def nbytes(self, rows: int) -> int:
        return sum(self._bytes)

    def _between(self, start: int, end: int) -> int:
        return int(self._sizes.array[start:end].sum(dtype=np.int64))


# --- Arrow arrays and flat buffers -------------------------------------------------------------------------------


def fixed_values(array: pa.Array, dtype: Any) -> Array:
    """The values of a fixed-width Arrow array, without a copy; what NULL slots hold is undefined."""
    return np.frombuffer(array.buffers()[1], dtype, offset=array.offset * np.dtype(dtype).itemsize, count=len(array))


def valid_rows(array: pa.Array) -> Array:
    """Per row whether it has a value."""
    out: Array = array.is_valid().to_numpy(zero_copy_only=False)
    return out


def bytes_parts(array: pa.Array) -> tuple[Array, Array]:
    """Offsets and bytes of a string or binary array, without a copy."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    if len(array) == 0 or offsets is None or offsets.size == 0:
        return np.zeros(1, np.int64 if large else np.int32), np.zeros(kernel.PADDING, np.uint8)
    dtype = np.dtype(np.int64 if large else np.int32)
    flat = np.frombuffer(offsets, dtype, offset=array.offset * dtype.itemsize, count=len(array) + 1)
    return flat, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)


def hash_array(key: pa.Array) -> Array:
    """The hashes of an Arrow array of encoded keys: 64-bit words, or strings and binary."""
    hashes = np.empty(len(key), np.uint64)
    if pa.types.is_int64(key.type):
        kernel.hash_words(fixed_values(key, np.int64), kernel.ALL_BITS, hashes)
        return hashes
    offsets, data = bytes_parts(key)
    low, high = int(offsets[0]), int(offsets[-1])
    padded = np.empty(high - low + kernel.PADDING, np.uint8)  # the kernel loads eight bytes at a time
    padded[: high - low] = data[low:high]
    kernel.hash_bytes(offsets - offsets[0], padded, kernel.ALL_BITS, hashes)
    return hashes


def rows_in(slots: Slots, key: pa.Array) -> Array:
    """The positions of those encoded keys that are in some slots."""
    hashes = hash_array(key)
    out = np.empty(hashes.size, np.int32)
    return out[: kernel.select_slots(hashes, slots.owned, out)]


def _nested_bytes(array: pa.Array) -> Array | int:
    """Bytes that each value of a nested array needs, however it was cut into pieces; one number where all are alike."""
    if isinstance(array, pa.ListArray | pa.MapArray | pa.LargeListArray):
        offsets = array.offsets.to_numpy().astype(np.int64)
        each = _nested_bytes(array.values.slice(offsets[0], offsets[-1] - offsets[0]))
        if isinstance(each, int):
            entries: Array = np.diff(offsets) * each
        else:
            entries = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(each)])[offsets - offsets[0]])
        return entries + 8
    if isinstance(array, pa.StructArray):
        total: Array | int = 1
        for child in array.flatten():
            total = total + _nested_bytes(child)
        return total
    if is_bytes(array.type):
        lengths: Array = np.diff(bytes_parts(array)[0]).astype(np.int64)
        return lengths + 8
    return max(1, (array.type.bit_width if pa.types.is_primitive(array.type) else 128) // 8)


def _fixed(dtype: pa.DataType, values: Array, validity: pa.Buffer | None) -> pa.Array:
    data = _bitmap(values) if pa.types.is_boolean(dtype) else pa.py_buffer(values)
    return pa.Array.from_buffers(dtype, values.size, [validity, data])


def _bitmap(flags: Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))
