"""A query as the product runs it, under the product's own options; in virtual time.

    options ──> Planner.next_batch ──> Pipeline: arrivals, planned disk work ──> StateStore.commit ──> manifest
                     └───────────────────── the next slice begins with what was committed ◄─────────────────┘

A slice of the arrivals is a micro-batch. The driver's part is the product's `Planner`, which reads the manifest of the
batch before; the executor's part is its `Pipeline` and its store. Nothing is set by hand that a user could not set:
`plan`, `flush`, `memory`, `diskFuel`, `blockingThreshold`. What is not here is Spark, and the sources.

For comparison, disk work may be done in another way than the planner says (`disk`):

    planned      as the planner says
    leaf first   the lowest operator that has something on disk, in every slice, as operators do that know of no other
    blocked      none while anything arrives: only when all inputs block
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pyarrow as pa

from benchmarks.paper.inputs import Stream
from benchmarks.paper.machine import COMPARISON_SECONDS, HASH_SECONDS, MOVE_SECONDS, Work
from benchmarks.paper.virtual import Run, Simulation, scratch
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver import manager
from spark_mjoin.driver.choice import Planner
from spark_mjoin.driver.costs import Costs
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.replan import replan
from spark_mjoin.evidence import Held
from spark_mjoin.mjoin.punctuations import marks
from spark_mjoin.model import DiskWork
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore

Disk = Literal["planned", "leaf first", "blocked"]
SLICES = 200  # of the arrivals, by time and by rows: each is a batch that commits its state
ATTEMPT = "run"


@dataclass(frozen=True)
class Query:
    """A query with its options, as a user would give them."""

    name: str
    options: Mapping[str, str]
    disk: Disk = "planned"


def run_query(
    query: Query, streams: Mapping[str, Stream], slower: float, blocking: float = math.inf, slices: int | None = None
) -> Run:
    """Evaluate a query over streams, as `plans.run` does."""
    with scratch() as directory:
        return _Product(query, streams, slower, blocking, slices or SLICES, directory).run()


class _Product(Simulation):
    def __init__(
        self, query: Query, streams: Mapping[str, Stream], slower: float, blocking: float, slices: int, place: Path
    ) -> None:
        super().__init__(query.name, streams, slower, blocking, slices)
        options = Options.parse({**query.options, **{f"source.{name}.format": "arrow" for name in streams}})
        spec = plan_join(options, [streams[source.alias].rows.schema for source in options.sources])
        costs = Costs(HASH_SECONDS * slower, MOVE_SECONDS * slower, COMPARISON_SECONDS * slower)
        self._spec, self._disk, self._slower = spec, query.disk, slower
        self._planner = Planner(spec, options.settings, costs)
        self._plan = Plan(trees.chosen(options.settings.plan, spec))
        tree = self._plan.tree
        self._state = PartitionState.empty(tree, trees.layout(spec, tree), {}, tracked=True)
        self._store, self._version = StateStore(str(place), 0), 0
        self._counts, self._done, self._flushed = self._nothing(), Work(), 0
        self._numbers = {spec.sources[input.source].alias: n for n, input in enumerate(spec.inputs)}
        self._arriving: dict[str, list[pa.RecordBatch]] = {}  # what the next batch may take in, by stream
        self._arrived = [0] * len(spec.inputs)  # rows so far
        self._began = self._took = self._free = 0.0  # when the last batch began, what its arrivals took, what is free

    def _nothing(self) -> BatchCounts:
        return BatchCounts([0] * len(self._spec.inputs))

    # --- batches ---

    def arrive(self, stream: str, rows: pa.RecordBatch) -> None:
        self._arriving.setdefault(stream, []).append(rows)
        self._arrived[self._numbers[stream]] += rows.num_rows

    def slice_ended(self) -> None:
        self._batch(ended=False)

    def disk_work(self, ended: bool) -> bool:
        return self._batch(ended)

    def _batch(self, ended: bool) -> bool:
        """One micro-batch; False where there is nothing to do."""
        committed = self._store.manifest(self._version) if self._version else None
        rates = [rows / max(self._now, 1e-9) for rows in self._arrived]
        planned = self._planner.next_batch(self._plan, [committed], self._arriving, rates, ended, self._spare())
        if not self._arriving and not planned.has_disk_work:
            return False
        plan = self._compared(planned.plan, committed)
        waiting = () if plan.overflow is None else plan.overflow.waiting
        now = {name: batches for name, batches in self._arriving.items() if name not in waiting}
        self._arriving = {name: batches for name, batches in self._arriving.items() if name in waiting}
        self._plan = plan
        self._run([(self._numbers[name], rows) for name, batches in sorted(now.items()) for rows in batches])
        return True

    def _spare(self) -> float:
        """As the reader measures it: the time since the last batch that its arrivals did not take, if any was free.

        A batch without arrivals says nothing.
        """
        began, self._began = self._began, self._now
        ended = self._samples[-1][0]  # the last batch
        if self._took:
            self._free = (self._now - began - self._took) / self._took if self._now > ended else 0.0
        return self._free

    def _run(self, arriving: list[tuple[int, pa.RecordBatch]]) -> None:
        """What a task does (`spark_mjoin.engine.batch`)."""
        plan, version = self._plan, self._version + 1
        batch = Pipeline(self._state, plan, self._store.draft(version, ATTEMPT), self._counts, self._clock)
        if batch.state.tree != plan.tree:
            self._give(replan(batch, self._spec, plan.tree))
        inputs, state = self._spec.inputs, batch.state
        pieces = (Piece.whole(n, rows, state.delivered()[n], marks(inputs[n], rows)) for n, rows in arriving)
        self._give(batch.arrivals(pieces))
        if plan.overflow is not None:
            self._give(batch.planned_work(plan.overflow.work_of(0)))
        self._state = batch.state
        self._counts.held = Held(memory_bytes=batch.state.nbytes())
        self._store.commit(batch.state, version, {}, self._counts, ATTEMPT)
        self._done, self._flushed, self._took = self.work(), self.rows_flushed(), self._counts.memory_to_memory.seconds
        self._version, self._counts = version, self._nothing()

    def _give(self, batches: Iterator[pa.RecordBatch]) -> None:
        for rows in batches:
            self.results += rows.num_rows

    # --- other ways to do disk work ---

    def _compared(self, plan: Plan, committed: Manifest | None) -> Plan:
        """The plan with the disk work of the way that is looked at."""
        if self._disk == "planned" or plan.overflow is None or not self._arriving:
            return plan
        work = self._leaf_first(plan.overflow, committed) if self._disk == "leaf first" else ()
        return replace(plan, overflow=replace(plan.overflow, work=(work,), waiting=()))

    def _leaf_first(self, overflow: Overflow, committed: Manifest | None) -> tuple[DiskWork, ...]:
        pairs = [] if committed is None else zip(self._planner.layout(committed), committed.operators, strict=True)
        for place, figures in reversed(list(pairs)):
            given = manager.Circumstances(overflow.fuel_bytes, arriving=frozenset(), ended=False)
            (alone,) = manager.decide([replace(place, parent=None)], [[figures]], given)
            if alone.work:
                return tuple(replace(work, urgent=True, operator=place.number) for work in alone.work)
        return ()

    # --- time ---

    def _clock(self) -> float:
        return self.work().seconds(self._slower)

    def work(self) -> Work:
        """Rows are written when they are evicted, as in the papers, and read by visits and passes."""
        counts = self._counts
        done = [*(phase.work for phase in counts.phases), *counts.below.values()]
        read = counts.disk_to_disk.work.moves + counts.disk_to_memory.work.moves
        return sum(map(Work.of, done), Work(disk_rows=counts.evicted.rows + read)) + self._done

    def rows_flushed(self) -> int:
        return self._flushed + self._counts.evicted.rows

    def comparisons(self) -> tuple[int, ...]:
        return ()
