"""Answers to compare the planner with, found in other ways: by definition, by enumeration, and row by row."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
from hypothesis import strategies as st

from spark_mjoin.driver.placement.costs import Attribute, Edge, Predicate, Query, Stream
from spark_mjoin.driver.placement.partitioning import attribute_of
from spark_mjoin.driver.placement.plans import Input, Operator


def numbers(tree: Input) -> frozenset[int]:
    return frozenset((tree,)) if isinstance(tree, int) else frozenset().union(*map(numbers, tree.inputs))


def place(query: Query, tree: Input) -> str:
    return query.streams[tree].node if isinstance(tree, int) else tree.node


# --- by definition ---------------------------------------------------------------------------------------------------


def bytes_per_second(query: Query, streams: frozenset[int]) -> float:
    """Of the result of a set: each arrival meets one row of every other window, and so many of these combine."""
    matching = 1.0
    for predicate in query.predicates:
        if isinstance(predicate, Edge):
            matching *= predicate.selectivity if streams >= set(predicate.members) else 1
        else:
            own = [k for k, member in enumerate(predicate.members) if member in streams]
            slots = range(predicate.shares.shape[1])
            if own:
                pairs = len(own) - 1
                matching *= sum(prod(predicate.shares[k, v] for k in own) * predicate.within**pairs for v in slots)
    arriving = sum(query.streams[i].rate * prod(query.streams[j].window for j in streams if j != i) for i in streams)
    widths = [query.streams[i].row_bytes for i in streams]
    return matching * arriving * (sum(widths) if query.widens else max(widths))


def shipped(query: Query, tree: Input) -> float:
    """Bytes per second that a plan sends from node to node."""
    if isinstance(tree, int):
        return 0.0
    return sum(
        shipped(query, each) + (place(query, each) != tree.node) * bytes_per_second(query, numbers(each))
        for each in tree.inputs
    )


# --- by enumeration --------------------------------------------------------------------------------------------------


def divisions(streams: tuple[int, ...]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to divide a set into parts."""
    if not streams:
        yield []
        return
    first, *rest = streams
    for chosen in product((False, True), repeat=len(rest)):
        own = (first, *(each for each, is_in in zip(rest, chosen, strict=True) if is_in))
        for others in divisions(tuple(each for each in rest if each not in own)):
            yield [own, *others]


def every_plan(query: Query, streams: tuple[int, ...]) -> Iterator[Input]:
    """All trees with all choices of nodes; nothing is joined that no predicates connect."""
    if len(streams) == 1:
        yield streams[0]
        return
    if not query.is_connected(sum(1 << i for i in streams)):
        return
    nodes = {stream.node for stream in query.streams}
    for parts in divisions(streams):
        if len(parts) > 1:
            for inputs in product(*(list(every_plan(query, part)) for part in parts)):
                for node in nodes:
                    yield Operator(node, inputs, sum(1 << i for i in streams))


# --- row by row ------------------------------------------------------------------------------------------------------


def rows_shipped(rates: np.ndarray, seconds: list[float], query: Query, tree: Input, until: float) -> float:
    """Rows per second that are sent, when Poisson streams arrive and are joined one row after the other.

    rates: streams x values; seconds: the window of each stream. Counts begin when all windows are full.
    """
    chance = np.random.default_rng(7)
    arrivals = []
    for (stream, value), rate in np.ndenumerate(rates):
        count = chance.poisson(rate * until)
        arrivals += [(at, stream, value) for at in chance.uniform(0, until, count).tolist()]
    inside = [[deque[float]() for _ in range(rates.shape[1])] for _ in rates]
    sent = [numbers(each) for op in operators_of(tree) for each in op.inputs if place(query, each) != op.node]
    total = 0
    for at, stream, value in sorted(arrivals):
        for other, window in enumerate(inside):
            while window[value] and window[value][0] <= at - seconds[other]:
                window[value].popleft()
        if at > max(seconds):
            total += sum(
                prod(len(inside[other][value]) for other in streams if other != stream)
                for streams in sent
                if stream in streams
            )
        inside[stream][value].append(at)
    return total / (until - max(seconds))


def operators_of(tree: Input) -> list[Operator]:
    return [] if isinstance(tree, int) else [tree, *(op for each in tree.inputs for op in operators_of(each))]


# --- generated queries -----------------------------------------------------------------------------------------------

RATES = st.sampled_from([0.5, 1.0, 3.0, 10.0, 40.0, 100.0])
SELECTIVITIES = st.sampled_from([1e-4, 1e-3, 0.01, 0.05, 1.0])


@st.composite
def queries(draw: st.DrawFn, most: int = 6, nodes: int = 4, attributes: bool = True) -> Query:
    """A connected query: a tree of edges and attributes, and sometimes an edge that closes a cycle."""
    count = draw(st.integers(2, most))
    streams = tuple(
        Stream(f"S{i}", f"n{draw(st.integers(0, nodes - 1))}", draw(RATES), draw(RATES), draw(st.sampled_from([1, 8])))
        for i in range(count)
    )
    predicates: list[Predicate] = []
    joined = 1
    while joined < count:
        more = draw(st.integers(1, count - joined))
        other = draw(st.integers(0, joined - 1))
        fresh = range(joined, joined + more)
        if attributes and draw(st.booleans()):
            predicates.append(
                replace(
                    draw(attribute(more + 1)), name=f"a{joined}", members=(other, *fresh), within=draw(SELECTIVITIES)
                )
            )
        else:
            predicates += [Edge(other, i, draw(SELECTIVITIES)) for i in fresh]
        joined += more
    if count > 2 and draw(st.booleans()):
        predicates.append(Edge(0, count - 1, draw(SELECTIVITIES)))
    return Query(streams, tuple(predicates), draw(st.booleans()))


@st.composite
def attribute(draw: st.DrawFn, count: int) -> Attribute:
    slots = draw(st.integers(1, 5))
    each = st.lists(st.sampled_from([0.0, 0.1, 1.0, 5.0]), min_size=slots, max_size=slots).filter(any)
    return attribute_of("a", np.array([draw(each) for _ in range(count)]))


@st.composite
def on_one_attribute(draw: st.DrawFn, most: int = 5) -> Query:
    """Streams that are all equal in one attribute."""
    count = draw(st.integers(2, most))
    streams = tuple(
        Stream(f"S{i}", f"n{draw(st.integers(0, 3))}", draw(RATES), draw(RATES), draw(st.sampled_from([1, 8])))
        for i in range(count)
    )
    return Query(streams, (draw(attribute(count)),), draw(st.booleans()))
