"""Canonical Arrow schemas: the one Arrow type that stands for each Spark type, and DDL strings read into them.

Spark accepts Arrow batches from a Python source only in exactly these types, so columns are brought into them where
they enter (the sources) and stay in them. Time zones: Spark's TIMESTAMP is an instant and travels as UTC;
TIMESTAMP_NTZ has no zone.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.errors import OptionError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")

_SAME = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), pa.null(),
)  # fmt: skip
_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


def canonical_type(dtype: pa.DataType) -> pa.DataType:
    """The type that Spark expects for data of `dtype`; TypeError when Spark has none."""
    if dtype in _SAME:
        return dtype
    if dtype in _WIDENED:
        return _WIDENED[dtype]
    if pa.types.is_dictionary(dtype):
        return canonical_type(dtype.value_type)
    if pa.types.is_fixed_size_binary(dtype):
        return pa.binary()
    if pa.types.is_timestamp(dtype):
        return TIMESTAMP_NTZ if dtype.tz is None else TIMESTAMP
    if pa.types.is_duration(dtype):
        return pa.duration("us")
    if pa.types.is_time(dtype):
        return pa.time64("ns")
    if pa.types.is_decimal(dtype) and dtype.precision <= 38:
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in dtype.fields])
    if pa.types.is_map(dtype):
        key = pa.field("key", canonical_type(dtype.key_type), nullable=False)
        return pa.map_(key, pa.field("value", canonical_type(dtype.item_type)))
    if pa.types.is_list(dtype) or pa.types.is_large_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return pa.list_(pa.field("element", canonical_type(dtype.value_type)))
    raise TypeError(f"Spark has no type for Arrow's {dtype}")


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with every column nullable, in its canonical type, and without metadata."""
    return pa.schema([pa.field(f.name, canonical_type(f.type)) for f in schema])


def conform_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The array cast to a type; ArrowInvalid when a value does not fit."""
    if array.type.equals(dtype):
        return array
    if pa.types.is_dictionary(array.type):
        return conform_array(array.dictionary_decode(), dtype)
    if pa.types.is_timestamp(dtype) and pa.types.is_timestamp(array.type) and dtype.tz and not array.type.tz:
        array = pc.assume_timezone(array, "UTC")
    # Nanoseconds are cut to Spark's microseconds, as Spark does; every other loss is an error.
    cut = pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype)
    return pc.cast(array, options=pc.CastOptions(target_type=dtype, allow_time_truncate=cut))


def parse_ddl(ddl: str, option: str) -> pa.Schema:
    """A schema from DDL as Spark takes it: `id BIGINT, tags ARRAY<STRING>, at TIMESTAMP`."""
    import sqlglot

    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
        definitions = table.this.expressions
        fields = [_field(definition) for definition in definitions]
    except (sqlglot.errors.SqlglotError, AttributeError, KeyError, TypeError, ValueError) as e:
        raise OptionError(
            f"option '{option}': '{ddl}' is not a DDL schema such as 'id BIGINT, name STRING': {str(e).splitlines()[0]}"
        ) from e
    if not fields:
        raise OptionError(f"option '{option}': the schema has no columns")
    return pa.schema(fields)


def _field(definition: Any) -> pa.Field:
    """A column or a field of a struct; ValueError for anything beyond name, type, NOT NULL and COMMENT."""
    spelled = definition.sql(dialect="spark")
    if not definition.name or not definition.args.get("kind"):
        raise ValueError(f"'{spelled}' is not a name and a type; a name with a dot in it needs backticks")
    for constraint in definition.args.get("constraints") or ():
        if type(constraint.kind).__name__ not in ("NotNullColumnConstraint", "CommentColumnConstraint"):
            raise ValueError(f"'{spelled}': {constraint.sql(dialect='spark')} is not supported here; remove it")
    return pa.field(definition.name, arrow_type(definition.args["kind"]))


def arrow_type(kind: Any) -> pa.DataType:
    """The canonical Arrow type of a parsed SQL type (sqlglot's DataType)."""
    name = kind.this.value if hasattr(kind.this, "value") else str(kind.this)
    args = kind.expressions
    if kind.args.get("collate"):
        raise TypeError(f"type {kind.sql(dialect='spark')} is not supported: strings are compared by their bytes")
    if name in _SQL:
        return _SQL[name]
    if name == "DECIMAL":
        precision, scale, *more = [*(int(a.name) for a in args), 0] if args else [10, 0]
        if scale > precision or len(more) > 1:
            raise ValueError(f"{kind.sql(dialect='spark')} is no DECIMAL(digits, digits after the point)")
        return pa.decimal128(precision, scale)
    if name in ("ARRAY", "LIST"):
        return pa.list_(pa.field("element", arrow_type(args[0])))
    if name == "MAP":
        return pa.map_(pa.field("key", arrow_type(args[0]), nullable=False), pa.field("value", arrow_type(args[1])))
    if name == "STRUCT":
        return pa.struct([_field(a) for a in args])
    raise TypeError(f"type {kind.sql(dialect='spark')} is not supported")


_SQL = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP_NTZ,
    "TIME": pa.time64("ns"),
    "NULL": pa.null(),
}
