"""The manifest of a version: what a partition's state is, and what the batch did that made it. Types, text, reading.

    Manifest ─┬─ operators   per operator of the plan: segments of rows, counters, what probes saw
              ├─ taken, held        how the batch went, for the planner (evidence)
              └─ done, standing     the same for people (counts, metrics)

The types are frozen, and their fields are the format: `records` makes text of them and reads it, and no other module
knows a key of it. `...Figures` are what outlives the task of a working type, which makes them and is made of them.
What only tasks need is late: it is not decoded on the driver, which reads the manifests of all partitions.

`Manifests` reads those of one partition. Every manifest has a checksum and is checked when it is read; one that is
damaged, or that has a field that is not known, is an error that names the file. See store.py for how one comes to be.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from spark_mjoin.counts import Done, Standing
from spark_mjoin.errors import StateError
from spark_mjoin.evidence import Edge, Held, Taken
from spark_mjoin.model import Access, Position, Tree
from spark_mjoin.state import checked_json, records
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.records import LATE, Packed, Patient, Pieces, nothing
from spark_mjoin.state.routing import ALONE, Routing

Lineage = tuple[tuple[int, str], ...]  # versions, ascending, with the identities of their manifests
Brought = tuple[tuple[int, int], ...]  # per input, how many rows were brought to a task, and the sum of their hashes


# --- files ---------------------------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A file with rows start..end-1 of one member, counted in order of arrival."""

    name: str
    input: int
    start: int
    end: int
    level: int  # how often its rows were merged: segments of a level are merged into one of the next
    bytes: int
    crc32: int
    clusters: Packed | None = None  # the bucket of each record batch; None: rows are in order of arrival
    last: int = 0  # the most events that were before the arrival of a row
    newest: int | None = None  # the largest position of a row in its window; None where the input has none

    @property
    def rows(self) -> int:
        return self.end - self.start

    @property
    def buckets(self) -> list[int] | None:
        """The bucket of each record batch."""
        return None if self.clusters is None else self.clusters.view().tolist()


# --- one operator --------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """What segments have of one member."""

    rows: int
    bytes: int


class Signature(NamedTuple):
    """What rows that are results of another join mean."""

    columns: tuple[tuple[str, str], ...]  # with their types
    conditions: tuple[str, ...]  # that they have passed


class CohortFigures(NamedTuple):
    """See state.admitted."""

    since: int
    last: float
    least: float
    rows: int
    weight: float


@dataclass(frozen=True)
class AdmittedFigures:
    """See state.admitted."""

    delivered: int = 0
    cohorts: tuple[CohortFigures, ...] = ()


@dataclass(frozen=True)
class ResidencyFigures:
    """See state.residency."""

    events: int
    departures: tuple[Packed, ...]  # per input, three numbers for each
    visits: tuple[Packed, ...]  # per input, two numbers for each
    cleaned: Packed

    @property
    def records(self) -> int:
        """Departures and visits."""
        return sum(of.size for of in self.departures) // 3 + sum(of.size for of in self.visits) // 2


@dataclass(frozen=True)
class GroupsFigures:
    """See state.groups."""

    resident: Packed
    disk: Packed
    waiting: Packed
    recent: Packed
    results: Packed
    chances: Packed
    turnover: Packed
    completed: Packed
    young: int = 0
    young_results: float = 0.0
    all_results: float = 0.0


class Round(NamedTuple):
    """See state.progress."""

    event: int  # rows that arrive at this event or later, and before that of the next round, are of this one
    starts: tuple[int, ...]  # rows that each input had delivered before it
    sizes: tuple[int, ...]  # rows that each input delivers in it


class Low(NamedTuple):
    """See state.progress."""

    event: int  # at which a batch began
    time: int  # its lowest watermark


@dataclass(frozen=True)
class ProgressFigures(Patient):
    """See state.progress."""

    read: tuple[int, ...]
    seen: tuple[int | None, ...]
    rounds: tuple[Round, ...] = field(metadata=LATE)
    lows: tuple[Low, ...] = field(metadata=LATE)
    positions: Packed
    events: Packed
    dropped: tuple[int, ...]
    since: int
    shortened: tuple[int | None, ...]
    looked: tuple[int | None, ...]
    held: int


@dataclass(frozen=True)
class PromiseFigures:
    """See state.promises."""

    ended: bool = False
    cluster: int | bytes | None = None
    cluster_mine: bool = False
    edge: int | bytes | None = None


@dataclass(frozen=True)
class PromisesFigures:
    """See state.promises; the keys themselves are in files."""

    of: tuple[PromiseFigures, ...]
    waiting: int
    news: bool
    arrived: int
    held: int
    changes: int
    looked: Packed
    end_given: bool
    clock: int
    names: tuple[tuple[int, tuple[int, ...]], ...]
    runs: int
    logs: int


@dataclass(frozen=True)
class SampleFigures:
    """See state.sample; the rows are in the file."""

    file: Segment
    columns: tuple[tuple[int, ...], ...]
    key_halvings: tuple[int, ...]
    row_halvings: tuple[int, ...]
    offered: tuple[int, ...]
    clock: int
    complete_at: tuple[int, int]
    lost_results: float


@dataclass(frozen=True)
class TrafficFigures:
    """See state.traffic."""

    scheme: str
    rows: Packed
    keys: Packed
    orders: Packed
    rows_of_keys: Packed  # keys x inputs
    slots: Packed
    rows_of_slots: Packed  # inputs x slots
    sampled: tuple[Packed, ...]


@dataclass(frozen=True)
class OperatorFigures(Patient):
    """One operator of the plan, as a version has it."""

    rows: tuple[int, ...]  # per member, all that count as stored: in memory, on disk, dropped and still in a segment
    segments: tuple[Segment, ...] = field(metadata=LATE)
    stored: tuple[Stored, ...] = field(init=False)  # what follows from them, per member
    results: int
    orders: tuple[str, ...]  # the last probing order of each member, for people
    edges: tuple[Edge, ...]
    admitted: tuple[AdmittedFigures, ...] = field(metadata=LATE)
    scans: Access = ()
    joined: tuple[Signature | None, ...] | None = field(default_factory=nothing, metadata=LATE)
    """Per member, where some are results of other operators."""
    residency: ResidencyFigures | None = None  # of a tracked state; so are groups
    groups: GroupsFigures | None = None
    progress: ProgressFigures | None = None  # where rows leave for good
    promises: PromisesFigures | None = field(default_factory=nothing, metadata=LATE)
    promise_files: tuple[Segment, ...] = ()  # the log of promises
    purged_files: tuple[Segment, ...] = ()  # which rows in segments have left because of them
    sample: SampleFigures | None = field(default_factory=nothing, metadata=LATE)  # at the root alone

    def __post_init__(self) -> None:
        rows, sizes = [0] * len(self.rows), [0] * len(self.rows)
        for segment in self.segments:
            rows[segment.input] += segment.rows
            sizes[segment.input] += segment.bytes
        object.__setattr__(self, "stored", tuple(map(Stored, rows, sizes)))

    @property
    def files(self) -> tuple[Segment, ...]:
        """All that it needs."""
        sampled = () if self.sample is None else (self.sample.file,)
        return (*self.segments, *self.promise_files, *self.purged_files, *sampled)

    @property
    def overflowed(self) -> bool:
        """Whether rows were evicted."""
        return self.residency is not None and any(of.size for of in self.residency.departures)

    @property
    def row_bytes(self) -> list[float]:
        """The mean size of a row of each member, judged by its segments."""
        return [size / max(1, rows) for rows, size in self.stored]

    @property
    def resident(self) -> tuple[float, ...]:
        """Rows of each member in memory."""
        if self.groups is None:
            return self.rows
        return tuple(self.groups.resident.view().reshape(len(self.rows), -1).sum(axis=1).tolist())


# --- a version -----------------------------------------------------------------------------------------------------


def _tree(body: Any, pieces: Pieces) -> Tree:
    """A plan from nested lists."""
    return body if isinstance(body, int) else tuple(_tree(below, pieces) for below in body)


@dataclass(frozen=True)
class Manifest(Patient):
    version: int
    positions: dict[str, Position]  # how far each source was read
    tree: Tree = field(metadata={"decoder": _tree})
    rows: tuple[int, ...]  # per input of the join, as an operator counts them
    dropped: tuple[int, ...]  # of these, not in the state any more
    orders: tuple[str, ...]
    results: int  # rows emitted since the query began
    operators: tuple[OperatorFigures, ...]  # of the tree, in preorder
    ancestors: tuple[int, ...] = field(metadata=LATE)  # the versions that led here, oldest first
    identities: tuple[str, ...] = field(metadata=LATE)  # of their manifests
    taken: Taken
    held: Held
    done: Done = field(metadata=LATE)
    standing: Standing = field(metadata=LATE)
    learned: tuple[Edge, ...] = ()  # what probes of earlier plans have seen, over the join's inputs
    since: int = 0  # the version that made the plan what it is
    brought: Brought = ()  # empty: what came can be read again, or nothing was to come
    traffic: TrafficFigures | None = None  # where there are several partitions, and rows may be divided otherwise

    @property
    def root(self) -> OperatorFigures:
        return self.operators[0]

    @property
    def lineage(self) -> Lineage:
        return tuple(zip(self.ancestors, self.identities, strict=True))

    @property
    def rows_held(self) -> tuple[int, ...]:
        """Per input, its rows in the state."""
        return tuple(rows - gone for rows, gone in zip(self.rows, self.dropped, strict=True))

    @property
    def intermediate_rows(self) -> int:
        """Rows that are results of operators under the root."""
        return sum(sum(operator.rows) for operator in self.operators) - sum(self.rows)

    @property
    def overflowed(self) -> bool:
        """Whether rows were evicted."""
        return any(operator.overflowed for operator in self.operators)

    @property
    def spilled(self) -> bool:
        """Whether the partition has had a budget, so that rows may be on disk alone; windows need none."""
        return self.root.residency is not None and (self.root.progress is None or self.overflowed)

    @property
    def files(self) -> tuple[str, ...]:
        """All files that the version needs."""
        return tuple(file.name for operator in self.operators for file in operator.files)

    def text(self) -> bytes:
        return records.text_of(self, format=checked_json.FORMAT)


_DECODE = records.decoder(Manifest)
_HEAD = re.compile(rb"[^\n]*")  # finds it in a view, too


def parsed(text: bytes | memoryview, path: str) -> Manifest:
    """The manifest that the checked text of a file is."""
    head = _HEAD.match(text)
    assert head is not None
    body = checked_json.parsed(head[0], path)
    del body["format"]
    manifest: Manifest = records.read(_DECODE, body, Pieces(path, memoryview(text)[head.end() + 1 :]))
    return manifest


remembered = lru_cache(maxsize=8)(parsed)  # of two partitions in a worker: a commit asks for all kept versions


def identity_of(text: bytes) -> str:
    """What tells a manifest from every other one, also from others of the same version, given its text.

    Manifests name segments, whose names no two attempts share. So equal manifests mean the same files.
    """
    return hashlib.blake2b(text, digest_size=8).hexdigest()


# --- the versions of a partition -----------------------------------------------------------------------------------


class Manifests:
    """The committed versions of one join partition, without their rows."""

    def __init__(self, location: str | Directory, partition: int, routing: Routing = ALONE) -> None:
        """location: the directory of a query."""
        query = Directory(location) if isinstance(location, str) else location
        self.directory = query.child(routing.directory(partition))

    def versions(self) -> list[int]:
        """The committed versions that are still kept, ascending."""
        return versions_in(self.directory.names())

    def has(self, version: int) -> bool:
        return self.directory.exists(manifest_name(version))

    def written(self, version: int) -> float:
        """When a version was committed, in seconds since 1970."""
        return self.directory.modified(manifest_name(version))

    def manifest(self, version: int) -> Manifest:
        """The manifest of a version, checked."""
        return self.parsed(version, self.text(version))

    def newest(self, version: int) -> Manifest | None:
        """The newest manifest that is not past a version; None where there is none."""
        if not version:
            return None
        try:
            text = checked_json.checked(self.directory, manifest_name(version))
        except FileNotFoundError:
            if self.has(version):  # asks in another way: some file systems say so of whatever cannot be opened
                raise
            version = max((v for v in self.versions() if v <= version), default=0)
            return self.manifest(version) if version else None
        return self._of(version, parsed(text, self.directory.path(manifest_name(version))))

    def text(self, version: int) -> bytes:
        """The text of the manifest of a version, checked."""
        with self._named(version) as name:
            return bytes(checked_json.checked(self.directory, name))

    def parsed(self, version: int, text: bytes) -> Manifest:
        """What the text of the manifest of a version says."""
        return self._of(version, remembered(text, self.directory.path(manifest_name(version))))

    def _of(self, version: int, manifest: Manifest) -> Manifest:
        """A manifest that was found under the name of a version, if it is of that version."""
        if manifest.version != version:
            raise StateError(
                f"state file {self.directory.path(manifest_name(version))} is of version {manifest.version}: it was "
                "copied there. Restore the state directory, or start with a new checkpoint"
            )
        return manifest

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


def manifest_name(version: int) -> str:
    return f"version-{version:012d}.json"


def versions_in(names: list[str]) -> list[int]:
    """The versions whose manifests are among some files; others, such as a user's copies, are none of our business."""
    return [int(found[1]) for name in names if (found := _NAME.fullmatch(name))]


_NAME = re.compile(r"version-(\d{12})\.json")
