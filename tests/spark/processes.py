"""A query in processes of its own, which tests may kill: the driver, Spark's JVM, the planner and the Python workers.

    driver (tests.spark.driver) ── JVM ─┬─ planner: the source's reader (python_streaming_source_runner)
                                        └─ daemon ── workers: the partitions' tasks

All of them carry an environment variable with a name of this `Driver`'s own, by which those that outlive their parents
are found again; nothing else is ever killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from tests.harness import Rows, rows
from tests.spark.driver import Request, launch
from tests.spark.joins import FileJoin

Fault = dict[str, str]  # see faults/sitecustomize.py


class Driver:
    """The query of a join, AvailableNow, into a parquet sink; it can be started again and again."""

    def __init__(self, join: FileJoin, faults: Sequence[Fault] = (), log: str | None = None, **request: Any) -> None:
        self.join = join
        self.faults = faults
        self.starts = 0
        self._sink = join.root / "sink"
        self._request = Request(join.all_options(), str(join.checkpoint), str(self._sink), **request)
        self._plan = join.root / "faults.json"
        self._plan.write_text(json.dumps(faults))
        self._name = uuid.uuid4().hex
        self._environment = {"MJOIN_TEST": self._name} | ({} if log is None else {"SPARK_MJOIN_LOG": log})
        if faults:
            path = [str(Path(__file__).parent / "faults"), *filter(None, [os.environ.get("PYTHONPATH")])]
            needed = {"MJOIN_FAULTS": str(self._plan), "PYTHONPATH": os.pathsep.join(path)}
            self._environment |= needed
            of_executors = {f"spark.executorEnv.{name}": value for name, value in needed.items()}
            self._request = replace(self._request, conf={**self._request.conf, **of_executors})

    def __enter__(self) -> "Driver":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(30)

    def start(self) -> None:
        self.starts += 1
        self._process = launch(self._request, self.join.root / "request.json", self._environment)

    def change(self, **options: str) -> None:
        """From the next start on, run with other options."""
        self._request = replace(self._request, options={**self._request.options, **options})

    def wait(self, seconds: float = 150) -> int:
        """The exit code, when nothing of it is left; an end by a signal is that signal's negative number."""
        code = self._process.wait(seconds)
        wait_until(lambda: not self.processes(), "a process outlives the driver", every=0.2)
        return code

    def run_until_it_ends(self, most_starts: int, seconds: float = 150) -> None:
        """Wait, and start again after each death by kill -9, until it ends by itself; that must be a good end.

        seconds: for each start.
        """
        while (code := self.wait(seconds)) == -signal.SIGKILL and self.starts < most_starts:
            self.start()
        assert code == 0, self.errors()[-3000:]

    def errors(self) -> str:
        """What all its processes have written to standard error, in all starts."""
        return (self.join.root / "request.err").read_text()

    def wait_for_batches(self, count: int) -> bool:
        """Wait until so many batches are committed; False when the query ended before."""
        wait_until(
            lambda: self.batches() >= count or self._process.poll() is not None, f"no {count} batches are committed"
        )
        return self._process.poll() is None

    def batches(self) -> int:
        """How many batches are committed."""
        return sum(path.name.isdigit() for path in (self.join.checkpoint / "commits").glob("*"))

    def kill(self, kind: str) -> int:
        """kill -9 of the `driver`, the `jvm`, the `planner` or the `workers`; how many processes that were."""
        victims = [p for p in self.processes() if _kind(p) == kind]
        for process in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return len(victims)

    def processes(self) -> list[psutil.Process]:
        return list(self._mine())

    def missed(self) -> list[Fault]:
        """The faults that did not happen."""
        return [fault for number, fault in enumerate(self.faults) if not Path(f"{self._plan}.{number}").exists()]

    def results(self) -> Rows:
        """What the sink holds: the files that its log says are committed."""
        log = self._sink / "_spark_metadata"
        names = [p.name for p in log.iterdir() if not p.name.startswith(".")]
        compacted = max((int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")), default=-1)
        committed = []
        for name in names:
            number = int(name.removesuffix(".compact"))
            if number > compacted or (number == compacted and name.endswith(".compact")):
                committed += [json.loads(line)["path"] for line in (log / name).read_text().splitlines()[1:]]
        assert len(committed) == len(set(committed))
        return rows(pq.read_table(path.removeprefix("file://")) for path in committed)

    def _mine(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("MJOIN_TEST") == self._name
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    yield process


def _kind(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
        if "tests.spark.driver" in command and "java" not in process.name():
            return "driver"
        if "java" in process.name():
            return "jvm"
        if "python_streaming_source_runner" in command or "doors.planner_process" in command:
            return "planner"
        parent = process.parent()
        if "daemon pyspark.worker" in command and parent is not None and parent.cmdline() == process.cmdline():
            return "workers"
    return ""


def run_with_children(command: Sequence[str], log: Path, environment: Mapping[str, str], directory: Path) -> None:
    """Run a program to its end; after a while it and what it has started are killed. The log has what they say."""
    with log.open("w") as said:
        child = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            child.wait(400)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)


def wait_until(done: Callable[[], bool], otherwise: str, seconds: float = 180, every: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, otherwise
        time.sleep(every)
