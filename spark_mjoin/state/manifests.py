"""The committed versions of one join partition, as far as their manifests tell: without rows, and without the engine.

See store.py for what a manifest is and how it comes to be.
"""

from __future__ import annotations

import re
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
        name = manifest_name(version)
        try:
            return _today(checked_json.read(self.directory, name))
        except FileNotFoundError:
            kept = ", ".join(map(str, self.versions())) or "none"
            raise StateError(
                f"state version {version} is not in {self.directory.location} (kept: {kept}); the checkpoint and "
                "'stateLocation' are not of the same time: restore both, or start with a new checkpoint"
            ) from None


def _today(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest from before a plan was a tree, as one: the join was one operator, with all inputs as members."""
    if "operators" in manifest:
        return manifest
    operator = {name: manifest[name] for name in _OF_OPERATOR if name in manifest}
    return {**manifest, "tree": list(range(len(manifest["rows"]))), "operators": [operator]}


_OF_OPERATOR = ("rows", "segments", "results", "orders", "edges", "residency", "groups")


def manifest_name(version: int) -> str:
    return f"version-{version:012d}.json"


def versions_in(names: list[str]) -> list[int]:
    """The versions whose manifests are among some files; others, such as a user's copies, are none of our business."""
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


_NAME = re.compile(r"version-(\d{12})\.json")
