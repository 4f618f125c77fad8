"""Reading what is on disk: a part of one input's rows, and dividing parts until a join of them fits into memory.

A part is chosen by buckets, by further digits of the hash of a key, and by a block of what is left then. Nothing is
written to divide: segments are mapped, and a part is a filter over them.

    buckets 0..63 of all inputs                     too large
      ├─ buckets 0..7 of those with the main class, all of the others
      │    ├─ digit 0 of another key, in the inputs that have it
      │    │    ├─ rows 0..9999 of the largest     a key that is too frequent: block by block
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_mjoin.join.emitted import not_yet
from spark_mjoin.join.operator import Bound
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import (
    DIGITS,
    MAX_DEPTH,
    bucket_class,
    digits_of_hashes,
    main_class,
    of_hashes,
)
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.store import StateStore, arrived_of, pools
from spark_mjoin.state.table import Table, index_bytes

HOT = 0.75  # of the rows of a part in one digit: dividing by the key does not help
FAN_OUT = 8  # pieces that a division aims at
READ_ROWS = 1 << 14  # rows that are looked at together


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
            rows = self._of_digits(state.spec, store.living(state, self.input, batch))
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
                yield from store.rows(segment)
                continue
            for bucket, batch in store.batches(segment, self.buckets):
                if bucket is None:
                    key = _key_name(state.spec, self.input, bucket_class(state.spec, self.input))
                    keep = np.isin(of_hashes(hash_array(batch.column(key))), self.buckets)
                    batch = batch.filter(pa.array(keep))
                yield batch

    def _of_digits(self, spec: JoinSpec, batch: pa.RecordBatch) -> pa.RecordBatch:
        keep = None
        for key_class, depth, digit in self.digits:
            hashes = hash_array(batch.column(_key_name(spec, self.input, key_class)))
            same = digits_of_hashes(hashes, depth) == digit
            keep = same if keep is None else keep & same
        return batch if keep is None else batch.filter(pa.array(keep))


def _pooled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer, larger batches: clustered segments have many small ones."""
    for pool in pools(batches, READ_ROWS):
        yield from pa.Table.from_batches(pool).combine_chunks().to_batches()


def take_in(table: Table, batch: pa.RecordBatch, wanted: Callable[[Array, Array], Array] | None = None) -> None:
    """Append rows of a segment to a table; with `wanted`, a predicate over (buckets, arrived), only some."""
    arrived = arrived_of(batch)
    if wanted is not None:
        keep = wanted(of_hashes(hash_array(batch.column(table.bucket_key))), arrived)
        batch, arrived = batch.filter(pa.array(keep)), arrived[keep]
    if batch.num_rows:
        table.append([batch.column(stored.field) for stored in table.spec.stored], arrived)


def not_out_yet(
    state: OperatorState, tables: Sequence[Table], flushed: Sequence[Array], bounds: Iterable[Bound]
) -> Iterator[Bound]:
    """The combinations that have not been given out; flushed[i] says when each row of tables[i] left memory."""
    residency, inputs = state.residency, range(len(tables))
    for bound in bounds:
        arrived = [tables[i].arrived[bound[i]] for i in inputs]
        buckets = [tables[i].buckets[bound[i]] for i in inputs]
        gone = [flushed[i][bound[i]] for i in inputs]
        cleaned = residency.cleaned[buckets[state.groups.main[0]]]
        keep = not_yet(arrived, gone, cleaned, residency.visits, buckets)
        if keep.all():
            yield bound
        elif keep.any():
            yield {i: rows[keep] for i, rows in bound.items()}


def divide(state: OperatorState, store: StateStore, buckets: Sequence[int], area: int) -> Iterator[tuple[Part, ...]]:
    """Parts of all inputs whose combinations are those of some buckets of the main class, each time small enough."""
    spec = state.spec
    main = main_class(spec)
    parts = tuple(Part(i, tuple(buckets) if main in spec.classes_of(i) else None) for i in range(len(spec.inputs)))
    division = _Division(state, store, area)
    yield from division.pieces(parts, [division.rows(part) for part in parts])


Piece = tuple[tuple[Part, ...], list[int]]  # a part of every input, and the number of rows of each


@dataclass
class _Division:
    state: OperatorState
    store: StateStore
    area: int

    def pieces(self, parts: tuple[Part, ...], rows: list[int]) -> Iterator[tuple[Part, ...]]:
        if not all(rows):
            return  # an input without rows here: no combinations
        sizes = [self._bytes(i, n) for i, n in enumerate(rows)]
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
                return self._by_bucket(parts, rows, buckets)
            if divided := self._by_digit(parts, rows, sizes, key_class, members[key_class]):
                return divided
        return []

    def _by_bucket(self, parts: tuple[Part, ...], rows: list[int], buckets: tuple[int, ...]) -> list[Piece]:
        """Fewer buckets of the inputs with the main class."""
        out = []
        step = max(1, len(buckets) // FAN_OUT)
        for low in range(0, len(buckets), step):
            some = buckets[low : low + step]
            smaller = tuple(p if p.buckets is None else replace(p, buckets=some) for p in parts)
            fewer = [n if p.buckets is None else self.rows(p) for p, n in zip(smaller, rows, strict=True)]
            out.append((smaller, fewer))
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

    def rows(self, part: Part) -> int:
        """The number of rows of a part that no block was cut from."""
        if part.digits:
            return sum(batch.num_rows for batch in part.read(self.state, self.store))
        groups = self.state.groups
        totals = groups.resident[part.input] + groups.disk[part.input]
        return int(totals.sum() if part.buckets is None else totals[list(part.buckets)].sum())

    def _census(self, part: Part, key_class: int, depth: int) -> Array:
        """How many rows of a part have each digit."""
        counts = np.zeros(DIGITS, np.int64)
        name = _key_name(self.state.spec, part.input, key_class)
        for batch in part.read(self.state, self.store):
            hashes = hash_array(batch.column(name))
            counts += np.bincount(digits_of_hashes(hashes, depth), minlength=DIGITS)
        return counts

    def _bytes(self, input: int, rows: int) -> int:
        """What so many rows of an input need in memory, judged by the segments."""
        return int(rows * self.state.stored_row_bytes(input)) + index_bytes(rows, hashed=True)


def _key_name(spec: JoinSpec, input: int, key_class: int) -> str:
    return spec.inputs[input].stored[dict(spec.inputs[input].keys)[key_class]].field
