"""The durable state of one join partition: immutable segments of rows, and one manifest per version.

    <state>/<query>/meaning.json            what the rows mean (see meaning.py)
                   /sources/0/...           what the sources have found (see source_log.py)
                   /partition-0-of-2/...    see routing.py
                        version-000000000007.json                manifest: the segments of version 7, counters
                        rows-000000000007-2-5-<attempt>.arrow    rows of input 2, the attempt's fifth segment
                        rows-000000000007-r0.1-6-<attempt>.arrow   results that are member 1 of operator 0

No name depends on what users write, and all have less than 100 bytes: numbers say which input, the manifest says more.

A version is committed by publishing its manifest, after the segments that it names. Nothing that a manifest names is
ever changed, so a version, once there, stays as it is until it is removed as a whole. Two attempts at one version write
different segment names and the same manifest name; the first manifest wins, the other attempt's segments are removed.

Where the file system has no exact publication (directory.py), a manifest may be replaced by that of another attempt,
with the same rows in other segments, as long as both are under way. So there the segments of all attempts stay until
their version is not kept any more: whichever manifest is there, what it names is there.

A worker resumes from a state in its memory only if the state is the very one that is published: the manifest of its
version has the identity that it was loaded from or committed as, or the manifest of a later version names it among its
ancestors. The directory may have been restored from a copy while the worker lived, or a manifest removed. Then the
worker holds a state of an abandoned time line, perhaps with the same version and positions, and with other rows.

Every file has a checksum that is checked when it is read: a segment's is in the manifest, a manifest's is in itself. A
damaged file is an error that names it; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from spark_mjoin.counts import BatchCounts
from spark_mjoin.errors import StateError
from spark_mjoin.evidence import edges_of, faded, kept_edges
from spark_mjoin.model import Position
from spark_mjoin.state import attempts, checked_json, garbage
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifest import Manifest, Manifests, OperatorFigures, identity_of, manifest_name
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.routing import ALONE, Routing
from spark_mjoin.state.segments import Segments
from spark_mjoin.state.stored import StoredRows
from spark_mjoin.state.traffic import Traffic

ANCESTORS = 64  # that a manifest names: a state in memory that is older is loaded anew


@dataclass(frozen=True)
class Published:
    """A version as it is committed."""

    manifest: Manifest
    identity: str  # of the manifest


@dataclass(frozen=True)
class Draft:
    """A version in the making: an attempt at it writes segments, which its manifest will name."""

    store: StateStore
    version: int
    attempt: str

    def save(self, operator: OperatorState, members: Iterable[int] | None = None) -> None:
        """Put the rows of some members, or of all, into segments, as far as they are in none."""
        for member in range(len(operator.tables)) if members is None else members:
            self.store.rows.save(operator, member, self.version, self.attempt)


class StateStore(Manifests):
    """Loads and commits the state of one partition; `segments` are its files, `rows` puts rows into them and back."""

    def __init__(self, location: str, partition: int, compression: str | None = None, routing: Routing = ALONE) -> None:
        super().__init__(location, partition, routing)
        self.segments = Segments(self.directory, compression)
        self.rows = StoredRows(self.directory, self.segments)

    # --- loading ---------------------------------------------------------------------------------------------

    def published(self, version: int) -> Published | None:
        """The newest version that is committed and not past a version; None where there is none.

        It is older where a batch was emitted without its task coming to an end in this partition, as under a
        downstream LIMIT; the caller then makes up for the rest from the input.
        """
        committed = [v for v in self.versions() if v <= version]
        if not committed:
            return None
        text = self.text(committed[-1])
        return Published(self.parsed(committed[-1], text), identity_of(text))

    def in_one(self, published: Published, state: PartitionState) -> Published:
        """A version as if all inputs had always been in one join, without what it has of intermediate results.

        For a query that has resumed with other conditions or columns than those by which these were made. Nothing may
        be pending: it would have to be found by the old query. state: an empty one, of the tree that the version has.
        """
        manifest = published.manifest
        for operator, kept in zip(state.operators, manifest.operators, strict=True):
            if kept.groups is not None and Groups.of(operator.spec, kept.groups).in_debt().any():
                raise StateError(
                    f"the query has other conditions over several inputs, or other columns, than the state in "
                    f"{self.directory.location}, whose plan stores intermediate results, and results from disk are "
                    "pending. Run the query as it was until deferredRows is 0, and change it then"
                )
        segments, admitted = [], []
        for number, (operator, member) in enumerate(state.inputs()):
            kept = manifest.operators[operator.place.number]
            admitted.append(kept.admitted[member])
            segments += [s._replace(input=number, clusters=None) for s in kept.segments if s.input == member]
        inputs = len(manifest.rows)
        unknown = ("",) * inputs
        one = OperatorFigures(manifest.rows, tuple(segments), manifest.results, unknown, (), tuple(admitted))
        return Published(replace(manifest, tree=tuple(range(inputs)), operators=(one,)), published.identity)

    def fill(self, state: PartitionState, published: Published) -> Iterator[None]:
        """Put into an empty or an older state the rows and figures of a version.

        It stops after each piece of rows that comes into memory: should the state be too large by then, rows can be
        evicted before it goes on.
        """
        manifest = published.manifest
        for operator, kept in zip(state.operators, manifest.operators, strict=True):
            yield from self._fill_operator(operator, kept, state.version == 0)
        state.version = manifest.version
        state.positions = manifest.positions
        state.results = manifest.results
        state.learned = edges_of(manifest.learned)
        state.resume_traffic(None if manifest.traffic is None else Traffic.of(manifest.traffic))
        state.since = manifest.since
        state.lineage = (*manifest.lineage, (state.version, published.identity))

    def _fill_operator(self, state: OperatorState, kept: OperatorFigures, fresh: bool) -> Iterator[None]:
        state.take(kept)
        self.rows.read_departed(state, kept)
        if kept.groups is not None:
            if fresh:
                state.groups.begin_loading()
        elif state.tracked:  # from now on: everything was in memory until now, so every combination is emitted
            self.rows.mark_emitted(state, kept.segments, kept.results)
        yield from self.rows.bring_in(state, list(kept.segments), kept.rows, fresh)

    def catch_up(self, state: PartitionState, version: int) -> bool:
        """Bring a state from its version to the newest committed one up to `version`, reading only what is new.

        False when it must be loaded instead. Rows were evicted, or the plan has changed, be it to and fro. Or what
        is published does not descend from this state, because the directory was set back, or a manifest was removed or
        replaced, since the state was made.
        """
        newest = version
        if state.version < version or not self.has(version):
            newest = max((v for v in self.versions() if v <= version), default=0)
        if newest < state.version:
            return False
        text = self.text(newest)
        if newest == state.version:
            return state.lineage[-1:] == ((newest, identity_of(text)),)
        manifest = self.parsed(newest, text)
        if state.lineage[-1] not in manifest.lineage:
            return False
        if manifest.tree != state.tree or manifest.since != state.since or state.overflowed() or manifest.overflowed:
            return False
        if any(state.tracked != (kept.residency is not None) for kept in manifest.operators):
            return False
        if len(state.operators) > 1 and manifest.root.sample is not None:
            return False
        for _ in self.fill(state, Published(manifest, identity_of(text))):
            continue
        state.watch(self.rows.read_sample(manifest.root.sample, state.root.spec))
        for operator in state.operators:
            operator.forget_departed()
        return True

    # --- committing ------------------------------------------------------------------------------------------

    def draft(self, version: int, attempt: str) -> Draft:
        return Draft(self, version, attempt)

    def commit(
        self,
        state: PartitionState,
        version: int,
        positions: Mapping[str, Position],
        batch: BatchCounts,
        attempt: str,
        may_lose_rows: bool = False,
    ) -> bool:
        """Make the rows of `state` durable as `version`, and the state that version.

        False where the version is there already and differs for a good reason: it stays as it is, and nobody may resume
        from the state. Perhaps it has the same rows in files of another shape, because one of the two attempts had to
        make up for older versions. Perhaps it has intermediate results of another meaning, because the query was
        changed between the attempts. Or it has other rows, because input was lost between them and may be
        (`may_lose_rows`).
        """
        self._save(state, version, attempt)
        state.results += batch.rows_out
        for operator in state.operators:
            work = batch.work(operator.place.number)
            operator.probed.learn(work.edges, work.moves)
        state.learned = faded(state.learned, sum(batch.rows_in))
        manifest = _manifest(state, version, positions, batch)
        written = manifest.text()
        checked_json.publish(self.directory, manifest_name(version), attempt, written)
        found = self.text(version)
        resumes = found == written or attempts.adopt(self, self.segments, state, manifest, may_lose_rows)
        if resumes:
            state.version = version
            state.positions = dict(positions)
            state.lineage = (*state.lineage[-ANCESTORS:], (version, identity_of(found)))
        garbage.collect(self, version, attempt)
        return resumes

    def _save(self, state: PartitionState, version: int, attempt: str) -> None:
        """Write what is in no file yet."""
        for operator in state.operators:
            if self.rows.compact(operator, version, attempt):
                state.since = version
            for number in range(len(operator.tables)):
                self.rows.save(operator, number, version, attempt)
            operator.forget_empty_segments()
            self.rows.save_departed(operator, version, attempt)
        if state.sample is not None:
            self.rows.save_sample(state.sample, version, attempt)

    def discard(self, attempt: str) -> None:
        """Remove the segments of an attempt that has failed."""
        garbage.discard(self, attempt)


def _manifest(state: PartitionState, version: int, positions: Mapping[str, Position], batch: BatchCounts) -> Manifest:
    """The manifest of a state that is to be a version, after a batch."""
    inputs, sample = state.inputs(), state.sample
    files = [s for operator in state.operators for s in operator.segments]
    if sample is not None and sample.file is not None:
        files.append(sample.file)
    return Manifest(
        version=version,
        positions=dict(positions),
        tree=state.tree,
        rows=tuple(operator.totals[member] for operator, member in inputs),
        dropped=tuple(operator.departed.counts[member] for operator, member in inputs),
        orders=tuple(operator.probed.orders[member] for operator, member in inputs),
        results=state.results,
        operators=tuple(operator.figures() for operator in state.operators),
        ancestors=tuple(ancestor for ancestor, _ in state.lineage[-ANCESTORS:]),
        identities=tuple(identity for _, identity in state.lineage[-ANCESTORS:]),
        taken=batch.taken(),
        held=batch.held,
        done=batch.done(),
        standing=replace(batch.standing, disk_bytes=sum(file.bytes for file in files)),
        learned=kept_edges(state.learned),
        since=state.since,
        brought=batch.brought,
        traffic=None if state.traffic is None else state.traffic.figures(),
    )
