"""Where a location string leads: a pyarrow file system and a path on it.

A plain path or `file:` URI is local; any other URI goes to pyarrow's own file systems (s3, gs, hdfs, ...) and, where
pyarrow has none for the scheme, to fsspec. Hadoop's names of object stores (s3a, s3n) are understood.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}


def local_path(location: str) -> str | None:
    """The absolute path of a local location; None when it is on another file system."""
    scheme, colon, _ = location.partition(":")
    if not colon or len(scheme) == 1 or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.\-]*", scheme):
        return os.path.abspath(location)  # no scheme, or a drive letter
    return os.path.abspath(unquote(urlsplit(location).path)) if scheme.lower() == "file" else None


def connect(uri: str) -> tuple[Any, str, Any]:
    """(pyarrow file system, path, fsspec file system behind it or None) of a location that is not local.

    ValueError, OSError or ImportError when there is none for its scheme.
    """
    scheme, colon, rest = uri.partition(":")
    uri = _HADOOP_SCHEMES.get(scheme.lower(), scheme) + colon + rest
    try:
        fs, path = pafs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        import fsspec

        handle, path = fsspec.core.url_to_fs(uri)
        return pafs.PyFileSystem(pafs.FSSpecHandler(handle)), path, handle
    return fs, path, None


def resolve(location: str) -> tuple[Any, str]:
    """(pyarrow file system, path) of any location."""
    local = local_path(location)
    if local is not None:
        return pafs.LocalFileSystem(), local
    fs, path, _ = connect(location)
    return fs, path


def absolute(location: str) -> str:
    """A location that means the same in every process: a local path is made absolute, anything else stays."""
    return local_path(location) or location


def is_local(fs: Any) -> bool:
    return isinstance(fs, pafs.LocalFileSystem)
