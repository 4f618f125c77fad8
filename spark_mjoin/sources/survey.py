"""How many rows files have, without reading them: from their sizes, and from what a few of them have per byte.

A format with a footer knows its rows. For text the first PIECE_BYTES of the file are read, decompressed if necessary,
and lines per stored byte are counted. Line breaks inside quotes count as lines, so the estimate for such CSV is too
high. bzip2 has blocks, and the last block is not seen.

A rate follows from the times of the files if there are several, not all of one moment, and the newest is not older than
the time that they span. Otherwise the rate is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mjoin.sources.decoding.file import File, FileFormat
from spark_mjoin.sources.storage import FileStat, Storage

LOOKED_AT = 8  # files
PIECE_BYTES = 1 << 20  # a block of bzip2 is no larger
LEAST_FILES, LEAST_SECONDS = 3, 1.0  # that tell a rate

Entries = Sequence[Mapping[str, Any]]  # of a file source's log


def rows_in(store: Storage, format: FileFormat, entries: Entries, schema: pa.Schema) -> float:
    """The rows of all files, estimated from some of them."""
    if not entries:
        return 0.0
    step = max(1, len(entries) // LOOKED_AT)
    rows = used = 0.0
    for entry in entries[::step][:LOOKED_AT]:
        file = File(store, FileStat(entry["path"], entry["size"], entry["mtime_ns"]))
        if format.sealed:
            rows, used = rows + format.count(file, schema), used + entry["size"]
        else:
            text, size = file.beginning(PIECE_BYTES)
            lines = text.count(b"\n") + (0 if text.endswith(b"\n") or size < entry["size"] else 1)
            rows, used = rows + max(0, lines - bool(getattr(format, "header", False))), used + size
    return sum(entry["size"] for entry in entries) * rows / used if used else 0.0


def rate(entries: Entries, rows: float, now: float) -> float | None:
    """Rows per second, if they follow from the times of the files."""
    times = sorted(entry["mtime_ns"] / 1e9 for entry in entries)
    if len(times) < LEAST_FILES or times[-1] - times[0] < LEAST_SECONDS or now - times[-1] > times[-1] - times[0]:
        return None
    first = min(entries, key=lambda entry: int(entry["mtime_ns"]))
    whole = sum(entry["size"] for entry in entries)
    return float(rows * (1 - first["size"] / whole) / (times[-1] - times[0]))
