"""What a Python worker of Spark does around a task of `engine.batch`: connections, garbage, and the report to the jar.

It imports the engine only to run it. The driver's processes import this module too, and start sooner without the
engine.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import shutil
import socket
import stat
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam, _deserialize_accumulator
from pyspark.taskcontext import TaskContext

from spark_mjoin import metrics
from spark_mjoin.errors import JarError
from spark_mjoin.model import JoinSpec
from spark_mjoin.redaction import Secrets
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.routing import Routing
from spark_mjoin.task import PartitionTask

if TYPE_CHECKING:
    from spark_mjoin.engine.batch import Ended
    from spark_mjoin.engine.feed import Feed

SENT_AHEAD_BYTES = 4 << 20  # of results that Spark has not read yet
TASK = -1  # the input of a parcel that is none, but has the task
ROUTING = "mjoin.routing."  # a local property of tasks, from jvm-shim/src/sparkmjoin/Routing.java; a token follows
COMMITTING = "commitTimeMs"  # Spark's name for the time in which stateful operators commit
TASK_REPORT = -77001  # the number of the accumulator that jvm-shim/src/sparkmjoin/TaskReports.java listens to
WITHOUT_JAR = (
    "the join was planned without the jar: it was added to another session, or a rule of Spark's optimizer "
    "has replaced the join. Call spark_mjoin.join in the session that starts the query"
)


def run(task: PartitionTask) -> Iterator[pa.RecordBatch]:
    """The results of a task that reads its input itself."""
    from spark_mjoin.engine.feed import AllRows

    with secrets_of(task.spec, task.location).kept():
        yield from _run(task, AllRows.of(task))


@dataclass(frozen=True)
class Target:
    """The member of a join that rows go to: rows of an input, or results of an earlier stage."""

    spec: JoinSpec  # of the join
    member: int
    token: str  # of the join, by which the jar says how the rows of a batch are divided
    routing: Routing | None = None  # where there is no jar

    def in_batch(self) -> Routing:
        """How rows are divided in the batch of this task."""
        task = TaskContext.get()
        said = None if task is None else task.getLocalProperty(ROUTING + self.token)
        if said is not None:
            return _routing_of(said)
        if self.routing is None:
            raise JarError(WITHOUT_JAR)
        return self.routing


def text_of(routing: Routing) -> str:
    """A routing, for those who send rows. To them it is the same since whenever it is in use."""
    return json.dumps(Routing(routing.partitions, layout=routing.layout).to_json(), separators=(",", ":"))


@lru_cache
def _routing_of(text: str) -> Routing:
    return Routing.from_json(json.loads(text))


def send(target: Target, batches: Iterable[pa.RecordBatch], whole: bool = False) -> Iterator[pa.RecordBatch]:
    """Rows as parcels for the partitions of a join; whole: every partition gets all rows."""
    from spark_mjoin.engine.exchange import Sender

    tune_connections()
    yield from Sender(target.spec, target.member, target.in_batch(), whole).parcels(batches)
    freeze_gc()


def join(
    parcels: Iterable[pa.RecordBatch], tasks: Sequence[PartitionTask] | None, onward: Target | None = None
) -> Iterator[pa.RecordBatch]:
    """The results of a task that parcels come to. Without tasks the jar sends it first, in place of a parcel.

    onward: of a stage before the last one, whose results are parcels too.
    """
    from spark_mjoin.engine.delivered import Delivered
    from spark_mjoin.engine.exchange import Floor

    parcels = iter(parcels)
    if tasks is None:
        task, parcels = _sent_by_jar(parcels)
    else:
        first = next((some for some in parcels if some.num_rows), None)
        if first is None:
            return  # nothing has come to a join that has no state
        # Spark's number of the task is another one where the results of a stage are united with rows of inputs.
        task, parcels = tasks[first.column("target")[0].as_py()], chain([first], parcels)
    with secrets_of(task.spec, task.location).kept(), _scratch() as directory:
        results = _Results(_run(task, Delivered(task, parcels, directory)))
        if onward is None:
            yield from results
        else:
            yield from send(onward, results)
            if tasks is None and task.spec.windowed:
                yield Floor(results.ended.floor).parcels(onward.member, onward.in_batch().partitions)
    if tasks is None:
        report_to_jar(task, {COMMITTING: round(1000 * results.ended.committing)})


@contextmanager
def _scratch() -> Iterator[Path]:
    """The name of a directory for files of one task. Few tasks make it: to make and remove it takes a millisecond."""
    directory = Path(gettempdir()) / f"mjoin-{uuid.uuid4().hex}"
    try:
        yield directory
    finally:
        if directory.exists():
            shutil.rmtree(directory)


class _Results:
    """The results of a task, to be read once, and then what is known at its end."""

    def __init__(self, running: Generator[pa.RecordBatch, None, Ended]) -> None:
        self._running = running
        self.ended: Ended

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.ended = yield from self._running


def _run(task: PartitionTask, feed: Feed) -> Generator[pa.RecordBatch, None, Ended]:
    """The results of a task; returns what is known at its end."""
    from spark_mjoin.engine import batch, cache

    tune_connections()
    ended = yield from batch.run(task, feed, uuid.uuid4().hex, cache.of_worker())
    freeze_gc()
    return ended


def _sent_by_jar(parcels: Iterator[pa.RecordBatch]) -> tuple[PartitionTask, Iterator[pa.RecordBatch]]:
    """The task, and the parcels that come behind it."""
    first = next(parcels, None)
    if first is None or first.column("input")[0].as_py() != TASK:
        raise JarError(WITHOUT_JAR)
    partition = pickle.loads(first.column("rows")[0].as_py())
    task: PartitionTask = partition.task
    return task, chain([first.slice(1)], parcels)


def secrets_of(spec: JoinSpec, location: str | None = None) -> Secrets:
    """The secrets that no error may show."""
    given = [option for source in spec.sources for option in source.options]
    return Secrets.of([*given, ("stateLocation", location)])


@cache
def tune_connections() -> None:
    """Let this worker's connections to Spark send small messages at once, and large ones without waiting for Spark.

    A task begins and ends with several small messages. By default each waits for more data to send with it, which costs
    a micro-batch some milliseconds. Results are large. Where the connection buffers a few batches of them, the task
    joins the next one while Spark still reads the last. The system may limit the buffer: Linux to net.core.wmem_max.
    """
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():  # not Linux: it is a little slower there
        return
    for descriptor in [int(path.name) for path in descriptors.iterdir()]:
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD_BYTES)
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@cache
def freeze_gc() -> None:
    """At the end of this worker's first task: exclude all present objects from garbage collection.

    Spark's workers collect garbage after every task. With all that the engine imports and compiles, that keeps a core
    busy while Spark plans the next batch, and delays the task of that batch.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # at exit Python frees everything in good order


class _Replaced(AccumulatorParam[dict[str, int]]):
    """A value that replaces the one before it."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return value2


def report_to_jar(task: PartitionTask, measured: Mapping[str, int] | None = None) -> None:
    """At the end of a task: what its partition has committed, for the node in the Spark UI, and what was measured."""
    assert task.location is not None
    manifest = Manifests(task.location, task.partition, task.routing).manifest(task.ledger.next_version)
    counted = metrics.summable(metrics.report([manifest], [i.alias for i in task.spec.inputs]))
    _deserialize_accumulator(TASK_REPORT, {}, _Replaced()).add(counted | dict(measured or {}))
