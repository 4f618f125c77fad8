"""What is in a file: parquet, csv, newline-delimited json and Arrow IPC decoded to batches in canonical types.

    File -> decode(schema, columns, start, end) -> record batches of the rows start..end-1 of the file

Every decoder obeys one contract. The rows of a file have a fixed order and are numbered from 0; `decode` gives those
of a row range, the columns asked for, in that order, in the types that `schema` has for them, in batches of at most
`BATCH_ROWS` rows; a column that the file lacks is NULL; no columns at all gives batches that only count. Decoding
looks at the bytes of the file and nothing else, so the same file gives the same batches. `count` is the number of
rows that `decode` would give. Whatever is wrong with a value is a `ColumnError`; whatever is wrong with the file is
an error of Arrow.

Columns, and fields of structs, are found by name, exactly or else without regard to case (json: exactly). A column of
a file may be narrower than the schema's, not of another kind: text in a file is not parsed into a BIGINT, except where
all is text (csv, json).

- parquet: row groups before the range are skipped; INT96 timestamps are instants, as Spark writes them.
- arrow: both IPC formats. A stream counts as complete when it has its end-of-stream marker.
- csv: with a header, columns go by name whatever their order (Spark's enforceSchema=true goes by position, which
  turns a reordered file into wrong data); without one, by position. Rows with too few or too many fields are errors.
  Line breaks inside quotes are part of the value, and a quote that is never closed is an error. A quote inside quotes
  is doubled; a backslash is an ordinary character unless `escape` says otherwise. `nullValue` is NULL, quoted or not,
  and so is an empty field; `""` is the empty string only where `nullValue` is something else.
- json: one object per line, or `null`. Fields that the schema lacks are ignored. BINARY is base64, as in Spark. No MAP.
  A line that is not UTF-8 is an error, in whatever part of it.
- text timestamps are ISO-8601; without a zone they are UTC (TIMESTAMP) or must have none (TIMESTAMP_NTZ). Digits
  beyond microseconds are cut.

Not covered: encrypted parquet, nested types in csv, comments in csv, json documents over several lines.
"""

from __future__ import annotations

import binascii
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.ipc as ipc
import pyarrow.json as pajson
import pyarrow.parquet as pq

from spark_mjoin.schema import TIMESTAMP, canonical_schema
from spark_mjoin.sources.conversion import ColumnError, from_text, from_typed, match, text_type
from spark_mjoin.sources.storage import FileStat, Storage

BATCH_ROWS = 131_072
_SMALL_ROWS = 65_536  # smaller batches are put together: below some 10,000 rows the cost per batch shows
_SMALL_BYTES = 64 << 20  # unless they have so many bytes: Arrow's offsets have 32 bits
_JSON_CHUNK_BYTES = 4 << 20
_CSV_BLOCK_BYTES = 8 << 20  # a line that is longer has the file read again, in larger blocks
_CSV_LARGEST_BYTES = 256 << 20
_CSV_MARKS = "\x1e\x1f\x1d\x1c"  # the first of them that is no part of the dialect marks the end of a file
_TEXT_PIECE_BYTES = 4096

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True)
class File:
    """A file to look into; every `open` is a new handle at the first byte."""

    store: Storage
    stat: FileStat

    def open(self) -> pa.NativeFile:
        return self.store.open(self.stat.path)

    def open_text(self) -> pa.NativeFile:
        """Decompressed, where the name says that it is compressed."""
        return self._text(self.open())

    def _text(self, handle: pa.NativeFile) -> pa.NativeFile:
        codec = next((c for end, c in _CODECS.items() if self.stat.path.lower().endswith(end)), None)
        return pa.CompressedInputStream(handle, codec) if codec else handle

    def beginning(self, n: int) -> tuple[bytes, int]:
        """What the first n bytes of the file are as text, and how many bytes these are."""
        stored = self.head(n)
        text, parts = self._text(pa.BufferReader(stored)), list[bytes]()
        try:
            while piece := bytes(text.read(_TEXT_PIECE_BYTES)):
                parts.append(piece)
        except OSError:  # compressed text that is cut off in the middle, as it is bound to be
            if len(stored) == self.stat.size:
                raise
        return b"".join(parts), len(stored)

    def tail(self, n: int) -> bytes:
        with self.open() as handle:
            size = handle.size()
            handle.seek(max(0, size - n))
            return bytes(handle.read(n))

    def head(self, n: int) -> bytes:
        with self.open() as handle:
            return bytes(handle.read(n))


class FileFormat(Protocol):
    carries_schema: bool
    sealed: bool  # a complete file shows by its last bytes; else only by nobody writing to it any more

    def is_complete(self, file: File) -> bool:
        """Whether a sealed file has its end; True for others."""

    def refusal(self, schema: pa.Schema) -> str | None:
        """Why a file of this format cannot hold this schema, if so."""

    def infer(self, file: File) -> pa.Schema:
        """The file's own schema, canonical; TypeError for a type that Spark lacks."""

    def count(self, file: File, schema: pa.Schema) -> int: ...

    def decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None
    ) -> Iterator[pa.RecordBatch]: ...


# --- parquet ---------------------------------------------------------------------------------------------------


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
        schema = _inferred(opened.schema_arrow)
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
        target = _select(schema, columns)
        names = match(opened.schema_arrow.names, columns)
        wanted = [n for n in names if n is not None]
        if not wanted:
            yield from _only_nulls(target, end - start)
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
        for batch in _sized(_clip(batches, start - first, end - first)):
            yield _assemble(batch, names, target, from_typed)


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


# --- arrow -----------------------------------------------------------------------------------------------------


class Arrow:
    carries_schema = True
    sealed = True

    def is_complete(self, file: File) -> bool:
        head = file.head(8)
        if head.startswith(b"ARROW1"):
            return file.stat.size > 16 and file.tail(6) == b"ARROW1"
        if head.startswith(b"\xff\xff\xff\xff"):
            return file.tail(8) == b"\xff\xff\xff\xff\x00\x00\x00\x00"
        return len(head) == 8  # no Arrow at all: to be told so when it is read, rather than ignored for ever

    def refusal(self, schema: pa.Schema) -> str | None:
        return None

    def infer(self, file: File) -> pa.Schema:
        return _inferred(self._reader(file, None).schema)

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
        target = _select(schema, columns)
        for batch in _sized(_clip(self._batches(file, fields if present else None), start, end)):
            yield _assemble(batch, names, target, from_typed)


# --- csv -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Csv:
    header: bool = False
    separator: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null_value: str = ""
    encoding: str = "utf-8"

    carries_schema = False
    sealed = False

    def is_complete(self, file: File) -> bool:
        return True

    def refusal(self, schema: pa.Schema) -> str | None:
        nested = [f"{f.name} {f.type}" for f in schema if pa.types.is_nested(f.type)]
        return f"csv has no nested types: {', '.join(nested)}" if nested else None

    def infer(self, file: File) -> pa.Schema:
        raise TypeError("csv carries no types")

    def count(self, file: File, schema: pa.Schema) -> int:
        return sum(batch.num_rows for batch in self.decode(file, schema, (), 0, None))

    def decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None
    ) -> Iterator[pa.RecordBatch]:
        block_bytes = _CSV_BLOCK_BYTES
        while True:
            try:
                for batch in self._decode(file, schema, columns, start, end, block_bytes):
                    yield batch
                    start += batch.num_rows
                return
            except pa.ArrowInvalid as e:
                if "straddl" not in str(e):  # a line that begins in one block and does not end in the next
                    raise
                if block_bytes >= _CSV_LARGEST_BYTES:
                    longest = f"a line is longer than {_CSV_LARGEST_BYTES >> 20} MiB"
                    raise pa.ArrowInvalid(f"{longest}, or a quote is opened and never closed") from e
                block_bytes = min(8 * block_bytes, _CSV_LARGEST_BYTES)

    def _decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None, block_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        target = _select(schema, columns)
        present: list[str] = list(schema.names)
        followed: _Followed | None = None
        try:
            if self.header:
                # Only the names matter here; as text, since a guess at the types could fail.
                as_text = pacsv.ConvertOptions(default_column_type=pa.string())
                present = self._open(file.open_text(), self.encoding, block_bytes, as_text).schema.names
                self._check_header(present, schema)
            names = match(present, columns)
            self._check_blanks(present, columns, names)
            parsed = {
                name: pa.string() if pa.types.is_timestamp(field.type) else field.type
                for name, field in zip(names, target, strict=True)
                if name is not None
            }
            convert = pacsv.ConvertOptions(
                column_types=parsed or {present[0]: pa.string()},
                include_columns=list(parsed) or present[:1],
                null_values=["", self.null_value],
                strings_can_be_null=True,
                quoted_strings_can_be_null=not self.null_value,
                true_values=_spellings("true"),
                false_values=_spellings("false"),
            )
            followed = self._followed(file, len(present))
            batches = self._to_the_end(followed, block_bytes, convert, None if self.header else present)
            for batch in _sized(_clip(batches, start, end)):
                yield _assemble(batch, names, target, self._from_text)
        except (pa.ArrowInvalid, ColumnError) as e:
            if "Empty CSV file" in str(e):
                return
            if followed is not None and followed.is_quoted(str(e)):
                raise pa.ArrowInvalid(_OPEN_QUOTE) from e
            at = re.search(r"In CSV column #(\d+): (.*)", str(e), re.DOTALL)
            if at and int(at[1]) < len(present):
                raise ColumnError(present[int(at[1])], at[2]) from e
            raise

    def _followed(self, file: File, columns: int) -> _Followed:
        """The text of a file with a line behind it that is too wide to be a row."""
        mark = next(c for c in _CSV_MARKS if c not in (self.separator, self.quote, self.escape))
        text = pa.transcoding_input_stream(file.open_text(), self.encoding, "utf-8")
        return _Followed(text, mark.encode(), self.separator.encode() * columns + b"\n")

    def _to_the_end(
        self, followed: _Followed, block_bytes: int, convert: pacsv.ConvertOptions, names: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """All batches; ArrowInvalid after the last one when a quote is still open.

        Arrow takes the end of the file for a closing quote, so that all rows behind a quote that somebody forgot would
        be part of one value. So the last line must be met as a line that is too wide: else it is inside a value.
        """
        met = False

        def wrong_width(row: pacsv.InvalidRow) -> str:
            nonlocal met
            met = followed.is_last(row.text)
            return "skip" if met else "error"

        yield from self._open(pa.PythonFile(followed, "r"), "utf-8", block_bytes, convert, names, wrong_width)
        if not met:
            raise pa.ArrowInvalid(_OPEN_QUOTE)

    def _open(
        self,
        text: pa.NativeFile,
        encoding: str,
        block_bytes: int,
        convert: pacsv.ConvertOptions,
        names: list[str] | None = None,
        wrong_width: Callable[[pacsv.InvalidRow], str] | None = None,
    ) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            text,
            read_options=pacsv.ReadOptions(block_size=block_bytes, column_names=names, encoding=encoding),
            parse_options=pacsv.ParseOptions(
                delimiter=self.separator,
                quote_char=self.quote or False,
                double_quote=True,
                escape_char=self.escape or False,
                newlines_in_values=True,
                invalid_row_handler=wrong_width,
            ),
            convert_options=convert,
        )

    def _check_header(self, present: Sequence[str], schema: pa.Schema) -> None:
        """A file that lacks some columns has NULLs there; with none of them it is read in a wrong way."""
        known = {name.casefold() for name in schema.names}
        if not any(name.strip().casefold() in known for name in present):
            raise pa.ArrowInvalid(
                f"its first line, '{self.separator.join(present)[:80]}', names no column of the schema: see options "
                "'sep' and 'header'"
            )

    def _check_blanks(self, present: Sequence[str], columns: Sequence[str], names: Sequence[str | None]) -> None:
        """`k, s` in a header names ' s': the column would be NULL, and nobody would know why."""
        stripped = {name.strip().casefold(): name for name in present}
        for column, name in zip(columns, names, strict=True):
            if name is None and column.casefold() in stripped:
                there = stripped[column.casefold()]
                raise ColumnError(column, f"the header has it as '{there}', with blanks: name it so in the schema")

    def _from_text(self, array: pa.Array, dtype: pa.DataType) -> pa.Array:
        """With a `nullValue`, quotes tell an empty string from NULL, so Arrow must not take quoted texts for NULL."""
        if self.null_value and (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
            null = pc.equal(array, pa.scalar(self.null_value.encode(), pa.binary()).cast(array.type))
            array = pc.if_else(null, pa.scalar(None, array.type), array)
        return from_text(array, dtype)


_OPEN_QUOTE = "a quote is opened and never closed, so all rows behind it are one value; close it, or set option 'quote'"


class _Followed:
    """Text with one more line, as a Python file to read from.

    The line begins with more marks in a row than there are anywhere in the text, so no other is taken for it.
    """

    closed = False

    def __init__(self, stream: pa.NativeFile, mark: bytes, rest: bytes) -> None:
        self._stream, self._mark, self._rest = stream, mark, rest
        self._runs = re.compile(re.escape(mark) + b"+")
        self._longest = self._open = 0  # marks in a row: the most so far, and at the end of what was read
        self._beginning: str | None = None  # of the last line, once it was read

    def read(self, size: int) -> pa.Buffer:
        piece = self._stream.read_buffer(size)
        if piece.size:
            self._note(piece.to_pybytes())
            return piece
        if self._beginning is not None:
            return piece
        marks = self._mark * (self._longest + 1)
        self._beginning = marks.decode()
        return pa.py_buffer(b"\n" + marks + self._rest)

    def _note(self, text: bytes) -> None:
        if self._mark not in text:
            self._open = 0
            return
        for run in self._runs.finditer(text):
            length = run.end() - run.start() + (0 if run.start() else self._open)
            self._longest = max(self._longest, length)
        self._open = length if run.end() == len(text) else 0

    def is_last(self, line: str) -> bool:
        return self._beginning is not None and line.startswith(self._beginning)

    def is_quoted(self, message: str) -> bool:
        """Whether a message has the last line in it: as part of a value."""
        return self._beginning is not None and self._beginning in message

    def close(self) -> None:
        self.closed = True
        self._stream.close()


def _spellings(word: str) -> list[str]:
    """In small and capital letters: Spark reads tRue."""
    return ["".join(letters) for letters in itertools.product(*((c, c.upper()) for c in word))]


# --- json ------------------------------------------------------------------------------------------------------


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
        target = _select(schema, columns)
        parsed = pa.schema([pa.field(f.name, text_type(f.type)) for f in target])
        for batch in _sized(_clip(self._batches(file, parsed), start, end)):
            yield _assemble(batch, list(target.names), target, from_text)

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
                yield from table.combine_chunks().to_batches() if len(schema) else [_counted(table.num_rows)]


def _line_chunks(handle: pa.NativeFile) -> Iterator[bytes]:
    """The file cut into pieces that end with a line; a line is never cut, however long it is."""
    parts: list[bytes] = []
    first = True
    while piece := bytes(handle.read(_JSON_CHUNK_BYTES)):
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


# --- batches ---------------------------------------------------------------------------------------------------


def _inferred(own: pa.Schema) -> pa.Schema:
    """A file's own schema as the schema of a source, whose columns must have different names."""
    twice = sorted({name for name in own.names if own.names.count(name) > 1})
    if twice:
        raise TypeError(f"it has more than one column '{twice[0]}'")
    return canonical_schema(own)


def _select(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in columns])


def _assemble(
    batch: pa.RecordBatch,
    names: Sequence[str | None],
    target: pa.Schema,
    convert: Callable[[pa.Array, pa.DataType], pa.Array],
) -> pa.RecordBatch:
    """The batch's columns `names` in the types of `target`; None is a column of NULLs."""
    if not len(target):
        return _counted(batch.num_rows)
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


def _counted(rows: int) -> pa.RecordBatch:
    """A batch of `rows` rows and no columns."""
    return pa.record_batch([pa.nulls(rows)], names=["none"]).select([])


def _only_nulls(target: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, rows, BATCH_ROWS):
        n = min(BATCH_ROWS, rows - at)
        yield _assemble(_counted(n), [None] * len(target), target, from_typed)


def _clip(batches: Iterable[pa.RecordBatch], start: int, end: int | None) -> Iterator[pa.RecordBatch]:
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


def _sized(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of _SMALL_ROWS to BATCH_ROWS rows, copying what is small; fewer where they are wide."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if small and (rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > _SMALL_BYTES):
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
        if rows >= _SMALL_ROWS:
            yield _joined(small)
            small, rows, size = [], 0, 0
    if small:
        yield _joined(small)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        return _counted(sum(b.num_rows for b in batches))
    return pa.concat_batches(batches)
