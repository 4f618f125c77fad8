"""Parquet. Row groups before the range are skipped; INT96 timestamps are instants, as Spark writes them.

Not covered: encrypted files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.sources.conversion import from_typed, match
from spark_mjoin.sources.decoding.batches import (
    BATCH_ROWS,
    assembled,
    clipped,
    inferred,
    only_nulls,
    selected,
    sized,
)
from spark_mjoin.sources.decoding.file import File


class Parquet:
    carries_schema = True
    sealed = True

    def is_complete(self, file: File) -> bool:
        # PARE ends an encrypted file: complete, and refused with a reason when it is read.
        return file.stat.size >= 12 and file.tail(4) in (b"PAR1", b"PARE")

    def refusal(self, schema: pa.Schema) -> str | None:
        return None

    def _open(self, file: File) -> pq.ParquetFile:
        handle = file.open()
        # Reading ahead hides the latency of a remote store. On a disk it saves nothing and takes memory.
        remote = not isinstance(handle, pa.OSFile)
        return pq.ParquetFile(handle, pre_buffer=remote, coerce_int96_timestamp_unit="us")

    def infer(self, file: File) -> pa.Schema:
        opened = self._open(file)
        schema = inferred(opened.schema_arrow)
        # Parquet numbers its leaves in the order of the schema, however deep they are.
        int96 = (opened.schema.column(i).physical_type == "INT96" for i in range(len(opened.schema)))
        return pa.schema([pa.field(f.name, _with_instants(f.type, int96)) for f in schema])

    def count(self, file: File, schema: pa.Schema) -> int:
        return int(self._open(file).metadata.num_rows)

    def decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        opened = self._open(file)
        total = opened.metadata.num_rows
        end = total if end is None else min(end, total)
        target = selected(schema, columns)
        names = match(opened.schema_arrow.names, columns)
        wanted = [n for n in names if n is not None]
        if not wanted:
            yield from only_nulls(target, end - start)
            return
        groups: list[int] = []
        before = first = 0
        for group in range(opened.num_row_groups):
            rows = opened.metadata.row_group(group).num_rows
            if before < end and before + rows > start:
                first = first if groups else before
                groups.append(group)
            before += rows
        if not groups:
            return
        batches = opened.iter_batches(BATCH_ROWS, row_groups=groups, columns=wanted, use_threads=True)
        for batch in sized(clipped(batches, start - first, end - first)):
            yield assembled(batch, names, target, from_typed)


def _with_instants(dtype: pa.DataType, int96: Iterator[bool]) -> pa.DataType:
    """The canonical type with TIMESTAMP at the leaves that are INT96; takes as many of `int96` as it has leaves."""
    if pa.types.is_struct(dtype):
        return pa.struct([pa.field(f.name, _with_instants(f.type, int96)) for f in dtype.fields])
    if pa.types.is_map(dtype):
        key = dtype.key_field.with_type(_with_instants(dtype.key_type, int96))
        return pa.map_(key, dtype.item_field.with_type(_with_instants(dtype.item_type, int96)))
    if pa.types.is_list(dtype):
        return pa.list_(dtype.value_field.with_type(_with_instants(dtype.value_type, int96)))
    return TIMESTAMP if next(int96) else dtype
