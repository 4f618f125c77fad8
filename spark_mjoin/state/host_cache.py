"""Copies of segments on this host's disk, for states that are not: a worker that has lost its memory reads these first.

    a segment is written  ──> to the store, and in the same pass to the cache
    a segment is read     ──> from the cache, if its bytes have the manifest's checksum; else from the store, and kept

Segments never change and have names of their own, so a copy is never out of date. All workers of a host share the
directory, whoever wrote a copy. A copy is written as `.tmp-<process>-...` and renamed. It is not forced to the disk:
what a crash of the machine leaves of it has another checksum, and is dropped.

The directory is `spark-mjoin-<user>` in the one for temporary files, or what SPARK_MJOIN_CACHE names; if that is empty,
there is no cache. Beyond SPARK_MJOIN_CACHE_SIZE bytes (1g) the copies go that were not used for the longest time. What
writers that have died left behind goes too. Since that takes a look at all copies, a process looks when it has written
a part of the size (LOOKS), and not each time: there may be a little more than the size.

A worker that removes a segment from the store removes the copy of its host. Those of other hosts go with time.

The cache only saves time. Where its disk is full or its directory cannot be used, the store does.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from spark_mjoin.quantities import parse_bytes

log = logging.getLogger(__name__)

PLACE = "SPARK_MJOIN_CACHE"
SIZE = "SPARK_MJOIN_CACHE_SIZE"
DEFAULT_SIZE = "1g"
TEMPORARY = ".tmp-"
LOOKS = 64  # at all copies, while as many bytes are written as there may be

_WRITTEN: dict[Path, int] = {}  # bytes that this process has written to a directory since it has last looked


class HostCache:
    """The copies in one directory of this host."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory, self._limit_bytes = directory, limit_bytes

    @staticmethod
    def of_host() -> HostCache | None:
        """The cache that the environment describes; None where it says that there is none, or where there can be none.

        In a directory that all users share, one of this name may be somebody else's. Its copies are not to be trusted.
        """
        user = os.getuid() if hasattr(os, "getuid") else 0
        default = os.path.join(tempfile.gettempdir(), f"spark-mjoin-{user}")
        place = os.environ.get(PLACE, default)
        size = parse_bytes(os.environ.get(SIZE, DEFAULT_SIZE), SIZE)
        if not place:
            return None
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
            if place == default and os.lstat(place).st_uid != user:
                raise PermissionError("it belongs to another user")
        except OSError as e:
            log.warning("no copies of segments in %s (%s): the store is read instead", place, e)
            return None
        return HostCache(Path(place), size)

    def find(self, path: str, size: int, crc32: int | None) -> pa.Buffer | None:
        """The copy of a segment, mapped, if it is here and whole.

        path: of the segment in the store. crc32: None where it was compared before.
        """
        copy = self._copy_of(path)
        try:
            with pa.memory_map(str(copy)) as mapped:
                found = mapped.read_buffer()
            os.utime(copy)  # it was used
        except FileNotFoundError:
            return None
        except OSError as e:
            log.warning("cannot read %s (%s): the store is read instead", copy, e)
            return None
        if found.size != size or (crc32 is not None and zlib.crc32(found) != crc32):
            log.warning("%s is damaged and is removed: the store is read instead", copy)
            _remove(copy)
            return None
        return found

    @contextmanager
    def copying(self, path: str) -> Iterator[Copy]:
        """A copy of a segment in the making, which is kept if all goes well. path: of the segment in the store."""
        copy = Copy(self._begin())
        try:
            yield copy
        except BaseException:
            copy.abandon()
            raise
        if copy.keep(self._copy_of(path)):
            written = _WRITTEN.get(self._directory, self._limit_bytes) + copy.size
            if written * LOOKS > self._limit_bytes:
                self.shrink()
                written = 0
            _WRITTEN[self._directory] = written

    def drop(self, path: str) -> None:
        """Forget a segment, if it is here. path: where it was in the store."""
        _remove(self._copy_of(path))

    def shrink(self) -> None:
        """Remove what writers that have died left behind, and what was not used for the longest time."""
        found = [(*seen, path) for path in self._directory.iterdir() if (seen := _seen(path)) is not None]
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda each: each[0]):
            writer = _writer(path)
            if total > self._limit_bytes if writer is None else _is_dead(writer):
                _remove(path)
                total -= size

    def _copy_of(self, path: str) -> Path:
        return self._directory / hashlib.sha256(path.encode()).hexdigest()[:40]

    def _begin(self) -> IO[bytes] | None:
        """A new file for a copy; None where there can be none."""
        try:
            return tempfile.NamedTemporaryFile(prefix=f"{TEMPORARY}{os.getpid()}-", dir=self._directory, delete=False)
        except OSError as e:
            log.warning("no copies of segments in %s (%s): the store is read instead", self._directory, e)
            return None


class Copy:
    """A copy that is being written. It is given up when its disk does not take it: nobody depends on it."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self.size = 0

    def write(self, data: Any) -> None:
        self.size += len(data)
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError as e:
                self._fail(e)

    def keep(self, name: Path) -> bool:
        """Let it be found by its name; False where it was given up."""
        if self._file is None:
            return False
        try:
            self._file.close()
            os.replace(self._file.name, name)
        except OSError as e:
            self._fail(e)
            return False
        return True

    def abandon(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # a full disk says it again
                self._file.close()
            _remove(Path(self._file.name))
            self._file = None

    def _fail(self, cause: OSError) -> None:
        assert self._file is not None
        log.warning("no copy of a segment in %s: %s", self._file.name, cause)
        self.abandon()


def _seen(path: Path) -> tuple[int, int] | None:
    """When a file was last used, and its size; None when it is gone."""
    with suppress(FileNotFoundError):
        known = path.stat()
        return known.st_mtime_ns, known.st_size
    return None


def _writer(path: Path) -> int | None:
    """The process that writes a copy which is not finished."""
    number = path.name.removeprefix(TEMPORARY).partition("-")[0]
    return int(number) if path.name.startswith(TEMPORARY) and number.isdigit() else None


def _is_dead(process: int) -> bool:
    if os.name != "posix":
        return False  # nobody can ask
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it is somebody else's
    return False


def _remove(path: Path) -> None:
    with suppress(OSError):  # somebody else has
        path.unlink()
