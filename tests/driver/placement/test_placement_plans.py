"""Plans of streams: their costs by other ways, the cheapest by enumeration, and what must not change them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.placement import Edge, Query, Stream, attribute_of, greedy, local, optimal, routes, simple
from spark_mjoin.driver.placement.costs import volumes
from spark_mjoin.driver.placement.exhaustive import MOST_STREAMS
from spark_mjoin.driver.placement.plans import Input, Operator, cost, operators, shipments
from spark_mjoin.errors import PlacementError
from tests.driver.placement.simulated import (
    bytes_per_second,
    every_plan,
    numbers,
    operators_of,
    place,
    queries,
    rows_shipped,
    shipped,
)
from tests.examples import examples

PLANNERS = [greedy, local, simple, optimal]


@given(queries())
@examples(100)
def oracle_volumes_of_sets(query: Query) -> None:
    """The recursion of equations 2 and 3, and all sets at once, give what follows from the definition."""
    every = volumes(query)
    for streams in range(1, query.everything + 1):
        expected = bytes_per_second(query, frozenset(i for i in range(len(query.streams)) if streams >> i & 1))
        assert query.volume(streams) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert every[streams] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(queries(), st.sampled_from(PLANNERS))
@examples(150)
def oracle_a_plan_joins_everything_once_and_costs_what_it_says(query: Query, planner: type) -> None:
    plan = planner(query)
    leaves = [each for op in operators_of(plan.root) for each in op.inputs if isinstance(each, int)]
    assert sorted(leaves) == list(range(len(query.streams)))
    assert plan.cost == pytest.approx(shipped(query, plan.root), rel=1e-9, abs=1e-12)
    assert plan.cost == pytest.approx(cost(query, plan.root), rel=1e-9, abs=1e-12)
    for op in operators(plan.root):
        assert op.streams == sum(1 << i for i in numbers(op)) and len(op.inputs) > 1
        assert query.is_connected(op.streams)
        if planner is not optimal:  # which may do without where nothing is shipped
            assert place(query, op.inputs[-1]) == op.node
    sent = [each.streams for each in shipments(query, plan.root)]
    assert len(set(sent)) == len(sent)
    for stream in query.streams:
        path = routes(query, plan.root)[stream.name]
        assert path[0] == stream.node and path[-1] == place(query, plan.root)
        assert all(a != b for a, b in pairwise(path))


@given(queries(most=4, nodes=3))
@examples(60)
def oracle_optimal_is_the_cheapest_of_all_plans(query: Query) -> None:
    cheapest = min(shipped(query, tree) for tree in every_plan(query, tuple(range(len(query.streams)))))
    assert optimal(query).cost == pytest.approx(cheapest, rel=1e-9, abs=1e-12)


@given(queries())
@examples(150)
def test_nothing_is_cheaper_than_optimal(query: Query) -> None:
    least = optimal(query).cost * (1 - 1e-9)
    assert least <= greedy(query).cost and least <= local(query).cost and least <= simple(query).cost
    if len(query.streams) == 2:  # nothing to decide but which of the two is sent
        assert greedy(query).cost == simple(query).cost == pytest.approx(optimal(query).cost)


@given(queries())
@examples(100)
def test_the_first_step_of_greedy_lowers_rates_and_that_of_local_joins_all(query: Query) -> None:
    first = [step for step in greedy(query).steps if step.kind == "local"]
    for step in first:
        (moved,) = step.moved
        assert step.cost == query.volume(moved | step.to) < step.against == query.volume(moved)
        assert query.volume(moved) <= query.volume(step.to)
    steps = [step for step in local(query).steps if step.kind == "whole"]
    for step in steps:
        assert {query.streams[i].node for i in range(len(query.streams)) if step.to >> i & 1} == {step.node}
    joined = [{step.to, *step.moved} for step in steps]
    for a, first_stream in enumerate(query.streams):
        for b, second in enumerate(query.streams):
            if a != b and first_stream.node == second.node and query.neighbours[a] >> b & 1:
                assert any({1 << a, 1 << b} <= each for each in joined)


def renamed(tree: Input, names: dict[str, str]) -> Input:
    if isinstance(tree, int):
        return tree
    return Operator(names[tree.node], tuple(renamed(each, names) for each in tree.inputs), tree.streams)


@given(queries(), st.permutations(["z", "y", "a", "m"]), st.sampled_from(PLANNERS))
@examples(100)
def test_names_of_nodes_decide_nothing(query: Query, fresh: list[str], planner: type) -> None:
    names = {f"n{i}": name for i, name in enumerate(fresh)}
    other = replace(query, streams=tuple(replace(s, node=names[s.node]) for s in query.streams))
    plan = planner(query)
    assert planner(other).root == renamed(plan.root, names) and planner(other).cost == plan.cost


def test_what_is_shipped_row_by_row() -> None:
    """Equations 2 and 3 say what Poisson streams do: three plans, counted over rows and windows."""
    rates = np.array([[4.0, 1.0, 0.5], [0.5, 3.0, 2.0], [0.2, 1.0, 6.0]])
    seconds = [0.5, 1.0, 0.4]
    streams = [
        Stream(f"S{i}", f"n{i}", float(rate.sum()), 0).during(own)
        for i, (rate, own) in enumerate(zip(rates, seconds, strict=True))
    ]
    query = Query(tuple(streams), (attribute_of("key", rates),), widens=False)
    for planner in (greedy, simple):
        plan = planner(query)
        assert rows_shipped(rates, seconds, query, plan.root, 3_000) == pytest.approx(plan.cost, rel=0.03)
    through = Operator("n0", (Operator("n2", (1, 2), 0b110), 0), 0b111)
    assert rows_shipped(rates, seconds, query, through, 3_000) == pytest.approx(cost(query, through), rel=0.05)


def test_the_third_site_is_not_a_way_out_of_the_last_join() -> None:
    """With equation 4 as it is, an inflating last join would stay pending for ever."""
    streams = (Stream("S0", "n0", 10, 1000), Stream("S1", "n1", 20, 1000))
    plan = greedy(Query(streams, (Edge(0, 1, 1.0),), widens=False))
    assert plan.cost == 10 and plan.root == Operator("n1", (0, 1), 0b11)


def test_one_stream_needs_nothing() -> None:
    query = Query((Stream("S0", "n0", 10, 100),), ())
    for planner in PLANNERS:
        assert planner(query).root == 0 and planner(query).cost == 0


def test_what_is_refused() -> None:
    streams = tuple(Stream(f"S{i}", "n0", 1, 1) for i in range(MOST_STREAMS + 1))
    with pytest.raises(PlacementError, match="no predicates connect all of"):
        Query(streams, (Edge(0, 1, 0.1),))
    with pytest.raises(PlacementError, match="two or more of 15 streams"):
        Query(streams, (Edge(0, 99, 0.1),))
    chain = Query(streams, tuple(Edge(i, i + 1, 0.1) for i in range(MOST_STREAMS)))
    with pytest.raises(PlacementError, match="at most 14 streams, and there are 15"):
        optimal(chain)
    with pytest.raises(PlacementError, match="at least one stream"):
        Query((), ())
    assert greedy(chain).cost == 0
