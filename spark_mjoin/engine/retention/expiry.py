"""Dropping rows that no result will need any more: from memory, from disk, and by whole segments.

    before a batch          expired rows in memory, of buckets that owe nothing      (and while rows arrive, where a
    after a pass            expired rows of its buckets, in memory and on disk        window counts rows)

`join.windows` says which rows are expired: outside their window for all that can still arrive. One that is in memory
with everything that it could meet has met it. But where rows of its bucket have left memory, combinations with it may
be owed: then it stays, wherever it is, until a pass over the bucket has given them out. An input without the main class
may owe in every bucket, so its rows wait until none does. Buckets that owe nothing get no pass; when one would be due,
their rows on disk are looked through without it (`Pipeline.tidy_disk`).

Lazily (the default), rows are looked through when as many have arrived as a third of those in memory, and those of an
input also when a third of the time that its rows are of has expired since (of their numbers, where its window counts
rows): each row is moved a few times at the most. At even rates both come to the same, and a third of what the tables
hold may be outside the windows. Where rates fall, the second lets the many rows of before go: as many would not arrive
for long. Actively, before every batch.

Dropping is decided by counts that are part of the state, so a replay drops the same rows. When rows are dropped changes
no result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from spark_mjoin.counts import BatchCounts, Dropped
from spark_mjoin.engine.disk import Part
from spark_mjoin.join.windows import horizons
from spark_mjoin.model import LAZY, Array, Expiry
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import fixed_values
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.stored import buckets_of


def begin(state: OperatorState, plan: Expiry, counts: BatchCounts) -> None:
    """Take over a batch's watermarks, and drop what has expired by them."""
    progress = state.progress
    progress.watermarks = plan.watermarks
    progress.forget_rounds(_owed_since(state))
    look(state)
    if plan.active or is_due(state):
        from_memory(state, counts)
    elif moved := [number for number in range(len(state.tables)) if _has_moved(state, number)]:
        from_memory(state, counts, moved)


def look(state: OperatorState) -> None:
    """Find out which rows are expired by now."""
    state.progress.horizons = horizons(state.spec, state.progress.watermarks, state.progress.behind_us())


def is_due(state: OperatorState) -> bool:
    return state.progress.since * LAZY >= sum(table.rows for table in state.tables)


def is_due_meanwhile(state: OperatorState) -> bool:
    """The same while rows arrive: then the watermarks stand still, but windows in rows move on, step by step."""
    if not (state.spec.counts_rows and is_due(state)):
        return False
    look(state)
    moved = zip(state.spec.inputs, state.progress.horizons, state.progress.looked, strict=True)
    return any(i.window is not None and i.window.in_rows and horizon != before for i, horizon, before in moved)


def _has_moved(state: OperatorState, number: int) -> bool:
    """Whether the horizon of an input has passed a third of what there was when its rows were last looked through."""
    progress, window = state.progress, state.spec.inputs[number].window
    horizon, before = progress.horizons[number], progress.looked[number]
    if window is None or horizon is None or not state.tables[number].rows:
        return False
    newest = progress.read[number] if window.in_rows else progress.seen[number]
    if before is None or newest is None:
        return True
    return horizon > before and (horizon - before) * LAZY >= newest - before


def from_memory(state: OperatorState, counts: BatchCounts, inputs: Collection[int] | None = None) -> None:
    """Drop the expired rows of buckets that are in memory as a whole and owe nothing: of some inputs, or of all."""
    look(state)
    state.progress.forget_rounds(_owed_since(state))  # of each delivery, where inputs do not go in step
    windowed = {number for number, horizon in enumerate(state.progress.horizons) if horizon is not None}
    if inputs is None or windowed <= set(inputs):
        state.progress.since = 0
    debt = state.groups.in_debt()
    for number, horizon in enumerate(state.progress.horizons):
        if horizon is not None and (inputs is None or number in inputs):
            state.progress.looked[number] = horizon
            free = ~(debt if number in state.groups.main else np.full(BUCKETS, debt.any()))
            chosen = np.flatnonzero(free & (state.groups.disk[number] == 0))
            counts.dropped += Dropped(purged=drop(state, number, chosen, horizon))


def after_pass(state: OperatorState, store: StateStore, buckets: Iterable[int], counts: BatchCounts) -> None:
    """Drop the expired rows of buckets of the main class that a pass has just been over."""
    look(state)
    debt = state.groups.in_debt()
    for number, horizon in enumerate(state.progress.horizons):
        if horizon is None or (number not in state.groups.main and debt.any()):
            continue
        chosen = np.array(sorted(buckets)) if number in state.groups.main else np.arange(BUCKETS)
        on_disk = _expired_on_disk(state, store, number, chosen, horizon)
        counts.dropped += Dropped(purged=drop(state, number, chosen, horizon, on_disk))


def _expired_on_disk(state: OperatorState, store: StateStore, number: int, buckets: Array, horizon: int) -> Array:
    """How many rows of an input, per bucket, are on disk alone and expired."""
    out = np.zeros(BUCKETS, np.int64)
    window = state.spec.inputs[number].window
    assert window is not None
    column = state.spec.inputs[number].stored[window.position].field
    some = tuple(int(b) for b in buckets if state.groups.disk[number, b])
    for batch in Part(number, some).read(state, store) if some else ():
        own = buckets_of(state, number, batch)
        old = fixed_values(batch.column(column), np.int64) <= horizon
        old &= state.residency.flushed(number, own, arrived_of(batch)) != NEVER
        out += np.bincount(own[old], minlength=BUCKETS)
    return out


def drop(state: OperatorState, number: int, buckets: Array, horizon: int, on_disk: Array | None = None) -> int:
    """Drop the rows of some buckets that are at the horizon or before it; returns how many.

    Where rows that are younger than the horizon were given up before, those that came late since then go with them: the
    rule by which a state is loaded knows one position per bucket, and it never goes back.
    """
    table, window = state.tables[number], state.spec.inputs[number].window
    assert window is not None
    chosen = np.zeros(BUCKETS, np.bool_)
    chosen[buckets] = True
    last = np.maximum(state.progress.positions[number], horizon)
    if chosen.all() and (last == last[0]).all():  # nearly always without a budget, and three times as fast
        gone = table.position(window.position) <= last[0]
    else:
        own = table.buckets
        gone = (table.position(window.position) <= last[own]) & chosen[own]
    on_disk = np.zeros(BUCKETS, np.int64) if on_disk is None else on_disk
    if not (gone.any() or on_disk.any()):
        return 0
    state.residency.events += 1
    state.progress.drop(number, buckets, horizon, state.residency.events)
    return state.drop(number, gone, on_disk)


def _owed_since(state: OperatorState) -> int:
    """The event before which every combination is out."""
    debt = state.groups.in_debt()
    return int(state.residency.cleaned[debt].min()) if debt.any() else state.residency.events
