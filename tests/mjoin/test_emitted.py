"""The rule that no combination is emitted twice, against its definition: all rows together at some instant."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.mjoin import emitted
from spark_mjoin.state.residency import EVERY, NEVER, Residency, Victim

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
        elif what in ("flush all", "flush all old"):
            below = NEVER if what == "flush all" else self.residency.events // 2
            bucket = BUCKET if input else EVERY
            event = self.residency.flush([Victim(i, bucket, below) for i in range(self.inputs)])
            for row in chain(*self.rows):
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

    def new_to_a_pass(self) -> set[tuple[int, ...]]:
        """The combinations that a pass looks at: those with a row that came after the last."""
        since = int(self.residency.cleaned[BUCKET])
        numbers = [range(len(rows)) for rows in self.rows]
        return {c for c in product(*numbers) if any(self.rows[i][n].arrived >= since for i, n in enumerate(c))}

    def in_one_epoch(self) -> set[tuple[int, ...]]:
        """The combinations that the rule of epochs takes for emitted."""
        return self.judged_out(lambda arrived, flushed, *_: emitted.in_several_epochs(flushed))


KINDS = ["arrive", "arrive", "arrive", "arrive", "flush", "flush old", "visit", "pass"]


@st.composite
def worlds(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> World:
    world = World(draw(st.integers(2, 4)))
    for i in range(world.inputs):
        world.happen("arrive", i)
    for _ in range(draw(st.integers(0, 14))):
        world.happen(draw(st.sampled_from(kinds)), draw(st.integers(0, world.inputs - 1)))
    return world


@given(worlds())
def test_out_is_what_was_together(world: World) -> None:
    assert world.judged_out(emitted.not_yet) == world.together


WHOLE = ["arrive", "arrive", "arrive", "arrive", "flush all", "flush all", "pass"]
MIXED = [*KINDS, "flush all", "flush all", "flush all", "flush all old", "pass"]


@given(worlds(WHOLE))
def differential_where_buckets_leave_whole_epochs_say_what_is_out(world: World) -> None:
    assert world.residency.in_epochs([BUCKET])
    looked_at = world.new_to_a_pass()
    assert world.in_one_epoch() & looked_at == world.together & looked_at
    assert world.judged_out(emitted.not_yet) == world.together


@given(worlds(MIXED))
def differential_epochs_are_believed_only_where_they_are_right(world: World) -> None:
    looked_at = world.new_to_a_pass()
    if world.residency.in_epochs([BUCKET]):
        assert world.in_one_epoch() & looked_at == world.together & looked_at
    else:
        assert any(of for of in world.residency.departures) or any(of for of in world.residency.visits)


def test_epochs_are_believed_often_and_not_where_they_are_wrong() -> None:
    choices = np.random.default_rng(0)
    believed = wrong_otherwise = 0
    for _ in range(400):
        world = World(3)
        for i in range(3):
            world.happen("arrive", i)
        for _ in range(12):
            world.happen(str(choices.choice(MIXED)), int(choices.integers(3)))
        looked_at = world.new_to_a_pass()
        right = world.in_one_epoch() & looked_at == world.together & looked_at
        if world.residency.in_epochs([BUCKET]):
            believed += world.residency.overflowed()
            assert right
        else:
            wrong_otherwise += not right
    assert believed > 60, "or nothing was tested"
    assert wrong_otherwise > 18, "or it would be as well to believe them always"


def left(*flushes: list[Victim], inputs: int = 2) -> Residency:
    residency = Residency(inputs)
    for victims in flushes:
        residency.events += 1  # an arrival
        residency.flush(victims)
    return residency


BOTH = [Victim(0, BUCKET), Victim(1, BUCKET)]


@pytest.mark.parametrize(
    ("flushes", "expected"),
    [
        ([], True),
        ([BOTH, BOTH], True),
        ([[Victim(0, EVERY), Victim(1, EVERY)], BOTH], True),
        ([[Victim(0, BUCKET)]], False),
        ([BOTH, [Victim(1, BUCKET)]], False),
        ([[Victim(0, BUCKET)], [Victim(1, BUCKET)]], False),
        ([[Victim(0, BUCKET, 1), Victim(1, BUCKET, 1)]], False),
        ([[Victim(0, BUCKET + 1)], BOTH], True),
    ],
    ids=["nothing", "twice", "all", "one", "one later", "one by one", "by age", "one of another bucket"],
)
def test_epochs_need_whole_buckets(flushes: list[list[Victim]], expected: bool) -> None:
    residency = left(*flushes)
    assert residency.in_epochs([BUCKET]) is expected
    residency.clean([BUCKET], range(2))
    assert residency.in_epochs([BUCKET]), "what left before a pass does not matter after it"


def test_a_visit_ends_the_trust_in_epochs_until_the_next_pass() -> None:
    residency = left(BOTH)
    residency.visit(0, BUCKET + 1)
    assert residency.in_epochs([BUCKET]) and not residency.in_epochs([BUCKET, BUCKET + 1])
    residency.visit(0, BUCKET)
    assert not residency.in_epochs([BUCKET])
    residency.clean([BUCKET], range(2))
    assert residency.in_epochs([BUCKET])


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
