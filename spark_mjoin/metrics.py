"""Counters of the join and the names under which people see them.

A task counts work in a `WorkCounts`; the state keeps sums over all batches, and each committed version the counts of
the batch that made it. `report` turns the versions of all partitions into the metric names of the contract (strings,
camelCase), the same whichever way they reach the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar


class _Sized(Protocol):
    @property
    def num_rows(self) -> int: ...


Counted = TypeVar("Counted", bound=_Sized)


Context = tuple[int, frozenset[int], int]  # of a probe: the arriving input, the inputs bound before it, the one probed


@dataclass
class EdgeCounts:
    """What the probes of one context have seen; the planner's raw material. In the state older batches count less."""

    probes: float = 0  # combinations that probed
    matches: float = 0  # pairs with equal keys
    candidates: float = 0  # sum over probes of the target's rows: matches / candidates is the selectivity
    kept: float = 0  # pairs that passed the residuals too
    chunks: float = 0  # times that some combinations probed together

    def add(self, other: EdgeCounts, share: float = 1.0) -> None:
        """Add counts, or a share of them."""
        self.probes += share * other.probes
        self.matches += share * other.matches
        self.candidates += share * other.candidates
        self.kept += share * other.kept
        self.chunks += share * other.chunks


Edges = dict[Context, EdgeCounts]

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


def rank(context: Context) -> list[Any]:
    """The place of a context among others in a manifest."""
    origin, bound, target = context
    return [origin, sorted(bound), target]


def edges_to_json(edges: Mapping[Context, EdgeCounts]) -> list[list[Any]]:
    rows = ([*rank(context), c.probes, c.matches, c.candidates, c.kept, c.chunks] for context, c in edges.items())
    return sorted(rows, key=lambda row: row[:3])


def edges_from_json(rows: Iterable[Sequence[Any]]) -> Edges:
    """Counts that know no context, as older manifests have them, are no evidence."""
    known = [row for row in rows if isinstance(row[1], list)]
    return {(o, frozenset(bound), t): EdgeCounts(*counts) for o, bound, t, *counts in known}


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


@dataclass
class PhaseCounts:
    """What one phase did in one batch."""

    rows: int = 0  # results
    seconds: float = 0.0  # without the time that it waited for results to be taken
    peak_bytes: int = 0  # the most that its own tables needed, besides the rows in memory
    work: WorkCounts = field(default_factory=WorkCounts)

    def timed(self, batches: Iterable[Counted], clock: Callable[[], float]) -> Iterator[Counted]:
        """Pass results on, counting them and the time that they took."""
        started = clock()
        for results in batches:
            self.rows += results.num_rows
            self.seconds += clock() - started
            yield results
            started = clock()
        self.seconds += clock() - started


PHASES = ("memoryToMemory", "diskToMemory", "diskToDisk")


@dataclass
class BatchCounts:
    """What one batch did in one partition, as its manifest keeps it."""

    rows_in: list[int]  # per input, rows that reached the state
    below: dict[int, WorkCounts] = field(default_factory=dict)  # of arrivals, per operator of the plan under the root
    memory_to_memory: PhaseCounts = field(default_factory=PhaseCounts)
    disk_to_memory: PhaseCounts = field(default_factory=PhaseCounts)
    disk_to_disk: PhaseCounts = field(default_factory=PhaseCounts)
    memory_bytes: int = 0  # at the end of the batch
    peak_bytes: int = 0  # the most that was accounted for at any time
    disk_bytes: int = 0
    cache_hits: int = 0  # 1 when the state was there in the worker, as the batch needs it
    flushes: int = 0
    rows_flushed: int = 0
    bytes_flushed: int = 0
    rows_late: int = 0
    rows_shed: int = 0
    rows_purged: int = 0
    rows_dropped: int = 0  # that arrived and were never stored, since nothing that comes can match them
    punctuations: int = 0  # that arrived; every partition gets all, and each is counted by one
    promises_broken: int = 0
    promises_forgotten: int = 0  # keys and ranges of keys, because there was no room for more
    purge_pending: bool = False  # whether rows are to be looked through when there is time
    rows_waited: int = 0  # that others of their input overtook
    purging: WorkCounts = field(default_factory=WorkCounts)  # of looking through rows and moving those that stay
    rows_shrunk: int = 0
    rows_resident: int = 0
    rows_deferred: int = 0
    expected_results: float = 0.0  # what the rows so far are expected to give in all
    windows: list[tuple[int, bool]] = field(default_factory=list)  # effective, and whether in rows; none: as given
    fractions: list[float] = field(default_factory=list)  # per input, how much of it was let in
    least_fractions: list[float] = field(default_factory=list)  # by which a row in the state was let in
    input_bytes: list[int] = field(default_factory=list)  # per input, of its rows in memory
    kept_rows: list[int] = field(default_factory=list)  # per input, rows in the state
    kept_weights: list[float] = field(default_factory=list)  # the same as if nothing had been shed
    completed_results: float = 0.0  # by arrivals: emitted, or pending
    lost_results: float = 0.0  # that arrivals would have completed besides, if nothing had been shed or dropped
    sample_bytes: int = 0  # of the sample that estimates are made from
    began: float = 0.0  # when the task began, in seconds since 1970

    @property
    def phases(self) -> tuple[PhaseCounts, ...]:
        return self.memory_to_memory, self.disk_to_memory, self.disk_to_disk

    @property
    def rows_out(self) -> int:
        return sum(phase.rows for phase in self.phases)

    def work(self, operator: int = 0) -> WorkCounts:
        """Of arrivals at one operator of the plan: the planner learns from these."""
        return self.below.setdefault(operator, WorkCounts()) if operator else self.memory_to_memory.work

    def _sum(self, name: str) -> int:
        return sum(getattr(work, name) for work in (*(p.work for p in self.phases), *self.below.values(), self.purging))

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"rowsIn": self.rows_in}
        for name, phase in zip(PHASES, self.phases, strict=True):
            out |= {
                f"{name}Rows": phase.rows,
                f"{name}TimeMs": round(1000 * phase.seconds),
                f"{name}Probes": phase.work.probes,
            }
        out["memoryToMemoryProbes"] += sum(work.probes for work in self.below.values())
        return out | {
            "hashes": self._sum("hashes"),
            "moves": self._sum("moves"),
            "comparisons": self._sum("comparisons"),
            "memoryUsedBytes": self.memory_bytes,
            "memoryPeakBytes": self.peak_bytes,
            "diskUsedBytes": self.disk_bytes,
            "flushes": self.flushes,
            "rowsFlushed": self.rows_flushed,
            "bytesFlushed": self.bytes_flushed,
            "rowsLate": self.rows_late,
            "rowsShed": self.rows_shed,
            "rowsPurged": self.rows_purged,
            "rowsDropped": self.rows_dropped,
            "numInputPunctuations": self.punctuations,
            "promisesBroken": self.promises_broken,
            "promisesForgotten": self.promises_forgotten,
            "rowsShrunk": self.rows_shrunk,
            "rowsWaited": self.rows_waited,
            "numRowsInMemory": self.rows_resident,
            "deferredRows": self.rows_deferred,
            "expectedResults": self.expected_results,
            "stateCacheHits": self.cache_hits,
            "windows": [list(window) for window in self.windows],
            "fractions": self.fractions,
            "leastFractions": self.least_fractions,
            "inputBytes": self.input_bytes,
            "keptRows": self.kept_rows,
            "keptWeights": self.kept_weights,
            "completedResults": self.completed_results,
            "lostResults": self.lost_results,
            "sampleBytes": self.sample_bytes,
            "began": self.began,
            "purgePending": self.purge_pending,
        }


_SUMMED = (
    *(f"{phase}{figure}" for phase in PHASES for figure in ("Rows", "TimeMs", "Probes")),
    "hashes",
    "moves",
    "comparisons",
    "memoryUsedBytes",
    "memoryPeakBytes",
    "diskUsedBytes",
    "sampleBytes",
    "flushes",
    "rowsFlushed",
    "bytesFlushed",
    "rowsLate",
    "rowsShed",
    "rowsPurged",
    "rowsDropped",
    "numInputPunctuations",
    "promisesBroken",
    "promisesForgotten",
    "rowsShrunk",
    "rowsWaited",
    "deferredRows",
    "stateCacheHits",
)
# Of a manifest's figures: those that still hold when a batch does nothing.
_LASTING = (
    "memoryUsedBytes",
    "diskUsedBytes",
    "sampleBytes",
    "numRowsInMemory",
    "deferredRows",
    "expectedResults",
    "windows",
    "fractions",
    "leastFractions",
    "inputBytes",
    "keptRows",
    "keptWeights",
)


def report(
    manifests: Iterable[Mapping[str, Any]],
    aliases: Sequence[str],
    memory_bytes: int | None = None,
    seconds: float | None = None,
    plan: str | None = None,
    access: Mapping[str, str] | None = None,
    scheduling: tuple[str, str] | None = None,
) -> dict[str, str]:
    """The metrics of one version, from the manifests that its partitions committed.

    seconds is the time in which the batch's input arrived, for rates, plan the tree of joins in words, access per
    alias how its rows reach the others, scheduling the order of inputs and of the rows of each; None where nobody
    knows.
    """
    sums: dict[str, int] = dict.fromkeys(_SUMMED, 0)
    rows, rows_in, orders = [0] * len(aliases), [0] * len(aliases), [""] * len(aliases)
    results, resident, expected, intermediate = 0, 0, 0.0, 0
    batches = []
    for manifest in manifests:
        batch = manifest["batch"]
        batches.append(batch)
        for name in _SUMMED:
            sums[name] += batch.get(name, 0)
        dropped = manifest.get("dropped", [0] * len(aliases))
        held = [a - b for a, b in zip(manifest["rows"], dropped, strict=True)]
        rows = [a + b for a, b in zip(rows, held, strict=True)]
        rows_in = [a + b for a, b in zip(rows_in, batch["rowsIn"], strict=True)]
        intermediate += sum(sum(o["rows"]) for o in manifest["operators"]) - sum(manifest["rows"])
        results += manifest["results"]
        resident += batch.get("numRowsInMemory", sum(held))
        expected += batch.get("expectedResults", manifest["results"])
        orders = [a or b for a, b in zip(orders, manifest["orders"], strict=True)]
    metrics = {name: str(value) for name, value in sums.items()}
    if memory_bytes is not None:
        metrics["memoryBudgetBytes"] = str(memory_bytes)
    total = sum(rows) + intermediate
    metrics["numRowsTotal"] = str(total)
    metrics["numRowsInMemory"] = str(resident)
    metrics["numRowsOnDisk"] = str(total - resident)
    metrics["intermediateRowsTotal"] = str(intermediate)
    if plan is not None:
        metrics["plan"] = plan
    if scheduling is not None:
        metrics["streamScheduling"], metrics["tupleScheduling"] = scheduling
    metrics["completeness"] = f"{results / expected:.4f}" if expected > results else "1.0"
    metrics["resultsTotal"] = str(results)
    metrics["estimatedRecall"] = f"{_recall(batches):.4f}"
    fractions = next((list(b["fractions"]) for b in batches if b.get("fractions")), [1.0] * len(aliases))
    for i, alias in enumerate(aliases):
        metrics[f"{alias}AdmittedFraction"] = f"{fractions[i]:.4f}"
        if shrunk := [b["windows"][i] for b in batches if b.get("windows")]:
            size, in_rows = min(shrunk)
            metrics[f"{alias}EffectiveWindow"] = f"{size} rows" if in_rows else f"{size / 1e6:.6f} seconds"
        metrics[f"{alias}NumRowsTotal"] = str(rows[i])
        metrics[f"{alias}NumInputRows"] = str(rows_in[i])
        if seconds is not None:
            metrics[f"{alias}RowsPerSecond"] = f"{rows_in[i] / seconds if seconds else 0.0:.1f}"
        if orders[i]:
            metrics[f"{alias}ProbeOrder"] = orders[i]
            if access is not None:
                metrics[f"{alias}Access"] = access[alias]
    return metrics


def _recall(batches: Sequence[Mapping[str, Any]]) -> float:
    """Results of arrivals, of those that there would be if nothing was lost; without results, of one that may come."""
    found, lost = (sum(b.get(name, 0) for b in batches) for name in ("completedResults", "lostResults"))
    if found + lost:
        return float(found / (found + lost))
    known = [b for b in batches if b.get("keptRows")]
    rows, weights = ([sum(of) for of in zip(*(b[n] for b in known), strict=True)] for n in ("keptRows", "keptWeights"))
    return math.prod((r / w for r, w in zip(rows, weights, strict=True) if w), start=1.0)


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
