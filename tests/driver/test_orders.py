"""Probing orders: the best of all that are possible, changed on evidence only, with a reason in figures."""

import logging
import random
from collections.abc import Sequence
from itertools import permutations

import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.evidence import EdgeCounts, Edges
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.orders import LEAST_PROBES, Probing, Targets, best, choose, choose_all, cost, order_of
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import JoinSpec
from spark_mjoin.query.graph import plan_join

SHAPES = ("star", "chain", "tree", "cycle", "snowflake")


def graph(shape: str, inputs: int, chance: random.Random, residual: bool = False) -> JoinSpec:
    """A join of r0, r1, … over columns c0, c1, …: each edge has a column of its own, but a star only one."""
    edges = {
        "star": [(0, i, "c0") for i in range(1, inputs)],
        "chain": [(i - 1, i, f"c{i}") for i in range(1, inputs)],
        "tree": [(chance.randrange(i), i, f"c{i}") for i in range(1, inputs)],
        "cycle": [((i - 1) % inputs, i, f"c{i}") for i in range(inputs)],
        "snowflake": [(0, i, f"c{min(i, 2)}") for i in range(1, inputs)],
    }[shape]
    names = [f"r{i}" for i in range(inputs)]
    where = " AND ".join(f"r{a}.{c} = r{b}.{c}" for a, b, c in edges)
    where += f" AND r0.v < r{inputs - 1}.v" if residual else ""
    schema = pa.schema([(c, pa.int64()) for c in ["v", *(f"c{i}" for i in range(inputs + 1))]])
    query = f"SELECT r0.v FROM {', '.join(names)} WHERE {where}"
    options = Options.parse({"query": query, **{f"source.{name}.format": "arrow" for name in names}})
    return plan_join(options, [schema] * inputs)


def valid_orders(spec: JoinSpec, origin: int) -> list[Targets]:
    """All sequences in which each target shares a class with the origin or a target before it."""
    others = [i for i in range(len(spec.inputs)) if i != origin]

    def is_valid(order: Sequence[int]) -> bool:
        bound = [origin, *order]
        return all(any(spec.classes_of(t) & spec.classes_of(i) for i in bound[:n]) for n, t in enumerate(bound) if n)

    return [order for order in permutations(others) if is_valid(order)]


def some_statistics(spec: JoinSpec, chance: random.Random, measured: bool) -> Statistics:
    n = len(spec.inputs)
    rows = [chance.choice([1.0, 10.0, 200.0, 3000.0]) for _ in range(n)]
    given = {(a, b): 10 ** chance.uniform(-4, 0) for a in range(n) for b in range(a)}
    edges: Edges = {}
    for origin in range(n) if measured else ():
        order = chance.choice(valid_orders(spec, origin))
        for k, target in enumerate(order):
            probes, selectivity = 10 ** chance.uniform(0, 5), 10 ** chance.uniform(-4, 0)
            matches = probes * rows[target] * selectivity
            counts = EdgeCounts(probes, matches, probes * rows[target], matches * chance.random())
            edges[origin, frozenset((origin, *order[:k])), target] = counts
    return Statistics.of(spec, rows, edges, given=given)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("inputs", [3, 4, 6])
def oracle_no_order_is_cheaper(shape: str, inputs: int) -> None:
    chance = random.Random(f"{shape}{inputs}")
    for _ in range(20 if inputs < 6 else 4):
        spec = graph(shape, inputs, chance)
        statistics = some_statistics(spec, chance, measured=False)
        origin = chance.randrange(inputs)
        costs = {order: by_sizes(statistics, origin, order) for order in valid_orders(spec, origin)}
        chosen = best(statistics, origin, statistics.rows)
        assert costs[chosen] == pytest.approx(min(costs.values()))
        assert cost(statistics, origin, chosen) == pytest.approx(costs[chosen])


def by_sizes(statistics: Statistics, origin: int, order: Targets) -> float:
    """Combinations before and after each step, per arriving row: what an order should minimise."""
    sets = [frozenset((origin, *order[:n])) for n in range(len(order) + 1)]
    found = [statistics.size(s) / statistics.rows[origin] for s in sets]
    return sum(found[:-1]) + sum(found[1:])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("residual", [False, True])
def oracle_no_order_is_cheaper_by_what_was_measured(shape: str, residual: bool) -> None:
    chance = random.Random(f"{shape}{residual}")
    for _ in range(20):
        spec = graph(shape, 5, chance, residual)
        statistics = some_statistics(spec, chance, measured=True)
        for origin in range(5):
            chosen = cost(statistics, origin, best(statistics, origin, statistics.rows))
            assert chosen == pytest.approx(min(cost(statistics, origin, o) for o in valid_orders(spec, origin)))


@pytest.mark.parametrize(("inputs", "first"), [(8, (3, 2)), (9, (5, 6))])
def test_up_to_eight_inputs_a_selective_one_behind_another_is_found(inputs: int, first: Targets) -> None:
    """From the middle of a chain two matches a row on one side, and behind them nearly none; 1.5 on the other."""
    spec = graph("chain", inputs, random.Random(1))
    fan_outs = {(a - 1, a): 0.0015 for a in range(1, inputs)} | {(3, 4): 0.002, (2, 3): 1e-6}
    statistics = Statistics.of(spec, [1000.0] * inputs, given=fan_outs)
    chosen = best(statistics, 4, statistics.rows)
    assert chosen[:2] == first
    least = min(by_sizes(statistics, 4, order) for order in valid_orders_of_a_chain(4, inputs))
    assert (by_sizes(statistics, 4, chosen) == pytest.approx(least)) == (inputs <= orders.EXACT_INPUTS)


def test_many_inputs_are_ordered_step_by_step() -> None:
    spec = graph("star", 10, random.Random(1))
    given = {(0, i): 1 / (1000 * (1 + (7 * i) % 10)) for i in range(1, 10)}
    statistics = Statistics.of(spec, [1000.0] * 10, given=given)
    expected = sorted(range(1, 10), key=lambda i: given[0, i])
    assert list(best(statistics, 0, statistics.rows))[:1] == expected[:1]
    chosen = best(statistics, 0, statistics.rows)
    assert sorted(chosen) == list(range(1, 10))
    assert cost(statistics, 0, chosen) <= cost(statistics, 0, tuple(range(1, 10)))


def test_greedy_finds_chains_of_many_inputs() -> None:
    spec = graph("chain", 10, random.Random(1))
    statistics = Statistics.of(spec, [1000.0] * 10, given={(4, 5): 0.5, (3, 4): 0.0001})
    chosen = best(statistics, 4, statistics.rows)
    assert chosen in valid_orders_of_a_chain(4, 10) and chosen[:4] == (3, 2, 1, 0)


def valid_orders_of_a_chain(origin: int, inputs: int) -> list[Targets]:
    if inputs == 1:
        return [()]
    out: list[Targets] = []

    def extend(low: int, high: int, order: Targets) -> None:
        if low == 0 and high == inputs - 1:
            out.append(order)
        if low > 0:
            extend(low - 1, high, (*order, low - 1))
        if high < inputs - 1:
            extend(low, high + 1, (*order, high + 1))

    extend(origin, origin, ())
    return out


def test_equal_orders_are_decided_by_size_and_number() -> None:
    spec = graph("star", 4, random.Random(1))
    given = {(a, b): 0.001 for a in range(4) for b in range(a)}
    equal = Statistics.of(spec, [100.0] * 4, given=given)
    assert best(equal, 1, [100.0] * 4) == (0, 2, 3)
    assert best(equal, 1, [100, 100, 100, 50]) == (3, 0, 2)
    empty = Statistics.of(spec, [100.0, 100.0, 0.0, 100.0], given=given)
    assert best(empty, 0, empty.rows)[0] == 2


# --- changes -----------------------------------------------------------------------------------------------------


def seen(probes: float, to_1: float, to_2: float) -> Statistics:
    """A star of three inputs with 1,000 rows, where rows of r0 have found so many matches."""
    spec = graph("star", 3, random.Random(1))
    counts = {t: EdgeCounts(probes, m * probes, 1000 * probes, m * probes) for t, m in ((1, to_1), (2, to_2))}
    edges = {(0, frozenset({0}), t): c for t, c in counts.items()}
    return Statistics.of(spec, [1000.0] * 3, edges)


def test_a_change_says_why() -> None:
    statistics = seen(100_000, 1.4, 0.02)
    choice = choose(statistics.spec, 0, statistics, statistics.rows, (1, 2))
    assert choice.order == (2, 1) and choice.changed and choice.known
    assert choice.reason == (
        "r0: r2 before r1: 0.02 instead of 1.4 matches per row, 2.8 fewer of 3.8 probes and matches per arrival"
    )
    assert choice.expected_cost < choice.current_cost
    again = choose(statistics.spec, 0, statistics, statistics.rows, choice.order)
    assert again.order == (2, 1) and not again.changed
    assert "stays r0 > r2 > r1" in again.reason


def test_little_gain_changes_nothing() -> None:
    statistics = seen(100_000, 1.0, 0.98)
    choice = choose(statistics.spec, 0, statistics, statistics.rows, (1, 2))
    assert choice.order == (1, 2) and not choice.changed
    assert choose(statistics.spec, 0, statistics, statistics.rows, (2, 1)).order == (2, 1)


def test_little_evidence_changes_nothing() -> None:
    statistics = seen(LEAST_PROBES - 1, 9.0, 0.01)
    choice = choose(statistics.spec, 0, statistics, [5, 3, 4], None)
    assert choice.order == (1, 2) and not choice.changed and not choice.known
    assert "too few probes" in choice.reason
    planned, _ = choose_all(statistics, [5, 3, 4], [None] * 3)
    assert planned == [None] * 3
    planned, choices = choose_all(seen(100_000, 9.0, 0.01), [5, 3, 4], [None] * 3)
    assert planned[0] == (2, 1) and choices[0].changed  # from what would be done without evidence


def test_an_order_outlasts_the_evidence_for_it() -> None:
    """A slow input of a fast join: its own probes fade sooner than they come."""
    faded = seen(LEAST_PROBES - 1, 9.0, 0.01)
    planned, choices = choose_all(faded, [5, 3, 4], [(2, 1), None, (1, 0)])
    assert planned == [(2, 1), None, (1, 0)]
    assert not any(choice.changed for choice in choices)
    assert choices[0].reason == "r0: too few probes to judge by; stays r0 > r2 > r1"


def test_what_is_expected_plans_the_first_batch() -> None:
    spec = graph("star", 3, random.Random(1))
    statistics = Statistics.of(spec, [1000.0] * 3, given={(0, 1): 0.01, (0, 2): 0.001})
    planned, _ = choose_all(statistics, [0, 0, 0], [None] * 3)
    assert planned[0] == (2, 1)


# --- in a task ---------------------------------------------------------------------------------------------------


def targets(probing: Probing, edges: Edges, sizes: Sequence[int] = (1000, 999, 1000)) -> list[int]:
    return [step.target for step in probing.order(0, sizes, {}, edges).steps]


def test_a_task_says_why_it_changes_an_order(caplog: pytest.LogCaptureFixture) -> None:
    probing = Probing.unplanned(seen(1, 1, 1).spec)
    with caplog.at_level(logging.INFO, "spark_mjoin.mjoin.orders"):
        assert targets(probing, dict(seen(1000, 9.0, 0.01).edges)) == [2, 1]
        assert targets(probing, dict(seen(3000, 9.0, 0.01).edges)) == [2, 1]
        assert targets(probing, dict(seen(9000, 0.01, 9.0).edges)) == [1, 2]
    first, second = (record.message for record in caplog.records)
    assert first.startswith("probing order of r0: r2 before r1: 0.")
    assert second.startswith("probing order of r0: r1 before r2: 0.")


def test_a_task_keeps_to_the_plan_and_otherwise_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = seen(1, 1, 1).spec
    selective = dict(seen(1000, 9.0, 0.01).edges)
    assert targets(Probing(spec, [(1, 2), None, None]), selective) == [1, 2]
    probing = Probing.unplanned(spec)
    assert targets(probing, {}) == [1, 2]
    assert targets(probing, selective) == [2, 1]
    assert targets(probing, selective, (1000, 0, 5)) == [1, 2]  # an empty input comes first, always
    calls = []
    monkeypatch.setattr(orders, "choose", lambda *_: calls.append(1))
    assert targets(probing, dict(seen(1900, 0.01, 9.0).edges)) == [2, 1]
    assert not calls  # not much more evidence than before


def test_an_order_must_be_possible() -> None:
    spec = graph("chain", 3, random.Random(1))
    with pytest.raises(AssertionError, match="reached through a key class"):
        order_of(spec, 0, (2, 1))
