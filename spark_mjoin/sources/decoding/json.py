"""JSON, one object per line, or `null`, which is a row of NULLs.

Fields that the schema lacks are ignored. BINARY is base64, as in Spark. A line that is not UTF-8 is an error, in
whatever part of it.

Not covered: MAP, and documents over several lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.json as pajson

from spark_mjoin.sources.conversion import ColumnError, from_text, text_type
from spark_mjoin.sources.decoding.batches import assembled, clipped, counted, selected, sized
from spark_mjoin.sources.decoding.file import File

CHUNK_BYTES = 4 << 20


class Json:
    carries_schema = False
    sealed = False

    def is_complete(self, file: File) -> bool:
        return True

    def refusal(self, schema: pa.Schema) -> str | None:
        maps = [f.name for f in schema if _has_map(f.type)]
        return f"json with MAP columns is not supported ({', '.join(maps)}): declare a STRUCT instead" if maps else None

    def infer(self, file: File) -> pa.Schema:
        raise TypeError("json carries no types")

    def count(self, file: File, schema: pa.Schema) -> int:
        return sum(batch.num_rows for batch in self.decode(file, schema, (), 0, None))

    def decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        target = selected(schema, columns)
        parsed = pa.schema([pa.field(f.name, text_type(f.type)) for f in target])
        for batch in sized(clipped(self._batches(file, parsed), start, end)):
            yield assembled(batch, list(target.names), target, from_text)

    def _batches(self, file: File, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        done = lines = 0
        with file.open_text() as handle:
            for chunk in _line_chunks(handle):
                _check_utf8(chunk, lines)
                lines += chunk.count(b"\n")
                if not chunk.strip():
                    continue
                try:
                    table = _parse_json(chunk, schema)
                except pa.ArrowInvalid as e:
                    raise _blame_column(chunk, schema, e, done) from e
                done += table.num_rows
                yield from table.combine_chunks().to_batches() if len(schema) else [counted(table.num_rows)]


def _line_chunks(handle: pa.NativeFile) -> Iterator[bytes]:
    """The file cut into pieces that end with a line; a line is never cut, however long it is."""
    parts: list[bytes] = []
    first = True
    while piece := bytes(handle.read(CHUNK_BYTES)):
        if first and piece.startswith(b"\xef\xbb\xbf"):
            piece = piece[3:]
        first = False
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*parts, piece[:cut]])
            parts = []
        parts.append(piece[cut:])
    yield b"".join(parts)


def _check_utf8(chunk: bytes, before: int) -> None:
    """ArrowInvalid with the line, as `before` others come before the chunk; Arrow would take any bytes for a STRING."""
    if chunk.isascii():
        return
    try:
        chunk.decode()
    except UnicodeDecodeError as e:
        line = before + chunk.count(b"\n", 0, e.start) + 1
        column = e.start - chunk.rfind(b"\n", 0, e.start)
        raise pa.ArrowInvalid(
            f"line {line} is not UTF-8: byte {column} is 0x{chunk[e.start]:02x}, {e.reason}"
        ) from None


def _parse_json(chunk: bytes, schema: pa.Schema) -> pa.Table:
    """A line that is `null` is a row of NULLs, as in Spark."""
    text = chunk.lstrip()
    if text.startswith(b"null"):  # Arrow ends the process when the first value of a block is null, and only then
        chunk = b"{}" + text[4:]
    return pajson.read_json(
        pa.BufferReader(chunk),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(chunk) + 1),
        parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _blame_column(chunk: bytes, schema: pa.Schema, error: Exception, before: int) -> Exception:
    """Arrow does not always say which column it could not convert: parse them one by one."""
    # Arrow counts the rows of the chunk, and `before` came earlier in the file.
    cause = re.sub(r"in row (\d+)", lambda m: f"in row {before + int(m[1])}", str(error))
    for field in schema:
        try:
            _parse_json(chunk, pa.schema([field]))
        except pa.ArrowInvalid:
            try:
                _parse_json(chunk, pa.schema([]))
            except pa.ArrowInvalid:
                break  # not JSON at all: no column is to blame
            return ColumnError(field.name, cause)
    invalid: Exception = pa.ArrowInvalid(cause)
    return invalid


def _has_map(dtype: pa.DataType) -> bool:
    if pa.types.is_map(dtype):
        return True
    return any(_has_map(dtype.field(i).type) for i in range(dtype.num_fields))
