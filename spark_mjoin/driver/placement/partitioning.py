"""Partitioned MJoins: streams in substreams, and a plan for each group of them (PMJoin, section 3.3).

All inputs of such a join are equal in one attribute, whose values are in slots. A grouping is an array that has the
number of its group for each slot, so every slot is in exactly one group. Rows of different groups never meet; a planner
(`greedy`, `optimal`) plans each group as if it were a query of its own, and costs add up:

    slots      0 1 2 3 4 5 6 7 …                    three ways to make D groups of them
    by_hash    1 0 2 1 0 2 2 0 …    at random, in groups of equal size
    by_range   0 0 0 0 1 1 1 1 …    neighbours, in groups of equal size
    by_rates   0 0 2 2 2 1 0 1 …    slots in which the streams have the same order by their rates

`by_rates` is for slots whose best plans are alike. Its vectors are ranks: element i is the position of stream i when
the streams are sorted by their rates in the slot. The distance of two slots is that of their vectors, and k-means makes
the groups. Where there are fewer different vectors than groups, each vector has several groups, in proportion to its
slots, and its slots are dealt to them by chance. Nothing here is random: chance is a hash of the number of the slot,
and k-means begins with vectors that are far from each other.

The result of a partitioned join is at several nodes, one for each group (`general.py` says where that is allowed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from spark_mjoin.driver.placement.costs import Attribute, Query, group_volumes, only_attribute
from spark_mjoin.driver.placement.greedy import Planner, greedy
from spark_mjoin.driver.placement.plans import Plan, node_of, operators, shipments
from spark_mjoin.errors import PlacementError
from spark_mjoin.model import Array

MOST_TOGETHER = 12  # streams up to which the volumes of all sets and groups are computed at once
ROUNDS = 30  # of k-means, at most


@dataclass(frozen=True, eq=False)
class Partitioned:
    """A partitioned join: which group a slot is in, and the plan of each group."""

    query: Query
    groups: Array  # by slot
    plans: tuple[Plan, ...]  # by group
    results: tuple[tuple[str, float], ...]  # by group: where its results are, and their volume

    @property
    def cost(self) -> float:
        """Bytes per second shipped."""
        return sum((plan.cost for plan in self.plans), start=0.0)


@dataclass(frozen=True)
class Routing:
    """What routing costs, in operations for each row; by default all are alike."""

    lookup: float = 1.0  # to find the substream of a row, where there is more than one
    hand: float = 1.0  # to find where a row of a stream or of an intermediate result goes next
    ship: float = 2.0  # to send it to another node, and to receive it there


def partition(query: Query, groups: Array, planner: Planner = greedy) -> Partitioned:
    """Plan every group of a query whose streams have one attribute in common."""
    attribute = only_attribute(query)
    if groups.shape != attribute.shares.shape[1:] or groups.min() < 0:
        raise PlacementError(f"a grouping has a group for each of {attribute.shares.shape[1]} slots")
    count = int(groups.max()) + 1
    if len(query.streams) <= MOST_TOGETHER:
        volumes = [sizes.__getitem__ for sizes in group_volumes(query, groups, count).tolist()]
    else:
        volumes = [substreams(query, groups == group).volume for group in range(count)]
    plans = tuple(planner(query, volume) for volume in volumes)
    everything = query.everything
    results = ((node_of(query, plan.root), volume(everything)) for plan, volume in zip(plans, volumes, strict=True))
    return Partitioned(query, groups, plans, tuple(results))


def substreams(query: Query, chosen: Array) -> Query:
    """The query of the rows in some slots, by a mask."""
    attribute = only_attribute(query)
    shares = attribute.shares[:, chosen]
    parts = shares.sum(axis=1)
    streams = tuple(
        replace(stream, rate=stream.rate * part, window=stream.window * part)
        for stream, part in zip(query.streams, parts.tolist(), strict=True)
    )
    within = shares / np.where(parts > 0, parts, 1.0)[:, None]
    return replace(query, streams=streams, predicates=(replace(attribute, shares=within),))


def rates(query: Query) -> Array:
    """Rows per second of each stream in each slot."""
    each = np.array([stream.rate for stream in query.streams])
    found: Array = only_attribute(query).shares * each[:, None]
    return found


def attribute_of(name: str, histogram: Array, within: float = 1.0) -> Attribute:
    """An attribute of streams whose rates in each slot are known: streams x slots."""
    totals = histogram.sum(axis=1, keepdims=True)
    shares = histogram / np.where(totals > 0, totals, 1.0)
    return Attribute(name, tuple(range(len(histogram))), shares, within)


def routing(join: Partitioned, price: Routing = Routing()) -> float:
    """Operations per second that routing takes: for rows of streams, of intermediate results, and of shipments.

    A final result is not routed. Rows that are not shipped are: somebody has to see that they stay.
    """
    query, everything = join.query, join.query.everything
    looked_up = sum(stream.rate for stream in query.streams) * price.lookup if len(join.plans) > 1 else 0.0
    total = looked_up
    sizes = _rows(join)
    for plan, volume in zip(join.plans, sizes, strict=True):
        handed = [1 << i for i in range(len(query.streams))]
        handed += [each.streams for each in operators(plan.root) if each.streams != everything]
        total += price.hand * sum(volume[streams] for streams in handed)
        total += price.ship * sum(each.volume for each in shipments(query, plan.root, volume.__getitem__))
    return total


def _rows(join: Partitioned) -> list[Mapping[int, float]]:
    """For each group, the rows per second of all sets that its plan makes."""
    query = replace(join.query, streams=tuple(replace(s, row_bytes=1.0) for s in join.query.streams), widens=False)
    made = [
        {*(1 << i for i in range(len(query.streams))), *(each.streams for each in operators(plan.root))}
        for plan in join.plans
    ]
    if len(query.streams) <= MOST_TOGETHER:
        table = group_volumes(query, join.groups, len(join.plans))
        return [{s: float(sizes[s]) for s in sets} for sizes, sets in zip(table, made, strict=True)]
    parts = [substreams(query, join.groups == group) for group in range(len(join.plans))]
    return [MappingProxyType({s: part.volume(s) for s in sets}) for part, sets in zip(parts, made, strict=True)]


# --- groupings -------------------------------------------------------------------------------------------------------


def by_hash(slots: int, count: int) -> Array:
    """Groups of equal size, at random."""
    found = np.empty(slots, np.int64)
    found[_shuffled(slots)] = np.arange(slots) % _feasible(slots, count)
    return found


def by_range(slots: int, count: int) -> Array:
    """Groups of neighbouring slots, of equal size."""
    found: Array = np.arange(slots, dtype=np.int64) * _feasible(slots, count) // slots
    return found


def by_rates(histogram: Array, count: int) -> Array:
    """Groups of slots in which the streams rank alike; histogram: streams x slots, rows per second."""
    slots = histogram.shape[1]
    vectors, kind, sizes = np.unique(ranks(histogram), axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    if _feasible(slots, count) >= len(vectors):
        return _dealt(kind, _proportional(sizes, count))
    return _dense(_k_means(vectors.astype(np.float64), sizes, count)[kind])


def ranks(histogram: Array) -> Array:
    """For each slot, the position of every stream by its rate there, from 1; slots x streams."""
    order = np.argsort(histogram, axis=0, kind="stable")
    found = np.empty_like(order)
    np.put_along_axis(found, order, np.arange(1, len(histogram) + 1)[:, None], axis=0)
    return np.ascontiguousarray(found.T)


def _feasible(slots: int, count: int) -> int:
    if not 1 <= count <= slots:
        raise PlacementError(f"{slots} slots can be in 1 to {slots} groups, not in {count}")
    return count


def _shuffled(slots: int) -> Array:
    """The numbers of slots in an order that has nothing to do with them (the finaliser of a 64-bit hash)."""
    x = np.arange(1, slots + 1, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    found: Array = np.argsort(x ^ (x >> np.uint64(31)), kind="stable")
    return found


def _proportional(sizes: Array, count: int) -> Array:
    """How many of the groups each kind of slots gets: one at least, one per slot at most, else by their number."""
    given = np.ones_like(sizes)
    for _ in range(count - len(sizes)):
        wanting = np.where(given < sizes, sizes / given, -1.0)
        given[np.argmax(wanting)] += 1
    return given


def _dealt(kind: Array, given: Array) -> Array:
    """Slots of a kind to the groups of that kind, by chance and evenly."""
    first = np.cumsum(given) - given
    found = np.empty(kind.size, np.int64)
    shuffled = _shuffled(kind.size)
    for each in range(given.size):
        own = shuffled[kind[shuffled] == each]
        found[own] = first[each] + np.arange(own.size) % given[each]
    return found


def _k_means(points: Array, weights: Array, count: int) -> Array:
    """The cluster of each point; a cluster that runs empty gets the point that is furthest from its own."""
    centres = points[_far_apart(points, weights, count)]
    cluster = np.full(len(points), -1)
    for _ in range(ROUNDS):
        distances = (points**2).sum(1)[:, None] - 2 * points @ centres.T + (centres**2).sum(1)[None, :]
        nearest = np.argmin(distances, axis=1)
        own = distances[np.arange(len(points)), nearest]
        for empty in np.flatnonzero(np.bincount(nearest, minlength=count) == 0):
            crowded = np.bincount(nearest, minlength=count)[nearest] > 1
            furthest = int(np.argmax(np.where(crowded, own, -np.inf)))
            nearest[furthest], own[furthest] = empty, 0.0
        if np.array_equal(nearest, cluster):
            break
        cluster = nearest
        total = np.bincount(cluster, weights, count)
        centres = np.stack([np.bincount(cluster, weights * axis, count) / total for axis in points.T], axis=1)
    return cluster


def _far_apart(points: Array, weights: Array, count: int) -> list[int]:
    """Points to begin with: the heaviest, and then each time the one furthest from those that there are."""
    chosen = [int(np.argmax(weights))]
    distance = ((points - points[chosen[0]]) ** 2).sum(1)
    while len(chosen) < count:
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(1))
    return chosen


def _dense(groups: Array) -> Array:
    """The same groups, numbered without gaps."""
    found: Array = np.unique(groups, return_inverse=True)[1].reshape(-1)
    return found
