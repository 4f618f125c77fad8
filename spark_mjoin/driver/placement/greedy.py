"""Where to join and what to ship: algorithm 1 of the PMJoin paper, and the two plans it is compared with.

`greedy` has two steps:

1. At each node, join two streams where the result is less than the slower of them. Such a join cannot cost anything,
   and less has to be shipped later.
2. Take the slowest stream, and the stream S that it can be joined with at the lowest cost by equation 4: the smaller of
   (1) sending everything that is pending to the node of S, and the result onwards, and
   (2) sending all of them, S too, to a third site.
   After (1) the join has a node, its result is a stream like others, and the next slowest begins. After (2) S is
   pending too, and the next stream is looked for that any pending one can be joined with.

Where the paper says nothing, this is what is done. Volumes are in bytes per second, so "slowest" is what costs least to
ship. The last stream has no third site to go to, and its result goes nowhere: case (1) without its second term, as in
the end of example 2. Ties go to case (1) and to the slower stream, then to the one named first; the names of nodes
decide nothing. After a local join the slower streams before it are not looked at again.

The cost of a set comes from outside (`volume`), so the same code plans streams and groups of substreams.

Of n streams at most n times n pairs are compared. The result is not the best in general; `exhaustive.optimal` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from spark_mjoin.driver.placement.costs import Query, Volume, col
from spark_mjoin.driver.placement.plans import Input, Kind, Plan, Step, cost, operator

Planner = Callable[[Query, Volume | None], Plan]


@dataclass(frozen=True, slots=True)
class _Part:
    """A stream or a result."""

    tree: Input
    streams: int
    node: str
    volume: float
    near: int  # streams that it can be joined with


@dataclass(frozen=True, slots=True)
class _Move:
    """Equation 4 for one stream."""

    to: _Part
    ship: float
    third: float

    @property
    def cost(self) -> float:
        return min(self.ship, self.third)


def greedy(query: Query, volume: Volume | None = None) -> Plan:
    """Algorithm 1."""
    planning = _Planning(query, volume or query.volume)
    return planning.plan(planning.lowering())


def local(query: Query, volume: Volume | None = None) -> Plan:
    """Algorithm 1, but for its first step: everything at one node is joined there, whatever comes of it."""
    planning = _Planning(query, volume or query.volume)
    return planning.plan(planning.whole())


def simple(query: Query, volume: Volume | None = None) -> Plan:
    """Everything is sent to the node of the fastest stream."""
    size = volume or query.volume
    count = len(query.streams)
    fastest = max(range(count), key=lambda i: size(1 << i))
    others = tuple(i for i in range(count) if i != fastest)
    node = query.streams[fastest].node
    if not others:
        return Plan(fastest, 0.0)
    root = operator(node, (*others, fastest))
    shipped = cost(query, root, size)
    step = Step("whole", tuple(1 << i for i in others), 1 << fastest, node, shipped, shipped)
    return Plan(root, shipped, (step,))


class _Planning:
    """One run of algorithm 1."""

    def __init__(self, query: Query, volume: Volume) -> None:
        self._query, self._volume = query, volume
        self._steps: list[Step] = []
        self._shipped = 0.0
        self._sources = [
            _Part(i, 1 << i, stream.node, volume(1 << i), query.neighbours[i]) for i, stream in enumerate(query.streams)
        ]

    def lowering(self) -> list[_Part]:
        """Lines 2 to 9: local joins whose result is less than the slower stream."""
        found = []
        for parts in self._by_node():
            at = 0
            while at < len(parts):
                other = at + 1
                while other < len(parts):
                    slower, faster = parts[at], parts[other]
                    if slower.near & faster.streams and (
                        (result := self._volume(slower.streams | faster.streams)) < slower.volume
                    ):
                        self._note("local", [slower], faster, slower.node, (result, slower.volume))
                        parts[at] = self._joined([slower], faster)
                        del parts[other]
                    else:
                        other += 1
                at += 1
            found += parts
        return found

    def whole(self) -> list[_Part]:
        """Everything at one node that predicates connect, as one MJoin."""
        found = []
        for parts in self._by_node():
            while parts:
                together = [parts.pop(0)]
                reached, near = together[0].streams, together[0].near
                while joinable := [each for each in parts if each.streams & near]:
                    together.append(joinable[0])
                    parts.remove(joinable[0])
                    reached, near = reached | joinable[0].streams, near | joinable[0].near
                *others, fastest = sorted(together, key=_slowest)
                if others:
                    result = self._volume(reached)
                    self._note("whole", others, fastest, fastest.node, (result, result))
                    fastest = self._joined(others, fastest)
                found.append(fastest)
        return found

    def plan(self, parts: list[_Part]) -> Plan:
        """Lines 10 to 28."""
        while len(parts) > 1:
            parts.sort(key=_slowest)
            parts = self._round([parts[0]], parts[1:])
        return Plan(parts[0].tree, self._shipped, tuple(self._steps))

    def _round(self, pending: list[_Part], others: list[_Part]) -> list[_Part]:
        """One turn of the outer loop: what is left when one join has its node."""
        near, streams = pending[0].near, pending[0].streams
        while True:
            best = self._best(pending, [each for each in others if each.streams & near], len(others) == 1, streams)
            others = [each for each in others if each is not best.to]
            if best.ship <= best.third:
                self._note("ship", pending, best.to, best.to.node, (best.ship, best.third))
                self._shipped += sum(each.volume * col(each.node, best.to.node) for each in pending)
                return [*others, self._joined(pending, best.to)]
            self._note("pending", pending, best.to, None, (best.third, best.ship))
            pending = [*pending, best.to]
            near, streams = near | best.to.near, streams | best.to.streams

    def _best(self, pending: list[_Part], joinable: list[_Part], is_last: bool, streams: int) -> _Move:
        waiting = sum(each.volume for each in pending)
        best: _Move | None = None
        for to in joinable:
            sent = sum(each.volume for each in pending if each.node != to.node)
            if is_last:
                move = _Move(to, sent, math.inf)
            else:
                move = _Move(to, sent + self._volume(streams | to.streams), waiting + to.volume)
            if best is None or move.cost < best.cost:
                best = move
        assert best is not None, "a connected query always has something to join"
        return best

    def _by_node(self) -> list[list[_Part]]:
        nodes: dict[str, list[_Part]] = {}
        for part in self._sources:
            nodes.setdefault(part.node, []).append(part)
        return [sorted(parts, key=_slowest) for parts in nodes.values()]

    def _joined(self, parts: list[_Part], at: _Part) -> _Part:
        streams, near = at.streams, at.near
        for each in parts:
            streams, near = streams | each.streams, near | each.near
        tree = operator(at.node, (*(each.tree for each in parts), at.tree))
        return _Part(tree, streams, at.node, self._volume(streams), near & ~streams)

    def _note(self, kind: Kind, moved: list[_Part], to: _Part, node: str | None, costs: tuple[float, float]) -> None:
        self._steps.append(Step(kind, tuple(each.streams for each in moved), to.streams, node, *costs))


def _slowest(part: _Part) -> tuple[float, int]:
    return part.volume, part.streams & -part.streams
