"""Rows on their way from where Spark has read them to the task that joins them.

    rows of one input ──slot of their key──> partition ──> parcels ──Spark's shuffle──> the task of that partition

    parcel: (target partition, input, rows of it as one Arrow record batch without its schema)
            (target partition, FLOOR - input, an event time), of a stage: see `Floor`

A parcel is one row to Spark. So Spark moves a few large rows instead of many small ones, nothing is converted from
columns to rows and back, and the engine's own hash decides where a row goes: nothing has to agree with Spark's hash.

A row that can be in no result, because a key is NULL, is not sent; where there are windows, it goes to partition 0, as
its event time, or the row itself, counts all the same. Punctuations are about keys and go to every task, and so does a
whole input that promises something by the order of its rows (`engine.feed`).

Not covered: the order of rows. It is lost on the way, and `engine.delivered` makes one that does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.engine.row_hashes import row_hashes
from spark_mjoin.mjoin.expressions import evaluate
from spark_mjoin.mjoin.keys import encode, orders
from spark_mjoin.mjoin.punctuations import marks
from spark_mjoin.model import Array, JoinSpec, KeyDomain
from spark_mjoin.schema import conform_array
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.routing import Routing

PARCELS = pa.schema([("target", pa.int32()), ("input", pa.int8()), ("rows", pa.binary())])
GATHERED_ROWS = 1 << 17  # that are divided together: small parcels cost more than they carry
GATHERED_BYTES = 16 << 20
PARCEL_BYTES = 1 << 20  # of one parcel, about
SENT_TOGETHER_BYTES = 4 << 20  # of parcels: each message to Spark costs as much as some thousand rows
FLOOR = -2  # less the input that it is about: in place of an input, where a parcel has a floor and no rows


@dataclass(frozen=True)
class Floor:
    """What a task of an earlier stage says after its results of a batch: none to come has an event time below this.

    None: it cannot say so of any time.
    """

    time: int | None

    def parcels(self, input: int, partitions: int) -> pa.RecordBatch:
        """The same for every partition of the next stage, in which the results are an input."""
        said = b"" if self.time is None else self.time.to_bytes(8, "little", signed=True)
        columns = [
            pa.array(range(partitions), pa.int32()),
            pa.array([FLOOR - input] * partitions, pa.int8()),
            pa.array([said] * partitions, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PARCELS)

    @staticmethod
    def read(said: bytes) -> Floor:
        return Floor(int.from_bytes(said, "little", signed=True) if said else None)


@dataclass(frozen=True)
class Arriving:
    """Rows of an input as it delivers them, to those who divide them (`state.layouts.Keys`). All have their keys."""

    spec: JoinSpec
    input: int
    batch: pa.RecordBatch

    @property
    def count(self) -> int:
        return int(self.batch.num_rows)

    def has(self, key_class: int) -> bool:
        return key_class in self.spec.classes_of(self.input)

    def hashes(self, key_class: int | None = None) -> Array | None:
        keys = self._keys(self.spec.star_class if key_class is None else key_class)
        return None if keys is None else hash_array(keys[0])

    def orders(self) -> Array:
        keys = self._keys(self.spec.star_class)
        assert keys is not None, "a key that all inputs have"
        return orders(*keys)

    def row_hashes(self, rows: Array) -> Array:
        return row_hashes(self.batch.take(pa.array(rows)))

    def _keys(self, key_class: int | None) -> tuple[pa.Array, KeyDomain] | None:
        """The encoded keys of a class; None where the input has none."""
        input = self.spec.inputs[self.input]
        ordinal = None if key_class is None else dict(input.keys).get(key_class)
        if ordinal is None:
            return None
        stored = input.stored[ordinal]
        assert stored.domain is not None
        values = evaluate(stored.expr, lambda col: self.batch.column(col.name), self.count)
        return encode(values, stored.domain), stored.domain


@dataclass(frozen=True)
class Sender:
    """Divides the rows of one input among the partitions of a join."""

    spec: JoinSpec
    input: int
    routing: Routing
    whole: bool = False  # whether every partition gets all rows

    def parcels(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of an input, as parcels."""
        gathered: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            gathered.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= GATHERED_ROWS or size >= GATHERED_BYTES:
                yield from self._packed(self._divided(gathered))
                gathered, rows, size = [], 0, 0
        yield from self._packed(self._divided(gathered))

    def _divided(self, gathered: Sequence[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each parcel, with its target."""
        rows = self._readable(gathered)
        if not rows.num_rows:
            return
        everyone = range(self.routing.partitions)
        if self.whole:
            yield from ((target, rows) for target in everyone)
            return
        marked = marks(self.spec.inputs[self.input], rows)
        data = rows if marked is None else rows.filter(pa.array(~marked))
        can_match = self._can_match(data)
        if can_match is not None:
            if self.spec.inputs[self.input].time is not None or self.spec.counts_rows:
                yield from _in_parts(0, data.filter(pc.invert(can_match)))
            data = data.filter(can_match)
        found = self.routing.divide(Arriving(self.spec, self.input, data))
        copies = data if found.rows is None else data.take(pa.array(found.rows))
        for target, some in divided(copies, found.targets):
            for _, part in _in_parts(target, some):
                yield from ((target + more, part) for more in (0, *found.besides))
        if marked is not None:
            said = rows.filter(pa.array(marked))
            yield from ((target, said) for target in everyone)

    def _readable(self, gathered: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        """The rows as one batch, in the types that the engine has."""
        schema = sent_columns(self.spec, self.input)
        conformed = [
            pa.RecordBatch.from_arrays(
                [conform_array(batch.column(field.name), field.type) for field in schema], schema=schema
            )
            for batch in gathered
        ]
        return as_batch(conformed, schema)

    def _can_match(self, rows: pa.RecordBatch) -> pa.Array | None:
        """Which rows have all their keys; None: all of them."""
        input, keep = self.spec.inputs[self.input], None
        for _, ordinal in input.keys:
            values = evaluate(input.stored[ordinal].expr, lambda col: rows.column(col.name), rows.num_rows)
            if values.null_count:
                keep = values.is_valid() if keep is None else pc.and_(keep, values.is_valid())
        return keep

    def _packed(self, divided: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Parcels, several of them in a batch."""
        targets: list[int] = []
        contents: list[pa.Buffer] = []
        size, before = 0, None
        for target, rows in divided:
            targets.append(target)
            if rows is not before:  # copies for several targets follow each other
                content, before = rows.serialize(), rows
            contents.append(content)
            size += contents[-1].size
            if size >= SENT_TOGETHER_BYTES:
                yield self._batch(targets, contents)
                targets, contents, size = [], [], 0
        if targets:
            yield self._batch(targets, contents)

    def _batch(self, targets: Sequence[int], contents: Sequence[pa.Buffer]) -> pa.RecordBatch:
        columns = [
            pa.array(targets, pa.int32()),
            pa.array([self.input] * len(targets), pa.int8()),
            _binary(contents),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=PARCELS)


def _binary(contents: Sequence[pa.Buffer]) -> pa.Array:
    """An array of some contents. `pa.array` would never free what it reads from a memoryview."""
    ends = np.cumsum([0, *(content.size for content in contents)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.binary(), len(contents), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(contents))]
    )


def _in_parts(target: int, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    parts = max(1, rows.nbytes // PARCEL_BYTES)
    step = -(-rows.num_rows // parts)
    for start in range(0, rows.num_rows, step):
        yield target, rows.slice(start, step)


def unpacked(parcels: Iterable[pa.RecordBatch], spec: JoinSpec) -> Iterator[tuple[int, pa.RecordBatch | Floor]]:
    """The rows of some parcels, or a floor, with the input that they are of."""
    schemas = [sent_columns(spec, number) for number in range(len(spec.inputs))]
    for some in parcels:
        for input, content in zip(some.column(1).to_pylist(), some.column(2), strict=True):
            if input <= FLOOR:
                yield FLOOR - input, Floor.read(content.as_py())
            else:
                yield input, pa.ipc.read_record_batch(content.as_buffer(), schemas[input])


def divided(rows: pa.RecordBatch, groups: Array) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each group that has any; groups: the number of the group of each row, in 16 bits."""
    counts = np.bincount(groups)
    if counts.size and int(counts[-1]) == rows.num_rows:  # all are in one
        yield counts.size - 1, rows
        return
    ordered, start = rows.take(pa.array(np.argsort(groups, kind="stable"))), 0
    for group, count in enumerate(counts.tolist()):
        if count:
            yield group, ordered.slice(start, count)
        start += count


def sent_columns(spec: JoinSpec, input: int) -> pa.Schema:
    """The columns of an input that are in parcels: those that the join reads."""
    of = spec.inputs[input]
    schema = spec.sources[of.source].schema
    return pa.schema([schema.field(name) for name in of.columns])


def as_batch(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Some batches as one."""
    if len(batches) == 1:
        return batches[0]
    joined = pa.Table.from_batches(batches, schema).combine_chunks().to_batches()
    return joined[0] if joined else pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in schema], schema=schema)
