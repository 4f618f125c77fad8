"""A feed of rows that somebody has brought to the task, in an order that does not depend on how they came.

    parcels, in any order ──> rows of each input ──> by the hash of the whole row ──> pieces, punctuations last

Spark's shuffle brings rows in another order whenever it runs again, and the task must be the same function then
(DESIGN, invariant 2): which rows are evicted and so which results are pending depends on the order, and so do the
segments that another attempt at the same version is compared with. So rows come in the order of a 64-bit hash over all
their columns. Rows with the same hash are the same row; that two others share one is as good as impossible, and would
matter only in a batch that is run twice.

Where an input is ordered by a key, its rows come in that order instead, and the hash decides among equals.
Punctuations come behind all rows of their batch: what they promise holds from there on.

A task holds up to a quarter of its memory budget of such rows, all inputs together; to bring them into order takes as
much again. What is beyond that is divided by the first bits of the hash in files, which are then read one by one. The
order is the same, and only a part of the rows is in memory at a time. An ordered input stays in memory. Whether there
are files depends on how rows came, and what is read does not: one part after the other has the order of the whole.

The input cannot be read again: a batch whose rows were not committed is lost for this task, and `again` says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.engine.exchange import Floor, as_batch, divided, sent_columns, unpacked
from spark_mjoin.engine.feed import Feed, Piece
from spark_mjoin.engine.row_hashes import row_hashes
from spark_mjoin.errors import not_read
from spark_mjoin.mjoin.expressions import evaluate
from spark_mjoin.mjoin.punctuations import marks
from spark_mjoin.model import Array, Position
from spark_mjoin.state.manifest import Brought
from spark_mjoin.task import PartitionTask

SPOOL_BYTES = 512 << 20  # of rows that a task holds before it joins them, where it has no budget
LEAST_SPOOL_BYTES = 16 << 20  # where it has a small one: less would be all files and no rows
SPOOL_SHARE = 4  # of the budget, one in so many
SPOOLED_TOGETHER_BYTES = 16 << 20
PIECE_ROWS = 1 << 16
_FILES_BITS = 6  # of the hash decide in which file of the spool a row is
_ALL_ONES = (1 << 64) - 1


class Delivered(Feed):
    """What was brought to a task in one batch."""

    def __init__(self, task: PartitionTask, parcels: Iterable[pa.RecordBatch], directory: Path) -> None:
        """directory: for this task alone, while it lasts. It is made when it is needed."""
        self._task = task
        self._inputs = [_Rows(task, number, directory) for number in range(len(task.spec.inputs))]
        self._floors: dict[int, list[Floor]] = {}
        most = spool_bytes(task)
        for number, content in unpacked(parcels, task.spec):
            if isinstance(content, Floor):
                self._floors.setdefault(number, []).append(content)
                continue
            self._inputs[number].take(content)
            if sum(each.held_bytes for each in self._inputs) > most:
                max(self._inputs, key=lambda each: each.spoolable_bytes).spool()
        for each in self._inputs:
            each.end()

    def count(self, input: int) -> int:
        return self._inputs[input].data_rows

    def read(self, input: int, number: int) -> Iterator[Piece]:
        whole = self._inputs[input].whole
        for rows, marked in self._inputs[input].in_order():
            piece = Piece(input, rows, rows.num_rows, number, marked, own=not whole)
            yield piece
            number += piece.delivered

    def again(self, since: Mapping[str, Position]) -> Feed:
        raise not_read(self._task.ledger.version)

    def may_lose_rows(self) -> bool:
        return False

    def brought(self) -> Brought:
        return tuple((each.rows, each.hashes) for each in self._inputs)

    def floors(self) -> dict[int, int]:
        found = {}
        for input, said in self._floors.items():
            times = [floor.time for floor in said if floor.time is not None]
            if len(times) == len(said):  # every task of the earlier stage says one
                found[input] = min(times)
        return found


def spool_bytes(task: PartitionTask) -> int:
    """How much a task holds of what was brought to it, at most."""
    budget = task.budget_bytes
    return SPOOL_BYTES if budget is None else min(SPOOL_BYTES, max(LEAST_SPOOL_BYTES, budget // SPOOL_SHARE))


class _Rows:
    """The rows of one input in one batch. They can be read once."""

    def __init__(self, task: PartitionTask, number: int, directory: Path) -> None:
        spec = task.spec
        planned = task.ledger.plan.purging
        self._input = spec.inputs[number]
        self._schema = sent_columns(spec, number)
        self._directory = directory / str(number)
        self._held: list[pa.RecordBatch] = []
        self.held_bytes = 0
        self._held_hashes = np.zeros(0, np.uint64)  # once all have come
        self._files: dict[int, pa.RecordBatchFileWriter] = {}
        self._said: list[pa.RecordBatch] = []  # punctuations
        self.whole = self._input.promises_by_order("off" if planned is None else planned.verify)
        self.data_rows = 0
        self.rows = self.hashes = 0  # punctuations too: how many there are, and the sum of their hashes

    def take(self, rows: pa.RecordBatch) -> None:
        marked = marks(self._input, rows)
        if marked is not None:
            self._said.append(rows.filter(pa.array(marked)))
            rows = rows.filter(pa.array(~marked))
        self.data_rows += rows.num_rows
        self._held.append(rows)
        self.held_bytes += rows.nbytes

    @property
    def spoolable_bytes(self) -> int:
        return self.held_bytes if self._input.ordered is None else 0

    def spool(self) -> None:
        """Put the rows that are held into files, if the order allows it."""
        if self._input.ordered is not None:
            return
        for directory in (self._directory.parent, self._directory):
            directory.mkdir(mode=0o700, exist_ok=True)
        held, self._held, self.held_bytes = self._held, [], 0
        held.reverse()
        while held:
            some, size = [held.pop()], 0
            while held and size < SPOOLED_TOGETHER_BYTES:
                some.append(held.pop())
                size += some[-1].nbytes
            self._write(as_batch(some, self._schema))

    def _write(self, rows: pa.RecordBatch) -> None:
        parts = (self._hashed(rows) >> np.uint64(64 - _FILES_BITS)).astype(np.int16)
        for part, some in divided(rows, parts):
            if part not in self._files:
                self._files[part] = pa.ipc.new_file(self._directory / str(part), self._schema)
            self._files[part].write_batch(some)

    def end(self) -> None:
        """All rows have come."""
        if self._files:
            self.spool()
            for writer in self._files.values():
                writer.close()
        else:
            rows = as_batch(self._held, self._schema)
            self._held, self._held_hashes = [rows], self._hashed(rows)
        if self._said:
            said = as_batch(self._said, self._schema)
            self._said = [said.take(pa.array(np.argsort(self._hashed(said), kind="stable")))]

    def _hashed(self, rows: pa.RecordBatch) -> Array:
        """The hashes of some rows, which are counted from now on."""
        hashes = row_hashes(rows)
        self.rows += rows.num_rows
        self.hashes = (self.hashes + int(hashes.sum(dtype=np.uint64))) & _ALL_ONES
        return hashes

    def in_order(self) -> Iterator[tuple[pa.RecordBatch, Array | None]]:
        """Pieces of data rows, and last the punctuations, all of which are marked."""
        for rows, hashes in self._parts():
            ordered = rows.take(self._order(rows, hashes))
            del rows, hashes  # or they would be there as long as pieces are taken
            for start in range(0, ordered.num_rows, PIECE_ROWS):
                yield ordered.slice(start, PIECE_ROWS), None
        for said in self._said:
            if said.num_rows:
                yield said, np.ones(said.num_rows, np.bool_)

    def _order(self, rows: pa.RecordBatch, hashes: Array) -> pa.Array:
        """The numbers of rows, in the order in which they come."""
        if self._input.ordered is None:
            return pa.array(np.argsort(hashes, kind="stable"))
        key_class, descending = self._input.ordered
        key = self._input.stored[dict(self._input.keys)[key_class]].expr
        values = evaluate(key, lambda col: rows.column(col.name), rows.num_rows)
        table = pa.table({"key": values, "hash": hashes})
        return pc.sort_indices(table, [("key", "descending" if descending else "ascending"), ("hash", "ascending")])

    def _parts(self) -> Iterator[tuple[pa.RecordBatch, Array]]:
        """All data rows with their hashes, those with lower ones first."""
        if not self._files:
            (rows,), hashes = self._held, self._held_hashes
            self._held, self._held_hashes = [], np.zeros(0, np.uint64)
            yield rows, hashes
        for part in sorted(self._files):
            with pa.ipc.open_file(pa.memory_map(str(self._directory / str(part)))) as file:
                rows = as_batch(file.read_all().to_batches(), self._schema)
                yield rows, row_hashes(rows)
