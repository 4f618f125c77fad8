"""Arrow IPC, both of its formats. A stream counts as complete when it has its end-of-stream marker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.ipc as ipc

from spark_mjoin.sources.conversion import from_typed, match
from spark_mjoin.sources.decoding.batches import assembled, clipped, inferred, selected, sized
from spark_mjoin.sources.decoding.file import File


class Arrow:
    carries_schema = True
    sealed = True

    def is_complete(self, file: File) -> bool:
        head = file.head(8)
        if head.startswith(b"ARROW1"):
            return file.stat.size > 16 and file.tail(6) == b"ARROW1"
        if head.startswith(b"\xff\xff\xff\xff"):
            return file.tail(8) == b"\xff\xff\xff\xff\x00\x00\x00\x00"
        return len(head) == 8  # no Arrow at all: an error when it is read is better than ignoring it for ever

    def refusal(self, schema: pa.Schema) -> str | None:
        return None

    def infer(self, file: File) -> pa.Schema:
        return inferred(self._reader(file, None).schema)

    def _reader(self, file: File, fields: list[int] | None) -> ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader:
        options = ipc.IpcReadOptions(included_fields=fields)
        if file.head(6) == b"ARROW1":
            return ipc.open_file(file.open(), options=options)
        return ipc.open_stream(file.open(), options=options)

    def _batches(self, file: File, fields: list[int] | None) -> Iterator[pa.RecordBatch]:
        reader = self._reader(file, fields)
        if isinstance(reader, ipc.RecordBatchFileReader):
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)
        else:
            yield from reader

    def count(self, file: File, schema: pa.Schema) -> int:
        fields = [0] if len(self._reader(file, None).schema) else None
        return sum(batch.num_rows for batch in self._batches(file, fields))

    def decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        present = self._reader(file, None).schema.names
        names = match(present, columns)
        # An empty list would mean every field: one field is read to have its rows counted.
        fields = sorted({present.index(n) for n in names if n is not None}) or [0]
        target = selected(schema, columns)
        for batch in sized(clipped(self._batches(file, fields if present else None), start, end)):
            yield assembled(batch, names, target, from_typed)
