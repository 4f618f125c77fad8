"""Streams of many kinds, run with too little memory or time and with enough, to compare estimates with the truth."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from spark_mjoin.engine import cache
from tests import harness
from tests.harness import ReadAllAvailable
from tests.oracle.shedding import decisions

CHUNK_ROWS = 500  # that arrive together
STAR = "SELECT a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
PAIR = "SELECT a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"
CHAIN3 = "SELECT a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
CHAIN4 = (
    "SELECT a.v AS av, b.v AS bv, c.v AS cv, d.v AS dv "
    "FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m JOIN d ON c.k = d.k"
)
CYCLE = "SELECT a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m AND c.k = a.m"


@dataclass(frozen=True)
class Kind:
    """How streams of a kind are made, and how they are run."""

    query: str = STAR
    keys: str = "uniform"  # how keys are drawn
    per_key: float = 1.0  # rows of an input for each key, at the end
    options: dict[str, str] = field(default_factory=dict)
    timed: bool = False
    punctuated: bool = False
    script: tuple[tuple[int, ...], ...] | None = None  # of decisions what to let in
    rows: int = 2000  # of an input in a batch
    batches: int = 8

    @property
    def loses(self) -> bool:
        """Whether results are lost, and do not only come later."""
        return self.options.get("overflow", "spill") != "spill"

    @property
    def aliases(self) -> list[str]:
        return [n for n in "abcd" if f" {n}" in self.query.replace(",", " ").split("FROM")[1]]


def tables(kind: Kind, seed: int) -> dict[str, list[pa.Table]]:
    dice = np.random.Generator(np.random.Philox(seed))
    total = kind.rows * kind.batches
    out: dict[str, list[pa.Table]] = {}
    shared = dice.permutation(4 * total)
    for alias in kind.aliases:
        drawn = {column: draw(kind, dice, total, shared) for column in ("k", "m")}
        out[alias] = []
        for batch in range(kind.batches):
            part = slice(batch * kind.rows, (batch + 1) * kind.rows)
            made = {column: values[part] for column, values in drawn.items()}
            made["v"] = dice.integers(0, 1 << 40, kind.rows)
            times = np.sort(dice.integers(0, kind.rows, kind.rows)) + batch * kind.rows
            made["ts"] = pa.array(times).cast(pa.timestamp("us", "UTC"))
            table = pa.table(made)
            if kind.punctuated:
                table = punctuated(table, batch, kind)
            out[alias].append(table)
    return out


def draw(kind: Kind, dice: np.random.Generator, total: int, shared: np.ndarray) -> np.ndarray:
    keys = max(1, round(total / kind.per_key))
    if kind.keys == "unique":
        return shared[:keys][dice.permutation(keys)]
    if kind.keys == "skewed":
        weights = 1 / np.arange(1, keys + 1) ** 0.6
        return shared[:keys][np.searchsorted(np.cumsum(weights) / weights.sum(), dice.random(total))]
    if kind.keys == "ascending":  # each key lives for a while: partners come near each other, and never again
        return (np.arange(total) + dice.integers(0, total // 6, total)) // max(1, round(kind.per_key))
    if kind.keys == "strings":
        return np.array([f"key {k:06d}" for k in dice.integers(0, keys, total)])
    return shared[dice.integers(0, keys, total)]


def punctuated(table: pa.Table, batch: int, kind: Kind) -> pa.Table:
    """The same with a punctuation at the end of the batch: keys below one that moves on do not come any more."""
    below = max(0, (batch + 1) * kind.rows // max(1, round(kind.per_key)) - 1)
    rows = table.append_column("low", pa.nulls(table.num_rows, pa.int64()))
    rows = rows.append_column("high", pa.nulls(table.num_rows, pa.int64()))
    said = {"k": None, "m": None, "v": None, "ts": None, "low": 0, "high": below}
    return pa.concat_tables([rows, pa.Table.from_pylist([said], schema=rows.schema)])


def options_of(kind: Kind) -> dict[str, str]:
    out = dict(kind.options)
    for alias in kind.aliases:
        if kind.timed:
            out |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": "0 seconds"}
        if kind.punctuated:
            out[f"source.{alias}.punctuation"] = "k BETWEEN low AND high"
    return out


@dataclass
class Batch:
    emitted: int
    metrics: dict[str, str]
    read: dict[str, int]  # batches of each input that it has got to


def run(options: dict[str, str], state: Path, script: tuple[tuple[int, ...], ...] | None = None) -> list[Batch]:
    """Every batch; the state is loaded anew in every third."""
    cache.of_worker().clear()
    with ExitStack() as stack:
        if script is not None:
            stack.enter_context(decisions(script))
        return list(_batches(options, state))


def _batches(options: dict[str, str], state: Path) -> Iterator[Batch]:
    readers = harness.starts({"stateLocation": str(state), **options})
    current = next(readers)
    start, number = current.initialOffset(), 0
    while (end := current.latestOffset(start, ReadAllAvailable())) != start:
        number += 1
        if number % 3 == 0:
            cache.of_worker().clear()
        found = sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))
        read = {alias: position["batch"] for alias, position in end["positions"].items()}
        yield Batch(found, current.reportLatestOffset()["metrics"], read)
        start, current = end, next(readers) if harness.is_rescaled() else current


class Truth:
    """How many results some input has: asked of duckdb, or, where windows count rows, of a run with enough memory."""

    def __init__(self, kind: Kind, given: dict[str, list[pa.Table]], place: Path) -> None:
        self._given, self._known = given, dict[tuple[int, ...], int]()
        self._query = f"SELECT count(*) AS n FROM {kind.query.split('FROM')[1]}"
        window = kind.options.get("window", "")
        if "rows" in window:
            own = {n: v for n, v in options_of(kind).items() if n not in ("memory", "overflow")}
            results = 0
            for batch in run(harness.scripted(given, kind.query, **own), place):
                results += batch.emitted
                self._known[tuple(batch.read.values())] = results
        elif window:
            size = int(window.split()[0])
            youngest = f"greatest({', '.join(f'epoch_us({alias}.ts)' for alias in given)})"
            inside = (f"epoch_us({alias}.ts) > {youngest} - {size}" for alias in given)
            self._query += f" WHERE {' AND '.join(inside)}"

    def results(self, read: dict[str, int]) -> int:
        place = tuple(read.values())
        if place not in self._known:
            seen = {alias: pa.concat_tables(batches[: read[alias]]) for alias, batches in self._given.items()}
            self._known[place] = harness.duckdb_join(self._query, seen).column("n")[0].as_py()
        return self._known[place]


def compared(kind: Kind, seed: int, place: Path) -> Iterator[tuple[str, float, float]]:
    """(metric, its value, the truth) of every batch."""
    given = tables(kind, seed)
    truth = Truth(kind, given, place / "whole")
    emitted = before = 0
    for batch in run(harness.scripted(given, kind.query, **options_of(kind)), place / "short", kind.script):
        emitted, true = emitted + batch.emitted, truth.results(batch.read)
        new, before = true - before, true
        yield "completeness", float(batch.metrics["completeness"]), emitted / true if true else 1.0
        recall = batch.emitted / new if kind.loses and new else 1.0
        yield "estimatedRecall", float(batch.metrics["estimatedRecall"]), recall
