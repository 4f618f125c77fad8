"""What it costs to change the number of partitions at a restart, next to a restart that changes nothing.

    python -m benchmarks.rescale [--rows 1000000] [--changes 2-8,8-2] [--cpu]

A join of three inputs runs until its state has so many rows; then it is started again, in a worker that has nothing in
memory, and takes a small batch: with as many partitions as before, and with another number. Seconds are those of the
tasks of these batches, one after the other, so of all partitions together. With a budget a third of the state fits into
memory. Then results are pending on disk, and a batch before the change emits them: they would have been emitted later
without it.

    restart      the state is read into memory, as far as it fits
    pending      all that is pending is emitted
    change       rows are read from the old directories, divided anew, and written
    written      bytes of segments in the new directories, and in those of the restart that changes nothing
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.engine import cache

ALIASES = "abc"
BATCHES = 10  # in which the state comes to be
SMALL = 1000  # rows of each input in the batch after the restart
ROW_BYTES = 110  # of a row in memory, about, with its part of an index
QUERY = (
    "SELECT a.unique1, a.unique2 AS x, a.stringu1, b.unique2 AS y, b.stringu1 AS t, c.unique2 AS z FROM a "
    "JOIN b ON a.unique1 = b.unique1 JOIN c ON a.unique1 = c.unique1"
)
Clock = Callable[[], float]
_LIMIT = ReadMaxRows(2**62)


@dataclass(frozen=True)
class Cost:
    pending: float  # seconds
    first: float  # seconds of the first batch after the restart, or after what was pending
    written_bytes: int
    taken_over: int  # rows


def reader(state: Path, rows: int, batch: int, partitions: int, memory: int | None) -> Any:
    given = {"query": QUERY, "stateLocation": str(state), "partitions": str(partitions)}
    for seed, alias in enumerate(ALIASES):
        given |= {f"source.{alias}.format": "wisconsin", f"source.{alias}.rows": str(rows + SMALL)}
        given |= {f"source.{alias}.seed": str(seed), f"source.{alias}.maxRowsPerTrigger": str(batch)}
    if memory is not None:
        given |= {"memory": str(memory), "blockingThreshold": "1", "diskShare": "0"}
    source = MJoinDataSource(CaseInsensitiveDict(given))
    return source.streamReader(source.schema())


def consume(current: Any, start: dict[str, Any], end: dict[str, Any]) -> None:
    for partition in current.partitions(start, end):
        for _results in current.read(partition):
            continue


def build(state: Path, rows: int, partitions: int, memory: int | None) -> dict[str, Any]:
    """A query with so many rows of each input in its state; where it is."""
    current = reader(state, rows, rows // BATCHES, partitions, memory)
    start: dict[str, Any] = current.initialOffset()
    for _ in range(BATCHES):
        end = current.latestOffset(start, _LIMIT)
        consume(current, start, end)
        start = end
    return start


def restart(state: Path, at: dict[str, Any], rows: int, partitions: int, memory: int | None, clock: Clock) -> Cost:
    """Start the query again with a number of partitions, and take the rest of the rows."""
    cache.of_worker().clear()
    there = set(state.rglob("rows-*"))
    current = reader(state, rows, SMALL, partitions, memory)
    pending = 0.0
    end = current.latestOffset(at, _LIMIT)
    if end["plan"].get("emitsPending"):
        began = clock()
        consume(current, at, end)
        pending, at = clock() - began, end
        end = current.latestOffset(at, _LIMIT)
    began = clock()
    consume(current, at, end)
    seconds = clock() - began
    written = sum(path.stat().st_size for path in state.rglob("rows-*") if path not in there)
    return Cost(pending, seconds, written, int(current.reportLatestOffset()["metrics"]["rowsTakenOver"]))


def measure(rows: int, change: tuple[int, int], spills: bool, clock: Clock) -> tuple[Cost, Cost]:
    """A restart with the same number of partitions, and one with another."""
    before, after = change
    each = rows // len(ALIASES)
    memory = rows * ROW_BYTES // 3 if spills else None
    with tempfile.TemporaryDirectory() as place:
        built = Path(place) / "built"
        at = build(built, each, before, memory)
        same, other = (Path(shutil.copytree(built, Path(place) / name)) for name in ("same", "other"))
        return (
            restart(same, at, each, before, memory, clock),
            restart(other, at, each, after, memory, clock),
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the state, all inputs together")
    parser.add_argument("--changes", default="2-8,8-2")
    parser.add_argument("--cpu", action="store_true", help="time of the processor, where other processes run")
    given = parser.parse_args(arguments)
    clock = time.process_time if given.cpu else time.perf_counter
    changes = [(int(before), int(after)) for before, _, after in (c.partition("-") for c in given.changes.split(","))]
    measure(3 * BATCHES * SMALL, changes[0], False, clock)  # compiles, and loads what is loaded late
    unit = "seconds of the processor" if given.cpu else "seconds"
    print(f"{unit} and MiB per million rows of state, {given.rows:,} rows")
    names = ("restart", "pending", "change", "MiB, restart", "MiB, change")
    print(f"{'state':<20}{'':<6}" + "".join(f"{name:>14}" for name in names))
    millions = given.rows / 1e6
    for spills in (False, True):
        for change in changes:
            same, other = measure(given.rows, change, spills, clock)
            figures = [same.first, other.pending, other.first]
            sizes = [same.written_bytes / 2**20, other.written_bytes / 2**20]
            print(
                f"{'two thirds on disk' if spills else 'in memory':<20}{change[0]} to {change[1]}"
                + "".join(f"{figure / millions:>14.2f}" for figure in figures)
                + "".join(f"{size / millions:>14.1f}" for size in sizes),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
