"""The disk-to-disk phase: a pass over buckets gives out all of their combinations that are not out yet (section 2.4).

Rows come from segments, whether they are in memory too or not, in pieces that fit the work area. A piece is joined as
arrivals are: rows from before the last pass are put into tables first, and the rest arrive input by input and probe
what is there. So combinations of old rows alone, which are out, are not even looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import PhaseCounts
from spark_mjoin.engine.disk import (
    Part,
    Passed,
    across_epochs,
    divide,
    is_one_piece,
    not_out_yet,
    share_a_key,
    take_in,
)
from spark_mjoin.engine.overflow import give_back
from spark_mjoin.engine.partitioned import Pass
from spark_mjoin.join.bound import Bound, pooled
from spark_mjoin.join.operator import materialise, produce
from spark_mjoin.join.orders import Probing, probe_order
from spark_mjoin.join.windows import Windows
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.groups import MOST_HELD, MOST_RECORDS
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.table import Table


def clean(
    state: OperatorState,
    store: StateStore,
    buckets: Sequence[int],
    area: int,
    phase: PhaseCounts,
    probing: Probing | None = None,
) -> Iterator[pa.RecordBatch]:
    """Give out what is missing in some buckets of the main class; all rows must be in segments."""
    probing = probing or Probing.unplanned(state.spec)
    if is_one_piece(state, buckets, area) or share_a_key(state):
        for some in _alike(state, buckets):
            passed, in_epochs = Passed.over(state, some), share_a_key(state) and state.residency.in_epochs(some)
            for parts in divide(state, store, some, area):
                yield from _join(state, store, parts, passed, in_epochs, phase, probing)
                give_back()
    else:
        known = WeakKeyDictionary[Table, Array]()  # a table meets many portions

        def missing(tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
            for i, table in enumerate(tables):
                if table not in known:
                    known[table] = state.residency.flushed(i, table.buckets, table.arrived)
            flushed = [known[table] for table in tables]
            yield from _give_out(state, tables, not_out_yet(state, tables, flushed, found))

        passed = Passed.over(state, buckets)
        yield from Pass(state, store, tuple(buckets), area, phase, probing, passed, missing).results()
    state.residency.clean(buckets, state.groups.main)
    state.groups.passed(buckets)


def _alike(state: OperatorState, buckets: Sequence[int]) -> list[list[int]]:
    """The buckets in which a pass was before, and the others: where one was, rows are read twice, old and new ones.

    All together where an input has no buckets of the main class: it would be read for both.
    """
    again = state.residency.cleaned[list(buckets)] > 0
    if len(state.groups.main) < len(state.tables) or again.all() or not again.any():
        return [list(buckets)]
    return [[b for b, cleaned in zip(buckets, again, strict=True) if cleaned == wanted] for wanted in (True, False)]


def is_due(state: OperatorState) -> bool:
    """Whether too much is kept for passes: records of departures and visits, or rows outside their window."""
    residency, stored = state.residency, sum(s.end - s.start for s in state.segments)
    records = sum(map(len, residency.departures)) + sum(map(len, residency.visits))
    return records > MOST_RECORDS or state.progress.held > MOST_HELD * stored


def nothing_pending(state: OperatorState, buckets: Array) -> None:
    """Note that everything in some buckets of the main class is out, as after a pass that would give nothing."""
    state.residency.clean(buckets.tolist(), state.groups.main)
    state.groups.passed(buckets.tolist())


def everything(state: OperatorState, store: StateStore, area: int, phase: PhaseCounts) -> Iterator[pa.RecordBatch]:
    """All combinations, out or not; all rows must be in segments."""
    if not (is_one_piece(state, range(BUCKETS), area) or share_a_key(state)):

        def all_of_them(tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
            for bound in pooled(found):
                yield from materialise(state.spec, tables, bound)

        buckets, probing = tuple(range(BUCKETS)), Probing.unplanned(state.spec)
        yield from Pass(state, store, buckets, area, phase, probing, Passed.never(), all_of_them).results()
        return
    for parts in divide(state, store, range(BUCKETS), area):
        tables = [new_table(state.spec, i, tracked=True) for i in range(len(parts))]
        for table, part in zip(tables, parts, strict=True):
            for batch in part.read(state, store):
                take_in(table, batch)
            phase.work.moves += table.rows
        yield from all_of(state.spec, tables, phase)
        give_back()


def all_of(spec: JoinSpec, tables: Sequence[Table], phase: PhaseCounts) -> Iterator[pa.RecordBatch]:
    """All combinations of the rows of some tables: every one has one row of the smallest."""
    phase.peak_bytes = max(phase.peak_bytes, sum(table.nbytes() for table in tables))
    sizes = [table.rows for table in tables]
    origin = sizes.index(min(sizes))
    order = probe_order(spec, origin, sizes)
    for bound in pooled(produce(spec, tables, 0, sizes[origin], order, phase.work)):
        yield from materialise(spec, tables, bound)


def _join(
    state: OperatorState,
    store: StateStore,
    parts: tuple[Part, ...],
    passed: Passed,
    in_epochs: bool,
    phase: PhaseCounts,
    probing: Probing,
) -> Iterator[pa.RecordBatch]:
    """What is missing of some parts. in_epochs: their rows have left memory in epochs (`join.emitted`)."""
    spec = state.spec

    def is_new(input: int, own: Array, arrived: Array) -> Array:
        return ~passed.is_old(input, own, arrived)

    windows = Windows.of(spec, state.progress)
    tables = [new_table(spec, i, tracked=True) for i in range(len(parts))]
    if passed.any:
        for i, part in enumerate(parts):
            for batch in part.read(state, store):
                take_in(tables[i], batch, partial(passed.is_old, i))
    flushed = [_left(state, part, table) for part, table in zip(parts, tables, strict=True)]
    for i, part in enumerate(parts):
        start = tables[i].rows
        for batch in part.read(state, store):
            take_in(tables[i], batch, partial(is_new, i) if passed.any else None)
        flushed[i] = _left(state, part, tables[i])
        phase.work.moves += tables[i].rows
        phase.peak_bytes = max(phase.peak_bytes, sum(table.nbytes() for table in tables))
        order = probing.order(i, [table.rows for table in tables], state.edges, {})
        found = produce(spec, tables, start, tables[i].rows, order, phase.work, windows)
        missing = across_epochs(flushed, found) if in_epochs else not_out_yet(state, tables, flushed, found)
        yield from _give_out(state, tables, missing)


def _left(state: OperatorState, part: Part, table: Table) -> Array:
    """When each row of a part left memory. Those of one bucket that came together also left together."""
    residency, input, buckets = state.residency, part.input, part.buckets
    if buckets is not None and len(buckets) == 1:
        return table.arrivals.spread(lambda a: residency.flushed(input, np.full(a.size, buckets[0], np.uint8), a))
    return residency.flushed(input, table.buckets, table.arrived)


def _give_out(state: OperatorState, tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
    main = state.groups.main[0]
    for bound in pooled(found):
        state.give_out_late(tables[main].buckets_of(bound[main]))
        yield from materialise(state.spec, tables, bound)
