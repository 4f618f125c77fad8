"""The rule that no combination is emitted twice, against its definition: all rows together at some instant."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.join import emitted
from spark_mjoin.state.residency import NEVER, Residency, Victim

BUCKET = 5  # every row is in it: what matters here is time


@dataclass
class Row:
    arrived: int
    left: int = NEVER


@dataclass
class World:
    """Inputs whose rows come and go, and for every instant what was joined with what."""

    inputs: int
    residency: Residency = field(init=False)
    rows: list[list[Row]] = field(init=False)
    together: set[tuple[int, ...]] = field(default_factory=set)  # combinations that have met

    def __post_init__(self) -> None:
        self.residency = Residency(self.inputs)
        self.rows = [[] for _ in range(self.inputs)]

    def happen(self, what: str, input: int) -> None:
        memory = [[n for n, row in enumerate(rows) if row.left == NEVER] for rows in self.rows]
        everything = [list(range(len(rows))) for rows in self.rows]
        if what == "arrive":
            self.residency.events += 1
            self.rows[input].append(Row(self.residency.events))
            memory[input].append(len(self.rows[input]) - 1)
            self.meet(memory)
        elif what in ("flush", "flush old"):
            below = NEVER if what == "flush" else self.residency.events // 2
            event = self.residency.flush([Victim(input, BUCKET, below)])
            for row in self.rows[input]:
                if row.left == NEVER and row.arrived < below:
                    row.left = event
        elif what == "visit":
            self.residency.visit(input, BUCKET)
            disk = [n for n, row in enumerate(self.rows[input]) if row.left != NEVER]
            self.meet([disk if i == input else rows for i, rows in enumerate(memory)])
        else:
            self.residency.clean([BUCKET], range(self.inputs))
            self.meet(everything)

    def meet(self, present: list[list[int]]) -> None:
        grid = np.array(np.meshgrid(*present, indexing="ij")).reshape(self.inputs, -1).T
        self.together |= set(map(tuple, grid.tolist()))

    def judged_out(self, rule: Callable[..., np.ndarray]) -> set[tuple[int, ...]]:
        """The combinations that the rule takes for emitted."""
        everything = [list(range(len(rows))) for rows in self.rows]
        grid = np.array(np.meshgrid(*everything, indexing="ij")).reshape(self.inputs, -1)
        arrived = [np.array([r.arrived for r in rows], np.int32)[grid[i]] for i, rows in enumerate(self.rows)]
        buckets = [np.full(a.size, BUCKET, np.uint8) for a in arrived]
        flushed = [self.residency.flushed(i, buckets[i], arrived[i]) for i in range(self.inputs)]
        fresh = rule(arrived, flushed, int(self.residency.cleaned[BUCKET]), self.residency.visits, buckets)
        return {tuple(c) for c, is_fresh in zip(grid.T.tolist(), fresh, strict=True) if not is_fresh}


KINDS = ["arrive", "arrive", "arrive", "arrive", "flush", "flush old", "visit", "pass"]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World(draw(st.integers(2, 4)))
    for i in range(world.inputs):
        world.happen("arrive", i)
    for _ in range(draw(st.integers(0, 14))):
        world.happen(draw(st.sampled_from(KINDS)), draw(st.integers(0, world.inputs - 1)))
    return world


@given(worlds())
def test_out_is_what_was_together(world: World) -> None:
    assert world.judged_out(emitted.not_yet) == world.together


@given(worlds())
def test_rows_leave_when_the_residency_says(world: World) -> None:
    """As far as that matters: what left before a pass may be said to have left at any time before it."""
    cleaned = int(world.residency.cleaned[BUCKET])
    for i, rows in enumerate(world.rows):
        arrived = np.array([r.arrived for r in rows], np.int32)
        flushed = world.residency.flushed(i, np.full(arrived.size, BUCKET, np.uint8), arrived)
        for row, event in zip(rows, flushed.tolist(), strict=True):
            assert event == row.left or (row.left < cleaned and event < cleaned)


def ignoring_visits(arrived, flushed, cleaned, visits, buckets):
    return emitted.not_yet(arrived, flushed, cleaned, [[] for _ in visits], buckets)


def ignoring_passes(arrived, flushed, cleaned, visits, buckets):
    return emitted.not_yet(arrived, flushed, 0, visits, buckets)


def the_first_to_arrive(arrived, flushed, cleaned, visits, buckets):
    oldest = np.minimum.reduce(list(arrived))
    return emitted.not_yet([oldest] * len(arrived), flushed, cleaned, visits, buckets)


def the_last_to_leave(arrived, flushed, cleaned, visits, buckets):
    last = np.maximum.reduce(list(flushed))
    return emitted.not_yet(arrived, [last] * len(flushed), cleaned, visits, buckets)


@pytest.mark.parametrize("broken", [ignoring_visits, ignoring_passes, the_first_to_arrive, the_last_to_leave])
def test_a_broken_rule_is_found_out(broken: Callable[..., np.ndarray]) -> None:
    choices = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        world = World(3)
        for i in range(3):
            world.happen("arrive", i)
        for _ in range(10):
            world.happen(str(choices.choice(KINDS)), int(choices.integers(3)))
        wrong += world.judged_out(broken) != world.together
    assert wrong > 0
