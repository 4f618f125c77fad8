"""The rows of an operator in segments: saving those that have come, and bringing back those that are to be in memory.

Rows are saved when their batch is committed, or before they leave memory. Rows that have left the state for good stay
in their segment until all of the segment have, or until most of an input's have (`compact`). What is known about them
(`departed`) has files here too, and so has the sample that estimates are made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa

from spark_mjoin.errors import StateError
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS, of_hashes
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import OperatorFigures, SampleFigures, Segment
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.records import Packed
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.sample import Sample
from spark_mjoin.state.segments import (
    WRITE_ROWS,
    Segments,
    arrived_of,
    by_bucket,
    cut,
    decoded,
    label,
    place,
    together,
)


class StoredRows:
    """Of one partition."""

    def __init__(self, directory: Directory, segments: Segments) -> None:
        self._directory, self._segments = directory, segments
        self._written = 0  # segments, by which their names differ

    # --- saving ----------------------------------------------------------------------------------------------

    def save(self, state: OperatorState, number: int, version: int, attempt: str) -> None:
        """Put the rows of an input that are in no segment yet into one, which `version` will name.

        Once rows have left memory, segments are clustered by bucket: those of a bucket are read together then.
        """
        table, saved = state.tables[number], state.saved[number]
        fresh = table.rows - saved
        if not fresh:
            return
        mine = [s for s in state.segments if s.input == number]
        clustered = state.tracked and (state.residency.overflowed() or bool(mine and mine[-1].clusters is not None))
        end = state.totals[number]
        start, level, replaced = place(mine, clustered, end - fresh)
        if clustered:
            sections = self._segments.merged(replaced, cut(table, saved, table.rows))
        else:
            apart = state.departed.is_possible  # then some rows of older segments may not be in memory any more
            older = [(0, batch) for s in replaced for _, batch in self._segments.batches(s)] if apart else []
            low = saved if apart else table.rows - (end - start)
            sections = chain(older, ((0, batch) for batch in table.pieces(low, table.rows, WRITE_ROWS)))
        name = self._name(state, number, version, attempt)
        each = (end - start) // (BUCKETS if clustered else 1)
        size, crc32, clusters = self._segments.write_rows(name, table.arrow(0, 0).schema, sections, each, attempt)
        last = max([state.residency.events if state.tracked else 0, *(s.last for s in replaced)])
        newest = state.departed.newest(number, table, saved)
        if newest is not None:
            newest = max([newest, *(s.newest for s in replaced if s.newest is not None)])
        of = Packed.of(clusters, "b") if clustered else None
        written = Segment(name, number, start, end, level, size, crc32, of, last, newest)
        state.segments = [s for s in state.segments if s not in replaced] + [written]
        state.saved[number] = table.rows

    def compact(self, state: OperatorState, version: int, attempt: str) -> bool:
        """Let the segments of an input go whose rows are gone for the most part, and write the others anew.

        Rows are numbered anew then. Where all that is left is in memory, they are simply not saved any more. So each
        row that is purged is read or written again a few times at the most, and disk stays in proportion to the state.
        """
        found = False
        for number, table in enumerate(state.tables):
            if not state.departed.is_scattered(number):
                continue
            mine = [s for s in state.segments if s.input == number]
            fresh = table.rows - state.saved[number]
            left = state.totals[number] - state.departed.counts[number] - fresh
            if 2 * left > sum(s.rows for s in mine):
                continue
            found = True
            kept = [s for s in state.segments if s.input != number]
            if not state.groups.disk[number].any():
                state.saved[number] = 0
                left = 0
            elif left:
                kept.append(self._rewrite(state, number, mine, left, version, attempt))
            state.segments = kept
            state.totals[number] = left + table.rows - state.saved[number]
            state.departed.forget(number)
        return found

    def _rewrite(
        self, state: OperatorState, number: int, segments: list[Segment], rows: int, version: int, attempt: str
    ) -> Segment:
        """One segment with the rows of some that are in the state."""
        table = state.tables[number]
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(BUCKETS)]
        for segment in segments:
            for _, batch in self._segments.batches(segment):
                for of, part in by_bucket(state.departed.living(number, batch), table.bucket_key):
                    parts[of].append(part)
        sections = ((bucket, batch) for bucket, of in enumerate(parts) for batch in together(of))
        name = self._name(state, number, version, attempt)
        schema = table.arrow(0, 0).schema
        size, crc32, clusters = self._segments.write_rows(name, schema, sections, rows // BUCKETS, attempt)
        level, last = max(s.level for s in segments), max(s.last for s in segments)
        newest = max((s.newest for s in segments if s.newest is not None), default=None)
        return Segment(name, number, 0, rows, level, size, crc32, Packed.of(clusters, "b"), last, newest)

    def _name(self, state: OperatorState, number: int, version: int, attempt: str) -> str:
        self._written += 1
        return f"rows-{version:012d}-{label(state.place, number)}-{self._written}-{attempt}.arrow"

    def save_departed(self, state: OperatorState, version: int, attempt: str) -> None:
        """Write what is known about rows that have departed, as far as it is in no file yet."""
        state.departed.save(self._segments, version, attempt)

    def save_sample(self, sample: Sample, version: int, attempt: str) -> None:
        """Write the sample, unless it is as it was."""
        if sample.file is None:
            rows, name = sample.rows(), f"sample-{version:012d}-{attempt}.arrow"
            size, crc32, _ = self._segments.write(name, rows.schema, [(0, rows)], attempt)
            sample.file = Segment(name, 0, 0, rows.num_rows, 0, size, crc32)

    # --- bringing back ---------------------------------------------------------------------------------------

    def bring_in(
        self, state: OperatorState, segments: list[Segment], rows: Sequence[int], fresh: bool
    ) -> Iterator[None]:
        """Put the rows of segments that a state does not have yet, and that are to be in memory, into their tables.

        It stops after each piece: should the state be too large by then, rows can be evicted before it goes on.
        """
        for number, expected in enumerate(rows):
            found = state.totals[number]
            for segment in segments:
                if segment.input == number and segment.end > found:
                    yield from self._take_in(state, segment, found - segment.start, fresh)
                    found = segment.end
            if found != expected and not state.departed.empties_segments(number):
                raise StateError(
                    f"the state in {self._directory.location} is damaged: it has {found} rows "
                    f"of input '{state.spec.inputs[number].alias}' where its manifest counts {expected}"
                )
            state.tables[number].put_in_order()
        state.totals = list(rows)
        state.saved = [table.rows for table in state.tables]
        state.segments = segments

    def _take_in(self, state: OperatorState, segment: Segment, skip: int, fresh: bool) -> Iterator[None]:
        """Put the rows of a segment that are to be in memory, from number `skip` on, into their table."""
        number, skip, found = segment.input, max(skip, 0), 0
        table, residency = state.tables[number], state.residency
        for bucket, batch in self._segments.stored(segment):
            found += batch.num_rows
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            stored, skip = batch.slice(skip), 0
            if bucket is not None and residency.all_gone(number, bucket, segment.last):
                continue
            batch = state.departed.living(number, decoded(stored))
            if residency.departures[number]:
                gone = residency.flushed(number, buckets_of(state, number, batch), arrived_of(batch))
                batch = batch.filter(pa.array(np.equal(gone, NEVER)))
            start, end = table.append([batch.column(s.field) for s in table.spec.stored], arrived_of(batch))
            state.saved[number] = end
            if state.tracked and fresh:
                state.groups.load(number, np.bincount(table.buckets_between(start, end), minlength=BUCKETS))
                yield
        if found != segment.rows:
            raise StateError(
                f"state file {self._directory.path(segment.name)} is damaged: it has {found} rows, expected "
                f"{segment.rows}; restore it, or start with a new checkpoint"
            )

    def mark_emitted(self, state: OperatorState, segments: Iterable[Segment], results: int) -> None:
        """Let an empty operator know that everything the rows in some segments have is out, and count the rows."""
        segments = list(segments)
        state.residency.events = max([state.residency.events, *(segment.last for segment in segments)])
        state.residency.clean(range(BUCKETS), state.groups.main)
        state.groups.results += results / BUCKETS
        for segment in segments:
            for _, batch in self._segments.batches(segment):
                state.groups.disk[segment.input] += np.bincount(
                    buckets_of(state, segment.input, batch), minlength=BUCKETS
                )
        state.groups.chances += state.groups.possible()

    def read_departed(self, state: OperatorState, kept: OperatorFigures) -> None:
        """What a version knows about rows that have departed."""
        state.departed.read(self._segments, kept)

    def read_sample(self, kept: SampleFigures | None, spec: JoinSpec) -> Sample | None:
        """The sample of a version, if it has one; spec: all inputs in one join."""
        return None if kept is None else Sample.read(spec, kept, self._segments.only(kept.file))


def buckets_of(state: OperatorState, number: int, batch: pa.RecordBatch) -> Array:
    """The buckets of some rows of a segment."""
    return of_hashes(hash_array(batch.column(state.tables[number].bucket_key)))
