"""Where a location string leads: a pyarrow file system and a path on it.

A location means what it means to Spark, whose rules are those of Hadoop's `Path`:

    [scheme:][//authority]path      a scheme ends at a colon before the first slash, an authority at the next slash

Everything behind that is the path. It stands as it is written: `%41` and `+` are not decoded, and `#` and `?` are
ordinary characters. It is normalised as text: `//` is one slash, `.` and `..` are resolved, a slash at the end does not
count. A relative path begins in the working directory of the driver, and has no scheme: `in:1` is an error, and
`./in:1` a name with a colon.

A plain path or `file:` location is local. pyarrow's own file systems (s3, gs, hdfs, ...) open any other, and fsspec
where pyarrow has none for the scheme. Hadoop's names of object stores (s3a, s3n) are understood. pyarrow takes the
endpoint, the region and the credentials of S3 from the environment, and credentials from files and roles as well.

Not covered: `fs.defaultFS`. A plain path is local even where Hadoop's configuration says otherwise.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

_HADOOP_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_PLAIN = re.compile(r"[A-Za-z0-9\-._~/:@!$&'()+,;=]*")  # what means itself in the path of every URI
_CUT_SHORT = re.compile(r"[^@]*:(?!\d{1,5}$)[^@]+")  # user info that a slash ends before its @; no host with a port
_CHAINED = re.compile(rf"(?:{_SCHEME.pattern}::)+{_SCHEME.pattern}://")  # `simplecache::s3://…`: only for fsspec


def split(location: str) -> tuple[str | None, str | None, str]:
    """(scheme, authority, path) of a location, the first two None where it has none; ValueError when it is none."""
    if not location:
        raise ValueError("it is empty")
    colon, slash = location.find(":"), location.find("/")
    if colon < 0 or 0 <= slash < colon or _has_drive(location):
        scheme, rest = None, location
    else:
        scheme, rest = location[:colon].lower(), location[colon + 1 :]
        if not _SCHEME.fullmatch(scheme):
            raise ValueError(f"'{location[:colon]}' before the colon is no scheme; write './{location}' for a name")
    authority = None
    if rest.startswith("//"):
        authority, found, path = rest[2:].partition("/")
        rest = found + path
    if scheme is not None and not rest.startswith("/") and not authority:
        raise ValueError(f"it has a scheme, '{scheme}:', and a relative path; write './{location}' for a name")
    return scheme, authority or None, rest or "/"


def _has_drive(location: str) -> bool:
    return os.name == "nt" and re.match(r"[A-Za-z]:", location) is not None


def local_path(location: str) -> str | None:
    """The absolute path of a local location; None when it is on another file system. ValueError when it is none."""
    if _CHAINED.match(location):
        return None
    scheme, authority, path = split(location)
    if scheme not in (None, "file"):
        return None
    if authority is not None:
        raise ValueError(f"'{authority}' behind two slashes is a host, and files are local; write one slash, or three")
    return normal(path)


def normal(path: str) -> str:
    """A local path, absolute and without detours."""
    absolute = os.path.normpath(path if os.path.isabs(path) else os.path.join(_working_directory(), path))
    return "/" + absolute.lstrip("/") if os.name == "posix" else absolute


def _working_directory() -> str:
    """Where relative paths begin: with Spark, in the working directory of its JVM.

    Over Spark Connect, Python processes run in a directory for the artifacts of their session. The first process above
    them that is somewhere else is the JVM.
    """
    here, session, process = os.getcwd(), os.environ.get("SPARK_JOB_ARTIFACT_UUID", ""), os.getppid()
    there = here
    while session and os.path.basename(there) == session:
        try:
            there = os.readlink(f"/proc/{process}/cwd")
            status = Path(f"/proc/{process}/status").read_text()
        except OSError as e:
            raise ValueError(f"the working directory of Spark's server is not known here: write it out ({e})") from e
        process = int(status.partition("PPid:")[2].split()[0])
    return there


def connect(location: str) -> tuple[Any, str, Any]:
    """(pyarrow file system, path, fsspec file system behind it or None) of a location that is not local.

    ValueError, OSError or ImportError when there is none for its scheme.
    """
    if _CHAINED.match(location):
        return _open(location)
    scheme, authority, path = split(location)
    assert scheme is not None
    if authority is not None and _CUT_SHORT.fullmatch(authority) and "@" in path:
        raise ValueError("a slash in the user info of a URI is written %2F")  # or libraries would quote half of a key
    path = posixpath.normpath("/" + path.lstrip("/"))
    # The URI that opens the file system must not have characters with a meaning in URIs.
    match = _PLAIN.match(path)
    plain = path if match is None or match.end() == len(path) else path[: path.rindex("/", 0, match.end())]
    host = "" if authority is None else f"//{authority}"
    fs, root, spec = _open(f"{_HADOOP_SCHEMES.get(scheme, scheme)}:{host}{plain or '/'}")
    rest = path[len(plain) :].lstrip("/")
    base = root.rstrip("/") or root
    return fs, f"{root.rstrip('/')}/{rest}" if rest and root else rest or base, spec


def _open(uri: str) -> tuple[Any, str, Any]:
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


def shows_whole_objects(fs: Any) -> bool:
    """Whether a file that is being written is not seen before it is complete."""
    return isinstance(fs, getattr(pafs, "S3FileSystem", ()))


def conditional_creator(location: str, fs: Any) -> Callable[[str, bytes], bool] | None:
    """A function that writes an object of S3 unless there is one by that path, and returns whether it has.

    pyarrow has none, s3fs has. None where that is not installed, or where the location has credentials of its own.
    """
    authority = split(location)[1]
    if importlib.util.find_spec("s3fs") is None or authority is None or "@" in authority:
        return None
    import s3fs

    store = s3fs.S3FileSystem(client_kwargs={"region_name": fs.region})

    def create(path: str, contents: bytes) -> bool:
        try:
            store.pipe_file(path, contents, mode="create")
        except FileExistsError:
            return False
        return True

    return create
