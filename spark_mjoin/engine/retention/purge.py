"""Dropping rows that the inputs' promises have made useless: from memory, from disk, or before they are stored.

    on the fly     arriving rows that nothing to come can match, once they have probed: they are not stored
    sweep          useless rows in memory, of buckets with nothing pending    after so many punctuations, when memory is
                                                                              full, or when a batch brings no rows: if
                                                                              inputs are idle there is one for that
    after a pass   useless rows of its buckets, in memory and on disk

`mjoin.completion` says which rows are useless. As with windows, a row stays where rows of its bucket were evicted and
results with it may be pending, until a pass has emitted them. Then, or where nothing is pending, disk parts that have
not been looked at since something was promised are read and purged as well.

A sweep looks at all rows in memory and moves those that stay, so it is done for many punctuations together unless
memory matters more (Ding 2003, section 4.3), and moves rows of an input when an eighth of them can go. Promises by
constraints come with every row; they alone cause a sweep when as many rows have arrived as a third of those in memory,
or, where every punctuation does, with every batch.

Punctuations of the output: a key is announced when some input that has promised it has no row with it left, in memory
or on disk. Every result has a row of that input, so none with the key can come; what was pending is emitted, or the row
would be there. `gather` finds what can be announced; it is emitted at the end of the batch.

Promises have a share of the budget. When they need more, a sweep makes use of all that there are, and the oldest are
forgotten: rows stay that could have gone, nothing else. No decision rests on a promise that is not there any more.

All of it is decided by counts that are part of the state, so a replay does the same. When rows leave changes no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import BatchCounts, Promised, Reason
from spark_mjoin.engine.disk import Part
from spark_mjoin.mjoin.completion import Completion, View
from spark_mjoin.model import LAZY, Array, JoinSpec, Purging
from spark_mjoin.state.buckets import BUCKETS, bucket_class, of_hashes
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.groups import MOST_HELD
from spark_mjoin.state.keysets import (
    ByteSet,
    Keys,
    KeySet,
    WordSet,
    among,
    chosen,
    distinct,
    joined,
    keys_of,
    ordered,
    set_of,
)
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.promises import Classes, Promises, common, minus
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.stored import buckets_of

WORTH_MOVING = 8  # rows of an input for each that leaves, up to which those that stay are moved for its sake
MOST_SINGLE = 1 << 16  # keys of a range that are looked at one by one


def drops(state: OperatorState, number: int, start: int) -> Array | None:
    """Which of the rows of a member from number `start` on, which have just probed, need not be stored; or None."""
    table = state.tables[number]
    if start == table.rows or not _has_promises(state):
        return None
    view = View.of_table(state.spec, table, _unseen(state, number), start)
    free = _free(state, number)[view.buckets]
    if not free.any():
        return None
    gone = Completion(state.spec, state.promises, _views(state)).useless(number, view) & free
    return gone if gone.any() else None


def drop_last(state: OperatorState, number: int, start: int, gone: Array) -> None:
    """Forget rows of the last that have come."""
    _note_unique(state, number, start, gone)
    state.depart(number, gone, Reason.UNMATCHED)


def is_due(state: OperatorState, plan: Purging) -> bool:
    """Whether it is time for a sweep while rows arrive."""
    promises = state.promises
    if promises.waiting >= plan.every:
        return True
    if not (promises.news or _by_presence(state.spec)):
        return False
    enough = max(plan.every, sum(table.rows for table in state.tables) / LAZY)
    return plan.every == 1 or promises.arrived >= enough


def is_pending(state: OperatorState) -> bool:
    """Whether a sweep might find anything: something was promised since the last, or rows with unique keys came."""
    promises = state.promises
    return promises.waiting > 0 or promises.news or (_by_presence(state.spec) and promises.arrived > 0)


def is_crowded(state: OperatorState, plan: Purging) -> bool:
    """Whether promises take more memory than they may: a sweep makes use of all of them, and forgets the oldest."""
    return plan.room_bytes is not None and state.promises.nbytes() > plan.room_bytes


def is_held_up(state: OperatorState) -> bool:
    """Whether so many useless rows wait for disk work that it must be done now, whatever was planned."""
    return state.promises.held > MOST_HELD * sum(s.end - s.start for s in state.segments)


def sweep(state: OperatorState, plan: Purging, counts: BatchCounts, all_of_them: bool = True) -> None:
    """Drop useless rows in memory, of buckets with nothing pending; or only those of inputs where they are many."""
    promises = state.promises
    promises.waiting, promises.news, promises.arrived = 0, False, 0
    views = _views(state)
    counts.purging.comparisons += sum(view.rows for view in views)
    completion = Completion(state.spec, promises, views)
    useless = [completion.useless(number) for number in range(len(views))]
    gone, blocked = [], 0
    for number, view in enumerate(views):
        leaves = useless[number] & (_free(state, number) & (state.groups.disk[number] == 0))[view.buckets]
        blocked += int(useless[number].sum() - leaves.sum())
        few = int(leaves.sum()) * WORTH_MOVING < view.rows
        if few and leaves.any() and not all_of_them and plan.every > 1 and not state.spec.gives_punctuations:
            leaves = np.zeros(view.rows, np.bool_)
            promises.news = True  # they are still to go
        gone.append(leaves)
    if any(leaves.any() for leaves in gone):
        state.residency.events += 1
        for number, leaves in enumerate(gone):
            if leaves.any():
                saved = leaves.copy()
                saved[state.saved[number] :] = False
                keys = chosen(views[number].joint(_all_classes(state.spec, number)), saved)
                state.departed.purged[number].add(distinct(keys), state.residency.events)
                _note_unique(state, number, 0, leaves)
                state.depart(number, leaves, Reason.PURGED)
                counts.purging.moves += state.tables[number].rows
        views = _views(state)
    rows = sum(table.rows for table in state.tables)
    promises.held = blocked * sum(s.end - s.start for s in state.segments) // max(1, rows)
    gather(state, views)
    _forget(state, plan, views, counts)


def to_look_at(state: OperatorState) -> tuple[int, ...]:
    """Buckets of the main class with rows on disk and nothing pending, not looked at since promises came."""
    on_disk: Array = state.groups.disk.sum(axis=0) > 0
    seen = state.promises.looked == state.promises.changes
    if not state.promises or not on_disk.any():
        return ()
    if len(state.groups.main) < len(state.tables):  # others' rows are in every bucket
        on_disk[:] = True
    return tuple(int(b) for b in np.flatnonzero(on_disk & ~state.groups.in_debt() & ~seen))


def after_pass(
    state: OperatorState, store: StateStore, buckets: Iterable[int], plan: Purging, counts: BatchCounts
) -> None:
    """Let useless rows of buckets of the main class leave, in memory and on disk. All rows must be in segments."""
    everywhere = len(state.groups.main) < len(state.tables)  # some input has rows for every bucket: look at all
    looked_at = np.arange(BUCKETS) if everywhere else np.array(sorted(buckets))
    state.promises.looked[looked_at[~state.groups.in_debt()[looked_at]]] = state.promises.changes
    if not _has_promises(state):
        return
    parts = [_stored(state, store, n, looked_at) for n in range(len(state.tables))]
    views = [view for view, _ in parts]
    completion = Completion(state.spec, state.promises, views)
    useless = [completion.useless(number) for number in range(len(views))]
    if everywhere:
        state.promises.held = sum(
            int((useless[n] & ~_free(state, n)[view.buckets]).sum()) for n, view in enumerate(views)
        )
    for number, (view, flushed) in enumerate(parts):
        leaves = useless[number] & _free(state, number)[view.buckets]
        if not leaves.any():
            continue
        keys = distinct(chosen(view.joint(_all_classes(state.spec, number)), leaves))
        on_disk = np.bincount(view.buckets[leaves & flushed], minlength=BUCKETS)
        state.residency.events += 1
        state.departed.purged[number].add(keys, state.residency.events)
        _promise_unique(state, number, view, leaves)
        gone = among(state.tables[number].joint_keys(), keys)
        state.depart(number, gone, Reason.PURGED, on_disk)
        views[number] = _without(view, leaves)
    gather(state, views)
    _forget(state, plan, views, counts)


def _stored(state: OperatorState, store: StateStore, number: int, buckets: Array) -> tuple[View, Array]:
    """The rows of some buckets, wherever they are, and which of them are on disk alone.

    An input without the main class has rows for every bucket.
    """
    spec, input = state.spec, state.spec.inputs[number]
    is_main = number in state.groups.main
    part = Part(number, tuple(int(b) for b in buckets) if is_main else None)
    found: dict[int, list[Keys]] = {
        c: [keys_of(pa.nulls(0, _type(spec, number, c)), spec.classes[c])] for c, _ in input.keys
    }
    own, flushed = [np.empty(0, np.uint8)], [np.empty(0, np.bool_)]
    for batch in part.read(state, store):
        own.append(buckets_of(state, number, batch))
        flushed.append(state.residency.flushed(number, own[-1], arrived_of(batch)) != NEVER)
        for c, ordinal in input.keys:
            found[c].append(keys_of(batch.column(input.stored[ordinal].field), spec.classes[c]))
    unseen = np.zeros(BUCKETS, np.bool_)
    if is_main:
        unseen[:] = (state.groups.disk[number] + state.groups.resident[number]) > 0
        unseen[buckets] = False
    buckets_of_all = np.concatenate(own)
    keys = {c: joined(parts) for c, parts in found.items()}
    return View(keys, buckets_of_all.size, unseen, lambda: buckets_of_all), np.concatenate(flushed)


def _without(view: View, leaves: Array) -> View:
    """The rows of a view that are not marked."""
    keys, own = {c: chosen(k, ~leaves) for c, k in view.keys.items()}, view.buckets[~leaves]
    return View(keys, own.size, view.unseen, lambda: own)


def _type(spec: JoinSpec, number: int, key_class: int) -> pa.DataType:
    return spec.inputs[number].stored[dict(spec.inputs[number].keys)[key_class]].type


def _all_classes(spec: JoinSpec, number: int) -> Classes:
    return tuple(c for c, _ in spec.inputs[number].keys)


def _has_promises(state: OperatorState) -> bool:
    return bool(state.promises) or _by_presence(state.spec)


def _by_presence(spec: JoinSpec) -> bool:
    return any(input.unique for input in spec.inputs)


def _unseen(state: OperatorState, number: int) -> Array:
    out: Array = state.groups.disk[number] > 0
    return out


def _views(state: OperatorState) -> list[View]:
    """What is in memory."""
    return [View.of_table(state.spec, table, _unseen(state, n)) for n, table in enumerate(state.tables)]


def _free(state: OperatorState, number: int) -> Array:
    """Per bucket of a member's own, whether no result is pending that its rows could be in."""
    debt = state.groups.in_debt()
    out: Array = ~debt if number in state.groups.main else np.full(BUCKETS, not debt.any())
    return out


def _note_unique(state: OperatorState, number: int, start: int, gone: Array) -> None:
    """A unique key does not come again when its row has left; as long as it is there, it says so itself."""
    if state.spec.inputs[number].unique and gone.any():
        _promise_unique(
            state, number, View.of_table(state.spec, state.tables[number], _unseen(state, number), start), gone
        )


def _promise_unique(state: OperatorState, number: int, view: View, gone: Array) -> None:
    unique = state.spec.inputs[number].unique
    if unique:
        state.promises.add_known(number, unique, distinct(chosen(view.joint(unique), gone)))


# --- punctuations of the output ------------------------------------------------------------------------------------


def gather(state: OperatorState, views: Sequence[View]) -> None:
    """Note what can be announced: keys of which no result can come any more. Each is announced once."""
    spec, promises = state.spec, state.promises
    if not spec.gives_punctuations:
        return
    for classes in sorted({c for promise in promises.of for c in promise.sets}):
        members = _members(spec, classes)
        fresh = _not_announced(promises, classes, members)
        over = promises.empty(classes)
        for number in members:
            own = fresh if promises.of[number].ended else promises.of[number].sets.get(classes)
            if own is not None and fresh:
                over = _united(over, _absent(spec, common(fresh, own), classes, number, views[number]))
        if classes in promises.given:  # a range of strings is not cut, so keys inside it may have been announced before
            over = minus(over, promises.given[classes])
        if over:
            promises.add_given(classes, over)
            if not (over.is_all and promises.end_given):
                promises.to_emit.append((classes, over))
            promises.end_given |= over.is_all
    if not promises.end_given and any(
        promise.ended and not view.rows and not view.unseen.any()
        for promise, view in zip(promises.of, views, strict=True)
    ):
        promises.end_given = True
        promises.to_emit.append(((), promises.empty(())))


def _not_announced(promises: Promises, classes: Classes, members: Sequence[int]) -> KeySet:
    """What some inputs have promised and was not announced.

    Each set is compared with what was announced, and what is left is put together: that is little. Ranges of strings
    are put together first, as they are not cut.
    """
    sets: list[KeySet] = [promises.of[m].sets[classes] for m in members if classes in promises.of[m].sets]
    given, out = promises.given.get(classes), promises.empty(classes)
    if given is not None and not any(isinstance(said, ByteSet) and said.ranges for said in sets):
        sets, given = [minus(said, given) for said in sets], None
    for said in sets:
        out = _united(out, said)
    return out if given is None else minus(out, given)


def _members(spec: JoinSpec, classes: Classes) -> list[int]:
    """The inputs that have all of some key classes."""
    return [i for i in range(len(spec.inputs)) if set(classes) <= spec.classes_of(i)]


def _united(one: KeySet, other: KeySet | None) -> KeySet:
    if other is None or not other:
        return one
    if isinstance(one, WordSet) and isinstance(other, WordSet):
        out = WordSet(one.lows, one.highs)
        out._unite(other.lows, other.highs)
        return out
    assert isinstance(one, ByteSet) and isinstance(other, ByteSet)
    united = ByteSet(one.values, one.ranges)
    united.add(other.values)
    for low, high in other.ranges:
        united.add_range(low, high)
    return united


def _absent(spec: JoinSpec, keys: KeySet, classes: Classes, number: int, view: View) -> KeySet:
    """Those keys with which an input certainly has no row: neither in the view nor where the view does not reach."""
    if not keys:
        return keys
    present = view.joint(classes)
    if isinstance(keys, WordSet):
        keys = keys.minus(WordSet.of(distinct(present)))
    else:
        there = ByteSet(present).contains
        ranges = [r for r in keys.ranges if not ByteSet(None, [r]).contains(present).any()]
        keys = ByteSet(keys.values.filter(pa.array(~there(keys.values))), ranges)
    if not view.unseen.any():
        return keys
    if classes != (bucket_class(spec, number),):
        return minus(keys, keys)
    if isinstance(keys, WordSet):
        few = keys.highs.view(np.uint64) - keys.lows.view(np.uint64) < MOST_SINGLE
        words = WordSet(keys.lows[few], keys.highs[few])
        if int((words.highs - words.lows + 1).sum()) > MOST_SINGLE:
            words = WordSet(keys.lows[keys.single()], keys.highs[keys.single()])
        each = words.each()
        raw = pa.array(ordered(each, spec.classes[classes[0]]))
        return set_of(each[~view.unseen[of_hashes(hash_array(raw))]])
    return ByteSet(keys.values.filter(pa.array(~view.unseen[of_hashes(hash_array(keys.values))])))


def _forget(state: OperatorState, plan: Purging, views: Sequence[View], counts: BatchCounts) -> None:
    """Forget promises that nobody will ask for; and the oldest, where the others take more than their room."""
    if plan.verify == "off":
        _forget_the_useless(state, views)
    if plan.room_bytes is not None:
        counts.promised += Promised(forgotten=state.promises.forget_oldest(plan.room_bytes))


def _forget_the_useless(state: OperatorState, views: Sequence[View]) -> None:
    """Forget promises that all inputs have made, if no row with such a key is left."""
    spec, promises = state.spec, state.promises
    for classes in sorted({c for promise in promises.of for c in promise.sets}):
        members = _members(spec, classes)
        known = [promises.of[m].sets.get(classes) for m in members]
        said = [k for m, k in zip(members, known, strict=True) if not promises.of[m].ended]
        if not said or any(k is None for k in said):
            continue
        few, *others = sorted((k for k in said if k is not None), key=lambda k: k.entries)
        shared: KeySet = few
        for other in others:
            shared = common(shared, other)
        for number in members:
            shared = _absent(spec, shared, classes, number, views[number])
        if spec.gives_punctuations and shared:
            shared = common(shared, promises.given.get(classes, promises.empty(classes)))
        if shared:
            for number in members:
                promises.forget(number, classes, shared)
            promises.forget_given(classes, shared)
