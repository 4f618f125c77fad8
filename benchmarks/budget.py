"""What a memory budget means in a process: accounted bytes against resident set size, and what overflow costs in time.

    python -m benchmarks.budget [--workload a] [--memory 32m,64m,128m,none] [--scale 1]
    python -m benchmarks.budget --chains [--scale 5] [--repeats 3]

Each budget runs in a process of its own, which does what a Python worker of Spark does, without Spark: the reader plans
micro-batches of one file per input, the tasks run one after the other, results are dropped. Prints for each the time,
the accounted peak, and the most that the process had above what it had before the first batch.

With --chains: chains of three, four and six inputs, none of which have a key in common, with a tenth of the memory that
their state needs. The time is that of all micro-batches, and of the disk work that completes the results, which are
compared with duckdb's. Fails if one takes more than MOST times as long as with everything in memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.engines import REPOSITORY
from benchmarks.shapes import chain
from benchmarks.workloads import WORKLOADS, Dataset
from spark_mjoin.quantities import parse_bytes

MARK = "BUDGET-RESULT "
CHAINS = {workload.letter: workload for workload in map(chain, (3, 4, 6))}
SHARE = 10  # of the memory that a chain needs, the part that it gets: one of so many
MOST = 5.0  # times as long as in memory


@dataclass(frozen=True)
class Found:
    seconds: float
    batches: int
    results: int
    early: int  # results that arrivals gave, before any disk work
    accounted_bytes: int
    rss_bytes: int
    input_rows: int  # of one input


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.budget", description=__doc__.split("\n")[0])
    parser.add_argument("--workload", default="a", choices=sorted(WORKLOADS | CHAINS))
    parser.add_argument("--memory", default="none,256m,128m,64m,32m")
    parser.add_argument("--flush", default="adaptive")
    parser.add_argument("--scale", type=float, help="of the workload: 1, and 5 for chains, unless given")
    parser.add_argument("--chains", action="store_true", help="chains of inputs, with a tenth of the memory they need")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each chain, of which the fastest counts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    scale = options.scale or (5.0 if options.chains else 1.0)
    if options.child:
        print(MARK + json.dumps(asdict(run(options.workload, scale, options.child, options.flush, options.chains))))
        return
    if options.chains:
        sys.exit(0 if chains(scale, options.flush, options.repeats) else 1)
    print("| memory | time | micro-batches | results | before disk work | accounted peak | RSS above idle | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for memory in options.memory.split(","):
        found = _in_a_process(options.workload, scale, memory, options.flush)
        factor = "" if memory == "none" else f"{found.rss_bytes / parse_bytes(memory, 'memory'):.2f}"
        print(
            f"| {memory} | {found.seconds:.2f} s | {found.batches} | {found.results:,} | "
            f"{found.early / found.results:.0%} | {found.accounted_bytes / 2**20:.0f} MiB | "
            f"{found.rss_bytes / 2**20:.0f} MiB | {factor} |",
            flush=True,
        )


def chains(scale: float, flush: str, repeats: int) -> bool:
    """Compare chains in a tenth of the memory that they need with chains that have it all; whether none is too slow."""
    print("| chain | state | in memory | memory | time | ratio | before disk work | accounted peak |")
    print("|---|---|---|---|---|---|---|---|")
    slow = []
    for letter, workload in CHAINS.items():
        whole, little = list[Found](), list[Found]()
        for _ in range(repeats):
            whole.append(_in_a_process(letter, scale, "none", flush, "--chains"))
            budget = str(whole[0].accounted_bytes // SHARE)
            little.append(_in_a_process(letter, scale, budget, flush, "--chains"))
        fast, slower = (min(runs, key=lambda found: found.seconds) for runs in (whole, little))
        ratio = slower.seconds / fast.seconds
        print(
            f"| {len(workload.aliases)} x {fast.input_rows:,} rows | {fast.accounted_bytes / 2**20:.0f} MiB | "
            f"{fast.seconds:.2f} s | {int(budget) / 2**20:.1f} MiB | {slower.seconds:.2f} s | {ratio:.1f} | "
            f"{slower.early / slower.results:.1%} | {slower.accounted_bytes / 2**20:.1f} MiB |",
            flush=True,
        )
        if ratio > MOST:
            slow.append(letter)
    if slow:
        print(f"more than {MOST:g} times as long as in memory: {', '.join(slow)}")
    return not slow


def _in_a_process(letter: str, scale: float, memory: str, flush: str, *more: str) -> Found:
    command = [sys.executable, "-m", "benchmarks.budget", "--workload", letter, "--scale", str(scale), *more]
    command += ["--flush", flush, "--child", memory]
    done = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True)
    line = next(text for text in done.stdout.splitlines() if text.startswith(MARK))
    return Found(**json.loads(line.removeprefix(MARK)))


def run(letter: str, scale: float, memory: str, flush: str, verify: bool) -> Found:
    """One query in this process; with `verify` its results are kept, and compared with duckdb's when it has ended."""
    workload = (WORKLOADS | CHAINS)[letter]
    data = workload.prepare(REPOSITORY / "out" / "bench-data", scale)
    settings = {"flush": flush} | ({} if memory == "none" else {"memory": memory})
    with tempfile.TemporaryDirectory() as scratch:
        for number, (size, little) in enumerate([(0.01, "64k"), (0.2, "200k")][: 2 if verify else 1]):
            small = workload.prepare(REPOSITORY / "out" / "bench-data", size, 2)
            used = settings | ({} if memory == "none" else {"memory": little})
            _stream(small, used, Path(scratch) / f"warm{number}", [])
        idle = _status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        kept = list[pa.RecordBatch]()
        started = time.perf_counter()
        batches, results, early, accounted = _stream(data, settings, Path(scratch) / "timed", kept if verify else None)
        seconds = time.perf_counter() - started
        rss = _status("VmHWM") - idle
    if verify:
        _compare(data, pa.Table.from_batches(kept))
    return Found(seconds, batches, results, early, accounted, rss, _rows_of_one(data))


def _rows_of_one(data: Dataset) -> int:
    files = data.path(data.workload.aliases[0]).glob("*.parquet")
    return sum(pq.read_metadata(file).num_rows for file in files)


def _compare(data: Dataset, found: pa.Table) -> None:
    """Exit unless some rows are those that duckdb gives, by their number and the sum of their hashes."""
    import duckdb

    connection = duckdb.connect()
    for alias in data.workload.aliases:
        connection.execute(f"CREATE VIEW {alias} AS SELECT * FROM '{data.glob(alias)}'")
    columns = ", ".join(data.workload.output_names)
    tally = f"SELECT count(*), sum(hash({columns})::HUGEINT) FROM"
    connection.register("found", found)
    ours, expected = (connection.sql(f"{tally} {of}").fetchall() for of in ("found", f"({data.workload.query})"))
    if ours != expected:
        sys.exit(f"{data.workload.letter}: {ours} where duckdb has {expected} (rows, and the sum of their hashes)")


def _stream(
    data: Dataset, options: dict[str, str], state: Path, kept: list[pa.RecordBatch] | None = None
) -> tuple[int, int, int, int]:
    """A whole query without Spark: micro-batches, results, results of arrivals, the accounted peak.

    Results are dropped, unless they are to be kept.
    """
    from pyspark.sql.datasource import CaseInsensitiveDict
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from spark_mjoin.doors.datasource import MJoinDataSource
    from spark_mjoin.state.manifest import Manifests

    given = {"query": data.workload.query, "stateLocation": str(state), **options}
    for alias in data.workload.aliases:
        given |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(data.path(alias))}
        given[f"source.{alias}.maxFilesPerTrigger"] = "1"
    source = MJoinDataSource(CaseInsensitiveDict(given))
    reader = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    batches = results = early = accounted = 0
    while (end := reader.latestOffset(start, ReadMaxRows(2**62))) != start:
        for partition in reader.partitions(start, end):
            for batch in reader.read(partition):
                results += batch.num_rows
                if kept is not None:
                    kept.append(batch)
        done = Manifests(f"{state}/{end['query']}", 0).manifest(end["version"]).done
        early += done.memory_to_memory.rows
        accounted = max(accounted, done.peak_bytes)
        batches += 1
        start = end
    return batches, results, early, accounted


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


if __name__ == "__main__":
    main()
