"""Trees of joins as the engine runs them, with one memory budget over all joins; in virtual time.

    a slice of arrivals ──> Pipeline.arrivals ──> results
                  └─ and what `decide` says:  disk work of one operator;  inputs that wait until the next slice

The state is one `PartitionState` with all operators of the tree, and the phases are the engine's own `Pipeline`: rows
leave memory wherever the flush policy finds them. A slice stands for a micro-batch. It begins with the state manager's
decision, from the figures that a task would have committed; how it decides is a plan's `disk`:

    root down    `planner.manager.decide`: the first operator from the root whose disk work promises more results than
                 its memory work; the inputs below it wait, for one slice at the most
    leaf first   the lowest operator that has something on disk, in every slice, as operators do that know of no other
    blocked      none while anything arrives: only when all inputs block

A slice does one piece of disk work, a visit or a pass over one bucket, at the most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from benchmarks.paper import plans
from benchmarks.paper.inputs import Stream
from benchmarks.paper.machine import Work
from benchmarks.paper.virtual import Run, Simulation, scratch
from spark_mjoin.config import Options
from spark_mjoin.metrics import BatchCounts
from spark_mjoin.model import BatchPlan, DiskWork, OverflowPlan
from spark_mjoin.phases.pipeline import Pipeline
from spark_mjoin.planner import manager
from spark_mjoin.planner import tree as trees
from spark_mjoin.planner.graph import plan_join
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore

Disk = Literal["root down", "leaf first", "blocked"]
ONE_PIECE = 1  # fuel for one pass or visit


@dataclass(frozen=True)
class TreePlan:
    """A query as a tree of joins, written as option `plan` is."""

    name: str
    query: str
    tree: str
    memory_bytes: int
    flush: str = "adaptive"
    disk: Disk = "root down"


def run_tree(
    plan: TreePlan, streams: Mapping[str, Stream], slower: float, blocking: float = math.inf, slices: int | None = None
) -> Run:
    """Evaluate a plan over streams, as `plans.run` does."""
    with scratch() as directory:
        return _TreeSimulation(plan, streams, slower, blocking, slices or plans.SLICES, directory).run()


class _TreeSimulation(Simulation):
    def __init__(
        self, plan: TreePlan, streams: Mapping[str, Stream], slower: float, blocking: float, slices: int, place: Path
    ) -> None:
        super().__init__(plan.name, streams, slower, blocking, slices)
        options = Options.parse({"query": plan.query, **{f"source.{name}.format": "arrow" for name in streams}})
        spec = plan_join(options, [streams[source.alias].rows.schema for source in options.sources])
        tree = trees.parse(plan.tree, spec)
        state = PartitionState.empty(tree, trees.layout(spec, tree), {}, tracked=True)
        limit = OverflowPlan(plan.memory_bytes, plan.flush, blocking_rows=0, fuel_bytes=1 << 62)
        counts = BatchCounts([0] * len(spec.inputs))
        batch = BatchPlan(tree, overflow=limit)
        store = StateStore(str(place), 0)
        self._pipeline = Pipeline(state, store, batch, 1, "run", counts, lambda: 0.0, lambda state: None)
        self._disk = plan.disk
        self._numbers = {spec.sources[input.source].alias: n for n, input in enumerate(spec.inputs)}
        self._arriving: dict[int, list[pa.RecordBatch]] = {}  # in this slice, by the number of the input
        self._held = False  # whether inputs waited in the last slice
        self._disk_rows = 0

    def arrive(self, stream: str, rows: pa.RecordBatch) -> None:
        self._arriving.setdefault(self._numbers[stream], []).append(rows)

    def slice_ended(self) -> None:
        decision = self._decide()
        waiting = frozenset() if self._held else decision.waiting
        now = [(n, rows) for n, batches in sorted(self._arriving.items()) if n not in waiting for rows in batches]
        self._arriving = {n: batches for n, batches in self._arriving.items() if n in waiting}
        self._held = bool(self._arriving)
        flushed = self._pipeline.counts.rows_flushed
        self._give(self._pipeline.arrivals(iter(now), (0, 1)))
        self._disk_rows += self._pipeline.counts.rows_flushed - flushed
        for work in decision.work:
            if work.urgent:
                self._perform(work)

    def _decide(self) -> manager.Decision:
        if self._disk == "root down":
            return manager.decide(self._committed(), ONE_PIECE, frozenset(self._arriving), ended=False)
        if self._disk == "leaf first":
            for operator in reversed(self._committed()):
                planned = manager.plan_work(operator.place.spec, operator.figures, ONE_PIECE, ended=False)
                if planned:
                    number = operator.place.number
                    work = tuple(DiskWork(w.buckets, w.visited, urgent=True, operator=number) for w in planned)
                    return manager.Decision(work=work)
        return manager.Decision()

    def disk_work(self, ended: bool) -> bool:
        if ended and self._arriving:  # what waited in the last slice
            self._held = True
            self.slice_ended()
            return True
        work = manager.decide(self._committed(), ONE_PIECE, frozenset(), ended).work
        for piece in work:
            self._perform(piece)
        return bool(work)

    def _perform(self, work: DiskWork) -> None:
        operator = self._pipeline.state.operators[work.operator]
        groups, flushed = operator.groups, self._pipeline.counts.rows_flushed
        if work.visited is not None:
            self._disk_rows += int(groups.disk[work.visited, list(work.buckets)].sum())
        else:
            rows = groups.resident + groups.disk
            for i in range(len(rows)):
                self._disk_rows += int(rows[i, list(work.buckets)].sum() if i in groups.main else rows[i].sum())
        self._give(self._pipeline.disk_work(work))
        self._disk_rows += self._pipeline.counts.rows_flushed - flushed

    def _give(self, batches: Iterator[pa.RecordBatch]) -> None:
        for rows in batches:
            self.results += rows.num_rows

    def _committed(self) -> list[manager.Committed]:
        """What a task would have committed about each operator."""
        return [
            manager.Committed(
                operator.place,
                {
                    "residency": operator.residency.to_json(),
                    "groups": operator.groups.to_json(),
                    "segments": [segment.to_json() for segment in operator.segments],
                },
            )
            for operator in self._pipeline.state.operators
        ]

    def work(self) -> Work:
        counts = self._pipeline.counts
        done = [*(phase.work for phase in counts.phases), *counts.below.values()]
        return sum(map(Work.of, done), Work(disk_rows=self._disk_rows))

    def rows_flushed(self) -> int:
        return self._pipeline.counts.rows_flushed

    def comparisons(self) -> tuple[int, ...]:
        return ()
