"""CSV in the dialects of Spark's options.

- With a header, columns are found by name in any order; without one, by position. (Spark's enforceSchema=true finds
  them by position, which turns a reordered file into wrong data.) Rows with too few or too many fields are errors.
- Line breaks inside quotes are part of the value, and a quote that is never closed is an error. A quote inside quotes
  is doubled; a backslash is an ordinary character unless `escape` says otherwise.
- `nullValue` is NULL, quoted or not, and so is an empty field; `""` is the empty string only where `nullValue` is
  something else.

Not covered: nested types, comments.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from spark_mjoin.sources.conversion import ColumnError, from_text, match
from spark_mjoin.sources.decoding.batches import assembled, clipped, selected, sized
from spark_mjoin.sources.decoding.file import File

BLOCK_BYTES = 8 << 20  # a line that is longer has the file read again, in larger blocks
LARGEST_BLOCK_BYTES = 256 << 20
_MARKS = "\x1e\x1f\x1d\x1c"  # the first of them that is no part of the dialect marks the end of a file


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
        block_bytes = BLOCK_BYTES
        while True:
            try:
                for batch in self._decode(file, schema, columns, start, end, block_bytes):
                    yield batch
                    start += batch.num_rows
                return
            except pa.ArrowInvalid as e:
                if "straddl" not in str(e):  # a line that begins in one block and does not end in the next
                    raise
                if block_bytes >= LARGEST_BLOCK_BYTES:
                    longest = f"a line is longer than {LARGEST_BLOCK_BYTES >> 20} MiB"
                    raise pa.ArrowInvalid(f"{longest}, or a quote is opened and never closed") from e
                block_bytes = min(8 * block_bytes, LARGEST_BLOCK_BYTES)

    def _decode(
        self, file: File, schema: pa.Schema, columns: Sequence[str], start: int, end: int | None, block_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        target = selected(schema, columns)
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
            for batch in sized(clipped(batches, start, end)):
                yield assembled(batch, names, target, self._from_text)
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
        mark = next(c for c in _MARKS if c not in (self.separator, self.quote, self.escape))
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
        """`k, s` in a header names ' s': the column would silently be NULL."""
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
