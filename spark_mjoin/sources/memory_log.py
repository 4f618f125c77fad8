"""A `SourceLog` in memory, for batch reads and tests: what it holds dies with the process.

A batch read plans and reads within one process and never resumes, so nothing has to outlive it. Streaming queries need
the durable log. Entries are kept as JSON text, so that what can't be written to a durable log can't be written here
either, and no caller holds a reference to what is inside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class MemoryLog:
    def __init__(self) -> None:
        self._entries: list[str] = []

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entries: Sequence[dict[str, Any]]) -> None:
        self._entries.extend([json.dumps(e, allow_nan=False) for e in entries])

    def read(self, start: int, end: int) -> list[dict[str, Any]]:
        return [json.loads(e) for e in self._entries[start:end]]
