"""How many bytes the rows of an input have when they are sent, about: by the types of their columns."""

from __future__ import annotations

import pyarrow as pa

from spark_mjoin.model import InputSpec, JoinSpec

VARIABLE_BYTES = 20.0  # of a string or another value without a fixed width, with its offset: as Spark's planner has it


def sent_width(spec: JoinSpec, input: InputSpec) -> float:
    """Bytes of a row of an input, as it is sent."""
    schema = spec.sources[input.source].schema
    return sum(width(schema.field(name).type) for name in input.columns)


def width(type: pa.DataType) -> float:
    """The bytes of a value, about."""
    if pa.types.is_boolean(type):
        return 1 / 8
    if pa.types.is_struct(type):
        return sum(width(type.field(i).type) for i in range(type.num_fields))
    try:
        return float(type.bit_width / 8)
    except ValueError:
        return VARIABLE_BYTES
