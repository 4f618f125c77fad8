"""What a batch was made from, recorded before one of its results leaves that no committed version accounts for.

    arrived.json of version v     per input: how many rows came, and the sum of their hashes

The rows of `spark_mjoin.join` are brought to a task, and it cannot ask for them again. So an attempt may emit results
and die before it commits, and the next attempt may be brought other rows: state and sink would disagree. The first
attempt that emits early says here what it was brought, and a later one with other rows ends with an error.

Right because: an attempt emits only after it has looked for what others say, and has said it itself, here or in its
manifest. Of two attempts at the same time at least one looks after the other has spoken. Where publication is not exact
(directory.py), two that look at the same moment may both emit. One of the two manifests is then the state, and the
attempt with the other one compares rows when it commits.

Not covered: a row that moves from one partition to another, because its key is not the same in both attempts. Spark
compares checksums of what it shuffles again, and then has all tasks run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from spark_mjoin.errors import StateError
from spark_mjoin.state import checked_json
from spark_mjoin.state.manifest import Brought, Manifests

NAME = re.compile(r"arrived-(\d{12})\.json")


def announce(manifests: Manifests, version: int, attempt: str, brought: Brought, aliases: Sequence[str]) -> None:
    """Say what an attempt at a version was brought; StateError where another one was brought other rows."""
    text = checked_json.text_of({"inputs": brought})
    checked_json.publish(manifests.directory, _name(version), attempt, text)
    check(manifests, version, brought, aliases)
    if manifests.has(version):
        _compare(manifests, version, manifests.manifest(version).brought, brought, aliases)


def check(manifests: Manifests, version: int, brought: Brought, aliases: Sequence[str]) -> None:
    """StateError where an attempt at a version has emitted results of other rows than these."""
    if manifests.directory.exists(_name(version)):
        said = checked_json.read(manifests.directory, _name(version))["inputs"]
        _compare(manifests, version, tuple((rows, hashes) for rows, hashes in said), brought, aliases)


def before(names: Iterable[str], version: int) -> list[str]:
    """The records of versions before one: their batches are not run again."""
    return [name for name in names if (found := NAME.fullmatch(name)) and int(found[1]) < version]


def _compare(manifests: Manifests, version: int, first: Brought, brought: Brought, aliases: Sequence[str]) -> None:
    if first == brought:
        return
    differ = [
        f"'{alias}' ({before[0]:,} rows, now {now[0]:,})"
        for alias, before, now in zip(aliases, first, brought, strict=True)
        if before != now
    ]
    raise StateError(
        f"another attempt at the batch that makes state version {version} has emitted results, and was brought other "
        f"rows of {', '.join(differ)}. What comes before the join must give the same rows whenever a batch is run "
        "again: look for rand(), uuid(), a function that is not deterministic, or a source that has lost rows. To do "
        "the batch with the rows that are there now, with results that the sink may have already, remove "
        f"{manifests.directory.path(_name(version))} and start the query again"
    )


def _name(version: int) -> str:
    return f"arrived-{version:012d}.json"
