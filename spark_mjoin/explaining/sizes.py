"""How many bytes rows take in memory, before there are any: by the rules that tables account by (state.table).

Fixed-width values have a known size. The length of strings, binary and nested values has to be known or assumed; it is
looked up by alias and column, which is also the name of a column in an intermediate result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from spark_mjoin.mjoin.rendering import qualified
from spark_mjoin.model import InputSpec, StoredColumn
from spark_mjoin.state.columns import is_bytes, raw_dtype
from spark_mjoin.state.table import indexes_bytes

ASSUMED_BYTES = 16.0  # of a string or another value without a fixed width
_OFFSET_BYTES = 8

Widths = Mapping[tuple[bool, str], float]  # bytes of a value without a fixed width, by column (`known_as`)


def known_as(input: InputSpec, stored: StoredColumn) -> tuple[bool, str]:
    """A stored column, the same for an input and for results over it: whether its name is made up, and its name."""
    return stored.made_up, stored.name if input.joined else qualified(input.alias, stored.name)


def row_bytes(input: InputSpec, widths: Widths) -> float:
    """Bytes of a stored row, without indexes."""
    total = 0.0
    for stored in input.stored:
        raw = raw_dtype(stored.type)
        if raw is not None:
            total += np.dtype(raw).itemsize
            continue
        total += widths.get(known_as(input, stored), ASSUMED_BYTES) + (_OFFSET_BYTES if is_bytes(stored.type) else 0)
    return total


def state_bytes(input: InputSpec, rows: float, widths: Widths, partitions: int = 1) -> float:
    """Bytes of the table of an input, indexes included, spread evenly over partitions."""
    return rows * row_bytes(input, widths) + partitions * indexes_bytes(input, round(rows / partitions))


def assumed(input: InputSpec, widths: Widths) -> list[str]:
    """The stored columns whose length is not known."""
    return [
        stored.name
        for stored in input.stored
        if raw_dtype(stored.type) is None and known_as(input, stored) not in widths
    ]
