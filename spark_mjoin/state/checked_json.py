"""Files that carry their own checksum, `<crc32> <text>`; the text begins with JSON, and most often that is all."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from spark_mjoin.errors import StateError
from spark_mjoin.state.directory import Directory

FORMAT = 1
_BEFORE = 9  # bytes before the text
_END = memoryview(b"\n")


def text_of(body: Mapping[str, Any]) -> bytes:
    """The JSON of a mapping, with the format that it is in; the same for the same."""
    return json.dumps({"format": FORMAT, **body}, sort_keys=True, separators=(",", ":")).encode()


def publish(directory: Directory, name: str, attempt: str, text: bytes) -> None:
    """Write a file whole, unless it is there already; it and what was published before it are durable then.

    Another attempt may have been first: then the file has another text.
    """
    contents = with_checksum(text)
    directory.publish(name, attempt, lambda stream: stream.write(contents))
    directory.sync()


def with_checksum(text: bytes) -> bytes:
    """The contents of a file with such a text."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


def read(directory: Directory, name: str) -> dict[str, Any]:
    """What a file says, checked; FileNotFoundError when it is not there."""
    return parsed(bytes(checked(directory, name)), directory.path(name))


def checked(directory: Directory, name: str) -> memoryview:
    """The text of a file, after its checksum was found to be right; FileNotFoundError when it is not there.

    It is mapped where the file system is local: before each batch the driver reads those of all partitions, and most of
    a text is for tasks alone.
    """
    contents = memoryview(directory.map(name))
    text = contents[_BEFORE:-1]
    if contents[:_BEFORE] != b"%08x " % zlib.crc32(text) or contents[len(text) + _BEFORE :] != _END:
        raise StateError(
            f"state file {directory.path(name)} is damaged: its checksum is wrong; restore it, or use a new checkpoint"
        )
    return text


def parsed(text: bytes, path: str) -> dict[str, Any]:
    """What the checked JSON of a file says, if it is of a format that is known here."""
    body: dict[str, Any] = json.loads(text)
    if body["format"] != FORMAT:
        raise StateError(
            f"state file {path} has format {body['format']}, and this version of spark_mjoin reads format {FORMAT}: "
            "resume with the version that wrote it, or start with a new checkpoint"
        )
    return body
