"""Reading what is on disk: a part of one input's rows, and dividing parts until a join of them fits into memory.

A part is chosen by buckets, by further digits of the hash of a key, and by a block of what is left then. Nothing is
written to divide: segments are mapped, and a part is a filter over them.

    buckets 0..63 of all inputs                     too large
      ├─ buckets 0..7
      │    ├─ digit 0 of the key's hash, or of another key's
      │    │    ├─ rows 0..9999 of the largest     a key that is too frequent: block by block

This divides inputs that share a key. Others are divided one by one (`partitioned`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import PhaseCounts
from spark_mjoin.mjoin.bound import Bound, pooled
from spark_mjoin.mjoin.emitted import in_several_epochs, not_yet
from spark_mjoin.mjoin.operator import Joining, materialise
from spark_mjoin.mjoin.orders import Probing
from spark_mjoin.mjoin.windows import Windows
from spark_mjoin.model import Array, JoinSpec, ProbeOrder
from spark_mjoin.state.buckets import (
    BUCKETS,
    DIGITS,
    MAX_DEPTH,
    bucket_class,
    digits_of_hashes,
    main_class,
    of_hashes,
)
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.segments import arrived_of, pools
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.table import Table, index_bytes

HOT = 0.75  # of the rows of a part in one digit: dividing by the key does not help
FAN_OUT = 8  # pieces that a division aims at
READ_ROWS = 1 << 14  # rows that are looked at together


@dataclass(frozen=True)
class Disk:
    """Disk work of one operator: its rows and files, the memory that there is for it, and who counts it."""

    state: OperatorState
    store: StateStore
    area: int  # bytes
    phase: PhaseCounts
    probing: Probing

    @property
    def spec(self) -> JoinSpec:
        return self.state.spec

    def note_peak(self, used: int) -> None:
        """So many bytes are in use, besides the rows in memory."""
        self.phase.peak_bytes = max(self.phase.peak_bytes, used)

    def order(self, origin: int, sizes: Sequence[int]) -> ProbeOrder:
        return self.probing.order(origin, sizes, self.state.probed.edges, {})

    def joining(self, tables: Sequence[Table]) -> Joining:
        """What finds combinations of some tables, inside their windows."""
        return Joining(self.spec, tables, self.phase.work, Windows.of(self.spec, self.state.progress))


@dataclass(frozen=True)
class Part:
    """Some rows of one input, all of which are in segments."""

    input: int
    buckets: tuple[int, ...] | None = None  # of the input's own; None: all
    digits: tuple[tuple[int, int, int], ...] = ()  # (key class, depth, digit)
    block: tuple[int, int] | None = None  # the rows low..high-1 of those that pass the rest

    def read(self, state: OperatorState, store: StateStore) -> Iterator[pa.RecordBatch]:
        """The rows, as they are stored."""
        position = 0
        for batch in _pooled(self._of_buckets(state, store)):
            rows = self._of_digits(state.spec, state.departed.living(self.input, batch))
            if self.block is not None:
                low, high = (min(max(edge - position, 0), rows.num_rows) for edge in self.block)
                position += rows.num_rows
                rows = rows.slice(low, high - low)
            if rows.num_rows:
                yield rows

    def _of_buckets(self, state: OperatorState, store: StateStore) -> Iterator[pa.RecordBatch]:
        for segment in state.segments:
            if segment.input != self.input:
                continue
            if self.buckets is None:
                yield from store.segments.rows(segment)
                continue
            for bucket, batch in store.segments.batches(segment, self.buckets):
                if bucket is None:
                    key = key_name(state.spec, self.input, bucket_class(state.spec, self.input))
                    keep = np.isin(of_hashes(hash_array(batch.column(key))), self.buckets)
                    batch = batch.filter(pa.array(keep))
                yield batch

    def _of_digits(self, spec: JoinSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
        keep = None
        for key_class, depth, digit in self.digits:
            hashes = hash_array(batch.column(key_name(spec, self.input, key_class)))
            same = digits_of_hashes(hashes, depth) == digit
            keep = same if keep is None else keep & same
        return batch if keep is None else batch.filter(pa.array(keep))


def _pooled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger batches: clustered segments have many small ones."""
    for pool in pools(batches, READ_ROWS):
        yield from pa.Table.from_batches(pool).combine_chunks().to_batches()


Wanted = Callable[[Array, Array], Array]  # a predicate over (buckets, arrived)


def take_in(table: Table, batch: pa.RecordBatch, wanted: Wanted | None = None) -> None:
    """Append rows of a segment to a table; with `wanted` only some."""
    arrived = arrived_of(batch)
    if wanted is not None:
        keep = wanted(of_hashes(hash_array(batch.column(table.bucket_key))), arrived)
        batch, arrived = batch.filter(pa.array(keep)), arrived[keep]
    if batch.num_rows:
        table.append([batch.column(stored.field) for stored in table.spec.stored], arrived)


@dataclass(frozen=True)
class Passed:
    """Which rows were in a pass over some buckets before: all combinations of such rows are out."""

    cleaned: Array  # per bucket of the main class, the last pass
    main: Sequence[int]  # the inputs with the main class
    everywhere: int  # the last pass by which all of the buckets had been passed over
    any: bool  # whether any of them has been passed over

    @staticmethod
    def over(state: OperatorState, buckets: Sequence[int]) -> Passed:
        cleaned = state.residency.cleaned
        chosen = cleaned[list(buckets)]
        return Passed(cleaned, state.groups.main, int(chosen.min()), bool(chosen.any()))

    @staticmethod
    def never() -> Passed:
        """As if there had been none: everything is new."""
        return Passed(np.zeros(BUCKETS, np.int32), (), 0, False)

    def is_old(self, input: int, own: Array, arrived: Array) -> Array:
        """Of some rows of an input, by their buckets and arrivals."""
        since: Array | int = self.cleaned[own] if input in self.main else self.everywhere
        old: Array = arrived < since
        return old

    def has_old(self, input: int) -> bool:
        """Whether any row of an input can be old."""
        return self.any if input in self.main else self.everywhere > 0


def not_emitted(
    state: OperatorState, tables: Sequence[Table], flushed: Sequence[Array], bounds: Iterable[Bound]
) -> Iterator[Bound]:
    """The combinations that have not been emitted; flushed[i] says when each row of tables[i] was evicted."""
    residency, inputs, main = state.residency, range(len(tables)), state.groups.main[0]
    asked_for = [i for i in inputs if i == main or residency.visits[i]]  # whose buckets matter
    of_all: list[Array] = []
    for bound in bounds:
        of_all = of_all or [table.arrived for table in tables]
        arrived = [of_all[i][bound[i]] for i in inputs]
        buckets = {i: tables[i].buckets_of(bound[i]) for i in asked_for}
        gone = [flushed[i][bound[i]] for i in inputs]
        keep = not_yet(arrived, gone, residency.cleaned[buckets[main]], residency.visits, buckets)
        yield from _those(bound, keep)


def emitted_late(state: OperatorState, tables: Sequence[Table], found: Iterator[Bound]) -> Iterator[pa.RecordBatch]:
    """The output rows of combinations that disk work has found, which are emitted."""
    main = state.groups.main[0]
    for bound in pooled(found):
        state.emit_late(tables[main].buckets_of(bound[main]))
        yield from materialise(state.spec, tables, bound)


def across_epochs(flushed: Sequence[Array], bounds: Iterable[Bound]) -> Iterator[Bound]:
    """The same where rows leave in epochs, of combinations that all have a row which is new to this pass."""
    for bound in bounds:
        yield from _those(bound, in_several_epochs([of[bound[i]] for i, of in enumerate(flushed)]))


def _those(bound: Bound, keep: Array) -> Iterator[Bound]:
    if keep.all():
        yield bound
    elif keep.any():
        yield {i: rows[keep] for i, rows in bound.items()}


def share_a_key(state: OperatorState) -> bool:
    """Whether all inputs have the main class, so that dividing by it divides them all."""
    return len(state.groups.main) == len(state.tables)


def is_one_piece(state: OperatorState, buckets: Sequence[int], area: int) -> bool:
    """Whether all that joins in some buckets of the main class fits together."""
    sizes = (needed_bytes(state, part.input, stored_rows(state, part)) for part in whole(state, buckets))
    return sum(sizes) <= area


def divide(state: OperatorState, store: StateStore, buckets: Sequence[int], area: int) -> Iterator[tuple[Part, ...]]:
    """Parts of all inputs whose combinations are those of some buckets of the main class, each time small enough.

    Inputs without the main class are read again for every piece: others than a single one are for `partitioned`.
    """
    assert share_a_key(state) or is_one_piece(state, buckets, area)
    parts = whole(state, buckets)
    yield from _Division(state, store, area).pieces(parts, [stored_rows(state, part) for part in parts])


def whole(state: OperatorState, buckets: Sequence[int]) -> tuple[Part, ...]:
    """All that joins in some buckets of the main class."""
    spec, main = state.spec, state.groups.main
    return tuple(Part(i, tuple(buckets) if i in main else None) for i in range(len(spec.inputs)))


Piece = tuple[tuple[Part, ...], list[int]]  # a part of every input, and the number of rows of each


@dataclass
class _Division:
    state: OperatorState
    store: StateStore
    area: int

    def pieces(self, parts: tuple[Part, ...], rows: list[int]) -> Iterator[tuple[Part, ...]]:
        if not all(rows):
            return  # an input without rows here: no combinations
        sizes = [needed_bytes(self.state, i, n) for i, n in enumerate(rows)]
        if sum(sizes) <= self.area or max(rows) == 1:
            yield parts
            return
        for smaller, fewer in self._by_key(parts, rows, sizes) or self._by_block(parts, rows, sizes):
            yield from self.pieces(smaller, fewer)

    def _by_key(self, parts: tuple[Part, ...], rows: list[int], sizes: list[int]) -> list[Piece]:
        """By the key whose inputs have most of the bytes: by bucket or, below that, by digit of its hash."""
        spec = self.state.spec
        if any(p.block for p in parts):
            return []
        members = [[i for i in range(len(parts)) if c in spec.classes_of(i)] for c in range(len(spec.classes))]
        weight = [sum(sizes[i] for i in of) for of in members]
        main = main_class(spec)
        for key_class in sorted(range(len(members)), key=lambda c: (-weight[c], c != main)):
            if 2 * weight[key_class] < sum(sizes):
                break
            buckets = parts[members[main][0]].buckets
            assert buckets is not None
            if key_class == main and len(buckets) > 1:
                return self._by_bucket(parts, buckets)
            if divided := self._by_digit(parts, rows, sizes, key_class, members[key_class]):
                return divided
        return []

    def _by_bucket(self, parts: tuple[Part, ...], buckets: tuple[int, ...]) -> list[Piece]:
        """Fewer buckets of all inputs."""
        out = []
        step = max(1, len(buckets) // FAN_OUT)
        for low in range(0, len(buckets), step):
            some = buckets[low : low + step]
            smaller = tuple(replace(p, buckets=some) for p in parts)
            out.append((smaller, [stored_rows(self.state, p) for p in smaller]))
        return out

    def _by_digit(
        self, parts: tuple[Part, ...], rows: list[int], sizes: list[int], key_class: int, members: list[int]
    ) -> list[Piece]:
        """By a digit of the hash of a key, unless most rows have the same one."""
        depth = sum(c == key_class for c, _, _ in parts[members[0]].digits)
        if depth >= MAX_DEPTH:
            return []
        counts = {i: self._census(parts[i], key_class, depth) for i in members}
        largest = max(members, key=lambda i: sizes[i])
        if counts[largest].max() > HOT * rows[largest]:
            return []
        out = []
        for digit in range(DIGITS):
            chosen = (key_class, depth, digit)
            smaller = [replace(p, digits=(*p.digits, chosen)) if i in counts else p for i, p in enumerate(parts)]
            out.append((tuple(smaller), [int(counts[i][digit]) if i in counts else n for i, n in enumerate(rows)]))
        return out

    def _by_block(self, parts: tuple[Part, ...], rows: list[int], sizes: list[int]) -> list[Piece]:
        """The largest part cut into blocks, each to be joined with all the rest."""
        i = max((i for i in range(len(parts)) if rows[i] > 1), key=lambda i: sizes[i])
        share = max(1, int(rows[i] * (self.area / len(parts)) / sizes[i]))
        step = min(share, (rows[i] + 1) // 2)
        start, _ = parts[i].block or (0, 0)
        out = []
        for low in range(0, rows[i], step):
            high = min(low + step, rows[i])
            block = replace(parts[i], block=(start + low, start + high))
            out.append(((*parts[:i], block, *parts[i + 1 :]), [*rows[:i], high - low, *rows[i + 1 :]]))
        return out

    def _census(self, part: Part, key_class: int, depth: int) -> Array:
        """How many rows of a part have each digit."""
        counts = np.zeros(DIGITS, np.int64)
        name = key_name(self.state.spec, part.input, key_class)
        for batch in part.read(self.state, self.store):
            hashes = hash_array(batch.column(name))
            counts += np.bincount(digits_of_hashes(hashes, depth), minlength=DIGITS)
        return counts


def stored_rows(state: OperatorState, part: Part) -> int:
    """The number of rows of a part that is some buckets."""
    rows = state.groups.resident[part.input] + state.groups.disk[part.input]
    return int(rows.sum() if part.buckets is None else rows[list(part.buckets)].sum())


def needed_bytes(state: OperatorState, input: int, rows: int) -> int:
    """What so many rows of an input need in memory, with an index, judged by the segments."""
    return int(rows * state.stored_row_bytes(input)) + index_bytes(rows, hashed=True)


def key_name(spec: JoinSpec, input: int, key_class: int) -> str:
    return spec.inputs[input].stored[dict(spec.inputs[input].keys)[key_class]].field
