"""Partitioned joins: groupings, plans per group, and what all of it costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.placement import (
    Edge,
    Query,
    Stream,
    attribute_of,
    by_hash,
    by_range,
    by_rates,
    greedy,
    optimal,
    partition,
    routing,
)
from spark_mjoin.driver.placement import partitioning as module
from spark_mjoin.driver.placement.costs import group_volumes
from spark_mjoin.driver.placement.partitioning import Routing, ranks, substreams
from spark_mjoin.errors import PlacementError
from tests.driver.placement.simulated import on_one_attribute, rows_shipped, shipped
from tests.examples import examples


@st.composite
def histograms(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    drawn = np.random.default_rng(draw(st.integers(0, 1_000)))
    return drawn.choice([0.0, 1.0, 2.0, 5.0, 9.0], shape)


@given(histograms(), st.data())
@examples(150)
def test_every_slot_is_in_one_of_so_many_groups(histogram: np.ndarray, data: st.DataObject) -> None:
    slots = histogram.shape[1]
    count = data.draw(st.integers(1, slots))
    for groups in (by_hash(slots, count), by_range(slots, count), by_rates(histogram, count)):
        assert groups.shape == (slots,) and set(groups.tolist()) == set(range(count))
    for groups in (by_hash(slots, count), by_range(slots, count)):
        sizes = np.bincount(groups)
        assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(by_range(slots, count), np.sort(by_range(slots, count)))
    assert np.array_equal(by_rates(histogram, count), by_rates(3 * histogram, count))


def test_rank_vectors_are_the_papers() -> None:
    """The sorted list <FS3, FS1, FS2> has the vector <2, 3, 1>."""
    assert ranks(np.array([[5.0], [9.0], [1.0]])).tolist() == [[2, 3, 1]]
    assert ranks(np.array([[5.0], [5.0], [1.0]])).tolist() == [[2, 3, 1]]  # ties by number


def test_rates_find_what_range_and_hash_do_not() -> None:
    """Slots that rank alike are together wherever they are, and have no other ones among them."""
    high, low = [9.0, 5.0, 1.0], [1.0, 5.0, 9.0]
    kind = np.array([0, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1, 1])
    histogram = np.array([high if each else low for each in kind]).T
    for count in (2, 5):
        groups = by_rates(histogram, count)
        assert all(len(set(kind[groups == group])) == 1 for group in range(count))
        assert sum(kind[groups == group][0] for group in range(count)) == count // 2  # in proportion
    assert any(len(set(kind[by_range(12, 2) == group])) == 2 for group in range(2))


def test_k_means_joins_vectors_that_are_near() -> None:
    """Four orders of five streams, two and two alike: two groups have those together."""
    orders = np.array([[1, 2, 3, 4, 5], [1, 2, 3, 5, 4], [5, 4, 3, 2, 1], [5, 4, 3, 1, 2]])
    groups = by_rates(orders[[0, 2, 1, 3, 0, 2]].T.astype(float), 2)
    assert groups[0] == groups[2] == groups[4] != groups[1] == groups[3] == groups[5]


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_k_means_ends_where_every_vector_is_in_the_nearest_cluster(count: int) -> None:
    histogram = np.random.default_rng(count).uniform(size=(6, 120))
    points, groups = ranks(histogram).astype(float), by_rates(histogram, count)
    centres = np.stack([points[groups == group].mean(axis=0) for group in range(count)])
    distances = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)
    own = distances[np.arange(120), groups]
    assert own == pytest.approx(distances.min(axis=1))
    by_chance = by_hash(120, count)
    scattered = sum(((points[by_chance == g] - points[by_chance == g].mean(axis=0)) ** 2).sum() for g in range(count))
    assert own.sum() < 0.85 * scattered


@given(on_one_attribute(), st.data())
@examples(100)
def differential_volumes_of_groups(query: Query, data: st.DataObject) -> None:
    """All sets of all groups at once, and each group as a query of its own."""
    slots = query.predicates[0].shares.shape[1]
    groups = by_hash(slots, data.draw(st.integers(1, slots)))
    table = group_volumes(query, groups, groups.max() + 1)
    for group, sizes in enumerate(table):
        alone = substreams(query, groups == group)
        expected = [alone.volume(streams) for streams in range(1, query.everything + 1)]
        assert sizes[1:] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert table[:, [1 << i for i in range(len(query.streams))]].sum(axis=0) == pytest.approx(
        [stream.volume for stream in query.streams]
    )
    assert table[:, -1].sum() == pytest.approx(query.volume(query.everything))


@given(on_one_attribute(), st.data())
@examples(100)
def oracle_costs_of_groups_add_up(query: Query, data: st.DataObject) -> None:
    slots = query.predicates[0].shares.shape[1]
    groups = by_hash(slots, data.draw(st.integers(1, slots)))
    join = partition(query, groups)
    alone = [substreams(query, groups == group) for group in range(len(join.plans))]
    expected = sum(shipped(each, plan.root) for each, plan in zip(alone, join.plans, strict=True))
    assert join.cost == pytest.approx(expected, rel=1e-9, abs=1e-12)
    results = sum(volume for _, volume in join.results)
    assert results == pytest.approx(query.volume(query.everything))


@given(on_one_attribute())
@examples(60)
def test_finer_groups_with_the_best_plans_cost_no_more(query: Query) -> None:
    """A plan of a group is a plan of its parts. Of `greedy` this is not true: it may be wrong about the parts."""
    slots = query.predicates[0].shares.shape[1]
    one, each = np.zeros(slots, np.int64), np.arange(slots)
    halves = by_range(slots, min(2, slots))
    costs = [partition(query, groups, optimal).cost for groups in (each, halves, one)]
    assert costs[0] <= costs[1] * (1 + 1e-9) and costs[1] <= costs[2] * (1 + 1e-9)
    assert partition(query, each).cost >= costs[0] * (1 - 1e-9)
    assert costs[2] == pytest.approx(optimal(query).cost, rel=1e-9, abs=1e-12)


@given(on_one_attribute())
@examples(60)
def test_one_group_is_the_whole(query: Query) -> None:
    """And ties are ties, though the sums are taken in another way."""
    one = np.zeros(query.predicates[0].shares.shape[1], np.int64)
    assert partition(query, one).plans[0].root == greedy(query).root
    assert partition(query, one).cost == pytest.approx(greedy(query).cost, rel=1e-9, abs=1e-12)


def test_groups_are_shipped_as_rows_are() -> None:
    histogram = np.array([[4.0, 1.0, 0.1], [0.5, 3.0, 2.0], [0.2, 0.1, 6.0]])
    seconds = [0.5, 1.0, 0.4]
    query = _query(histogram, seconds)
    join = partition(query, np.arange(3))
    counted = sum(
        rows_shipped(histogram[:, [value]], seconds, query, plan.root, 3_000) for value, plan in enumerate(join.plans)
    )
    assert len({plan.root for plan in join.plans}) > 1
    assert counted == pytest.approx(join.cost, rel=0.05) and join.cost < greedy(query).cost


def test_what_routing_costs() -> None:
    """Two streams: all rows are looked up and handed on, those of the slower one are sent and received."""
    query = _query(np.array([[1.0, 1.0], [3.0, 2.0]]), [1.0, 1.0])
    one, two = (partition(query, groups) for groups in (np.zeros(2, np.int64), np.arange(2)))
    assert routing(one) == 7 + 2 * 2
    assert routing(two) == 7 + 7 + 2 * 2
    assert routing(two, Routing(lookup=0.5, hand=2, ship=0)) == 3.5 + 14


@given(on_one_attribute())
@examples(40)
def differential_many_streams_are_planned_one_group_at_a_time(query: Query) -> None:
    groups = np.arange(query.predicates[0].shares.shape[1])
    at_once = partition(query, groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_TOGETHER", 1)
        apart = partition(query, groups)
        assert routing(apart) == pytest.approx(routing(at_once), rel=1e-9)
    assert apart.cost == pytest.approx(at_once.cost, rel=1e-9, abs=1e-12)


def test_what_cannot_be_partitioned() -> None:
    streams = (Stream("A", "n0", 1, 1), Stream("B", "n1", 1, 1))
    with pytest.raises(PlacementError, match="one attribute is equal in all"):
        partition(Query(streams, (Edge(0, 1, 0.1),)), np.zeros(3, np.int64))
    with pytest.raises(PlacementError, match="3 slots can be in 1 to 3 groups, not in 4"):
        by_range(3, 4)
    with pytest.raises(PlacementError, match="a group for each of 2 slots"):
        partition(_query(np.ones((2, 2)), [1.0, 1.0]), np.zeros(3, np.int64))


def _query(histogram: np.ndarray, seconds: list[float]) -> Query:
    streams = [
        Stream(f"S{i}", f"n{i}", float(rate.sum()), 0).during(own)
        for i, (rate, own) in enumerate(zip(histogram, seconds, strict=True))
    ]
    return Query(tuple(streams), (attribute_of("key", histogram),), widens=False)
