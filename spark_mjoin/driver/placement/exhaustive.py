"""The cheapest plan of all: every tree of MJoins with every choice of nodes. What `greedy` is measured against.

The best ways to have the result of a set of streams, one for each node, follow from those of its parts:

    at(S, n)    = min over divisions of S into connected A and B of  have(A, n) + have(B, n)
    have(S, n)  = min(at(S, n),  min over m of at(S, m) + volume(S))           there, or found elsewhere and shipped

An MJoin of several inputs is as cheap as binary joins at the same node, since nothing is shipped between them. Only
nodes of the query's own streams are looked at: operators at any other node cost less at the node of one of their
inputs, which then need not be shipped. So the search is exact. It looks at every division of every set, which is 3^n
of n streams; more than MOST_STREAMS are refused.
"""

from __future__ import annotations

import numpy as np

from spark_mjoin.driver.placement.costs import Query, Volume, members, volumes
from spark_mjoin.driver.placement.plans import Input, Plan, cost, operator
from spark_mjoin.errors import PlacementError
from spark_mjoin.model import Array

MOST_STREAMS = 14


def optimal(query: Query, volume: Volume | None = None) -> Plan:
    """The cheapest plan; a PlacementError for more than MOST_STREAMS streams."""
    count = len(query.streams)
    if count > MOST_STREAMS:
        raise PlacementError(f"an exhaustive search takes at most {MOST_STREAMS} streams, and there are {count}")
    sizes = volumes(query) if volume is None else np.array([volume(streams) for streams in range(1 << count)])
    search = _Search(query, sizes)
    root = search.tree(query.everything, int(np.argmin(search.at[-1])))
    return Plan(root, cost(query, root, lambda streams: float(sizes[streams])))


class _Search:
    def __init__(self, query: Query, sizes: Array) -> None:
        self._query = query
        self._nodes = list(dict.fromkeys(stream.node for stream in query.streams))
        self.at = np.full((sizes.size, len(self._nodes)), np.inf)
        self._have = np.full_like(self.at, np.inf)
        self._division = np.zeros(self.at.shape, np.int64)
        for i, stream in enumerate(query.streams):
            self.at[1 << i, self._nodes.index(stream.node)] = 0.0
        for streams in range(1, sizes.size):
            if streams & (streams - 1) and query.is_connected(streams):
                self._divide(streams)
            self._have[streams] = np.minimum(self.at[streams], self.at[streams].min() + sizes[streams])

    def _divide(self, streams: int) -> None:
        lowest, *others = members(streams)
        parts = np.array([1 << lowest])
        for i in others:
            parts = np.concatenate([parts, parts | 1 << i])
        parts = parts[:-1]
        costs = self._have[parts] + self._have[streams ^ parts]
        best = np.argmin(costs, axis=0)
        self._division[streams] = parts[best]
        self.at[streams] = costs[best, np.arange(best.size)]

    def tree(self, streams: int, node: int) -> Input:
        """What gives the result of a set at a node; joins at one node that follow each other are one MJoin."""
        if streams & (streams - 1) == 0:
            return streams.bit_length() - 1
        inputs = self._inputs(streams, node)
        there = [each for each in inputs if self._is_at(each, node)]
        last = there[-1] if there else inputs[-1]
        ordered = (*(each for each in inputs if each is not last), last)
        return operator(self._nodes[node], ordered)

    def _inputs(self, streams: int, node: int) -> list[Input]:
        part = int(self._division[streams, node])
        found: list[Input] = []
        for each in (part, streams ^ part):
            best = int(np.argmin(self.at[each]))
            is_here = self._have[each, node] == self.at[each, node]
            if is_here and each & (each - 1):
                found += self._inputs(each, node)
            else:
                found.append(self.tree(each, node if is_here else best))
        return found

    def _is_at(self, part: Input, node: int) -> bool:
        own = self._query.streams[part].node if isinstance(part, int) else part.node
        return own == self._nodes[node]
