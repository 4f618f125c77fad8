"""What it costs to know of every row its bucket and its arrival: bytes in memory and on disk, and time.

    python -m benchmarks.marks [--rows 300000] [--repeats 5] [--against <another checkout of this repository>]

Three inputs with a common key arrive in turns, through the phases of a task, without Spark. With --against, the package
of another checkout does the same work on the same data, in processes of their own that take turns: with the program of
that checkout, or with this one where it has none. Times are of the
processor, the least of all runs.

    bytes in memory    accounted for a row, without indexes
    bytes on disk      of a row in segments as commits write them, in the table clustered by bucket
    rows held          of all inputs, when a budget of 16 MiB is first reached
    arrival            rows arrive and are joined, all in memory, and the join may evict them
    pass               `flush=coordinated` has evicted them in a tenth of the memory; one pass emits the rest
    load               the state after that is read from disk
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

MARK = "MARKS-RESULT "
REPOSITORY = Path(__file__).parents[1]
QUERY = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
KINDS = {"integers": pa.int64(), "strings": pa.string()}
BATCH = 10_000
BUDGET = 16 << 20
LITTLE = 12  # bytes of memory for each row of an input where most are evicted: about a tenth
FIGURES = {
    "bytes in memory": "{:.1f}",
    "bytes on disk": "{:.1f}",
    "rows held": "{:,.0f}",
    "arrival": "{:.2f} s",
    "pass": "{:.2f} s",
    "load": "{:.2f} s",
    "results": "{:,.0f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.marks", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=300_000, help="of each input")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout of this repository, to compare with")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(MARK + json.dumps(measure(options.child, options.rows)))
        return
    places = [*([options.against.resolve()] if options.against else []), REPOSITORY]
    names = ["before", "after"] if options.against else ["now"]
    print(f"| key | figure | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for kind in KINDS:
        found: list[list[dict[str, float]]] = [[] for _ in places]
        for _ in range(options.repeats):
            for runs, place in zip(found, places, strict=True):
                runs.append(_in_a_process(kind, options.rows, place))
        best = [{name: min(run[name] for run in runs) for name in FIGURES} for runs in found]
        if len({of["results"] for of in best}) > 1:
            raise SystemExit(f"the results differ: {[of['results'] for of in best]}")
        for name, form in FIGURES.items():
            print(f"| {kind} | {name} | {' | '.join(form.format(of[name]) for of in best)} |", flush=True)


def _in_a_process(kind: str, rows: int, place: Path) -> dict[str, float]:
    own = place / "benchmarks" / "marks.py"
    command = [sys.executable, str(own if own.exists() else Path(__file__)), "--rows", str(rows), "--child", kind]
    environment = os.environ | {"PYTHONPATH": str(place)}
    done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    line = next(text for text in done.stdout.splitlines() if text.startswith(MARK))
    out: dict[str, float] = json.loads(line.removeprefix(MARK))
    return out


def measure(kind: str, rows: int) -> dict[str, float]:
    """All figures of one process."""
    with tempfile.TemporaryDirectory() as scratch:
        _figures(kind, 5 * BATCH, Path(scratch) / "warm")
        return _figures(kind, rows, Path(scratch) / "timed")


def _figures(kind: str, rows: int, scratch: Path) -> dict[str, float]:
    out = {}
    whole = _Join(kind, rows, scratch / "memory", None)
    out["arrival"] = whole.arrive()
    (state,) = whole.state.operators
    out["bytes in memory"] = sum(table.row_bytes() for table in state.tables) / len(state.tables)
    held = _Join(kind, rows, scratch / "held", BUDGET)
    held.arrive(until_flushed=True)
    out["rows held"] = sum(held.state.root.totals)
    little = _Join(kind, rows, scratch / "little", LITTLE * rows)
    little.arrive()
    little.commit()
    out["pass"] = little.clean()
    little.commit()
    segments = little.state.root.segments
    out["bytes on disk"] = sum(s.bytes for s in segments) / sum(s.end - s.start for s in segments)
    out["load"] = little.load()
    if whole.results != little.results:
        raise SystemExit(f"{little.results} results instead of {whole.results}")
    out["results"] = little.results
    return out


class _Join:
    """A join of three inputs, driven through the phases of a task."""

    def __init__(self, kind: str, rows: int, directory: Path, memory: int | None) -> None:
        from spark_mjoin.config import Options
        from spark_mjoin.counts import BatchCounts
        from spark_mjoin.engine.pipeline import Pipeline
        from spark_mjoin.plan import Overflow, Plan
        from spark_mjoin.query.graph import plan_join
        from spark_mjoin.query.tree import layout
        from spark_mjoin.state.partition import PartitionState
        from spark_mjoin.state.store import StateStore

        schema = pa.schema([("k", KINDS[kind]), ("v", pa.int64())])
        options = Options.parse({"query": QUERY, **{f"source.{name}.format": "arrow" for name in "abc"}})
        spec, tree = plan_join(options, [schema] * 3), (0, 1, 2)
        self.spec = spec
        self.state = PartitionState.empty(tree, layout(spec, tree), {}, tracked=True)
        self.store, self.counts = StateStore(str(directory), 0), BatchCounts([0] * 3)
        self.overflow = Overflow(memory, "coordinated", blocking_rows=0, fuel_bytes=1 << 40)
        plan = Plan(tree, overflow=self.overflow)
        self.pipeline = Pipeline(self.state, plan, self.store.draft(1, "x"), self.counts, lambda: 0.0)
        self.rows, self.schema, self.results, self.version = rows, schema, 0, 1

    def arrive(self, until_flushed: bool = False) -> float:
        from spark_mjoin.engine.feed import Piece

        dice = np.random.default_rng(0)
        seconds = 0.0
        for _ in range(self.rows // BATCH):
            for input in range(3):
                if until_flushed and self.counts.evicted.flushes:
                    return seconds
                keys, values = dice.integers(0, self.rows // 3, BATCH), dice.integers(0, 1 << 40, BATCH)
                arrays = [pa.array(keys).cast(self.schema.field("k").type), pa.array(values)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                seconds += self._count(self.pipeline.arrivals([Piece.whole(input, batch)]))
        return seconds

    def clean(self) -> float:
        from spark_mjoin.engine import cleanup, overflow
        from spark_mjoin.engine.disk import Disk
        from spark_mjoin.mjoin.orders import Probing

        area, probing = overflow.work_area(self.overflow), Probing.unplanned(self.spec)
        disk = Disk(self.state.root, self.store, area, self.counts.disk_to_disk, probing)
        return self._count(cleanup.clean(disk, range(64)))

    def _count(self, batches: Any) -> float:
        started = time.process_time()
        self.results += sum(batch.num_rows for batch in batches)
        return time.process_time() - started

    def commit(self) -> None:
        self.store.commit(self.state, self.version, {}, self.counts, "x")
        self.version += 1

    def load(self) -> float:
        from spark_mjoin.engine.loading import load

        started = time.process_time()
        loaded = load(self.store, self.spec, self.state.tree, self.version, {}, None)
        seconds = time.process_time() - started
        if [table.rows for table in loaded.root.tables] != [table.rows for table in self.state.root.tables]:
            raise SystemExit("a loaded state has other rows in memory")
        return seconds


if __name__ == "__main__":
    main()
