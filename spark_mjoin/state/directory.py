"""A directory of immutable files, with the one operation that the store's correctness rests on: atomic publication.

Readers see a file whole or not at all, and the first publication of a name wins; a later one is discarded.

    a local disk    written as `.tmp-...`, then a hard link      exact
    S3, with s3fs   one put, on condition that nothing is there  exact
    S3, without     a look, then one put                         two that look at the same time: the last wins
    elsewhere       `.tmp-...`, then a look and a move           the same

S3 shows an object when all of it is there, so nothing has to be written under another name first. A store may ignore
the condition of a put. So the first conditional put of a process to a bucket is tried a second time, and must fail.

A name that has its attempt in it belongs to that attempt alone: no look is needed, and none is made on S3.

Two attempts at a name say the same, but not in the same bytes: manifests name segments of their own attempt. Whoever
goes on from what it has published must therefore ask `exact` first (see store.py).

What cannot be written is an error that names the file, and leaves nothing behind.

Not covered: locking, listing consistency of object stores that have none.
"""

from __future__ import annotations

import io
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from spark_mjoin import filesystem
from spark_mjoin.errors import StateError
from spark_mjoin.redaction import public_value
from spark_mjoin.state.host_cache import TEMPORARY, HostCache

log = logging.getLogger(__name__)

PIECE_BYTES = 1 << 20

_WITHOUT_LINKS: set[str] = set()  # directories in which this process has published without a hard link
_CONDITIONAL: dict[str, bool] = {}  # buckets to which this process has put on condition -> whether they heed it


class ChecksumStream:
    """A writable file that counts and checksums what passes; `pa.ipc` writes to it through pa.PythonFile."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.copy: Callable[[Any], object] | None = None  # gets what passes, too
        self.crc32 = 0
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        self._sink.write(data)
        if self.copy is not None:
            self.copy(data)
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
        self._bucket = self._path.partition("/")[0] if filesystem.shows_whole_objects(self._fs) else None
        self._creator = None if self._bucket is None else filesystem.conditional_creator(location, self._fs)

    @property
    def exact(self) -> bool:
        """Whether of two attempts that publish a name at the same time surely the first wins, as far as is known."""
        if self._bucket is not None:
            return self._creator is not None and _CONDITIONAL.get(self._bucket, True)
        return self._local and self._path not in _WITHOUT_LINKS

    @cached_property
    def copies(self) -> HostCache | None:
        """Where this host has copies of its segments; None where they are on this host themselves."""
        return None if self._local else HostCache.of_host()

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

    def checksum(self, name: str, copy: Callable[[bytes], object] | None = None) -> tuple[int, int]:
        """The size and the CRC-32 of a file, read piece by piece; FileNotFoundError when it is not there.

        copy: gets the pieces, if it is given.
        """
        size = crc32 = 0
        with self._fs.open_input_stream(self.path(name)) as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                crc32 = zlib.crc32(piece, crc32)
                if copy is not None:
                    copy(piece)
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
        if self._bucket is not None:
            with self._writing(self.path(name)):
                return self._put_own(name, write) if attempt in name else self._put_first(name, write)
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

    def _put_own(self, name: str, write: Callable[[ChecksumStream], object]) -> tuple[int, int]:
        """Put an object whose name nobody else uses. What is there when it fails is not whole, and is removed."""
        try:
            with self._fs.open_output_stream(self.path(name)) as sink:
                stream = ChecksumStream(sink)
                write(stream)
        except BaseException:
            with suppress(OSError):
                self._fs.delete_file(self.path(name))
            raise
        return stream.size, stream.crc32

    def _put_first(self, name: str, write: Callable[[ChecksumStream], object]) -> tuple[int, int]:
        """Put an object whose name others use too, unless it is there. It is made before: nobody sees a part of it."""
        assert self._bucket is not None
        made = io.BytesIO()
        stream = ChecksumStream(made)
        write(stream)
        if self.exact:
            assert self._creator is not None
            first = self._creator(self.path(name), made.getvalue())
            if first and self._bucket not in _CONDITIONAL:
                _CONDITIONAL[self._bucket] = not self._creator(self.path(name), made.getvalue())
                if not _CONDITIONAL[self._bucket]:
                    log.warning("%s ignores If-None-Match: of two attempts at once the last one wins", self.location)
        else:
            first = not self.exists(name)
            if first:
                with self._fs.open_output_stream(self.path(name)) as sink:
                    sink.write(made.getvalue())
        if not first:
            log.info("%s is published already; this attempt's copy is dropped", self.path(name))
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
        """Remove a file, and this host's copy of it; that it is gone already is no error."""
        if self.copies is not None:
            self.copies.drop(self.path(name))
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
