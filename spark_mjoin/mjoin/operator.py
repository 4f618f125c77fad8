"""The join operator: given new rows of one input, all combinations they make with the rows of the others.

    delta rows of input 0       step 1: probe input 2      step 2: probe input 1
    [7 8 9 10 ...]  ──────────> at:  0 0 3  ─────────────> at:  1 2 2
                                row: 5 2 8                 row: 4 1 9         bound: {0: 7 10 10, 2: 2 8 8, 1: 4 1 9}

A combination travels as row numbers, one vector per bound input; no payload is touched until `materialise`. A probe
that finds nothing ends the sequence. The expansion is depth first and every probe fills a bounded buffer and resumes,
so an inflating join needs no more memory than a selective one.

A step looks its rows up in the target's index, or scans the target (Kang 2003): the probing rows, of which there are
few, get a small index, and all rows of the target go through it. Then the target needs no index, which would have to
take in every row that arrives, and be built anew when rows leave. The plan says which (`driver.access`); the pairs are
the same, in another order.

Right because: the new rows are in their own table before they probe, a delta belongs to one input, and each table holds
exactly the rows that came before it or with it; so a combination is found once, from the delta of its youngest row.

Every phase calls `produce`; phases differ in the rows that they choose. Not covered: which combinations have been
emitted already (`mjoin.emitted`), outer joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin import kernel
from spark_mjoin.evidence import EdgeCounts, WorkCounts
from spark_mjoin.mjoin.bound import Bound, size_of
from spark_mjoin.mjoin.expressions import evaluate
from spark_mjoin.mjoin.windows import Windows
from spark_mjoin.model import CHUNK_ROWS, Array, Col, Expr, JoinSpec, ProbeOrder, ProbeStep
from spark_mjoin.state.columns import BytesColumn, FixedColumn, GatherTooLarge
from spark_mjoin.state.table import Key, KeyColumn, Table

FEW_CANDIDATES = 1 << 10  # below this, following each chain to its end is cheaper than another round over all


@dataclass(frozen=True)
class Joining:
    """Tables that are joined, what their combinations have to meet, and who counts the work."""

    spec: JoinSpec
    tables: Sequence[Table]
    work: WorkCounts
    windows: Windows | None = None  # that all rows of a combination must be inside of

    def produce(self, order: ProbeOrder, start: int, end: int) -> Iterator[Bound]:
        """All combinations of rows start..end-1 of order.origin with the rows of the other tables."""
        if any(self.tables[step.target].rows == 0 for step in order.steps):
            return
        for low in range(start, end, CHUNK_ROWS):
            delta = np.arange(low, min(low + CHUNK_ROWS, end), dtype=np.int32)
            yield from self.extend(order, {order.origin: delta})

    def extend(self, order: ProbeOrder, bound: Bound, depth: int = 0) -> Iterator[Bound]:
        """The same for combinations that are found already, with the inputs that the order visits from a depth on.

        At the beginning of an order the row numbers of each bound input are neighbours.
        """
        if depth == len(order.steps):
            yield bound
            return
        step = order.steps[depth]
        edge = self.work.edge(order.origin, bound, step.target)
        for at, row in _probe(self.tables, bound, step, edge, depth == 0, self.work):
            wider = {step.target: row}
            for i, rows in bound.items():
                wider[i] = np.empty(at.size, np.int32)
                kernel.gather(rows, at, wider[i])
            if self.windows is not None:
                inside = self.windows.inside(self.tables, wider)
                if outside := int(inside.size - np.count_nonzero(inside)):
                    self.work.outside += outside
                    wider = {i: rows[inside] for i, rows in wider.items()}
            for residual in step.residuals:
                wider = _keep(self.spec, self.tables, wider, self.spec.residuals[residual].expr)
            edge.kept += wider[step.target].size
            if wider[step.target].size:
                yield from self.extend(order, wider, depth + 1)


def _probe(
    tables: Sequence[Table], bound: Bound, step: ProbeStep, edge: EdgeCounts, first: bool, work: WorkCounts
) -> Iterator[tuple[Array, Array]]:
    """Pairs (position in bound, row of the target) whose keys are equal, in pieces of at most CHUNK_ROWS.

    In the first step of an order the bound rows are a run of neighbours, whose keys need no gathering.
    """
    target = tables[step.target]
    key = target.key(step.classes)
    size = size_of(bound)
    edge.probes += size
    edge.chunks += 1
    edge.candidates += size * target.rows
    work.probes += size
    work.hashes += size
    supplied = [
        _Supplied(tables[s], c, tables[s].column(c), bound[s], first)
        for c, s in zip(step.classes, step.suppliers, strict=True)
    ]
    probing = supplied[0].words if key.is_word else _combined(supplied, key.mask)
    for at, row, count in (
        scanned(probing, key, target.rows, work) if step.scan else _found(probing, target, step, work)
    ):
        if not key.is_word:
            for mine, theirs in zip(supplied, key.columns, strict=True):
                count = mine.verify(at, row, count, theirs) if count else 0
        edge.matches += count
        if count:
            yield at[:count], row[:count]


Pairs = tuple[Array, Array, int]  # positions of probing rows, rows of the target, and how many of both count


def _found(probing: Array, target: Table, step: ProbeStep, work: WorkCounts) -> Iterator[Pairs]:
    """Pairs of equal values by the target's index: every probing row is looked up."""
    index = target.index(step.classes)
    at, row = _pairs(probing.size)
    left = kernel.heads(index.slots(probing), index.head, at, row)
    yield from _equal([(at, row, left)], probing, index.key.values(target.rows), index.link.array, work)


def scanned(probing: Array, key: Key, rows: int, work: WorkCounts) -> Iterator[Pairs]:
    """The same without an index of the target's key: all its rows go through a small one of the probing rows."""
    bits = _small_bits(probing.size)
    slots, head, link = np.empty(probing.size, np.uint32), np.full(1 << bits, -1, np.int32), _pairs(probing.size)[0]
    kernel.small_slots(probing, 64 - bits, slots)
    kernel.insert(slots, 0, head, link)
    values = key.values(rows)
    work.comparisons += rows

    def candidates() -> Iterator[Pairs]:
        at, row = _pairs(min(CHUNK_ROWS, rows))
        for low in range(0, rows, CHUNK_ROWS):
            high = min(low + CHUNK_ROWS, rows)
            yield at, row, kernel.sieve(values, low, high, 64 - bits, head, at, row)

    for row, at, count in _equal(candidates(), values, probing, link, work):
        yield at, row, count


def _small_bits(rows: int) -> int:
    """Of the slots of a small index: so many, while a cache holds them, that few rows without a partner find one."""
    bits = (rows - 1).bit_length()
    return max(10, min(bits + 4, 16), bits + 1)


def _equal(blocks: Iterable[Pairs], probing: Array, values: Array, link: Array, work: WorkCounts) -> Iterator[Pairs]:
    """Follow candidates, block by block, to the ends of their chains: pairs of equal values, in full buffers."""
    (out_at, out_row), found = _pairs(CHUNK_ROWS), 0
    for at, row, left in blocks:
        while left >= FEW_CANDIDATES:
            if found + left > CHUNK_ROWS:
                yield out_at, out_row, found
                (out_at, out_row), found = _pairs(CHUNK_ROWS), 0
            work.comparisons += left
            more, left = kernel.advance(probing, at, row, left, values, link, out_at[found:], out_row[found:])
            found += more
        position, cursor = 0, kernel.FRESH
        while position < left:
            position, cursor, more, compared = kernel.walk(
                probing, at, row, left, position, cursor, values, link, out_at[found:], out_row[found:]
            )
            work.comparisons += compared
            found += more
            if position < left:
                yield out_at, out_row, found
                (out_at, out_row), found = _pairs(CHUNK_ROWS), 0
    if found:
        yield out_at, out_row, found


def _pairs(capacity: int) -> tuple[Array, Array]:
    return np.empty(capacity, np.int32), np.empty(capacity, np.int32)


@dataclass(frozen=True)
class _Supplied:
    """The values of one key class in the bound rows: the column they are in and the rows."""

    table: Table
    key_class: int
    column: KeyColumn
    rows: Array
    neighbours: bool

    @property
    def words(self) -> Array:
        assert isinstance(self.column, FixedColumn)
        return self._of_rows(self.column.values.array)

    def hashes(self, mask: np.uint64) -> Array:
        if isinstance(self.column, FixedColumn):
            out = np.empty(self.rows.size, np.uint64)
            kernel.hash_words(self.words, mask, out)
            return out
        return self._of_rows(self.table.key((self.key_class,)).values(self.table.rows))

    def _of_rows(self, values: Array) -> Array:
        if self.neighbours:
            return values[self.rows[0] : self.rows[-1] + 1]
        out = np.empty(self.rows.size, values.dtype)
        kernel.gather(values, self.rows, out)
        return out

    def verify(self, at: Array, row: Array, count: int, target: KeyColumn) -> int:
        if isinstance(self.column, FixedColumn) and isinstance(target, FixedColumn):
            return int(kernel.verify_words(at, row, count, self.rows, self.column.values.array, target.values.array))
        assert isinstance(self.column, BytesColumn) and isinstance(target, BytesColumn)
        mine, theirs = self.column, target
        return int(
            kernel.verify_bytes(
                at, row, count, self.rows, mine.offsets.array, mine.data.array, theirs.offsets.array, theirs.data.array
            )
        )


def _combined(keys: list[_Supplied], mask: np.uint64) -> Array:
    out = keys[0].hashes(mask)
    if len(keys) > 1:
        out = out.copy()  # it may be the table's own
    for key in keys[1:]:
        kernel.combine_hashes(key.hashes(mask), mask, out)
    return out


def _keep(spec: JoinSpec, tables: Sequence[Table], bound: Bound, predicate: Expr) -> Bound:
    """The combinations for which a residual predicate is true."""
    try:
        verdict = _values(spec, tables, bound, predicate, {})
    except GatherTooLarge:
        halves = [_keep(spec, tables, half, predicate) for half in _halves(bound)]
        return {i: np.concatenate([half[i] for half in halves]) for i in bound}
    keep = pc.fill_null(verdict, False).to_numpy(zero_copy_only=False)
    return {i: rows[keep] for i, rows in bound.items()}


def _values(
    spec: JoinSpec, tables: Sequence[Table], bound: Bound, expr: Expr, gathered: dict[Col, pa.Array]
) -> pa.Array:
    """An expression over some combinations; columns it has gathered are left in `gathered` for the next."""

    def column(col: Col) -> pa.Array:
        if col not in gathered:
            gathered[col] = tables[col.input].gather(col.name, bound[col.input], spec.column_type(col))
        return gathered[col]

    return evaluate(expr, column, size_of(bound))


def _halves(bound: Bound) -> list[Bound]:
    middle = size_of(bound) // 2
    return [{i: rows[:middle] for i, rows in bound.items()}, {i: rows[middle:] for i, rows in bound.items()}]


# --- payload -----------------------------------------------------------------------------------------------------


def materialise(spec: JoinSpec, tables: Sequence[Table], bound: Bound) -> Iterator[pa.RecordBatch]:
    """The output rows of some combinations: payload is gathered here, once. One batch, or more if strings are large.

    Below another join of a plan these are the stored columns that it takes, as they are stored.
    """
    try:
        gathered: dict[Col, pa.Array] = {}
        arrays = [_values(spec, tables, bound, output.expr, gathered) for output in spec.output]
        for input, ordinal in spec.passes_on:
            column = tables[input].columns[ordinal]
            arrays.append(column.gather(bound[input], spec.inputs[input].stored[ordinal].type))
    except GatherTooLarge:
        for half in _halves(bound):
            yield from materialise(spec, tables, half)
        return
    yield pa.RecordBatch.from_arrays(arrays, schema=spec.schema)
