"""Peak memory of a whole process tree: this Python, the JVM, Spark's Python daemon and its workers.

RSS is cheap and is sampled often, but counts a page that two processes share (forked workers, libraries) twice. PSS
counts it once, but reading it walks all page tables: 40 ms for a session with a JVM, too much for a run that is being
timed. So every sample is the RSS of all processes less what was counted twice when PSS was last read, and PSS is read
only as often as a fixed share of one core allows. Where /proc/<pid>/smaps_rollup cannot be read it stays at plain RSS.

Not covered: a peak shorter than the interval; page cache, unless a process has it mapped.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil  # type: ignore[import-untyped]

INTERVAL_SECONDS = 0.075
PSS_SHARE = 0.03
"""Of one core, at most, for reading PSS."""


class PeakMemory:
    """`with PeakMemory() as memory: …` and then `memory.peak_bytes`; the JVM and the other processes have peaks too."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self.jvm_bytes = 0
        self.other_bytes = 0
        self.samples = 0
        self.pss_samples = 0
        self._counted_twice_bytes = 0
        self._pss_due = 0.0
        self._root = psutil.Process()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_done, name="peak-memory", daemon=True)

    @property
    def measure(self) -> str:
        return "pss" if self.pss_samples else "rss"

    def __enter__(self) -> PeakMemory:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _sample_until_done(self) -> None:
        while not self._done.wait(INTERVAL_SECONDS):
            self._sample()

    def _sample(self) -> None:
        processes = [self._root, *self._root.children(recursive=True)]
        each = [(_is_jvm(process), _rss_bytes(process)) for process in processes]
        jvm_bytes = sum(size for is_jvm, size in each if is_jvm)
        rss_bytes = sum(size for _, size in each)
        if time.monotonic() >= self._pss_due:
            self._read_pss(processes)
        self.samples += 1
        self.peak_bytes = max(self.peak_bytes, rss_bytes - self._counted_twice_bytes)
        self.jvm_bytes = max(self.jvm_bytes, jvm_bytes)
        self.other_bytes = max(self.other_bytes, rss_bytes - jvm_bytes - self._counted_twice_bytes)

    def _read_pss(self, processes: list[psutil.Process]) -> None:
        started = time.thread_time()
        twice_bytes = 0
        for process in processes:
            try:
                pss_bytes = _pss_bytes(process.pid)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended since it was listed
            except (OSError, ValueError):
                return  # PSS is not to be had here
            twice_bytes += max(0, _rss_bytes(process) - pss_bytes)
        self._counted_twice_bytes = twice_bytes
        self._pss_due = time.monotonic() + (time.thread_time() - started) / PSS_SHARE
        self.pss_samples += 1


def _is_jvm(process: psutil.Process) -> bool:
    try:
        return bool(process.name() == "java")
    except psutil.Error:
        return False  # ended since it was listed


def _rss_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0  # ended since it was listed


def _pss_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
        for line in rollup:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"no Pss in /proc/{pid}/smaps_rollup")
