"""What an operator knows about its rows that have left for good, as long as segments still hold them.

Rows that depart stay in their segments until all of a segment have, or until most of a member's have and the others are
written anew (`stored.compact`). Until then a rule leaves them out, so that a state that is loaded has the same rows as
the one that they left. There are two rules, and nobody outside of this module asks which of them a row has left by:

    by position   rows at or before a position that arrived before an event (progress): where inputs have windows
    by key        rows with a key that arrived before an event (purged): where inputs make promises

What the rules are about is kept with them: how far the inputs have come, and what they have promised.

Not covered: which rows leave and when (`engine.retention`), and counting them (`OperatorState.depart`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_mjoin.model import Array, JoinSpec, OperatorSpec
from spark_mjoin.state.buckets import bucket_classes, of_hashes
from spark_mjoin.state.columns import fixed_values, hash_array
from spark_mjoin.state.manifest import OperatorFigures, Segment
from spark_mjoin.state.progress import Progress
from spark_mjoin.state.promises import Promises
from spark_mjoin.state.purged import Purged, input_keys
from spark_mjoin.state.segments import FAN_OUT, Segments, arrived_of, label, place, together
from spark_mjoin.state.table import Table

FEW_RECORDS = 1024  # of the log of promises, for a segment


@dataclass
class Departed:
    """Of one operator."""

    of: OperatorSpec
    progress: Progress = field(init=False)  # how far its members have come, and the rule by position
    promises: Promises = field(init=False)  # what its members do not deliver any more
    purged: list[Purged] = field(init=False)  # per member, the rule by key
    promise_files: list[Segment] = field(default_factory=list)  # the log of promises; rows are its records
    purged_files: list[Segment] = field(default_factory=list)
    _bucket_keys: list[str] = field(init=False)  # per member, the field of a segment by which rows fall into buckets

    def __post_init__(self) -> None:
        self.progress = Progress(len(self.spec.inputs))
        self.promises = Promises(self.spec)
        self.purged = [Purged() for _ in self.spec.inputs]
        classes = bucket_classes(self.spec)
        self._bucket_keys = [i.stored[dict(i.keys)[c]].field for i, c in zip(self.spec.inputs, classes, strict=True)]

    @property
    def spec(self) -> JoinSpec:
        return self.of.spec

    # --- which rows ------------------------------------------------------------------------------------------

    @property
    def is_possible(self) -> bool:
        """Whether rows of this operator ever leave by a rule, so that segments may hold more than the state has."""
        return self.spec.forgetful

    def living(self, member: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows of segments, without those that have departed."""
        input = self.spec.inputs[member]
        if input.window is not None:
            positions = fixed_values(batch.column(input.stored[input.window.position].field), np.int64)
            buckets = of_hashes(hash_array(batch.column(self._bucket_keys[member])))
            gone = self.progress.gone(member, buckets, arrived_of(batch), positions)
            batch = batch.filter(pa.array(~gone)) if gone.any() else batch
        if self.purged[member]:
            gone = self.purged[member].gone(input_keys(input, batch), arrived_of(batch))
            batch = batch.filter(pa.array(~gone)) if gone.any() else batch
        return batch

    def gone_of(self, member: int, table: Table) -> Array | None:
        """Which rows of a table have departed; None where none have."""
        window, gone = self.spec.inputs[member].window, np.zeros(table.rows, np.bool_)
        if window is not None:
            gone |= self.progress.gone(member, table.buckets, table.arrived, table.position(window.position))
        if self.purged[member]:
            gone |= self.purged[member].gone(table.joint_keys(), table.arrived)
        return gone if gone.any() else None

    def all_gone(self, segment: Segment) -> bool:
        """Whether no row of a segment is left."""
        if segment.newest is None:
            return False
        return self.progress.all_gone(segment.input, segment.buckets, segment.newest, segment.last)

    def empties_segments(self, member: int) -> bool:
        """Whether rows of a member depart in the order in which they come, so that whole segments are left empty."""
        return self.spec.inputs[member].window is not None

    def is_scattered(self, member: int) -> bool:
        """Whether rows of a member have departed from all over its segments, which do not get empty by themselves."""
        return bool(self.purged[member])

    def newest(self, member: int, table: Table, start: int) -> int | None:
        """What `all_gone` will have to know about the rows of a table from number `start` on."""
        window = self.spec.inputs[member].window
        return None if window is None else int(table.position(window.position)[start:].max())

    def note_held(self, segments: Sequence[Segment]) -> None:
        """Count the rows that are to depart and stay in segments, because results with them are pending."""
        held, horizons = self.promises.held, self.progress.horizons
        for s in segments:
            horizon = horizons[s.input] if horizons else None
            if s.newest is not None and horizon is not None and s.newest <= horizon:
                held += s.rows
        self.progress.held = held

    @property
    def counts(self) -> list[int]:
        """Per member, rows that count as stored and have departed."""
        return self.progress.dropped

    def forget(self, member: int) -> None:
        """No segment holds a departed row of a member any more."""
        self.progress.dropped[member] = 0
        self.purged[member] = Purged()
        self.purged_files = [s for s in self.purged_files if s.input != member]

    # --- files -----------------------------------------------------------------------------------------------

    def save(self, segments: Segments, version: int, attempt: str) -> None:
        """Write what is in no file yet."""
        if self.spec.promising:
            self._save_promises(segments, version, attempt)
            self._save_purged(segments, version, attempt)

    def _save_promises(self, segments: Segments, version: int, attempt: str) -> None:
        promises, files = self.promises, self.promise_files
        end = files[-1].end if files else 0
        if promises.is_stale(end):
            files, end, records = [], 0, promises.everything()
        else:
            records = promises.changes_since_commit()
        if records:
            count = sum(batch.num_rows for batch in records)
            start, level, replaced = place(files, False, end, _level(count))
            kept, end = files[: len(files) - len(replaced)], end + count
            sections = ((0, batch) for batch in together([*segments.records(replaced, start), *records]))
            name = f"promises-{version:012d}-{self.of.number}-{attempt}.arrow"
            size, crc32, _ = segments.write(name, records[0].schema, sections, attempt)
            files = [*kept, Segment(name, 0, start, end, level, size, crc32)]
        self.promise_files = files
        promises.committed()

    def _save_purged(self, segments: Segments, version: int, attempt: str) -> None:
        for number, purged in enumerate(self.purged):
            if not purged.fresh:
                continue
            mine = [s for s in self.purged_files if s.input == number]
            if len(mine) >= FAN_OUT - 1:
                self.purged_files = [s for s in self.purged_files if s.input != number]
                batches = [purged.all()]
            else:
                batches = purged.fresh
            rows = sum(batch.num_rows for batch in batches)
            name = f"purged-{version:012d}-{label(self.of, number)}-{attempt}.arrow"
            sections = ((0, batch) for batch in batches)
            size, crc32, _ = segments.write(name, batches[0].schema, sections, attempt)
            self.purged_files.append(Segment(name, number, 0, rows, 0, size, crc32))
            purged.fresh = []

    def read(self, segments: Segments, kept: OperatorFigures) -> None:
        """Become what a version says: all of it, or what one that is older does not have."""
        if kept.progress is not None:
            self.progress = Progress.of(kept.progress)
        if kept.promises is None:
            return
        held = sum(s.rows for s in self.promise_files)
        if not held or self.promises.logs != kept.promises.logs:
            self.promises, held = Promises(self.spec), 0
        self.promises.take(kept.promises)
        self.adopt(kept)
        self.promises.read(segments.records(self.promise_files, held))
        self.purged = [Purged() for _ in self.spec.inputs]
        for file in self.purged_files:
            for _, batch in segments.batches(file):
                self.purged[file.input].read(batch)

    def adopt(self, published: OperatorFigures) -> None:
        """Have the files of a version, which say the same."""
        self.promise_files, self.purged_files = list(published.promise_files), list(published.purged_files)

    def nbytes(self) -> int:
        return self.promises.nbytes()


def _level(records: int) -> int:
    """As often as segments of few records would have been merged to have so many in one."""
    level = 0
    while records > FEW_RECORDS * FAN_OUT:
        records, level = records // FAN_OUT, level + 1
    return level
