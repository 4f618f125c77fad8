"""How a join runs whose inputs have no key in common: in stages, as a cube or in one task; and the bytes of each.

    rows of inputs ──Statistics.size──> rows of every result ──widths──> bytes that each stage has shuffled to it
    stages of least bytes ┐
    cube of least bytes   ├──> those in which a task has less to do than one for all ──> the one of fewest bytes
    all in one task       ┘

The plan is chosen before anything runs, and stays: a stage is an operator of the query, with a state of its own. It
follows from what somebody expects, and nothing else, so that a restart with the same options has the same plan.

Rows: `expectedRowsPerSecond` over the longest window, or over HORIZON_SECONDS if that is shorter or there are none; or
the rows that a table has. Where only some are known, the others count as their mean; where none are, all count as
ASSUMED_ROWS_PER_SECOND. Selectivities: `expectedSelectivity`, or as if keys were unique. Widths: by the types of the
columns that are sent, and an assumption for values without a fixed one (driver.widths).

A stage moves all rows of its members. The busiest task of a plan of stages takes in a partition's part of all that they
move, that of a cube a cell's part of all copies (driver.cubes), and one task all inputs once. A plan of several tasks
is able to win if its busiest task has clearly less to do: what it takes in counts SEVERAL_COST times, since there is
more work in all. Intermediate results are made, sent and put into order; copies are sent, stored and joined as rows of
their own. Of the able plans that with the fewest bytes for a task is chosen, and a cube before stages with as many: it
has one shuffle. So in one partition there is neither, in two seldom; no stages where intermediate results are expected
to outgrow the inputs by more than the partitions.

The search goes from parts to larger parts: a step joins some of the parts that have a key in common. It finds the plan
of least bytes among all for up to EXACT inputs. For more, a step joins all parts that have the key, and after
MOST_STEPS the rest is chosen step by step. Of equal plans that with fewer stages is taken, then by name.

Not in stages:
- windows in rows: they count all rows of an input, and results have no numbers among them. Windows of some inputs only:
  a stage of the others would not know of event times.
- shedding and windows that shrink: what a stage drops is missing in later ones, uncounted.
- `overflow` = 'fail': the budget is divided by expectation, and a stage could fail while others have room.
- `access` with single directions: they are between inputs, which may meet only as parts of results.
Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations

import pyarrow as pa

from spark_mjoin.driver import access, cubes
from spark_mjoin.driver.costs import Inputs, expected_of
from spark_mjoin.driver.widths import sent_width, width
from spark_mjoin.mjoin.expressions import type_of
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import JoinSpec, Settings, Tree
from spark_mjoin.query import cubes as notation
from spark_mjoin.query import stages
from spark_mjoin.query import tree as trees
from spark_mjoin.query.cubes import Shares

HORIZON_SECONDS = 600.0  # that the choice looks ahead
ASSUMED_ROWS_PER_SECOND = 1000.0  # where nothing is known of any input
EXACT = 6  # inputs
MOST_STEPS = 1000
SEVERAL_COST = 1.5  # of a byte in one of several tasks against one in a single task
EQUAL_SHARE = 0.5  # of the budget is divided equally among stages, the rest by the bytes that are expected

Parts = frozenset[Inputs]
_Step = tuple[float, int, str, Parts, dict[Inputs, Tree]]  # bytes, stages, a name of both that follow, parts, trees


@dataclass(frozen=True)
class Expected:
    """What is expected of the inputs of a join."""

    spec: JoinSpec
    rows: tuple[float, ...]  # of each input
    given: dict[tuple[int, int], float]  # selectivities of pairs of inputs

    @staticmethod
    def of(
        spec: JoinSpec,
        settings: Settings,
        tables: Sequence[float | None] | None = None,
        seconds: float = HORIZON_SECONDS,
    ) -> Expected:
        """tables: of each input, how many rows it has, where that is known."""
        rates, given = expected_of(spec, settings.expected)
        known: list[float | None] = [rate * seconds if rate else None for rate in rates]
        if tables is not None:
            known = [of_table if rows is None else rows for rows, of_table in zip(known, tables, strict=True)]
        found = [rows for rows in known if rows is not None]
        assumed = sum(found) / len(found) if found else ASSUMED_ROWS_PER_SECOND * seconds
        return Expected(spec, tuple(assumed if rows is None else rows for rows in known), given)

    def rows_of(self, inputs: Inputs) -> float:
        """Of the results over some inputs."""
        return self._statistics.size(inputs)

    def bytes_of(self, inputs: Inputs) -> float:
        """That move when the rows of an input, or the results over several, are shuffled."""
        return self.rows_of(inputs) * self.width_of(inputs)

    def width_of(self, inputs: Inputs) -> float:
        """Bytes of a row of an input, or of a result over several, as it is sent."""
        if len(inputs) == 1:
            (number,) = inputs
            return sent_width(self.spec, self.spec.inputs[number])
        columns = stages.results(self.spec, sorted(inputs)).values()
        of_windows = 2 * width(pa.timestamp("us")) if self.spec.windowed else 0.0
        return of_windows + sum(width(type_of(expr, self.spec.column_type)) for expr in columns)

    @property
    def whole_bytes(self) -> float:
        """Of all inputs."""
        return sum(self.cube.bytes)

    def moved(self, tree: Tree) -> list[float]:
        """The bytes that are shuffled to each stage of a tree, in the order in which they run."""
        return [sum(self.bytes_of(trees.leaves(member)) for member in members) for members in in_order(tree)]

    @cached_property
    def cube(self) -> cubes.Costs:
        """What cubes of the inputs move."""
        return cubes.Costs(self.spec, tuple(self.bytes_of(frozenset((i,))) for i in range(len(self.rows))))

    @cached_property
    def _statistics(self) -> Statistics:
        return Statistics.of(self.spec, self.rows, given=self.given)


def in_order(tree: Tree) -> list[tuple[Tree, ...]]:
    """The joins of a tree in the order in which stages run: each after those that it needs."""
    if isinstance(tree, int):
        return []
    return [*(below for member in tree for below in in_order(member)), tree]


# --- the choice ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A way in which a join could run, and what it is expected to move."""

    plan: str  # as option `plan` has it
    rejected: str | None  # why it cannot run so, or why one task is better; None: it is able to win
    tree: Tree | None = None  # of stages
    shares: Shares = ()  # of a cube
    busiest: float = 0.0  # bytes that a task takes in

    def against_one_task(self, bytes: float) -> Candidate:
        """The same, unless a task that takes in so many bytes is better."""
        if self.rejected is None and SEVERAL_COST * self.busiest >= bytes:
            return replace(self, rejected="one task has less to do than each of several")
        return self

    def moved(self, expected: Expected) -> float:
        """The bytes that are shuffled."""
        if self.tree is not None:
            return sum(expected.moved(self.tree))
        return expected.cube.moved(dict(self.shares))


@dataclass(frozen=True)
class Staging:
    """How a join runs that has no key in common, and why."""

    tree: Tree | None  # of stages; None: there is one stage
    reason: str
    shares: Shares = ()  # of that as a cube; empty: it is none


def choose(spec: JoinSpec, settings: Settings, expected: Expected) -> Staging:
    """The stages of a join without a common key, or its cube. Option `plan` decides, if it is set."""
    if settings.plan is not None:
        return _asked_for(settings.plan, spec, settings, expected)
    of_stages, cube = of_stages_and_cube(spec, settings, expected)
    able = [each for each in (cube, of_stages) if each.rejected is None]
    if able:
        chosen = min(able, key=lambda each: each.busiest)
        return Staging(chosen.tree, "of all plans with several tasks it moves the fewest bytes to each", chosen.shares)
    reasons = dict.fromkeys(each.rejected for each in (of_stages, cube) if each.rejected is not None)
    return Staging(None, ", and ".join(reasons))


def _asked_for(plan: str, spec: JoinSpec, settings: Settings, expected: Expected) -> Staging:
    """What option `plan` asks for, as far as the join can run so."""
    if notation.is_cube(plan):
        asked, reason = notation.parse(plan, spec, settings), cubes.obstacle(spec, settings)
        if reason is not None:
            return Staging(None, reason)
        shares = cubes.best(expected.cube, settings.partitions) if asked is None else asked
        return Staging(None, "option 'plan' says so", shares)
    wanted, reason = trees.parse(plan, spec), obstacle(spec, settings)
    if reason is None and not stages.can_run(spec, wanted):
        reason = "option 'plan' has a join whose members have no key in common"
    return Staging(None, reason) if reason is not None else Staging(wanted, "option 'plan' says so")


def of_stages_and_cube(spec: JoinSpec, settings: Settings, expected: Expected) -> tuple[Candidate, Candidate]:
    """The best plan of stages and the best cube."""
    alone, partitions = expected.whole_bytes, settings.partitions
    of_stages, cube = Candidate("stages", obstacle(spec, settings)), Candidate("cube", cubes.obstacle(spec, settings))
    if of_stages.rejected is None and partitions == 1:
        of_stages = replace(of_stages, rejected="there is one partition")
    if of_stages.rejected is None:
        tree = least_bytes(expected)
        name = trees.render(tree, [i.alias for i in spec.inputs])
        of_stages = Candidate(name, None, tree, busiest=sum(expected.moved(tree)) / partitions)
    if cube.rejected is None:
        shares = cubes.best(expected.cube, partitions)
        name = notation.render(shares)
        cube = Candidate(name, None, shares=shares, busiest=expected.cube.of_cell(dict(shares)))
    return of_stages.against_one_task(alone), cube.against_one_task(alone)


def obstacle(spec: JoinSpec, settings: Settings) -> str | None:
    """Why a join cannot run in stages; None where it can."""
    if spec.counts_rows:
        return "it has windows in rows"
    if spec.windowed and any(input.window is None for input in spec.inputs):
        return "some inputs have windows and others have none"
    if settings.overflow != "spill" or settings.max_delay is not None:
        return f"option 'overflow' is '{settings.overflow}'"
    if access.parse(settings.access, spec).directions:
        return "option 'access' names single inputs"
    return None


def horizon_seconds(spec: JoinSpec) -> float:
    """How far the choice looks ahead: with windows no further than rows meet."""
    windows = [input.window.size / 1e6 for input in spec.inputs if input.window is not None]
    return min(HORIZON_SECONDS, max(windows)) if windows and not spec.counts_rows else HORIZON_SECONDS


def settings_of(settings: Settings, moved: Sequence[float]) -> list[Settings]:
    """The settings of each stage, by the bytes that are shuffled to it. Together they keep to the budget."""
    own = replace(settings, plan=None)
    if settings.memory_bytes is None:
        return [own] * len(moved)
    total = sum(moved) or 1.0
    shares = [EQUAL_SHARE / len(moved) + (1 - EQUAL_SHARE) * some / total for some in moved]
    return [replace(own, memory_bytes=int(settings.memory_bytes * share)) for share in shares]


def settings_of_cube(settings: Settings, shares: Shares) -> Settings:
    """The settings of a cube: a partition for each cell, and all of the budget."""
    return replace(settings, plan=None, shares=shares, partitions=notation.cells(shares))


# --- the search ----------------------------------------------------------------------------------------------------


def least_bytes(expected: Expected) -> Tree:
    """The tree of stages that moves the fewest bytes."""
    return _Search(expected).best()


class _Search:
    def __init__(self, expected: Expected) -> None:
        self._expected, self._count = expected, len(expected.rows)
        self._bytes = lru_cache(maxsize=None)(expected.bytes_of)
        self._classes = lru_cache(maxsize=None)(lambda part: stages.classes_of(expected.spec, sorted(part)))

    def best(self) -> Tree:
        start = frozenset(frozenset((i,)) for i in range(self._count))
        seen: set[Parts] = set()
        waiting: list[_Step] = [(0.0, 0, "", start, {part: min(part) for part in start})]
        while waiting:
            moved, steps, _, parts, made = heapq.heappop(waiting)
            if len(parts) == 1:
                return next(iter(made.values()))
            if parts in seen:
                continue
            seen.add(parts)
            following = [self._joined(moved, steps, made, group) for group in self._groups(parts)]
            if len(seen) >= MOST_STEPS:
                waiting = [min(following, key=self._greed)]
                continue
            for each in following:
                heapq.heappush(waiting, each)
        raise AssertionError("the inputs of a join are connected")

    def _greed(self, step: _Step) -> tuple[float, str]:
        """What is left to be moved after a step, about."""
        moved, _, name, parts, _ = step
        return moved + sum(map(self._bytes, parts)) if len(parts) > 1 else moved, name

    def _joined(self, moved: float, steps: int, made: dict[Inputs, Tree], group: tuple[Inputs, ...]) -> _Step:
        whole, rest = frozenset[int]().union(*group), {p: t for p, t in made.items() if p not in group}
        rest[whole] = trees.normal(tuple(made[part] for part in group))
        parts = frozenset(rest)
        return moved + sum(map(self._bytes, group)), steps + 1, str(sorted(map(str, rest.values()))), parts, rest

    def _groups(self, parts: Parts) -> Iterator[tuple[Inputs, ...]]:
        """The parts that one stage may join."""
        found: set[tuple[Inputs, ...]] = set()
        ordered = sorted(parts, key=min)
        for key_class in range(len(self._expected.spec.classes)):
            able = [part for part in ordered if key_class in self._classes(part)]
            if len(able) > 1:
                sizes = range(2, len(able) + 1) if self._count <= EXACT else [len(able)]
                found |= {group for size in sizes for group in combinations(able, size)}
        return iter(sorted(found, key=lambda group: [sorted(part) for part in group]))
