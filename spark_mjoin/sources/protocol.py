"""What an upstream source is.

A source answers two questions, in two places:

    driver     how far can I go?      latest(start, limits) -> position      (may look at directories, brokers, clocks)
               what is in between?    plan(start, end)      -> ranges        (pure: same positions, same ranges)
    executor   what are the rows?     read(range, columns)  -> Arrow batches (pure: same range, same rows, same order)

Positions and ranges are JSON values. A position is all that the streaming offset keeps of a source, so it must stay
small for ever; what a source learns once and needs later (the files it has found) goes to its `SourceLog`, which is
durable before the position that refers to it is.

The protocol knows nothing of files. It does not cover writing, seeking by time, or schemas that change while a query
runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from spark_mjoin.model import Position, Range

LIMITS = ("maxRowsPerTrigger", "maxFilesPerTrigger", "maxBytesPerTrigger")  # options, in the order of the fields below


@dataclass(frozen=True)
class Limits:
    """How much one micro-batch may take of one source; None is no limit."""

    max_rows: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None


class SourceLog(Protocol):
    """An append-only list of JSON entries that belongs to one source of one query."""

    def __len__(self) -> int: ...

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        """Add entries; durable when it returns."""

    def read(self, start: int, end: int) -> list[dict[str, Any]]:
        """Entries start..end-1."""


class Source(Protocol):
    """An upstream source. Instances pickle; they hold options, no open handles."""

    def schema(self) -> pa.Schema:
        """All columns, in canonical types (`schema.canonical_schema`)."""

    def assume(self, schema: pa.Schema) -> None:
        """Take for granted what `schema()` said when the query was loaded: executors and restarts do not infer anew."""

    def initial(self) -> Position:
        """Where a new query starts."""

    def latest(self, start: Position, limits: Limits, log: SourceLog) -> Position:
        """The furthest position after `start` that the limits allow; `start` itself when nothing is new."""

    def freeze(self, log: SourceLog) -> None:
        """Take what is there now as the end: `latest` never goes past it any more (Trigger.AvailableNow)."""

    def plan(self, start: Position, end: Position, log: SourceLog) -> list[Range]:
        """The ranges that hold the rows between two positions, in order."""

    def behind(self, position: Position, log: SourceLog) -> int:
        """How many files, rows or offsets, whichever the source counts, are known to be there after `position`.

        Known from the last `latest` or `freeze`: it does not look again.
        """

    def read(self, range: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a range, restricted to `columns`, in that order and in canonical types."""


@dataclass(frozen=True)
class Survey:
    """What a query that begins now would find, as far as a source can tell without reading its rows."""

    ranges: list[Range]  # the first rows: as many as were asked for, and not many more
    rows: float | None  # that are there now; None: it cannot tell
    basis: str  # of that, in words: `12 files, 3.4 MiB`
    rows_per_second: float | None = None  # that come; None: it cannot tell
    most: float | None = None  # rows at which it ends; None: it cannot tell, or it has no end


@runtime_checkable
class Surveyed(Protocol):
    """A source that can say how much it has; one that cannot is read from its beginning."""

    def survey(self, rows: int, log: SourceLog) -> Survey:
        """Look around for a sample of so many rows. Reads no more than a little of a few files to do so."""


@runtime_checkable
class Counting(Protocol):
    """A source that can say how many rows a range has; where one cannot, they are read to be counted."""

    def count(self, range: Range) -> int:
        """As many as `read` gives."""


@runtime_checkable
class Lenient(Protocol):
    """A source that may be allowed to lose rows: a range that is read again may then give others than it did."""

    def may_lose_rows(self) -> bool: ...
