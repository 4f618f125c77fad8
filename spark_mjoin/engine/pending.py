"""What was pending in old partitions when their number has changed: the first batch of the new ones emits it.

    one MJoin    each new partition that gets rows of an old one passes over its segments, and leaves out the rows that
                 it does not get
    a tree       results of one operator are rows of another, which are in no segment yet. So the new partition that
                 owns the first slot of the old one resumes its whole state, emits all that is pending there from the
                 leaves up, and forgets that state. What it writes on the way, in the old directory, it removes.
    copies       where rows had copies in several old partitions, a combination is pending in one of them alone. Its
                 rows need not go to one new partition from there. So the one that owns the first slot of the old one
                 emits everything, as with a tree.

Right because: each combination of rows that were in one place is in one new partition (state.layouts), and each old
partition has one first slot. Whoever emits a result, it is one: nobody asks from which partition it comes. The rows
themselves are taken over apart from this (engine.takeover).
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import pyarrow as pa

from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import cleanup, loading, overflow
from spark_mjoin.engine.disk import Disk
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.takeover import Donor, Heir, donors_of
from spark_mjoin.mjoin.orders import Probing
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import Segment
from spark_mjoin.state.segments import Segments
from spark_mjoin.task import PartitionTask


def emit(task: PartitionTask, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """What a new partition emits of what is pending in old ones; batch: its first."""
    for donor in donors_of(task, batch.plan):
        if donor.is_single and not donor.routing.layout.replicates:
            yield from _of_one(donor, Heir(batch.plan.routing, task.partition), batch)
        elif donor.is_last and donor.is_pending:
            yield from _of_all(task, donor, batch)


def _of_one(donor: Donor, heir: Heir, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """Of a partition with one MJoin, as far as an heir gets its rows."""
    debt = donor.debt()
    if debt:
        of, store = donor.root.spec, donor.store
        store.segments = _SegmentsOfHeir(store.directory, donor, heir)
        probing = Probing(of, [None] * len(of.inputs), ()).looking_up()
        disk = Disk(donor.root, store, overflow.work_area(batch.overflow), batch.counts.disk_to_disk, probing)
        yield from cleanup.clean(disk, debt)


def _of_all(task: PartitionTask, donor: Donor, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """Of a partition: everything."""
    store, attempt = donor.store, batch.draft.attempt
    tree, positions = donor.manifest.tree, donor.manifest.positions
    state = loading.load(store, task.spec, tree, donor.version, positions, batch.overflow)
    counts = BatchCounts([0] * len(task.spec.inputs))  # nobody asks what the old partition does
    old = Pipeline(state, batch.plan, store.draft(donor.version + 1, attempt), counts, batch.clock, batch.limit)
    try:
        yield from old.arrivals(())  # none, but from here on it knows how far inputs have come
        yield from old.emit_pending()
    finally:
        store.discard(attempt)
    batch.note_peak(counts.peak_bytes)


class _SegmentsOfHeir(Segments):
    """The files of an old partition, without the rows that an heir does not get."""

    def __init__(self, directory: Directory, donor: Donor, heir: Heir) -> None:
        super().__init__(directory)
        self._donor, self._heir = donor, heir

    def batches(self, segment: Segment, buckets: Container[int] | None = None) -> Iterator[tuple[int | None, Any]]:
        for bucket, batch in super().batches(segment, buckets):
            yield bucket, self._own(segment, batch)

    def rows(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in self.batches(segment))

    def _own(self, segment: Segment, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.take(pa.array(self._donor.chosen(segment.input, batch, self._heir)))
