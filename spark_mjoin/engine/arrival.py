"""The memory-to-memory phase: arriving rows go into their own table and probe the others (Viglas 2003, section 2.1).

    piece ──shed──> filter ──> stored columns ──> no NULL keys ──> own slots ──> table ──produce──> results

Where input outruns the join, only a part of it is let in (state.admitted), before it costs anything. Rows that no
result can contain are dropped before they cost memory: those that a WHERE conjunct over their input alone does not let
pass, those with NULL in a join key, which equals nothing, and, where there are windows, those without an event time.
What else is not kept of what arrives is a matter of retention (`engine.retention.protocol`).

Each of several partitions does this to the same piece, or to a part of its own (`engine.feed`). Either way a row is
known by its number in its input, and what is counted is counted by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.counts import BatchCounts, Reason
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.kept import Kept
from spark_mjoin.engine.retention.protocol import KeepAll, Retention
from spark_mjoin.mjoin.bound import Bound, Found, pooled
from spark_mjoin.mjoin.expressions import evaluate, holds
from spark_mjoin.mjoin.keys import encode
from spark_mjoin.mjoin.operator import Joining, materialise
from spark_mjoin.mjoin.orders import Probing, describe
from spark_mjoin.mjoin.windows import Windows
from spark_mjoin.model import WHOLE, Array, Col, InputSpec, JoinSpec
from spark_mjoin.state.admitted import sampled
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import rows_in
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.slots import ALL_SLOTS, Slots, of_numbers


@dataclass(frozen=True)
class Own:
    """What a partition has of rows that come to all partitions."""

    slots: Slots = ALL_SLOTS  # it counts what is counted once for all
    numbers: Callable[[Kept], Array] | None = None  # of the rows that it has; None: those with keys in its slots
    watched: tuple[int, ...] = ()  # hashes of keys that are counted


ALL = Own()


@dataclass(frozen=True)
class Gate:
    """What is let in of an input, and what is kept of it."""

    own: Own = ALL
    parts: int = WHOLE  # how much of WHOLE; the rest is shed
    retention: Retention = field(default_factory=KeepAll)


OPEN = Gate()


def arrive(
    state: OperatorState,
    number: int,
    piece: Piece,
    counts: BatchCounts,
    gate: Gate = OPEN,
    probing: Probing | None = None,
) -> Iterator[Bound]:
    """Insert a piece of member `number` and find the combinations that it completes; probing has their orders."""
    start, end = insert(state, number, piece, counts, gate)
    if start < end:
        probing, work = probing or Probing.unplanned(state.spec), counts.work(state.place.number)
        order = probing.order(number, [table.rows for table in state.tables], state.probed.edges, work.edges)
        state.probed.orders[number] = describe(state.spec, order)
        windows = Windows.of(state.spec, state.progress, of_arrivals=True)
        for bound in Joining(state.spec, state.tables, work, windows).produce(order, start, end):
            if state.tracked:
                state.groups.complete(number, bound[number].size)
            yield bound


def insert(state: OperatorState, number: int, piece: Piece, counts: BatchCounts, gate: Gate = OPEN) -> tuple[int, int]:
    """Put the rows of a piece that this partition keeps into their table; returns their numbers start, end."""
    table, input, parts = state.tables[number], state.spec.inputs[number], gate.parts
    if state.tracked:
        state.residency.events += 1  # so that ages tell arrivals apart
    rows = gate.retention.arriving(number, piece, gate.own.slots)
    if input.number is not None:
        rows = with_numbers(input, rows, piece.data_numbers())
    if not input.joined:
        rows = _let_in(state, number, piece, rows, gate)
    came = admit(state.spec, number, rows, ALL_SLOTS if piece.own or gate.own.numbers else gate.own.slots)
    if gate.own.numbers and not piece.own:
        mine = pa.array(gate.own.numbers(_kept(state, number, came)))
        came = [array.take(mine) for array in came]
    arrays = gate.retention.admitted(number, came)
    start, end = table.append(arrays, state.residency.events)
    if state.sample is not None and not input.joined:
        _sample(state, number, arrays, parts)
    if state.tracked and start < end:
        state.groups.arrive(number, np.bincount(table.buckets_between(start, end), minlength=BUCKETS))
    state.totals[number] += end - start
    if not input.joined:
        state.admitted[number].admit(end - start, parts / WHOLE, state.residency.events)
        counts.rows_in[state.place.leaves[number][0]] += end - start
        if counts.copies_among is not None:
            _note_copies(state, number, came, arrays, counts)
        if state.traffic is not None:
            state.traffic.take(_kept(state, number, arrays), gate.own.watched)
    work = counts.work(state.place.number)
    work.moves += end - start
    work.hashes += (end - start) * len(input.keys)
    return start, end


def _kept(state: OperatorState, number: int, arrays: list[pa.Array]) -> Kept:
    """Rows of a member that is an input, by their stored columns."""
    return Kept.of_arrays(state.spec, number, state.place.leaves[number][0], arrays)


def _note_copies(
    state: OperatorState, number: int, came: list[pa.Array], stayed: list[pa.Array], counts: BatchCounts
) -> None:
    """Of rows that have copies elsewhere, and of those that were late, one partition counts each."""
    assert counts.copies_among is not None
    input = state.place.leaves[number][0]
    copies = counts.copies_among(_kept(state, number, stayed))
    counts.note_copies(input, copies)
    if len(stayed[0]) < len(came[0]):
        late = counts.copies_among(_kept(state, number, came)) - copies
        state.depart(number, -late, Reason.LATE)


def _sample(state: OperatorState, number: int, arrays: list[pa.Array], parts: int) -> None:
    """Let arriving rows into the sample. It counts time itself where several operators do, or none."""
    sample = state.sample
    assert sample is not None
    sample.clock += 1
    counted = state.tracked and state.place.parent is None and not any(i.joined for i in state.spec.inputs)
    arrived = state.residency.events if counted else sample.clock
    sample.take(state.place.leaves[number][0], arrays, arrived, WHOLE / parts)


def results(state: OperatorState, found: Iterable[Bound] | Iterable[Found]) -> Iterator[pa.RecordBatch]:
    """The output rows of combinations, which are emitted."""
    main = state.groups.main[0]
    for bound in pooled(found):
        state.results += bound[main].size
        if state.tracked:
            state.groups.emit(state.tables[main].buckets_of(bound[main]), _young(state, bound))
        yield from materialise(state.spec, state.tables, bound)


def _young(state: OperatorState, bound: Bound) -> int:
    """Of how many combinations all rows are young."""
    young = state.groups.young
    if not young:  # nothing was flushed yet
        return int(bound[0].size)
    came = [table.arrivals.since(young, bound[i]) for i, table in enumerate(state.tables)]
    return int(np.logical_and.reduce(came).sum())


def admit(spec: JoinSpec, number: int, batch: pa.RecordBatch, slots: Slots) -> list[pa.Array]:
    """The stored columns of the rows that enter the state."""
    input = spec.inputs[number]
    if input.joined:
        return list(batch.columns)

    def column(col: Col) -> pa.Array:
        return batch.column(col.name)

    if input.filter is not None:
        batch = batch.filter(holds(input.filter, column, batch.num_rows))
    arrays = []
    for stored in input.stored:
        values = evaluate(stored.expr, column, batch.num_rows)
        arrays.append(encode(values, stored.domain) if stored.domain else values)
    arrays = _without_nulls(input, arrays)
    return _in_slots(spec, number, arrays, slots)


def with_numbers(input: InputSpec, rows: pa.RecordBatch, numbers: Array) -> pa.RecordBatch:
    """Rows with their numbers: some window counts rows."""
    assert input.number is not None
    arriving = input.stored[input.number].expr
    assert isinstance(arriving, Col)
    return rows.append_column(arriving.name, pa.array(numbers, pa.int64()))


def _let_in(state: OperatorState, number: int, piece: Piece, rows: pa.RecordBatch, gate: Gate) -> pa.RecordBatch:
    """The rows that are not shed. Where every partition sees all rows, the owner of the number's slot counts one."""
    state.admitted[number].delivered += piece.delivered
    if gate.parts == WHOLE:
        return rows
    numbers = piece.data_numbers()
    kept = sampled(state.place.leaves[number][0], numbers, gate.parts)
    shed = ~kept if piece.own else ~kept & gate.own.slots.have(of_numbers(numbers))
    state.depart(number, int(shed.sum()), Reason.SHED)
    return rows.filter(pa.array(kept))


def _without_nulls(input: InputSpec, arrays: list[pa.Array]) -> list[pa.Array]:
    """The rows with all their keys and, where it is needed, their event time."""
    keep = None
    needed = [ordinal for _, ordinal in input.keys]
    for ordinal in needed if input.time is None else (*needed, input.time):
        if arrays[ordinal].null_count:
            valid = arrays[ordinal].is_valid()
            keep = valid if keep is None else pc.and_(keep, valid)
    return arrays if keep is None else [pc.filter(array, keep) for array in arrays]


def _in_slots(spec: JoinSpec, number: int, arrays: list[pa.Array], slots: Slots) -> list[pa.Array]:
    """The rows with a key in some slots."""
    if slots.is_all:
        return arrays
    star = spec.star_class
    assert star is not None, "only a join with a key common to all inputs has partitions"
    rows = pa.array(rows_in(slots, arrays[dict(spec.inputs[number].keys)[star]]))
    return [array.take(rows) for array in arrays]
