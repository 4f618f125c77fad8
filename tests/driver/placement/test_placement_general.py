"""Joins on several attributes: what algorithm 2 marks, what is kept, and what that ships."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.placement import Attribute, Edge, Query, Stream, find, greedy, optimal, plan, select
from spark_mjoin.driver.placement.general import Candidate, assemble, partitionable, split
from spark_mjoin.driver.placement.partitioning import Partitioned
from spark_mjoin.driver.placement.plans import Input, operator, operators, streams_of
from tests.driver.placement.simulated import numbers, on_one_attribute, queries, shipped
from tests.examples import examples


def each_slot(query: Query) -> np.ndarray:
    return np.arange(query.predicates[0].shares.shape[1])


def one_group(query: Query) -> np.ndarray:
    return np.zeros(query.predicates[0].shares.shape[1], np.int64)


def spread(*members: int) -> Attribute:
    return Attribute("-".join(map(str, members)), members, np.full((len(members), 2), 0.5))


def six(*attributes: Attribute | Edge) -> Query:
    streams = tuple(Stream(f"S{i}", f"n{i}", 10.0 * (i + 1), 1.0) for i in range(6))
    return Query(streams, attributes, widens=False)


def test_children_on_the_same_attribute_are_merged() -> None:
    query = six(spread(0, 1, 2, 3, 4, 5))
    lower = operator("n1", (0, 1))
    root = operator("n5", (operator("n3", (2, 3)), operator("n5", (lower, 4, 5))))
    (all_in_one,) = find(query, root)
    assert all_in_one.inputs == (2, 3, 0, 1, 4, 5) and all_in_one.parent is None
    assert all_in_one.merged == {0b001100, 0b110011, 0b000011}
    assert all_in_one.volume == pytest.approx(210)


def test_a_right_child_is_not_partitioned_unless_it_is_merged() -> None:
    query = six(spread(0, 1, 2), spread(2, 3), spread(3, 4, 5))
    root = operator("n2", (operator("n5", (3, 4, 5)), operator("n2", (0, 1, 2))))
    assert [each.streams for each in find(query, root)] == [0b111111, 0b111000]
    below = operator("n5", (operator("n1", (0, 1, 2)), operator("n5", (4, 3, 5))))
    assert [each.streams for each in find(query, below)] == [0b111111, 0b000111]


def test_only_one_attribute_can_be_partitioned() -> None:
    query = six(spread(0, 1), spread(1, 2, 3), Edge(3, 4, 0.1), Edge(4, 5, 0.1))
    assert partitionable(query, operator("n2", (0, 1, 2))) is None
    assert partitionable(query, operator("n5", (3, 4, 5))) is None
    assert partitionable(query, operator("n4", (3, 4))) is None
    assert partitionable(query, operator("n3", (1, 2, 3))) == 1
    assert partitionable(query, operator("n3", (operator("n1", (0, 1)), 2, 3))) == 1


def candidate(streams: int, volume: float, parent: int | None = None) -> Candidate:
    return Candidate(streams, 0, (), frozenset(), volume, parent)


def test_the_largest_inputs_are_kept_and_their_parents_and_children_restored() -> None:
    root, middle, low = candidate(0b111, 5, None), candidate(0b011, 9, 0b111), candidate(0b001, 7, 0b011)
    alone = candidate(0b1000, 1)
    assert select((root, middle, low, alone)) == (middle, alone)
    assert select((root, middle, low, alone), order=[2, 0, 1, 3]) == (low, root, alone)
    assert select((root, candidate(0b011, 5, 0b111))) == (root,)
    assert select(()) == ()


def leaves_of(each: Input, parent: int | None, kept: dict[int, Candidate], right: set[int]) -> Iterator[int]:
    """The streams of a plan whose merged operators are dissolved; fails where a rule is broken."""
    if isinstance(each, int):
        yield each
        return
    is_partitioned = each.streams in kept
    assert not (is_partitioned and parent in kept), "under another"
    assert not (is_partitioned and each.streams in right), "a right child"
    for child in kept[each.streams].inputs if is_partitioned else each.inputs:
        yield from leaves_of(child, each.streams, kept, right)


@given(queries(most=7, nodes=5), st.randoms(use_true_random=False))
@examples(200)
def test_what_is_kept_joins_every_stream_once_and_keeps_to_the_rules(query: Query, chance: Random) -> None:
    root = greedy(query).root
    found = find(query, root)
    order = list(range(len(found)))
    chance.shuffle(order)
    at = {op.streams: op for op in operators(root)}
    right = {streams_of(op.inputs[-1]) for op in operators(root)}
    for kept in (select(found), select(found, order)):
        absorbed = [streams for each in kept for streams in each.merged]
        assert len(set(absorbed)) == len(absorbed) and not {each.streams for each in kept} & set(absorbed)
        leaves = leaves_of(root, None, {each.streams: each for each in kept}, right)
        assert sorted(leaves) == list(range(len(query.streams)))
        for each in kept:
            own = set(query.predicates[each.attribute].members)
            assert all(own & numbers(part) for part in each.inputs)
            assert numbers(at[each.streams]) == frozenset[int]().union(*map(numbers, each.inputs))
        for each in found:  # kept, or next to one that is
            assert each in kept or any(each.parent == k.streams or k.parent == each.streams for k in kept)


@given(queries(most=6, nodes=4))
@examples(100)
def test_nothing_partitioned_costs_what_the_plan_costs(query: Query) -> None:
    whole = greedy(query)
    assert assemble(query, whole.root, ()).cost == pytest.approx(whole.cost, rel=1e-9, abs=1e-12)
    assert plan(query, each_slot, ()).cost == pytest.approx(whole.cost, rel=1e-9, abs=1e-12)
    found = find(query, whole.root)
    for each in found:  # an input is what it is for the whole; the attribute's selectivity is that of the whole
        join = split(query, each, one_group)
        assert sum(volume for _, volume in join.results) == pytest.approx(query.volume(each.streams), abs=1e-12)


@given(on_one_attribute(most=5))
@examples(60)
def test_a_query_on_one_attribute_is_one_partitioned_join(query: Query) -> None:
    (only,) = find(query, greedy(query).root)
    assert sorted(only.inputs) == list(range(len(query.streams)))  # local joins are merged too
    assert set(only.merged) == {op.streams for op in operators(greedy(query).root)} - {query.everything}
    assert split(query, only, each_slot).groups.tolist() == each_slot(query).tolist()


def composed(each: Input, joins: dict[int, tuple[Candidate, Partitioned]]) -> Input:
    """A plan in which partitioned joins of one group are replaced by the plan of that group."""
    if isinstance(each, int):
        return each
    if each.streams not in joins:
        return operator(each.node, tuple(composed(child, joins) for child in each.inputs))
    kept, join = joins[each.streams]
    (alone,) = join.plans

    def filled(part: Input) -> Input:
        if isinstance(part, int):
            return composed(kept.inputs[part], joins)
        return operator(part.node, tuple(filled(child) for child in part.inputs))

    return filled(alone.root)


@given(queries(most=7, nodes=5))
@examples(150)
def oracle_partitioned_joins_of_one_group_are_parts_of_a_plan(query: Query) -> None:
    root = greedy(query).root
    joins = [(each, split(query, each, one_group)) for each in select(find(query, root))]
    whole = composed(root, {each.streams: (each, join) for each, join in joins})
    assert assemble(query, root, joins).cost == pytest.approx(shipped(query, whole), rel=1e-9, abs=1e-12)


@given(on_one_attribute())
@examples(60)
def test_partitioning_costs_no_more_with_the_best_plans(query: Query) -> None:
    general = plan(query, each_slot, planner=optimal)
    ((kept, join),) = general.partitioned
    assert kept.streams == query.everything and len(join.plans) == len(each_slot(query))
    assert general.cost <= optimal(query).cost * (1 + 1e-9)


def test_results_of_a_partitioned_child_are_sent_from_where_they_are() -> None:
    """S0 and S1 exchange places in fast and slow keys; S2 is where half of the results are then."""
    streams = (Stream("S0", "n0", 11, 11), Stream("S1", "n1", 11, 11), Stream("S2", "n1", 1e6, 1))
    opposite = Attribute("k", (0, 1), np.array([[10 / 11, 1 / 11], [1 / 11, 10 / 11]]))
    query = Query(streams, (opposite, Edge(1, 2, 0.01)), widens=False)
    child = operator("n0", (1, 0))
    root = operator("n1", (child, 2))
    (kept,) = select(find(query, root))
    assert kept.streams == 0b011
    general = assemble(query, root, [(kept, split(query, kept, each_slot))])
    half = query.volume(0b011) / 2  # of the first key, found at n0
    assert general.cost == pytest.approx(1 + 1 + half)
    assert assemble(query, root, ()).cost == pytest.approx(11 + 2 * half)
