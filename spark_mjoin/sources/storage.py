"""Where files live: listing, looking at and opening them, local or remote, and nothing about what is in them.

    path option -> Storage -> find(...) -> FileStat(path, size, mtime_ns) -> open(path) -> Arrow file

Local paths and `file:` URIs go through the operating system: directories are scanned without looking at files that the
caller has seen already, so a directory with a long past is cheap to poll. Files are read and never mapped: they belong
to others, and a map of a file that somebody cuts short ends the process with SIGBUS, where a read ends with an error or
with fewer bytes. `pyarrow.fs` opens any other URI, and fsspec where that does not know the scheme.

As in Spark: a path means what Hadoop makes of it (`filesystem`), and may be a directory, a file or a glob (`globs`).
Below directories, files and directories are invisible whose names begin with '.', or with '_' and have no '=', or end
in `._COPYING_`; so are files that the path names themselves, but not directories. Without `recursive` only direct
children of the directories named are found. A directory that is removed while it is listed counts as empty.

Credentials come from the environment, as pyarrow and fsspec define it, or from the URI. Paths do not contain them,
because paths are logged and shown. Some file systems, as fsspec's over HTTP, need them in the path; there they are put
back to open a file.

Not covered: writing, partition columns.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from spark_mjoin import filesystem
from spark_mjoin.redaction import public_value
from spark_mjoin.sources import globs

_MTIME_KEYS = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


@dataclass(frozen=True)
class FileStat:
    path: str
    size: int
    mtime_ns: int  # 0 where the store keeps no such thing


@dataclass(frozen=True)
class Listed:
    """A child of a directory; `stat` is None where it would cost an extra call, or for a directory."""

    name: str
    path: str
    is_dir: bool
    stat: FileStat | None = None


class Storage(Protocol):
    """One file system. Instances pickle."""

    root: str  # what the path option says, as this file system spells it
    shown: str  # the same for people: absolute, and without secrets

    def children(self, directory: str) -> Iterator[Listed]:
        """Nothing when the directory is not there."""

    def stat(self, path: str) -> FileStat | None:
        """None when there is no such file."""

    def is_dir(self, path: str) -> bool: ...

    def open(self, path: str) -> pa.NativeFile:
        """For random access; FileNotFoundError when it is not there."""


def storage(path: str) -> Storage:
    """The file system that `path` is on; ValueError, OSError or ImportError when there is none for its scheme."""
    local = filesystem.local_path(path)
    store = RemoteStorage(path) if local is None else LocalStorage(local)
    for pattern in _patterns(store.root):
        for name in pattern.split("/"):
            _ = globs.literal(name) or globs.compiled(name)
    return store


class LocalStorage:
    def __init__(self, path: str) -> None:
        self.root = self.shown = path  # absolute: an executor's working directory may be another one

    def children(self, directory: str) -> Iterator[Listed]:
        try:
            scan = os.scandir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        with scan:
            for entry in scan:
                yield Listed(entry.name, entry.path, entry.is_dir())

    def stat(self, path: str) -> FileStat | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(path, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(path, "r")


class RemoteStorage:
    """A file system of pyarrow or, behind the same interface, of fsspec."""

    def __init__(self, uri: str) -> None:
        self.uri, self.shown = uri, public_value(uri)
        self._connect()

    def _connect(self) -> None:
        self._fs, root, self._spec = filesystem.connect(self.uri)
        user = re.search(r"//[^/]*@", root)
        self._user = "" if user is None else user[0]
        self.root = self._public(root)

    def _public(self, path: str) -> str:
        """A path of the file system as others get to know it, without user info."""
        return path.replace(self._user, "//", 1) if self._user else path

    def _own(self, path: str) -> str:
        return path.replace("//", self._user, 1) if self._user else path

    def __getstate__(self) -> dict[str, str]:
        return {"uri": self.uri}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.uri, self.shown = state["uri"], public_value(state["uri"])
        self._connect()

    def children(self, directory: str) -> Iterator[Listed]:
        if self._spec is None:
            selector = pafs.FileSelector(self._own(directory), recursive=False, allow_not_found=True)
            for found in self._fs.get_file_info(selector):
                is_dir = found.type == pafs.FileType.Directory
                path = self._public(found.path)
                known = None if is_dir else FileStat(path, found.size, found.mtime_ns or 0)
                yield Listed(found.base_name, path, is_dir, known)
            return
        self._spec.invalidate_cache()
        try:
            infos = self._spec.ls(self._own(directory), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for info in infos:
            path = self._public(info["name"].rstrip("/"))
            if path.strip("/") == directory.strip("/"):
                continue
            is_dir = info["type"] == "directory"
            known = None if is_dir else FileStat(path, int(info["size"] or 0), _mtime_ns(info))
            yield Listed(path.rsplit("/", 1)[-1], path, is_dir, known)

    def stat(self, path: str) -> FileStat | None:
        if self._spec is None:
            found = self._fs.get_file_info(self._own(path))
            return FileStat(path, found.size, found.mtime_ns or 0) if found.type == pafs.FileType.File else None
        self._spec.invalidate_cache()
        try:
            info = self._spec.info(self._own(path))
        except FileNotFoundError:
            return None
        return FileStat(path, int(info["size"] or 0), _mtime_ns(info)) if info["type"] == "file" else None

    def is_dir(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._own(path)).type == pafs.FileType.Directory)

    def open(self, path: str) -> pa.NativeFile:
        return self._fs.open_input_file(self._own(path))


def _mtime_ns(info: dict[str, Any]) -> int:
    """fsspec has no one name and no one type for the time of the last change."""
    for key in _MTIME_KEYS:
        value = info.get(key)
        if isinstance(value, str):
            try:
                value = datetime.datetime.fromisoformat(value)
            except ValueError:
                continue
        if isinstance(value, datetime.datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
            return int(aware.timestamp() * 1e6) * 1000
        if isinstance(value, int | float):
            return int(value * 1e6) * 1000
    return 0


def is_glob(path: str) -> bool:
    return globs.is_pattern(path)


def exists(store: Storage) -> bool:
    """Whether the path is there; for a glob, whether anything matches it."""
    return next(_roots(store), None) is not None


def find(store: Storage, recursive: bool, name_filter: str | None, seen: Container[str]) -> Iterator[FileStat]:
    """The visible files under the path that are not in `seen`, in no particular order, each once."""
    wanted = globs.compiled(name_filter) if name_filter else None
    taken: set[str] = set()
    for root in _roots(store):
        for child in _walk(store, root, recursive):
            if child.path in seen or child.path in taken or (wanted and not wanted.fullmatch(child.name)):
                continue
            found = child.stat or store.stat(child.path)
            if found is not None:
                taken.add(child.path)
                yield found


def _walk(store: Storage, root: Listed, recursive: bool) -> Iterator[Listed]:
    if not root.is_dir:
        if not _is_hidden(root.name):
            yield root
        return
    pending = [root.path]
    while pending:
        for child in store.children(pending.pop()):
            if _is_hidden(child.name):
                continue
            if not child.is_dir:
                yield child
            elif recursive:
                pending.append(child.path)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _roots(store: Storage) -> Iterator[Listed]:
    """The directories and files that the path option names."""
    if not is_glob(store.root):
        yield from _named(store, store.root)
        return
    seen: set[str] = set()
    for pattern in _patterns(store.root):
        for listed in _match(store, pattern):
            if listed.path not in seen:
                seen.add(listed.path)
                yield listed


def _patterns(root: str) -> Iterator[str]:
    """The patterns without slashes inside braces that a root stands for; none where it is no glob."""
    if is_glob(root):
        for pattern in globs.expanded(root):
            yield filesystem.normal(pattern) if pattern.startswith("/") else pattern


def _named(store: Storage, path: str) -> Iterator[Listed]:
    name = path.rstrip("/").rsplit("/", 1)[-1]
    if store.is_dir(path):
        yield Listed(name, path, True)
    elif (found := store.stat(path)) is not None:
        yield Listed(name, found.path, False, found)


def _match(store: Storage, pattern: str) -> Iterator[Listed]:
    """What matches a pattern, name by name; names without wildcards are not looked for in their directory."""
    names, paths = pattern.split("/"), list[str]()
    for at, name in enumerate(names):
        literal = globs.literal(name)
        if literal is not None:
            paths = [f"{path}/{literal}" for path in paths] if at else [literal]
            continue
        regex = globs.compiled(name)
        children = (child for path in (paths if at else ("",)) for child in store.children(path or "/"))
        matched = [child for child in children if regex.fullmatch(child.name)]
        if at == len(names) - 1:
            yield from matched
            return
        paths = [child.path for child in matched if child.is_dir]
    for path in paths:
        yield from _named(store, path)
