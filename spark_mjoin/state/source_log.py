"""The durable list of what a source has found: one small immutable file per append, merged now and then.

    sources/0/entries-000000000000-000000000020.json     entries 0..19 of source 0, in the order of the aliases
             /entries-000000000020-000000000024.json     entries 20..23

Only the driver of the query appends; executors may read. A merge writes the longer file before it removes the shorter
ones, so after a crash in between some entries are there twice, and the longest file of a start counts.

Entries are numbered from 0 without a gap. Where one is found, a file is lost, and to go on without it would number what
comes later anew: input would be read twice, or never. So it is an error.

Every file says which source of which query it belongs to, and where in the log. One that was copied from another's log,
or to another place in the same, is an error too: its entries would be taken for files that this source has found, and
read as its input, or read twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from spark_mjoin.errors import StateError
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory

MERGE_FILES = 8


class DurableLog:
    """A sources.protocol.SourceLog in a directory of the state."""

    def __init__(self, location: str, number: int, alias: str) -> None:
        self._alias = alias
        self._owner = {"query": location.rstrip("/").rpartition("/")[2], "source": alias}
        self._directory = Directory(location).child("sources").child(str(number))
        self._extents: list[tuple[int, int]] | None = None
        self._cached: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def __len__(self) -> int:
        extents = self._files()
        return extents[-1][1] if extents else 0

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        if not entries:
            return
        extents = self._files()
        start = len(self)
        self._publish(start, list(entries))
        extents.append((start, start + len(entries)))
        self._merge()

    def read(self, start: int, end: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for low, high in self._files():
            if low < end and high > start:
                entries = self._contents(low, high)
                found += entries[max(start - low, 0) : end - low]
        return found

    def _merge(self) -> None:
        """Make one file of the newest ones, once they are MERGE_FILES of about a size.

        A file is rewritten only together with at least as many entries as it has, so that each entry is written a
        number of times that is logarithmic in the length of the log.
        """
        extents = self._files()
        start, end = extents[-1]
        merged = 1
        while merged < len(extents) and extents[-merged - 1][1] - extents[-merged - 1][0] <= end - start:
            merged += 1
            start = extents[-merged][0]
        if merged < MERGE_FILES:
            return
        self._publish(start, self.read(start, end))
        for low, high in extents[-merged:]:
            self._directory.delete(_name(low, high))
            self._cached.pop((low, high), None)
        extents[-merged:] = [(start, end)]

    def _contents(self, low: int, high: int) -> list[dict[str, Any]]:
        if (low, high) not in self._cached:
            found = checked_json.read(self._directory, _name(low, high))
            if found["owner"] != self._owner:
                raise StateError(
                    f"state file {self._directory.path(_name(low, high))} is not of the log of source '{self._alias}', "
                    f"but of that of source '{found['owner']['source']}' of query {found['owner']['query']}. Restore "
                    "the state directory, or start with a new checkpoint"
                )
            first, count = found["start"], len(found["entries"])
            if (first, count) != (low, high - low):
                raise StateError(
                    f"state file {self._directory.path(_name(low, high))} has entries {first} to {first + count - 1} "
                    f"of the log of source '{self._alias}', as no file of this name can. Restore the state directory, "
                    "or start with a new checkpoint"
                )
            self._cached[low, high] = found["entries"]
        return self._cached[low, high]

    def _publish(self, start: int, entries: list[dict[str, Any]]) -> None:
        body = {"owner": self._owner, "start": start, "entries": entries}
        name = _name(start, start + len(entries))
        checked_json.publish(self._directory, name, "driver", checked_json.text_of(body))

    def _files(self) -> list[tuple[int, int]]:
        if self._extents is None:
            named = [found for name in self._directory.names() if (found := _NAME.fullmatch(name))]
            extents: list[tuple[int, int]] = []
            end = 0
            for low, high in sorted((int(found[1]), -int(found[2])) for found in named):
                if low > end:
                    raise StateError(
                        f"the log of source '{self._alias}' in {self._directory.location} is damaged: entries {end} to "
                        f"{low - 1} are missing. Restore the state directory, or start with a new checkpoint"
                    )
                if low == end:
                    end = -high
                    extents.append((low, end))
            self._extents = extents
        return self._extents


_NAME = re.compile(r"entries-(\d{12})-(\d{12})\.json")


def _name(start: int, end: int) -> str:
    return f"entries-{start:012d}-{end:012d}.json"
