"""A plan: a tree of MJoins with a node for each, what it ships, and how it came about (PMJoin, section 3.2, figure 3).

A leaf is the number of a stream, an `Operator` an MJoin. The last input of an operator is at the operator's node
already, the others are shipped there unless they happen to be there too:

    Operator n0                 S0 goes to n1 and meets S2 and S3, which met there; the result and S4 go to n0
    ├── Operator n1
    │   ├── S0
    │   └── Operator n1
    │       ├── S2              Operators below one another at one node may run as one MJoin; they are kept apart here
    │       └── S3              because their predicates may be on different attributes (`general.py`).
    ├── S4
    └── S1

The final result stays where it is found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isinf
from typing import Literal

from spark_mjoin.driver.placement.costs import Query, Volume, col

Kind = Literal["local", "ship", "pending", "whole"]


@dataclass(frozen=True)
class Operator:
    """An MJoin."""

    node: str
    inputs: tuple[Input, ...]  # the last one is at `node`
    streams: int  # all below it, as a bitmask


Input = int | Operator


@dataclass(frozen=True)
class Step:
    """One decision: what was joined or shipped, and the two costs that were compared.

    kind     cost                                            against
    local    the result's volume                             that of the slower of the two
    ship     sending `moved` to the node of `to`, and the    sending all of them to a third site
             result onwards unless it is the last one
    pending  sending all of them to a third site             sending `moved` to the node of `to`, and the result onwards
    whole    everything is sent or joined, with no choice    the same
    """

    kind: Kind
    moved: tuple[int, ...]  # sets of streams
    to: int  # the set that they meet
    node: str | None  # where; None while pending
    cost: float
    against: float

    def text(self, query: Query) -> str:
        """The step in words."""
        moved, to = " and ".join(query.named(each) for each in self.moved), query.named(self.to)
        figures = f"{self.cost:.6g} a second"
        if self.kind == "local":
            return f"join {moved} with {to} at {self.node}, where both are: {figures}, less than {self.against:.6g}"
        if self.kind == "pending":
            return (
                f"keep {moved} and {to} for a third site: {figures}, less than {self.against:.6g} at the node of {to}"
            )
        if self.kind == "whole":
            return f"join {moved} with {to} at {self.node}: {figures}"
        third = "and nowhere else to go" if isinf(self.against) else f"against {self.against:.6g} at a third site"
        return f"send {moved} to {self.node} to join {to}: {figures}, {third}"


@dataclass(frozen=True)
class Plan:
    root: Input
    cost: float  # bytes per second shipped
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Shipment:
    """A stream or a result that goes from one node to another."""

    streams: int
    source: str
    target: str
    volume: float  # bytes per second


def streams_of(part: Input) -> int:
    return 1 << part if isinstance(part, int) else part.streams


def node_of(query: Query, part: Input) -> str:
    return query.streams[part].node if isinstance(part, int) else part.node


def operator(node: str, inputs: tuple[Input, ...]) -> Operator:
    return Operator(node, inputs, sum(streams_of(each) for each in inputs))


def operators(part: Input) -> Iterator[Operator]:
    """All of a tree, the root first."""
    if isinstance(part, Operator):
        yield part
        for each in part.inputs:
            yield from operators(each)


def shipments(query: Query, root: Input, volume: Volume | None = None) -> Iterator[Shipment]:
    """What a tree sends from node to node."""
    size = volume or query.volume
    for each in operators(root):
        for part in each.inputs:
            source = node_of(query, part)
            if col(source, each.node):
                yield Shipment(streams_of(part), source, each.node, size(streams_of(part)))


def cost(query: Query, root: Input, volume: Volume | None = None) -> float:
    return sum((each.volume for each in shipments(query, root, volume)), start=0.0)


def routes(query: Query, root: Input) -> dict[str, tuple[str, ...]]:
    """For each stream, the nodes that its rows come to, alone or as parts of results; the first is its own."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(part: Input, onwards: tuple[str, ...]) -> None:
        node = node_of(query, part)
        path = onwards if onwards[:1] == (node,) else (node, *onwards)
        if isinstance(part, int):
            found[query.streams[part].name] = path
        else:
            for each in part.inputs:
                walk(each, path)

    walk(root, ())
    return {stream.name: found[stream.name] for stream in query.streams}
