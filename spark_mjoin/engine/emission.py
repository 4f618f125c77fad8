"""When the results of a batch leave.

    rows can be read again     results leave as they are found: a later attempt reads the same rows
    rows were brought          results wait until the batch is committed: its rows are durable before the first leaves

Rows that were brought cannot be asked for again, and a later attempt may be brought others. If results had left before
the commit, and their attempt died, state and sink would disagree. As it is, an attempt that dies before its commit has
emitted nothing; one that comes after a commit compares its rows (state.attempts), and emits only if they are the same.

Results wait in memory, up to half of what a task may hold of brought rows, and more of them in a temporary file. A
batch to which nothing is brought does not wait: it depends on the state and its plan alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_mjoin.engine.delivered import spool_bytes
from spark_mjoin.engine.feed import Feed
from spark_mjoin.engine.temporary import Spill
from spark_mjoin.state.manifest import Brought
from spark_mjoin.task import PartitionTask

HELD_SHARE = 2  # of the bytes of brought rows that a task may hold, one in so many: these are gone by then
READ_BYTES = 4 << 20  # of the file at a time: as much as a worker sends ahead of Spark
_ONLY = 0  # the group of all results in their file


def held_bytes(task: PartitionTask) -> int:
    """How many bytes of results wait in memory."""
    return spool_bytes(task) // HELD_SHARE


@dataclass
class Emission:
    """The results of one task. `early`, the commit, and `late` follow each other."""

    schema: pa.Schema
    brought: Brought  # empty: results do not wait
    most_bytes: int  # of results that wait in memory
    _held: list[pa.RecordBatch] = field(default_factory=list)
    _held_bytes: int = 0
    _file: Spill | None = None

    @staticmethod
    def of(task: PartitionTask, feed: Feed) -> Emission:
        comes = task.location is not None and task.start != task.end
        return Emission(task.spec.schema, feed.brought() if comes else (), held_bytes(task))

    def early(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What leaves before the commit. All results are found at its end."""
        if not self.brought:
            yield from results
            return
        for found in results:
            self._hold(found)

    def late(self) -> Iterator[pa.RecordBatch]:
        """What leaves after it."""
        if self._file is not None:
            yield from self._file.read(_ONLY, READ_BYTES)
        held, self._held = self._held, []
        yield from held

    def _hold(self, found: pa.RecordBatch) -> None:
        self._held.append(found)
        self._held_bytes += found.nbytes
        if self._held_bytes > self.most_bytes:
            self._file = self._file or Spill(self.schema)
            for each in self._held:
                self._file.write(_ONLY, each)
            self._held, self._held_bytes = [], 0
