"""Removing what no kept version needs: old manifests, segments that were replaced, what failed attempts left behind."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from contextlib import suppress

from spark_mjoin.errors import StateError
from spark_mjoin.state.manifest import Manifests, manifest_name, versions_in

log = logging.getLogger(__name__)

KEPT_VERSIONS = 3

_KINDS = "rows|promises|purged|sample"
_FILE = re.compile(rf"(?:{_KINDS})-(\d{{12}})-.*\.(?:arrow|json)")
_LEFT_OVER = re.compile(rf"-(?:version|{_KINDS})-(\d{{12}})")


def collect(manifests: Manifests, version: int, attempt: str) -> None:
    """Remove versions that are not kept any more, and files that no kept version needs.

    Files of this and later versions are left alone: another attempt may be about to publish them. So are later
    versions and what they need: they are there when a checkpoint was set back.
    """
    directory = manifests.directory
    names = directory.names()
    versions = versions_in(names)
    dropped = [v for v in versions if v <= version][:-KEPT_VERSIONS]
    for old in dropped:
        directory.delete(manifest_name(old))
    exact = directory.exact
    final = version if exact else version - KEPT_VERSIONS + 1  # older versions get no other manifest any more
    for name in _unneeded(manifests, names, [v for v in versions if v not in dropped]):
        made = _FILE.fullmatch(name)
        if made is not None and (int(made[1]) < final or (exact and attempt in name)):
            directory.delete(name)
    for name in directory.leftovers():
        made_for = _LEFT_OVER.search(name)
        if made_for is not None and int(made_for[1]) < version - 1:
            directory.delete(name)


def discard(manifests: Manifests, attempt: str) -> None:
    """Remove the segments of an attempt that has failed; a later version would, but a full disk takes none."""
    with suppress(OSError):
        for name in manifests.directory.names():
            made = _FILE.fullmatch(name)
            if made is not None and attempt in name and not manifests.has(int(made[1])):
                manifests.directory.delete(name)


def remove(manifests: Manifests) -> None:
    """Remove a partition's files, and its directory where nobody has put others into it."""
    directory = manifests.directory
    for name in (*directory.names(), *directory.leftovers()):
        if versions_in([name]) or _FILE.fullmatch(name) or _LEFT_OVER.search(name):
            directory.delete(name)
    directory.remove_if_empty()


def _unneeded(manifests: Manifests, names: Iterable[str], kept: Iterable[int]) -> list[str]:
    """The files that no kept version names; none, as long as one of these versions cannot be read.

    That is no reason to fail: this batch does not need it, and is committed. It goes as it gets old.
    """
    try:
        needed = {name for version in kept for name in manifests.manifest(version).files}
    except StateError as e:
        log.warning("files that are not needed any more stay for now: %s", e)
        return []
    return [name for name in names if name not in needed]
