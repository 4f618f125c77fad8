"""Two attempts at one version: whether they have the same state, and what follows where they do not.

The first manifest wins. Row counts alone do not tell whether both attempts had the same rows: a file may have been
corrected in between, by somebody who has restored an older checkpoint. So the rows themselves are compared, unless
their files are alike to the byte.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_mjoin.errors import StateError
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.manifest import Manifest, Manifests, OperatorFigures, Segment, manifest_name
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.segments import Segments
from spark_mjoin.state.stored import buckets_of
from spark_mjoin.state.table import ARRIVED

log = logging.getLogger(__name__)


def adopt(manifests: Manifests, segments: Segments, state: PartitionState, own: Manifest, may_lose_rows: bool) -> bool:
    """Let a state have the files of the manifest that another attempt at its version has published.

    False where it cannot. StateError where rows differ, and nobody allows that.
    """
    published = manifests.manifest(own.version)
    _check_brought(manifests, state, published, own)
    alike = _joined(published) == _joined(own)
    fewer = (published.positions, published.rows) != (own.positions, own.rows)
    if alike:
        fewer = fewer or _counted(published) != _counted(own)
    if fewer or not _same_rows(segments, state, published, own):
        _check_loss(manifests, state, published, own, fewer and may_lose_rows)
        log.warning(
            "state version %d in %s has rows that cannot be read any more: the query resumes from it, and this batch "
            "emits no results with them (failOnDataLoss is false)",
            own.version,
            manifests.directory.location,
        )
        return False
    if not alike or list(map(_essence, published.operators)) != list(map(_essence, own.operators)):
        return False
    for operator, figures in zip(state.operators, published.operators, strict=True):
        operator.segments = list(figures.segments)
        operator.departed.adopt(figures)
    if state.sample is not None and published.root.sample is not None:
        state.sample.file = published.root.sample.file
    state.lineage = published.lineage
    return True


def _check_brought(manifests: Manifests, state: PartitionState, published: Manifest, own: Manifest) -> None:
    """StateError where the two attempts were brought other rows: neither can ask for its own again."""
    if not (published.brought and own.brought) or published.brought == own.brought:
        return
    aliases = [operator.spec.inputs[member].alias for operator, member in state.inputs()]
    differ = [
        f"'{alias}' ({first[0]:,} rows, now {now[0]:,})"
        for alias, first, now in zip(aliases, published.brought, own.brought, strict=True)
        if first != now
    ]
    raise StateError(
        f"state version {own.version} in {manifests.directory.location} is there already, made by another attempt at "
        f"its batch, which was brought other rows of {', '.join(differ)}. What comes before the join must give the "
        "same rows whenever a batch is run again: look for rand(), uuid(), a function that is not deterministic, or a "
        "source that has lost rows. To do the batch with the rows that are there now, with results that the sink may "
        f"have already, remove {manifests.directory.path(manifest_name(own.version))} and start the query again"
    )


def _joined(manifest: Manifest) -> list[Any]:
    return [operator.joined for operator in manifest.operators]


def _counted(manifest: Manifest) -> list[Any]:
    return [(operator.rows, operator.residency) for operator in manifest.operators]


def _essence(operator: OperatorFigures) -> OperatorFigures:
    """What is equal of an operator in two manifests if their states are the same: not names, and what people read."""

    def nameless(files: tuple[Segment, ...]) -> tuple[Segment, ...]:
        return tuple(file._replace(name="") for file in files)

    sample = operator.sample
    return replace(
        operator,
        segments=nameless(operator.segments),
        promise_files=nameless(operator.promise_files),
        purged_files=nameless(operator.purged_files),
        sample=None if sample is None else replace(sample, file=sample.file._replace(name="")),
        orders=(),
        scans=(),
        edges=(),
        groups=None,
    )


def _same_rows(segments: Segments, state: PartitionState, published: Manifest, own: Manifest) -> bool:
    """Whether a published version has the same rows of every input as a state, all of which are in segments.

    Where rows are dropped, and the two do not come from the same version, nobody can tell: segments
    still have rows that have left, and each may have let them go at another time. Their counts must do then.
    """
    if any(o.departed.is_possible for o in state.operators) and published.lineage != own.lineage:
        return True
    for operator, member in state.inputs():
        mine, theirs = (
            [s for s in manifest.operators[operator.place.number].segments if s.input == member]
            for manifest in (own, published)
        )
        while mine and theirs and mine[0] == theirs[0]:
            mine, theirs = mine[1:], theirs[1:]
        if [_contents(s) for s in mine] != [_contents(s) for s in theirs]:
            buckets = range(BUCKETS) if operator.tracked else [None]
            for bucket in buckets:
                if not _same(*(_all_of(segments, operator, member, some, bucket) for some in (mine, theirs))):
                    return False
    return True


def _contents(segment: Segment) -> tuple[Any, ...]:
    """What is equal of two segments with the same bytes."""
    return segment.start, segment.end, segment.bytes, segment.crc32, segment.clusters


def _all_of(segments: Segments, state: OperatorState, member: int, some: list[Segment], bucket: int | None) -> pa.Table:
    """The rows of a bucket in some segments, or with None all rows, in order of arrival; without when they came."""
    schema = state.tables[member].arrow(0, 0).schema
    found = []
    for segment in some:
        for of, batch in segments.batches(segment, None if bucket is None else (bucket,)):
            if of is None and bucket is not None:
                batch = batch.filter(pa.array(buckets_of(state, member, batch) == bucket))
            found.append(batch.replace_schema_metadata(None))
    return pa.Table.from_batches(found, schema).drop_columns(ARRIVED).combine_chunks()


def _same(first: pa.Table, second: pa.Table) -> bool:
    """Whether two tables have the same rows in the same order; NaN is the same as NaN, which Arrow denies."""
    return first.num_rows == second.num_rows and all(
        a.equals(b) or repr(a.to_pylist()) == repr(b.to_pylist())
        for a, b in zip(first.columns, second.columns, strict=True)
    )


def _check_loss(manifests: Manifests, state: PartitionState, published: Manifest, own: Manifest, lenient: bool) -> None:
    """StateError unless a version with other rows than an attempt has is one from before input was lost.

    Then all that the published rows had with each other is emitted, as far as it still could be, and to resume from
    them gives nothing twice. But only if no row was evicted: what is emitted and what is pending depends on when rows
    were evicted, and the two attempts may differ in that.
    """
    version, location = own.version, manifests.directory.location
    known = f"state version {version} in {location} is there already, with other rows: "
    if not lenient or published.positions != own.positions or manifests.versions()[-1] > version:
        raise StateError(
            f"{known}the checkpoint was set back, another query writes to this place, or the input changed between "
            "two attempts. Restore the checkpoint and 'stateLocation' of the same time, "
            "or start with a new checkpoint"
        )
    if state.overflowed() or published.overflowed:
        raise StateError(
            f"{known}input was lost between two attempts at a batch (failOnDataLoss is false), and rows are on "
            "disk, so that what the first attempt has emitted is not known. Restore the input; or remove "
            f"{manifests.directory.path(manifest_name(version))} and start the query again: the batch is done without "
            "what was lost, and results of the first attempt that are in the sink already may come again"
        )
