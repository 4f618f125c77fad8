"""What a join is expected to do, and where each figure comes from: given by the user, sampled, measured, or assumed.

The plan and the orders are those that the driver would choose (driver.choice, join.orders) from the same figures, and
the rates and sizes are those of the cost model (driver.costs). Nothing is estimated in a second way here.

Before a query has run there are no rows by which to judge orders. So orders are shown for the rows at the end of the
forecast. With windows these are the rows inside the windows at that time: older rows meet no arrival. The state holds
some more rows (`held`), by the rules of engine.retention.windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from spark_mjoin.driver import decompose, scheduling
from spark_mjoin.driver.choice import Planner, between_members
from spark_mjoin.driver.costs import Costs, Model, expected_of, inside
from spark_mjoin.explaining import sizes
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.statistics import Pair, Statistics
from spark_mjoin.model import LAZY, JoinSpec, OperatorSpec, Settings, Tree
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees

GIVEN, MEASURED, SAMPLED, ASSUMED, UNKNOWN = "given", "measured", "sampled", "assumed", "not known"


@dataclass(frozen=True)
class Figure:
    value: float
    origin: str


@dataclass(frozen=True)
class Knowledge:
    """What is known about the inputs before anything was counted."""

    rows: tuple[Figure, ...]  # of each input, at the beginning
    rates: tuple[Figure, ...]  # rows per second of each input; 0 and UNKNOWN where it is not known
    pairs: Mapping[Pair, Figure] = field(default_factory=dict)  # selectivities; others are assumed
    widths: sizes.Widths = field(default_factory=dict)
    most: tuple[float, ...] | None = None  # rows at which each input ends
    paces: tuple[float, ...] | None = None  # rows per second of event time; 0.0 or None: as they arrive
    kept: tuple[float, ...] | None = None  # of the rows that come, the fraction that is stored; None: all

    @staticmethod
    def given(spec: JoinSpec, settings: Settings) -> Knowledge:
        """What the options say."""
        rates, pairs = expected_of(spec, settings.expected)
        return Knowledge(
            rows=(Figure(0.0, ASSUMED),) * len(rates),
            rates=tuple(Figure(rate, GIVEN if rate else UNKNOWN) for rate in rates),
            pairs={pair: Figure(s, GIVEN) for pair, s in pairs.items()},
        )


@dataclass(frozen=True)
class Member:
    """A table of an operator: an input of the join, or the results of another operator."""

    name: str
    rows: float
    row_bytes: float
    state_bytes: float
    joined: bool


@dataclass(frozen=True)
class Operator:
    place: OperatorSpec
    members: tuple[Member, ...]
    statistics: Statistics  # of its members
    orders: tuple[orders.Choice, ...]  # of its members


@dataclass(frozen=True)
class Expectation:
    spec: JoinSpec
    settings: Settings
    costs: Costs
    knowledge: Knowledge
    seconds: float  # that are looked at

    @property
    def is_known(self) -> bool:
        """Whether anything is known about how many rows there will be."""
        return any(figure.value for figure in (*self.knowledge.rates, *self.knowledge.rows))

    @cached_property
    def rows(self) -> tuple[float, ...]:
        """Of each input, at the end."""
        known = self.knowledge
        end = [r.value + rate.value * self.seconds for r, rate in zip(known.rows, known.rates, strict=True)]
        most = known.most or [float("inf")] * len(end)
        return tuple(min(e, max(m, r.value)) for e, m, r in zip(end, most, known.rows, strict=True))

    @cached_property
    def paces(self) -> tuple[float, ...]:
        """Rows of each input per second of event time; 0.0 where it is not known."""
        rates = [figure.value for figure in self.knowledge.rates]
        return tuple(pace or rate for pace, rate in zip(self.knowledge.paces or rates, rates, strict=True))

    @cached_property
    def inside(self) -> tuple[float, ...]:
        """Rows of each input that count at the end: all, or those inside its window."""
        return tuple(inside(self.spec, self.rows, self.paces, self.knowledge.kept))

    @cached_property
    def held(self) -> tuple[float, ...]:
        """Rows of each input that are in the state at the end.

        These are the rows that count, rows that may still count for others which are not late, and where expiry is lazy
        the expired rows that are not dropped yet. Then the figure is an upper bound.
        """
        out, active = [], self.settings.expiry == "active" or self.settings.overflow == "fail"
        for n, input in enumerate(self.spec.inputs):
            rows = self.inside[n]
            if input.window is not None:
                late = max(other.lateness for m, other in enumerate(self.spec.inputs) if m != n) / 1e6
                rows += 0.0 if input.window.in_rows else self.paces[n] * late
                rows *= 1.0 if active else LAZY / (LAZY - 1)
            out.append(min(rows, self.rows[n]))
        return tuple(out)

    @property
    def tracked(self) -> bool:
        """Whether a row's bucket and arrival are stored too."""
        return self.settings.memory_bytes is not None or self.spec.windowed

    @cached_property
    def statistics(self) -> Statistics:
        """Of the inputs, at the end."""
        rates = [figure.value for figure in self.knowledge.rates]
        return Statistics.of(self.spec, self.inside, rates=rates, given={**self._unique, **self._given})

    @property
    def _unique(self) -> dict[Pair, float]:
        """With windows, the selectivities by which every row of the slower of two inputs has one partner in all.

        A row meets others as old as their window, and later ones while it is inside its own.
        """
        out: dict[Pair, float] = {}
        for a in range(len(self.rows)) if self.spec.windowed else ():
            for b in range(a + 1, len(self.rows)):
                paces = [self.paces[i] for i in (a, b)]
                if self.spec.classes_of(a) & self.spec.classes_of(b) and all(paces):
                    seconds = sum(self.inside[i] / self.paces[i] for i in (a, b))
                    out[a, b] = min(1.0, 1 / max(1.0, max(paces) * seconds))
        return out

    @property
    def _given(self) -> dict[Pair, float]:
        return {pair: figure.value for pair, figure in self.knowledge.pairs.items()}

    def selectivity(self, pair: Pair) -> Figure:
        known = self.knowledge.pairs.get(pair)
        return known or Figure(self.statistics.selectivity(*pair), ASSUMED)

    # --- the plan ----------------------------------------------------------------------------------------------

    @cached_property
    def choice(self) -> decompose.Choice:
        """The tree and why: as the driver chooses it for the first batch."""
        planner, nothing = Planner(self.spec, self.settings, self.costs), [None] * self.settings.partitions
        before = Plan(trees.single(len(self.spec.inputs)))
        rates = [figure.value for figure in self.knowledge.rates]
        considered = planner.choice(before, nothing, planner.statistics(nothing, rates))
        if self.settings.plan is None:
            return considered
        return decompose.Choice(*planner.tree(before, nothing, rates), considered.candidates)

    @cached_property
    def turns(self) -> scheduling.Choice:
        """In which order a batch takes its rows, and why."""
        before = Plan(trees.single(len(self.spec.inputs)))
        rates = [figure.value for figure in self.knowledge.rates]
        return Planner(self.spec, self.settings, self.costs).schedule(before, rates)

    @property
    def tree(self) -> Tree:
        return self.choice.tree

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        return tuple(map(self._operator, trees.layout(self.spec, self.tree)))

    def _operator(self, place: OperatorSpec) -> Operator:
        rows = [self.statistics.size(frozenset(leaves)) for leaves in place.leaves]
        held = [self.held[of[0]] if len(of) == 1 else count for of, count in zip(place.leaves, rows, strict=True)]
        members = tuple(
            Member(
                input.alias,
                count,
                sizes.row_bytes(input, self.knowledge.widths),
                sizes.state_bytes(input, count, self.knowledge.widths, self.settings.partitions),
                input.joined is not None,
            )
            for input, count in zip(place.spec.inputs, held, strict=True)
        )
        known = Statistics.of(place.spec, rows, given=between_members(place, self._given))
        _, choices = orders.choose_all(known, rows, [None] * len(rows))
        return Operator(place, members, self._of_members(place, rows), tuple(choices))

    def _of_members(self, place: OperatorSpec, rows: Sequence[float]) -> Statistics:
        """Of an operator, with the selectivities that follow from those of the inputs."""
        size, leaves, given = self.statistics.size, list(map(frozenset, place.leaves)), {}
        for a in range(len(rows)):
            for b in range(a + 1, len(rows)):
                if place.spec.classes_of(a) & place.spec.classes_of(b) and rows[a] and rows[b]:
                    given[a, b] = min(1.0, size(leaves[a] | leaves[b]) / rows[a] / rows[b])
        return Statistics.of(place.spec, rows, given=given)

    # --- over time ---------------------------------------------------------------------------------------------

    @property
    def state_bytes(self) -> float:
        return sum(member.state_bytes for operator in self.operators for member in operator.members)

    @property
    def results(self) -> float:
        """Of the join, in all."""
        whole = frozenset(range(len(self.spec.inputs)))
        if self.spec.windowed:
            return sum(model.found(whole, whole) for model in self._periods)
        return self.statistics.size(whole)

    @cached_property
    def _periods(self) -> list[Model]:
        """What happens from the first row to the last, all inputs together; cut where a window is full or rows end."""
        estimates, nothing = _Growing(self.statistics), [0.0] * len(self.rows)
        if not self.spec.windowed:
            return [Model(self.spec, estimates, nothing, self.rows)]
        paces = [pace or rows / self.seconds for pace, rows in zip(self.paces, self.rows, strict=True)]
        ends = [(rows, most, pace) for rows, most, pace in zip(self.rows, self.inside, paces, strict=True) if pace]
        instants = sorted({0.0, *(rows / pace for rows, _, pace in ends), *(most / pace for _, most, pace in ends)})

        def at(most: Sequence[float], instant: float) -> list[float]:
            return [min(pace * instant, limit) for pace, limit in zip(paces, most, strict=True)]

        out = []
        for start, end in pairwise(instants):
            arriving = [b - a for a, b in zip(at(self.rows, start), at(self.rows, end), strict=True)]
            out.append(Model(self.spec, estimates, at(self.inside, start), at(self.inside, end), arriving))
        return out

    @cached_property
    def _last_second(self) -> Model:
        """What happens in the last second of the time that is looked at."""
        rates = [figure.value for figure in self.knowledge.rates]
        ended = [r >= m for r, m in zip(self.rows, self.knowledge.most or self.rows, strict=True)]
        still = [0.0 if self.knowledge.most and end else rate for rate, end in zip(rates, ended, strict=True)]
        if self.spec.windowed:
            return Model(self.spec, _Growing(self.statistics), self.inside, self.inside, still)
        before = [max(0.0, row - rate) for row, rate in zip(self.rows, still, strict=True)]
        return Model(self.spec, _Growing(self.statistics), before, self.rows)

    @property
    def input_rate(self) -> float:
        """Rows per second of all inputs that have not ended by then."""
        model = self._last_second
        return sum(model.found(frozenset((i,)), frozenset((i,))) for i in range(len(self.rows)))

    @property
    def output_rate(self) -> float:
        """Equation 2: the results of the last second over the time that they take, if that is more than a second."""
        whole, model = frozenset(range(len(self.spec.inputs))), self._last_second
        found = model.found(whole, whole) if self.spec.windowed else model.after(whole) - model.before(whole)
        return found / max(1.0, self.work_seconds)

    @cached_property
    def work_seconds(self) -> float:
        """Of the last second's work."""
        return self.costs.seconds(self._last_second.tree(self.tree))

    @cached_property
    def work_in_all(self) -> float:
        """Seconds of work from the first row to the last."""
        return sum(self.costs.seconds(model.tree(self.tree)) for model in self._periods)


class _Growing:
    """Estimates for the cost model in which keys that are assumed to be unique stay unique as rows grow."""

    def __init__(self, statistics: Statistics) -> None:
        self.rows, self.rates, self._statistics = statistics.rows, statistics.rates, statistics
        self._at = lru_cache(maxsize=None)(statistics.with_rows)

    def size(self, inputs: frozenset[int], rows: Sequence[float]) -> float:
        return self._at(tuple(rows)).size(inputs)

    def with_rows(self, rows: Sequence[float]) -> Statistics:
        return self._statistics.with_rows(rows)
