"""Plans as trees of joins on the engine, each join with a share of the memory; run in virtual time.

    arrivals in slices ──> leaf inputs ──arrive──> results ──> the parent's input ──arrive──> ... ──> root: counted
                                over its memory: make_room ──┘

A join of the tree is an `OperatorState` of the engine with memory and a store of its own, driven through the phases as
`spark_mjoin.engine.batch` does. One n-way join is a tree of one node; a plan of XJoins is a tree of two-input joins.
Memory is divided between the joins of a plan by their weights. All share one processor, so the work of one delays all.
While inputs block, disk work begins at the root; when they have ended, at the leaves.

The engine's own trees, with one budget over all joins, are in `pipelines`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from benchmarks.paper.inputs import Stream
from benchmarks.paper.machine import Work
from benchmarks.paper.virtual import Run, Simulation, scratch
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver.manager import Circumstances, decide
from spark_mjoin.driver.watermarks import advance
from spark_mjoin.engine import arrival, cleanup, overflow, reactive
from spark_mjoin.engine.arrival import Gate
from spark_mjoin.engine.disk import Disk
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention import retention_of
from spark_mjoin.engine.retention.protocol import Retention
from spark_mjoin.engine.sampling import Sampler
from spark_mjoin.mjoin.bound import Bound
from spark_mjoin.mjoin.operator import Joining
from spark_mjoin.mjoin.orders import Probing, Targets, choose_all, order_of, probe_order
from spark_mjoin.mjoin.punctuations import marks
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.mjoin.windows import Windows
from spark_mjoin.model import DiskWork, Expiry, JoinSpec, ProbeOrder, Purging
from spark_mjoin.plan import Overflow
from spark_mjoin.plan import Plan as BatchPlan
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import Draft, StateStore

SLICES = 500  # of the arrivals, by time and by rows: no more than this share is taken in at once


@dataclass(frozen=True)
class Join:
    """A node of a plan: a query over streams, by their names, and over other joins, by theirs."""

    name: str
    query: str
    inputs: tuple[str | Join, ...]
    weight: float  # its share of the memory, over the sum of the plan's weights
    options: tuple[tuple[str, str], ...] = ()  # windows, promises


@dataclass(frozen=True)
class Plan:
    """How a query is evaluated."""

    name: str
    root: Join
    flush: str = "adaptive"
    memory_bytes: int | None = None  # over all joins; None: no limit
    # Of probes: "smallest" or "largest" input first, "adaptive", by declared sizes, or what each input visits.
    order: Sequence[int] | Mapping[int, Targets] | str = "smallest"


def run(
    plan: Plan, streams: Mapping[str, Stream], slower: float, blocking: float = math.inf, slices: int | None = None
) -> Run:
    """Evaluate a plan over streams, on a processor `slower` times slower than the paper's.

    After `blocking` seconds without arrivals disk work begins.
    """
    with scratch() as directory:
        return _Simulation(plan, streams, slower, blocking, slices or SLICES, directory).run()


@dataclass
class _Operator:
    """One join of a plan."""

    spec: JoinSpec
    state: OperatorState
    draft: Draft
    overflow: Overflow | None
    order: Sequence[int] | Mapping[int, Targets] | str
    probing: Probing
    purging: Purging | None = None
    parent: tuple[_Operator, int] | None = None  # and which of its inputs this is
    counts: BatchCounts = field(default_factory=lambda: BatchCounts([]))
    disk_rows: int = 0
    learned_rows: int = 0
    comparisons: list[int] = field(default_factory=list)
    retention: Retention = field(init=False)

    @property
    def alone(self) -> PartitionState:
        """As a plan of one operator, which has its memory for itself."""
        return PartitionState(tuple(range(len(self.spec.inputs))), 0, {}, [self.state])

    def arrive(self, input: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The results that arriving rows complete; afterwards the join keeps to its memory."""
        state = self.state
        piece = Piece.whole(input, rows, state.admitted[input].delivered, marks(self.spec.inputs[input], rows))
        work = self.counts.work()
        before = work.comparisons
        yield from arrival.results(state, self.retention.met(state, input, piece, self._found(input, piece)))
        self.comparisons[input] += work.comparisons - before
        for _ in self.retention.leave(self._is_over()):
            continue  # all results are emitted
        if self.overflow is not None and self._is_over():
            flushed = self.counts.evicted.rows
            overflow.make_room(self.alone, self.overflow, self.draft, self.counts)
            self.disk_rows += self.counts.evicted.rows - flushed

    def _found(self, input: int, piece: Piece) -> Iterator[Bound]:
        state = self.state
        start, end = arrival.insert(state, input, piece, self.counts, Gate(retention=self.retention))
        windows = Windows.of(self.spec, state.progress)
        joining = Joining(self.spec, state.tables, self.counts.work(), windows)
        yield from joining.produce(self._order(input), start, end)

    def _is_over(self) -> bool:
        return self.overflow is not None and overflow.is_over(self.alone, self.overflow)

    def keep(self, expiry: Expiry | None = None) -> None:
        """Let rows leave from now on as in a batch with such watermarks."""
        alone, plan = self.alone, BatchPlan(self.alone.tree, expiry=expiry, purging=self.purging)
        self.state.departures = self.counts.departures
        self.retention = retention_of(alone, plan, self.draft, self.counts, Sampler(alone, None, self.draft.store))

    def disk_work(self, ended: bool) -> DiskWork | None:
        """The most promising piece of disk work, as the state manager sees it."""
        if self.overflow is None or not self.state.residency.overflowed():
            return None
        (decision,) = decide([self.state.place], [[self.state.figures()]], Circumstances(1, frozenset(), ended))
        return next(iter(decision.work), None)

    def perform(self, work: DiskWork) -> Iterator[pa.RecordBatch]:
        assert self.overflow is not None
        state, groups, area = self.state, self.state.groups, overflow.work_area(self.overflow)
        store = self.draft.store
        self.draft.save(state)
        if work.visited is not None:
            self.disk_rows += int(groups.disk[work.visited, list(work.buckets)].sum())
            disk = Disk(state, store, area, self.counts.disk_to_memory, Probing.unplanned(self.spec))
            yield from reactive.visit(disk, work.visited, work.buckets[0])
            return
        rows = groups.resident + groups.disk
        for i in range(len(rows)):
            self.disk_rows += int(rows[i, list(work.buckets)].sum() if i in groups.main else rows[i].sum())
        disk = Disk(state, store, area, self.counts.disk_to_disk, Probing.unplanned(self.spec))
        yield from cleanup.clean(disk, work.buckets)
        self.retention.after_pass(work.buckets)

    def expire(self, ended: Collection[str]) -> None:
        """At the end of a slice, as between two batches: move the watermarks, and drop what they let go."""
        if self.spec.windowed:
            idle = [n for n, i in enumerate(self.spec.inputs) if self.spec.sources[i.source].alias in ended]
            marks = advance(self.spec, self.state.progress.watermarks, self.state.progress.seen, idle)
            self.keep(Expiry(marks))
            self.retention.begin((), {})

    def work(self) -> Work:
        done = sum((Work.of(phase.work) for phase in self.counts.phases), Work(disk_rows=self.disk_rows))
        return done + Work.of(self.counts.purging)

    def learn(self) -> None:
        """At the end of a slice, as between two batches: keep what probes have seen, and plan the next orders."""
        if self.order == "adaptive":
            rows = sum(self.counts.rows_in)
            self.state.probed.learn(self.counts.work().edges, rows - self.learned_rows)
            self.counts.work().edges, self.learned_rows = {}, rows
            sizes = [float(table.rows) for table in self.state.tables]
            statistics = Statistics.of(self.spec, sizes, self.state.probed.edges)
            self.probing = Probing(self.spec, choose_all(statistics, sizes, self.probing.planned)[0])

    def _order(self, input: int) -> ProbeOrder:
        sizes = [table.rows for table in self.state.tables]
        if self.order == "adaptive":
            return self.probing.order(input, sizes, self.state.probed.edges, self.counts.work().edges)
        if isinstance(self.order, str):
            sign = {"smallest": 1, "largest": -1}[self.order]
            return probe_order(self.spec, input, [sign * rows for rows in sizes])
        if isinstance(self.order, Mapping):
            return order_of(self.spec, input, self.order[input])
        return probe_order(self.spec, input, self.order)


class _Simulation(Simulation):
    def __init__(
        self, plan: Plan, streams: Mapping[str, Stream], slower: float, blocking: float, slices: int, directory: Path
    ) -> None:
        super().__init__(plan.name, streams, slower, blocking, slices)
        self._operators: list[_Operator] = []  # children before parents
        self._leaves: dict[str, tuple[_Operator, int]] = {}
        self._taken = dict.fromkeys(streams, 0)  # rows so far
        self._most_rows = 0
        weights = sum(join.weight for join in _joins(plan.root))
        self._build(plan, plan.root, weights, directory)

    def _build(self, plan: Plan, join: Join, weights: float, directory: Path) -> _Operator:
        children = {i.name: self._build(plan, i, weights, directory) for i in join.inputs if isinstance(i, Join)}
        schemas = {name: child.spec.schema for name, child in children.items()}
        schemas |= {name: self.streams[name].rows.schema for name in join.inputs if isinstance(name, str)}
        formats = {f"source.{name}.format": "arrow" for name in schemas}
        options = Options.parse({"query": join.query, **formats, **dict(join.options)})
        spec = plan_join(options, [schemas[source.alias] for source in options.sources])
        limit = None
        if plan.memory_bytes is not None:
            share = int(plan.memory_bytes * join.weight / weights)
            limit = Overflow(share, plan.flush, blocking_rows=0, fuel_bytes=1 << 62)
        state = OperatorState.alone(spec, tracked=limit is not None)
        draft = StateStore(str(directory / join.name), 0).draft(1, "run")
        purging = Purging(options.settings.purge_every) if spec.promising else None
        operator = _Operator(spec, state, draft, limit, plan.order, Probing.unplanned(spec), purging)
        operator.counts = BatchCounts([0] * len(spec.inputs))
        operator.keep()
        operator.comparisons = [0] * len(spec.inputs)
        for number, input in enumerate(spec.inputs):
            name = spec.sources[input.source].alias
            if name in children:
                children[name].parent = (operator, number)
            else:
                self._leaves[name] = (operator, number)
        self._operators.append(operator)
        return operator

    def arrive(self, stream: str, rows: pa.RecordBatch) -> None:
        self._taken[stream] += rows.num_rows
        operator, input = self._leaves[stream]
        self._give(operator, operator.arrive(input, rows))

    def _give(self, operator: _Operator, batches: Iterator[pa.RecordBatch]) -> None:
        """Pass the results of a join on to the one above; what the root gives is out."""
        for rows in batches:
            if operator.parent is None:
                self.results += rows.num_rows
            else:
                above, input = operator.parent
                self._give(above, above.arrive(input, rows))

    def slice_ended(self) -> None:
        ended = [name for name, rows in self._taken.items() if rows == self.streams[name].seconds.size]
        for operator in self._operators:
            operator.learn()
            operator.expire(ended)
        self.held = sum(table.rows for operator in self._operators for table in operator.state.tables)
        self._most_rows = max(self._most_rows, self.held)

    def run(self) -> Run:
        return replace(super().run(), most_rows=self._most_rows)

    def disk_work(self, ended: bool) -> bool:
        """Of the join nearest to the root that has some; in the end from the leaves up."""
        for operator in self._operators if ended else reversed(self._operators):
            work = operator.disk_work(ended)
            if work is not None:
                self._give(operator, operator.perform(work))
                return True
        return False

    def work(self) -> Work:
        return sum((operator.work() for operator in self._operators), Work())

    def rows_flushed(self) -> int:
        return sum(operator.counts.evicted.rows for operator in self._operators)

    def comparisons(self) -> tuple[int, ...]:
        return tuple(self._operators[-1].comparisons)


def _joins(join: Join) -> list[Join]:
    return [*(found for i in join.inputs if isinstance(i, Join) for found in _joins(i)), join]
