"""In which order a batch takes in the rows of its inputs (Ding 2003, sections 4.1 and 5.3).

    sequential   all of the first input, then all of the second, and so on
    priority     a turn of each input, that of the highest priority first; then of each again
    random       a turn of any input, and again, until none has rows left

A turn takes up to a quota of rows, and ends sooner where the input has no more in this batch. In the paper's rules for
two inputs a quota starts again when the other input has used up its own, and the first input goes on whenever new rows
come before that. In a micro-batch all rows are there from its beginning and none come: the rules are turns, then.

Results do not depend on the order: a combination is found from whichever of its rows comes last (`join.operator`). What
does depend on it: when results are found, which rows are in the state meanwhile, and so what leaves memory. Windows in
rows count arrivals, so they are refused together with any order but the first (`planner.scheduling`).

Chance is a hash of the version that the batch makes and of the number of the turn: a replay takes the same turns.

Not covered: which order to choose, with which priorities and quotas (`planner.scheduling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from spark_mjoin.model import Schedule

_WORD = (1 << 64) - 1


def merge(
    schedule: Schedule, inputs: Sequence[Iterable[pa.RecordBatch]], version: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """All rows of a batch that makes a version, with the numbers of their inputs, in the order of a schedule."""
    order = schedule.order or tuple(range(len(inputs)))
    if schedule.streams == "sequential":
        for number in order:
            for batch in inputs[number]:
                yield number, batch
        return
    queues = {number: _Queue(inputs[number]) for number in order}
    turn = 0
    while queues:
        waiting = list(queues)
        if schedule.streams == "random":
            waiting = [waiting[_mixed(_mixed(version) ^ turn) % len(waiting)]]
        for number in waiting:
            for batch in queues[number].turn(schedule.quotas[number]):
                yield number, batch
            if queues[number].ended:
                del queues[number]
            turn += 1


class _Queue:
    """The rows that an input has in a batch, taken turn by turn."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._rest: pa.RecordBatch | None = None  # of a batch that a turn has ended in
        self.ended = False  # noticed in a turn that finds nothing more

    def turn(self, quota: int) -> Iterator[pa.RecordBatch]:
        """The next rows, up to a quota."""
        left = quota
        while left > 0:
            batch = next(self._batches, None) if self._rest is None else self._rest
            self._rest = None
            if batch is None:
                self.ended = True
                return
            if batch.num_rows > left:
                batch, self._rest = batch.slice(0, left), batch.slice(left)
            left -= batch.num_rows
            yield batch


def _mixed(word: int) -> int:
    """A hash of a word: splitmix64."""
    word = (word + 0x9E3779B97F4A7C15) & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
