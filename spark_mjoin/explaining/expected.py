"""What a join is expected to do, and where each figure comes from: given by the user, sampled, measured, or assumed.

The plan and the orders are those that the reader would choose (planner.choice, planner.orders) from the same figures,
and the rates and sizes those of the cost model (planner.costs). Nothing is estimated in a second way here.

Before a query has run there are no rows that orders could be judged by, so they are shown for the rows that there will
be at the end of the time that is looked at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from spark_mjoin.explaining import sizes
from spark_mjoin.model import JoinSpec, OperatorSpec, Settings, Tree
from spark_mjoin.planner import decompose, orders, scheduling
from spark_mjoin.planner import tree as trees
from spark_mjoin.planner.choice import Planner, between_members
from spark_mjoin.planner.costs import Costs, Model, expected_of
from spark_mjoin.planner.plan import Plan
from spark_mjoin.planner.statistics import Pair, Statistics

GIVEN, MEASURED, SAMPLED, ASSUMED, UNKNOWN = "given", "measured", "sampled", "assumed", "not known"


@dataclass(frozen=True)
class Figure:
    value: float
    origin: str


@dataclass(frozen=True)
class Knowledge:
    """What is known about the inputs before anything was counted."""

    rows: tuple[Figure, ...]  # of each input, at the beginning
    rates: tuple[Figure, ...]  # rows per second of each input; 0 and UNKNOWN where nobody knows
    pairs: Mapping[Pair, Figure] = field(default_factory=dict)  # selectivities; others are assumed
    widths: sizes.Widths = field(default_factory=dict)
    most: tuple[float, ...] | None = None  # rows at which each input ends

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
    def statistics(self) -> Statistics:
        """Of the inputs, at the end."""
        rates = [figure.value for figure in self.knowledge.rates]
        return Statistics.of(self.spec, self.rows, rates=rates, given=self._given)

    @property
    def _given(self) -> dict[Pair, float]:
        return {pair: figure.value for pair, figure in self.knowledge.pairs.items()}

    def selectivity(self, pair: Pair) -> Figure:
        known = self.knowledge.pairs.get(pair)
        return known or Figure(self.statistics.selectivity(*pair), ASSUMED)

    # --- the plan ----------------------------------------------------------------------------------------------

    @cached_property
    def choice(self) -> decompose.Choice:
        """The tree and why: as the reader chooses it for the first batch."""
        planner, nothing = Planner(self.spec, self.settings, self.costs), [None] * self.settings.partitions
        before = Plan(trees.single(len(self.spec.inputs)))
        rates = [figure.value for figure in self.knowledge.rates]
        considered = planner.choice(before, nothing, planner.statistics(nothing, rates))
        if self.settings.plan is None:
            return considered
        return decompose.Choice(*planner.tree(before, nothing, rates), considered.candidates)

    @cached_property
    def turns(self) -> scheduling.Choice:
        """In which order the rows of a batch are taken in, and why."""
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
        tracked, partitions = self.settings.memory_bytes is not None, self.settings.partitions
        members = tuple(
            Member(
                input.alias,
                count,
                sizes.row_bytes(input, self.knowledge.widths, tracked),
                sizes.state_bytes(input, count, self.knowledge.widths, tracked, partitions),
                input.joined,
            )
            for input, count in zip(place.spec.inputs, rows, strict=True)
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
        return self.statistics.size(frozenset(range(len(self.spec.inputs))))

    @cached_property
    def _last_second(self) -> Model:
        """What happens in the last second of the time that is looked at."""
        rates = [figure.value for figure in self.knowledge.rates]
        ended = [r >= m for r, m in zip(self.rows, self.knowledge.most or self.rows, strict=True)]
        still = [0.0 if self.knowledge.most and end else rate for rate, end in zip(rates, ended, strict=True)]
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
        return (model.after(whole) - model.before(whole)) / max(1.0, self.work_seconds)

    @cached_property
    def work_seconds(self) -> float:
        """Of the last second's work."""
        return self.costs.seconds(self._last_second.tree(self.tree))

    @cached_property
    def work_in_all(self) -> float:
        """Seconds of work from the first row to the last."""
        model = Model(self.spec, _Growing(self.statistics), [0.0] * len(self.rows), self.rows)
        return self.costs.seconds(model.tree(self.tree))


class _Growing:
    """Estimates for the cost model in which what is assumed, that keys are unique, goes on while rows grow."""

    def __init__(self, statistics: Statistics) -> None:
        self.rows, self.rates, self._statistics = statistics.rows, statistics.rates, statistics
        self._at = lru_cache(maxsize=None)(statistics.with_rows)

    def size(self, inputs: frozenset[int], rows: Sequence[float]) -> float:
        return self._at(tuple(rows)).size(inputs)

    def with_rows(self, rows: Sequence[float]) -> Statistics:
        return self._statistics.with_rows(rows)
