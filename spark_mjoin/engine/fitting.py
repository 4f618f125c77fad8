"""How much of a pass is in memory at a time.

Division       groups of the values of a key: the rows of a group are expected to fit together
portions       rows that pass by together
filled_tables  tables that fit their room; a group that is too large all the same comes as several
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.disk import take_in
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS, DIGIT_BITS, DIGIT_SHIFT, of_hashes
from spark_mjoin.state.operator import new_table
from spark_mjoin.state.table import Table, index_bytes

MOST_DEPTH = 2  # digits below the bucket by which groups may be divided: more would be too many for a temporary file
PORTION = 4  # of the work area, the part that passes by together
LEAST_PORTION = 256  # rows of it at the least, and of a table
MOST_PORTION = 1 << 14


@dataclass(frozen=True)
class Division:
    """Groups of the values of a key: some buckets, or where buckets are too large, parts of one."""

    depth: int  # digits of the hash below the bucket
    buckets: list[tuple[int, ...]]  # of each group
    _group_of: Array  # by bucket and digits

    @staticmethod
    def packed(buckets: Sequence[int], sizes: Array, room: float) -> Division:
        """Neighbours are in one group as long as they fit."""
        depth = 0
        while depth < MOST_DEPTH and sizes.max(initial=0) / (1 << DIGIT_BITS * depth) > room:
            depth += 1
        cells = 1 << DIGIT_BITS * depth
        group_of = np.full(BUCKETS * cells, -1, np.int32)
        of, held = list[dict[int, None]](), 0.0
        for bucket, size in zip(buckets, sizes, strict=True):
            for cell in range(cells):
                held += size / cells
                if not of or held > room:
                    of.append({})
                    held = size / cells
                of[-1][bucket] = None
                group_of[bucket * cells + cell] = len(of) - 1
        return Division(depth, [tuple(each) for each in of], group_of)

    def groups(self, hashes: Array) -> Array:
        """The group of each hash."""
        cells = of_hashes(hashes).astype(np.int32)
        if self.depth:
            bits = DIGIT_BITS * self.depth
            digits = (hashes >> np.uint64(DIGIT_SHIFT)) & np.uint64((1 << bits) - 1)
            cells = (cells << bits) | digits.astype(np.int32)
        out: Array = self._group_of[cells]
        return out


def portion_rows(each: float, area: int) -> int:
    """How many rows of a size pass by together."""
    return int(min(max(area / PORTION / max(each, 1.0), LEAST_PORTION), MOST_PORTION))


def portions(batch: pa.RecordBatch, area: int) -> Iterator[pa.RecordBatch]:
    """Rows in batches that may pass by."""
    portion = portion_rows(batch.nbytes / max(1, batch.num_rows), area)
    for at in range(0, batch.num_rows, portion):
        yield batch.slice(at, portion)


def table_bytes(table: Table) -> float:
    """What a table with one index needs."""
    return table.rows * table.row_bytes() + index_bytes(table.rows, hashed=True)


def filled_tables(spec: JoinSpec, input: int, batches: Iterable[pa.RecordBatch], room: float) -> Iterator[Table]:
    """Rows in tables, each of which fits, or has few rows."""
    table = new_table(spec, input, tracked=True)
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            each = table.row_bytes() or batch.nbytes / batch.num_rows
            fitting = int((room - table_bytes(table)) / (each + 20))  # what an index needs for a row, or less
            fitting = max(fitting, LEAST_PORTION - table.rows, 1)
            take_in(table, batch.slice(at, fitting))
            at += fitting
            if table_bytes(table) >= room and table.rows >= LEAST_PORTION:
                yield table
                table = new_table(spec, input, tracked=True)
    if table.rows:
        yield table


def in_one_batch(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in one batch, if there are any."""
    if len(batches) <= 1:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found
