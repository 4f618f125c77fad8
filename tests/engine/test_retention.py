"""What a pipeline asks its retention, and when: with one that only takes notes, and with one that drops rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts, Reason
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.retention.protocol import KeepAll, Report
from spark_mjoin.mjoin.bound import EMIT_FIRST, EmitFirst, Found
from spark_mjoin.model import Array, DiskWork
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.tree import layout
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.slots import Slots
from spark_mjoin.state.store import StateStore

SCHEMA = pa.schema([("k", pa.int64())])
QUERY = "SELECT a.k, b.k AS l FROM a JOIN b ON a.k = b.k"
ROOMY = Overflow(None, "largest", blocking_rows=1000, fuel_bytes=1 << 20)


def piece(input: int, *keys: int) -> Piece:
    return Piece.whole(input, pa.RecordBatch.from_pydict({"k": list(keys)}, schema=SCHEMA))


def pipeline(directory: Path, overflow: Overflow | None = ROOMY) -> Pipeline:
    options = Options.parse({"query": QUERY, "source.a.format": "arrow", "source.b.format": "arrow"})
    tree = (0, 1)
    state = PartitionState.empty(tree, layout(plan_join(options, [SCHEMA, SCHEMA]), tree), {}, tracked=True)
    draft = StateStore(str(directory), 0).draft(1, "test")
    return Pipeline(state, Plan(tree, overflow=overflow), draft, BatchCounts([0, 0]), lambda: 0.0)


class Noting(KeepAll):
    """Keeps everything, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        self.asked.append(("begin", tuple(side_by_side)))

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        self.asked.append(("arriving", member, piece.rows.num_rows))
        return piece.data()

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        self.asked.append(("admitted", member, len(arrays[0])))
        return arrays

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        before = operator.tables[member].rows
        yield from found
        self.asked.append(("met", member, before, operator.tables[member].rows))

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        self.asked.append(("leave", full))
        return iter(())

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        self.asked.append(("end", idle))
        return iter(())

    def after_pass(self, buckets: Iterable[int]) -> None:
        self.asked.append(("after_pass", tuple(buckets)))

    def after_no_pass(self, buckets: Array) -> None:
        self.asked.append(("after_no_pass", buckets.size))

    def waits_for_pass(self) -> bool:
        self.asked.append(("waits_for_pass",))
        return False

    def tidy(self, has_time: bool) -> None:
        self.asked.append(("tidy", has_time))

    def report(self) -> Report:
        self.asked.append(("report",))
        return Report()


def test_what_is_asked_while_rows_arrive(tmp_path: Path) -> None:
    batch = pipeline(tmp_path)
    batch.retention = noting = Noting()
    found = sum(rows.num_rows for rows in batch.arrivals([piece(0, 1, 2), piece(1, 2, 2, 3)], side_by_side=(2, 3)))
    assert found == 2
    assert noting.asked == [
        ("begin", (2, 3)),
        ("arriving", 0, 2),
        ("admitted", 0, 2),
        ("met", 0, 0, 2),
        ("leave", False),
        ("arriving", 1, 3),
        ("admitted", 1, 3),
        ("met", 1, 0, 3),
        ("leave", False),
        ("end", False),
    ]


def test_a_batch_without_rows_says_so_at_its_end(tmp_path: Path) -> None:
    batch = pipeline(tmp_path)
    batch.retention = noting = Noting()
    assert list(batch.arrivals([])) == []
    assert noting.asked == [("begin", ()), ("end", True)]


def test_what_is_asked_after_disk_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = pipeline(tmp_path)
    list(batch.arrivals([piece(0, 1, 2), piece(1, 2)]))
    batch.retention = noting = Noting()
    list(batch.disk_work(DiskWork((1, 5, 9))))
    list(batch.disk_work(DiskWork((5,), visited=0)))
    assert noting.asked == [("after_pass", (1, 5, 9))], "a visit leaves results pending"
    noting.asked.clear()
    list(batch.tidy_disk())
    assert noting.asked == [("waits_for_pass",), ("tidy", True)]
    noting.asked.clear()
    monkeypatch.setattr("spark_mjoin.engine.cleanup.MOST_RECORDS", -1)
    list(batch.tidy_disk())
    assert noting.asked == [("after_no_pass", 64), ("waits_for_pass",), ("tidy", True)]


def test_a_full_memory_is_known_before_rows_are_evicted(tmp_path: Path) -> None:
    batch = pipeline(tmp_path, Overflow(1, "largest", blocking_rows=0, fuel_bytes=1 << 20))
    batch.retention = noting = Noting()
    list(batch.arrivals([piece(0, 1, 2)]))
    assert ("leave", True) in noting.asked and batch.counts.evicted.rows == 2


class Dropping(KeepAll):
    """Drops every row in memory after each piece, once what it has found is emitted."""

    def __init__(self, batch: Pipeline, emitted: list[int]) -> None:
        self.batch, self.emitted, self.seen = batch, emitted, list[int]()

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        yield EMIT_FIRST
        self.seen.append(sum(self.emitted))
        root = self.batch.state.root
        for member, table in enumerate(root.tables):
            if member == 1:
                root.depart(member, np.ones(table.rows, np.bool_), Reason.EXPIRED)


def test_what_was_found_is_emitted_before_rows_leave(tmp_path: Path) -> None:
    """Rows of b leave after each piece: what they have found must be looked up before."""
    batch, emitted = pipeline(tmp_path), list[int]()
    batch.retention = dropping = Dropping(batch, emitted)
    out = []
    for rows in batch.arrivals([piece(0, 1, 2), piece(1, 2, 2), piece(1, 1, 7), piece(1, 1, 2)]):
        emitted.append(rows.num_rows)
        out += rows.to_pylist()
    assert sorted((row["k"], row["l"]) for row in out) == [(1, 1), (1, 1), (2, 2), (2, 2), (2, 2)]
    assert dropping.seen == [0, 2, 3, 5]
    assert batch.counts.departures == {Reason.EXPIRED: 6} and batch.counts.dropped.purged == 6
    assert batch.state.root.totals == [2, 0], "rows that no segment has are as if they had never come"
