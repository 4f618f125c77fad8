"""Changing the plan between two batches, without losing or repeating a result.

    1. emit      everything that the rows so far have, by the old plan
    2. adopt     inputs, and results over the same inputs as before, keep their rows and their segments
    3. build     results that the new plan stores and the old one did not are computed, from the leaves up
    4. resume    every operator starts with all combinations of its rows emitted

Right because: after 1 every combination of the rows so far is emitted, in every operator of the old plan, so a result
over some inputs is complete; it depends on those inputs alone (query.tree), so it can be taken over as it is. After 3
the same holds in the new plan. A later combination has a row that comes later, and is found as in any plan.

With a budget, rows are read from their segments again and are evicted as they are when a state is loaded. Where an
operator has other keys than before, buckets are others too: its segments count as not clustered then.

Not covered: knowing when a change pays (driver.decompose); it reads all rows once, so it should be rare.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_mjoin.engine import cleanup, overflow
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.mjoin.orders import Probing
from spark_mjoin.mjoin.statistics import add_to, over_inputs
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.query.tree import layout
from spark_mjoin.state.buckets import BUCKETS, bucket_class
from spark_mjoin.state.manifest import Segment
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import EVERY, Victim


def replan(batch: Pipeline, spec: JoinSpec, tree: Tree) -> Iterator[pa.RecordBatch]:
    """Go over to another plan of a join; emits what is pending in the old one."""
    yield from batch.emit_pending()
    old = batch.state
    _conclude(batch)
    state = PartitionState.empty(tree, layout(spec, tree), old.positions, old.tracked)
    state.version, state.results, state.learned, state.since = (
        old.version,
        old.results,
        old.learned,
        batch.draft.version,
    )
    state.lineage = old.lineage
    state.resume_traffic(old.traffic)
    for operator in old.operators:
        add_to(state.learned, over_inputs(spec, operator.place, operator.probed.edges))
    started, phase = batch.clock(), batch.counts.disk_to_disk
    change = Change(batch, old, state)
    for operator in reversed(state.operators):  # those below come first
        change.take_over(operator)
        change.build(operator)
    if old.sample is not None:
        old.sample.restart()
        old.sample.complete_at = state.results + batch.counts.rows_out, old.sample.clock
        state.watch(old.sample)
    batch.resume(state)
    batch.note_peak(phase.peak_bytes)
    phase.seconds += batch.clock() - started


def _conclude(batch: Pipeline) -> None:
    """End the work of the old plan: what was counted so far is about its operators, and memory is for the new ones."""
    for operator in batch.state.operators:
        work = batch.counts.work(operator.place.number)
        operator.probed.learn(work.edges, 0)
        work.edges = {}
        if operator.tracked:
            for number in range(len(operator.tables)):
                _forget(batch, operator, number)


def _forget(batch: Pipeline, operator: OperatorState, number: int) -> None:
    """Evict the rows of a member, to be loaded again with their operator."""
    batch.draft.save(operator, (number,))
    operator.tables[number] = new_table(operator.spec, number, tracked=True)
    operator.saved[number] = 0


@dataclass(frozen=True)
class Change:
    """From one plan of a join to another, operator by operator."""

    batch: Pipeline
    old: PartitionState
    new: PartitionState

    def stored(self, leaves: tuple[int, ...]) -> tuple[OperatorState, int] | None:
        """Where the old plan has the rows of an input, or of a result over some inputs."""
        members = ((o, m) for o in self.old.operators for m in range(len(o.tables)))
        return next(((o, m) for o, m in members if o.place.leaves[m] == leaves), None)

    def take_over(self, operator: OperatorState) -> None:
        """Give an operator the rows of its members; those that had to be built are there already."""
        above = self.new.above(operator)
        if above is None:
            operator.results = self.old.root.results
        elif (known := self.stored(above[0].place.leaves[above[1]])) is not None:
            operator.results = known[0].totals[known[1]]
        for member in range(len(operator.tables)):
            if (known := self.stored(operator.place.leaves[member])) is not None:
                self._adopt(operator, member, *known)
        if operator.tracked:
            self._load(operator)

    def _adopt(self, operator: OperatorState, member: int, source: OperatorState, number: int) -> None:
        if not operator.tracked:
            operator.tables[member] = source.tables[number]
            operator.saved[member] = source.saved[number]
        same = bucket_class(operator.spec, member) == bucket_class(source.spec, number)
        operator.segments += [_moved(s, member, same) for s in source.segments if s.input == number]
        operator.totals[member] = source.totals[number]
        operator.admitted[member] = source.admitted[number]
        operator.probed.orders[member] = ""

    def _load(self, operator: OperatorState) -> None:
        """Read the rows of a tracked operator from the segments that all are in; all their combinations are emitted."""
        store = self.batch.draft.store
        rows, segments = operator.totals, operator.segments
        empty = OperatorState.empty(operator.place, tracked=True)
        operator.tables, operator.totals, operator.saved = empty.tables, empty.totals, empty.saved
        operator.groups, operator.residency = empty.groups, empty.residency
        store.rows.mark_emitted(operator, segments, operator.results)
        for _ in store.rows.bring_in(operator, segments, rows, fresh=True):
            overflow.evict_loaded(self.new, self.batch.overflow)

    def build(self, operator: OperatorState) -> None:
        """Compute the results of an operator for the one above, if they were not stored before."""
        above = self.new.above(operator)
        if above is None:
            return
        parent, member = above
        if self.stored(parent.place.leaves[member]) is not None:
            return
        probing = Probing.unplanned(operator.spec)
        disk = self.batch.disk(operator, self.batch.counts.disk_to_disk, probing)
        found = cleanup.everything(disk) if operator.tracked else cleanup.all_of(disk, operator.tables)
        for rows in found:
            operator.results += rows.num_rows
            parent.totals[member] += rows.num_rows
            parent.tables[member].append(list(rows.columns), 0)
            self.batch.limit.check(self.new)
            if self.batch.overflow is not None and overflow.is_over(self.new, self.batch.overflow):
                parent.residency.flush([Victim(member, EVERY)])  # segments are clustered from now on
                _forget(self.batch, parent, member)
        if operator.tracked:
            _forget(self.batch, parent, member)
        operator.groups.results += operator.results / BUCKETS


def _moved(segment: Segment, member: int, same_buckets: bool) -> Segment:
    return segment._replace(input=member, clusters=segment.clusters if same_buckets else None)
