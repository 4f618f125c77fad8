"""How long the driver takes to plan a micro-batch of many partitions, and to report it.

    python -m benchmarks.planning [--partitions 200] [--batches 10] [--cpu]

A query of one partition runs a while. Its newest manifest is then published for every partition and for version after
version, as if tasks had run, and the reader plans one batch after the other: `latestOffset` and `partitions`, and
before every second one `reportLatestOffset`, the report that people see. Manifests are on the disk and not in the
reader when a batch begins. Cold is the first batch of a reader that has just started, as after a restart; warm is the
median of those without a report. Fails if one of the two takes longer than MOST_MS.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.state import checked_json
from spark_mjoin.state.manifest import Manifest, Manifests, manifest_name
from spark_mjoin.state.routing import Routing

MOST_MS = 100.0
ALIASES = "abc"
ROWS = 400  # of each input in a batch
KINDS: dict[str, dict[str, str]] = {
    "in memory": {},
    "with a budget": {"memory": "600k", "blockingThreshold": "1"},
    "with windows": {"window": "20000 rows", "memory": "10m"},
    "with a tree": {"plan": "((a b) c)", "memory": "600k", "blockingThreshold": "1"},
}
Clock = Callable[[], float]
_LIMIT = ReadMaxRows(2**62)


@dataclass(frozen=True)
class Times:
    """In milliseconds, from when the batch before is over until the next one is planned."""

    planned: float
    reported: float | None  # of these, for the report; None where nobody asked for one


def reader(state: Path, kind: str, partitions: int) -> Any:
    given = {"on": "unique1", "stateLocation": str(state), "partitions": str(partitions), **KINDS[kind]}
    for seed, alias in enumerate(ALIASES):
        given |= {f"source.{alias}.format": "wisconsin", f"source.{alias}.rows": "10000000"}
        given |= {f"source.{alias}.seed": str(seed), f"source.{alias}.maxRowsPerTrigger": str(ROWS)}
    source = MJoinDataSource(CaseInsensitiveDict(given))
    return source.streamReader(source.schema())


def manifest_of(state: Path, kind: str, batches: int) -> Manifest:
    """What a partition has committed after some batches."""
    current = reader(state, kind, 1)
    start = current.initialOffset()
    for _ in range(batches):
        end = current.latestOffset(start, _LIMIT)
        for partition in current.partitions(start, end):
            for _results in current.read(partition):
                continue
        start = end
    return Manifests(f"{state}/{start['query']}", 0).manifest(start["version"])


def measure(
    state: Path, kind: str, partitions: int, batches: int, run: int = 60, clock: Clock = time.perf_counter
) -> Iterator[Times]:
    """The times of each batch; the first one is cold. The manifests are those of a query after `run` batches."""
    committed = manifest_of(state / "one", kind, run)
    current = reader(state / "all", kind, partitions)
    start = current.latestOffset(current.initialOffset(), _LIMIT)
    publish(state / "all", start, committed, partitions)
    current = reader(state / "all", kind, partitions)
    for number in range(batches):
        began = clock()
        if number % 2:
            assert current.reportLatestOffset()["version"] == start["version"]
        reported = clock()
        end = current.latestOffset(start, _LIMIT)
        assert len(current.partitions(start, end)) == partitions
        planned = clock()
        publish(state / "all", end, committed, partitions)
        yield Times(1000 * (planned - began), 1000 * (reported - began) if number % 2 else None)
        start = end


def publish(state: Path, offset: dict[str, Any], committed: Manifest, partitions: int) -> None:
    """The manifests that all tasks of a batch commit for the driver."""
    text = replace(committed, version=offset["version"], positions=offset["positions"]).text()
    contents = checked_json.with_checksum(text)
    for partition in range(partitions):
        place = state / offset["query"] / Routing(partitions).directory(partition)
        place.mkdir(parents=True, exist_ok=True)
        (place / manifest_name(offset["version"])).write_bytes(contents)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=200)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="time of the processor, where other processes run")
    given = parser.parse_args(arguments)
    clock = time.process_time if given.cpu else time.perf_counter
    unit = "milliseconds of the processor" if given.cpu else "milliseconds"
    print(f"{given.partitions} partitions, {unit}; a plan may take {MOST_MS:.0f}")
    print(f"{'state':<15}{'plan, cold':>12}{'plan, warm':>12}{'with a report':>15}{'manifest KiB':>14}")
    slow = False
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as state:
            first, *others = measure(Path(state), kind, given.partitions, given.batches, clock=clock)
            sizes = [path.stat().st_size for path in Path(state).glob("all/*/partition-0-*/version-*")]
        warm, reported = (
            statistics.median(times.planned for times in others if (times.reported is None) == alone)
            for alone in (True, False)
        )
        slow = slow or first.planned > MOST_MS or warm > MOST_MS
        size = max(sizes) / 1024
        print(f"{kind:<15}{first.planned:>12.1f}{warm:>12.1f}{reported:>15.1f}{size:>14.1f}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
