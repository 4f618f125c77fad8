"""How much of its files a batch takes, within the limits of the source.

`max_rows` is exact and may end inside a file. `max_files` and `max_bytes` count every file that is touched, with its
whole size, and always allow one. Of several limits the tightest counts.
"""

from __future__ import annotations

from spark_mjoin.model import Position
from spark_mjoin.sources.protocol import Limits
from spark_mjoin.sources.storage import FileStat


class Taking:
    """How far a batch has come, against its limits. Files are offered one by one, from the start position on."""

    def __init__(self, start: Position, limits: Limits) -> None:
        self.position = dict(start)
        self._limits = limits
        self._files = self._bytes = self._rows = 0

    @property
    def full(self) -> bool:
        """Whether no further file can be taken, whatever it is."""
        files, rows = self._limits.max_files, self._limits.max_rows
        return (files is not None and self._files >= files) or (rows is not None and self._rows >= rows)

    def take(self, file: FileStat, rows: int | None) -> bool:
        """Take what the limits allow of the file at the position; False when the batch ends in or before it.

        `rows` counts the whole file; None only without a limit on rows.
        """
        if self.full:
            return False
        if self._limits.max_bytes is not None and self._files and self._bytes + file.size > self._limits.max_bytes:
            return False
        self._files += 1
        self._bytes += file.size
        if self._limits.max_rows is not None and rows is not None:
            left = max(0, rows - self.position["rows"])
            allowed = self._limits.max_rows - self._rows
            if left > allowed:
                self.position = {"files": self.position["files"], "rows": self.position["rows"] + allowed}
                return False
            self._rows += left
        self.position = {"files": self.position["files"] + 1, "rows": 0}
        return True
