"""Keeping to the memory without a disk, where there are windows: they get shorter.

    memory  |--- rows of a, its share ---|--- rows of b, its share ---|     full: the oldest rows are dropped, of the
                                                                            inputs that have more than their share

The driver says which part of the memory each input gets (driver.allocation); it is in the offset. As long as there is
room, nobody has to keep to it. When there is none, expired rows go first, then the oldest by event time or number of
every input that has more than its part, down to SHRINK_TO of the memory. What an input does not need goes to those with
the larger parts. So the effective window of an input is what was left to it: a combination is a result if and only if
it is one by its windows, and all its rows are still there when the last of them arrives.

Sizes are accounted, so a replay drops the same rows; what was dropped is a rule (state.progress), so a state that is
loaded leaves out the same ones. The memory is exceeded by one arriving batch at the most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_mjoin.counts import Reason
from spark_mjoin.engine.retention.protocol import Report
from spark_mjoin.engine.retention.windows import Windows, drop
from spark_mjoin.engine.sampling import Sampler
from spark_mjoin.mjoin.bound import EMIT_FIRST, EmitFirst
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.operator import OperatorState

SHRINK_TO = 0.9  # of the memory


@dataclass(frozen=True)
class Shrinking(Windows):
    """Windows that give way when memory is full."""

    memory_bytes: int
    parts: Sequence[float]  # of the memory, that each input gets
    sampler: Sampler

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        super().begin(side_by_side, floors)
        if self._is_full():  # there was more memory before
            self._shrink()

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        yield from super().leave(full or self._is_full())
        if self._is_full():
            yield EMIT_FIRST
            self._shrink()

    def report(self) -> Report:
        return replace(super().report(), windows=tuple(effective(self.state)))

    def _is_full(self) -> bool:
        return self.state.nbytes() > self.memory_bytes

    def _shrink(self) -> None:
        self.sampler.begin()
        make_room(self.state, self.memory_bytes, self.parts)


def make_room(state: OperatorState, memory_bytes: int, parts: Sequence[float]) -> None:
    """Drop the oldest rows until the rest is below its limit."""
    limit = SHRINK_TO * memory_bytes
    while state.nbytes() > limit and any(table.rows for table in state.tables):
        held = [table.nbytes() for table in state.tables]
        for number, kept in enumerate(divided(held, parts, limit)):
            if kept < held[number]:
                _shorten(state, number, kept / held[number])


def divided(held: Sequence[int], parts: Sequence[float], limit: float) -> list[float]:
    """How many bytes of what each input holds may stay: its part of the limit, and what others leave of theirs."""
    out = [min(float(h), part * limit) for h, part in zip(held, parts, strict=True)]
    left = limit - sum(out)
    for i in sorted(range(len(held)), key=lambda i: -parts[i]):
        more = min(held[i] - out[i], max(left, 0.0))
        out[i] += more
        left -= more
    return out


def _shorten(state: OperatorState, number: int, kept: float) -> None:
    """Drop the oldest rows of an input, so that this part of them is left, or less."""
    window, table = state.spec.inputs[number].window, state.tables[number]
    assert window is not None, "only inputs with windows are shortened"
    positions = table.position(window.position)
    gone = max(1, int(np.ceil((1 - kept) * positions.size)))
    last = int(np.partition(positions, gone - 1)[gone - 1])
    state.progress.shorten(number, last)
    drop(state, number, np.arange(BUCKETS), last, Reason.SHRUNK)
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
