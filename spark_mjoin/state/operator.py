"""The state of one operator of a plan: the rows of its members, counters, and the segments that persist them.

A member is an input of the join, or the result of another operator. Rows are in segments from the commit of the batch
that brought them, in memory or not. So an eviction writes nothing that would not be written anyway: it saves what is
not saved yet, and forgets. Rows leave for good through `depart` alone; segments may still hold them (`departed`).

    tables, totals, saved, segments    rows
    groups, residency                  how many there are in each bucket, when they came and were evicted
    departed, admitted                 what has left for good, and what was not let in
    probed                             what probes have seen
    sample                             rows by which to estimate what is pending or lost
    traffic                            how many rows have come lately, of which keys
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_mjoin.counts import Departures, Reason
from spark_mjoin.evidence import kept_edges
from spark_mjoin.model import Array, JoinSpec, OperatorSpec
from spark_mjoin.state.admitted import Admitted
from spark_mjoin.state.arrivals import median
from spark_mjoin.state.buckets import BUCKETS, bucket_class
from spark_mjoin.state.departed import Departed
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifest import OperatorFigures, Segment, Signature
from spark_mjoin.state.probed import Probed
from spark_mjoin.state.progress import Progress
from spark_mjoin.state.promises import Promises
from spark_mjoin.state.residency import Residency, Victim
from spark_mjoin.state.sample import Sample
from spark_mjoin.state.table import Table
from spark_mjoin.state.traffic import Traffic


@dataclass
class OperatorState:
    """Rows are only ever added, so a version is known by their number: state v + 1 is state v and the rows after it.
    Some of them may not count any more, as `departed` says.

    A *tracked* state may evict rows; it knows the bucket and the arrival of every row. So does one from which rows
    depart.
    """

    place: OperatorSpec
    tables: list[Table]  # the rows in memory
    totals: list[int]  # rows of each member, in memory and on disk
    saved: list[int]  # rows of each table that are in segments; the rest came in this batch
    groups: Groups
    residency: Residency
    departed: Departed  # what is known about rows that have left for good
    probed: Probed
    admitted: list[Admitted]  # of each member that is an input
    tracked: bool = False
    segments: list[Segment] = field(default_factory=list)
    results: int = 0  # combinations emitted since the operator is there
    sample: Sample | None = None  # of the inputs of the whole join: all operators of a plan have the same one
    traffic: Traffic | None = None  # of the inputs of the whole join, too
    departures: Departures = field(default_factory=Departures)  # of this batch

    @staticmethod
    def empty(place: OperatorSpec, tracked: bool = False) -> OperatorState:
        spec, n = place.spec, len(place.spec.inputs)
        tracked = tracked or spec.forgetful
        return OperatorState(
            place,
            [new_table(spec, i, tracked) for i in range(n)],
            totals=[0] * n,
            saved=[0] * n,
            groups=Groups.empty(spec),
            residency=Residency(n),
            departed=Departed(place),
            probed=Probed([""] * n),
            admitted=[Admitted() for _ in range(n)],
            tracked=tracked,
        )

    @staticmethod
    def alone(spec: JoinSpec, tracked: bool = False) -> OperatorState:
        """The state of a join that is one operator."""
        leaves = tuple((i,) for i in range(len(spec.inputs)))
        return OperatorState.empty(OperatorSpec(0, spec, leaves, None), tracked)

    @property
    def spec(self) -> JoinSpec:
        return self.place.spec

    @property
    def progress(self) -> Progress:
        return self.departed.progress

    @property
    def promises(self) -> Promises:
        return self.departed.promises

    def emit_late(self, buckets: Array) -> None:
        """Count results of disk work, given the bucket of each."""
        self.results += buckets.size
        self.groups.emit_late(buckets)

    def evict(self, victims: Iterable[Victim]) -> int:
        """Evict rows, all of which must be saved; returns how many."""
        victims = list(victims)
        event = self.residency.flush(victims)
        gone = 0
        for number in sorted({v.input for v in victims}):
            table = self.tables[number]
            assert self.saved[number] == table.rows, "rows must be in a segment before they are evicted"
            own = table.buckets
            stays = self.residency.flushed(number, own, table.arrived) != event
            counts = np.bincount(own[~stays], minlength=BUCKETS)
            table.keep(stays)
            self.saved[number] = table.rows
            self.groups.leave(number, counts)
            gone += int(counts.sum())
        self.groups.flushed(median([table.arrivals for table in self.tables]))
        return gone

    def depart(self, member: int, rows: Array | Table | int, reason: Reason, on_disk: Array | None = None) -> int:
        """Let rows leave for good, and count them by the reason: the one way out. Returns how many did.

        rows: which of the last rows of the member's table, as a mask; or a table of rows that were kept apart from
        them; or how many that never came into a table. on_disk: how many more in each bucket, on disk alone.

        That rows in segments are gone must be known by a rule (`departed`).
        """
        if isinstance(rows, np.ndarray):
            count = self._depart_from_table(member, rows, np.zeros(BUCKETS, np.int64) if on_disk is None else on_disk)
        elif isinstance(rows, Table):
            count = self._depart_from_apart(member, rows)
        else:
            count = rows
        self.departures[reason] += count
        return count

    def _depart_from_table(self, member: int, gone: Array, on_disk: Array) -> int:
        table, from_disk = self.tables[member], int(on_disk.sum())
        start = table.rows - gone.size
        saved = int(gone[: max(0, self.saved[member] - start)].sum())
        unsaved = int(gone.sum()) - saved
        rows = start + np.flatnonzero(gone)
        self.groups.drop(member, np.bincount(table.buckets_of(rows), minlength=BUCKETS), on_disk)
        self.admitted[member].leave(table.arrivals.of(rows), from_disk)
        if start:
            table.keep_of_last(start, ~gone)
        else:
            table.keep(~gone)
        self.saved[member] -= saved
        self.totals[member] -= unsaved  # as if they had never come: they are in no segment
        self.departed.counts[member] += saved + from_disk
        return saved + unsaved + from_disk

    def _depart_from_apart(self, member: int, passed: Table) -> int:
        """Those that stay stand for these too."""
        self.totals[member] -= passed.rows
        if self.tracked:
            counts = np.bincount(passed.buckets, minlength=BUCKETS)
            self.groups.drop(member, counts, np.zeros(BUCKETS, np.int64))
        self.admitted[member].forget(passed.rows)
        return passed.rows

    def forget_departed(self) -> None:
        """Forget rows in memory that have departed, as a later version says; all rows are saved."""
        if not self.departed.is_possible:
            return
        for number, table in enumerate(self.tables):
            gone = self.departed.gone_of(number, table)
            if gone is not None:
                table.keep(~gone)
        self.saved = [table.rows for table in self.tables]

    def forget_empty_segments(self) -> None:
        """Forget segments all of whose rows have departed."""
        if self.departed.is_possible:
            self.segments = [s for s in self.segments if not self.departed.all_gone(s)]
            self.departed.note_held(self.segments)

    def figures(self) -> OperatorFigures:
        """What a manifest says about the operator, all of whose rows are saved."""
        tracked, of_root = self.tracked, self.place.parent is None
        return OperatorFigures(
            tuple(self.totals),
            tuple(self.segments),
            self.results,
            tuple(self.probed.orders),
            kept_edges(self.probed.edges),
            tuple(admitted.figures() for admitted in self.admitted),
            self.probed.scans,
            self.signatures(),
            self.residency.figures() if tracked else None,
            self.groups.figures() if tracked else None,
            self.progress.figures() if self.spec.forgetful else None,
            self.promises.figures() if self.spec.promising else None,
            tuple(self.departed.promise_files),
            tuple(self.departed.purged_files),
            self.sample.figures() if self.sample is not None and of_root else None,
        )

    def take(self, kept: OperatorFigures) -> None:
        """Become what a manifest says, but for rows and what has departed of them."""
        if kept.residency is not None and kept.groups is not None:
            self.residency, self.groups = Residency.of(kept.residency), Groups.of(self.spec, kept.groups)
        self.results, self.probed = kept.results, Probed.of(kept)
        self.admitted = [Admitted.of(each) for each in kept.admitted]

    def signatures(self) -> tuple[Signature | None, ...] | None:
        """What the members mean that are results of other operators; None where there are none."""
        found = tuple(self._signature(number) for number in range(len(self.tables)))
        return found if any(found) else None

    def _signature(self, number: int) -> Signature | None:
        input = self.spec.inputs[number]
        if not input.joined:
            return None
        conditions = tuple(input.joined.conditions)
        return Signature(tuple((column.field, str(column.type)) for column in input.stored), conditions)

    def stored_row_bytes(self, number: int) -> float:
        """The mean size of a row of a member in segments."""
        mine = [s for s in self.segments if s.input == number]
        return sum(s.bytes for s in mine) / max(1, sum(s.end - s.start for s in mine))

    def stored_bytes(self, buckets: Sequence[int], number: int | None = None) -> int:
        """About how many bytes some buckets have in segments: of one member's own, or of the main class in all."""
        rows = self.groups.resident + self.groups.disk
        total = 0.0
        for i in range(len(self.tables)) if number is None else (number,):
            own = number is not None or i in self.groups.main
            total += self.stored_row_bytes(i) * float(rows[i, list(buckets)].sum() if own else rows[i].sum())
        return int(total)

    def nbytes(self) -> int:
        return sum(table.nbytes() for table in self.tables) + self.departed.nbytes()


def new_table(spec: JoinSpec, number: int, tracked: bool) -> Table:
    """An empty table for a member's rows."""
    return Table(spec.inputs[number], bucket_class(spec, number) if tracked else None)
