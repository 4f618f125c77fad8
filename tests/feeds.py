"""Feeds of own rows: what an all-rows feed reads, divided among the tasks as something before them would.

    ALL_ROWS    every task reads everything, as format("mjoin") does
    OWN_ROWS    a task gets the rows of its slots, with their numbers, and all punctuations
    PARCELS     rows are sent to the task in parcels, in some order, as spark_mjoin.join does

Data rows that have no key to go by (a filter drops them, or the key is NULL) come to the owner of their number's slot.
An input that promises something by the order of its rows comes whole. Parcels keep no order: joins for which it matters
(windows in rows, clustered inputs, shed or dropped rows) get own rows instead.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.delivered import Delivered
from spark_mjoin.engine.exchange import Arriving, Sender
from spark_mjoin.engine.feed import AllRows, Feed, Piece
from spark_mjoin.mjoin.expressions import evaluate, holds
from spark_mjoin.mjoin.keys import encode
from spark_mjoin.model import Array, JoinSpec, Position
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.manifest import Brought
from spark_mjoin.state.slots import of_hashes, of_numbers
from spark_mjoin.task import PartitionTask

ALL_ROWS, OWN_ROWS, PARCELS = "all rows", "own rows", "parcels"


def feed_of(kind: str, task: PartitionTask) -> Feed:
    everything = AllRows.of(task)
    if kind == ALL_ROWS:
        return everything
    if kind == PARCELS and not _depends_on_order(task):
        return Parcels(task, everything)
    return OwnRows(task, everything)


def _depends_on_order(task: PartitionTask) -> bool:
    spec, plans = task.spec, (task.ledger.plan, task.ledger.plan_before)
    sheds = any(plan is not None and (plan.admission is not None or plan.room is not None) for plan in plans)
    return spec.counts_rows or sheds or any(input.clustered for input in spec.inputs)


def brought_to(partition: int, sent: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The parcels that a shuffle brings to a partition, each in a batch of its own."""
    parcels = (batch.slice(number, 1) for batch in sent for number in range(batch.num_rows))
    return [parcel for parcel in parcels if parcel["target"][0].as_py() == partition]


class Parcels:
    """What an all-rows feed reads, sent to the task in parcels whose order differs whenever it is read."""

    def __init__(self, task: PartitionTask, everything: Feed) -> None:
        self.task, self.everything = task, everything
        sent = []
        for input in range(len(task.spec.inputs)):
            planned = task.ledger.plan.purging
            whole = task.spec.inputs[input].promises_by_order("off" if planned is None else planned.verify)
            rows = (piece.rows for piece in everything.read(input, 0))
            parcels = Sender(task.spec, input, task.routing, whole).parcels(rows)
            sent += brought_to(task.partition, parcels)
        random.shuffle(sent)
        with TemporaryDirectory() as directory:
            delivered = Delivered(task, sent, Path(directory))
            self.pieces = [list(delivered.read(input, 0)) for input in range(len(task.spec.inputs))]

    def count(self, input: int) -> int:
        return sum(piece.delivered for piece in self.pieces[input])

    def read(self, input: int, number: int) -> Iterator[Piece]:
        return (replace(piece, number=piece.number + number) for piece in self.pieces[input])

    def again(self, since: Mapping[str, Position]) -> "Parcels":
        return Parcels(self.task, self.everything.again(since))

    def may_lose_rows(self) -> bool:
        return self.everything.may_lose_rows()

    def brought(self) -> Brought:
        return ()  # it can be read again

    def floors(self) -> dict[int, int]:
        return {}  # nothing is of a stage


@dataclass(frozen=True)
class OwnRows:
    task: PartitionTask
    everything: Feed

    def count(self, input: int) -> int:
        return self.everything.count(input)

    def read(self, input: int, number: int) -> Iterator[Piece]:
        planned = self.task.ledger.plan.purging
        verify = "off" if planned is None else planned.verify
        whole = self.task.spec.inputs[input].promises_by_order(verify)
        for piece in self.everything.read(input, number):
            yield piece if whole else self._own(piece)

    def _own(self, piece: Piece) -> Piece:
        slots, keyed = slots_of(self.task.spec, piece)
        mine = self.task.slots.have(slots)
        if not self.task.routing.layout.by_slots:
            arriving = Arriving(self.task.spec, piece.input, piece.rows.take(pa.array(keyed)))
            mine[keyed] = False
            mine[keyed[self.task.routing.numbers_of(arriving, self.task.partition)]] = True
        if piece.marked is not None:
            mine |= piece.marked
        marked = None if piece.marked is None else piece.marked[mine]
        rows = piece.rows.filter(pa.array(mine))
        return replace(piece, rows=rows, marked=marked, places=np.flatnonzero(mine), own=True)

    def again(self, since: Mapping[str, Position]) -> "OwnRows":
        return OwnRows(self.task, self.everything.again(since))

    def may_lose_rows(self) -> bool:
        return self.everything.may_lose_rows()

    def brought(self) -> Brought:
        return ()  # it can be read again

    def floors(self) -> dict[int, int]:
        return {}  # nothing is of a stage


def slots_of(spec: JoinSpec, piece: Piece) -> tuple[Array, Array]:
    """The slot of each row of a piece, and the places of those that have keys."""
    input, out = spec.inputs[piece.input], of_numbers(piece.all_numbers())
    if spec.star_class is None:
        return out, np.zeros(0, np.int64)
    passing = np.ones(piece.rows.num_rows, np.bool_) if piece.marked is None else ~piece.marked
    if input.filter is not None:
        data = piece.data()
        passed = holds(input.filter, lambda col: data.column(col.name), data.num_rows)
        passing[passing] = passed.fill_null(False).to_numpy(zero_copy_only=False)
    rows = piece.rows.filter(pa.array(passing))
    stored = input.stored[dict(input.keys)[spec.star_class]]
    keys = encode(evaluate(stored.expr, lambda col: rows.column(col.name), rows.num_rows), stored.domain)
    there = keys.is_valid().to_numpy(zero_copy_only=False)
    keyed = np.flatnonzero(passing)[there]
    out[keyed] = of_hashes(hash_array(keys.filter(pa.array(there))))
    return out, keyed
