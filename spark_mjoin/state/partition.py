"""The state of one join partition at one version: rows of every input, counters, and the segments that persist it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_mjoin.metrics import BatchCounts, EdgeCounts
from spark_mjoin.model import JoinSpec, Position
from spark_mjoin.state.table import Table


@dataclass(frozen=True)
class Segment:
    """A file with rows start..end-1 of one input, in order of arrival."""

    name: str
    input: int
    start: int
    end: int
    level: int  # how often its rows were merged: segments of a level are merged into one of the next
    bytes: int
    crc32: int

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass
class PartitionState:
    """Rows are append-only, so a version is known by its row counts: state v + 1 is state v and the rows after them."""

    spec: JoinSpec
    version: int
    positions: Mapping[str, Position]  # how far each source was read to get here
    tables: list[Table]
    segments: list[Segment] = field(default_factory=list)
    edges: dict[tuple[int, int], EdgeCounts] = field(default_factory=dict)
    results: int = 0  # rows given out since the query began
    orders: list[str] = field(default_factory=list)  # the last probing order of each input, for people

    @staticmethod
    def empty(spec: JoinSpec, positions: Mapping[str, Position]) -> PartitionState:
        return PartitionState(spec, 0, positions, [Table(i) for i in spec.inputs], orders=[""] * len(spec.inputs))

    def absorb(self, batch: BatchCounts) -> None:
        """Add a batch's counts to the sums."""
        self.results += batch.rows_out
        for key, counts in batch.work.edges.items():
            self.edges.setdefault(key, EdgeCounts()).add(counts)

    def nbytes(self) -> int:
        return sum(table.nbytes() for table in self.tables)
