"""Which files are complete. Their writers do not say, so a file shows it by its end mark, or by not changing.

    clock, then listing -> judged -> complete files          the next look finds the others again

Parquet and Arrow files have an end mark, and a file without it waits. Text has none: it is complete when nobody has
written to it for 200 ms. That is its *rest*.

Why it is right. A judgement is about one `FileStat`. It holds for the contents of the file as long as every change
shows in the size or the time of change.

- The end mark is read after the listing, and the file may have grown in between. So its size and time are read once
  more after that: if they are as listed, they were so when the end mark was read.
- Rest is counted to a moment before the listing. A listing may take longer than 200 ms, and a clock read after it would
  make all files that it found early look old.
- A time of change less than 200 ms ago, or ahead of our clock, does not show rest. Such a file rests if two looks, at
  least 200 ms apart by our own clock, find it unchanged. So a file from the far future is complete some time, too.
- The last look (AvailableNow, batch) makes its own second look: it waits once, for 200 ms at most, and skips files that
  have changed by then. So it ends whatever writers and clocks do. Skipped files are in no log, so the next run finds
  them.

Not covered: writers that pause for longer than 200 ms, and file systems whose clock is behind ours by more than that,
on which text that is being written looks old. There, write under a name that begins with '.' or '_' and rename, as
Spark's sinks do.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from spark_mjoin.sources.decoding.file import File, FileFormat
from spark_mjoin.sources.storage import FileStat, Storage

_log = logging.getLogger(__name__)

_RESTING_NS = 200_000_000  # text that did not change for so long is complete
_STALE_NS = 60_000_000_000  # a file without its end mark for so long deserves a warning


class Completeness:
    """The judge of one source's files. It remembers only what it saw at the last look."""

    def __init__(self, alias: str, store: Storage, format: FileFormat) -> None:
        self._alias = alias
        self._store = store
        self._format = format
        self._endless: set[FileStat] = set()  # looked at, and without their end mark
        self._warned: set[FileStat] = set()
        self._first_seen: dict[FileStat, int] = {}  # monotonic; of text that its time of change does not vouch for

    def complete(self, listing: Callable[[], list[FileStat]], last_look: bool = False) -> list[FileStat]:
        """The complete files of a listing, which is made here: it must not begin before the clocks are read."""
        now, monotonic = time.time_ns(), time.monotonic_ns()
        found = listing()
        self._endless.intersection_update(found)
        self._warned.intersection_update(found)
        if not self._format.sealed:
            return self._resting(found, now, monotonic, last_look)
        return [f for f in found if self._is_sealed(f, now, last_look)]

    def _is_sealed(self, file: FileStat, now: int, last_look: bool) -> bool:
        if file not in self._endless:
            try:
                sealed = self._format.is_complete(File(self._store, file))
            except FileNotFoundError:
                return False
            if self._store.stat(file.path) != file:
                # Where it is old, its file system may never say the same of it twice: not to be passed over silently.
                if last_look or now - file.mtime_ns > _STALE_NS:
                    self._warn(file, "is still being written and is skipped")
                return False
            if sealed:
                return True
            self._endless.add(file)
        if now - file.mtime_ns > _STALE_NS:
            self._warn(file, "has no end yet and is ignored until it has one")
        return False

    def _resting(self, found: list[FileStat], now: int, monotonic: int, last_look: bool) -> list[FileStat]:
        recent = [f for f in found if now - f.mtime_ns < _RESTING_NS]
        seen = time.monotonic_ns()  # not `monotonic`: the listing met them at some moment in between
        self._first_seen = {f: self._first_seen.get(f, seen) for f in recent}
        left_out = {f for f in recent if monotonic - self._first_seen[f] < _RESTING_NS}
        if last_look and left_out:
            newest = max(f.mtime_ns for f in left_out)
            time.sleep(min(_RESTING_NS, max(0, newest + _RESTING_NS - time.time_ns())) / 1e9)
            left_out = {f for f in left_out if self._store.stat(f.path) != f}
            for file in left_out:
                self._warn(file, "is still being written and is skipped")
        return [f for f in found if f not in left_out]

    def _warn(self, file: FileStat, problem: str) -> None:
        """Once, as long as the file stays as it is."""
        if file not in self._warned:
            self._warned.add(file)
            _log.warning("source '%s': '%s' %s", self._alias, file.path, problem)
