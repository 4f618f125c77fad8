"""A directory of immutable files, with the one operation that the store's correctness rests on: atomic publication.

A file is written under a name that nobody reads (`.tmp-...`) and then renamed; readers see it whole or not at all. The
first publication of a name wins; a later one is discarded. On a local disk that is a hard link, and exact. Elsewhere it
is a look followed by a move, and two attempts that look at the same time both move: the last wins then. Two attempts at
a name say the same, but not in the same bytes: manifests name segments of their own attempt. Whoever goes on from what
it has published must therefore ask `exact` first (see store.py).

What cannot be written is an error that names the file, and leaves nothing behind.

Not covered: locking, listing consistency of object stores that have none.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from spark_mjoin import filesystem
from spark_mjoin.errors import StateError
from spark_mjoin.redaction import public_value

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
PIECE_BYTES = 1 << 20

_WITHOUT_LINKS: set[str] = set()  # directories in which this process has published without a hard link


class ChecksumStream:
    """A writable file that counts and checksums what passes; `pa.ipc` writes to it through pa.PythonFile."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.crc32 = 0
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        self._sink.write(data)
        return len(data)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class Directory:
    def __init__(self, location: str) -> None:
        self.location = public_value(location)  # for people
        self._fs, self._path = filesystem.resolve(location)
        self._local = filesystem.is_local(self._fs)

    @property
    def exact(self) -> bool:
        """Whether of two attempts that publish a name at the same time surely the first wins, as far as is known."""
        return self._local and self._path not in _WITHOUT_LINKS

    def child(self, name: str) -> Directory:
        """A directory in this one, by a name of our own."""
        child = copy(self)
        child.location, child._path = f"{self.location.rstrip('/')}/{name}", f"{self._path.rstrip('/')}/{name}"
        return child

    def names(self) -> list[str]:
        """Names of the published files, sorted; empty when the directory is not there."""
        selector = pafs.FileSelector(self._path, allow_not_found=True)
        infos = self._fs.get_file_info(selector)
        return sorted(i.base_name for i in infos if i.is_file and not i.base_name.startswith(TEMPORARY))

    def exists(self, name: str) -> bool:
        info = self._fs.get_file_info(self.path(name))
        return bool(info.type == pafs.FileType.File)

    def directories(self) -> list[str]:
        """Names of the directories in it, sorted."""
        infos = self._fs.get_file_info(pafs.FileSelector(self._path, allow_not_found=True))
        return sorted(i.base_name for i in infos if i.type == pafs.FileType.Directory)

    def modified(self, name: str) -> float:
        """When a file was last written, in seconds since 1970; 0.0 where the file system does not tell."""
        written = self._fs.get_file_info(self.path(name)).mtime_ns
        return 0.0 if written is None else float(written / 1e9)

    def path(self, name: str) -> str:
        return f"{self._path}/{name}"

    def read(self, name: str) -> bytes:
        """The contents of a file; FileNotFoundError when it is not there."""
        with self._fs.open_input_file(self.path(name)) as file:
            return bytes(file.read())

    def checksum(self, name: str) -> tuple[int, int]:
        """The size and the CRC-32 of a file, read piece by piece; FileNotFoundError when it is not there."""
        size = crc32 = 0
        with self._fs.open_input_stream(self.path(name)) as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
        return size, crc32

    def map(self, name: str) -> pa.Buffer:
        """The contents of a file, memory-mapped where it is local."""
        if self._local:
            with pa.memory_map(self.path(name)) as mapped:
                return mapped.read_buffer()
        with self._fs.open_input_file(self.path(name)) as file:
            return file.read_buffer()

    def publish(self, name: str, attempt: str, write: Callable[[ChecksumStream], object]) -> tuple[int, int]:
        """Write a file and make it visible under `name`, unless it is there already; returns its size and CRC-32."""
        temporary = TEMPORARY + (name if attempt in name else f"{attempt}-{name}")  # no other attempt's either way
        with self._writing(self.path(name)):
            try:
                with self._create(temporary) as stream:
                    write(stream)
                if not (self._local and self.link(temporary, name)):
                    _WITHOUT_LINKS.add(self._path)
                    if self.exists(name):
                        self._fs.delete_file(self.path(temporary))
                    else:
                        self._fs.move(self.path(temporary), self.path(name))
            except BaseException:  # a task that is cut off leaves no more behind than one whose disk is full
                with suppress(OSError):
                    self._fs.delete_file(self.path(temporary))
                raise
        return stream.size, stream.crc32

    def sync(self) -> None:
        """Make what was published durable against loss of power, where the file system is local."""
        if self._local:
            with self._writing(self._path):
                handle = os.open(self._path, os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)

    def delete(self, name: str) -> None:
        """Remove a file; that it is gone already is no error."""
        try:
            self._fs.delete_file(self.path(name))
        except FileNotFoundError:
            return

    def remove_if_empty(self) -> None:
        """Remove the directory itself, unless something is in it."""
        if not self._fs.get_file_info(pafs.FileSelector(self._path, allow_not_found=True)):
            with suppress(FileNotFoundError):
                self._fs.delete_dir(self._path)

    def leftovers(self) -> list[str]:
        """Temporary files of attempts that did not get to publish."""
        selector = pafs.FileSelector(self._path, allow_not_found=True)
        return sorted(i.base_name for i in self._fs.get_file_info(selector) if i.base_name.startswith(TEMPORARY))

    def link(self, temporary: str, name: str) -> bool:
        """Publish by hard link; False where the file system has none (the temporary file is still there then)."""
        try:
            os.link(self.path(temporary), self.path(name))
        except FileExistsError:
            log.info("%s is published already; this attempt's copy is dropped", self.path(name))
        except OSError as e:
            log.debug("no hard link for %s (%s); renaming instead", self.path(name), e)
            return False
        os.unlink(self.path(temporary))
        return True

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StateError(
                f"cannot write state file {path}: {e}. The state of the last version is intact: make space or mend the "
                "file system, and start the query again"
            ) from e

    @contextmanager
    def _create(self, name: str) -> Iterator[ChecksumStream]:
        self._fs.create_dir(self._path, recursive=True)
        if self._local:
            with open(self.path(name), "wb") as file:
                yield ChecksumStream(file)
                file.flush()
                os.fsync(file.fileno())
        else:
            with self._fs.open_output_stream(self.path(name)) as file:
                yield ChecksumStream(file)
