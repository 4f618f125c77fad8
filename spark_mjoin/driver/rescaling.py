"""Changing how rows are divided: options and counts (driver.balance) say what is wanted, the plan of a batch what is.

    batch in the old routing ──> all that is pending is emitted ──> batch in the new routing ──> old directories go
                                 (a batch of its own, if any is)    tasks take over the rows     (two batches later)

The routing changes only past a version that every partition has committed: a task of the new one takes over rows from
partitions of the old one, at that version (engine.takeover). Then every combination of the rows in the state must be
emitted, so that nothing has to be known of them but that. Where input can wait, a batch of its own sees to this. Where
it cannot, since it was brought, the new tasks emit what is pending while they take over (engine.pending).

Decided between two batches and recorded with the next (DESIGN, invariant 3): a batch that is run again has the
partitions that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from spark_mjoin.driver.committed import Committed
from spark_mjoin.model import JoinSpec
from spark_mjoin.query import tree as trees
from spark_mjoin.state import garbage
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.routing import Routing, in_directories

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Division:
    """How the rows of the next batch are divided among partitions."""

    routing: Routing
    emits_pending: bool = False  # it does nothing else, so that the one after it may be divided otherwise
    reason: str = ""  # where something changes, or should and does not


def divide(
    spec: JoinSpec,
    wanted: Routing,
    version: int,
    before: Routing,
    committed: Callable[[], Committed],
    can_wait: bool = True,
) -> Division:
    """For the batch after a version that was divided as `before` says; committed: what that version's tasks have.

    can_wait: whether the rows of the next batch can be left for a later one.
    """
    if not version:
        return Division(wanted)
    if before.divides_as(wanted):
        return Division(before)
    change = f"from {before} to {wanted}"
    whole = committed().of_all
    if not whole:
        return Division(
            before,
            reason=f"partitions do not change {change} yet: some partition has not committed version {version}, "
            "because nobody has read its results to their end",
        )
    if can_wait and any(is_pending(spec, manifest) for manifest in whole):
        return Division(before, True, f"all that is pending is emitted before partitions change {change}")
    rows = sum(sum(manifest.rows_held) for manifest in whole)
    return Division(
        before.followed_by(wanted, version + 1),
        reason=f"partitions change {change} with version {version + 1}: its tasks read the {rows:,} rows of the state "
        "and write them anew",
    )


def is_pending(spec: JoinSpec, manifest: Manifest) -> bool:
    """Whether combinations of rows in the state are still to be emitted."""
    places = trees.layout(spec, manifest.tree)
    return any(
        figures.groups is not None and bool(Groups.of(place.spec, figures.groups).in_debt().any())
        for place, figures in zip(places, manifest.operators, strict=True)
    )


def is_past(routing: Routing, committed: Committed) -> bool:
    """Whether no batch that may still be run again, and no partition, needs what was there before a routing."""
    kept = routing.since + garbage.KEPT_VERSIONS - 1
    return routing.before is not None and committed.version >= kept and committed.is_complete


def remove_older(location: str, routing: Routing) -> None:
    """Remove the directories of all routings before one, in the state of a query."""
    query = Directory(location)
    for older in in_directories(query.directories()):
        if older.since < routing.since:
            log.info("removes the state that was divided among %d partitions", older.partitions)
            for partition in range(older.partitions):
                garbage.remove(Manifests(query, partition, older))
