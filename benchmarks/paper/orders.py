"""Adaptive probing orders: against every static order, on inputs that stay as they are and on inputs that change.

A static plan gives each input one order for the whole run. What an input's probes cost does not depend on the orders of
the other inputs, so the best static plan is put together from the best order of each input: as many runs are needed as
the input with the most orders has, and not one for every plan. To compare like with like, work takes no time in these
runs: every plan finds the same rows in the same slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pyarrow as pa

from benchmarks.paper.inputs import Stream, batch, poisson
from benchmarks.paper.outcome import Outcome, Panel, at_least, at_most
from benchmarks.paper.plans import Join, Plan, Run, run
from spark_mjoin.mjoin.orders import Targets
from spark_mjoin.model import Array

SLICES = 200  # micro-batches of a run
NEAR = {"star": 1.05, "chain": 1.002, "tree": 1.003, "cycle": 1.002}  # times the best static plan's comparisons
SWAP_BAR = 1.35
SEEDS = (1, 2, 3)
STEADY = 5e-3  # mean delay in seconds


@dataclass(frozen=True)
class Graph:
    """A join graph: which inputs have which column, and how many values it has there."""

    name: str
    columns: Sequence[Mapping[str, int]]  # for each input; columns of one name are joined

    @property
    def names(self) -> list[str]:
        return [f"s{i}" for i in range(1, len(self.columns) + 1)]

    def join(self) -> Join:
        owners: dict[str, list[str]] = {}
        for name, columns in zip(self.names, self.columns, strict=True):
            for column in columns:
                owners.setdefault(column, []).append(name)
        equal = [f"{of[0]}.{column} = {other}.{column}" for column, of in owners.items() for other in of[1:]]
        ids = ", ".join(f"{name}.id AS id_{name}" for name in self.names)
        query = f"SELECT {ids} FROM {', '.join(self.names)} WHERE {' AND '.join(equal)}"
        return Join("join", query, tuple(self.names), 1)

    def orders(self, origin: int) -> list[Targets]:
        """All orders in which each input has a column in common with one before it."""

        def is_valid(order: Sequence[int]) -> bool:
            known = set(self.columns[origin])
            for target in order:
                if known.isdisjoint(self.columns[target]):
                    return False
                known |= set(self.columns[target])
            return True

        others = [i for i in range(len(self.columns)) if i != origin]
        return [order for order in permutations(others) if is_valid(order)]


GRAPHS = (
    Graph("star", [{"k": 500}, {"k": 1000}, {"k": 4000}, {"k": 8000}]),
    Graph("chain", [{"a": 500}, {"a": 500, "b": 4000}, {"b": 4000, "c": 1000}, {"c": 1000}]),
    Graph("tree", [{"a": 1000, "b": 4000, "c": 2000, "d": 8000}, {"a": 1000}, {"b": 4000}, {"c": 2000}, {"d": 8000}]),
    Graph("cycle", [{"a": 200, "d": 500}, {"a": 200, "b": 1000}, {"b": 1000, "c": 3000}, {"c": 3000, "d": 500}]),
)


def orders(
    scale: float, graphs: Sequence[Graph] = GRAPHS, seeds: Sequence[int] = SEEDS, slices: int = SLICES
) -> Outcome:
    """Comparisons of adaptive orders, of the best static plan, and of others."""
    table, checks = [], []
    for graph in graphs:
        ratios = []
        for seed in seeds:
            compared = _compare(graph, _stationary(graph, round(4000 * scale), scale, seed), slices)
            ratios.append(compared.ratio)
            table.append(compared.row(f"{graph.name}, seed {seed}"))
        checks.append(
            at_most(
                f"{graph.name}: comparisons of adaptive orders to those of the best static plan: times",
                max(ratios),
                NEAR[graph.name],
                ", ".join(f"{ratio:.3f}" for ratio in ratios),
            )
        )
    panels = []
    for seed in seeds:
        streams = _swapping(round(20_000 * scale), scale, seed)
        compared = _compare(SWAPPED, streams, slices)
        table.append(compared.row(f"swap, seed {seed}"))
        checks.append(
            at_least(
                f"swap, seed {seed}: every static plan needs more comparisons than adaptive orders: times",
                compared.best / compared.adaptive,
                SWAP_BAR,
                f"{compared.adaptive:,}; static plans from {compared.best:,} to {compared.worst:,}",
            )
        )
        if seed == seeds[0]:
            panels.append(_panel(SWAPPED, streams, slices))
    header = ["input", "adaptive", "best static plan", "worst static plan", "smallest input first", "adaptive to best"]
    return Outcome("orders", "Adaptive probing orders: comparisons", panels, checks, header, table)


@dataclass(frozen=True)
class _Compared:
    """Comparisons on one input."""

    adaptive: int
    best: int  # of all static plans
    worst: int
    smallest: int  # with the smallest input first, by the sizes of the moment

    @property
    def ratio(self) -> float:
        return self.adaptive / self.best

    def row(self, name: str) -> list[object]:
        return [name, self.adaptive, self.best, self.worst, self.smallest, f"{self.ratio:.3f}"]


def _compare(graph: Graph, streams: Mapping[str, Stream], slices: int) -> _Compared:
    join = graph.join()
    choices = [graph.orders(origin) for origin in range(len(graph.columns))]
    found: list[list[int]] = [[] for _ in choices]
    for n in range(max(map(len, choices))):
        fixed = {origin: of[n % len(of)] for origin, of in enumerate(choices)}
        counted = run(Plan(str(fixed), join, order=fixed), streams, 0.0, slices=slices)
        for origin, comparisons in enumerate(counted.comparisons):
            found[origin].append(comparisons)
    adaptive, smallest = (
        run(Plan(kind, join, order=kind), streams, 0.0, slices=slices) for kind in ("adaptive", "smallest")
    )
    return _Compared(sum(adaptive.comparisons), sum(map(min, found)), sum(map(max, found)), sum(smallest.comparisons))


def _panel(graph: Graph, streams: Mapping[str, Stream], slices: int) -> Panel:
    """Comparisons over time, with every order of the input that has a choice."""
    join, rest = graph.join(), {origin: graph.orders(origin)[0] for origin in range(1, len(graph.columns))}
    plans = [Plan("adaptive orders", join, order="adaptive")]
    for order in graph.orders(0):
        plans.append(Plan("static: " + ", ".join(graph.names[i] for i in order), join, order={0: order, **rest}))
    runs: list[Run] = [run(plan, streams, 0.0, slices=slices) for plan in plans]
    midway = float(streams["s1"].seconds[streams["s1"].seconds.size // 2])
    return Panel("selectivities swap midway", runs, runs[0].finished, [midway], "comparisons")


# --- inputs --------------------------------------------------------------------------------------------------------


def _stationary(graph: Graph, rows: int, scale: float, seed: int) -> dict[str, Stream]:
    """Every column is uniform over its values, from the first row to the last."""
    streams = {}
    for i, (name, columns) in enumerate(zip(graph.names, graph.columns, strict=True)):
        random = np.random.Generator(np.random.Philox([seed, i]))
        keys = {column: random.integers(0, max(2, round(values * scale)), rows) for column, values in columns.items()}
        streams[name] = Stream(_numbered(keys), poisson(rows, STEADY, 1000 * seed + i))
    return streams


SWAPPED = Graph("swap", [{"a": 1000, "b": 1000, "c": 1000}, {"a": 1000}, {"b": 1000}, {"c": 1000}])
HITS = {"a": (0.05, 1.0), "b": (1.0, 0.05), "c": (0.5, 0.5)}  # shares of rows of s1 with a partner, in each half
PARTNERS = 3  # rows of s2, s3 and s4 with the same key


def _swapping(rows: int, scale: float, seed: int) -> dict[str, Stream]:
    """Rows of s1 meet s2 seldom and s3 always, then the other way round; s2, s3 and s4 are complete early."""
    streams = {}
    random = np.random.Generator(np.random.Philox([seed, 99]))
    keys = {}
    for column, shares in HITS.items():
        values = round(1000 * scale)
        hit = random.random(rows) < np.repeat(shares, [rows // 2, rows - rows // 2])
        keys[column] = np.where(hit, random.integers(0, values, rows), values + random.integers(0, values, rows))
    streams["s1"] = Stream(_numbered(keys), poisson(rows, STEADY, 1000 * seed))
    for i, column in enumerate(HITS, start=2):
        values = np.tile(np.arange(round(1000 * scale)), PARTNERS)
        arrivals = poisson(values.size, 0.02 * STEADY, 1000 * seed + i)
        streams[f"s{i}"] = Stream(_numbered({column: random.permutation(values)}), arrivals)
    return streams


def _numbered(keys: Mapping[str, Array]) -> pa.RecordBatch:
    rows = next(iter(keys.values())).size
    return batch({"id": np.arange(rows, dtype=np.int64), **{c: v.astype(np.int64) for c, v in keys.items()}})
