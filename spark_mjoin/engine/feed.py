"""What arrives for one task: pieces of the inputs, whoever has divided them among the tasks.

    all rows    every task reads the whole input and keeps the rows of its slots         AllRows: format("mjoin")
    own rows    somebody has divided the rows already; a task gets its own alone         Delivered: spark_mjoin.join

      input a    0  1  2  3 | 4  5  6  7 | 8 ...       as the source gives them, a stretch at a time
      all rows   0  1  2  3 | 4  5  6  7 | 8 ...       pieces of a task that owns the slots of rows 1, 2 and 7
      own rows      1  2    |          7 | ...         with their numbers, and the sizes of the stretches

Some things are about an input as a whole. How many rows it has delivered decides what is inside a window that counts
rows, and which rows are shed. A task with own rows does not see them all, so a piece says which stretch of the input it
is from: its size, and the number of each row. Then a row has the same number in every task, however it came there.
Earlier versions' rows count too: the state knows how many there were, and a feed numbers on from there.

Each data row comes to exactly one task with own rows; one without a key, to the owner of the slot of its number.
Punctuations come to all tasks in every kind of feed: they are about keys, not about rows of one task. An input that
promises something by the order of its rows, or whose promises are verified, comes whole
(`InputSpec.promises_by_order`).

Not covered: the order in which the inputs take turns (`engine.schedule`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_mjoin import sources
from spark_mjoin.mjoin.punctuations import marks
from spark_mjoin.model import Array, JoinSpec, Position, Range
from spark_mjoin.sources.protocol import Counting, Lenient
from spark_mjoin.state.manifest import Brought
from spark_mjoin.state.source_log import DurableLog
from spark_mjoin.task import PartitionTask


@dataclass(frozen=True)
class Piece:
    """A stretch of what an input delivers, as it comes to one task: data rows, and punctuations among them."""

    input: int
    rows: pa.RecordBatch  # that come to the task, in their order
    size: int  # rows of the stretch, those of other tasks and punctuations too
    number: int = 0  # of the stretch's first data row, among all that the input has ever delivered
    marked: Array | None = None  # which rows are punctuations; None: none
    places: Array | None = None  # where in the stretch each row is; None: one after the other
    numbers: Array | None = None  # of each row, where they do not follow from places
    own: bool = False  # whether other tasks' rows have been left out; else they are to be

    @staticmethod
    def whole(input: int, rows: pa.RecordBatch, number: int = 0, marked: Array | None = None) -> Piece:
        """A stretch with all its rows."""
        return Piece(input, rows, rows.num_rows, number, marked)

    @property
    def delivered(self) -> int:
        """Data rows that the stretch stands for. All its punctuations are here."""
        return self.size - (0 if self.marked is None else int(self.marked.sum()))

    def data(self) -> pa.RecordBatch:
        """The rows without punctuations."""
        return self.rows if self.marked is None else self.rows.filter(pa.array(~self.marked))

    def all_numbers(self) -> Array:
        """The number of each row; of a punctuation, that of the next data row."""
        if self.numbers is not None:
            return self.numbers
        places = np.arange(self.rows.num_rows) if self.places is None else self.places
        before = 0 if self.marked is None else np.cumsum(self.marked) - self.marked
        out: Array = self.number + places - before
        return out

    def data_numbers(self) -> Array:
        """The numbers of the rows without punctuations."""
        return self.all_numbers() if self.marked is None else self.all_numbers()[~self.marked]

    def cut(self, at: int) -> tuple[Piece, Piece]:
        """The first rows of the stretch, and the others. So many rows of the input: all tasks cut at the same row."""
        if self.places is None:
            first, head, tail = at, None, None
        else:
            first = int(np.searchsorted(self.places, at))
            head, tail = self.places[:first], self.places[first:] - at
        marked = (None, None) if self.marked is None else (_any(self.marked[:first]), _any(self.marked[first:]))
        one = replace(self, rows=self.rows.slice(0, first), size=at, marked=marked[0], places=head)
        other = replace(self, rows=self.rows.slice(first), size=self.size - at, marked=marked[1], places=tail)
        return one, replace(other, number=self.number + one.delivered)

    def part(self, first: Array) -> tuple[Piece, Piece]:
        """Some of the data rows, which go ahead, and the others with the punctuations; numbers are as they were."""
        numbers, ahead, marked = self.all_numbers(), int(first.sum()), self.marked
        one, other = (replace(self, rows=self.rows.filter(pa.array(m)), places=None) for m in (first, ~first))
        one = replace(one, size=ahead, numbers=numbers[first], marked=None)
        marked = None if marked is None else _any(marked[~first])
        return one, replace(other, size=self.size - ahead, numbers=numbers[~first], marked=marked)


def _any(marked: Array) -> Array | None:
    return marked if marked.any() else None


class Feed(Protocol):
    """What arrives for one task in one batch. A pure function of the task: asked again, it gives the same."""

    def count(self, input: int) -> int:
        """How many data rows an input delivers, of all tasks."""
        ...

    def read(self, input: int, number: int) -> Iterator[Piece]:
        """All that an input delivers, in its order; its first data row gets a number."""
        ...

    def again(self, since: Mapping[str, Position]) -> Feed:
        """What has arrived between some earlier positions and those that the task starts from.

        StateError where that cannot be read any more.
        """
        ...

    def may_lose_rows(self) -> bool:
        """Whether what is read again may be less than it was."""
        ...

    def brought(self) -> Brought:
        """What tells all that arrives from anything else; empty where it can be read again."""
        ...

    def floors(self) -> Mapping[int, int]:
        """By input, the event time below which none of its rows comes in later batches, where its stage says so."""
        ...


@dataclass(frozen=True)
class AllRows:
    """The feed of `format("mjoin")`: a task reads its inputs from their sources, all rows of them."""

    task: PartitionTask
    ranges: Mapping[str, list[Range]]  # source alias -> rows that arrive

    @staticmethod
    def of(task: PartitionTask) -> AllRows:
        return AllRows(task, task.ranges)

    def count(self, input: int) -> int:
        spec = self.task.spec
        described = spec.sources[spec.inputs[input].source]
        source = sources.open_source(described)
        if isinstance(source, Counting) and spec.inputs[input].punctuations is None:
            return sum(source.count(range) for range in self.ranges[described.alias])
        return sum(piece.delivered for piece in self.read(input, 0))

    def read(self, input: int, number: int) -> Iterator[Piece]:
        return numbered(self.task.spec, input, self._batches(input), number)

    def _batches(self, input: int) -> Iterator[pa.RecordBatch]:
        spec = self.task.spec
        described, columns = spec.sources[spec.inputs[input].source], spec.inputs[input].columns
        source = sources.open_source(described)
        for range in self.ranges[described.alias]:
            yield from source.read(range, columns)

    def again(self, since: Mapping[str, Position]) -> AllRows:
        task, ranges = self.task, {}
        assert task.location is not None
        for number, source in enumerate(task.spec.sources):
            history = DurableLog(task.location, number, source.alias)
            until = task.start[source.alias]
            ranges[source.alias] = sources.open_source(source).plan(since[source.alias], until, history)
        return AllRows(task, ranges)

    def may_lose_rows(self) -> bool:
        opened = map(sources.open_source, self.task.spec.sources)
        return any(isinstance(source, Lenient) and source.may_lose_rows() for source in opened)

    def brought(self) -> Brought:
        return ()

    def floors(self) -> Mapping[int, int]:
        return {}


def numbered(spec: JoinSpec, input: int, batches: Iterable[pa.RecordBatch], number: int = 0) -> Iterator[Piece]:
    """Pieces of all rows of an input, numbered on."""
    for rows in batches:
        piece = Piece.whole(input, rows, number, marks(spec.inputs[input], rows))
        yield piece
        number += piece.delivered
