"""A cluster of Spark's own on this machine: a master and workers, each a process that a test may kill.

    master ── worker ── executors (one for each running application) ── Python daemons ── Python workers

All listen on loopback addresses, on ports that are free. Workers may have addresses of their own, and are different
hosts to Spark then. A worker runs at most one executor of an application. What is killed is
found by process ids: a worker's own, and below it those of its executors.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pyspark

from tests.spark.archive import SHORT_LIVED, java_options
from tests.spark.processes import wait_until

HOST = "127.0.0.1"
READY = r"Successfully (registered) with master"
EXECUTORS = {  # settings of an application that gets one executor of each worker
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executor.extraJavaOptions": java_options(),
    "spark.task.maxFailures": "20",
}


class Standalone:
    """A master and some workers with two cores each, while this lasts."""

    def __init__(
        self, root: Path, hosts: Sequence[str] = (HOST, HOST), environment: Mapping[str, str] | None = None
    ) -> None:
        """hosts: the address of each worker."""
        self._root, self._hosts = root, hosts
        home = str(Path(pyspark.__file__).parent)
        given = {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable}
        self._environment = {**os.environ, "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED, **given, **(environment or {})}
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> "Standalone":
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            self._launch("master.Master", HOST, "--port", "0", "--webui-port", "0")
            wait_until(lambda: self._said(0, r"Starting Spark master at (spark://\S+)") != "", "there is no master")
            self.url = self._said(0, r"Starting Spark master at (spark://\S+)")
            for number in range(len(self._hosts)):
                self._worker(number)
            for number in range(1, len(self._hosts) + 1):
                wait_until(lambda n=number: self._said(n, READY) != "", "a worker does not find the master")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _kill_with_children(process.pid)
            process.wait(30)

    def executors(self, worker: int) -> list[int]:
        """The process ids of a worker's executors."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self._processes[worker + 1].pid).children(recursive=True)
            return [process.pid for process in below if _is_executor(process)]
        return []

    def kill_executor(self, worker: int) -> None:
        """kill -9 of a worker's executor. The worker starts another one, and this waits for it."""
        before = self.executors(worker)
        assert before, "the worker has no executor"
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: bool(set(self.executors(worker)) - set(before)), "no executor comes back", every=0.2)

    def lose_worker(self, worker: int) -> None:
        """kill -9 of a worker and of all that runs below it, for good: a machine that is gone."""
        _kill_with_children(self._processes[worker + 1].pid)
        self._processes[worker + 1].wait(30)

    def _worker(self, number: int) -> None:
        place = self._root / f"worker-{number}"
        size = ("--cores", "2", "--memory", "1g", "--work-dir", str(place))
        self._launch("worker.Worker", self._hosts[number], "--port", "0", "--webui-port", "0", *size, self.url)

    def _launch(self, name: str, host: str, *arguments: str) -> None:
        program = f"{self._environment['SPARK_HOME']}/bin/spark-class"
        command = [program, f"org.apache.spark.deploy.{name}", "--host", host, *arguments]
        own = self._environment | {"SPARK_LOCAL_IP": host}
        with self._log(len(self._processes)).open("w") as log:
            started = subprocess.Popen(command, cwd=self._root, env=own, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(started)

    def _log(self, process: int) -> Path:
        return self._root / f"process-{process}.log"

    def _said(self, process: int, pattern: str) -> str:
        """What a process has logged that matches; empty as long as it has not."""
        log = self._log(process).read_text()
        assert self._processes[process].poll() is None, log[-3000:]
        found = re.search(pattern, log)
        return "" if found is None else found[1]


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) and process.is_running()
    return False


def _kill_with_children(pid: int) -> None:
    """kill -9 of a process that we have started, and of what it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
