"""The values of files in the types of a schema: text parsed, and typed values widened, at every level of nesting.

Everything here is by column and looks at nothing but its arguments. A value that cannot be brought into its type is an
error of Arrow (or binascii.Error, for base64); nothing is lost silently, except that nanoseconds are cut to Spark's
microseconds.

Not covered: MAP from text, which no format here has.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.schema import conform_array


class ColumnError(Exception):
    """A value of a column that cannot be brought into the column's type."""

    def __init__(self, column: str, cause: str) -> None:
        super().__init__(cause)
        self.column = column


# --- names -----------------------------------------------------------------------------------------------------


def match(present: Sequence[str], columns: Sequence[str]) -> list[str | None]:
    """For each column the file's name of it; None where the file has none."""
    folded: dict[str, str] = {}
    for there in present:
        folded.setdefault(there.casefold(), there)
    matched = [name if name in present else folded.get(name.casefold()) for name in columns]
    for column, name in zip(columns, matched, strict=True):
        if name is not None and list(present).count(name) > 1:
            raise ColumnError(column, f"the file has more than one column '{name}'")
    return matched


# --- from text -------------------------------------------------------------------------------------------------

_ZONED = r"\d:\d{2}.*(?:[zZ]|[+-]\d{2}(?::?\d{2})?)$"


def text_type(dtype: pa.DataType) -> pa.DataType:
    """The type that JSON is parsed in before `from_text`: text for whatever JSON has no literal for."""
    if pa.types.is_temporal(dtype) or pa.types.is_binary(dtype):
        return pa.string()
    if pa.types.is_list(dtype):
        return pa.list_(pa.field(dtype.value_field.name, text_type(dtype.value_type)))
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, text_type(f.type)) for f in dtype.fields])
    return dtype


def from_text(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Values of `text_type(dtype)` as `dtype`."""
    if array.type.equals(dtype):
        return array
    if pa.types.is_list(dtype):
        values = from_text(array.values, dtype.value_type)
        return pa.Array.from_buffers(
            dtype, len(array), array.buffers()[:2], array.null_count, array.offset, children=[values]
        )
    if pa.types.is_struct(dtype):
        children = [from_text(array.field(i), f.type) for i, f in enumerate(dtype.fields)]
        return pa.StructArray.from_arrays(children, fields=list(dtype.fields), mask=array.is_null())
    if pa.types.is_timestamp(dtype):
        return _parse_timestamps(array, dtype)
    if pa.types.is_binary(dtype):
        decoded = [None if v is None else base64.b64decode(v, validate=True) for v in array.to_pylist()]
        return pa.array(decoded, pa.binary())
    return conform_array(array, dtype)


def _parse_timestamps(text: pa.Array, dtype: pa.DataType) -> pa.Array:
    fine = pc.match_substring_regex(text, r"\.\d{7}")
    if pc.any(fine).as_py():
        text = pc.replace_substring_regex(text, r"(\.\d{6})\d+", r"\1")
    if dtype.tz is None:
        return pc.cast(text, dtype)
    zoned = pc.match_substring_regex(text, _ZONED)
    if not pc.any(zoned).as_py():
        return pc.assume_timezone(pc.cast(text, pa.timestamp("us")), "UTC")
    if pc.all(zoned).as_py():
        return pc.cast(text, dtype)
    nothing = pa.scalar(None, pa.string())
    instants = pc.cast(pc.if_else(zoned, text, nothing), dtype)
    plain = pc.cast(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
    return pc.coalesce(instants, pc.assume_timezone(plain, "UTC"))


# --- from types ------------------------------------------------------------------------------------------------


def from_typed(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Values of a file that has types of its own as `dtype`.

    Level by level, and not by one cast of the whole: a cast finds the fields of a struct by exact name and fills in
    NULL where it finds none, so a field that differs in case would lose its values.
    """
    if array.type.equals(dtype):
        return array
    if pa.types.is_dictionary(array.type):
        return from_typed(array.dictionary_decode(), dtype)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), dtype)
    if _kind(array.type) != _kind(dtype):
        raise pa.ArrowTypeError(f"the file has {array.type} where the schema has {dtype}")
    if pa.types.is_struct(dtype) and dtype.num_fields:
        return _struct_from_typed(array, dtype)
    if pa.types.is_map(dtype):
        offsets, entries = _elements(array)
        keys, values = (from_typed(entries.field(i), t) for i, t in enumerate((dtype.key_type, dtype.item_type)))
        return pa.MapArray.from_arrays(offsets, keys, values, type=dtype, mask=array.is_null())
    if pa.types.is_list(dtype):
        offsets, values = _elements(array)
        return pa.ListArray.from_arrays(offsets, from_typed(values, dtype.value_type), dtype, mask=array.is_null())
    return conform_array(array, dtype)


def _struct_from_typed(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Fields by name, as columns are; one that the file lacks is NULL."""
    present, there = array.flatten(), [field.name for field in array.type.fields]
    children = [
        pa.nulls(len(array), field.type) if name is None else from_typed(present[there.index(name)], field.type)
        for name, field in zip(match(there, [f.name for f in dtype.fields]), dtype.fields, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(dtype.fields), mask=array.is_null())


def _elements(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The elements of all lists or maps one behind the other, without any that belong to a NULL, and their offsets."""
    if pa.types.is_map(array.type):  # to Arrow's functions no list, but laid out as one
        entries, shape = array.values, (len(array), array.buffers()[:2], array.null_count, array.offset)
        array = pa.Array.from_buffers(pa.list_(entries.type), *shape, children=[entries])
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    return offsets.cast(pa.int32()), array.flatten()


def _kind(dtype: pa.DataType) -> str:
    """Types of one kind are converted into each other where no value is lost."""
    if pa.types.is_dictionary(dtype):
        return _kind(dtype.value_type)
    kinds = {
        "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        "text": (
            pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary,
            pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary,
        ),
        "date": (pa.types.is_date,),
        "time": (pa.types.is_time,),
        "timestamp": (pa.types.is_timestamp,),
        "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_list_view),
    }  # fmt: skip
    return next((kind for kind, tests in kinds.items() if any(t(dtype) for t in tests)), f"type {dtype.id}")
