"""Rows of inputs as they are in the state, to those who divide them among partitions, and how many of them are copies.

Where a layout sends copies of rows to several partitions, each of them has the rows that it joins, and works with all
of them. But a person who asks how many rows have come wants each row counted once: by the partition that has its first
copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_mjoin.engine.row_hashes import row_hashes
from spark_mjoin.mjoin.keys import orders
from spark_mjoin.model import Array, JoinSpec, StoredColumn
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.routing import Routing


@dataclass(frozen=True)
class Kept:
    """Rows of an input as they are in segments (`state.layouts.Keys`)."""

    spec: JoinSpec  # of the operator
    member: int  # of the operator
    input: int  # of the whole join
    batch: pa.RecordBatch

    @staticmethod
    def of_arrays(spec: JoinSpec, member: int, input: int, arrays: Sequence[pa.Array]) -> Kept:
        names = [stored.field for stored in spec.inputs[member].stored]
        return Kept(spec, member, input, pa.RecordBatch.from_arrays(list(arrays), names))

    @property
    def count(self) -> int:
        return int(self.batch.num_rows)

    def has(self, key_class: int) -> bool:
        return key_class in self.spec.classes_of(self.member)

    def hashes(self, key_class: int | None = None) -> Array | None:
        stored = self._stored(self.spec.star_class if key_class is None else key_class)
        return None if stored is None else hash_array(self.batch.column(stored.field))

    def orders(self) -> Array:
        stored = self._stored(self.spec.star_class)
        assert stored is not None and stored.domain is not None
        return orders(self.batch.column(stored.field), stored.domain)

    def row_hashes(self, rows: Array) -> Array:
        stored = self.batch.select([stored.field for stored in self.spec.inputs[self.member].stored])
        return row_hashes(stored.take(pa.array(rows)))

    def _stored(self, key_class: int | None) -> StoredColumn | None:
        """The column of the input's keys of a class; None where it has none."""
        input = self.spec.inputs[self.member]
        ordinal = None if key_class is None else dict(input.keys).get(key_class)
        return None if ordinal is None else input.stored[ordinal]


def copies(rows: Kept, routing: Routing, partition: int) -> int:
    """How many of the rows of a partition are copies of rows that are counted elsewhere."""
    firsts = routing.layout.firsts(rows, partition, routing.partitions) if routing.layout.replicates else None
    return 0 if firsts is None else int(rows.count - firsts.sum())
