"""The disk-to-disk phase: a pass over buckets emits all of their combinations that are not emitted yet (section 2.4).

Rows come from segments, whether they are in memory too or not, in pieces that fit the work area. A piece is joined as
arrivals are: rows from before the last pass are put into tables first, and the rest arrive input by input and probe
what is there. So combinations of old rows alone, which are emitted, are not even looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.disk import (
    Disk,
    Part,
    Passed,
    across_epochs,
    divide,
    emitted_late,
    is_one_piece,
    not_emitted,
    share_a_key,
    take_in,
)
from spark_mjoin.engine.overflow import give_back
from spark_mjoin.engine.partitioned import Pass
from spark_mjoin.mjoin.bound import Bound, pooled
from spark_mjoin.mjoin.operator import Joining, materialise
from spark_mjoin.mjoin.orders import probe_order
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.groups import MOST_HELD, MOST_RECORDS
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.table import Table


def clean(disk: Disk, buckets: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Emit what is missing in some buckets of the main class; all rows must be in segments."""
    state = disk.state
    if is_one_piece(state, buckets, disk.area) or share_a_key(state):
        for some in _alike(state, buckets):
            passed, in_epochs = Passed.over(state, some), share_a_key(state) and state.residency.in_epochs(some)
            for parts in divide(state, disk.store, some, disk.area):
                yield from _join(disk, parts, passed, in_epochs)
                give_back()
    else:
        known = WeakKeyDictionary[Table, Array]()  # a table meets many portions

        def missing(tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
            for i, table in enumerate(tables):
                if table not in known:
                    known[table] = state.residency.flushed(i, table.buckets, table.arrived)
            flushed = [known[table] for table in tables]
            yield from emitted_late(state, tables, not_emitted(state, tables, flushed, found))

        yield from Pass(disk, tuple(buckets), Passed.over(state, buckets), missing).results()
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
    """Note that everything in some buckets of the main class is emitted, as after a pass that would find nothing."""
    state.residency.clean(buckets.tolist(), state.groups.main)
    state.groups.passed(buckets.tolist())


def everything(disk: Disk) -> Iterator[pa.RecordBatch]:
    """All combinations, emitted or not; all rows must be in segments."""
    state = disk.state
    if not (is_one_piece(state, range(BUCKETS), disk.area) or share_a_key(state)):

        def all_of_them(tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
            for bound in pooled(found):
                yield from materialise(state.spec, tables, bound)

        yield from Pass(disk, tuple(range(BUCKETS)), Passed.never(), all_of_them).results()
        return
    for parts in divide(state, disk.store, range(BUCKETS), disk.area):
        tables = [new_table(state.spec, i, tracked=True) for i in range(len(parts))]
        for table, part in zip(tables, parts, strict=True):
            for batch in part.read(state, disk.store):
                take_in(table, batch)
            disk.phase.work.moves += table.rows
        yield from all_of(disk, tables)
        give_back()


def all_of(disk: Disk, tables: Sequence[Table]) -> Iterator[pa.RecordBatch]:
    """All combinations of the rows of some tables: every one has one row of the smallest."""
    disk.note_peak(sum(table.nbytes() for table in tables))
    sizes = [table.rows for table in tables]
    origin = sizes.index(min(sizes))
    order = probe_order(disk.spec, origin, sizes)
    for bound in pooled(Joining(disk.spec, tables, disk.phase.work).produce(order, 0, sizes[origin])):
        yield from materialise(disk.spec, tables, bound)


def _join(disk: Disk, parts: tuple[Part, ...], passed: Passed, in_epochs: bool) -> Iterator[pa.RecordBatch]:
    """What is missing of some parts. in_epochs: their rows were evicted in epochs (`mjoin.emitted`)."""
    state = disk.state

    def is_new(input: int, own: Array, arrived: Array) -> Array:
        return ~passed.is_old(input, own, arrived)

    tables = [new_table(disk.spec, i, tracked=True) for i in range(len(parts))]
    joining = disk.joining(tables)
    if passed.any:
        for i, part in enumerate(parts):
            for batch in part.read(state, disk.store):
                take_in(tables[i], batch, partial(passed.is_old, i))
    flushed = [_left(state, part, table) for part, table in zip(parts, tables, strict=True)]
    for i, part in enumerate(parts):
        start = tables[i].rows
        for batch in part.read(state, disk.store):
            take_in(tables[i], batch, partial(is_new, i) if passed.any else None)
        flushed[i] = _left(state, part, tables[i])
        disk.phase.work.moves += tables[i].rows
        disk.note_peak(sum(table.nbytes() for table in tables))
        order = disk.order(i, [table.rows for table in tables])
        found = joining.produce(order, start, tables[i].rows)
        missing = across_epochs(flushed, found) if in_epochs else not_emitted(state, tables, flushed, found)
        yield from emitted_late(state, tables, missing)


def _left(state: OperatorState, part: Part, table: Table) -> Array:
    """When each row of a part was evicted. Those of one bucket that came together were evicted together."""
    residency, input, buckets = state.residency, part.input, part.buckets
    if buckets is not None and len(buckets) == 1:
        return table.arrivals.spread(lambda a: residency.flushed(input, np.full(a.size, buckets[0], np.uint8), a))
    return residency.flushed(input, table.buckets, table.arrived)
