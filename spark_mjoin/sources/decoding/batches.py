"""What all decoders do with the batches that Arrow gives: choose rows and columns, convert, and even out sizes."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from spark_mjoin.schema import canonical_schema
from spark_mjoin.sources.conversion import ColumnError, from_typed

BATCH_ROWS = 131_072
SMALL_ROWS = 65_536  # smaller batches are put together: below some 10,000 rows the cost per batch shows
SMALL_BYTES = 64 << 20  # unless they have so many bytes: Arrow's offsets have 32 bits


def inferred(own: pa.Schema) -> pa.Schema:
    """A file's own schema as the schema of a source, whose columns must have different names."""
    twice = sorted({name for name in own.names if own.names.count(name) > 1})
    if twice:
        raise TypeError(f"it has more than one column '{twice[0]}'")
    return canonical_schema(own)


def selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def assembled(
    batch: pa.RecordBatch,
    names: Sequence[str | None],
    target: pa.Schema,
    convert: Callable[[pa.Array, pa.DataType], pa.Array],
) -> pa.RecordBatch:
    """The batch's columns `names` in the types of `target`; None is a column of NULLs."""
    if not len(target):
        return counted(batch.num_rows)
    arrays = []
    for name, field in zip(names, target, strict=True):
        if name is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        array = batch.column(batch.schema.get_field_index(name))
        try:
            arrays.append(convert(array, field.type))
        except (pa.ArrowException, binascii.Error) as e:
            raise ColumnError(field.name, str(e)) from e
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def counted(rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows and no columns."""
    return pa.record_batch([pa.nulls(rows)], names=["none"]).select([])


def only_nulls(target: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows, BATCH_ROWS):
        n = min(BATCH_ROWS, rows - at)
        yield assembled(counted(n), [None] * len(target), target, from_typed)


def clipped(batches: Iterable[pa.RecordBatch], start: int, end: int | None) -> Iterator[pa.RecordBatch]:
    """The rows start..end-1 of a sequence of batches; stops reading at the end."""
    at = 0
    if end is not None and end <= start:
        return
    for batch in batches:
        low = max(0, start - at)
        high = batch.num_rows if end is None else min(batch.num_rows, end - at)
        if low < high:
            yield batch if high - low == batch.num_rows else batch.slice(low, high - low)
        at += batch.num_rows
        if end is not None and at >= end:
            return


def sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of SMALL_ROWS to BATCH_ROWS rows, copying what is small; fewer where they are wide."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if small and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > SMALL_BYTES):
            yield _joined(small)
            small, rows, size = [], 0, 0
        at = 0
        while batch.num_rows - at > BATCH_ROWS:
            yield batch.slice(at, BATCH_ROWS)
            at += BATCH_ROWS
        rest = batch.slice(at) if at else batch
        if rest.num_rows:
            small.append(rest)
            rows, size = rows + rest.num_rows, size + rest.nbytes
        if rows >= SMALL_ROWS:
            yield _joined(small)
            small, rows, size = [], 0, 0
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        return counted(sum(b.num_rows for b in batches))
    return pa.concat_batches(batches)
