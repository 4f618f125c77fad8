"""Keeping to the memory budget without a disk: windows get shorter, or, where there are none, rows only pass by.

    memory  |--- rows of a, its share ---|--- rows of b, its share ---|     full: the oldest rows go, of the inputs that
                                                                            have more than their share

The driver says which part of the memory each input gets (driver.allocation); it is in the offset. As long as there is
room, nobody has to keep to it. When there is none, expired rows go first, then the oldest by event time or number of
every input that has more than its part, down to SHRINK_TO of the memory. What an input leaves goes to those with the
larger parts. So the effective window of an input is what was left to it: a combination is a result if and only if it is
one by its windows, and all its rows are still there when the last of them arrives.

Sizes are accounted, so a replay drops the same rows; what was dropped is a rule (state.progress), so a state that is
loaded leaves out the same ones. The memory is exceeded by one arriving batch at the most.

Without windows no row is worth less than another, and dropping rows would cost more than it gives: what is there stays,
and what comes when it is full meets it and is not kept (`fits`, `arrival.passing`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_mjoin.counts import BatchCounts, Dropped
from spark_mjoin.engine.retention import expiry
from spark_mjoin.model import Room
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.table import indexes_bytes

SHRINK_TO = 0.9  # of the memory


def is_full(state: PartitionState, room: Room) -> bool:
    return state.nbytes() > room.memory_bytes


def fits(state: PartitionState, operator: OperatorState, number: int, rows: int, room: Room) -> bool:
    """Whether so many rows more of an input would fit, if they are like those that are there."""
    table = operator.tables[number]
    more = (
        rows * table.row_bytes() + indexes_bytes(table.spec, table.rows + rows) - indexes_bytes(table.spec, table.rows)
    )
    return state.nbytes() + more <= room.memory_bytes


def make_room(state: OperatorState, room: Room, counts: BatchCounts) -> None:
    """Let the oldest rows go until the rest is below its limit."""
    assert room.parts is not None
    limit = SHRINK_TO * room.memory_bytes
    while state.nbytes() > limit and any(table.rows for table in state.tables):
        held = [table.nbytes() for table in state.tables]
        for number, kept in enumerate(divided(held, room.parts, limit)):
            if kept < held[number]:
                _shorten(state, number, kept / held[number], counts)


def divided(held: Sequence[int], parts: Sequence[float], limit: float) -> list[float]:
    """How many bytes of what each input holds may stay: its part of the limit, and what others leave of theirs."""
    out = [min(float(h), part * limit) for h, part in zip(held, parts, strict=True)]
    left = limit - sum(out)
    for i in sorted(range(len(held)), key=lambda i: -parts[i]):
        more = min(held[i] - out[i], max(left, 0.0))
        out[i] += more
        left -= more
    return out


def _shorten(state: OperatorState, number: int, kept: float, counts: BatchCounts) -> None:
    """Let the oldest rows of an input go, so that this part of them is left, or less."""
    window, table = state.spec.inputs[number].window, state.tables[number]
    assert window is not None, "only inputs with windows are shortened"
    positions = table.position(window.position)
    gone = max(1, int(np.ceil((1 - kept) * positions.size)))
    last = int(np.partition(positions, gone - 1)[gone - 1])
    state.progress.shorten(number, last)
    counts.dropped += Dropped(shrunk=expiry.drop(state, number, np.arange(BUCKETS), last))
    if state.sample is not None:
        sampled = state.sample.tables[number]
        at = sampled.position(state.sample.window(number).position)
        dropped = state.progress.gone(number, sampled.buckets, sampled.arrived, at)
        state.sample.lose(number, dropped, state.residency.events)


def effective(state: OperatorState) -> list[tuple[int, bool]]:
    """The effective window of each input, and whether it is in rows."""
    out = []
    for number, input in enumerate(state.spec.inputs):
        window, progress = input.window, state.progress
        assert window is not None, "only joins of inputs with windows shrink"
        newest = progress.read[number] - 1 if window.in_rows else progress.seen[number]
        given_up = progress.shortened[number]
        size = window.size if newest is None or given_up is None else max(0, min(window.size, newest - given_up))
        out.append((size, window.in_rows))
    return out
