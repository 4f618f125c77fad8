"""When the results of a batch leave: once the rows that they were made of are accounted for.

    few results     held back until the batch is committed; nothing else is written
    many            a record of what was brought is published (state.announced), and results leave as they are found

A feed that can be read again needs neither: results leave as they are found, and a later attempt finds the same rows.
Nor does a batch to which nothing is brought: it depends on the state and its plan alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from spark_mjoin.engine.feed import Feed
from spark_mjoin.state import announced
from spark_mjoin.state.manifest import Brought
from spark_mjoin.state.store import Draft
from spark_mjoin.task import PartitionTask

HELD_BYTES = 4 << 20  # of results that wait for the commit: as much as a worker sends ahead of Spark


@dataclass
class Emission:
    """The results of one task. `early`, the commit, and `late` follow each other."""

    draft: Draft
    aliases: tuple[str, ...]
    brought: Brought  # empty: nobody has to know
    _held: list[pa.RecordBatch] = field(default_factory=list)

    @staticmethod
    def of(task: PartitionTask, feed: Feed, draft: Draft) -> Emission:
        comes = task.location is not None and task.start != task.end
        return Emission(draft, tuple(i.alias for i in task.spec.inputs), feed.brought() if comes else ())

    def early(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What leaves before the commit. All results are found at its end."""
        if self.brought:
            size = 0
            for found in results:
                self._held.append(found)
                size += found.nbytes
                if size > HELD_BYTES:
                    announced.announce(self.draft.store, self.draft.version, self.draft.attempt, *self._said)
                    break
            else:
                self._check()
                return
        yield from self._released()
        yield from results

    def late(self) -> Iterator[pa.RecordBatch]:
        """What leaves after it."""
        if self._held:
            self._check()  # another attempt may have spoken since, and not have seen the manifest
        yield from self._released()

    def _check(self) -> None:
        announced.check(self.draft.store, self.draft.version, *self._said)

    @property
    def _said(self) -> tuple[Brought, tuple[str, ...]]:
        return self.brought, self.aliases

    def _released(self) -> Iterator[pa.RecordBatch]:
        held, self._held = self._held, []
        yield from held
