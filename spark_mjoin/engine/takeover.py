"""The first version of a partition after the number of partitions has changed: rows are taken over from the old ones.

    old routing   | 0          | 1          |        version since - 1, of every partition
    new routing   | 0     | 1      | 2      |        partition 1 takes the rows in its slots from 0 and from 1

Right because: a combination has one key of the class by which rows are divided, so all its rows are in one slot. They
were in one old partition, and are in one new partition. What was pending of them there is emitted in the first batch of
the new partitions (engine.pending). So each combination of the rows that are taken over is emitted. That is all that
has to be known of them: they are marked as emitted. A later combination has a row that comes later, and is found as
ever.

Only rows of inputs are taken over, as members of one MJoin. Intermediate results of a tree are made anew, as whenever
the plan changes (engine.replan). Rows that were dropped stay behind.

A pure function of the old manifests, of the plan and of the partition: attempts take over the same rows in the same
order. They are written to segments of the partition's own with its first version, and when memory is full before. Their
age is forgotten, except as far as they were let in by different fractions.

What else goes along: promises (engine.inheritance), how far inputs have come, what rows stand for, what probes have
seen, and the sample for estimates. What is counted since the query began, such as results, goes from an old partition
to the one new partition that owns its first slot, so that sums over partitions stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import inheritance, overflow, sampling
from spark_mjoin.engine.disk import READ_ROWS, Part
from spark_mjoin.engine.kept import Kept
from spark_mjoin.errors import StateError
from spark_mjoin.evidence import EdgeCounts, Edges, edges_of
from spark_mjoin.mjoin.statistics import over_inputs
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.tree import layout, single
from spark_mjoin.state.admitted import Admitted
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.progress import Progress
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.sample import Sample
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.slots import Slots
from spark_mjoin.state.store import Draft, StateStore
from spark_mjoin.task import PartitionTask

log = logging.getLogger(__name__)

PIECE_SHARE = 1 << 12  # bytes of memory for each row that comes at once
LEAST_ROWS = 1 << 8


def take_over(task: PartitionTask, plan: Plan, draft: Draft, counts: BatchCounts) -> PartitionState:
    """The state that a partition starts with: that of the old partitions as far as it is in its slots.

    By the plan of the batch that makes a version: it says how much memory there is, and where rows come from.
    """
    heir, every_input = Heir(plan.routing, task.partition), single(len(task.spec.inputs))
    donors = donors_of(task, plan)
    positions = donors[0].manifest.positions
    if any(donor.manifest.positions != positions for donor in donors):
        raise StateError(
            f"state version {plan.routing.since - 1} in {task.location} has read its sources to different positions in "
            "different partitions. Restore the checkpoint and 'stateLocation' of the same time, or start with a new "
            "checkpoint"
        )
    state = PartitionState.empty(every_input, layout(task.spec, every_input), positions, plan.overflow is not None)
    state.version, state.since = plan.routing.since - 1, plan.routing.since
    state.results = sum(donor.manifest.results for donor in donors if donor.is_last)
    taking = _Taking(state, heir, donors, draft, counts, plan.overflow)
    taking.figures()
    taking.sample()
    for donor in donors:
        taking.rows(donor)
    taking.conclude()
    log.info("took over %d rows from %d partitions", taking.count, len(donors))
    counts.taken_over += taking.count
    return state


def donors_of(task: PartitionTask, plan: Plan) -> list[Donor]:
    """The old partitions that may have rows of the new one."""
    routing, before = plan.routing, plan.routing.before
    assert before is not None and task.location is not None
    slots, held = routing.slots(task.partition), routing.holds(task.partition)
    out = []
    for partition in range(before.partitions):
        theirs = before.slots(partition)
        if before.holds(partition).common(held):
            store = StateStore(task.location, partition, task.compression, before)
            common = theirs.common(slots)
            is_last = bool(slots.have(np.array([theirs.first])).item())
            share, weight = common / theirs.size, common / slots.size
            out.append(Donor(task.spec, store, before, partition, routing.since - 1, share, weight, is_last))
    return out


@dataclass(frozen=True)
class Heir:
    """A new partition."""

    routing: Routing
    partition: int

    @property
    def slots(self) -> Slots:
        return self.routing.slots(self.partition)


@dataclass(frozen=True, eq=False)
class Donor:
    """An old partition at the last version of its routing."""

    spec: JoinSpec
    store: StateStore
    routing: Routing
    partition: int
    version: int
    share: float  # of its slots that are the heir's
    weight: float  # of the heir's slots that are its own
    is_last: bool  # whether what is counted once for all goes to the heir

    @cached_property
    def manifest(self) -> Manifest:
        return self.store.manifest(self.version)

    @cached_property
    def state(self) -> PartitionState:
        """All but its rows, which stay in segments."""
        manifest = self.manifest
        state = PartitionState.empty(manifest.tree, layout(self.spec, manifest.tree), manifest.positions, True)
        for operator, kept in zip(state.operators, manifest.operators, strict=True):
            operator.take(kept)
            self.store.rows.read_departed(operator, kept)
            operator.segments = list(kept.segments)
        return state

    @property
    def root(self) -> OperatorState:
        return self.state.root

    @property
    def is_single(self) -> bool:
        """Whether all inputs are in one MJoin, so that what is known of it is known of the heir's."""
        return len(self.manifest.operators) == 1

    @property
    def is_pending(self) -> bool:
        """Whether some results are still to be emitted."""
        return any(figures.groups is not None for figures in self.manifest.operators) and any(
            operator.groups.in_debt().any() for operator in self.state.operators
        )

    def debt(self) -> tuple[int, ...]:
        """The buckets in which results are pending."""
        if all(figures.groups is None for figures in self.manifest.operators):
            return ()
        return tuple(int(b) for b in np.flatnonzero(self.root.groups.in_debt()))

    def admitted(self, input: int) -> Admitted:
        operator, member = self.state.inputs()[input]
        return operator.admitted[member]

    def knows_arrivals(self, input: int) -> bool:
        """Whether segments say when a row of an input arrived."""
        operator, _ = self.state.inputs()[input]
        return self.manifest.operators[operator.place.number].residency is not None

    def rows(self, input: int, heir: Heir) -> Iterator[pa.RecordBatch]:
        """The rows of an input in the state that an heir gets from here."""
        operator, member = self.state.inputs()[input]
        for batch in Part(member).read(operator, self.store):
            chosen = self.chosen(input, batch, heir)
            if chosen.size:
                yield batch.take(pa.array(chosen))

    def chosen(self, input: int, batch: pa.RecordBatch, heir: Heir) -> Array:
        """The numbers of those stored rows of an input that an heir gets from here."""
        operator, member = self.state.inputs()[input]
        kept = Kept(operator.spec, member, input, batch)
        here = heir.routing.numbers_of(kept, heir.partition)
        firsts = self.routing.layout.firsts(kept, self.partition, self.routing.partitions)
        return here if firsts is None else here[firsts[here]]

    def edges(self) -> tuple[Edges, Edges]:
        """What probes of the running plan have seen, where it is one MJoin, and those of earlier plans."""
        learned, running = edges_of(self.manifest.learned), Edges()
        for operator, kept in zip(self.state.operators, self.manifest.operators, strict=True):
            if self.is_single:
                running = edges_of(kept.edges)
            else:
                for context, counts in over_inputs(self.spec, operator.place, edges_of(kept.edges)).items():
                    learned.setdefault(context, EdgeCounts()).add(counts)
        return running, learned


@dataclass
class _Taking:
    state: PartitionState
    heir: Heir
    donors: Sequence[Donor]
    draft: Draft  # where rows go that do not fit into memory
    counts: BatchCounts
    overflow: Overflow | None
    unsampled: Sequence[Donor] = ()  # that have no sample
    count: int = 0  # rows so far

    @property
    def root(self) -> OperatorState:
        return self.state.root

    def figures(self) -> None:
        """What is known before there are rows."""
        root = self.root
        root.results = round(sum(d.share * d.root.results for d in self.donors))
        for input, admitted in enumerate(root.admitted):
            admitted.delivered = max(d.admitted(input).delivered for d in self.donors)
        if root.spec.forgetful:
            root.departed.progress = _progress([d.root.progress for d in self.donors])
        if root.spec.promising:
            inheritance.unite(root, [(d.root, d.share) for d in self.donors], self.heir.slots)
        for donor in self.donors:
            if root.tracked and donor.is_single and donor.manifest.root.groups is not None:
                _inherit_groups(root.groups, donor.root.groups, donor.share)

    def sample(self) -> None:
        """A sample, where some donor has one. Rows that are there are sampled as they come.

        But where samples know of rows that were dropped, though they would be needed, these are put together, with
        their rows: for the price that the one decides how small it is that has left out the most.
        """
        spec = self.root.spec
        found = [d.store.rows.read_sample(d.manifest.root.sample, spec) for d in self.donors]
        known = [sample for sample in found if sample is not None]
        if not known:
            return
        united = any(sample.has_lost_rows for sample in known)
        self.unsampled = [d for d, of in zip(self.donors, found, strict=True) if of is None or not united]
        sample = Sample.united(spec, known, self.heir.slots) if united else Sample.empty(spec)
        sample.lost_results = sum(of.lost_results for of, d in zip(found, self.donors, strict=True) if of and d.is_last)
        self.state.watch(sample)

    def rows(self, donor: Donor) -> None:
        """Take the rows of one donor: of all inputs in turn, so that what stays in memory is of all of them."""
        waiting = [self._of_input(donor, input) for input in range(len(self.root.tables))]
        while waiting:
            waiting = [pieces for pieces in waiting if next(pieces, True) is None]

    def _of_input(self, donor: Donor, input: int) -> Iterator[None]:
        """Take the rows of one input, piece by piece, those that were let in alike together."""
        root, theirs = self.root, donor.admitted(input)
        several = len(theirs.cohorts) > 1 and donor.knows_arrivals(input)
        for cohort in range(len(theirs.cohorts)) if several else [None]:
            if root.tracked:
                root.residency.events += 1  # so that ages tell cohorts apart
            since, taken, weight = root.residency.events, 0, theirs.mean_weight(cohort)
            for batch in donor.rows(input, self.heir):
                if cohort is not None:
                    batch = batch.filter(pa.array(theirs.cohort_of(arrived_of(batch)) == cohort))
                taken += batch.num_rows
                for start in range(0, batch.num_rows, self._piece_rows):
                    self._take(donor, input, batch.slice(start, self._piece_rows), weight)
                    yield
            root.admitted[input].inherit(theirs, cohort, taken, since)

    @property
    def _piece_rows(self) -> int:
        """How many rows of an input come at once: few, where not many fit into memory."""
        memory = None if self.overflow is None else self.overflow.memory_bytes
        return READ_ROWS if memory is None else min(max(memory // PIECE_SHARE, LEAST_ROWS), READ_ROWS)

    def _take(self, donor: Donor, input: int, batch: pa.RecordBatch, weight: float) -> None:
        root, table = self.root, self.root.tables[input]
        arrays = [batch.column(stored.field) for stored in table.spec.stored]
        start, end = table.append(arrays, root.residency.events)
        root.totals[input] += end - start
        self.count += end - start
        if root.tracked:
            root.groups.resident[input] += np.bincount(table.buckets_between(start, end), minlength=BUCKETS)
        if root.sample is not None and donor in self.unsampled:
            root.sample.take(input, arrays, root.residency.events, weight)
            sampling.fit(self.state)
        if self.overflow is not None and overflow.is_over(self.state, self.overflow):
            overflow.make_room(self.state, self.overflow, self.draft, self.counts)

    def conclude(self) -> None:
        """All combinations of the rows are emitted; what probes have seen counts as if they had met these rows."""
        root = self.root
        if root.tracked:
            root.residency.clean(range(BUCKETS), root.groups.main)
            root.groups.passed(range(BUCKETS))
        for donor in self.donors:
            running, learned = donor.edges()
            for mine, theirs in ((root.probed.edges, running), (self.state.learned, learned)):
                for context, counts in theirs.items():
                    mine.setdefault(context, EdgeCounts()).add(self._as_here(donor, counts, context[2]))
        if root.sample is not None:
            sampling.fit(self.state)
            sampling.mark_emitted(self.state)

    def _as_here(self, donor: Donor, counts: EdgeCounts, target: int) -> EdgeCounts:
        """What probes of a donor would have seen here: so many of them, and so many rows to meet."""
        theirs = donor.manifest.rows[target]
        met = self.root.totals[target] / theirs if theirs else 1.0
        out = EdgeCounts()
        out.add(counts, donor.share)
        out.candidates *= met
        out.chunks = counts.chunks * donor.weight
        return out


def _progress(of: Sequence[Progress]) -> Progress:
    """How far inputs have come, as several partitions know it. Nothing is pending, so no round is needed any more."""
    inputs = of[0].inputs
    return Progress(
        inputs,
        [max(p.read[i] for p in of) for i in range(inputs)],
        [_last(p.seen[i] for p in of) for i in range(inputs)],
        shortened=[_last(p.shortened[i] for p in of) for i in range(inputs)],
    )


def _last(positions: Iterator[int | None]) -> int | None:
    return max((position for position in positions if position is not None), default=None)


def _inherit_groups(mine: Groups, theirs: Groups, share: float) -> None:
    """What policies go by, besides the rows that are there."""
    mine.recent += share * theirs.recent
    mine.results += share * theirs.results
    mine.completed += share * theirs.completed
    mine.young_results += share * theirs.young_results
    mine.all_results += share * theirs.all_results
