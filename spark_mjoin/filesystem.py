"""Where a location string leads: a pyarrow file system and a path on it.

A plain path or `file:` URI is local; any other URI goes to pyarrow's own file systems (s3, gs, hdfs, ...) and, where
pyarrow has none for the scheme, to fsspec.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs


def resolve(location: str) -> tuple[Any, str]:
    """(file system, path); the path of a local location is absolute. ValueError when no file system has the scheme."""
    parts = urlsplit(location)
    if len(parts.scheme) <= 1:  # no scheme, or a drive letter
        return pafs.LocalFileSystem(), os.path.abspath(location)
    if parts.scheme == "file":
        return pafs.LocalFileSystem(), os.path.abspath(unquote(parts.path))
    try:
        fs, path = pafs.FileSystem.from_uri(location)
    except (pa.ArrowInvalid, NotImplementedError):
        import fsspec

        handle, path = fsspec.core.url_to_fs(location)
        fs = pafs.PyFileSystem(pafs.FSSpecHandler(handle))
    return fs, path


def is_local(fs: Any) -> bool:
    return isinstance(fs, pafs.LocalFileSystem)


def absolute(location: str) -> str:
    """A location that means the same in every process: a local path is made absolute, anything else stays."""
    fs, path = resolve(location)
    return path if is_local(fs) else location
