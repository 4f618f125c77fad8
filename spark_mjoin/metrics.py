"""The names under which people see what the join counts.

`report` turns the manifests of all partitions at one version into metrics: documented names in camelCase, and values
that are strings. They are the same whichever way they reach the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from spark_mjoin import evidence
from spark_mjoin.counts import Done, Recall
from spark_mjoin.state.layouts import Layout
from spark_mjoin.state.manifest import Manifest


@dataclass(frozen=True)
class Shown:
    """What metrics show beyond the manifests; None where it is not known."""

    memory_bytes: int | None = None  # the budget
    seconds: float | None = None  # in which the input of the batch arrived, for rates
    plan: str | None = None  # the tree of joins in words
    access: Mapping[str, str] | None = None  # per alias how its rows reach the others
    scheduling: tuple[str, str] | None = None  # the order of inputs, and of the rows of each
    layout: Layout | None = None  # of the partitions


_DONE: dict[str, Callable[[Done], int]] = {
    "memoryToMemoryRows": lambda done: done.memory_to_memory.rows,
    "memoryToMemoryProbes": lambda done: done.memory_to_memory.probes,
    "diskToMemoryRows": lambda done: done.disk_to_memory.rows,
    "diskToMemoryProbes": lambda done: done.disk_to_memory.probes,
    "diskToDiskRows": lambda done: done.disk_to_disk.rows,
    "diskToDiskProbes": lambda done: done.disk_to_disk.probes,
    "hashes": lambda done: done.operations.hashes,
    "moves": lambda done: done.operations.moves,
    "comparisons": lambda done: done.operations.comparisons,
    "memoryPeakBytes": lambda done: done.peak_bytes,
    "flushes": lambda done: done.evicted.flushes,
    "rowsFlushed": lambda done: done.evicted.rows,
    "bytesFlushed": lambda done: done.evicted.bytes,
    "rowsLate": lambda done: done.dropped.late,
    "rowsShed": lambda done: done.dropped.shed,
    "rowsPurged": lambda done: done.dropped.purged,
    "rowsDropped": lambda done: done.dropped.unmatched,
    "rowsShrunk": lambda done: done.dropped.shrunk,
    "numInputPunctuations": lambda done: done.promised.punctuations,
    "promisesBroken": lambda done: done.promised.broken,
    "promisesForgotten": lambda done: done.promised.forgotten,
    "rowsWaited": lambda done: done.rows_waited,
    "stateCacheHits": lambda done: done.cache_hits,
    "rowsTakenOver": lambda done: done.rows_taken_over,
}
_SUMMED: dict[str, Callable[[Manifest], int]] = {
    "memoryToMemoryTimeMs": lambda manifest: manifest.taken.memory_to_memory_ms,
    "diskToMemoryTimeMs": lambda manifest: manifest.taken.disk_to_memory_ms,
    "diskToDiskTimeMs": lambda manifest: manifest.taken.disk_to_disk_ms,
    "memoryUsedBytes": lambda manifest: manifest.held.memory_bytes,
    "diskUsedBytes": lambda manifest: manifest.standing.disk_bytes,
    "sampleBytes": lambda manifest: manifest.standing.sample_bytes,
    "deferredRows": lambda manifest: manifest.standing.rows_deferred,
}


def report(manifests: Iterable[Manifest], aliases: Sequence[str], shown: Shown | None = None) -> dict[str, str]:
    """The metrics of one version, from the manifests that its partitions committed."""
    found, shown, nothing = list(manifests), shown or Shown(), [0] * len(aliases)
    done = sum((manifest.done for manifest in found), Done())
    metrics = {name: str(of(done)) for name, of in _DONE.items()}
    metrics |= {name: str(sum(map(of, found))) for name, of in _SUMMED.items()}
    if shown.memory_bytes is not None:
        metrics["memoryBudgetBytes"] = str(shown.memory_bytes)
    metrics |= _rows(found)
    if shown.plan is not None:
        metrics["plan"] = shown.plan
    metrics["partitionSkew"] = f"{skew(found):.2f}"
    if shown.layout is not None:
        metrics["partitioning"], metrics["hotKeys"] = str(shown.layout), str(len(shown.layout.hot_keys))
    if shown.scheduling is not None:
        metrics["streamScheduling"], metrics["tupleScheduling"] = shown.scheduling
    results, expected = sum(m.results for m in found), sum(m.standing.expected_results for m in found)
    metrics["completeness"] = f"{results / expected:.4f}" if expected > results else "1.0"
    metrics["resultsTotal"] = str(results)
    metrics["estimatedRecall"] = f"{_recall(done.recall, found):.4f}"
    rows = [sum(of) for of in zip(*(m.rows_held for m in found), strict=True)] or nothing
    arrived = evidence.arrived(m.taken for m in found) or nothing
    for i, alias in enumerate(aliases):
        metrics |= _of_input(i, alias, found)
        metrics[f"{alias}NumRowsTotal"] = str(rows[i])
        metrics[f"{alias}NumInputRows"] = str(arrived[i])
        if shown.seconds is not None:
            metrics[f"{alias}RowsPerSecond"] = f"{arrived[i] / shown.seconds if shown.seconds else 0.0:.1f}"
        if order := next((m.orders[i] for m in found if m.orders[i]), None):
            metrics[f"{alias}ProbeOrder"] = order
            if shown.access is not None:
                metrics[f"{alias}Access"] = shown.access[alias]
    return metrics


def skew(manifests: Sequence[Manifest]) -> float:
    """The rows that the fullest partition took in, over the mean of all; 1.0 in a batch without rows."""
    rows = [manifest.taken.rows for manifest in manifests]
    return max(rows) * len(rows) / sum(rows) if sum(rows) else 1.0


def _rows(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Rows of inputs and of intermediate results, and where they are."""
    intermediate = sum(m.intermediate_rows for m in manifests)
    total = sum(sum(m.rows_held) for m in manifests) + intermediate
    resident = sum(m.held.rows_resident for m in manifests)
    return {
        "numRowsTotal": str(total),
        "numRowsInMemory": str(resident),
        "numRowsOnDisk": str(total - resident),
        "intermediateRowsTotal": str(intermediate),
    }


def _of_input(number: int, alias: str, manifests: Sequence[Manifest]) -> dict[str, str]:
    """How much of an input was admitted, and how long its window is where it may be shortened."""
    fractions = next((m.standing.fractions for m in manifests if m.standing.fractions), None)
    out = {f"{alias}AdmittedFraction": f"{1.0 if fractions is None else fractions[number]:.4f}"}
    if shrunk := [m.standing.windows[number] for m in manifests if m.standing.windows]:
        size, in_rows = min(shrunk)
        out[f"{alias}EffectiveWindow"] = f"{size} rows" if in_rows else f"{size / 1e6:.6f} seconds"
    return out


def _recall(results: Recall, manifests: Sequence[Manifest]) -> float:
    """Results of arrivals, over those without loss; where there are none, the recall that a result would have."""
    if results.completed + results.lost:
        return results.completed / (results.completed + results.lost)
    rows = [sum(of) for of in zip(*(m.held.kept_rows for m in manifests if m.held.kept_rows), strict=True)]
    weights = [sum(of) for of in zip(*(m.standing.kept_weights for m in manifests if m.held.kept_rows), strict=True)]
    return math.prod((r / w for r, w in zip(rows, weights, strict=True) if w), start=1.0)


def idle(manifest: Manifest) -> Manifest:
    """A manifest as if its batch had done nothing: for a partition that a later batch did not change."""
    return replace(manifest, taken=manifest.taken.idle(), done=Done())


def summable(metrics: Mapping[str, str]) -> dict[str, int]:
    """The metrics of one partition that may be added to those of the others."""
    return {name: int(value) for name, value in metrics.items() if value.isdigit()}


def lag(behind: Sequence[int]) -> dict[str, str]:
    """How much input is not read yet, in units of each source, under the names of Spark's Kafka source."""
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }
