"""One batch of one partition on the operators of its plan: rows go up, disk work goes on below, all in one budget.

    ((a b) c)      arrivals of a, b ──> (a b) ──results──┐
                   arrivals of c ────────────────────────┴──> root ──> results of the join
                   disk work of (a b) ──results──> root, as arrivals

Whatever gives results of an operator, arrivals or disk work, they arrive at the operator above as rows of one of its
members and join what is in memory there. So a pass over the disk of a lower operator completes results of the whole.

Over budget: rows leave, of whichever operator the policy names. It is looked at after each batch that arrives anywhere,
so also while an operator is giving results to the one above. The rows of that operator stay then, and others make room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival, cleanup, overflow, reactive, sampling
from spark_mjoin.engine.arrival import OPEN, Gate
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention import expiry, promises, purge, shrinking
from spark_mjoin.join.operator import Bound
from spark_mjoin.join.orders import Probing
from spark_mjoin.model import WHOLE, DiskWork, JoinSpec, Purging, Room
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.routing import ALL_SLOTS, Slots
from spark_mjoin.state.store import StateStore


@dataclass
class Pipeline:
    """The state that a batch changes, and where what it writes goes."""

    state: PartitionState
    store: StateStore
    plan: Plan
    version: int  # that the batch makes
    attempt: str
    counts: BatchCounts
    clock: Callable[[], float]  # to say how long phases take
    check: Callable[[PartitionState], None]  # called after each batch that arrives anywhere
    sampled: JoinSpec | None = None  # all inputs in one join, to estimate what is pending or lost; None: do not

    def __post_init__(self) -> None:
        self.go_on_with(self.state)

    def go_on_with(self, state: PartitionState) -> None:
        """Work with this state from now on. What is planned of probes is about the operators of the planned tree."""
        self.state = state
        self.began = sampling.moment(state)
        specs = [operator.spec for operator in state.operators]
        same = state.tree == self.plan.tree
        planned, access = (self.plan.orders, self.plan.access) if same else ((), ())
        self.probing = [
            Probing(spec, planned[n] if planned else [None] * len(spec.inputs), access[n] if access else ())
            for n, spec in enumerate(specs)
        ]
        for operator, probing in zip(state.operators, self.probing, strict=True):
            operator.scans = probing.scans

    @property
    def overflow(self) -> Overflow | None:
        return self.plan.overflow

    def arrivals(
        self, pieces: Iterable[Piece], slots: Slots = ALL_SLOTS, side_by_side: Sequence[int] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Take in pieces of the inputs, and give out what their rows complete.

        side_by_side: how many rows of each input count as if they came one by one, where windows count rows.
        """
        if self.plan.expiry is not None:
            expiry.begin(self.state.root, self.plan.expiry, self.counts)
        self.begin_sample_if_lossy()
        if any(side_by_side):
            self.state.root.progress.begin_round(side_by_side, self.state.root.residency.events + 1)
        room = self.plan.room
        passed = room if room is not None and room.parts is None else None
        if room is not None and room.parts is not None and shrinking.is_full(self.state, room):
            self.shrink(room)  # there was more before

        def bounds() -> Iterator[Bound | None]:
            places = self.state.inputs()
            for piece in pieces:
                operator, member = places[piece.input]
                gate = self._gate(piece.input, slots)
                found: Iterator[Bound | None]
                before = operator.tables[member].rows
                if passed and not shrinking.fits(self.state, operator, member, piece.size, passed):
                    found = self._pass_by(operator, member, piece, gate)
                else:
                    arriving = self._arrive(operator, member, piece, gate)
                    found = self._ascend(operator, arriving)
                yield from found
                if self.plan.purging is not None:
                    yield from self._let_go(operator, member, before, self.plan.purging)
                yield from self._keep_to_budget()
            self.state.root.progress.end_round()
            if not any(self.counts.rows_in) and self.has_to_purge:
                yield None
                self.purge_memory()

        results = arrival.results(self.state.root, bounds())
        yield from self.counts.memory_to_memory.timed(results, self.clock)

    def _gate(self, input: int, slots: Slots) -> Gate:
        verify = "off" if self.plan.purging is None else self.plan.purging.verify
        return Gate(slots, self.parts(input), verify)

    def _arrive(self, operator: OperatorState, member: int, piece: Piece, gate: Gate = OPEN) -> Iterator[Bound]:
        return arrival.arrive(operator, member, piece, self.counts, gate, self.probing[operator.place.number])

    def _let_go(self, operator: OperatorState, member: int, before: int, plan: Purging) -> Iterator[None]:
        """After rows have come and probed: those that nothing can match any more are not stored; a sweep, if due."""
        gone = purge.drops(operator, member, before)
        if gone is not None:
            yield None
            purge.drop_last(operator, member, before, gone, self.counts)
        if purge.is_due(operator, plan):
            yield None
            purge.sweep(operator, plan, self.counts, all_of_them=False)

    def _pass_by(self, operator: OperatorState, member: int, piece: Piece, gate: Gate) -> Iterator[Bound | None]:
        """What rows complete that are not kept. Their table is another one meanwhile, so what was found must be out."""
        yield None
        self.begin_sample()
        with arrival.passing(operator, member, self.counts):
            yield from self._arrive(operator, member, piece, gate)
            yield None

    def parts(self, number: int) -> int:
        """How much of WHOLE of an input is let in."""
        return WHOLE if self.plan.admission is None else self.plan.admission[number]

    def _is_whole(self) -> bool:
        """Whether nothing is shed, and of what is in the state nothing was."""
        inputs = self.state.inputs()
        everything = all(self.parts(number) == WHOLE for number in range(len(inputs)))
        return everything and all(operator.admitted[member].is_whole for operator, member in inputs)

    def begin_sample_if_lossy(self) -> None:
        """Before rows arrive: sample, where not all of them are let in, or not all find their partners in memory.

        Where results go up while rows leave memory there is no later moment at which it is known what is emitted.
        """
        ascending = self.overflow is not None and len(self.state.operators) > 1
        if ascending or self.state.overflowed() or not self._is_whole():
            self.begin_sample()

    def begin_sample(self) -> None:
        """Before anything is lost, or cannot be emitted at once: sample what is there, to estimate that later."""
        if self.sampled is not None and self.state.sample is None:
            sampling.begin(self.state, self.sampled, self.store)

    def estimate(self) -> sampling.Estimate:
        """What is pending and lost, at the end of the batch."""
        return sampling.estimate(self.state, self.state.results + self.counts.rows_out, self.began)

    def _ascend(
        self, operator: OperatorState, bounds: Iterator[Bound], busy: tuple[OperatorState, ...] = ()
    ) -> Iterator[Bound | None]:
        """The root's combinations that some combinations of an operator lead to: its results arrive above it.

        None among them says that all before it must be out before the next is asked. Operators that give what arrives
        here, busy, must keep their rows meanwhile.
        """
        above = self.state.above(operator)
        if above is None:
            yield from bounds
            return
        parent, member = above
        for batch in arrival.results(operator, bounds):
            yield from self._ascend(parent, self._arrive(parent, member, Piece.whole(member, batch)), (*busy, operator))
            yield from self._keep_to_budget((*busy, operator))

    def _keep_to_budget(self, busy: tuple[OperatorState, ...] = ()) -> Iterator[None]:
        """After rows have come: those that are too many leave, once None says that what they have given is out."""
        self.note_peak()
        sampling.fit(self.state)
        room = self.plan.room if self.plan.room is not None and self.plan.room.parts is not None else None
        full = self.overflow is not None and overflow.is_over(self.state, self.overflow)
        full = full or (room is not None and shrinking.is_full(self.state, room))
        root = self.state.root  # the only operator, where there are windows
        if self.plan.expiry is not None and (full or expiry.is_due_meanwhile(root)):
            yield None
            expiry.from_memory(root, self.counts)
        purging = self.plan.purging
        if purging is not None and (purge.is_crowded(root, purging) or (full and purge.is_pending(root))):
            yield None
            purge.sweep(root, purging, self.counts)
        self.check(self.state)
        if self.overflow is not None and overflow.is_over(self.state, self.overflow):
            yield None
            self.make_room(busy)
        if room is not None and shrinking.is_full(self.state, room):
            yield None
            self.shrink(room)

    def settle(self) -> Iterator[pa.RecordBatch]:
        """Give out all that the rows so far have, from the leaves up."""
        for operator in reversed(self.state.operators):
            debt = tuple(int(b) for b in np.flatnonzero(operator.groups.in_debt()))
            if debt:
                yield from self.disk_work(DiskWork(debt, operator=operator.place.number))

    def planned_work(self, planned: Iterable[DiskWork]) -> Iterator[pa.RecordBatch]:
        """Planned disk work, as far as the fuel goes; where many rows came, only what is urgent."""
        if self.overflow is None:
            return
        fuel, blocked = self.overflow.fuel_bytes, sum(self.counts.rows_in) < self.overflow.blocking_rows
        for work in planned:
            if fuel > 0 and (work.urgent or blocked):
                fuel -= self.state.operators[work.operator].stored_bytes(work.buckets, work.visited)
                yield from self.disk_work(work)

    def disk_work(self, work: DiskWork) -> Iterator[pa.RecordBatch]:
        """One pass or visit; what it gives goes up."""
        operator, probing, area = self.state.operators[work.operator], self.probing[work.operator], self.area
        for number in range(len(operator.tables)):
            self.store.rows.save(operator, number, self.version, self.attempt)
        if work.visited is None:
            phase = self.counts.disk_to_disk
            found = cleanup.clean(operator, self.store, work.buckets, area, phase, probing.looking_up())
        else:
            phase = self.counts.disk_to_memory
            found = reactive.visit(operator, self.store, work.visited, work.buckets[0], area, phase, probing)
        yield from phase.timed(self._up(operator, found), self.clock)
        self.note_peak(phase.peak_bytes)
        if self.plan.expiry is not None and work.visited is None:
            expiry.after_pass(operator, self.store, work.buckets, self.counts)
        if self.plan.purging is not None and work.visited is None:
            purge.after_pass(operator, self.store, work.buckets, self.plan.purging, self.counts)

    def tidy_disk(self) -> None:
        """Do for buckets that owe nothing what a pass does for others, when a pass is due whatever arrives.

        No pass is planned for them, however long they owe nothing, as where an input has no row in a bucket at all.
        Rows on disk would stay there for ever, and so would the records of when they left memory.
        """
        for operator in self.state.operators:
            if cleanup.is_due(operator):
                free = np.flatnonzero(~operator.groups.in_debt())
                cleanup.nothing_owed(operator, free)
                if self.plan.expiry is not None:
                    expiry.after_pass(operator, self.store, free.tolist(), self.counts)

    def purge_disk(self, has_time: bool) -> Iterator[pa.RecordBatch]:
        """Look through disk parts for rows that promises have made useless.

        Those that owe nothing, if there is time; and all, after giving out what is owed, if too many rows wait for it.
        """
        root = self.state.root
        if purge.is_held_up(root):
            yield from self.settle()
            root.promises.held = 0
        if has_time and self.plan.purging is not None and (buckets := purge.to_look_at(root)):
            for number in range(len(root.tables)):
                self.store.rows.save(root, number, self.version, self.attempt)
            purge.after_pass(root, self.store, buckets, self.plan.purging, self.counts)

    def purge_memory(self) -> None:
        """Look through what is in memory, should a sweep find anything."""
        if self.plan.purging is not None and self.has_to_purge:
            purge.sweep(self.state.root, self.plan.purging, self.counts)

    @property
    def has_to_purge(self) -> bool:
        """Whether a batch without rows would find rows to look through."""
        root = self.state.root
        return root.spec.promising and purge.is_pending(root)

    def punctuations(self, slots: Slots) -> Iterator[pa.RecordBatch]:
        """What has become known about results that do not come any more; after all results that the batch gives."""
        root = self.state.root
        told, root.told = root.told, []
        yield from promises.told(root.spec, told, slots)

    def _up(self, operator: OperatorState, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The results of the join that some results of an operator lead to."""
        above = self.state.above(operator)
        if above is None:
            yield from batches
            return
        parent, member = above

        def bounds() -> Iterator[Bound | None]:
            for batch in batches:
                yield from self._ascend(parent, self._arrive(parent, member, Piece.whole(member, batch)), (operator,))
                yield from self._keep_to_budget((operator,))

        yield from arrival.results(self.state.root, bounds())

    @property
    def area(self) -> int:
        """Bytes for disk work."""
        return overflow.work_area(self.overflow)

    def make_room(self, busy: Collection[OperatorState] = ()) -> None:
        assert self.overflow is not None
        self.begin_sample()
        overflow.make_room(self.state, self.overflow, self.store, self.version, self.attempt, self.counts, busy)

    def shrink(self, room: Room) -> None:
        self.begin_sample()
        shrinking.make_room(self.state.root, room, self.counts)

    def note_peak(self, besides: int = 0) -> None:
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.state.nbytes() + besides)
