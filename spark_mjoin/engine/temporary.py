"""Batches in a temporary file. It has no name, so nothing is left of it when a task ends, however it ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.fitting import in_one_batch
from spark_mjoin.errors import StateError


class Spill:
    """Batches in a temporary file, by group."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="mjoin-")  # noqa: SIM115 it lives as long as this
        self._end = 0
        self.places: dict[int, list[tuple[int, int]]] = {}  # of each group: offsets and sizes
        self.names: list[str] | None = None

    def write(self, group: int, batch: pa.RecordBatch) -> None:
        message = batch.serialize()
        try:
            self._file.write(message)
        except OSError as e:
            raise StateError(
                f"cannot write to a temporary file in {tempfile.gettempdir()}: {e}; the state's last version is intact"
            ) from e
        self.places.setdefault(group, []).append((self._end, message.size))
        self._end += message.size

    def read(self, group: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of a group, in batches of at most so many bytes, or as they were written."""
        self._file.flush()
        pool, held = list[pa.RecordBatch](), 0
        for offset, size in self.places.get(group, ()):
            if pool and held + size > most_bytes:
                yield from in_one_batch(pool)
                pool, held = [], 0
            pool.append(self._message(offset, size))
            held += size
        yield from in_one_batch(pool)

    def _message(self, offset: int, size: int) -> pa.RecordBatch:
        message = np.empty(size, np.uint8)
        if os.preadv(self._file.fileno(), [message.data], offset) != size:
            raise StateError(f"a temporary file in {tempfile.gettempdir()} has become shorter")
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)
        return batch if self.names is None else batch.rename_columns(self.names)
