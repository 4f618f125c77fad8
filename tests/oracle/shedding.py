"""Runs of joins under a script of decisions: what a session would decide by a clock is written down by the test."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from spark_mjoin.driver import session
from spark_mjoin.driver.admission import Load
from spark_mjoin.driver.session import Point, Session
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
    """While this lasts, the session decides what the script says, one decision after the other, then the last."""
    decided, made = Decided(), iter(script)
    last = [tuple(script[0])]
    following = Session.next

    def scripted(load: Load, *rest: object) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
        last[0] = tuple(next(made, last[0]))
        return last[0], memory[: load.inputs] if rest[-1] is not None else None

    def noted(self: Session, start: Point, unlimited: bool = False) -> Point:
        end = following(self, start, unlimited)
        decided.parts[end.version] = end.plan.admission or ()
        return end

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "decide", scripted)
        patch.setattr(Session, "next", noted)
        yield decided
