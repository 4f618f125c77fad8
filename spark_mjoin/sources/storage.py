"""Where files live: listing, looking at and opening them, local or remote, and nothing about what is in them.

    path option -> Storage -> find(...) -> FileStat(path, size, mtime_ns) -> open(path) -> Arrow file

Local paths and `file:` URIs go through the operating system: directories are scanned without looking at files that the
caller has seen already, so a directory with a long past is cheap to poll. Files are read and never mapped: they belong
to others, and a map of a file that somebody cuts short ends the process with SIGBUS, where a read ends with an error or
with fewer bytes. Any other URI goes to `pyarrow.fs` and, where that does not know the scheme, to fsspec.

As in Spark: the path may be a directory, a file or a glob (`*`, `?`, `[a-z]`, `[^a]`, `{a,b}`); names that begin with
'.' or '_' below it are invisible; without `recursive` only direct children of the directories named are found. A path
that exists literally is not taken for a glob. A directory that goes away while it is listed is an empty one.

Not covered: credentials (they come from the environment, as pyarrow and fsspec define it), writing, partition columns.
"""

from __future__ import annotations

import datetime
import os
import re
import stat
from collections.abc import Container, Iterator
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from spark_mjoin import filesystem

_MAGIC = re.compile(r"[*?\[{]")
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
    return RemoteStorage(path) if local is None else LocalStorage(local)


class LocalStorage:
    def __init__(self, path: str) -> None:
        self.root = path  # absolute: an executor's working directory may be another one

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
        self.uri = uri
        self._connect()

    def _connect(self) -> None:
        # A pattern character may be no part of a URI: the file system is found by what stands before it.
        magic = _MAGIC.search(self.uri)
        fixed = self.uri[: magic.start()] if magic else self.uri
        rest = self.uri[len(fixed) :]
        self._fs, root, self._spec = filesystem.connect(fixed)
        if rest and fixed.endswith("/") and not root.endswith("/"):
            root += "/"
        self.root = (root + rest).rstrip("/") or "/"

    def __getstate__(self) -> dict[str, str]:
        return {"uri": self.uri}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.uri = state["uri"]
        self._connect()

    def children(self, directory: str) -> Iterator[Listed]:
        if self._spec is None:
            selector = pafs.FileSelector(directory, recursive=False, allow_not_found=True)
            for found in self._fs.get_file_info(selector):
                is_dir = found.type == pafs.FileType.Directory
                known = None if is_dir else FileStat(found.path, found.size, found.mtime_ns or 0)
                yield Listed(found.base_name, found.path, is_dir, known)
            return
        self._spec.invalidate_cache()
        try:
            infos = self._spec.ls(directory, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for info in infos:
            path = info["name"].rstrip("/")
            if path.strip("/") == directory.strip("/"):
                continue
            is_dir = info["type"] == "directory"
            known = None if is_dir else FileStat(path, int(info["size"] or 0), _mtime_ns(info))
            yield Listed(path.rsplit("/", 1)[-1], path, is_dir, known)

    def stat(self, path: str) -> FileStat | None:
        if self._spec is None:
            found = self._fs.get_file_info(path)
            return FileStat(path, found.size, found.mtime_ns or 0) if found.type == pafs.FileType.File else None
        self._spec.invalidate_cache()
        try:
            info = self._spec.info(path)
        except FileNotFoundError:
            return None
        return FileStat(path, int(info["size"] or 0), _mtime_ns(info)) if info["type"] == "file" else None

    def is_dir(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == pafs.FileType.Directory)

    def open(self, path: str) -> pa.NativeFile:
        return self._fs.open_input_file(path)


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
    return _MAGIC.search(path) is not None


def exists(store: Storage) -> bool:
    """Whether the path is there; for a glob, whether anything matches it."""
    return next(_roots(store), None) is not None


def find(store: Storage, recursive: bool, name_filter: str | None, seen: Container[str]) -> Iterator[FileStat]:
    """The visible files under the path that are not in `seen`, in no particular order, each once."""
    wanted = _glob_regex(name_filter) if name_filter else None
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
        yield root
        return
    pending = [root.path]
    while pending:
        for child in store.children(pending.pop()):
            if child.name.startswith((".", "_")):
                continue
            if not child.is_dir:
                yield child
            elif recursive:
                pending.append(child.path)


def _roots(store: Storage) -> Iterator[Listed]:
    """The directories and files that the path option names."""
    if store.is_dir(store.root):
        yield Listed("", store.root, True)
        return
    found = store.stat(store.root)
    if found is not None:
        yield Listed(found.path.rsplit("/", 1)[-1], found.path, False, found)
        return
    magic = _MAGIC.search(store.root)
    if magic is None:
        return
    # Braces may hold slashes: they are expanded before the path is cut into components.
    seen: set[str] = set()
    for pattern in _expand_braces(store.root):
        for listed in _match(store, pattern):
            if listed.path not in seen:
                seen.add(listed.path)
                yield listed


def _match(store: Storage, pattern: str) -> Iterator[Listed]:
    magic = _MAGIC.search(pattern)
    fixed, rest = (pattern, "") if magic is None else _split_at_component(pattern, magic.start())
    level = [Listed("", fixed or "/", True)]
    if not rest:
        found = store.stat(pattern)
        if store.is_dir(pattern) or found is not None:
            yield Listed(pattern.rsplit("/", 1)[-1], pattern, found is None, found)
        return
    for component in rest.split("/"):
        regex = re.compile(_component_regex(component))
        hidden = component.startswith((".", "_"))
        level = [
            child
            for directory in level
            if directory.is_dir
            for child in store.children(directory.path)
            if regex.fullmatch(child.name) and (hidden or not child.name.startswith((".", "_")))
        ]
    yield from level


def _split_at_component(pattern: str, position: int) -> tuple[str, str]:
    slash = pattern.rfind("/", 0, position)
    return pattern[: max(slash, 0)], pattern[slash + 1 :]


def _expand_braces(pattern: str) -> list[str]:
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [p for choice in match[1].split(",") for p in _expand_braces(head + choice + tail)]


def _component_regex(pattern: str) -> str:
    """One name of a path; `[^a]` is any character but a, as `[!a]` is, which alone Python knows."""
    return translate(pattern.replace("[^", "[!"))


def _glob_regex(pattern: str) -> re.Pattern[str]:
    return re.compile("|".join(_component_regex(p) for p in _expand_braces(pattern)))
