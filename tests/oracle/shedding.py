"""Runs of joins under a script of decisions: what a reader would decide by a clock is written down by the test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from spark_mjoin.doors import reader
from spark_mjoin.doors.reader import MJoinStreamReader
from spark_mjoin.driver.admission import Load
from spark_mjoin.model import WHOLE
from spark_mjoin.state.admitted import sampled

Decisions = Sequence[Sequence[int]]  # per decision, the parts of each input


@dataclass
class Decided:
    """The parts that each version was made with."""

    parts: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def admitted(self, input: int, batches: Sequence[int]) -> list[bool]:
        """For every row of an input whether it is let in, given how many rows it has in each batch."""
        out: list[bool] = []
        for batch, rows in enumerate(batches):
            parts = self.parts.get(batch + 1, ())
            out += sampled(input, np.arange(len(out), len(out) + rows), parts[input] if parts else WHOLE).tolist()
        return out


@contextmanager
def decisions(script: Decisions, memory: tuple[float, ...] = ()) -> Iterator[Decided]:
    """While this lasts, the reader decides what the script says, one decision after the other, then the last."""
    decided, made = Decided(), iter(script)
    last = [tuple(script[0])]
    choose = MJoinStreamReader._admission

    def scripted(load: Load, *rest: object) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
        last[0] = tuple(next(made, last[0]))
        return last[0], memory[: load.inputs] if rest[-1] is not None else None

    def noted(self: MJoinStreamReader, start: dict) -> tuple:
        parts, room = choose(self, start)
        decided.parts[start["version"] + 1] = parts or ()
        return parts, room

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "decide", scripted)
        patch.setattr(MJoinStreamReader, "_admission", noted)
        yield decided
