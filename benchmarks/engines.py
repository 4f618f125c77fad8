"""The ways of running a workload, and the launcher that gives each its own process.

Every (engine, workload) pair runs in a fresh Python process (`benchmarks.child`), so that neither a warm JVM, nor a
grown heap, nor a filled allocator of one run can help or hurt the next, and so that peak memory is that run's alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

REPOSITORY = Path(__file__).resolve().parent.parent
RESULT_MARK = "BENCH-RESULT "

FORKLESS_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
}
"""For Spark's own joins, once more, with --forkless-checkpoints.

Without Hadoop's native library Spark forks a `chmod` or `readlink` for most files that it writes to a local disk. Two
chained joins keep many state stores, so this slows them down a lot. It is what one gets from `pip install pyspark` on a
local disk, and so it is the default here; on HDFS or an object store it does not happen. These settings avoid it, at
the price of files without checksums; `spark_mjoin.enable` has a way of its own.
"""

TUNED = {"spark.sql.shuffle.partitions": "2"}
"""For Spark's own joins: one per core, as the state of a join is per partition and 200 would only add overhead."""

ON_ROCKSDB = TUNED | {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}

UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Spark talks to Python workers over Unix domain sockets: messages do not wait for each other as they do in TCP."""

Kind = Literal["mjoin", "streams", "spark", "duckdb", "kernel"]


@dataclass(frozen=True)
class Engine:
    name: str
    kind: Kind
    label: str
    files_per_trigger: int | None = None
    """maxFilesPerTrigger of every source; None leaves it out."""
    threads: int = 2
    driver_memory: str = "1g"
    conf: dict[str, str] = field(default_factory=dict)
    """Spark settings on top of the common ones."""
    options: dict[str, str] = field(default_factory=dict)
    """mjoin options on top of sources, query and stateLocation."""
    jar: bool = False
    """`spark_mjoin.enable(spark)`, as the README has it; the state is in the checkpoint then."""


@dataclass(frozen=True)
class Request:
    """One child process: one engine on one workload."""

    engine: Engine
    workload: str
    scale: float
    cache: str
    scratch: str
    repeats: int
    budget_seconds: float
    """No further repeat is started once the timed runs have taken this long together."""
    verify: bool

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Request:
        parts = json.loads(text)
        return cls(**(parts | {"engine": Engine(**parts["engine"])}))


@dataclass(frozen=True)
class Measurement:
    """What one engine did on one workload. `error` is set when it failed; then the rest is what was known by then."""

    workload: str
    engine: str
    label: str
    cold: float | None = None
    """The first query of a fresh session, in seconds; None where there is no session."""
    times: tuple[float, ...] = ()
    """Later queries of the same session, each from fresh directories."""
    peak_bytes: tuple[int, ...] = ()
    """One per timed run; empty where memory is not measured."""
    memory_measure: str = ""
    micro_batches: int | None = None
    rows: int | None = None
    checksum: dict[str, Any] | None = None
    error: str = ""
    same: bool | None = None
    """Equal to the reference; None when it was not checked."""

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> Measurement:
        return cls(**(parts | {"times": tuple(parts["times"]), "peak_bytes": tuple(parts["peak_bytes"])}))

    @property
    def seconds(self) -> float | None:
        return min(self.times, default=None)

    @property
    def peak(self) -> int | None:
        return max(self.peak_bytes, default=None)


def engines(
    groups: Collection[str],
    *,
    rocksdb: bool,
    one_batch: bool,
    partitions: int | None,
    mjoin_memory: str,
    spark_memory: str,
    forkless_checkpoints: bool,
    jar: bool = True,
    unix_sockets: bool = False,
    state_memory: str | None = None,
) -> list[Engine]:
    """All engines of the asked-for groups, in the order of the table."""
    options = {} if partitions is None else {"partitions": str(partitions)}
    ours = UNIX_SOCKETS if unix_sockets else {}
    found = []
    for suffix, words, more in (("", "", {}), ("-spill", f", memory={state_memory}", {"memory": state_memory})):
        if suffix and state_memory is None:
            continue
        for name, label, files in (("batches", "micro-batches", 1), ("defaults", "defaults", None)):
            found.append(
                Engine(
                    f"mjoin-{name}{suffix}",
                    "mjoin",
                    f"mjoin, {label}{words}",
                    files,
                    driver_memory=mjoin_memory,
                    conf=ours,
                    options=options | {k: v for k, v in more.items() if v is not None},
                    jar=jar,
                )
            )
    for name, label, files in (("batches", "micro-batches", 1), ("defaults", "one shot", None)):
        divided = {"partitions": str(partitions or 2)}
        found.append(
            Engine(
                f"streams-{name}",
                "streams",
                f"spark_mjoin.join, {label}",
                files,
                driver_memory=mjoin_memory,
                conf=ours,
                options=divided,
                jar=jar,
            )
        )
    found += [
        Engine("spark", "spark", "Spark, micro-batches", 1, driver_memory=spark_memory, conf=TUNED),
    ]
    if forkless_checkpoints:
        label = "Spark, micro-batches, forkless checkpoints"
        conf = TUNED | FORKLESS_CHECKPOINTS
        found.append(Engine("spark-forkless", "spark", label, 1, driver_memory=spark_memory, conf=conf))
    if rocksdb:
        label = "Spark, micro-batches, RocksDB"
        found.append(Engine("spark-rocksdb", "spark", label, 1, driver_memory=spark_memory, conf=ON_ROCKSDB))
    if one_batch:
        found.append(Engine("spark-defaults", "spark", "Spark, one shot", driver_memory=spark_memory, conf=TUNED))
    found += [
        Engine("duckdb-2", "duckdb", "duckdb one-shot, 2 threads", threads=2),
        Engine("duckdb-1", "duckdb", "duckdb one-shot, 1 thread", threads=1),
        Engine("kernel", "kernel", "kernel in memory, batches of 50,000", threads=1),
    ]
    return [engine for engine in found if engine.kind in groups]


def run(request: Request, log: Path, timeout_seconds: float) -> list[Measurement]:
    """Run the request in its own process; what fails is a measurement with an error."""
    try:
        found = in_own_process("benchmarks.child", request.to_json(), log, timeout_seconds)
    except NoResult as failure:
        return [Measurement(request.workload, request.engine.name, request.engine.label, error=str(failure))]
    return [Measurement.from_parts(parts) for parts in found]


class NoResult(Exception):
    """A child process that took too long, or ended without a result; says which."""


def in_own_process(module: str, request: str, log: Path, timeout_seconds: float) -> Any:
    """What `python -m module` prints behind RESULT_MARK when it is given the request on stdin.

    It has a process group of its own; its stderr (Spark's log) goes to `log`.
    """
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # The Python workers must find pyspark_mjoin and spark_mjoin, installed or not.
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")])),
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(request, timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            raise NoResult(f"took more than {timeout_seconds:.0f} s") from None
        finally:
            _end_group(child)
    for line in reversed(output.splitlines()):
        if line.startswith(RESULT_MARK):
            return json.loads(line.removeprefix(RESULT_MARK))
    raise NoResult(f"ended with code {child.returncode} and no result; see {log}")


def _end_group(child: subprocess.Popen[str]) -> None:
    """End what is left of the child's own process group: a JVM outlives a Python that was cut short."""
    with contextlib.suppress(ProcessLookupError):  # all gone already
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
