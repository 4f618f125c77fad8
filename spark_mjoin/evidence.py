"""What the planner learns from: what probes have seen, and how a batch went.

A task counts its work in a `WorkCounts`. What probes saw becomes part of the state, where older batches count less: it
is an `Edges` while a task counts, and an `Edge` in a manifest. `Taken` says what the batch of a manifest did, and
`Held` what the state has after it. Tasks count all of it, and every decision of the driver rests on it.

Not covered: what only people read (`counts`, `metrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

Context = tuple[int, frozenset[int], int]  # of a probe: the arriving input, the inputs bound before it, the one probed


@dataclass
class EdgeCounts:
    """What the probes of one context have seen."""

    probes: float = 0  # combinations that probed
    matches: float = 0  # pairs with equal keys
    candidates: float = 0  # sum over probes of the target's rows: matches / candidates is the selectivity
    kept: float = 0  # pairs that passed the residuals too
    chunks: float = 0  # times that some combinations probed together

    def add(self, other: EdgeCounts, share: float = 1.0) -> None:
        """Add counts, or a fraction of them."""
        self.probes += share * other.probes
        self.matches += share * other.matches
        self.candidates += share * other.candidates
        self.kept += share * other.kept
        self.chunks += share * other.chunks


Edges = dict[Context, EdgeCounts]


class Edge(NamedTuple):
    """The same in a manifest, where nobody adds to it."""

    origin: int
    bound: int  # a bit for each, the lowest for input 0
    target: int
    probes: float
    matches: float
    candidates: float
    kept: float
    chunks: float


def kept_edges(edges: Mapping[Context, EdgeCounts]) -> tuple[Edge, ...]:
    """Counts for a manifest, in the order that every manifest has."""
    entries = sorted(edges.items(), key=lambda entry: rank(entry[0]))
    return tuple(edge_of(context, counts) for context, counts in entries)


def edge_of(context: Context, counts: EdgeCounts) -> Edge:
    origin, bound, target = context
    bits = sum(1 << each for each in bound)
    return Edge(origin, bits, target, counts.probes, counts.matches, counts.candidates, counts.kept, counts.chunks)


def edges_of(kept: Iterable[Edge]) -> Edges:
    """Counts of a manifest, to be added to."""
    return {(origin, inputs_of(bound), target): EdgeCounts(*counts) for origin, bound, target, *counts in kept}


@cache
def inputs_of(bits: int) -> frozenset[int]:
    return frozenset(each for each in range(bits.bit_length()) if bits >> each & 1)


def rank(context: Context) -> tuple[int, tuple[int, ...], int]:
    """The place of a context among others in a manifest."""
    origin, bound, target = context
    return origin, tuple(sorted(bound)), target


_FADING = 0.75  # what is left of older counts after a batch of _FULL_ROWS or more
_FULL_ROWS = 1_000
_FORGOTTEN = 0.01  # probes; a context with fewer left is dropped


def faded(edges: Mapping[Context, EdgeCounts], rows: int) -> Edges:
    """Counts as they are after a batch of so many arriving rows.

    A change of selectivities shows within a few batches; small batches count for less, since they say less.
    """
    left = _FADING ** min(1.0, rows / _FULL_ROWS)
    out: Edges = {}
    for context, counts in edges.items():
        if left * counts.probes >= _FORGOTTEN:
            out[context] = EdgeCounts()
            out[context].add(counts, left)
    return out


@dataclass
class WorkCounts:
    """Operations as in the paper's cost model (Viglas 2003, appendix), and what the probes saw, by context."""

    hashes: int = 0
    moves: int = 0
    comparisons: int = 0
    probes: int = 0
    outside: int = 0  # combinations, or beginnings of them, that were found and were outside a window; not kept
    edges: Edges = field(default_factory=dict)

    def edge(self, origin: int, bound: Iterable[int], target: int) -> EdgeCounts:
        return self.edges.setdefault((origin, frozenset(bound), target), EdgeCounts())


@dataclass(frozen=True)
class Taken:
    """What a batch took in, in one partition, and how long that took."""

    rows_in: tuple[int, ...] = ()  # per input, rows that reached the state
    began: float = 0.0  # when the task began, in seconds since 1970
    memory_to_memory_ms: int = 0
    disk_to_memory_ms: int = 0
    disk_to_disk_ms: int = 0
    copies: tuple[int, ...] = ()  # per input, of these rows, those that other partitions have counted; empty: none

    @property
    def rows(self) -> int:
        return sum(self.rows_in)

    @property
    def disk_ms(self) -> int:
        return self.disk_to_memory_ms + self.disk_to_disk_ms

    @property
    def arrived(self) -> tuple[int, ...]:
        """Per input, rows that are counted here: in sums over partitions each is there once."""
        copies = self.copies or (0,) * len(self.rows_in)
        return tuple(rows - elsewhere for rows, elsewhere in zip(self.rows_in, copies, strict=True))

    def idle(self) -> Taken:
        """The same if nothing had arrived."""
        return Taken((0,) * len(self.rows_in))


@dataclass(frozen=True)
class Held:
    """What a partition holds after a batch, as far as plans depend on it."""

    rows_resident: int = 0  # in memory
    memory_bytes: int = 0  # of these
    input_bytes: tuple[int, ...] = ()  # per input, of its rows in memory
    kept_rows: tuple[int, ...] = ()  # per input, rows in the state
    least_fractions: tuple[float, ...] = ()  # per input, with which a row in the state was admitted
    purge_pending: bool = False  # whether rows are to be looked through when there is time


def rows_in(taken: Iterable[Taken]) -> list[int]:
    """Per input, what several partitions took in: a row is work in each that has a copy."""
    return [sum(of) for of in zip(*(each.rows_in for each in taken), strict=True)]


def arrived(taken: Iterable[Taken]) -> list[int]:
    """Per input, the rows that came to several partitions, each counted once."""
    return [sum(of) for of in zip(*(each.arrived for each in taken), strict=True)]
