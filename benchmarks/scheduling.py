"""What it costs to take the inputs of a micro-batch in turns: rows per second by schedule and quota.

    python -m benchmarks.scheduling [--workload a] [--scale 0.5] [--memory 16m] [--repeats 3]

One micro-batch with all rows of a workload, in Arrow batches as the file sources give them, joined by the pipeline of
a task: no Spark, no files but those that rows leave memory to. Time is the process's own (user and system), so that
others on the machine count less. Prints the best of the repeats, and after which share of the time, and of the rows, a
tenth and half of the results were out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from benchmarks.workloads import WORKLOADS
from spark_mjoin.config import Options, parse_bytes
from spark_mjoin.metrics import BatchCounts
from spark_mjoin.model import BatchPlan, JoinSpec, OverflowPlan, Schedule
from spark_mjoin.phases import schedule as schedules
from spark_mjoin.phases.pipeline import Pipeline
from spark_mjoin.planner import tree as trees
from spark_mjoin.planner.graph import plan_join
from spark_mjoin.sources.file_formats import BATCH_ROWS
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore

QUOTAS = (100, 1_000, 4_096, 16_384, 65_536, 262_144)


@dataclass(frozen=True)
class Found:
    seconds: float
    rows: int
    results: list[tuple[float, int, int]]  # seconds, rows taken by then, results given out by then
    peak_bytes: int

    def when(self, share: float) -> str:
        """After which part of the time and of the rows a share of the results was out."""
        wanted = share * self.results[-1][2]
        at, taken, _ = next(sample for sample in self.results if sample[2] >= wanted)
        return f"{at / self.seconds:.0%}, {taken / self.rows:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling", description=__doc__.split("\n")[0])
    parser.add_argument("--workload", default="a", choices=sorted(WORKLOADS))
    parser.add_argument("--scale", type=float, default=0.5)
    parser.add_argument("--memory")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    tables = workload.generate(options.scale)
    memory = None if options.memory is None else parse_bytes(options.memory, "memory")
    names = sorted(tables)
    given = Options.parse({"query": workload.query, **{f"source.{name}.format": "arrow" for name in names}})
    spec = plan_join(given, [tables[name].schema for name in names])
    inputs = [tables[spec.sources[i.source].alias].combine_chunks().to_batches(BATCH_ROWS) for i in spec.inputs]
    everyone = tuple(range(len(inputs)))
    runs = [("sequential", Schedule())]
    for kind in ("priority", "random"):
        runs += [(f"{kind}, {q:,} rows", Schedule(kind, everyone, (q,) * len(everyone))) for q in QUOTAS]
    rounds = [[run(spec, inputs, schedule, memory) for _, schedule in runs] for _ in range(options.repeats + 1)]
    print("| schedule | rows per second | results | a tenth of them after (time, rows) | half | accounted peak |")
    print("|---|---|---|---|---|---|")
    for (name, _), *of in zip(runs, *rounds[1:], strict=True):  # the first round warms up
        found = min(of, key=lambda f: f.seconds)
        figures = (f"{found.rows / found.seconds:,.0f}", f"{found.results[-1][2]:,}", found.when(0.1), found.when(0.5))
        print(f"| {name} | {' | '.join(figures)} | {found.peak_bytes / 2**20:.0f} MiB |")


def run(spec: JoinSpec, inputs: Sequence[Sequence[pa.RecordBatch]], schedule: Schedule, memory: int | None) -> Found:
    tree = trees.single(len(inputs))
    limit = None if memory is None else OverflowPlan(memory, "adaptive", blocking_rows=0, fuel_bytes=0)
    plan = BatchPlan(tree, overflow=limit, schedule=schedule)
    state = PartitionState.empty(tree, trees.layout(spec, tree), {}, tracked=limit is not None)
    counts, taken = BatchCounts([0] * len(inputs)), [0]

    def arriving() -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, batch in schedules.merge(schedule, inputs, 1):
            taken[0] += batch.num_rows
            yield number, batch

    with tempfile.TemporaryDirectory() as place:
        store = StateStore(place, 0, None)
        pipeline = Pipeline(state, store, plan, 1, "run", counts, time.perf_counter, lambda state: None)
        out, results = 0, []
        began = time.process_time()
        for batch in pipeline.arrivals(arriving(), (0, 1)):
            out += batch.num_rows
            results.append((time.process_time() - began, taken[0], out))
        seconds = time.process_time() - began
    return Found(seconds, taken[0], results, counts.peak_bytes)


if __name__ == "__main__":
    main()
