"""What must hold with the jar, in a session with which everything is done as a user would: see child.py.

Counts are compared with duckdb's: what the join gives after some files, minus what it gave before.
"""

import contextlib
import datetime as dt
import itertools
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.types import StructType

import spark_mjoin
from spark_mjoin import metrics_of
from tests.harness import duckdb_join, rows
from tests.spark.joins import FileJoin
from tests.spark.restoring import removed_in_rounds, restored_in_rounds

CLASSIC = ("enable",)
BOTH = ("enable", "connect")
PHASES = ("memoryToMemoryRows", "diskToMemoryRows", "diskToDiskRows")
LIMITED = {"maxFilesPerTrigger": "1", "partitions": "2", "stateLocation": ""}


Run = Callable[[Any, Path], None]


@dataclass
class Scenario:
    run: Run
    modes: tuple[str, ...]


SCENARIOS: dict[str, Scenario] = {}


def scenario(*modes: str, of: dict[str, Scenario] = SCENARIOS) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        of[run.__name__] = Scenario(run, modes)
        return run

    return register


# --- metrics -----------------------------------------------------------------------------------------------------


def metrics(query: Any) -> list[dict[str, str]]:
    """Of each batch that had input."""
    moved = [p for p in query.recentProgress if source(p)["startOffset"] != source(p)["endOffset"]]
    return [source(p)["metrics"] for p in moved]


def source(progress: Any) -> Any:
    return progress["sources"][0]


def results(reported: dict[str, str]) -> int:
    return sum(int(reported[phase]) for phase in PHASES)


def expected_per_batch(join: FileJoin) -> list[int]:
    """Results of batches of one file per source, as duckdb counts them."""
    files = len(join.tables["a"])
    totals = [0]
    for count in range(1, files + 1):
        part = {alias: pa.concat_tables(tables[:count]) for alias, tables in join.tables.items()}
        totals.append(duckdb_join(join.query, part).num_rows)
    return [after - before for before, after in itertools.pairwise(totals)]


def to_parquet(join: FileJoin, spark: Any) -> Any:
    """Run the query to its end into files; returns it."""
    writer = join.load(spark).writeStream.format("parquet").option("path", str(join.root / "sink"))
    query = join.start_with(writer)
    query.awaitTermination()
    return query


def sink(join: FileJoin, spark: Any) -> Any:
    return rows(spark.read.parquet(str(join.root / "sink")).toArrow())


@scenario("enable", "spark.jars", "connect")
def oracle_metrics_of_each_batch(spark: Any, root: Path) -> None:
    join = FileJoin(root, options=LIMITED | {"memory": "1g"}).fill(files=4)
    reported = metrics(to_parquet(join, spark))
    assert [results(m) for m in reported] == expected_per_batch(join)
    assert sink(join, spark) == join.expected()
    check_scan_nodes(reported)
    assert [m["stateCacheHits"] for m in reported] == ["0", "2", "2", "2"]
    totals = [sum(expected_per_batch(join)[: i + 1]) for i in range(4)]
    assert [int(m["resultsTotal"]) for m in reported] == totals
    with_key = duckdb_join("SELECT 1 FROM a WHERE k IS NOT NULL", {"a": pa.concat_tables(join.tables["a"])}).num_rows
    last = reported[-1]
    assert int(last["aNumRowsTotal"]) == with_key
    assert int(last["numRowsTotal"]) == sum(int(last[f"{alias}NumRowsTotal"]) for alias in "abc")
    assert [sum(int(m[f"{alias}NumInputRows"]) for m in reported) for alias in "abc"] == [
        int(last[f"{alias}NumRowsTotal"]) for alias in "abc"
    ]
    assert all(float(m["aRowsPerSecond"]) > 0 for m in reported)
    assert last["memoryBudgetBytes"] == str(1 << 30)
    assert [m["maxOffsetsBehindLatest"] for m in reported] == ["3", "2", "1", "0"]
    assert (last["minOffsetsBehindLatest"], last["avgOffsetsBehindLatest"]) == ("0", "0.0")
    assert all(value == str(value) and "." not in name for m in reported for name, value in m.items())


@scenario(*BOTH)
def oracle_metrics_and_state_after_a_restart(spark: Any, root: Path) -> None:
    """In a place whose name is not the same in a URI."""
    join = FileJoin(root / "a blank, 100%, a #", options=LIMITED).fill(files=2)
    before = metrics(to_parquet(join, spark))
    join.fill(files=2)
    after = metrics(to_parquet(join, spark))
    assert [results(m) for m in before + after] == expected_per_batch(join)
    assert int(after[-1]["resultsTotal"]) == join.expected().total()
    assert sink(join, spark) == join.expected()
    check_place(join)


@scenario(*BOTH)
def oracle_metrics_with_retries(spark: Any, root: Path) -> None:
    """Tasks die before and after their commit and are run again: the parent puts the faults in place."""
    faults = [
        {"when": "after", "file": "version-0*2[.]", "what": "worker"},  # committed, and run again all the same
        {"when": "before", "file": "rows-0*3-", "what": "raise"},
        {"when": "unlinked", "file": "version-0*3[.]", "what": "worker"},
    ]
    plan = Path(os.environ["MJOIN_FAULTS"])
    plan.write_text(json.dumps(faults))
    try:
        join = FileJoin(root, options=LIMITED).fill(files=3)
        reported = metrics(to_parquet(join, spark))
    finally:
        plan.write_text("[]")
    assert [Path(f"{plan}.{number}").exists() for number in range(len(faults))] == [True] * len(faults)
    assert [results(m) for m in reported] == expected_per_batch(join)
    assert sink(join, spark) == join.expected()


@scenario(*BOTH)
def oracle_checkpoint_and_state_are_restored(spark: Any, root: Path) -> None:
    """While workers and the planner's process live on; partitions keep to their workers, or change them."""
    for name, sticky in (("sticky", "true"), ("free", "false")):
        (root / name).mkdir()
        restored_in_rounds(spark, root / name, stateLocation="", stickyPartitions=sticky)


@scenario(*BOTH)
def oracle_manifests_are_removed_and_the_batch_done_again(spark: Any, root: Path) -> None:
    removed_in_rounds(spark, root, stateLocation="", stickyPartitions="false")


class Events(StreamingQueryListener):
    def __init__(self) -> None:
        self.progress: list[Any] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.progress.append(event.progress)

    def onQueryTerminated(self, event: Any) -> None:
        self.ended.set()


@scenario(*BOTH)
def oracle_a_listener_sees_the_metrics_of_every_batch(spark: Any, root: Path) -> None:
    """And a trigger without a batch, which the listener does not see, adds nothing."""
    join = FileJoin(root, options=LIMITED).fill(files=2)
    listener = Events()
    spark.streams.addListener(listener)
    try:
        writer = join.load(spark).writeStream.format("noop")
        query = join.start_with(writer, processingTime="100 milliseconds")
        for _ in range(2):
            wait_until(lambda: counted(listener.progress) >= join.expected().total(), query)
            idle_since = len(query.recentProgress)
            wait_until(lambda seen=idle_since: len(query.recentProgress) > seen + 1, query)
            join.fill(files=1)
        query.stop()
        assert listener.ended.wait(30)
    finally:
        spark.streams.removeListener(listener)
    seen = [p.sources[0] for p in listener.progress]
    assert [results(s.metrics) for s in seen][:2] == expected_per_batch(join)[:2]
    assert [results(s.metrics) for s in seen] == [s.numInputRows for s in seen]
    idle = [source(p)["metrics"] for p in query.recentProgress if source(p)["startOffset"] == source(p)["endOffset"]]
    assert len(idle) >= 3
    assert {results(m) for m in idle} == {0}
    assert {m["hashes"] for m in idle} == {m["aNumInputRows"] for m in idle} == {"0"}
    assert all(int(m["memoryUsedBytes"]) > 0 for m in idle)


def counted(progress: list[Any]) -> int:
    return sum(results(metrics_of(p)) for p in progress)


def wait_until(done: Callable[[], bool], query: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "the query did not get there in time"
        time.sleep(0.05)


@scenario(*CLASSIC)
def oracle_batches_that_are_read_twice_or_not_to_the_end(spark: Any, root: Path) -> None:
    """What is committed counts: once for two readings, not at all for a task that was cut off or never run."""
    join = FileJoin(root, options=LIMITED | {"partitions": "1"}).fill(files=5, rows=120)

    def act(batch: Any, number: int) -> None:
        if number == 1:
            assert batch.count() == batch.count()
        elif number == 2:
            assert len(batch.limit(1).collect()) == 1
        elif number != 3:
            join.batches[number] = rows(batch.toArrow())

    query = join.start_with(join.load(spark).writeStream.foreachBatch(act))
    query.awaitTermination()
    per_batch = expected_per_batch(join)
    reported = metrics(query)
    assert results(reported[2]) in (0, per_batch[2]), "a short task may be done before it can be cut off"
    assert [results(reported[i]) for i in (0, 1, 3, 4)] == [per_batch[0], per_batch[1], 0, per_batch[4]]
    totals = [int(reported[i]["numRowsTotal"]) // int(reported[0]["numRowsTotal"]) for i in (2, 3)]
    assert totals in ([2, 2], [3, 3], [2, 3]), "or it comes to its end after it was cut off"
    assert int(reported[4]["numRowsTotal"]) == 5 * int(reported[0]["numRowsTotal"])
    assert [join.batches[number].total() for number in (0, 4)] == [per_batch[0], per_batch[4]]


def check_scan_nodes(reported: list[dict[str, str]]) -> None:
    """The Spark UI shows the same counters at the scans of the last batches."""
    shown: list[dict[str, str]] = []
    for execution in rest("sql?details=true&length=10000"):
        for node in execution["nodes"]:
            if node["nodeName"].startswith("MicroBatchScan"):
                shown.append({m["name"]: m["value"] for m in node["metrics"]})
    for ours, theirs in zip(reported, shown[-len(reported) :], strict=True):
        assert theirs["memory-to-memory: rows"] == ours["memoryToMemoryRows"]
        assert theirs["memory-to-memory: probes"] == ours["memoryToMemoryProbes"]
        assert theirs["candidates compared"] == ours["comparisons"]
        assert theirs["rows in the state"] == ours["numRowsTotal"]
        assert theirs["state in memory (bytes)"] == ours["memoryUsedBytes"]
        assert theirs["number of output rows"].replace(",", "") == ours["memoryToMemoryRows"]


def rest(path: str) -> Any:
    """An answer of the UI of the application in this process, whichever kind its sessions are."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    assert context is not None
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


@scenario("spark.jars")
def test_the_scan_node_knows_every_counter(spark: Any, root: Path) -> None:
    """What tasks report and what the UI has words for; aliases, texts, fractions and plans are not for adding up."""
    join = FileJoin(root, options=LIMITED).fill(files=1)
    (reported,) = metrics(to_parquet(join, spark))
    described = spark._jvm.sparkmjoin.ScanMetrics.descriptions()
    own = {f"{alias}{name}" for alias in "abc" for name in ("NumRowsTotal", "NumInputRows")}
    lag = {"minOffsetsBehindLatest", "maxOffsetsBehindLatest"}
    counters = {name for name, value in reported.items() if value.isdigit()} - own - lag - {"hotKeys"}
    assert counters - set(described) == set()


# --- the checkpoint ------------------------------------------------------------------------------------------------


@scenario(*CLASSIC)
def oracle_checkpoints_as_uris(spark: Any, root: Path) -> None:
    for name, spell in (("uri", "file:{}"), ("uri with slashes", "file://{}")):
        join = FileJoin(root / name, options=LIMITED).fill(files=1)
        writer = join.load(spark).writeStream.format("parquet").option("path", str(join.root / "sink"))
        writer = writer.option("checkpointLocation", spell.format(join.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()
        assert sink(join, spark) == join.expected()
        check_place(join)


def check_place(join: FileJoin) -> None:
    """The state is in the checkpoint and nowhere else."""
    (state,) = (join.checkpoint / "sources" / "0" / "state").iterdir()
    assert sorted(p.name for p in state.iterdir()) == [
        "meaning.json",
        "partition-0-of-2",
        "partition-1-of-2",
        "sources",
    ]
    assert sorted(p.name for p in join.root.iterdir()) == ["first", "in", "sink"]
    assert sorted(p.name for p in (join.root / "first").iterdir()) == ["checkpoint"]


@scenario(*CLASSIC)
def oracle_state_location_overrides_the_checkpoint(spark: Any, root: Path) -> None:
    """Which also is how a query goes on that began without the jar."""
    join = FileJoin(root, options=LIMITED | {"stateLocation": str(root / "elsewhere")}).fill(files=2)
    to_parquet(join, spark)
    assert sink(join, spark) == join.expected()
    assert len(list((root / "elsewhere").glob("*/partition-0-*/version-*"))) == 2
    assert not (join.checkpoint / "sources" / "0" / "state").exists()


class Files:
    """Spark's own manager of checkpoint files, or ours, in a directory of its own; each call is answered in words."""

    def __init__(self, spark: Any, root: Path, make: Callable[[Any, Any], Any]) -> None:
        self.root = root
        self._jvm = spark._jvm
        self._files = make(self._path(""), spark._jsc.hadoopConfiguration())
        self.open: dict[str, Any] = {}

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"file:{self.root}/{name}")

    def create(self, name: str, contents: str, overwrite: bool) -> None:
        self.open[name] = self._files.createAtomic(self._path(name), overwrite)
        self.open[name].write(contents.encode())

    def close(self, name: str) -> None:
        self.open[name].close()

    def cancel(self, name: str) -> None:
        self.open[name].cancel()

    def read(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def exists(self, name: str) -> bool:
        return self._files.exists(self._path(name))

    def names(self, name: str) -> list[str]:
        names = [status.getPath().getName() for status in self._files.list(self._path(name))]
        return sorted(name for name in names if not name.endswith(".tmp"))

    def mkdirs(self, name: str) -> None:
        self._files.mkdirs(self._path(name))

    def delete(self, name: str) -> None:
        self._files.delete(self._path(name))

    def start(self) -> bool:
        return str(self._files.createCheckpointDirectory()) == f"file:{self.root}" and self._files.isLocal()

    def ask(self, question: str, *given: Any) -> Any:
        try:
            return getattr(self, question)(*given)
        except Py4JJavaError as e:
            return e.java_exception.getClass().getName()

    def on_disk(self) -> dict[str, tuple[int, bytes]]:
        """What is there, with permissions; checksum files too, and nothing that is unfinished."""
        found = sorted(p for p in self.root.rglob("*") if ".tmp" not in p.name)
        return {str(p.relative_to(self.root)): (p.stat().st_mode, b"" if p.is_dir() else p.read_bytes()) for p in found}


CALLS: list[tuple[Any, ...]] = [
    ("start",),
    ("mkdirs", "offsets/deep"),
    ("mkdirs", "offsets"),
    ("create", "offsets/0", "first", False),
    ("exists", "offsets/0"),  # not before it is closed
    ("close", "offsets/0"),
    ("close", "offsets/0"),
    ("cancel", "offsets/0"),  # too late
    ("read", "offsets/0"),
    ("create", "offsets/0", "second", False),
    ("close", "offsets/0"),  # is there already
    ("cancel", "offsets/0"),
    ("read", "offsets/0"),
    ("create", "offsets/0", "third, and longer", True),
    ("close", "offsets/0"),
    ("read", "offsets/0"),
    ("create", "offsets/1", "given up", False),
    ("cancel", "offsets/1"),
    ("exists", "offsets/1"),
    ("read", "offsets/1"),
    ("create", "offsets/2", "x" * 5000, True),  # nothing to replace; several pieces with a checksum each
    ("close", "offsets/2"),
    ("names", "offsets"),
    ("names", "nowhere"),
    ("mkdirs", "new"),
    ("create", "new/0", "soon gone, with all the directory", False),
    ("close", "new/0"),
    ("delete", "offsets/0"),
    ("delete", "offsets/0"),
    ("create", "offsets/0", "once more", False),
    ("close", "offsets/0"),
    ("delete", "new"),
    ("exists", "new"),
]


@scenario("spark.jars")
def differential_checkpoint_files(spark: Any, root: Path) -> None:
    """The same calls on Spark's manager of checkpoint files and on ours have the same answers, and leave the same."""
    (root / "spark's").mkdir()
    (root / "ours").mkdir()
    checkpointing = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    theirs = Files(spark, root / "spark's", checkpointing.CheckpointFileManager.create)
    ours = Files(spark, root / "ours", spark._jvm.sparkmjoin.CheckpointFiles)
    for call in CALLS:
        answers = ours.ask(*call), theirs.ask(*call)
        assert answers[0] == answers[1], (call, answers)
        assert ours.on_disk() == theirs.on_disk(), call
    assert not list(ours.root.rglob("*.tmp*"))
    (root / "ours/offsets/2").write_text("y" * 5000)
    assert ours.ask("read", "offsets/2") == "org.apache.hadoop.fs.ChecksumException"


@scenario("spark.jars")
def test_a_checkpoint_file_is_never_replaced(spark: Any, root: Path) -> None:
    """Not even by one that was begun before it, as Spark's own would: two drivers on one checkpoint."""
    one, other = (Files(spark, root, spark._jvm.sparkmjoin.CheckpointFiles) for _ in range(2))
    one.create("0", "one", False)
    other.create("0", "other", False)
    other.close("0")
    assert one.ask("close", "0") == "org.apache.hadoop.fs.FileAlreadyExistsException"
    one.cancel("0")
    assert one.read("0") == "other"
    assert sorted(p.name for p in root.iterdir()) == [".0.crc", "0"]


@scenario("spark.jars")
def test_checkpoints_elsewhere_are_written_by_spark(spark: Any, root: Path) -> None:
    path = spark._jvm.org.apache.hadoop.fs.Path("nowhere://cluster/checkpoint")
    try:
        spark._jvm.sparkmjoin.CheckpointFiles(path, spark._jsc.hadoopConfiguration())
    except Py4JJavaError as e:
        assert 'No FileSystem for scheme "nowhere"' in str(e.java_exception), e
        called = [str(frame) for frame in e.java_exception.getStackTrace()]
        assert any("CheckpointFileManager$.create" in frame for frame in called), called
    else:
        raise AssertionError("somebody knows this file system")


@scenario(*BOTH)
def oracle_checkpoints_go_on_from_sparks_own(spark: Any, root: Path) -> None:
    """A query changes from Spark's way of writing its checkpoint to ours and back."""
    setting = "spark.sql.streaming.checkpointFileManagerClass"
    assert spark.conf.get(setting) == "sparkmjoin.CheckpointFiles"
    join = FileJoin(root, options=LIMITED)
    try:
        for ours in (False, True, False):
            spark.conf.unset(setting)
            if ours:
                spark_mjoin.enable(spark)
            join.fill(files=1)
            to_parquet(join, spark)
            assert sink(join, spark) == join.expected()
    finally:
        spark.conf.set(setting, "sparkmjoin.CheckpointFiles")


@scenario(*CLASSIC)
def test_a_place_that_python_does_not_reach_is_named(spark: Any, root: Path) -> None:
    join = FileJoin(root, options=LIMITED | {"stateLocation": "nowhere://x/y"}).fill(files=1)
    try:
        to_parquet(join, spark)
    except Exception as e:  # noqa: BLE001 - classic and Connect have different ones
        assert "the state cannot be kept in 'nowhere://x/y'" in str(e), e
        assert "Set option 'stateLocation'" in str(e), e
    else:
        raise AssertionError("the query ran")


# --- sticky partitions ---------------------------------------------------------------------------------------------


@scenario(*CLASSIC)
def test_partitions_find_their_state_in_their_workers(spark: Any, root: Path) -> None:
    """Of two queries at once, with three partitions each on two cores."""
    joins = [FileJoin(root / name, options=LIMITED | {"partitions": "3"}).fill(files=4) for name in ("one", "two")]
    queries = [join.start_with(join.load(spark).writeStream.format("noop")) for join in joins]
    for query, join in zip(queries, joins, strict=True):
        query.awaitTermination()
        reported = metrics(query)
        assert [m["stateCacheHits"] for m in reported] == ["0", "3", "3", "3"]
        assert sum(results(m) for m in reported) == join.expected().total()


@scenario("local-cluster")
def oracle_an_executor_dies_and_its_partitions_go_on_elsewhere(spark: Any, root: Path) -> None:
    join = FileJoin(root, options=LIMITED | {"partitions": "4"}).fill(files=4)

    def all_came_out() -> bool:
        reported = metrics(query)
        return bool(reported) and int(reported[-1]["resultsTotal"]) == join.expected().total()

    wait_for_executors(2)
    writer = join.load(spark).writeStream.format("parquet").option("path", str(root / "sink"))
    query = join.start_with(writer, processingTime="50 milliseconds")
    wait_until(all_came_out, query)
    assert [m["stateCacheHits"] for m in metrics(query)] == ["0", "4", "4", "4"]

    victims = [p for p in psutil.Process().children(recursive=True) if "CoarseGrainedExecutorBackend" in command(p)]
    assert len(victims) == 2
    victims[0].kill()
    join.fill(files=1)
    wait_until(all_came_out, query, seconds=120)
    wait_for_executors(2)
    join.fill(files=4)
    wait_until(all_came_out, query, seconds=120)
    query.stop()
    reported = metrics(query)
    assert sum(results(m) for m in reported) == join.expected().total()
    assert sink(join, spark) == join.expected()
    hits = [int(m["stateCacheHits"]) for m in reported]
    assert hits[4] == 2, f"the two partitions of the executor that lives had their state: {hits}"
    assert hits[-1] == 4, f"all have it again: {hits}"


def wait_for_executors(count: int) -> None:
    deadline = time.monotonic() + 60
    while sum(e["isActive"] and e["id"] != "driver" for e in rest("executors")) < count:
        assert time.monotonic() < deadline, "no executors"
        time.sleep(0.1)


def command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


# --- planners --------------------------------------------------------------------------------------------------------


def planners() -> set[int]:
    """The processes that plan batches, of running queries and idle ones."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if "spark_mjoin.doors.planner_process" in command(child)}


@scenario(*BOTH)
def oracle_planners_serve_one_query_after_the_other(spark: Any, root: Path) -> None:
    def served(name: str, **options: str) -> set[int]:
        join = FileJoin(root / name, options=LIMITED | options).fill(files=2)
        assert [results(m) for m in metrics(to_parquet(join, spark))] == expected_per_batch(join)
        assert sink(join, spark) == join.expected()
        return planners()

    first = served("first")
    assert served("second", partitions="1") == first, "the same process has planned another join"
    for pid in first:
        psutil.Process(pid).kill()
    after = served("killed")
    assert len(after) == 1
    assert not after & first

    refused = FileJoin(root / "refused", options=LIMITED | {"stateLocation": "nowhere://x/y"}).fill(files=1)
    try:
        to_parquet(refused, spark)
    except Exception as e:  # noqa: BLE001 - classic and Connect have different ones
        assert "the state cannot be kept in 'nowhere://x/y'" in str(e), e
    else:
        raise AssertionError("the query ran")
    served("after one that was refused")


@scenario(*CLASSIC)
def oracle_queries_at_once_have_planners_of_their_own(spark: Any, root: Path) -> None:
    """Three of them, which are stopped; of their planners two are kept."""
    joins = [FileJoin(root / name, options=LIMITED).fill(files=2) for name in ("one", "two", "three")]
    for more in (0, 1):
        queries = []
        for join in joins:
            join.fill(files=more)
            writer = join.load(spark).writeStream.format("parquet").option("path", str(join.root / "sink"))
            queries.append(join.start_with(writer, processingTime="50 milliseconds"))
        for query in queries:
            query.processAllAvailable()
        assert len(planners()) == 3
        for query in queries:
            query.stop()
        assert len(planners()) <= 2
    for join in joins:
        assert sink(join, spark) == join.expected()


# --- the rest is as before -------------------------------------------------------------------------------------------


@scenario(*CLASSIC)
def oracle_batch_reads_and_downstream_operators(spark: Any, root: Path) -> None:
    join = FileJoin(root, options=LIMITED).fill(files=3)
    assert rows(join.read(spark).toArrow()) == join.expected()
    summed = join.load(spark).groupBy("k").agg({"x": "sum"})
    writer = summed.writeStream.format("memory").queryName(f"summed_{os.getpid()}").outputMode("complete")
    join.start_with(writer).awaitTermination()
    query = "SELECT a.k, sum(a.x)::BIGINT FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k GROUP BY a.k"
    assert rows(spark.table(f"summed_{os.getpid()}").toArrow()) == join.expected(query)


def typed(number: int) -> pa.Table:
    """Forty rows of every kind of column, each of them NULL now and then."""

    def column(kind: pa.DataType, value: Callable[[int], object]) -> pa.Array:
        return pa.array([None if (i + number) % 7 == 3 else value(i) for i in range(40)], kind)

    moment = dt.datetime(2026, 2, 28, 23, 59, 59, 999_999)
    return pa.table(
        {
            "k": pa.array([i % 20 for i in range(40)], pa.int64()),
            "tiny": column(pa.int8(), lambda i: i - 20),
            "small": column(pa.int16(), lambda i: i * 1000 - 20_000),
            "middle": column(pa.int32(), lambda i: i * 10**8 - 2 * 10**9),
            "flag": column(pa.bool_(), lambda i: i % 3 == 0),
            "x": column(pa.float64(), lambda i: i / 3),
            "f": column(pa.float32(), lambda i: i / 4),
            "short": column(pa.decimal128(9, 2), lambda i: Decimal(i * number) / 100),
            "long": column(pa.decimal128(38, 6), lambda i: Decimal(10) ** 30 + i),
            "text": column(pa.string(), lambda i: "ä€😀" * (i % 4)),
            "raw": column(pa.binary(), lambda i: bytes(range(i))),
            "day": column(pa.date32(), lambda i: dt.date(1582, 10, 4) + dt.timedelta(days=i * 9999)),
            "at": column(pa.timestamp("us", "UTC"), lambda i: moment.replace(tzinfo=dt.UTC) + dt.timedelta(hours=i)),
            "local": column(pa.timestamp("us"), lambda i: moment - dt.timedelta(days=i)),
            "many": column(pa.list_(pa.string()), lambda i: [None, "x" * i][: i % 3]),
            "nested": column(
                pa.struct([("n", pa.int64()), ("s", pa.list_(pa.float64()))]),
                lambda i: {"n": None if i % 2 else i, "s": [i / 2, None]},
            ),
        }
    )


@scenario(*CLASSIC)
def oracle_every_type_in_batches_of_columns(spark: Any, root: Path) -> None:
    """Arrow batches are handed to Spark as they are; whole-stage code generation reads them in another way."""
    typeless = "SELECT t.*, b.y FROM t JOIN b ON t.k = b.k"
    before = spark.conf.get("spark.sql.codegen.wholeStage")
    for code in ("true", "false"):
        spark.conf.set("spark.sql.codegen.wholeStage", code)
        join = FileJoin(root / code, typeless, LIMITED)
        for number in range(2):
            join.add("t", typed(number))
            join.add("b", pa.table({"k": pa.array(range(25), pa.int64()), "y": [number * 100 + i for i in range(25)]}))
        reported = metrics(to_parquet(join, spark))
        assert sum(results(m) for m in reported) == join.expected().total() == 160
        assert sink(join, spark) == join.expected()
    spark.conf.set("spark.sql.codegen.wholeStage", before)
    limited = FileJoin(root / "limited", typeless, LIMITED, tables={})
    limited.add("t", typed(0))
    limited.add("b", pa.table({"k": pa.array(range(25), pa.int64()), "y": list(range(25))}))
    name = f"limited_{os.getpid()}"
    limited.start_with(limited.load(spark).limit(3).writeStream.format("memory").queryName(name)).awaitTermination()
    found = rows(spark.table(name).toArrow())
    assert found.total() == 3
    assert found <= limited.expected()


@scenario(*BOTH)
def test_errors_are_raised_at_load(spark: Any, root: Path) -> None:
    join = FileJoin(root, options=LIMITED | {"partition": "2"}).fill(files=1)
    try:
        schema: StructType = join.load(spark).schema
    except Exception as e:  # noqa: BLE001 - classic and Connect have different ones
        assert "unknown option 'partition'. Did you mean 'partitions'?" in str(e), e
    else:
        raise AssertionError(f"a misspelt option was taken: {schema}")


@scenario("spark.jars")
def test_the_jar_refuses_other_versions(spark: Any, root: Path) -> None:
    versions = spark._jvm.sparkmjoin.SparkVersions
    for version in ("4.2.0", "4.2.1", "4.3.0", "4.3.0-SNAPSHOT", spark.version):
        versions.require(version)
    for version in ("4.1.2", "4.4.0", "3.5.7", "4.30.0", "5.0.0-preview1", "nonsense"):
        try:
            versions.require(version)
        except Exception as e:  # noqa: BLE001 - py4j's
            assert f"works with Spark 4.2 and 4.3, and this is Spark {version}" in str(e), e
        else:
            raise AssertionError(f"Spark {version} was accepted")


@scenario("spark.jars")
def test_executors_are_shared_out_evenly_and_seldom_change(spark: Any, root: Path) -> None:
    """The assignment itself, through arrivals and departures that a cluster of two cannot show."""
    jvm = spark._jvm
    places = jvm.java.util.TreeMap()

    def assign(partitions: int, *executors: str) -> dict[int, str]:
        given = jvm.java.util.ArrayList()
        for executor in executors:
            given.add(executor)
        jvm.sparkmjoin.Workers.assign(places, partitions, given)
        return dict(places)

    assert assign(4) == {}
    one = assign(4, "x")
    assert set(one.values()) == {"x"}
    two = assign(4, "x", "y")
    assert sorted(two.values()) == ["x", "x", "y", "y"]
    assert sum(one[p] != two[p] for p in two) == 2
    assert assign(4, "x", "y") == two
    three = assign(4, "x", "y", "z")
    assert sum(two[p] != three[p] for p in three) == 1
    without = assign(4, "y", "z")
    assert sorted(without.values()) == ["y", "y", "z", "z"]
    assert all(without[p] == three[p] for p in three if three[p] != "x")
    assert assign(2, "y", "z").keys() == {0, 1}
