"""Which files a source has not read yet: those under its path that its log lacks, complete, and in their order.

    Place    what the options say: where files are, and which of them are meant
    Backlog  what was found there and is not in the log; it saves listings, and knows nothing that a look would not say

A file is new if the log lacks its path, as in Spark: a change of a consumed file is no new file. The backlog keeps the
paths in the log, so a poll reads only what was added to it. Whoever takes a file of the backlog looks it up again: it
was complete when it was listed, which may be long ago.

Not covered: how much of the backlog a batch takes (`files`), and when a file is complete (`completeness`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from spark_mjoin.errors import SourceError
from spark_mjoin.redaction import Secrets
from spark_mjoin.sources.completeness import Completeness
from spark_mjoin.sources.decoding.file import FileFormat
from spark_mjoin.sources.protocol import SourceLog
from spark_mjoin.sources.storage import FileStat, Storage, find

LOG_PAGE = 1_000  # entries of the log that are in memory at a time


@dataclass(frozen=True)
class Place:
    """Where the files of a source are, and which of them are meant."""

    alias: str
    store: Storage
    format: FileFormat
    secrets: Secrets
    latest_first: bool
    recursive: bool
    name_filter: str | None

    @property
    def path_option(self) -> str:
        return f"source.{self.alias}.path"

    def files(self, seen: set[str] | tuple[()] = ()) -> list[FileStat]:
        """All files that are not empty and whose paths were not seen, in no particular order."""
        found = [f for f in find(self.store, self.recursive, self.name_filter, seen) if f.size > 0]
        for file in found:
            self._refuse_unless_utf8(file.path)
        return found

    def in_order(self, files: list[FileStat]) -> list[FileStat]:
        return sorted(files, key=by_age, reverse=self.latest_first)

    def _refuse_unless_utf8(self, path: str) -> None:
        """Python has a way to write names that are not UTF-8, as surrogates; Arrow and Spark have none."""
        try:
            path.encode()
        except UnicodeEncodeError as e:
            shown = path.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise SourceError(
                f"source '{self.alias}': the name '{shown}' (option '{self.path_option}') is not UTF-8. "
                f"Rename the file, or move it away"
            ) from e


class Backlog:
    """The files that were found and are not in the log."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._log: SourceLog | None = None
        self._seen: set[str] = set()  # paths in the log
        self._seen_entries = 0  # how many entries of the log are in _seen
        self._waiting: list[FileStat] = []  # the next one at the end
        self._completeness = Completeness(place.alias, place.store, place.format)

    def __len__(self) -> int:
        return len(self._waiting)

    def next(self) -> FileStat:
        return self._waiting[-1]

    def remove(self) -> None:
        """Take the next file out."""
        self._waiting.pop()

    def clear(self) -> None:
        self._waiting = []

    def refill(self) -> None:
        self._waiting = self.discovered()[::-1]

    def discovered(self, last_look: bool = False) -> list[FileStat]:
        """Look for new complete files; all of them, in the order in which to take them."""
        place = self._place
        try:
            complete = self._completeness.complete(lambda: place.files(self._seen), last_look)
        except OSError as e:
            named = f"'{place.store.shown}' (option '{place.path_option}')"
            problem = f"{named} cannot be listed: {place.secrets.hide(str(e))}"
            raise SourceError(f"source '{place.alias}': {problem}") from place.secrets.cause(e)
        return place.in_order(complete)

    def record(self, entries: list[dict[str, Any]], log: SourceLog) -> None:
        """Put files into the log."""
        if entries:
            log.append(entries)
            self.catch_up(log)

    def catch_up(self, log: SourceLog) -> None:
        """Read what is new in the log. Another log than before starts everything over."""
        if log is not self._log or len(log) < self._seen_entries:
            self._seen, self._seen_entries, self._waiting = set(), 0, []
            self._log = log
        end = len(log)
        self._seen.update(entry["path"] for entry in logged(log, self._seen_entries, end))
        self._seen_entries = end


def logged(log: SourceLog, start: int, end: int) -> Iterator[dict[str, Any]]:
    """Entries start..end-1 of a log, a page at a time."""
    for page in range(start, end, LOG_PAGE):
        yield from log.read(page, min(end, page + LOG_PAGE))


def by_age(file: FileStat) -> tuple[int, str]:
    return file.mtime_ns, file.path
