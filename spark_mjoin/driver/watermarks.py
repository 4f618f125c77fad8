"""Watermarks: how far the inputs of a join with windows have come in event time.

    watermark  of an input: its largest event time in the batches so far, minus the lateness it is allowed

The driver moves them between batches, from what the tasks have committed, and records them in the offset. So a batch
that runs again drops the same rows as late. The join keeps a row until the slowest of the other inputs has passed it
(`mjoin.windows`). An input without new rows would make it keep rows for ever. So after `idleTimeout` its watermark
rises to the lowest of the others, and rows that it delivers later are late if they are below that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from spark_mjoin.model import JoinSpec
from spark_mjoin.state.progress import EARLIEST


def newest(seen: Iterable[Sequence[int | None]]) -> list[int | None]:
    """The largest event time of each input, from those of each partition: one may not have seen the others' rows."""
    return [max((time for time in of if time is not None), default=None) for of in zip(*seen, strict=True)]


def advance(
    spec: JoinSpec, before: Sequence[int | None], seen: Sequence[int | None], idle: Collection[int]
) -> tuple[int | None, ...]:
    """The watermarks after a batch: never lower than before it; None where an input has delivered nothing yet.

    An idle input follows the slowest of the others. Rows that it delivers later are late if they are behind them.
    """
    moved = [
        was if newest is None else max(EARLIEST if was is None else was, newest - input.lateness)
        for input, was, newest in zip(spec.inputs, before, seen, strict=True)
    ]
    others = [mark for i, mark in enumerate(moved) if i not in idle]
    known = [mark for mark in others if mark is not None]
    if known and len(known) == len(others):
        for i in idle:
            mark = moved[i]
            moved[i] = min(known) if mark is None else max(mark, min(known))
    return tuple(moved)
