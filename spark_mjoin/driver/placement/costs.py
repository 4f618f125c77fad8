"""What a distributed join ships: the rate-based cost model of Zhou, Yan, Yu and Zhou (PMJoin, 2006), section 3.2.

A stream has a rate in rows per second, an expected number of rows in its window, a node where it comes in, and bytes
per row. Equations 2 and 3 give both figures for the result of a join:

    rate   = f (rate_a window_b + rate_b window_a)            window = f window_a window_b

Applied again and again they give the same for a set of streams, whatever the order: the equations are symmetric, and
the selectivity of a set is the product over its predicates. Hence a set of streams is all that a volume depends on. A
set is a bitmask, bit i for stream i, and the cost of a plan is the sum of the volumes that it ships (`plans.py`).

There are two kinds of predicates. An `Edge` is the paper's: two streams and a selectivity. An `Attribute` is equal in
all its members, and says how the rows of each are distributed over slots (values, ranges of values, hash slots). Of
this one the selectivity of a set follows without assuming that the pairs are independent: of rows drawn from each
member all are in slot v with the product of their shares of v. Different predicates are taken as independent.

`volumes` and `group_volumes` compute all sets at once. They are what `Query.volume` says one set at a time. Volumes are
rounded to BITS: sums over slots in another order, or on another processor, give the same figures, so ties stay ties and
plans the same.

Not covered: the cost of processors, of links that differ, or of delivering the final result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from spark_mjoin.errors import PlacementError
from spark_mjoin.model import Array

MOST_ENTRIES = 1 << 18  # of an intermediate table, so that it stays in a cache
BITS = 40  # of a volume

Volume = Callable[[int], float]  # of the result of a set of streams, in bytes per second


def col(node: str, other: str) -> int:
    """Equation 1: 0 where two streams are at the same node, otherwise 1."""
    return int(node != other)


@dataclass(frozen=True)
class Stream:
    """What comes in at a node, or the result of a join of such streams."""

    name: str
    node: str  # a host
    rate: float  # rows per second
    window: float  # rows in it, as expected
    row_bytes: float = 1.0

    @property
    def volume(self) -> float:
        """Bytes per second; rows per second where a row has one byte."""
        return self.rate * self.row_bytes

    def during(self, seconds: float) -> Stream:
        """The same stream with a window in time."""
        return replace(self, window=self.rate * seconds)


@dataclass(frozen=True)
class Edge:
    """A predicate between two streams."""

    a: int
    b: int
    selectivity: float

    @property
    def members(self) -> tuple[int, ...]:
        return (self.a, self.b)


@dataclass(frozen=True, eq=False)
class Attribute:
    """A value that is equal in all members: the predicates of an equi-join on one attribute."""

    name: str
    members: tuple[int, ...]
    shares: Array  # members x slots: the part of a member's rows that is in a slot
    within: float = 1.0  # of the pairs of rows in one slot, how many match: one over the values in it

    def of(self, streams: int) -> Array:
        """How the joined rows of some members are distributed over slots; not scaled."""
        found = np.ones(self.shares.shape[1])
        for member, share in zip(self.members, self.shares, strict=True):
            if streams >> member & 1:
                found = found * share
        return found


Predicate = Edge | Attribute


Flow = tuple[float, float]  # rate and window


def equations_2_and_3(a: Flow, b: Flow, selectivity: float) -> Flow:
    """Rate and window of the join of two streams."""
    (rate_a, window_a), (rate_b, window_b) = a, b
    return selectivity * (rate_a * window_b + rate_b * window_a), selectivity * window_a * window_b


@dataclass(frozen=True, eq=False)
class Query:
    """Streams and what joins them.

    A row of a result is as wide as all its rows together, as in example 1. With `widens` false it is as wide as the
    widest of them, as in the paper's experiments, where all rows have one size.
    """

    streams: tuple[Stream, ...]
    predicates: tuple[Predicate, ...]
    widens: bool = True
    _unmatched: dict[int, Flow] = field(default_factory=dict, init=False, repr=False)
    _volumes: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    _matching: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.streams:
            raise PlacementError("a placement needs at least one stream")
        for predicate in self.predicates:
            members = predicate.members
            if len(set(members)) < 2 or not all(0 <= i < len(self.streams) for i in members):
                raise PlacementError(f"a predicate joins two or more of {len(self.streams)} streams, not {members}")
            if isinstance(predicate, Attribute) and len(predicate.shares) != len(members):
                raise PlacementError(f"attribute {predicate.name}: {len(predicate.shares)} rows of shares, {members}")
        if not self.is_connected(self.everything):
            raise PlacementError(f"no predicates connect all of {self.named(self.everything)}: join them apart")

    @property
    def everything(self) -> int:
        return (1 << len(self.streams)) - 1

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """For each stream, those that it can be joined with."""
        near = [0] * len(self.streams)
        for predicate in self.predicates:
            together = sum(1 << i for i in predicate.members)
            for i in predicate.members:
                near[i] |= together & ~(1 << i)
        return tuple(near)

    def is_connected(self, streams: int) -> bool:
        reached, fresh = 0, streams & -streams
        while fresh:
            reached |= fresh
            fresh = self.joinable_with(fresh) & streams & ~reached
        return reached == streams

    def joinable_with(self, streams: int) -> int:
        """The streams that some stream of a set can be joined with."""
        near = 0
        for i in members(streams):
            near |= self.neighbours[i]
        return near

    def named(self, streams: int) -> str:
        names = [self.streams[i].name for i in members(streams)]
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def selectivity(self, streams: int) -> float:
        """The product over all predicates in a set."""
        found = 1.0
        for number, predicate in enumerate(self.predicates):
            if isinstance(predicate, Edge):
                found *= predicate.selectivity if streams >> predicate.a & streams >> predicate.b & 1 else 1.0
            else:
                found *= self._equal(number, predicate, streams)
        return found

    def _equal(self, number: int, attribute: Attribute, streams: int) -> float:
        own = streams & sum(1 << i for i in attribute.members)
        if own & (own - 1) == 0:
            return 1.0
        if (number, own) not in self._matching:
            together = float(attribute.of(own).sum())
            self._matching[number, own] = together * attribute.within ** (own.bit_count() - 1)
        return self._matching[number, own]

    def joined(self, streams: int) -> Stream:
        """The result of joining a set of streams, at no particular node."""
        rate, window = self._flow(streams)
        matching = self.selectivity(streams)
        return Stream(self.named(streams), "", rate * matching, window * matching, self._width(streams))

    def volume(self, streams: int) -> float:
        """Bytes per second of the result of a set."""
        if streams not in self._volumes:
            rate, _ = self._flow(streams)
            mantissa, exponent = math.frexp(rate * self.selectivity(streams) * self._width(streams))
            self._volumes[streams] = math.ldexp(round(math.ldexp(mantissa, BITS)), exponent - BITS)
        return self._volumes[streams]

    def _flow(self, streams: int) -> Flow:
        """Rate and window of a set if everything matched."""
        if streams not in self._unmatched:
            last = streams.bit_length() - 1
            own = self.streams[last].rate, self.streams[last].window
            others = streams ^ 1 << last
            self._unmatched[streams] = equations_2_and_3(self._flow(others), own, 1.0) if others else own
        return self._unmatched[streams]

    def _width(self, streams: int) -> float:
        each = (self.streams[i].row_bytes for i in members(streams))
        return sum(each) if self.widens else max(each)


def members(streams: int) -> Iterator[int]:
    """The numbers in a set, ascending."""
    while streams:
        yield (streams & -streams).bit_length() - 1
        streams &= streams - 1


# --- all sets at once ------------------------------------------------------------------------------------------------


def volumes(query: Query) -> Array:
    """`query.volume` of every set, by bitmask; 2^n figures."""
    found = _if_all_matched(query)
    sets = np.arange(found.size)
    for predicate in query.predicates:
        if isinstance(predicate, Edge):
            found[(sets >> predicate.a & sets >> predicate.b & 1).astype(bool)] *= predicate.selectivity
        else:
            own = sum((sets >> i & 1) << k for k, i in enumerate(predicate.members))
            found *= _together(predicate, np.zeros(predicate.shares.shape[1], np.int64), 1)[0][own]
    return _rounded(found)


def group_volumes(query: Query, groups: Array, count: int) -> Array:
    """The volumes of every set of substreams: groups x 2^n, where groups[v] is the group of slot v.

    The query has one attribute, and all streams have it. The result of some substreams of a group is what their
    streams would give if everything matched, times the part that does, over the slots of the group.
    """
    attribute = only_attribute(query)
    return _rounded(_if_all_matched(query)[None, :] * _together(attribute, groups, count))


def only_attribute(query: Query) -> Attribute:
    """The attribute of a query whose predicates are all on it."""
    found = query.predicates[0] if len(query.predicates) == 1 else None
    if not isinstance(found, Attribute) or found.members != tuple(range(len(query.streams))):
        raise PlacementError("streams can be partitioned only where one attribute is equal in all of them, in order")
    return found


def _rounded(figures: Array) -> Array:
    mantissa, exponent = np.frexp(figures)
    found: Array = np.ldexp(np.rint(np.ldexp(mantissa, BITS)), exponent - BITS)
    return found


def _if_all_matched(query: Query) -> Array:
    """Volumes if everything matched."""
    rate, window, width = np.zeros(1), np.ones(1), np.zeros(1)
    for stream in query.streams:
        wide = width + stream.row_bytes if query.widens else np.maximum(width, stream.row_bytes)
        joined = rate * stream.window + window * stream.rate
        rate = np.concatenate([rate, joined])
        window = np.concatenate([window, window * stream.window])
        width = np.concatenate([width, wide])
    found: Array = rate * width
    return found


def _together(attribute: Attribute, groups: Array, count: int) -> Array:
    """Groups x sets of members: the part of all combinations that is equal, and in the group."""
    size = 1 << len(attribute.members)
    by_group = np.argsort(groups, kind="stable")
    found = np.zeros((count, size))
    step = max(1, MOST_ENTRIES // size)
    for at in range(0, by_group.size, step):
        slots = by_group[at : at + step]
        products = np.ones((size, slots.size))
        for k, share in enumerate(attribute.shares[:, slots]):
            np.multiply(products[: 1 << k], share, out=products[1 << k : 2 << k])
        own = groups[slots]
        starts = np.flatnonzero(np.diff(own, prepend=-1))
        found[own[starts]] += np.add.reduceat(products, starts, axis=1).T
    sets = np.arange(size)
    bits = sum((sets >> k & 1 for k in range(len(attribute.members))), start=np.zeros(size, np.int64))
    found[:, 0] = 1.0
    result: Array = found * attribute.within ** np.maximum(bits - 1, 0)
    return result
