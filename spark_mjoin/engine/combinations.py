"""What the stages of a pass find, on its way from one to the next: in memory where it is little, else on disk.

A row of combinations has the stored columns and the arrivals of all inputs that are bound, side by side, under names
that are made of the inputs' numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.fitting import PORTION, Division, in_one_batch, portion_rows, portions
from spark_mjoin.engine.stages import Stage
from spark_mjoin.engine.temporary import Spill
from spark_mjoin.mjoin.bound import Bound
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.columns import GatherTooLarge, hash_array
from spark_mjoin.state.table import Table


class Combinations(Protocol):
    """Rows of some inputs that are found together, for the next stage."""

    rows: int
    sieve: Array | None  # of their keys; None where all may be there

    def groups(self) -> Sequence[int | None]:
        """The groups that have any; only None where they are not divided."""

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        """Those of a group, in portions: a row has the stored columns and the arrivals of all inputs side by side."""


@dataclass
class _Few:
    """Combinations that are in memory."""

    batches: list[pa.RecordBatch]
    sieve: Array | None

    def __post_init__(self) -> None:
        self.rows = sum(batch.num_rows for batch in self.batches)

    def groups(self) -> Sequence[int | None]:
        return [None] if self.rows else []

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        yield from self.batches


@dataclass
class _Spilled:
    """Combinations in a temporary file."""

    spill: Spill
    area: int
    rows: int
    sieve: Array | None

    def groups(self) -> Sequence[int | None]:
        return sorted(self.spill.places)

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        assert group is not None
        yield from self.spill.read(group, self.area // PORTION)


class Sink:
    """Takes the combinations that a stage finds: few stay in memory, many go to a temporary file by group of the next.

    A quarter of the work area is for those that are not written yet.
    """

    def __init__(self, spec: JoinSpec, stage: Stage, division: Division, area: int) -> None:
        self._spec, self._stage, self._division, self._area = spec, stage, division, area
        self._schema = combined_schema(spec, stage.bound)
        self._key = column_names(spec, stage.supplier)[dict(spec.inputs[stage.supplier].keys)[stage.key_class]]
        self._pool: list[pa.RecordBatch] = []
        self._size = self._rows = 0
        self._spill: Spill | None = None
        self._sieve = np.zeros(1 << max(12, (area // 16).bit_length()), np.bool_)

    def add(self, passing: pa.RecordBatch, numbers: Array, tables: Sequence[Table], bound: Bound) -> None:
        """Take combinations: numbers of rows that pass by, and of tables' rows for the inputs that do not."""
        held = [i for i in self._stage.bound if column_names(self._spec, i)[0] not in passing.schema.names]
        each = passing.nbytes / max(1, passing.num_rows) + sum(tables[i].row_bytes() for i in held)
        portion = portion_rows(each, self._area)
        for at in range(0, numbers.size, portion):
            some = slice(at, at + portion)
            self._gather(passing, numbers[some], tables, {i: bound[i][some] for i in held})

    def _gather(self, passing: pa.RecordBatch, numbers: Array, tables: Sequence[Table], bound: Bound) -> None:
        try:
            found = passing.take(pa.array(numbers))
            named = dict(zip(found.schema.names, found.columns, strict=True))
            for i, rows in bound.items():
                stored = self._spec.inputs[i].stored
                arrays = [c.gather(rows, s.type) for c, s in zip(tables[i].columns, stored, strict=True)]
                arrays.append(pa.array(tables[i].arrivals.of(rows)))
                named |= zip(column_names(self._spec, i), arrays, strict=True)
        except (GatherTooLarge, pa.ArrowInvalid, pa.ArrowCapacityError):  # Arrow's ways to say the same
            if numbers.size == 1:
                raise
            middle = numbers.size // 2
            for half in (slice(None, middle), slice(middle, None)):
                self._gather(passing, numbers[half], tables, {i: rows[half] for i, rows in bound.items()})
            return
        batch = pa.RecordBatch.from_arrays([named[name] for name in self._schema.names], schema=self._schema)
        self._put(batch, batch.get_total_buffer_size())

    def put(self, batch: pa.RecordBatch) -> None:
        """Take rows of one input, as they are stored in segments."""
        for portion in portions(as_combinations(self._schema, batch), self._area):
            self._put(portion, portion.nbytes)

    def _put(self, batch: pa.RecordBatch, size: int) -> None:
        hashes = hash_array(batch.column(self._key))
        self._sieve[places_in(self._sieve, hashes)] = True
        self._pool.append(batch)
        self._rows += batch.num_rows
        self._size += size
        if self._size > self._area // 4:
            self._write()

    def _write(self) -> None:
        """Put what is in memory into the temporary file."""
        if self._spill is None:
            self._spill = Spill(self._schema)
        for batch in in_one_batch(self._pool):
            groups = self._division.groups(hash_array(batch.column(self._key)))
            order = np.argsort(groups, kind="stable")
            sorted_ = batch.take(pa.array(order))
            numbers, first = np.unique(groups[order], return_index=True)
            for group, low, high in zip(numbers, first, [*first[1:], batch.num_rows], strict=True):
                self._spill.write(int(group), sorted_.slice(low, high - low))
        self._pool, self._size = [], 0

    def end(self) -> Combinations:
        """All that was taken."""
        if self._spill is None:
            return _Few(in_one_batch(self._pool), self._sieve)
        return _Spilled(self.spill(), self._area, self._rows, self._sieve)

    def spill(self, names: list[str] | None = None) -> Spill:
        """All that was taken, in the temporary file; columns may be called otherwise when they are read."""
        self._write()
        assert self._spill is not None
        self._spill.names = names
        return self._spill


def column_names(spec: JoinSpec, input: int) -> list[str]:
    """The names that the stored columns of an input have in combinations, and its arrivals."""
    return [*(f"{input}.{ordinal}" for ordinal in range(len(spec.inputs[input].stored))), f"{input}"]


def combined_schema(spec: JoinSpec, inputs: Sequence[int]) -> pa.Schema:
    """Of combinations of rows of some inputs."""
    types = [[*(stored.type for stored in spec.inputs[i].stored), pa.int32()] for i in inputs]
    return pa.schema(
        [f for i, of in zip(inputs, types, strict=True) for f in zip(column_names(spec, i), of, strict=True)]
    )


def as_combinations(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of one input as combinations."""
    arrays = [column.cast(to.type) for column, to in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def places_in(sieve: Array, hashes: Array) -> Array:
    """Where in a sieve some hashes are: by their top bits, since partitions have low ones in common."""
    out: Array = (hashes >> np.uint64(65 - sieve.size.bit_length())).astype(np.int64)
    return out
