"""Queries on several attributes: which of their joins to partition (PMJoin, section 3.3, algorithm 2).

An operator of a plan can be partitioned if all its predicates are equalities on one attribute. `find` goes down a plan
from the root. It marks the operators that can be partitioned and are not the right child of their parent, and merges
into each its children that can be partitioned on the same attribute, and theirs. `select` keeps some of them, so that

1. no partitioned join has a partitioned join as a child, since its rows would have to be partitioned again, and
2. no right child is a partitioned join, since the other inputs would have to be sent to all its nodes.

It takes the one with the largest input first, and restores its parent to the MJoins that the plan had. The paper says
no more; then a child that comes later in the list would break rule 1, so children are restored too.

`cost` is what a plan ships when some of its operators are partitioned. Right children are those of the plan before
anything is merged: an operator that was the right child of a merged one may become so again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_mjoin.driver.placement.costs import Attribute, Query, col
from spark_mjoin.driver.placement.greedy import Planner, greedy
from spark_mjoin.driver.placement.partitioning import Partitioned, partition
from spark_mjoin.driver.placement.plans import Input, Operator, node_of, streams_of
from spark_mjoin.model import Array

Grouping = Callable[[Query], Array]  # slots of a query with one attribute to groups


@dataclass(frozen=True)
class Candidate:
    """An operator that can be partitioned, with the children that are merged into it."""

    streams: int  # of the operator, which is known by them
    attribute: int  # the number of the predicate
    inputs: tuple[Input, ...]  # after merging
    merged: frozenset[int]  # operators that are merged into it
    volume: float  # of all its inputs
    parent: int | None  # the candidate that has it as a child


def find(query: Query, root: Input) -> tuple[Candidate, ...]:
    """Algorithm 2: what can be partitioned, the root first."""
    found: list[Candidate] = []

    def walk(each: Input, is_right: bool, parent: int | None) -> None:
        if isinstance(each, int):
            return
        attribute = None if is_right else partitionable(query, each)
        if attribute is None:
            for child in each.inputs:
                walk(child, child is each.inputs[-1], None)
            return
        inputs, merged = _merge(query, each, attribute)
        volume = sum(query.volume(streams_of(child)) for child, _ in inputs)
        children = tuple(child for child, _ in inputs)
        found.append(Candidate(each.streams, attribute, children, frozenset(merged), volume, parent))
        for child, was_right in inputs:
            walk(child, was_right, each.streams)

    walk(root, False, None)
    return tuple(found)


def partitionable(query: Query, each: Operator) -> int | None:
    """The predicate by which an operator can be partitioned: the only one between its inputs, and an attribute."""
    inputs = [streams_of(child) for child in each.inputs]
    between = []
    for number, predicate in enumerate(query.predicates):
        own = sum(1 << i for i in predicate.members)
        if sum(bool(own & streams) for streams in inputs) > 1:
            between.append(number)
    if len(between) != 1:
        return None
    attribute = query.predicates[between[0]]
    return between[0] if isinstance(attribute, Attribute) else None


def _merge(query: Query, each: Operator, attribute: int) -> tuple[list[tuple[Input, bool]], list[int]]:
    """The inputs of an operator when children on the attribute are merged, whether each was a right child; and who."""
    inputs: list[tuple[Input, bool]] = []
    merged: list[int] = []
    for child in each.inputs:
        if isinstance(child, Operator) and partitionable(query, child) == attribute:
            more, deeper = _merge(query, child, attribute)
            inputs += more
            merged += [child.streams, *deeper]
        else:
            inputs.append((child, child is each.inputs[-1]))
    return inputs, merged


def select(candidates: Sequence[Candidate], order: Sequence[int] | None = None) -> tuple[Candidate, ...]:
    """Those that are kept: by the volume of their inputs, the largest first, or in a given order."""
    if order is None:
        order = sorted(range(len(candidates)), key=lambda i: (-candidates[i].volume, i))
    kept: list[Candidate] = []
    for i in order:
        each = candidates[i]
        if all(each.parent != other.streams and other.parent != each.streams for other in kept):
            kept.append(each)
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class General:
    """A plan some of whose operators are partitioned, and what it ships in bytes per second."""

    root: Input
    partitioned: tuple[tuple[Candidate, Partitioned], ...]
    cost: float


def plan(
    query: Query, grouping: Grouping, chosen: Sequence[Candidate] | None = None, planner: Planner = greedy
) -> General:
    """Algorithm 1 for the whole, then what is to be partitioned: the heuristic's choice, or another one."""
    root = planner(query, None).root
    kept = select(find(query, root)) if chosen is None else chosen
    return assemble(query, root, [(each, split(query, each, grouping, planner)) for each in kept])


def split(query: Query, each: Candidate, grouping: Grouping, planner: Planner = greedy) -> Partitioned:
    """A partitioned join of the inputs of a candidate."""
    inputs = inputs_of(query, each)
    return partition(inputs, grouping(inputs), planner)


def inputs_of(query: Query, each: Candidate) -> Query:
    """A candidate as a query of its own: its streams are the inputs, whatever they are joined of."""
    attribute = query.predicates[each.attribute]
    assert isinstance(attribute, Attribute)
    streams, shares = [], []
    for part in each.inputs:
        streams.append(replace(query.joined(streams_of(part)), node=node_of(query, part)))
        own = attribute.of(streams_of(part))
        shares.append(own / (own.sum() or 1.0))
    alone = Attribute(attribute.name, tuple(range(len(streams))), np.array(shares), attribute.within)
    return Query(tuple(streams), (alone,), query.widens)


def assemble(query: Query, root: Input, chosen: Sequence[tuple[Candidate, Partitioned]]) -> General:
    """What the plan ships when the chosen operators are partitioned."""
    parts = {each.streams: (each, split) for each, split in chosen}

    def below(each: Input) -> float:
        if isinstance(each, int):
            return 0.0
        if each.streams in parts:
            candidate, join = parts[each.streams]
            return join.cost + sum(below(child) for child in candidate.inputs)
        return sum(below(child) + shipped(child, each.node) for child in each.inputs)

    def shipped(child: Input, node: str) -> float:
        if isinstance(child, Operator) and child.streams in parts:
            _, join = parts[child.streams]
            return sum((volume * col(source, node) for source, volume in join.results), start=0.0)
        return query.volume(streams_of(child)) * col(node_of(query, child), node)

    return General(root, tuple(chosen), below(root))
