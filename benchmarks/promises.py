"""Promises that only one input makes: what a micro-batch costs when many are remembered, without Spark.

    python -m benchmarks.promises [--promised 300000] [--batches 64] [--memory 16m]

One input of two promises string keys by punctuations, many in the first micro-batch and 1,000 in each that follows. The
other never promises anything, so all are remembered, or, with `memory`, the youngest. The reader, the tasks and the
store are the real ones, driven as Spark drives them. Prints how long a micro-batch takes, by the clock of the process,
what it writes about promises, and how much memory they take; exits with 1 if a micro-batch in the middle takes more
than 50 ms, or if all together write more than four times what is new.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin import sources
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import Limits, SourceLog
from spark_mjoin.state.manifest import Manifests

NEW = 1_000  # promises of a micro-batch
ROWS = 10  # of each input in each
TIME_BAR_MS, WRITTEN_BAR = 50.0, 4.0
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("over", pa.bool_())])

sources.REGISTRY["promising"] = "benchmarks.promises:PromisingSource"


class PromisingSource:
    """Every batch has a few rows and, where the source promises anything, punctuations about keys that do not come."""

    OPTIONS = ("first", "new")
    LIMITS = ("maxRowsPerTrigger",)

    def __init__(self, alias: str, options: Options) -> None:
        self._first = int(options.required("first", "promises of the first micro-batch"))
        self._new = int(options.required("new", "promises of each that follows"))

    def schema(self) -> pa.Schema:
        return SCHEMA

    def assume(self, schema: pa.Schema) -> None:
        """There is only one."""

    def initial(self) -> dict[str, Any]:
        return {"batch": 0}

    def latest(self, start: Mapping[str, Any], limits: Limits, log: SourceLog) -> dict[str, Any]:
        return {"batch": start["batch"] + 1}

    def freeze(self, log: SourceLog) -> None:
        """It never ends."""

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any], log: SourceLog) -> list[dict[str, Any]]:
        return [{"batch": number} for number in range(start["batch"], end["batch"])]

    def behind(self, position: Mapping[str, Any], log: SourceLog) -> int:
        return 0

    def read(self, range: Mapping[str, Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batch = range["batch"]
        low = self._first + (batch - 1) * self._new if batch else 0
        promised = np.arange(low, low + (self._new if batch else self._first))
        keys = [f"row {ROWS * batch + number}" for number in np.arange(ROWS)]
        keys += [f"order {number * 7919:020d}" for number in promised.tolist()]
        numbers = pa.array(np.arange(len(keys)), mask=np.arange(len(keys)) >= ROWS)
        values = {"k": pa.array(keys), "n": numbers, "over": pa.array(np.arange(len(keys)) >= ROWS)}
        yield pa.RecordBatch.from_pydict({name: values[name] for name in columns})


Figures = dict[str, float]


def run(promised: int, batches: int, state: Path, **options: str) -> Iterator[Figures]:
    """The figures of every micro-batch."""
    given = {"stateLocation": str(state), "source.a.punctuation": "over", **options}
    for alias, first, new in (("a", promised, NEW), ("b", 0, 0)):
        given |= {f"source.{alias}.format": "promising", f"source.{alias}.first": str(first)}
        given[f"source.{alias}.new"] = str(new)
    given["query"] = "SELECT a.k, a.n, b.n AS bn FROM a JOIN b ON a.k = b.k"
    source = MJoinDataSource(CaseInsensitiveDict(given))
    reader = source.streamReader(source.schema())
    start, known = reader.initialOffset(), set[Path]()
    for _ in range(batches + 1):
        began = time.process_time()
        end = reader.latestOffset(start, ReadAllAvailable())
        for partition in reader.partitions(start, end):
            for _results in reader.read(partition):
                continue
        spent = time.process_time() - began
        files = set(state.rglob("promises-*"))
        manifest = Manifests(f"{state}/{end['query']}", 0).manifest(end["version"])
        yield {
            "ms": 1000 * spent,
            "written": sum(path.stat().st_size for path in files - known),
            "memory": manifest.held.memory_bytes,
            "forgotten": manifest.done.promised.forgotten,
        }
        start, known = end, known | files


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--promised", type=int, default=300_000)
    parser.add_argument("--batches", type=int, default=64)
    parser.add_argument("--memory")
    given = parser.parse_args(arguments)
    options = {} if given.memory is None else {"memory": given.memory}
    with tempfile.TemporaryDirectory() as state:
        first, *others = run(given.promised, given.batches, Path(state), **options)
    written = sum(f["written"] for f in others)
    new = first["written"] / (given.promised - first["forgotten"]) * NEW  # bytes that as many promises need
    median = statistics.median(f["ms"] for f in others)
    print(f"first: {given.promised:,} promises, {first['ms']:.0f} ms, {first['written']:,} bytes written")
    print(f"then {given.batches} times {NEW:,}: {median:.1f} ms, {max(f['ms'] for f in others):.0f} ms at the most")
    print(f"bytes written: {written / len(others):,.0f}, {max(f['written'] for f in others):,} at the most")
    print(f"that is {written / len(others) / new:.1f} times what is new")
    print(f"memory: {others[-1]['memory']:,} bytes; forgotten: {sum(f['forgotten'] for f in (first, *others)):,}")
    return int(median > TIME_BAR_MS or (given.memory is None and written > WRITTEN_BAR * new * len(others)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
