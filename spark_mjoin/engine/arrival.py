"""The memory-to-memory phase: arriving rows go into their own table and probe the others (Viglas 2003, section 2.1).

    Arrow batch ──shed──> filter ──> stored columns ──> no NULL keys ──> own partition ──> table ──produce──> results

Where input outruns the join, only a part of it is let in (state.admitted), before it costs anything. Rows that no
result can contain are dropped before they cost memory: those that a WHERE conjunct over their input alone does not let
pass, those with NULL in a join key, which equals nothing, and, where there are windows, those without an event time and
those that are late. Punctuations are no rows at all: they are taken out first (`engine.retention.promises`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.engine.retention import promises
from spark_mjoin.join.expressions import evaluate, holds
from spark_mjoin.join.keys import encode
from spark_mjoin.join.operator import Bound, materialise, pooled, produce
from spark_mjoin.join.orders import Probing, describe
from spark_mjoin.join.windows import Windows
from spark_mjoin.metrics import BatchCounts
from spark_mjoin.model import WHOLE, Col, InputSpec, JoinSpec
from spark_mjoin.state.admitted import sampled
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import fixed_values, hash_array
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.routing import Slots


def arrive(
    state: OperatorState,
    number: int,
    batch: pa.RecordBatch,
    slots: Slots,
    counts: BatchCounts,
    probing: Probing | None = None,
    parts: int = WHOLE,
    verify: str = "off",
) -> Iterator[Bound]:
    """Insert the rows of a batch of member `number` and give out the combinations that they complete.

    Rows in other slots are left out. probing has the batch's orders. So many
    parts of WHOLE are let in. verify says what happens when the rows break a promise of their input.
    """
    start, end = insert(state, number, batch, slots, counts, parts, verify)
    if start < end:
        probing, work = probing or Probing.unplanned(state.spec), counts.work(state.place.number)
        order = probing.order(number, [table.rows for table in state.tables], state.edges, work.edges)
        state.orders[number] = describe(state.spec, order)
        windows = Windows.of(state.spec, state.progress, of_arrivals=True)
        for bound in produce(state.spec, state.tables, start, end, order, work, windows):
            if state.tracked:
                state.groups.complete(number, bound[number].size)
            yield bound


def insert(
    state: OperatorState,
    number: int,
    batch: pa.RecordBatch,
    slots: Slots,
    counts: BatchCounts,
    parts: int = WHOLE,
    verify: str = "off",
) -> tuple[int, int]:
    """Put the rows of a batch that this partition keeps into their table; returns their numbers start, end."""
    table = state.tables[number]
    if state.tracked:
        state.residency.events += 1  # so that ages tell arrivals apart
    if state.spec.inputs[number].promising:
        promised = promises.arriving(state, number, batch, slots, counts, verify)
        batch = promised.data
    if state.spec.windowed:
        batch = _delivered(state, number, batch)
    if not state.spec.inputs[number].joined:
        batch = _let_in(state, number, batch, parts, counts if slots.first == 0 else None)
    arrays = admit(state.spec, number, batch, slots)
    if state.spec.windowed:
        arrays = _in_time(state, number, arrays, counts)
    start, end = table.append(arrays, state.residency.events)
    if state.sample is not None and not state.spec.inputs[number].joined:
        _sample(state, number, arrays, parts)
    if state.tracked and start < end:
        state.groups.arrive(number, np.bincount(table.buckets[start:end], minlength=BUCKETS))
    state.totals[number] += end - start
    state.progress.since += end - start
    if state.spec.promising:
        state.promises.arrived += end - start
    if state.spec.inputs[number].promising:
        promised.take_in(state.promises)  # they hold for what comes later
    if not state.spec.inputs[number].joined:
        state.admitted[number].admit(end - start, parts / WHOLE, state.residency.events)
        counts.rows_in[state.place.leaves[number][0]] += end - start
    work = counts.work(state.place.number)
    work.moves += end - start
    work.hashes += (end - start) * len(state.spec.inputs[number].keys)
    return start, end


def _sample(state: OperatorState, number: int, arrays: list[pa.Array], parts: int) -> None:
    """Let arriving rows into the sample. It counts time itself where several operators do, or none."""
    sample = state.sample
    assert sample is not None
    sample.clock += 1
    counted = state.tracked and state.place.parent is None and not any(i.joined for i in state.spec.inputs)
    arrived = state.residency.events if counted else sample.clock
    sample.take(state.place.leaves[number][0], arrays, arrived, WHOLE / parts)


@contextmanager
def passing(state: OperatorState, number: int, counts: BatchCounts) -> Iterator[None]:
    """While this lasts, rows of a member meet the others and are not kept. What they gave must be out at its end."""
    kept, state.tables[number] = state.tables[number], new_table(state.spec, number, state.tracked)
    sample, input = state.sample, state.place.leaves[number][0]
    before = 0 if sample is None else sample.tables[input].rows
    yield
    passed, state.tables[number] = state.tables[number], kept
    if sample is not None:
        arrived = sample.tables[input].arrived
        sample.lose(input, np.arange(arrived.size) >= before, arrived)
    state.totals[number] -= passed.rows
    if state.tracked:
        gone = np.bincount(passed.buckets, minlength=BUCKETS)
        state.groups.drop(number, gone, np.zeros(BUCKETS, np.int64))
    state.admitted[number].forget(passed.rows)
    counts.rows_shed += passed.rows


def results(state: OperatorState, bounds: Iterator[Bound] | Iterator[Bound | None]) -> Iterator[pa.RecordBatch]:
    """The output rows of combinations; None among them says that all before it must be out before the next is asked."""
    main = state.groups.main[0]
    for bound in pooled(bounds):
        state.results += bound[main].size
        if state.tracked:
            oldest = np.minimum.reduce([table.arrived[bound[i]] for i, table in enumerate(state.tables)])
            state.groups.give_out(state.tables[main].buckets[bound[main]], oldest)
        yield from materialise(state.spec, state.tables, bound)


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


def _delivered(state: OperatorState, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as their source delivers them: noted, and numbered where some window counts rows."""
    input, first = state.spec.inputs[number], state.progress.read[number]
    newest = None
    if input.time is not None:
        newest = pc.max(batch.column(input.stored[input.time].name).cast(pa.int64())).as_py()
    state.progress.deliver(number, batch.num_rows, newest, state.residency.events, state.spec.counts_rows)
    return numbered(input, batch, first)


def numbered(input: InputSpec, batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Rows as their source delivers them, with their numbers where some window counts rows."""
    if input.number is None:
        return batch
    arriving = input.stored[input.number].expr
    assert isinstance(arriving, Col)
    return batch.append_column(arriving.name, pa.array(np.arange(first, first + batch.num_rows, dtype=np.int64)))


def _let_in(
    state: OperatorState, number: int, batch: pa.RecordBatch, parts: int, counts: BatchCounts | None
) -> pa.RecordBatch:
    """The rows that are not shed. Every partition sees all rows of an input, so one of them counts what it sheds."""
    admitted = state.admitted[number]
    first, admitted.delivered = admitted.delivered, admitted.delivered + batch.num_rows
    if parts == WHOLE:
        return batch
    kept = sampled(state.place.leaves[number][0], first, batch.num_rows, parts)
    if counts is not None:
        counts.rows_shed += int(kept.size - kept.sum())
    return batch.filter(pa.array(kept))


def _in_time(state: OperatorState, number: int, arrays: list[pa.Array], counts: BatchCounts) -> list[pa.Array]:
    """The rows that are not late."""
    time, watermark = state.spec.inputs[number].time, state.progress.watermarks[number]
    if time is None or watermark is None:
        return arrays
    early = fixed_values(arrays[time], np.int64) >= watermark
    late = int(early.size - early.sum())
    counts.rows_late += late
    return [pc.filter(array, pa.array(early)) for array in arrays] if late else arrays


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
    rows = pa.array(slots.select(hash_array(arrays[dict(spec.inputs[number].keys)[star]])))
    return [array.take(rows) for array in arrays]
