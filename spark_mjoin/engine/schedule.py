"""In which order a batch takes in the rows of its inputs (Ding 2003, sections 4.1, 4.2 and 5.3).

Streams take turns:

    sequential   all of the first input, then all of the second, and so on
    priority     a turn of each input, that of the highest priority first; then of each again
    random       a turn of any input, and again, until none has rows left
    in step      a turn of each input, so long that all have the same part of their rows behind them; and again

A turn takes up to a quota of rows, and ends sooner where the input has no more in this batch. In the paper's rules for
two inputs a quota starts again when the other input has used up its own, and the first input goes on whenever new rows
come before that. In a micro-batch all rows are there from its beginning and none come: the rules are turns, then. A
turn of a clustered input does not end inside a cluster (section 5.4).

And within a turn rows do:

    sequential   as they come
    value        rows that another input waits for come first, the others wait in a pool until the turn ends

An input waits for a key when it has promised not to deliver it any more, and what it has of it cannot be done with
before all rows of the other inputs have come. Rows only ever move forward, and punctuations stay in the pool behind all
rows that were before them: so a promise that holds for an input in the order of its source holds in this one.

Results do not depend on the order: a combination is found from whichever of its rows comes last (`mjoin.operator`).
What does depend on it: when results are found, which rows are in the state meanwhile, and so what is evicted. Windows
in rows count arrivals, and rows of a batch in step count as if they came one by one (`mjoin.windows`): again results do
not depend on the turns.

Turns of inputs in step start at FIRST_ROWS, and get longer and shorter as they go. A turn costs the same whatever it
brings. But until a step is done none of its rows can leave, and rows find more and more that is outside their windows,
with the square of its length. Both cost least together where they cost the same.

Chance is a hash of the version that the batch makes and of the number of the turn: a replay takes the same turns.

Not covered: which order to choose, with which priorities and quotas (`driver.scheduling`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention.protocol import Retention
from spark_mjoin.model import IN_STEP, Col, JoinSpec, Schedule

FIRST_ROWS = 8_192  # of a turn of the longest input, where inputs go in step
LEAST_ROWS = 256
TURN_COST = 32_768  # what a turn costs, in combinations that are outside a window: 0.5 ms, at 15 ns

_WORD = (1 << 64) - 1


@dataclass
class Turns:
    """The turns of the inputs in a batch that makes a version, each with its pieces, in the order of a schedule.

    The pieces of a turn must be taken before the next turn is asked for. Inputs in step take longer turns or shorter
    ones by what rows have found so far: so whoever takes turns says after each how much of that was in vain.
    """

    schedule: Schedule
    inputs: Sequence[Iterable[Piece]]
    version: int
    clusters: Mapping[int, Sequence[str]] = field(default_factory=dict)  # columns by which rows of an input come
    rows: Sequence[int] = ()  # of each input, where they go in step
    outside: int = 0  # combinations that rows have found so far and that are outside a window

    def __iter__(self) -> Iterator[tuple[int, Iterator[Piece]]]:
        schedule = self.schedule
        order = schedule.order or tuple(range(len(self.inputs)))
        quotas = schedule.quotas or (sys.maxsize,) * len(self.inputs)
        queues = {number: _Queue(self.inputs[number], self.clusters.get(number, ())) for number in order}
        if schedule.streams == IN_STEP:
            yield from self._in_step(queues, min(quotas))
        turn = 0
        while queues:
            waiting = list(queues)
            if schedule.streams == "sequential":
                waiting = waiting[:1]
            elif schedule.streams == "random":
                waiting = [waiting[_mixed(_mixed(self.version) ^ turn) % len(waiting)]]
            for number in waiting:
                yield number, queues[number].turn(quotas[number])
                if queues[number].ended:
                    del queues[number]
                turn += 1

    def _in_step(self, queues: Mapping[int, _Queue], quota: int) -> Iterator[tuple[int, Iterator[Piece]]]:
        """Turns in which every input has the same part of its rows; none is longer than the quota."""
        longest, passed, step = max(self.rows), 0, min(FIRST_ROWS, quota)
        while passed < longest:
            passed, before = min(longest, passed + step), self.outside
            for number, queue in queues.items():
                due = self.rows[number] * passed // longest - queue.taken
                if due > 0:
                    yield number, queue.turn(due)
            wasted, cost = self.outside - before, TURN_COST * len(queues)
            if wasted > 2 * cost:
                step = max(min(LEAST_ROWS, quota), step // 2)
            elif 2 * wasted < cost:
                step = min(quota, 2 * step)


def by_value(turn: Iterable[Piece], retention: Retention) -> Iterator[tuple[Piece, bool]]:
    """The rows of a turn, those first that another input waits for; and of each piece whether it has waited.

    A piece must be in the state before the next is asked for.
    """
    pool: list[Piece] = []
    for piece in turn:
        first = retention.awaited(piece)
        if first is None:  # nobody waits any more: what is in the pool has its turn, and then this
            yield from ((each, True) for each in pool)
            pool = []
            yield piece, False
        elif first.all():
            yield piece, False
        else:
            if first.any():
                ahead, piece = piece.part(first)
                yield ahead, False
            pool.append(piece)
    yield from ((each, True) for each in pool)


def clusters(spec: JoinSpec) -> dict[int, list[str]]:
    """Of the inputs whose rows come clustered, the columns by which."""
    out: dict[int, list[str]] = {}
    for number, input in enumerate(spec.inputs):
        keys = [input.stored[ordinal].expr for c, ordinal in input.keys if c in input.clustered]
        if keys:
            out[number] = [key.name for key in keys if isinstance(key, Col)]
    return out


class _Queue:
    """The rows that an input has in a batch, taken turn by turn: of all tasks, so that all have the same turns."""

    def __init__(self, pieces: Iterable[Piece], cluster: Sequence[str]) -> None:
        self._pieces, self._cluster = iter(pieces), cluster
        self._rest: Piece | None = None  # of a piece that a turn has ended in
        self.ended = False  # noticed in a turn that finds nothing more
        self.taken = 0  # rows

    def turn(self, quota: int) -> Iterator[Piece]:
        """The next rows, up to a quota, and to the end of the cluster that it is reached in."""
        left, last = quota, list[pa.Scalar]()
        while left > 0 or last:
            piece = next(self._pieces, None) if self._rest is None else self._rest
            self._rest = None
            if piece is None:
                self.ended = True
                return
            at = min(left, piece.size)
            if self._cluster and at == left:  # clusters are an order: such an input comes whole (engine.feed)
                if at:
                    last = [piece.rows.column(name)[at - 1] for name in self._cluster]
                at += _alike(piece.rows.slice(at), self._cluster, last)
            if at < piece.size:
                piece, self._rest = piece.cut(at)
                last = []
            left = max(0, left - at)
            self.taken += at
            if at:
                yield piece


def _alike(batch: pa.RecordBatch, columns: Sequence[str], values: Sequence[pa.Scalar]) -> int:
    """How many rows at the beginning of a batch have some values; NULL is like nothing."""
    same = np.ones(batch.num_rows, np.bool_)
    for name, value in zip(columns, values, strict=True):
        same &= pc.fill_null(pc.equal(batch.column(name), value), False).to_numpy(zero_copy_only=False)
    return batch.num_rows if same.all() else int(np.argmin(same))


def _mixed(word: int) -> int:
    """A hash of a word: splitmix64."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
