"""One engine under one load in a process of its own: start the query, let the files come, note when results are out.

Reads a Trial as JSON from stdin and prints one line with what it observed. A result is in the sink when the function
that foreachBatch calls has it in its hands, as a row of an Arrow table. The trigger is Spark's default: the next
micro-batch starts when the last has ended.

The query starts with the first files there, and the others begin to come when their results are out. So neither the
start of the session nor that of the query is part of any latency.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import child
from benchmarks.arrivals import SPREAD, Delivered, Delivery, Load, deliver, tables
from benchmarks.engines import REPOSITORY, RESULT_MARK, Engine
from benchmarks.workloads import ALIASES

START_SECONDS = 240.0
"""So long the first results may take."""


@dataclass(frozen=True)
class Trial:
    engine: Engine
    load: Load
    prepared: str
    """Where the files are, made beforehand and the same for all engines."""
    scratch: str
    patience: float
    """Seconds after the last file, for results that are still missing."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Trial:
        parts = json.loads(text)
        return cls(**(parts | {"engine": Engine(**parts["engine"]), "load": Load(**parts["load"])}))


@dataclass(frozen=True)
class Observed:
    """What a trial saw. Times are seconds since the first file that the writer put in place."""

    out: Sequence[Sequence[float]] = ()
    """Results by the newest of their files and by micro-batch: when that file came, when the batch was in the sink, how
    many. Those whose files were all there from the start are left out."""
    missing: Sequence[Sequence[float]] = ()
    """Results that were not out in the end: when the newest of their files came, how many."""
    late: float = 0.0
    """The longest that a file came after its time."""
    batches: int = 0
    ended: float = 0.0
    """When the trial stopped waiting."""
    once: bool = False
    """No result came twice."""
    error: str = ""


@dataclass
class Sink:
    """The function for foreachBatch, and what it has been given."""

    expected: int
    batches: list[tuple[float, pa.Table]] = field(default_factory=list)
    """When a micro-batch was there (Unix time), and its keys and ticks."""
    results: int = 0
    complete: threading.Event = field(default_factory=threading.Event)

    def __call__(self, batch: Any, number: int) -> None:
        table: pa.Table = batch.toArrow()
        at = time.time()
        if table.num_rows == 0:
            return
        self.batches.append((at, table.select(["id", *_TICKS])))  # looked at in the end: here it would cost time
        self.results += table.num_rows
        if self.results >= self.expected:
            self.complete.set()


_TICKS = [f"{alias}_tick" for alias in ALIASES]


def observe(spark: Any, trial: Trial) -> Observed:
    load, scratch = trial.load, Path(trial.scratch)
    deliver(Delivery(trial.prepared, str(scratch / "in"), 0, SPREAD, 0.0))
    sink = Sink(load.rows)
    joined = child.frame(spark, trial.engine, load.dataset(scratch / "in"), scratch)
    writer = joined.writeStream.foreachBatch(sink).option("checkpointLocation", str(scratch / "checkpoint"))
    query = writer.start()
    try:
        _first_results(query, sink)
        rest = _in_own_process(Delivery(trial.prepared, str(scratch / "in"), SPREAD, load.ticks, load.interval))
        _all_results(query, sink, trial.patience)
        ended = time.time()
    finally:
        query.stop()
    return observed(load, sink.batches, rest, ended)


def observed(load: Load, batches: Sequence[tuple[float, pa.Table]], rest: Delivered, ended: float) -> Observed:
    """What came when, from what the sink and the writer noted."""
    came = np.concatenate([np.full((SPREAD, len(ALIASES)), -np.inf), rest.came])
    batches = [(at, table) for at, table in batches if at <= ended]
    times_out = np.zeros(load.rows, dtype=np.int64)
    out = []
    for at, table in batches:
        times_out += np.bincount(table.column("id").to_numpy(), minlength=load.rows)
        ticks = [table.column(name).to_numpy() for name in _TICKS]
        out += [[moment, at - rest.start, results] for moment, results in _by_newest_file(came, ticks)]
    inputs = tables(load) if not times_out.all() else {}
    missing = [_ticks_of(inputs[alias], alias)[times_out == 0] for alias in inputs]
    return Observed(
        out=out,
        missing=[list(pair) for pair in _by_newest_file(came, missing)] if missing else [],
        late=rest.late,
        batches=sum(at > rest.start for at, _ in batches),
        ended=ended - rest.start,
        once=bool(times_out.max() <= 1),
    )


def _by_newest_file(came: Any, ticks: Sequence[Any]) -> list[tuple[float, int]]:
    """When the newest file of a result came, and how many results that is so for; `ticks` has an array per stream."""
    newest = np.max([came[tick, stream] for stream, tick in enumerate(ticks)], axis=0)
    moments, counts = np.unique(newest[np.isfinite(newest)], return_counts=True)
    return list(zip(moments.tolist(), counts.tolist(), strict=True))


def _ticks_of(table: pa.Table, alias: str) -> Any:
    """The tick of each key, in the order of the keys."""
    return table.column(f"{alias}_tick").to_numpy()[np.argsort(table.column("id").to_numpy())]


def _first_results(query: Any, sink: Sink) -> None:
    until = time.time() + START_SECONDS
    while not sink.batches:
        _still_running(query)
        if time.time() > until:
            raise TimeoutError(f"no result after {START_SECONDS:.0f} s")
        time.sleep(0.05)


def _all_results(query: Any, sink: Sink, patience: float) -> None:
    """Wait for all results, but no longer than the patience lasts."""
    until = time.time() + patience
    while not sink.complete.wait(0.2) and time.time() < until:
        _still_running(query)


def _still_running(query: Any) -> None:
    if not query.isActive:
        raise RuntimeError(f"the query ended: {query.exception()}")


def _in_own_process(delivery: Delivery) -> Delivered:
    command = [sys.executable, "-m", "benchmarks.arrivals"]
    done = subprocess.run(
        command, cwd=REPOSITORY, input=delivery.to_json(), stdout=subprocess.PIPE, text=True, check=True
    )
    return Delivered(**json.loads(done.stdout.splitlines()[-1].removeprefix(RESULT_MARK)))


def main() -> None:
    trial = Trial.from_json(sys.stdin.read())
    try:
        spark = child.session(trial.engine, trial.scratch)
        try:
            found = observe(spark, trial)
        finally:
            spark.stop()
    except Exception as failure:  # noqa: BLE001 - reported in the table; the other engines go on
        traceback.print_exc()
        found = Observed(error=child.short(failure))
    print(RESULT_MARK + json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    main()
