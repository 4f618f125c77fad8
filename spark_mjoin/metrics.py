"""Counters of the join and the names under which people see them.

A task counts work in a `WorkCounts`; the state keeps sums over all batches, and each committed version the counts of
the batch that made it. `report` turns the versions of all partitions into the metric names of the contract (strings,
camelCase), the same whichever way they reach the user.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EdgeCounts:
    """What probes from one input's arrivals into another have seen; the planner's raw material."""

    probes: int = 0  # rows that probed
    matches: int = 0  # pairs found
    candidates: int = 0  # sum over probes of the target's rows: matches / candidates is the selectivity

    def add(self, other: EdgeCounts) -> None:
        self.probes += other.probes
        self.matches += other.matches
        self.candidates += other.candidates


@dataclass
class WorkCounts:
    """Operations as in the paper's cost model (Viglas 2003, appendix), and the edges' counts by (origin, target)."""

    hashes: int = 0
    moves: int = 0
    comparisons: int = 0
    probes: int = 0
    edges: dict[tuple[int, int], EdgeCounts] = field(default_factory=dict)

    def edge(self, origin: int, target: int) -> EdgeCounts:
        return self.edges.setdefault((origin, target), EdgeCounts())


@dataclass
class BatchCounts:
    """What one batch did in one partition, as its manifest keeps it."""

    rows_in: list[int]  # per input, rows that reached the state
    rows_out: int = 0
    time_ms: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    work: WorkCounts = field(default_factory=WorkCounts)

    def to_json(self) -> dict[str, Any]:
        return {
            "rowsIn": self.rows_in,
            "memoryToMemoryRows": self.rows_out,
            "memoryToMemoryTimeMs": self.time_ms,
            "memoryToMemoryProbes": self.work.probes,
            "hashes": self.work.hashes,
            "moves": self.work.moves,
            "comparisons": self.work.comparisons,
            "memoryUsedBytes": self.memory_bytes,
            "diskUsedBytes": self.disk_bytes,
        }


_SUMMED = (
    "memoryToMemoryRows",
    "memoryToMemoryTimeMs",
    "memoryToMemoryProbes",
    "hashes",
    "moves",
    "comparisons",
    "memoryUsedBytes",
    "diskUsedBytes",
)


def report(
    manifests: Iterable[Mapping[str, Any]], aliases: Sequence[str], memory_bytes: int | None = None
) -> dict[str, str]:
    """The metrics of one version, from the manifests that its partitions committed."""
    sums: dict[str, int] = dict.fromkeys(_SUMMED, 0)
    rows, rows_in, orders = [0] * len(aliases), [0] * len(aliases), [""] * len(aliases)
    results = 0
    for manifest in manifests:
        batch = manifest["batch"]
        for name in _SUMMED:
            sums[name] += batch[name]
        rows = [a + b for a, b in zip(rows, manifest["rows"], strict=True)]
        rows_in = [a + b for a, b in zip(rows_in, batch["rowsIn"], strict=True)]
        results += manifest["results"]
        orders = [a or b for a, b in zip(orders, manifest["orders"], strict=True)]
    metrics = {name: str(value) for name, value in sums.items()}
    if memory_bytes is not None:
        metrics["memoryBudgetBytes"] = str(memory_bytes)
    metrics["numRowsTotal"] = metrics["numRowsInMemory"] = str(sum(rows))
    metrics["resultsTotal"] = str(results)
    for i, alias in enumerate(aliases):
        metrics[f"{alias}NumRowsTotal"] = str(rows[i])
        metrics[f"{alias}NumInputRows"] = str(rows_in[i])
        if orders[i]:
            metrics[f"{alias}ProbeOrder"] = orders[i]
    return metrics
