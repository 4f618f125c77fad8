"""One engine on one workload in a process of its own: warm up, time, then check.

Reads a Request as JSON from stdin and prints one line with its Measurements. What is timed:

* Spark engines: from `start()` of the streaming query to its end (AvailableNow), noop sink. So with reading parquet,
  checkpoint and state writes, and without starting the JVM and the session. Cold is the first query of the session,
  which finds nothing started, loaded or compiled there but what numba has in its cache; warm are the later ones.
* duckdb: from the SQL text over the parquet files to an Arrow table in memory.
* kernel: from Arrow tables in memory to Arrow batches in memory, both sides on one thread, in turns.

Each timed run has fresh checkpoint and state directories, removed afterwards. Memory is the whole process tree's while
the timed run runs, JVM and session included. The result is checked in another, untimed run.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_mjoin
from benchmarks import check, kernel
from benchmarks.engines import RESULT_MARK, Engine, Measurement, Request
from benchmarks.memory import PeakMemory
from benchmarks.shapes import SHAPES
from benchmarks.workloads import WARM_UP_FILES, WARM_UP_SCALE, WORKLOADS, Dataset

MIN_KERNEL_ROUNDS = 5


def measure(request: Request) -> list[Measurement]:
    workload = (WORKLOADS | SHAPES)[request.workload]
    data = workload.prepare(Path(request.cache), request.scale)
    small = workload.prepare(Path(request.cache), WARM_UP_SCALE, WARM_UP_FILES)
    blank = Measurement(request.workload, request.engine.name, request.engine.label)
    match request.engine.kind:
        case "duckdb":
            return [_duckdb(request, data, small, blank)]
        case "kernel":
            return _kernel(request, data, small, blank)
        case _:
            return [_spark(request, data, small, blank)]


def _repeat(request: Request, once: Callable[[], float]) -> tuple[tuple[float, ...], tuple[int, ...], str]:
    """The peak of a first run, and the times of up to `repeats` more; `once` gives the seconds it took.

    Not of the same runs: sampling memory takes a share of a core, and holds up a process whose pages it counts.
    """
    with PeakMemory() as memory:
        once()
    times: list[float] = []
    while len(times) < request.repeats and sum(times) < request.budget_seconds:
        gc.collect()
        times.append(once())
    return tuple(times), (memory.peak_bytes,), memory.measure


def _verified(measurement: Measurement, checked: Callable[[], check.Checksum]) -> Measurement:
    """With the checksum of a run of its own; the times stay when that run fails."""
    try:
        checksum = checked()
    except Exception as failure:  # noqa: BLE001 - reported in the table
        traceback.print_exc()
        return replace(measurement, error=f"the checking run failed: {short(failure)}")
    rows = checksum.rows if measurement.rows is None else measurement.rows
    return replace(measurement, rows=rows, checksum=asdict(checksum))


# ---- duckdb, from files


def _duckdb(request: Request, data: Dataset, small: Dataset, blank: Measurement) -> Measurement:
    connection = check.connect(request.engine.threads)
    rows = 0

    def once(dataset: Dataset = data) -> float:
        nonlocal rows
        check.attach_files(connection, dataset)
        started = time.perf_counter()
        result = connection.sql(dataset.workload.query).to_arrow_table()
        seconds = time.perf_counter() - started
        rows = result.num_rows
        return seconds

    once(small)
    times, peaks, measure = _repeat(request, once)
    found = replace(blank, times=times, peak_bytes=peaks, memory_measure=measure, rows=rows)

    def checked() -> check.Checksum:
        return check.of_arrow(connection.sql(data.workload.query).to_arrow_table(), data.workload.output_names)

    return _verified(found, checked) if request.verify else found


# ---- the kernel and duckdb, both in memory


def _kernel(request: Request, data: Dataset, small: Dataset, blank: Measurement) -> list[Measurement]:
    """Kernel and single-threaded duckdb in turns, so that a noisy minute hits both."""
    rival = replace(blank, engine="kernel-duckdb", label="duckdb in memory, 1 thread")
    workload, tables = data.workload, data.tables()
    connection = check.connect(threads=1)
    for alias in workload.aliases:
        connection.register(alias, tables[alias])

    def by_duckdb() -> pa.Table:
        return connection.sql(workload.query).to_arrow_table()

    def by_kernel() -> list[pa.RecordBatch]:
        return kernel.run_incremental(workload, tables, kernel.BATCH_ROWS)

    by_duckdb()
    error = ""
    try:
        kernel.run_incremental(workload, small.tables(), kernel.BATCH_ROWS)
    except Exception as failure:  # noqa: BLE001 - duckdb's half of the figure is still worth having
        traceback.print_exc()
        error = short(failure)

    rounds = max(request.repeats, MIN_KERNEL_ROUNDS)
    times: dict[str, list[float]] = {"kernel": [], "duckdb": []}
    for _ in range(rounds):
        times["duckdb"].append(_seconds(by_duckdb))
        if not error:
            times["kernel"].append(_seconds(by_kernel))

    rival = replace(rival, times=tuple(times["duckdb"]))
    ours = replace(blank, times=tuple(times["kernel"]), error=error)
    if request.verify:
        rival = _verified(rival, lambda: check.of_arrow(by_duckdb(), workload.output_names))
        if not error:
            ours = _verified(ours, lambda: check.of_arrow(pa.Table.from_batches(by_kernel()), workload.output_names))
    return [ours, rival]


def _seconds(run: Callable[[], object]) -> float:
    gc.collect()
    started = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    del result  # after the clock: freeing the result is not part of the join
    return seconds


# ---- Spark: mjoin, and Spark's own stream-stream joins


def _spark(request: Request, data: Dataset, small: Dataset, blank: Measurement) -> Measurement:
    if request.engine.kind in ("mjoin", "streams"):
        with _directory(request) as directory:
            _compile(small, request.engine, directory)
    spark = session(request.engine, request.scratch)
    try:
        return in_session(spark, request, data, blank)
    finally:
        spark.stop()


def in_session(spark: Any, request: Request, data: Dataset, blank: Measurement) -> Measurement:
    """Cold, warm and checked; the session must not have run anything yet."""
    micro_batches = rows = 0

    def once() -> float:
        nonlocal micro_batches, rows
        spark._jvm.System.gc()  # start every run from the same heap
        with _directory(request) as directory:
            seconds, micro_batches, rows = _stream(spark, request, data, directory, _noop)
        return seconds

    cold = once()
    times, peaks, measure = _repeat(request, once)
    found = replace(
        blank,
        cold=cold,
        times=times,
        peak_bytes=peaks,
        memory_measure=measure,
        micro_batches=micro_batches,
        rows=rows,
    )

    def checked() -> check.Checksum:
        with _directory(request) as directory:
            _stream(spark, request, data, directory, _to_parquet)
            return check.of_files(directory / "result", data.workload.output_names)

    return _verified(found, checked) if request.verify else found


def _compile(small: Dataset, engine: Engine, directory: Path) -> None:
    """A small join without Spark: what numba compiles once per machine is in its cache then, and not in a cold time."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from spark_mjoin.doors.datasource import MJoinDataSource

    options = {"query": small.workload.query, "stateLocation": str(directory)} | engine.options
    for alias in small.workload.aliases:
        options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(small.path(alias))}
    source = MJoinDataSource(CaseInsensitiveDict(options))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    for partition in reader.partitions(start, end):
        for _ in reader.read(partition):
            pass


def session(engine: Engine, scratch: str, master: str = "local[2]") -> Any:
    """A Spark session as the engine wants it."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(f"bench {engine.name}")
    settings = {
        "spark.driver.memory": engine.driver_memory,
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    for name, value in (settings | engine.conf).items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    if engine.jar:
        spark_mjoin.enable(found)
    return found


@contextmanager
def _directory(request: Request) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=request.scratch, prefix="run-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _noop(writer: Any, directory: Path) -> Any:
    return writer.format("noop")


def _to_parquet(writer: Any, directory: Path) -> Any:
    return writer.format("parquet").option("path", str(directory / "result"))


def _stream(
    spark: Any, request: Request, dataset: Dataset, directory: Path, sink: Callable[[Any, Path], Any]
) -> tuple[float, int, int]:
    """One streaming query to its end: seconds, micro-batches, rows written as the sink counts them."""
    joined = frame(spark, request.engine, dataset, directory)
    writer = sink(joined.writeStream, directory).option("checkpointLocation", str(directory / "checkpoint"))
    started = time.perf_counter()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.perf_counter() - started
    written = [progress.sink.numOutputRows for progress in query.recentProgress]
    commits = [int(path.name) for path in (directory / "checkpoint" / "commits").iterdir() if path.name.isdigit()]
    return seconds, max(commits, default=-1) + 1, sum(rows for rows in written if rows > 0)


def frame(spark: Any, engine: Engine, dataset: Dataset, directory: Path) -> Any:
    """The workload's query over its files, as a streaming DataFrame; state goes below the directory."""
    build = {"mjoin": _mjoin_frame, "streams": _streams_frame}.get(engine.kind, _spark_frame)
    return build(spark, engine, dataset, directory)


def _mjoin_frame(spark: Any, engine: Engine, dataset: Dataset, directory: Path) -> Any:
    reader = spark.readStream.format("mjoin").option("query", dataset.workload.query)
    if not engine.jar:
        reader = reader.option("stateLocation", str(directory / "state"))
    for alias in dataset.workload.aliases:
        reader = reader.option(f"source.{alias}.format", "parquet")
        reader = reader.option(f"source.{alias}.path", str(dataset.path(alias)))
        if engine.files_per_trigger is not None:
            reader = reader.option(f"source.{alias}.maxFilesPerTrigger", str(engine.files_per_trigger))
    return reader.options(**engine.options).load()


def _streams_frame(spark: Any, engine: Engine, dataset: Dataset, directory: Path) -> Any:
    """The same query text over streaming DataFrames, through Spark's shuffle."""
    return spark_mjoin.join(_streams(spark, engine, dataset), dataset.workload.query, **engine.options)


def _spark_frame(spark: Any, engine: Engine, dataset: Dataset, directory: Path) -> Any:
    """The same query text over streaming views: Spark plans chained binary stream-stream inner joins."""
    for alias, stream in _streams(spark, engine, dataset).items():
        stream.createOrReplaceTempView(alias)
    return spark.sql(dataset.workload.query)


def _streams(spark: Any, engine: Engine, dataset: Dataset) -> dict[str, Any]:
    found = {}
    for alias in dataset.workload.aliases:
        reader = spark.readStream.schema(dataset.ddl(alias))
        if engine.files_per_trigger is not None:
            reader = reader.option("maxFilesPerTrigger", str(engine.files_per_trigger))
        found[alias] = reader.parquet(str(dataset.path(alias)))
    return found


def short(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines() or [""]
    return f"{type(failure).__name__}: {lines[0]}"[:300]


def main() -> None:
    request = Request.from_json(sys.stdin.read())
    try:
        found = measure(request)
    except Exception as failure:  # noqa: BLE001 - reported in the table; the other engines go on
        traceback.print_exc()
        error = short(failure)
        found = [Measurement(request.workload, request.engine.name, request.engine.label, error=error)]
    print(RESULT_MARK + json.dumps([asdict(measurement) for measurement in found]), flush=True)


if __name__ == "__main__":
    main()
