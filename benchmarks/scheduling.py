"""What it costs to take the inputs of a micro-batch in turns: rows per second by schedule and quota.

    python -m benchmarks.scheduling [--workload a] [--scale 0.5] [--memory 16m] [--repeats 3]
    python -m benchmarks.scheduling --workload news
    python -m benchmarks.scheduling --workload windows --window 10000 --keys 100000

The pipeline of a task joins all rows of a workload in one micro-batch, in Arrow batches as the file sources deliver
them. There is no Spark, and there are no files but those that rows are evicted to. Time is the process's own (user and
system), so that other processes count less. It prints the best of the repeats, and after which fraction of the time,
and of the rows, a tenth and half of the results were emitted. `news` is a one-to-many join with punctuations, by which
rows are dropped; `windows` joins two inputs with windows in rows.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.paper.punctuations import RECORDS, news_and_access
from benchmarks.workloads import WORKLOADS
from spark_mjoin.config import Options
from spark_mjoin.config.settings import PURGE_EVERY
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver.scheduling import QUOTA_ROWS, SMALL_QUOTA_ROWS
from spark_mjoin.engine.feed import Piece, numbered
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.schedule import Turns, clusters
from spark_mjoin.model import IN_STEP, Expiry, JoinSpec, Purging, Schedule
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.quantities import parse_bytes
from spark_mjoin.query import tree as trees
from spark_mjoin.query.graph import plan_join
from spark_mjoin.sources.decoding.batches import BATCH_ROWS
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore

NEWS, WINDOWS = "news", "windows"
Inputs = Sequence[Sequence[pa.RecordBatch]]
QUOTAS = (100, 1_000, 4_096, 16_384, 65_536, 262_144)


@dataclass(frozen=True)
class Found:
    seconds: float
    rows: int
    results: list[tuple[float, int, int]]  # seconds, rows taken by then, results emitted by then
    peak_bytes: int
    most_rows: int  # in memory, after an Arrow batch

    def when(self, share: float) -> str:
        """After which part of the time and of the rows a fraction of the results was emitted."""
        wanted = share * self.results[-1][2]
        at, taken, _ = next(sample for sample in self.results if sample[2] >= wanted)
        return f"{at / self.seconds:.0%}, {taken / self.rows:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__.split("\n")[0])
    parser.add_argument("--workload", default="a", choices=[*sorted(WORKLOADS), NEWS, WINDOWS])
    parser.add_argument("--window", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--memory")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    memory = None if options.memory is None else parse_bytes(options.memory, "memory")
    if options.workload == WINDOWS:
        spec, inputs, runs = windows(options.scale, options.window, options.keys)
    else:
        spec, inputs, runs = (
            news(options.scale) if options.workload == NEWS else workload(options.workload, options.scale)
        )
    rounds = [[run(spec, inputs, schedule, memory) for _, schedule in runs] for _ in range(options.repeats + 1)]
    columns = ("schedule", "rows per second", "results", "a tenth of them after (time, rows)", "half",
               "most rows in memory", "accounted peak")  # fmt: skip
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for (name, _), *of in zip(runs, *rounds[1:], strict=True):  # the first round warms up
        found = min(of, key=lambda f: f.seconds)
        figures = (f"{found.rows / found.seconds:,.0f}", f"{found.results[-1][2]:,}", found.when(0.1), found.when(0.5))
        print(f"| {name} | {' | '.join(figures)} | {found.most_rows:,} | {found.peak_bytes / 2**20:.0f} MiB |")


def workload(letter: str, scale: float) -> tuple[JoinSpec, Inputs, list[tuple[str, Schedule]]]:
    tables = WORKLOADS[letter].generate(scale)
    spec = _spec({"query": WORKLOADS[letter].query}, tables)
    everyone = tuple(range(len(spec.inputs)))
    runs = [("sequential", Schedule())]
    for kind in ("priority", "random"):
        runs += [(f"{kind}, {q:,} rows", Schedule(kind, everyone, (q,) * len(everyone))) for q in QUOTAS]
    return spec, _inputs(spec, tables), runs


def news(scale: float) -> tuple[JoinSpec, Inputs, list[tuple[str, Schedule]]]:
    """News and access records (benchmarks.paper.punctuations), both in order; the query names the many side first."""
    tables = {name: pa.table(stream.rows) for name, stream in news_and_access(100 * scale, "ordered").items()}
    options = {"source.news.unique": "sno", "source.news.ordered": "sno", "source.access.punctuation": "over"}
    query = "SELECT n.sno, n.keyword, a.ipaddr FROM access a JOIN news n ON n.sno = a.sno"
    spec = _spec({"query": query, **options}, tables)
    small, step = SMALL_QUOTA_ROWS, (SMALL_QUOTA_ROWS, SMALL_QUOTA_ROWS // (1 + RECORDS) + 1)
    runs = [
        ("sequential, access first", Schedule()),
        ("sequential, news first", Schedule("sequential", (1, 0))),
        *((f"priority, {q:,} rows", Schedule("priority", (1, 0), (q, q))) for q in (QUOTA_ROWS, small)),
        (f"priority in step, {small:,} rows", Schedule("priority", (1, 0), step)),
        (f"priority in step, {small:,} rows, value", Schedule("priority", (1, 0), step, "value")),
        (f"random, {small:,} rows", Schedule("random", (), (small, small))),
    ]
    return spec, _inputs(spec, tables), runs


def windows(scale: float, window: int, keys: int) -> tuple[JoinSpec, Inputs, list[tuple[str, Schedule]]]:
    """Two inputs with windows in rows and random keys: one after the other, which finds less, and in step."""
    rows, random = int(2_000_000 * scale), np.random.default_rng(1)
    tables = {name: pa.table({"k": random.integers(0, keys, rows), "n": np.arange(rows)}) for name in ("a", "b")}
    spec = _spec(
        {"query": "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k", "window": f"{window} rows"}, tables
    )
    quotas = (*QUOTAS[1:-1], QUOTA_ROWS * 4)
    steps = [(f"in step, up to {q:,} rows", Schedule(IN_STEP, (), (q, q))) for q in quotas]
    return spec, _inputs(spec, tables), [("sequential", Schedule()), *steps]


def _spec(options: Mapping[str, str], tables: Mapping[str, pa.Table]) -> JoinSpec:
    given = Options.parse({**options, **{f"source.{name}.format": "arrow" for name in tables}})
    return plan_join(given, [tables[source.alias].schema for source in given.sources])


def _inputs(spec: JoinSpec, tables: Mapping[str, pa.Table]) -> Inputs:
    return [tables[spec.sources[i.source].alias].combine_chunks().to_batches(BATCH_ROWS) for i in spec.inputs]


def run(spec: JoinSpec, inputs: Inputs, schedule: Schedule, memory: int | None) -> Found:
    tree = trees.single(len(inputs))
    limit = None if memory is None else Overflow(memory, "adaptive", blocking_rows=0, fuel_bytes=0)
    purging = Purging(PURGE_EVERY) if spec.promising else None
    expiry = Expiry((None,) * len(inputs)) if spec.windowed else None
    plan = Plan(tree, overflow=limit, purging=purging, schedule=schedule, expiry=expiry)
    rows = [sum(batch.num_rows for batch in of) for of in inputs] if schedule.streams == IN_STEP else []
    tracked = limit is not None or spec.forgetful
    state = PartitionState.empty(tree, trees.layout(spec, tree), {}, tracked)
    counts, taken, most = BatchCounts([0] * len(inputs)), [0], [0]

    def arriving() -> Iterator[Piece]:
        pieces = [numbered(spec, number, batches) for number, batches in enumerate(inputs)]
        for piece in pipeline.taking_turns(Turns(schedule, pieces, 1, clusters(spec), rows)):
            taken[0] += piece.size
            yield piece
            most[0] = max(most[0], sum(table.rows for table in state.root.tables))

    with tempfile.TemporaryDirectory() as place:
        store = StateStore(place, 0, None)
        pipeline = Pipeline(state, plan, store.draft(1, "run"), counts, time.perf_counter)
        out, results = 0, []
        began = time.process_time()
        for batch in pipeline.arrivals(arriving(), side_by_side=rows):
            out += batch.num_rows
            results.append((time.process_time() - began, taken[0], out))
        seconds = time.process_time() - began
    return Found(seconds, taken[0], results, counts.peak_bytes, most[0])


if __name__ == "__main__":
    main()
