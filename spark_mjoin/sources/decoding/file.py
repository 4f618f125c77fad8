"""A file to look into, and what a format has to know about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_mjoin.sources.storage import FileStat, Storage

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
