"""The state of one join partition at one version: rows of every input, counters, and the segments that persist it.

Rows are in segments from the commit of the batch that brought them, in memory or not. So leaving memory writes nothing
that would not be written anyway: a flush saves what is not saved yet, and forgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_mjoin.metrics import BatchCounts, EdgeCounts, Edges, faded
from spark_mjoin.model import JoinSpec, Position
from spark_mjoin.state.buckets import BUCKETS, bucket_class
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.residency import Residency, Victim
from spark_mjoin.state.table import Table


@dataclass(frozen=True)
class Segment:
    """A file with rows start..end-1 of one input, counted in order of arrival."""

    name: str
    input: int
    start: int
    end: int
    level: int  # how often its rows were merged: segments of a level are merged into one of the next
    bytes: int
    crc32: int
    clusters: list[int] | None = None  # the bucket of each record batch; None where rows are in order of arrival
    last: int = 0  # the most events that were before the arrival of a row

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class PartitionState:
    """Rows are only ever added, so a version is known by their number: state v + 1 is state v and the rows after it.

    A *tracked* state may give up memory; it knows the bucket and the arrival of every row.
    """

    spec: JoinSpec
    version: int
    positions: Mapping[str, Position]  # how far each source was read to get here
    tables: list[Table]  # the rows in memory
    totals: list[int]  # rows of each input, in memory and on disk
    saved: list[int]  # rows of each table that are in segments; the rest came in this batch
    groups: Groups
    residency: Residency
    tracked: bool = False
    segments: list[Segment] = field(default_factory=list)
    edges: Edges = field(default_factory=dict)  # what probes have seen, lately more than long ago
    results: int = 0  # rows given out since the query began
    orders: list[str] = field(default_factory=list)  # the last probing order of each input, for people

    @staticmethod
    def empty(spec: JoinSpec, positions: Mapping[str, Position], tracked: bool = False) -> PartitionState:
        n = len(spec.inputs)
        return PartitionState(
            spec,
            0,
            positions,
            [new_table(spec, i, tracked) for i in range(n)],
            totals=[0] * n,
            saved=[0] * n,
            groups=Groups.empty(spec),
            residency=Residency(n),
            tracked=tracked,
            orders=[""] * n,
        )

    def absorb(self, batch: BatchCounts) -> None:
        """Add a batch's counts to the sums."""
        self.results += batch.rows_out
        self.learn(batch.work.edges, sum(batch.rows_in))

    def learn(self, edges: Edges, rows: int) -> None:
        """Add what probes saw in a batch of so many arriving rows."""
        self.edges = faded(self.edges, rows)
        for context, counts in edges.items():
            if counts.probes:
                self.edges.setdefault(context, EdgeCounts()).add(counts)

    def evict(self, victims: Iterable[Victim]) -> int:
        """Let rows leave memory, all of which must be saved; returns how many did."""
        victims = list(victims)
        event = self.residency.flush(victims)
        gone = 0
        for number in sorted({v.input for v in victims}):
            table = self.tables[number]
            assert self.saved[number] == table.rows, "rows must be in a segment before they leave memory"
            stays = self.residency.flushed(number, table.buckets, table.arrived) != event
            counts = np.bincount(table.buckets[~stays], minlength=BUCKETS)
            table.keep(stays)
            self.saved[number] = table.rows
            self.groups.leave(number, counts)
            gone += int(counts.sum())
        arrived = np.concatenate([table.arrived for table in self.tables])
        self.groups.flushed(int(np.median(arrived)) if arrived.size else 0)
        return gone

    def stored_row_bytes(self, number: int) -> float:
        """The mean size of a row of an input in segments."""
        mine = [s for s in self.segments if s.input == number]
        return sum(s.bytes for s in mine) / max(1, sum(s.end - s.start for s in mine))

    def stored_bytes(self, buckets: Sequence[int], number: int | None = None) -> int:
        """About how many bytes some buckets have in segments: of one input's own, or of the main class in all."""
        rows = self.groups.resident + self.groups.disk
        total = 0.0
        for i in range(len(self.tables)) if number is None else (number,):
            own = number is not None or i in self.groups.main
            total += self.stored_row_bytes(i) * float(rows[i, list(buckets)].sum() if own else rows[i].sum())
        return int(total)

    def nbytes(self) -> int:
        return sum(table.nbytes() for table in self.tables)


def new_table(spec: JoinSpec, number: int, tracked: bool) -> Table:
    """An empty table for an input's rows."""
    return Table(spec.inputs[number], bucket_class(spec, number) if tracked else None)
