"""A hash of each row over all its columns, of any type: what tells rows apart, whatever order they come in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_mjoin import kernel
from spark_mjoin.model import Array
from spark_mjoin.state.columns import fixed_values, hash_array, is_bytes

_NULL = np.uint64(0x9E3779B97F4A7C15)


def row_hashes(rows: pa.RecordBatch) -> Array:
    """A 64-bit hash of each row, over all columns."""
    out = np.zeros(rows.num_rows, np.uint64)
    for column in rows.columns:
        kernel.combine_hashes(_hashes(column), kernel.ALL_BITS, out)
    return out


def _hashes(values: pa.Array) -> Array:
    """A hash of each value, of any type; NULL has one of its own."""
    hashes = _hashes_of_valid(values)
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _hashes_of_valid(values: pa.Array) -> Array:
    type, out = values.type, np.zeros(len(values), np.uint64)
    if pa.types.is_struct(type):
        for child in values.flatten():
            kernel.combine_hashes(_hashes(child), kernel.ALL_BITS, out)
    elif pa.types.is_list(type) or pa.types.is_map(type):
        out = _hashes_of_lists(values)
    elif is_bytes(type) or pa.types.is_large_string(type) or pa.types.is_large_binary(type):
        out = hash_array(values)
    elif not pa.types.is_null(type):
        for words in _words(values):
            more = np.empty(len(values), np.uint64)
            kernel.hash_words(words, kernel.ALL_BITS, more)
            kernel.combine_hashes(more, kernel.ALL_BITS, out)
    return out


def _words(values: pa.Array) -> list[Array]:
    """A value of fixed width as 64-bit words; what is below a NULL does not matter."""
    type = values.type
    if pa.types.is_boolean(type):
        return [values.cast(pa.int64()).fill_null(0).to_numpy()]
    if pa.types.is_decimal(type):
        words = np.frombuffer(values.buffers()[1] or b"", np.int64)
        some = words[2 * values.offset : 2 * (values.offset + len(values))]
        return [np.ascontiguousarray(some[half::2]) for half in (0, 1)]
    width = type.bit_width // 8
    return [fixed_values(values, np.dtype(f"i{width}")).astype(np.int64, copy=False)]


def _hashes_of_lists(values: pa.Array) -> Array:
    """Of a list by its values, each with its place, and how many there are."""
    offsets = values.offsets.to_numpy().astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    inner = values.values.slice(first, last - first)
    lengths = np.diff(offsets)
    places = np.arange(last - first) - np.repeat(offsets[:-1] - first, lengths)
    each = np.empty(last - first, np.uint64)
    kernel.hash_words(places, kernel.ALL_BITS, each)
    kernel.combine_hashes(_hashes(inner), kernel.ALL_BITS, each)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(each, dtype=np.uint64)])
    out: Array = sums[offsets[1:] - first] - sums[offsets[:-1] - first]
    more = np.empty(len(values), np.uint64)
    kernel.hash_words(lengths, kernel.ALL_BITS, more)
    kernel.combine_hashes(more, kernel.ALL_BITS, out)
    return out
