"""The committed versions of one join partition, as far as their manifests tell: without rows, and without the engine.

See store.py for what a manifest is and how it comes to be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from spark_mjoin.errors import StateError
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory


class Manifests:
    def __init__(self, location: str, partition: int) -> None:
        self.directory = Directory(location).child(f"partition-{partition}")

    def versions(self) -> list[int]:
        """The committed versions that are still kept, ascending."""
        return versions_in(self.directory.names())

    def has(self, version: int) -> bool:
        return self.directory.exists(manifest_name(version))

    def written(self, version: int) -> float:
        """When a version was committed, in seconds since 1970."""
        return self.directory.modified(manifest_name(version))

    def manifest(self, version: int) -> dict[str, Any]:
        """The manifest of a version, checked, in the form that is written today."""
        return self.parsed(version, self.text(version))

    def text(self, version: int) -> bytes:
        """The JSON of the manifest of a version, checked."""
        with self._named(version) as name:
            return checked_json.checked(self.directory, name)

    def parsed(self, version: int, text: bytes) -> dict[str, Any]:
        """What the JSON of the manifest of a version says, in the form that is written today."""
        return _today(checked_json.parsed(text, self.directory.path(manifest_name(version))))

    def files(self, version: int) -> tuple[tuple[str, ...], ...]:
        """The files that each operator of a version needs, of a manifest that is checked as well.

        Every commit asks for those of all kept versions, so manifests that are the same as before are not parsed again.
        """
        with self._named(version) as name:
            return _files(checked_json.checked(self.directory, name), self.directory.path(name))

    @contextmanager
    def _named(self, version: int) -> Iterator[str]:
        """The name of a manifest, to do something with it that fails when it is not there."""
        try:
            yield manifest_name(version)
        except FileNotFoundError:
            kept = ", ".join(map(str, self.versions())) or "none"
            raise StateError(
                f"state version {version} is not in {self.directory.location} (kept: {kept}); the checkpoint and "
                "'stateLocation' are not of the same time: restore both, or start with a new checkpoint"
            ) from None


@lru_cache(maxsize=8)  # of two partitions in a worker
def _files(manifest: bytes, path: str) -> tuple[tuple[str, ...], ...]:
    return tuple(files_of(figures) for figures in _today(checked_json.parsed(manifest, path))["operators"])


def files_of(figures: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that an operator of a manifest needs."""
    names = [s["name"] for s in figures["segments"]]
    if figures.get("promises"):
        names += [s["name"] for part in ("log", "purged") for s in figures["promises"][part]]
    if figures.get("sample"):
        names.append(figures["sample"]["file"]["name"])
    return tuple(names)


def _today(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest from before a plan was a tree, as one: the join was one operator, with all inputs as members."""
    if "operators" in manifest:
        return manifest
    operator = {name: manifest[name] for name in _OF_OPERATOR if name in manifest}
    return {**manifest, "tree": list(range(len(manifest["rows"]))), "operators": [operator]}


_OF_OPERATOR = ("rows", "segments", "results", "orders", "edges", "residency", "groups")


def identity_of(text: bytes) -> str:
    """What tells a manifest from every other one, also from others of the same version, given its JSON.

    Manifests name segments, whose names no two attempts share. So equal manifests mean the same files.
    """
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def manifest_name(version: int) -> str:
    return f"version-{version:012d}.json"


def versions_in(names: list[str]) -> list[int]:
    """The versions whose manifests are among some files; others, such as a user's copies, are none of our business."""
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


_NAME = re.compile(r"version-(\d{12})\.json")
