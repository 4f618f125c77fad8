"""Reading what is on disk: a part of one input's rows, and dividing parts until a join of them fits into memory.

A part is chosen by buckets, by further digits of the hash of a key, and by a block of what is left then. Nothing is
written to divide: segments are mapped, and a part is a filter over them.

    buckets 0..63 of all inputs                     too large
      ├─ buckets 0..7 of those with the main class, all of the others
      │    ├─ digit 0 of another key, in the inputs that have it
      │    │    ├─ rows 0..9999 of the largest     a key that is too frequent: block by block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

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
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore, arrived_of
from spark_mjoin.state.table import Table, index_bytes

HOT = 0.75  # of the rows of a part in one digit: dividing by the key does not help
FAN_OUT = 8  # pieces that a division aims at


@dataclass(frozen=True)
class Part:
    """Some rows of one input, all of which are in segments."""

    input: int
    buckets: tuple[int, ...] | None = None  # of the input's own; None: all
    digits: tuple[tuple[int, int, int], ...] = ()  # (key class, depth, digit)
    block: tuple[int, int] | None = None  # the rows low..high-1 of those that pass the rest

    def read(self, state: PartitionState, store: StateStore) -> Iterator[pa.RecordBatch]:
        """The rows, as they are stored."""
        position = 0
        for segment in state.segments:
            if segment.input == self.input:
                for bucket, batch in store.batches(segment, self.buckets):
                    rows = self._passing(state.spec, batch, bucket is not None)
                    if self.block is not None:
                        low, high = (min(max(edge - position, 0), rows.num_rows) for edge in self.block)
                        position += rows.num_rows
                        rows = rows.slice(low, high - low)
                    if rows.num_rows:
                        yield rows

    def hashes(self, state: PartitionState, store: StateStore, key_class: int) -> Iterator[Array]:
        """The hashes of one key of the rows."""
        name = _key_name(state.spec, self.input, key_class)
        for batch in self.read(state, store):
            yield hash_array(batch.column(name))

    def _passing(self, spec: JoinSpec, batch: pa.RecordBatch, of_one_bucket: bool) -> pa.RecordBatch:
        keep = None
        if self.buckets is not None and not of_one_bucket:
            name = _key_name(spec, self.input, bucket_class(spec, self.input))
            keep = np.isin(of_hashes(hash_array(batch.column(name))), self.buckets)
        for key_class, depth, digit in self.digits:
            hashes = hash_array(batch.column(_key_name(spec, self.input, key_class)))
            same = digits_of_hashes(hashes, depth) == digit
            keep = same if keep is None else keep & same
        return batch if keep is None else batch.filter(pa.array(keep))


def take_in(table: Table, batch: pa.RecordBatch, wanted: Callable[[Array, Array], Array] | None = None) -> None:
    """Append rows of a segment to a table; with `wanted`, a predicate over (buckets, arrived), only some."""
    arrived = arrived_of(batch)
    if wanted is not None:
        keep = wanted(of_hashes(hash_array(batch.column(table.bucket_key))), arrived)
        batch, arrived = batch.filter(pa.array(keep)), arrived[keep]
    if batch.num_rows:
        table.append([batch.column(stored.name) for stored in table.spec.stored], arrived)


def divide(state: PartitionState, store: StateStore, buckets: Sequence[int], area: int) -> Iterator[tuple[Part, ...]]:
    """Parts of all inputs whose combinations are those of some buckets of the main class, each time small enough."""
    spec = state.spec
    main = main_class(spec)
    parts = tuple(Part(i, tuple(buckets) if main in spec.classes_of(i) else None) for i in range(len(spec.inputs)))
    totals = state.groups.resident + state.groups.disk
    rows = [int(totals[i, list(buckets)].sum() if p.buckets else totals[i].sum()) for i, p in enumerate(parts)]
    yield from _Division(state, store, area).pieces(parts, rows)


@dataclass
class _Division:
    state: PartitionState
    store: StateStore
    area: int

    def pieces(self, parts: tuple[Part, ...], rows: list[int]) -> Iterator[tuple[Part, ...]]:
        if not all(rows):
            return  # an input without rows here: no combinations
        sizes = [self._bytes(i, n) for i, n in enumerate(rows)]
        if sum(sizes) <= self.area or max(rows) == 1:
            yield parts
            return
        for smaller, fewer in (
            self._by_bucket(parts) or self._by_key(parts, rows, sizes) or self._by_block(parts, rows, sizes)
        ):
            yield from self.pieces(smaller, fewer)

    def _by_bucket(self, parts: tuple[Part, ...]) -> list[tuple[tuple[Part, ...], list[int]]]:
        """Fewer buckets of the inputs with the main class, as long as there are several."""
        buckets = next(p.buckets for p in parts if p.buckets is not None)
        if len(buckets) == 1 or any(p.digits or p.block for p in parts):
            return []
        totals = self.state.groups.resident + self.state.groups.disk
        out = []
        step = max(1, len(buckets) // FAN_OUT)
        for low in range(0, len(buckets), step):
            some = buckets[low : low + step]
            smaller = tuple(p if p.buckets is None else replace(p, buckets=some) for p in parts)
            fewer = [
                int(totals[p.input, list(p.buckets)].sum() if p.buckets else totals[p.input].sum()) for p in smaller
            ]
            out.append((smaller, fewer))
        return out

    def _by_key(
        self, parts: tuple[Part, ...], rows: list[int], sizes: list[int]
    ) -> list[tuple[tuple[Part, ...], list[int]]]:
        """By a digit of the key whose inputs have most of the bytes, unless most rows have the same digit."""
        spec = self.state.spec
        if any(p.block for p in parts):
            return []
        classes = sorted(
            range(len(spec.classes)),
            key=lambda c: -sum(size for i, size in enumerate(sizes) if c in spec.classes_of(i)),
        )
        for key_class in classes:
            depth = sum(c == key_class for c, _, _ in max((p.digits for p in parts), key=len))
            members = [i for i in range(len(parts)) if key_class in spec.classes_of(i)]
            if depth >= MAX_DEPTH or sum(sizes[i] for i in members) < sum(sizes) / 2:
                continue
            counts = {i: self._census(parts[i], key_class, depth) for i in members}
            largest = max(members, key=lambda i: sizes[i])
            if counts[largest].max() > HOT * rows[largest]:
                continue
            return [
                (
                    tuple(
                        replace(p, digits=(*p.digits, (key_class, depth, digit))) if i in counts else p
                        for i, p in enumerate(parts)
                    ),
                    [int(counts[i][digit]) if i in counts else n for i, n in enumerate(rows)],
                )
                for digit in range(DIGITS)
            ]
        return []

    def _by_block(
        self, parts: tuple[Part, ...], rows: list[int], sizes: list[int]
    ) -> list[tuple[tuple[Part, ...], list[int]]]:
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
        for hashes in part.hashes(self.state, self.store, key_class):
            counts += np.bincount(digits_of_hashes(hashes, depth), minlength=DIGITS)
        return counts

    def _bytes(self, input: int, rows: int) -> int:
        """What so many rows of an input need in memory, judged by the segments."""
        mine = [s for s in self.state.segments if s.input == input]
        per_row = sum(s.bytes for s in mine) / max(1, sum(s.end - s.start for s in mine))
        return int(rows * per_row) + index_bytes(rows, hashed=True)


def _key_name(spec: JoinSpec, input: int, key_class: int) -> str:
    return spec.inputs[input].stored[dict(spec.inputs[input].keys)[key_class]].name
