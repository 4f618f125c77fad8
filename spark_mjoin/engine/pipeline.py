"""One batch of one partition on the operators of its plan: rows go up, disk work goes on below, all in one budget.

    ((a b) c)      arrivals of a, b ──> (a b) ──results──┐
                   arrivals of c ────────────────────────┴──> root ──> results of the join
                   disk work of (a b) ──results──> root, as arrivals

Whatever gives results of an operator, arrivals or disk work, they arrive at the operator above as rows of one of its
members and join what is in memory there. So a pass over the disk of a lower operator completes results of the whole.

Rows leave in two ways. For good: `retention` says which and when (`engine.retention.protocol`). To disk, over budget:
rows are evicted, of whichever operator the policy names. Both are looked at after each batch that arrives anywhere, so
also while an operator is giving results to the one above. The rows of that operator stay then, and others make room.

Combinations travel with a mark among them where row numbers are about to change: see `mjoin.bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import BatchCounts, PhaseCounts
from spark_mjoin.engine import arrival, cleanup, overflow, reactive, sampling
from spark_mjoin.engine.arrival import ALL, Gate, Own
from spark_mjoin.engine.disk import Disk
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.overflow import NO_LIMIT, Limit
from spark_mjoin.engine.retention import retention_of
from spark_mjoin.engine.retention.protocol import Retention
from spark_mjoin.engine.sampling import Sampler
from spark_mjoin.engine.schedule import Turns, by_value
from spark_mjoin.mjoin.bound import EMIT_FIRST, Bound, EmitFirst, Found
from spark_mjoin.mjoin.orders import Probing
from spark_mjoin.model import WHOLE, DiskWork, JoinSpec
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import Draft

NO_FLOORS: Mapping[int, int] = {}
Busy = tuple[OperatorState, ...]  # operators that are giving results just now, and must keep their rows


@dataclass
class Pipeline:
    """The state that a batch changes, and where what it writes goes."""

    state: PartitionState
    plan: Plan
    draft: Draft  # the version that the batch makes
    counts: BatchCounts
    clock: Callable[[], float]  # to say how long phases take
    limit: Limit = NO_LIMIT
    sampled: JoinSpec | None = None  # all inputs in one join, to estimate what is pending or lost; None: do not
    retention: Retention = field(init=False)

    def __post_init__(self) -> None:
        self.resume(self.state)

    def resume(self, state: PartitionState) -> None:
        """Work with this state from now on. What is planned of probes is about the operators of the planned tree."""
        self.state = state
        self.began = sampling.moment(state)
        self.sampler = Sampler(state, self.sampled, self.draft.store)
        self.retention = retention_of(state, self.plan, self.draft, self.counts, self.sampler)
        specs = [operator.spec for operator in state.operators]
        same = state.tree == self.plan.tree
        planned, access = (self.plan.orders, self.plan.access) if same else ((), ())
        self.probing = [
            Probing(spec, planned[n] if planned else [None] * len(spec.inputs), access[n] if access else ())
            for n, spec in enumerate(specs)
        ]
        for operator, probing in zip(state.operators, self.probing, strict=True):
            operator.probed.scans = probing.scans
            operator.departures = self.counts.departures

    @property
    def overflow(self) -> Overflow | None:
        return self.plan.overflow

    # --- rows arrive -----------------------------------------------------------------------------------------

    def arrivals(
        self,
        pieces: Iterable[Piece],
        own: Own = ALL,
        side_by_side: Sequence[int] = (),
        floors: Mapping[int, int] = NO_FLOORS,
    ) -> Iterator[pa.RecordBatch]:
        """Take in pieces of the inputs, and emit what their rows complete.

        side_by_side: how many rows of each input count as if they came one by one, where windows count rows.
        floors: what earlier stages say of results to come (`Feed.floors`).
        """
        self.retention.begin(side_by_side, floors)
        self._begin_sample_if_lossy()
        results = arrival.results(self.state.root, self._found(pieces, own))
        yield from self.counts.memory_to_memory.timed(results, self.clock)

    def _found(self, pieces: Iterable[Piece], own: Own) -> Iterator[Found]:
        places = self.state.inputs()
        for piece in pieces:
            operator, member = places[piece.input]
            bounds = self._arrive(operator, member, piece, self._gate(piece.input, own))
            yield from self.retention.met(operator, member, piece, self._ascend(operator, bounds))
            yield from self._keep_to_budget()
        yield from self.retention.end(idle=not any(self.counts.rows_in))

    def taking_turns(self, turns: Turns) -> Iterator[Piece]:
        """The pieces of all turns, for `arrivals`: by the time that the next is asked for, one has arrived."""
        for number, turn in turns:
            if turns.schedule.tuples == "value":
                for piece, waited in by_value(turn, self.retention):
                    before = self.counts.arrived(number)
                    yield piece
                    self.counts.rows_waited += self.counts.arrived(number) - before if waited else 0
            else:
                yield from turn
            turns.outside = self.counts.work().outside

    def only_insert(self, inputs: Iterable[Iterable[Piece]], own: Own) -> None:
        """Put pieces of the inputs into a state of one operator that keeps all rows, and emit nothing."""
        self._begin_sample_if_lossy()
        places = self.state.inputs()
        for pieces in inputs:
            for piece in pieces:
                operator, member = places[piece.input]
                arrival.insert(operator, member, piece, self.counts, self._gate(piece.input, own))
                self.limit.check(self.state)

    def _gate(self, input: int, own: Own) -> Gate:
        return Gate(own, self.parts(input), self.retention)

    def parts(self, number: int) -> int:
        """How much of WHOLE of an input is let in."""
        return WHOLE if self.plan.admission is None else self.plan.admission[number]

    def _arrive(self, operator: OperatorState, member: int, piece: Piece, gate: Gate) -> Iterator[Bound]:
        return arrival.arrive(operator, member, piece, self.counts, gate, self.probing[operator.place.number])

    def _ascend(self, operator: OperatorState, bounds: Iterator[Bound], busy: Busy = ()) -> Iterator[Found]:
        """The root's combinations that some combinations of an operator lead to: its results arrive above it."""
        above = self.state.above(operator)
        if above is None:
            return bounds
        return self._arrive_above(*above, arrival.results(operator, bounds), (*busy, operator))

    def _arrive_above(
        self, parent: OperatorState, member: int, batches: Iterator[pa.RecordBatch], busy: Busy
    ) -> Iterator[Found]:
        """The root's combinations that results lead to which arrive at an operator."""
        for batch in batches:
            bounds = self._arrive(parent, member, Piece.whole(member, batch), arrival.OPEN)
            yield from self._ascend(parent, bounds, busy)
            yield from self._keep_to_budget(busy)

    def _keep_to_budget(self, busy: Busy = ()) -> Iterator[EmitFirst]:
        """After rows have come: those leave that can go for good, and are evicted that are too many."""
        self.note_peak()
        sampling.fit(self.state)
        yield from self.retention.leave(self._is_over())
        self.limit.check(self.state)
        if self._is_over():
            yield EMIT_FIRST
            self._evict(busy)

    def _is_over(self) -> bool:
        return self.overflow is not None and overflow.is_over(self.state, self.overflow)

    def _evict(self, busy: Busy) -> None:
        assert self.overflow is not None
        self.sampler.begin()
        overflow.make_room(self.state, self.overflow, self.draft, self.counts, busy)

    def note_peak(self, besides: int = 0) -> None:
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.state.nbytes() + besides)

    # --- disk work -------------------------------------------------------------------------------------------

    def emit_pending(self) -> Iterator[pa.RecordBatch]:
        """Emit all that the rows so far have, from the leaves up."""
        for operator in reversed(self.state.operators):
            debt = tuple(int(b) for b in np.flatnonzero(operator.groups.in_debt()))
            if debt:
                yield from self.disk_work(DiskWork(debt, operator=operator.place.number))

    def planned_work(self, planned: Iterable[DiskWork]) -> Iterator[pa.RecordBatch]:
        """Planned disk work, as far as the fuel goes; where many rows came, only what is urgent."""
        assert self.overflow is not None
        fuel = self.overflow.fuel_bytes
        for work in planned:
            if fuel > 0 and (work.urgent or self._is_blocked()):
                fuel -= self.state.operators[work.operator].stored_bytes(work.buckets, work.visited)
                yield from self.disk_work(work)

    def _is_blocked(self) -> bool:
        """Whether so few rows came that there is time for disk work."""
        return self.overflow is not None and sum(self.counts.rows_in) < self.overflow.blocking_rows

    def disk_work(self, work: DiskWork) -> Iterator[pa.RecordBatch]:
        """One pass or visit; what it finds goes up."""
        operator, probing = self.state.operators[work.operator], self.probing[work.operator]
        self.draft.save(operator)
        if work.visited is None:
            phase = self.counts.disk_to_disk
            found = cleanup.clean(self.disk(operator, phase, probing.looking_up()), work.buckets)
        else:
            phase = self.counts.disk_to_memory
            found = reactive.visit(self.disk(operator, phase, probing), work.visited, work.buckets[0])
        yield from phase.timed(self._up(operator, found), self.clock)
        self.note_peak(phase.peak_bytes)
        if work.visited is None:
            self.retention.after_pass(work.buckets)

    def _up(self, operator: OperatorState, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results of the join that some results of an operator lead to."""
        above = self.state.above(operator)
        if above is None:
            return batches
        return arrival.results(self.state.root, self._arrive_above(*above, batches, (operator,)))

    def tidy_disk(self) -> Iterator[pa.RecordBatch]:
        """After planned disk work: what was not planned and is due whatever arrives.

        No pass is planned for buckets in which nothing is pending, as where an input has no row in a bucket at all.
        Rows on disk would stay there for ever, and so would the records of when they were evicted.
        """
        for operator in self.state.operators:
            if cleanup.is_due(operator):
                free = np.flatnonzero(~operator.groups.in_debt())
                cleanup.nothing_pending(operator, free)
                self.retention.after_no_pass(free)
        if self.retention.waits_for_pass():
            yield from self.emit_pending()
        self.retention.tidy(self._is_blocked())

    def disk(self, operator: OperatorState, phase: PhaseCounts, probing: Probing) -> Disk:
        """What disk work of an operator has."""
        return Disk(operator, self.draft.store, overflow.work_area(self.overflow), phase, probing)

    # --- estimates -------------------------------------------------------------------------------------------

    def _begin_sample_if_lossy(self) -> None:
        """Before rows arrive: sample, where not all of them are let in, or not all find their partners in memory.

        Where results go up while rows are evicted there is no later moment at which it is known what is emitted.
        """
        ascending = self.overflow is not None and len(self.state.operators) > 1
        if ascending or self.state.overflowed() or not self._is_whole():
            self.sampler.begin()

    def _is_whole(self) -> bool:
        """Whether nothing is shed, and of what is in the state nothing was."""
        inputs = self.state.inputs()
        everything = all(self.parts(number) == WHOLE for number in range(len(inputs)))
        return everything and all(operator.admitted[member].is_whole for operator, member in inputs)

    def estimate(self) -> sampling.Estimate:
        """What is pending and lost, at the end of the batch."""
        return sampling.estimate(self.state, self.state.results + self.counts.rows_out, self.began)
