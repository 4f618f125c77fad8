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
    cache_hits: int = 0  # 1 when the state was there in the worker, as the batch needs it
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
            "stateCacheHits": self.cache_hits,
        }


_SUMMED = (
    "memoryToMemoryRows",
    "memoryToMemoryTimeMs",
    "memoryToMemoryProbes",
    "hashes",
    "moves",
    "comparisons",
    "diskToMemoryRows",
    "diskToDiskRows",
    "memoryUsedBytes",
    "diskUsedBytes",
    "stateCacheHits",
)
_LASTING = ("memoryUsedBytes", "diskUsedBytes")  # of _SUMMED: what still holds when a batch does nothing


def report(
    manifests: Iterable[Mapping[str, Any]],
    aliases: Sequence[str],
    memory_bytes: int | None = None,
    seconds: float | None = None,
) -> dict[str, str]:
    """The metrics of one version, from the manifests that its partitions committed.

    seconds is the time in which the batch's input arrived, for rates; None where nobody knows.
    """
    sums: dict[str, int] = dict.fromkeys(_SUMMED, 0)
    rows, rows_in, orders = [0] * len(aliases), [0] * len(aliases), [""] * len(aliases)
    results = 0
    for manifest in manifests:
        batch = manifest["batch"]
        for name in _SUMMED:
            sums[name] += batch.get(name, 0)
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
        if seconds is not None:
            metrics[f"{alias}RowsPerSecond"] = f"{rows_in[i] / seconds if seconds else 0.0:.1f}"
        if orders[i]:
            metrics[f"{alias}ProbeOrder"] = orders[i]
    return metrics


def idle(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest as if its batch had done nothing: for a partition that a later batch has left as it was."""

    def nothing(value: Any) -> Any:
        return [nothing(v) for v in value] if isinstance(value, list) else 0

    batch = {name: value if name in _LASTING else nothing(value) for name, value in manifest["batch"].items()}
    return {**manifest, "batch": batch}


def summable(metrics: Mapping[str, str]) -> dict[str, int]:
    """The metrics of one partition that may be added to those of the others."""
    return {name: int(value) for name, value in metrics.items() if value.isdigit()}


def lag(behind: Sequence[int]) -> dict[str, str]:
    """How far the sources are behind what is there, each in its own unit, under the names of Spark's Kafka source."""
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }
