"""Probing orders: in which sequence an arriving row visits the other inputs (Viglas 2003, sections 2.1, 2.2 and 3.3).

Each input has its own order. An input can be visited once it shares a key class with one that is bound. All key classes
that a target shares with the bound inputs are used in its probe: where a join graph has a cycle, the closing edge
narrows the probe rather than being checked afterwards. Residuals are applied as soon as their inputs are bound.

    cost of an order = sum over its steps of combinations that probe + rows of the target that have equal keys

The paper sorts an input's predicates by selectivity. That is the order of least cost where any input can be visited at
any time and predicates are independent; here neither need hold. How many combinations there are of a set of inputs does
not depend on the way to it (`Statistics.expected`), so the cheapest way to a set extends the cheapest way to a smaller
one: the best order is found by going over sets, for up to EXACT_INPUTS inputs. For more, every step takes the target
with the fewest expected combinations.

An order is changed only for a gain that is worth it, and only on evidence. Without evidence the smallest input comes
first, so that an empty one ends the sequence at once.

Pure: the same specification and statistics give the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_mjoin.evidence import Context, EdgeCounts, Edges
from spark_mjoin.mjoin.rendering import identifier
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import Access, InputSpec, JoinSpec, ProbeOrder, ProbeStep

log = logging.getLogger(__name__)

BEFORE = " > "  # between the inputs of an order, for people
EXACT_INPUTS = 8  # with more, trying all sets of inputs takes too long
LEAST_GAIN = 0.04  # of the cost that an order can have an influence on
LEAST_PROBES = 100.0  # of rows of an input into another, in either direction

Targets = tuple[int, ...]  # the inputs that an order visits


@dataclass(frozen=True)
class Choice:
    """An order for the arrivals of one input, and why it is this one."""

    order: Targets
    changed: bool
    reason: str
    expected_cost: float  # of the order, per arriving row
    current_cost: float  # of the one before
    known: bool  # whether it rests on evidence


# --- orders ----------------------------------------------------------------------------------------------------


def probe_order(spec: JoinSpec, origin: int, sizes: Sequence[float]) -> ProbeOrder:
    """The order for arrivals of `origin` when nothing is known but the number of rows of each input."""
    return order_of(spec, origin, smallest_first(spec, origin, sizes))


def order_of(spec: JoinSpec, origin: int, targets: Sequence[int], scans: Container[int] = ()) -> ProbeOrder:
    """The steps of an order that visits the targets in this sequence, and scans some of them."""
    bound = [origin]
    undecided = list(range(len(spec.residuals)))
    steps = []
    for target in targets:
        supplier = {c: i for i in reversed(bound) for c in spec.classes_of(i)}
        classes = tuple(sorted(spec.classes_of(target) & supplier.keys()))
        assert classes, "a target is reached through a key class"
        bound.append(target)
        decided = [r for r in undecided if spec.residuals[r].inputs <= set(bound)]
        undecided = [r for r in undecided if r not in decided]
        steps.append(ProbeStep(target, classes, tuple(supplier[c] for c in classes), tuple(decided), target in scans))
    return ProbeOrder(origin, tuple(steps))


def smallest_first(spec: JoinSpec, origin: int, sizes: Sequence[float]) -> Targets:
    bound, targets = frozenset((origin,)), list[int]()
    while ready := _reachable(spec, bound):
        target = min(ready, key=lambda i: (sizes[i], i))
        targets.append(target)
        bound |= {target}
    return tuple(targets)


def best(statistics: Statistics, origin: int, sizes: Sequence[float]) -> Targets:
    """The order of least expected cost; of equal ones that with the smaller inputs first."""
    spec = statistics.spec
    if len(spec.inputs) > EXACT_INPUTS:
        return _greedy(statistics, origin, sizes)
    expected = statistics.expected(origin)
    start = frozenset((origin,))
    layer: dict[frozenset[int], tuple[float, list[tuple[float, int]]]] = {start: (0.0, [])}
    for _ in range(len(spec.inputs) - 1):
        wider: dict[frozenset[int], tuple[float, list[tuple[float, int]]]] = {}
        for bound, (cost, ranks) in layer.items():
            for target in _reachable(spec, bound):
                way = cost + _step(statistics, expected, bound, target), [*ranks, (sizes[target], target)]
                with_target = bound | {target}
                if with_target not in wider or way < wider[with_target]:
                    wider[with_target] = way
        layer = wider
    ((_, ranks),) = layer.values()
    return tuple(target for _, target in ranks)


def cost(statistics: Statistics, origin: int, targets: Targets) -> float:
    """Per arriving row, the combinations that probe and the rows with equal keys that they find."""
    expected = along(statistics, origin, targets)
    bound, total = frozenset((origin,)), 0.0
    for target in targets:
        total += _step(statistics, expected, bound, target)
        bound |= {target}
    return total


def _step(
    statistics: Statistics, expected: Mapping[frozenset[int], float], bound: frozenset[int], target: int
) -> float:
    return expected[bound] + expected[bound | {target}] / statistics.passing(bound, target)


def along(statistics: Statistics, origin: int, targets: Targets) -> Mapping[frozenset[int], float]:
    """The expected combinations on the way of an order."""
    if len(statistics.spec.inputs) <= EXACT_INPUTS:
        return statistics.expected(origin)
    bound = frozenset((origin,))
    out = {bound: 1.0}
    for target in targets:
        out[bound | {target}] = out[bound] * statistics.fan_out(origin, bound, target)
        bound |= {target}
    return out


def _greedy(statistics: Statistics, origin: int, sizes: Sequence[float]) -> Targets:
    bound, targets = frozenset((origin,)), list[int]()
    while ready := _reachable(statistics.spec, bound):
        target = min(ready, key=lambda i: (statistics.fan_out(origin, bound, i), sizes[i], i))
        targets.append(target)
        bound |= {target}
    return tuple(targets)


def _reachable(spec: JoinSpec, bound: frozenset[int]) -> list[int]:
    classes = frozenset[int]().union(*(spec.classes_of(i) for i in bound))
    return [i for i in range(len(spec.inputs)) if i not in bound and spec.classes_of(i) & classes]


# --- decisions -------------------------------------------------------------------------------------------------


def choose(
    spec: JoinSpec, origin: int, statistics: Statistics, sizes: Sequence[float], current: Targets | None
) -> Choice:
    """Keep the current order, or change it where that pays. None is the order that there is without evidence.

    An order that was planned stays when what it was planned on has faded: as long as nobody knows better.
    """
    alias = spec.inputs[origin].alias
    before = smallest_first(spec, origin, sizes) if current is None else current
    if not statistics.is_known(origin, LEAST_PROBES):
        what = "smallest input first" if current is None else f"stays {_named(spec, origin, before)}"
        return Choice(before, False, f"{alias}: too few probes to judge by; {what}", 0.0, 0.0, False)
    after = best(statistics, origin, sizes)
    costs = [cost(statistics, origin, order) for order in (after, before)]
    expected = along(statistics, origin, before)
    result = expected[frozenset(range(len(spec.inputs)))]
    gain, avoidable = costs[1] - costs[0], costs[1] - result
    if after == before or gain < LEAST_GAIN * avoidable:
        shown = f"{alias}: stays {_named(spec, origin, before)}: the best order would save {_figure(gain)} of "
        return Choice(before, False, f"{shown}{_figure(costs[1])} rows per arrival", costs[1], costs[1], True)
    reason = f"{alias}: {_difference(statistics, origin, after, before)}, {_figure(gain)} fewer of {_figure(costs[1])} "
    return Choice(after, True, f"{reason}probes and matches per arrival", costs[0], costs[1], True)


def choose_all(
    statistics: Statistics, sizes: Sequence[float], current: Sequence[Targets | None]
) -> tuple[list[Targets | None], list[Choice]]:
    """The planned orders of all inputs, None where a task has to choose by what it sees, and how they came to be."""
    spec = statistics.spec
    choices = [choose(spec, origin, statistics, sizes, current[origin]) for origin in range(len(spec.inputs))]
    pairs = zip(choices, current, strict=True)
    return [choice.order if choice.known or before is not None else None for choice, before in pairs], choices


def _difference(statistics: Statistics, origin: int, after: Targets, before: Targets) -> str:
    """What is first done in another way: `shipments before orders: 0.02 instead of 1.4 matches per row`."""
    spec = statistics.spec
    at = next(n for n, (new, old) in enumerate(zip(after, before, strict=True)) if new != old)
    bound = frozenset((origin, *after[:at]))
    new, old = (statistics.fan_out(origin, bound, order[at]) for order in (after, before))
    names = f"{spec.inputs[after[at]].alias} before {spec.inputs[before[at]].alias}"
    after_what = "".join(f" after {spec.inputs[i].alias}" for i in after[at - 1 : at])
    return f"{names}{after_what}: {_figure(new)} instead of {_figure(old)} matches per row"


def describe(spec: JoinSpec, order: ProbeOrder) -> str:
    """The order in words, for progress displays: `orders > payments > shipments`."""
    return _named(spec, order.origin, [step.target for step in order.steps])


def _named(spec: JoinSpec, origin: int, targets: Sequence[int]) -> str:
    return BEFORE.join(named(spec.inputs[i]) for i in (origin, *targets))


def named(member: InputSpec) -> str:
    """A member of an operator as orders have it."""
    return member.alias if member.joined else identifier(member.alias)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


# --- in a task -------------------------------------------------------------------------------------------------


@dataclass
class Probing:
    """The orders of one operator in one batch: the planned ones, and otherwise what the moment says.

    And the directions that scan: those are always planned, and only where tables in memory are probed.

    Where nothing is planned an order is looked for again when the evidence has doubled, so not often. What depends on
    it is the same in every attempt, since it follows from the state and the rows that come.
    """

    spec: JoinSpec
    planned: Sequence[Targets | None]
    scans: Access = ()
    _chosen: dict[int, tuple[float, Targets]] = field(default_factory=dict)  # for each origin, on so many probes

    @staticmethod
    def unplanned(spec: JoinSpec) -> Probing:
        return Probing(spec, [None] * len(spec.inputs))

    def order(self, origin: int, sizes: Sequence[int], before: Edges, now: Edges) -> ProbeOrder:
        """The order for arrivals of one input, given the tables' rows and the counts before and in this batch."""
        targets = self.planned[origin]
        if targets is None:
            targets = self._live(origin, sizes, before, now)
        return order_of(self.spec, origin, targets, [t for o, t in self.scans if o == origin])

    def looking_up(self) -> Probing:
        """The same orders for tables of their own, which are filled, probed and forgotten: no direction scans."""
        return replace(self, scans=())

    def _live(self, origin: int, sizes: Sequence[int], before: Edges, now: Edges) -> Targets:
        probes = sum(c.probes for edges in (before, now) for (_, bound, _), c in edges.items() if len(bound) == 1)
        if probes < LEAST_PROBES or 0 in sizes:
            return smallest_first(self.spec, origin, sizes)
        if origin not in self._chosen or probes >= 2 * self._chosen[origin][0]:
            edges: dict[Context, EdgeCounts] = {}
            for part in (before, now):
                for context, counts in part.items():
                    edges.setdefault(context, EdgeCounts()).add(counts)
            statistics = Statistics.of(self.spec, sizes, edges)
            if not statistics.is_known(origin, LEAST_PROBES):
                return smallest_first(self.spec, origin, sizes)
            current = self._chosen.get(origin, (0.0, None))[1]
            choice = choose(self.spec, origin, statistics, sizes, current)
            if choice.changed:
                log.info("probing order of %s", choice.reason)
            self._chosen[origin] = probes, choice.order
        return self._chosen[origin][1]
