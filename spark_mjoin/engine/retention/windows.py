"""Windows: dropping rows that no result will need any more, from memory and from disk.

    before a batch          expired rows in memory, of buckets with nothing pending   (and while rows arrive, where a
    after a pass            expired rows of its buckets, in memory and on disk         window counts rows)

`mjoin.windows` says which rows are late, and which are expired: outside their window for all that can still arrive. An
expired row that is in memory with everything that it could meet has met it. But where rows of its bucket were evicted,
results with it may be pending: then it stays, wherever it is, until a pass over the bucket has emitted them. An input
without the main class may have pending results in every bucket, so its rows wait until there are none. Buckets with
nothing pending get no pass; when one would be due, their rows on disk are looked through without it.

Lazily (the default), rows are looked through when as many have arrived as a third of those in memory, and those of an
input also when a third of the time that its rows are of has expired since (of their numbers, where its window counts
rows): each row is moved a few times at the most. At even rates both come to the same, and a third of what the tables
hold may be outside the windows. Where rates fall, the second drops the many rows of before: as many would not arrive
for long. Actively, before every batch.

Dropping is decided by counts that are part of the state, so a replay drops the same rows. When rows are dropped changes
no result.

Where results go to another stage, that stage has to know what can still come: the floor. A result to come has a row
that has not arrived yet, or one that arrived after the last moment before which everything is emitted. Either was not
late when it arrived. So no result to come is older than the lowest watermark of that moment (`Progress.lows`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.counts import Reason
from spark_mjoin.engine.disk import Part
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention.protocol import KeepAll, Report
from spark_mjoin.mjoin.bound import EMIT_FIRST, EmitFirst
from spark_mjoin.mjoin.windows import horizons
from spark_mjoin.model import LAZY, Array, Expiry
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import fixed_values
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.slots import Slots
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.stored import buckets_of


@dataclass(frozen=True)
class Windows(KeepAll):
    state: OperatorState
    store: StateStore
    plan: Expiry

    @property
    def keeps_all(self) -> bool:
        return False

    # --- while rows arrive -----------------------------------------------------------------------------------

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        """Take over the batch's watermarks, and drop what has expired by them."""
        progress = self.state.progress
        progress.watermarks = self.plan.watermarks
        progress.forget_rounds(self._pending_since())
        if self.state.spec.stages is not None:
            progress.keep_low(self.state.residency.events, self._pending_since())
        for member, floor in floors.items():
            progress.see(member, floor)
        self._look()
        if self.plan.active or self._is_due():
            self._drop_from_memory()
        elif moved := [number for number in range(len(self.state.tables)) if self._has_moved(number)]:
            self._drop_from_memory(moved)
        if any(side_by_side):
            progress.begin_round(side_by_side, self.state.residency.events + 1)

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        """Note how far an input has come: the newest event time is that of the rows at hand, whoever has the others."""
        state, input, rows, newest = self.state, self.state.spec.inputs[member], piece.data(), None
        if input.time is not None and not state.spec.is_stage(member):
            newest = pc.max(rows.column(input.stored[input.time].name).cast(pa.int64())).as_py()
        state.progress.deliver(member, piece.delivered, newest, state.residency.events, state.spec.counts_rows)
        return rows

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        time, watermark = self.state.spec.inputs[member].time, self.state.progress.watermarks[member]
        if time is not None and watermark is not None:
            early = fixed_values(arrays[time], np.int64) >= watermark
            late = int(early.size - early.sum())
            self.state.depart(member, late, Reason.LATE)
            arrays = [pc.filter(array, pa.array(early)) for array in arrays] if late else arrays
        self.state.progress.since += len(arrays[0])
        return arrays

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        if full or self._is_due_meanwhile():
            yield EMIT_FIRST
            self._drop_from_memory()

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        self.state.progress.end_round()
        return iter(())

    def floor(self) -> int | None:
        return self.state.progress.low(self._pending_since())

    def report(self) -> Report:
        self._look()  # what is expired by now is counted with the segments
        return Report()

    # --- when ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Find out which rows are expired by now."""
        progress = self.state.progress
        progress.horizons = horizons(self.state.spec, progress.watermarks, progress.behind_us())

    def _is_due(self) -> bool:
        return self.state.progress.since * LAZY >= sum(table.rows for table in self.state.tables)

    def _is_due_meanwhile(self) -> bool:
        """The same while rows arrive: then the watermarks stand still, but windows in rows move on, step by step."""
        spec, progress = self.state.spec, self.state.progress
        if not (spec.counts_rows and self._is_due()):
            return False
        self._look()
        moved = zip(spec.inputs, progress.horizons, progress.looked, strict=True)
        return any(i.window is not None and i.window.in_rows and horizon != before for i, horizon, before in moved)

    def _has_moved(self, number: int) -> bool:
        """Whether the horizon of an input has passed a third of what there was when it was last looked through."""
        progress, window = self.state.progress, self.state.spec.inputs[number].window
        horizon, before = progress.horizons[number], progress.looked[number]
        if window is None or horizon is None or not self.state.tables[number].rows:
            return False
        newest = progress.read[number] if window.in_rows else progress.seen[number]
        if before is None or newest is None:
            return True
        return horizon > before and (horizon - before) * LAZY >= newest - before

    def _pending_since(self) -> int:
        """The event before which every combination is emitted."""
        debt = self.state.groups.in_debt()
        return int(self.state.residency.cleaned[debt].min()) if debt.any() else self.state.residency.events

    # --- which -----------------------------------------------------------------------------------------------

    def _drop_from_memory(self, inputs: Collection[int] | None = None) -> None:
        """Drop expired rows of buckets that are in memory as a whole with nothing pending: of some inputs or of all."""
        state, progress = self.state, self.state.progress
        self._look()
        progress.forget_rounds(self._pending_since())  # of each delivery, where inputs do not go in step
        expiring = {number for number, horizon in enumerate(progress.horizons) if horizon is not None}
        if inputs is None or expiring <= set(inputs):
            progress.since = 0
        debt = state.groups.in_debt()
        for number, horizon in enumerate(progress.horizons):
            if horizon is not None and (inputs is None or number in inputs):
                progress.looked[number] = horizon
                free = ~(debt if number in state.groups.main else np.full(BUCKETS, debt.any()))
                chosen = np.flatnonzero(free & (state.groups.disk[number] == 0))
                drop(state, number, chosen, horizon, Reason.EXPIRED)

    def after_pass(self, buckets: Iterable[int]) -> None:
        state = self.state
        self._look()
        debt = state.groups.in_debt()
        for number, horizon in enumerate(state.progress.horizons):
            if horizon is None or (number not in state.groups.main and debt.any()):
                continue
            chosen = np.array(sorted(buckets)) if number in state.groups.main else np.arange(BUCKETS)
            drop(state, number, chosen, horizon, Reason.EXPIRED, self._expired_on_disk(number, chosen, horizon))

    def after_no_pass(self, buckets: Array) -> None:
        self.after_pass(buckets.tolist())

    def _expired_on_disk(self, number: int, buckets: Array, horizon: int) -> Array:
        """How many rows of an input, per bucket, are on disk alone and expired."""
        state, out = self.state, np.zeros(BUCKETS, np.int64)
        window = state.spec.inputs[number].window
        assert window is not None
        column = state.spec.inputs[number].stored[window.position].field
        some = tuple(int(b) for b in buckets if state.groups.disk[number, b])
        for batch in Part(number, some).read(state, self.store) if some else ():
            own = buckets_of(state, number, batch)
            old = fixed_values(batch.column(column), np.int64) <= horizon
            old &= state.residency.flushed(number, own, arrived_of(batch)) != NEVER
            out += np.bincount(own[old], minlength=BUCKETS)
        return out


def drop(
    state: OperatorState, number: int, buckets: Array, last: int, reason: Reason, on_disk: Array | None = None
) -> int:
    """Drop the rows of some buckets that are at a position or before it; returns how many.

    Where rows that are younger were dropped before, for lack of memory, those that came late since then go with them:
    the rule by which a state is loaded knows one position per bucket, and it never goes back.
    """
    table, window = state.tables[number], state.spec.inputs[number].window
    assert window is not None
    chosen = np.zeros(BUCKETS, np.bool_)
    chosen[buckets] = True
    known = np.maximum(state.progress.positions[number], last)
    if chosen.all() and (known == known[0]).all():  # nearly always without a budget, and three times as fast
        gone = table.position(window.position) <= known[0]
    else:
        own = table.buckets
        gone = (table.position(window.position) <= known[own]) & chosen[own]
    if not (gone.any() or (on_disk is not None and on_disk.any())):
        return 0
    state.residency.events += 1
    state.progress.drop(number, buckets, last, state.residency.events)
    return state.depart(number, gone, reason, on_disk)
