"""The durable state of one join partition: immutable segments of rows, and one manifest per version.

    <state>/<query>/meaning.json            what the rows mean (see meaning.py)
                   /sources/0/...           what the sources have found (see source_log.py)
                   /partition-0/version-000000000007.json             manifest: the segments of version 7, counters
                               /rows-000000000007-2-5-<attempt>.arrow   rows of input 2, the attempt's fifth segment
                               /rows-000000000007-r0.1-6-<attempt>.arrow   results that are member 1 of operator 0

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

Small segments are merged: `FAN_OUT` neighbours of one level become one segment of the next, until they are
`LARGE_BYTES`, so the number of files stays logarithmic in the number of versions and each row is rewritten a few times
at the most.
"""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from spark_mjoin.errors import StateError
from spark_mjoin.metrics import BatchCounts, edges_from_json, edges_to_json, faded
from spark_mjoin.model import Array, JoinSpec, OperatorSpec, Position, Tree
from spark_mjoin.state import checked_json, columns
from spark_mjoin.state.admitted import Admitted
from spark_mjoin.state.buckets import BUCKETS, of_hashes
from spark_mjoin.state.columns import fixed_values, hash_array
from spark_mjoin.state.directory import ChecksumStream
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifests import Manifests, identity_of, manifest_name, versions_in
from spark_mjoin.state.operator import OperatorState, Segment
from spark_mjoin.state.partition import Lineage, PartitionState
from spark_mjoin.state.progress import Progress
from spark_mjoin.state.promises import Promises
from spark_mjoin.state.purged import Purged, input_keys
from spark_mjoin.state.residency import NEVER, Residency
from spark_mjoin.state.sample import Sample
from spark_mjoin.state.table import ARRIVED, Table

log = logging.getLogger(__name__)

KEPT_VERSIONS = 3
ANCESTORS = 64  # that a manifest names: a state in memory that is older is loaded anew
FAN_OUT = 8
LARGE_BYTES = 64 << 20
FEW_RECORDS = 1024  # of the log of promises, for a segment
WRITE_ROWS = 1 << 16
WRITE_BYTES = 1 << 20  # small record batches go to the file together
READ_BYTES = 4 << 20  # of a segment that is read at once
OPEN_BYTES = 8 << 20  # of small segments that stay open: passes read them again and again

Section = tuple[int, pa.RecordBatch]  # a bucket, and rows of it


class StateStore(Manifests):
    def __init__(self, location: str, partition: int, compression: str | None = None) -> None:
        super().__init__(location, partition)
        self._compression = compression
        self._checked: set[str] = set()  # segments that were read and found whole
        self._open: OrderedDict[str, tuple[int, pa.ipc.RecordBatchFileReader]] = OrderedDict()  # with their bytes
        self._open_bytes = 0
        self._written = 0  # segments, by which their names differ

    def load(
        self,
        layout: Callable[[Tree], Sequence[OperatorSpec]],
        tree: Tree,
        version: int,
        initial: Mapping[str, Position],
        tracked: bool = False,
        grown: Callable[[PartitionState], None] = lambda state: None,
    ) -> PartitionState:
        """The newest committed state that is not past `version`; version 0 is empty, at the initial positions.

        layout gives the operators of a plan: those of the state's own, or of `tree` where there is no state yet. The
        state is older than `version` when a batch was given out without its task coming to an end in this partition, as
        under a downstream LIMIT; the caller then rebuilds the rest from the input. `grown` is called now and then while
        rows come into memory, and may let some of them leave again.
        """
        committed = [v for v in self.versions() if v <= version]
        if not committed:
            return PartitionState.empty(tree, layout(tree), initial, tracked)
        text = self.text(committed[-1])
        manifest = self.parsed(committed[-1], text)
        tracked = tracked or bool(manifest["operators"][0].get("residency"))
        tree = _tree(manifest["tree"])
        state = PartitionState.empty(tree, layout(tree), initial, tracked)
        if any(_signatures(o) != f.get("joined") for o, f in zip(state.operators, manifest["operators"], strict=True)):
            tree = tuple(range(len(manifest["rows"])))
            manifest = self._in_one(manifest, state)
            state = PartitionState.empty(tree, layout(tree), initial, tracked)
        state.watch(self._sample(manifest, layout(tuple(range(len(manifest["rows"]))))[0].spec))
        self._fill(state, manifest, identity_of(text), grown)
        return state

    def _in_one(self, manifest: dict[str, Any], state: PartitionState) -> dict[str, Any]:
        """A manifest as if all inputs had always been in one join, without what it has of intermediate results.

        For a query that has gone on with other conditions or columns than those by which these were made. Nothing may
        be owed: it would have to be found by the old query.
        """
        for operator, figures in zip(state.operators, manifest["operators"], strict=True):
            if figures.get("groups") and Groups.from_json(operator.spec, figures["groups"]).in_debt().any():
                raise StateError(
                    f"the query has other conditions over several inputs, or other columns, than the state in "
                    f"{self.directory.location}, whose plan stores intermediate results and still owes results from "
                    "disk. Run the query as it was until deferredRows is 0, and change it then"
                )
        segments, admitted = [], []
        for number, (operator, member) in enumerate(state.inputs()):
            figures = manifest["operators"][operator.place.number]
            admitted.append(_admitted(figures, member).to_json())
            mine = [s for s in figures["segments"] if s["input"] == member]
            segments += [{**s, "input": number, "clusters": None} for s in mine]
        inputs = len(manifest["rows"])
        one = {"rows": manifest["rows"], "segments": segments, "results": manifest["results"]}
        return {**manifest, "operators": [one | {"orders": [""] * inputs, "edges": [], "admitted": admitted}]}

    def catch_up(self, state: PartitionState, version: int) -> bool:
        """Bring a state from its version to the newest committed one up to `version`, reading only what is new.

        False when it must be loaded instead. Rows have left memory, or the plan has changed, be it to and fro. Or what
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
        if state.lineage[-1] not in _lineage(manifest):
            return False
        if _tree(manifest["tree"]) != state.tree or manifest.get("since", 0) != state.since or state.overflowed():
            return False
        for figures in manifest["operators"]:
            if state.tracked != bool(figures.get("residency")):
                return False
            if state.tracked and any(figures["residency"]["departures"]):
                return False
        if len(state.operators) > 1 and manifest["operators"][0].get("sample"):
            return False
        self._fill(state, manifest, identity_of(text), lambda state: None)
        state.watch(self._sample(manifest, state.root.spec))
        for operator in state.operators:
            if operator.spec.forgetful:
                operator.drop_gone()
        return True

    def _fill(
        self, state: PartitionState, manifest: dict[str, Any], identity: str, grown: Callable[[PartitionState], None]
    ) -> None:
        """Put into an empty or an older state the rows and figures of a manifest."""
        for operator, figures in zip(state.operators, manifest["operators"], strict=True):
            self._fill_operator(operator, figures, state.version == 0, lambda: grown(state))
        state.version = manifest["version"]
        state.positions = manifest["positions"]
        state.results = manifest["results"]
        state.learned = edges_from_json(manifest.get("learned", ()))
        state.since = manifest.get("since", 0)
        state.lineage = (*_lineage(manifest), (state.version, identity))

    def _fill_operator(
        self, state: OperatorState, figures: dict[str, Any], fresh: bool, grown: Callable[[], None]
    ) -> None:
        segments = [Segment(**s) for s in figures["segments"]]
        if figures.get("progress"):
            state.progress = Progress.from_json(len(state.tables), figures["progress"])
        if figures.get("promises"):
            self._read_promises(state, figures["promises"])
        if figures.get("residency"):
            state.residency = Residency.from_json(len(state.tables), figures["residency"])
            state.groups = Groups.from_json(state.spec, figures["groups"])
            if fresh:
                state.groups.begin_loading()
        elif state.tracked:  # from now on: everything was in memory until now, so every combination is out
            self.settle(state, segments, figures["results"])
        self.bring_in(state, segments, figures["rows"], fresh, grown)
        state.results = figures["results"]
        state.orders = figures["orders"]
        state.edges = edges_from_json(figures["edges"])
        state.admitted = [_admitted(figures, member) for member in range(len(state.tables))]

    def _read_promises(self, state: OperatorState, figures: dict[str, Any]) -> None:
        """What was promised: all of the log, or what a state that is older does not have of it."""
        held = sum(s.end - s.start for s in state.promise_files)
        if not held or state.promises.logs != figures["state"]["logs"]:
            state.promises, held = Promises(state.spec), 0
        state.promises.take(figures["state"])
        state.promise_files = [Segment(**s) for s in figures["log"]]
        state.promises.read(self._records(state.promise_files, held))
        state.purged = [Purged() for _ in state.tables]
        state.purged_files = [Segment(**s) for s in figures["purged"]]
        for file in state.purged_files:
            reader = self._reader(file)
            for at in range(reader.num_record_batches):
                state.purged[file.input].read(reader.get_batch(at))

    def _records(self, segments: Iterable[Segment], start: int) -> Iterator[pa.RecordBatch]:
        """The records of some neighbouring segments from number `start` on."""
        for segment in segments:
            if segment.end > start:
                at = segment.start
                for _, batch in self.batches(segment):
                    if at + batch.num_rows > start:
                        yield batch.slice(max(start - at, 0))
                    at += batch.num_rows

    def _sample(self, manifest: Mapping[str, Any], spec: JoinSpec) -> Sample | None:
        """The sample of a version, if it has one; spec: all inputs in one join."""
        figures = manifest["operators"][0].get("sample")
        if not figures:
            return None
        file = Segment(**figures["file"])
        sample = Sample.read(spec, figures, self._mapped(file).get_batch(0))
        if sample is not None:
            sample.file = file
        return sample

    def _save_sample(self, sample: Sample, version: int, attempt: str) -> None:
        """Write the sample, unless it is as it was."""
        if sample.file is None:
            rows, name = sample.rows(), f"sample-{version:012d}-{attempt}.arrow"
            size, crc32, _ = self._write(name, rows.schema, [(0, rows)], attempt)
            sample.file = Segment(name, 0, 0, rows.num_rows, 0, size, crc32)

    def settle(self, state: OperatorState, segments: Iterable[Segment], results: int) -> None:
        """Let an empty operator know that everything the rows in some segments have is out, and count the rows."""
        segments = list(segments)
        state.residency.events = max([state.residency.events, *(segment.last for segment in segments)])
        state.residency.clean(range(BUCKETS), state.groups.main)
        state.groups.results += results / BUCKETS
        for segment in segments:
            for _, batch in self.batches(segment):
                state.groups.disk[segment.input] += np.bincount(
                    self.buckets_of(state, segment.input, batch), minlength=BUCKETS
                )
        state.groups.chances += state.groups.possible()

    def bring_in(
        self, state: OperatorState, segments: list[Segment], rows: Sequence[int], fresh: bool, grown: Callable[[], None]
    ) -> None:
        """Put the rows of segments that a state does not have yet, and that are to be in memory, into their tables."""
        for number, expected in enumerate(rows):
            found = state.totals[number]
            for segment in segments:
                if segment.input == number and segment.end > found:
                    self._take_in(state, segment, found - segment.start, grown, fresh)
                    found = segment.end
            if found != expected and state.spec.inputs[number].window is None:
                raise StateError(
                    f"the state in {self.directory.location} is damaged: it has {found} rows "
                    f"of input '{state.spec.inputs[number].alias}' where its manifest counts {expected}"
                )
        state.totals = list(rows)
        state.saved = [table.rows for table in state.tables]
        state.segments = segments

    def _take_in(
        self,
        state: OperatorState,
        segment: Segment,
        skip: int,
        grown: Callable[[], None],
        fresh: bool,
    ) -> None:
        """Put the rows of a segment that are to be in memory, from number `skip` on, into their table."""
        number, skip, found = segment.input, max(skip, 0), 0
        table, residency = state.tables[number], state.residency
        for bucket, batch in self.batches(segment):
            found += batch.num_rows
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            batch, skip = self.living(state, number, batch.slice(skip)), 0
            if bucket is not None and residency.all_gone(number, bucket, segment.last):
                continue
            if residency.departures[number]:
                gone = residency.flushed(number, self.buckets_of(state, number, batch), arrived_of(batch))
                batch = batch.filter(pa.array(np.equal(gone, NEVER)))
            start, end = table.append([batch.column(s.field) for s in table.spec.stored], arrived_of(batch))
            state.saved[number] = end
            if state.tracked and fresh:
                state.groups.load(number, np.bincount(table.buckets[start:end], minlength=BUCKETS))
                grown()
        if found != segment.end - segment.start:
            raise StateError(
                f"state file {self.directory.path(segment.name)} is damaged: it has {found} rows, expected "
                f"{segment.end - segment.start}; restore it, or start with a new checkpoint"
            )

    def buckets_of(self, state: OperatorState, number: int, batch: pa.RecordBatch) -> Array:
        """The buckets of some rows of a segment."""
        return of_hashes(hash_array(batch.column(state.tables[number].bucket_key)))

    def living(self, state: OperatorState, number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows of segments, without those that have left the state."""
        input = state.spec.inputs[number]
        if input.window is not None:
            positions = fixed_values(batch.column(input.stored[input.window.position].field), np.int64)
            gone = state.progress.gone(number, self.buckets_of(state, number, batch), arrived_of(batch), positions)
            batch = batch.filter(pa.array(~gone)) if gone.any() else batch
        if state.purged[number]:
            gone = state.purged[number].gone(input_keys(input, batch), arrived_of(batch))
            batch = batch.filter(pa.array(~gone)) if gone.any() else batch
        return batch

    def batches(self, segment: Segment, buckets: Container[int] | None = None) -> Iterator[tuple[int | None, Any]]:
        """The record batches of a segment, each with its bucket, or with None where rows are in order of arrival.

        With `buckets`, those of other buckets are left out where the segment is clustered.
        """
        if segment.clusters is not None:
            wanted = [(n, b) for n, b in enumerate(segment.clusters) if buckets is None or b in buckets]
            if wanted:
                reader = self._reader(segment)
                yield from ((bucket, reader.get_batch(number)) for number, bucket in wanted)
            return
        reader = self._reader(segment)
        for number in range(reader.num_record_batches):
            yield None, reader.get_batch(number)

    def rows(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """All rows of a segment; those of a small one together, which is faster where there are many buckets."""
        if segment.bytes > READ_BYTES or segment.clusters is None:
            yield from (batch for _, batch in self.batches(segment))
        else:
            yield from self._reader(segment).read_all().combine_chunks().to_batches()

    def _reader(self, segment: Segment) -> pa.ipc.RecordBatchFileReader:
        """A segment, mapped into memory; the whole file is checked when it is first asked for.

        A large one is mapped anew each time, so that what was read does not stay in memory longer than its reader. The
        last small ones stay open, as opening one takes longer than reading a bucket of it.
        """
        if segment.bytes > READ_BYTES:
            return self._mapped(segment)
        if segment.name in self._open:
            self._open.move_to_end(segment.name)
            return self._open[segment.name][1]
        reader = self._mapped(segment)
        self._open[segment.name] = segment.bytes, reader
        self._open_bytes += segment.bytes
        while self._open_bytes > OPEN_BYTES:
            self._open_bytes -= self._open.popitem(last=False)[1][0]
        return reader

    def _mapped(self, segment: Segment) -> pa.ipc.RecordBatchFileReader:
        path = self.directory.path(segment.name)
        try:
            if segment.name not in self._checked:
                size, crc32 = self.directory.checksum(segment.name)
                if (size, crc32) != (segment.bytes, segment.crc32):
                    raise StateError(
                        f"state file {path} is damaged: {size} bytes with CRC {crc32:08x}, expected "
                        f"{segment.bytes} with {segment.crc32:08x}; restore it, or start with a new checkpoint"
                    )
                self._checked.add(segment.name)
            return pa.ipc.open_file(self.directory.map(segment.name))
        except FileNotFoundError:
            raise StateError(f"state file {path} is missing; restore it, or start with a new checkpoint") from None

    # --- writing ---------------------------------------------------------------------------------------------

    def commit(
        self,
        state: PartitionState,
        version: int,
        positions: Mapping[str, Position],
        batch: BatchCounts,
        attempt: str,
        lenient: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Make the rows of `state` durable as `version`, and the state that version.

        False where the version is there already and differs for a good reason: it stays as it is, and nobody may go on
        from the state. Perhaps it has the same rows in files of another shape, because one of the two attempts had to
        make up for older versions. Perhaps it has intermediate results of another meaning, because the query was
        changed between the attempts. Or it has other rows, because input was lost between them and that is allowed, as
        `lenient` says.
        """
        for operator in state.operators:
            if operator.spec.promising and self._compact(operator, version, attempt):
                state.since = version
            for number in range(len(operator.tables)):
                self.save(operator, number, version, attempt)
            if operator.spec.forgetful:
                operator.drop_segments()
            if operator.spec.promising:
                self._save_promises(operator, version, attempt)
        if state.sample is not None:
            self._save_sample(state.sample, version, attempt)
        batch.disk_bytes = sum(s.bytes for operator in state.operators for s in operator.segments)
        batch.disk_bytes += 0 if state.sample is None else state.sample.file.bytes
        state.results += batch.rows_out
        for operator in state.operators:
            work = batch.work(operator.place.number)
            operator.learn(work.edges, work.moves)
        state.learned = faded(state.learned, sum(batch.rows_in))
        inputs = state.inputs()
        body: dict[str, Any] = {
            "version": version,
            "positions": dict(positions),
            "tree": state.tree,
            "rows": [operator.totals[member] for operator, member in inputs],
            "dropped": [operator.progress.dropped[member] for operator, member in inputs],
            "orders": [operator.orders[member] for operator, member in inputs],
            "results": state.results,
            "operators": [_figures(operator) for operator in state.operators],
            "batch": batch.to_json(),
            "lineage": state.lineage[-ANCESTORS:],
        }
        if state.learned:
            body["learned"] = edges_to_json(state.learned)
        if state.since:
            body["since"] = state.since
        written = checked_json.text_of(body)
        checked_json.publish(self.directory, manifest_name(version), attempt, written)
        found = self.text(version)
        goes_on = found == written or self._adopt(state, self.parsed(version, found), body, lenient)
        if goes_on:
            state.version = version
            state.positions = dict(positions)
            state.lineage = (*state.lineage[-ANCESTORS:], (version, identity_of(found)))
        self._collect_garbage(version, attempt)
        return goes_on

    def _adopt(
        self,
        state: PartitionState,
        published: dict[str, Any],
        body: dict[str, Any],
        lenient: Callable[[], bool],
    ) -> bool:
        """Let a state have the files of the manifest that another attempt at its version has published.

        False where it cannot. Row counts alone do not tell whether both attempts had the same rows: a file may have
        been corrected in between, by somebody who has restored an older checkpoint. So the rows themselves are
        compared, unless their files are alike to the byte. StateError where they differ, and nobody allows that.
        """
        alike: bool = _compared(published, "joined") == _compared(body, "joined")
        compared = ("positions", "inputs", "rows", "residency") if alike else ("positions", "inputs")
        fewer = any(_compared(published, name) != _compared(body, name) for name in compared)
        if fewer or not self._same_rows(state, published, body):
            self._check_loss(state, published, body, fewer and lenient())
            log.warning(
                "state version %d in %s has rows that cannot be read any more: it is gone on with, and this batch "
                "gives out no results with them (failOnDataLoss is false)",
                body["version"],
                self.directory.location,
            )
            return False
        if not alike or [_essence(o) for o in published["operators"]] != [_essence(o) for o in body["operators"]]:
            return False
        for operator, figures in zip(state.operators, published["operators"], strict=True):
            operator.segments = [Segment(**s) for s in figures["segments"]]
            if operator.spec.promising:
                operator.promise_files = [Segment(**s) for s in figures["promises"]["log"]]
                operator.purged_files = [Segment(**s) for s in figures["promises"]["purged"]]
        if state.sample is not None:
            state.sample.file = Segment(**published["operators"][0]["sample"]["file"])
        state.lineage = _lineage(published)
        return True

    def _same_rows(self, state: PartitionState, published: dict[str, Any], body: dict[str, Any]) -> bool:
        """Whether a published version has the same rows of every input as a state, all of which are in segments.

        Where rows leave the state for good, and the two do not come from the same version, nobody can tell: segments
        still have rows that have left, and each may have let them go at another time. Their counts must do then.
        """
        if any(o.spec.forgetful for o in state.operators) and _lineage(published) != _lineage(body):
            return True
        for operator, member in state.inputs():
            mine, theirs = (
                [Segment(**s) for s in figures["operators"][operator.place.number]["segments"] if s["input"] == member]
                for figures in (body, published)
            )
            while mine and theirs and mine[0] == theirs[0]:
                mine, theirs = mine[1:], theirs[1:]
            if [_contents(s) for s in mine] != [_contents(s) for s in theirs]:
                buckets = range(BUCKETS) if operator.tracked else [None]
                for bucket in buckets:
                    if not _same(*(self._all_of(operator, member, segments, bucket) for segments in (mine, theirs))):
                        return False
        return True

    def _all_of(self, state: OperatorState, member: int, segments: list[Segment], bucket: int | None) -> pa.Table:
        """The rows of a bucket in some segments, or with None all rows, in order of arrival; without when they came."""
        schema = state.tables[member].arrow(0, 0).schema
        found = []
        for segment in segments:
            for of, batch in self.batches(segment, None if bucket is None else (bucket,)):
                if of is None and bucket is not None:
                    batch = batch.filter(pa.array(self.buckets_of(state, member, batch) == bucket))
                found.append(batch.replace_schema_metadata(None))
        return pa.Table.from_batches(found, schema).drop_columns(ARRIVED).combine_chunks()

    def discard(self, attempt: str) -> None:
        """Remove the segments of an attempt that has failed; a later version would, but a full disk takes none."""
        with suppress(OSError):
            for name in self.directory.names():
                made = _FILE.fullmatch(name)
                if made is not None and attempt in name and not self.has(int(made[1])):
                    self.directory.delete(name)

    def _check_loss(
        self, state: PartitionState, published: Mapping[str, Any], body: Mapping[str, Any], lenient: bool
    ) -> None:
        """StateError unless a version with other rows than an attempt has is one from before input was lost.

        Then all that the published rows had with each other is out, as far as it could still be given out, and to go on
        from them gives nothing twice. But only if no row has left memory: else it depends on when rows left what is
        out and what is owed, and the two attempts may differ in it.
        """
        version, location = body["version"], self.directory.location
        known = f"state version {version} in {location} is there already, with other rows: "
        if not lenient or published["positions"] != body["positions"] or self.versions()[-1] > version:
            raise StateError(
                f"{known}the checkpoint was set back, another query writes to this place, or the input changed between "
                "two attempts. Restore the checkpoint and 'stateLocation' of the same time, "
                "or start with a new checkpoint"
            )
        tracked = (figures["residency"] for figures in published["operators"] if "residency" in figures)
        if state.overflowed() or any(any(residency["departures"]) for residency in tracked):
            raise StateError(
                f"{known}input was lost between two attempts at a batch (failOnDataLoss is false), and rows are on "
                "disk, so that what the first attempt has given out is not known. Restore the input; or remove "
                f"{self.directory.path(manifest_name(version))} and start the query again: the batch is done without "
                "what was lost, and results of the first attempt that are in the sink already may come again"
            )

    def _compact(self, state: OperatorState, version: int, attempt: str) -> bool:
        """Let the segments of an input go whose rows are gone for the most part, and write the others anew.

        Rows are numbered anew then. Where all that is left is in memory, they are simply not saved any more. So each
        row that is purged is read or written again a few times at the most, and disk stays in proportion to the state.
        """
        found = False
        for number, table in enumerate(state.tables):
            mine = [s for s in state.segments if s.input == number]
            stored = sum(s.end - s.start for s in mine)
            fresh = table.rows - state.saved[number]
            living = state.totals[number] - state.progress.dropped[number] - fresh
            if not state.purged[number] or 2 * living > stored:
                continue
            found = True
            kept = [s for s in state.segments if s.input != number]
            if not state.groups.disk[number].any():
                state.saved[number] = 0
                living = 0
            elif living:
                kept.append(self._rewrite(state, number, mine, living, version, attempt))
            state.segments = kept
            state.totals[number] = living + table.rows - state.saved[number]
            state.progress.dropped[number] = 0
            state.purged[number] = Purged()
            state.purged_files = [s for s in state.purged_files if s.input != number]
        return found

    def _rewrite(
        self, state: OperatorState, number: int, segments: list[Segment], rows: int, version: int, attempt: str
    ) -> Segment:
        """One segment with the rows of some that are in the state."""
        table = state.tables[number]
        parts: list[list[pa.RecordBatch]] = [[] for _ in range(BUCKETS)]
        for segment in segments:
            for _, batch in self.batches(segment):
                for of, part in _by_bucket(self.living(state, number, batch), table.bucket_key):
                    parts[of].append(part)
        sections = ((bucket, batch) for bucket, of in enumerate(parts) for batch in _together(of))
        name = self._name(state, number, version, attempt)
        size, crc32, clusters = self._write(name, table.arrow(0, 0).schema, sections, attempt)
        level, last = max(s.level for s in segments), max(s.last for s in segments)
        newest = max((s.newest for s in segments if s.newest is not None), default=None)
        return Segment(name, number, 0, rows, level, size, crc32, clusters, last, newest)

    def _name(self, state: OperatorState, number: int, version: int, attempt: str) -> str:
        self._written += 1
        return f"rows-{version:012d}-{state.label(number)}-{self._written}-{attempt}.arrow"

    def _save_promises(self, state: OperatorState, version: int, attempt: str) -> None:
        """Write what was promised, and which rows in segments have left since the last version because of it."""
        promises, files = state.promises, state.promise_files
        end = files[-1].end if files else 0
        if promises.is_stale(end):
            files, end, records = [], 0, promises.everything()
        else:
            records = promises.changes_since_commit()
        if records:
            count = sum(batch.num_rows for batch in records)
            start, level, replaced = self._place(files, False, end, _level(count))
            kept, end = files[: len(files) - len(replaced)], end + count
            sections = ((0, batch) for batch in _together([*self._records(replaced, start), *records]))
            name = f"promises-{version:012d}-{state.place.number}-{attempt}.arrow"
            size, crc32, _ = self._write(name, records[0].schema, sections, attempt)
            files = [*kept, Segment(name, 0, start, end, level, size, crc32)]
        state.promise_files = files
        promises.committed()
        for number, purged in enumerate(state.purged):
            if not purged.fresh:
                continue
            mine = [s for s in state.purged_files if s.input == number]
            if len(mine) >= FAN_OUT - 1:
                state.purged_files = [s for s in state.purged_files if s.input != number]
                batches = [purged.all()]
            else:
                batches = purged.fresh
            rows = sum(batch.num_rows for batch in batches)
            name = f"purged-{version:012d}-{state.label(number)}-{attempt}.arrow"
            sections = ((0, batch) for batch in batches)
            size, crc32, _ = self._write(name, batches[0].schema, sections, attempt)
            state.purged_files.append(Segment(name, number, 0, rows, 0, size, crc32))
            purged.fresh = []

    def save(self, state: OperatorState, number: int, version: int, attempt: str) -> None:
        """Put the rows of an input that are in no segment yet into one, which `version` will name.

        Once rows have left memory, segments are clustered by bucket: those of a bucket are read together then.
        """
        table, saved = state.tables[number], state.saved[number]
        fresh = table.rows - saved
        if not fresh:
            return
        mine = [s for s in state.segments if s.input == number]
        clustered = state.tracked and (state.residency.overflowed() or bool(mine and mine[-1].clusters is not None))
        end = state.totals[number]
        start, level, replaced = self._place(mine, clustered, end - fresh)
        if clustered:
            sections = self._merged(replaced, _cut(table, saved, table.rows))
        else:
            forgetful = state.spec.forgetful  # then some rows of older segments may not be in memory any more
            older = [] if not forgetful else [(0, batch) for s in replaced for _, batch in self.batches(s)]
            low = saved if forgetful else table.rows - (end - start)
            sections = chain(older, ((0, batch) for batch in table.pieces(low, table.rows, WRITE_ROWS)))
        name = self._name(state, number, version, attempt)
        size, crc32, clusters = self._write(name, table.arrow(0, 0).schema, sections, attempt)
        last = max([state.residency.events if state.tracked else 0, *(s.last for s in replaced)])
        newest = None
        if table.spec.window is not None:
            youngest = int(table.position(table.spec.window.position)[saved:].max())
            newest = max([youngest, *(s.newest for s in replaced if s.newest is not None)])
        written = Segment(name, number, start, end, level, size, crc32, clusters if clustered else None, last, newest)
        state.segments = [s for s in state.segments if s not in replaced] + [written]
        state.saved[number] = table.rows

    def _place(
        self, segments: list[Segment], clustered: bool, start: int, level: int = 0
    ) -> tuple[int, int, list[Segment]]:
        """The first row and the level of a new segment for rows from `start` on, and the neighbours that it replaces.

        Rows between two segments were in one that is gone, as all of its rows were; then they are no neighbours. One
        that is large from the start has a level as if it had been merged, so that small ones do not take it with them.
        """
        replaced = list[Segment]()
        while True:
            rest = segments[: len(segments) - len(replaced)]
            peers, edge = list[Segment](), start
            while (
                len(peers) < min(len(rest), FAN_OUT - 1)
                and rest[-1 - len(peers)].level <= level
                and (rest[-1 - len(peers)].clusters is not None) == clustered
                and rest[-1 - len(peers)].end == edge
            ):
                peers.insert(0, rest[-1 - len(peers)])
                edge = peers[0].start
            if len(peers) < FAN_OUT - 1 or sum(s.bytes for s in peers) > LARGE_BYTES:
                return start, level, replaced
            replaced = peers + replaced
            start, level = peers[0].start, level + 1

    def _merged(self, segments: list[Segment], fresh: list[list[pa.RecordBatch]]) -> Iterator[Section]:
        """The rows of clustered segments and new ones, bucket by bucket."""
        for bucket in range(BUCKETS):
            parts = [batch for s in segments for _, batch in self.batches(s, (bucket,))]
            yield from ((bucket, batch) for batch in _together([*parts, *fresh[bucket]]))

    def _write(
        self, name: str, schema: pa.Schema, sections: Iterable[Section], attempt: str
    ) -> tuple[int, int, list[int]]:
        """Write a segment; its size, its checksum, and the bucket of each record batch."""
        options = pa.ipc.IpcWriteOptions(compression=self._compression)
        clusters: list[int] = []

        def write(stream: ChecksumStream) -> None:
            with (
                pa.BufferedOutputStream(pa.PythonFile(stream, mode="w"), WRITE_BYTES) as buffered,
                pa.ipc.new_file(buffered, schema, options=options) as writer,
            ):
                for bucket, batch in sections:
                    clusters.append(bucket)
                    writer.write_batch(batch)

        return (*self.directory.publish(name, attempt, write), clusters)

    def _collect_garbage(self, version: int, attempt: str) -> None:
        """Remove versions that are not kept any more, and files that no kept version needs.

        Files of this and later versions are left alone: another attempt may be about to publish them. So are later
        versions and what they need: they are there when a checkpoint was set back.
        """
        names = self.directory.names()
        versions = versions_in(names)
        dropped = [v for v in versions if v <= version][:-KEPT_VERSIONS]
        kept = [v for v in versions if v not in dropped]
        for old in dropped:
            self.directory.delete(manifest_name(old))
        exact = self.directory.exact
        settled = version if exact else version - KEPT_VERSIONS + 1  # older versions get no other manifest any more
        for name in self._unneeded(names, kept):
            made = _FILE.fullmatch(name)
            if made is not None and (int(made[1]) < settled or (exact and attempt in name)):
                self.directory.delete(name)
        for name in self.directory.leftovers():
            made_for = re.search(r"-(?:rows|version|promises|purged|sample)-(\d{12})", name)
            if made_for is not None and int(made_for[1]) < version - 1:
                self.directory.delete(name)

    def _unneeded(self, names: Iterable[str], kept: Iterable[int]) -> list[str]:
        """The files that no kept version names; none, as long as one of these versions cannot be read.

        That is no reason to fail: this batch does not need it, and is committed. It goes as it gets old.
        """
        try:
            needed = {name for v in kept for of_operator in self.files(v) for name in of_operator}
        except StateError as e:
            log.warning("files that are not needed any more stay for now: %s", e)
            return []
        return [name for name in names if name not in needed]


_FILE = re.compile(r"(?:rows|promises|purged|sample)-(\d{12})-.*\.(?:arrow|json)")


def _tree(body: Any) -> Tree:
    """A plan from the nested lists of a manifest."""
    return body if isinstance(body, int) else tuple(map(_tree, body))


def _figures(operator: OperatorState) -> dict[str, Any]:
    """What a manifest says about one operator."""
    figures: dict[str, Any] = {
        "rows": operator.totals,
        "segments": [s.to_json() for s in operator.segments],
        "results": operator.results,
        "orders": operator.orders,
        "edges": edges_to_json(operator.edges),
        "admitted": [admitted.to_json() for admitted in operator.admitted],
    }
    if operator.scans:
        figures["scans"] = operator.scans
    if (signatures := _signatures(operator)) is not None:
        figures["joined"] = signatures
    if operator.tracked:
        figures |= {"residency": operator.residency.to_json(), "groups": operator.groups.to_json()}
    if operator.spec.forgetful:
        figures |= {"progress": operator.progress.to_json()}
    if operator.spec.promising:
        log_, purged = ([s.to_json() for s in of] for of in (operator.promise_files, operator.purged_files))
        figures |= {"promises": {"state": operator.promises.to_json(), "log": log_, "purged": purged}}
    if operator.sample is not None and operator.place.parent is None:
        figures |= {"sample": {"file": operator.sample.file.to_json(), **operator.sample.to_json()}}
    return figures


def _admitted(figures: Mapping[str, Any], member: int) -> Admitted:
    """How much of a member was let in, as a manifest says; all, where it is from before anything was shed."""
    if "admitted" in figures:
        return Admitted.from_json(figures["admitted"][member])
    dropped = figures["progress"]["dropped"][member] if figures.get("progress") else 0
    return Admitted.whole(figures["rows"][member] - dropped)


def _lineage(manifest: Mapping[str, Any]) -> Lineage:
    """The manifests that led to one, oldest first."""
    return tuple((version, identity) for version, identity in manifest["lineage"])


def _contents(segment: Segment) -> tuple[Any, ...]:
    """What is equal of two segments with the same bytes."""
    return segment.start, segment.end, segment.bytes, segment.crc32, segment.clusters


def _essence(figures: Mapping[str, Any]) -> list[Any]:
    """What is equal of an operator in two manifests if their states are the same."""
    promises = figures.get("promises", {"log": (), "purged": (), "state": None})
    sample = figures.get("sample", {})
    files = [*figures["segments"], *promises["log"], *promises["purged"], *(() if not sample else (sample["file"],))]
    named = [{name: value for name, value in s.items() if name != "name"} for s in files]
    parts = ("rows", "results", "admitted", "residency", "progress", "joined")
    return [named, promises["state"], {**sample, "file": None}, *map(figures.get, parts)]


def _same(first: pa.Table, second: pa.Table) -> bool:
    """Whether two tables have the same rows in the same order; NaN is the same as NaN, which Arrow denies."""
    return first.num_rows == second.num_rows and all(
        a.equals(b) or repr(a.to_pylist()) == repr(b.to_pylist())
        for a, b in zip(first.columns, second.columns, strict=True)
    )


def _by_bucket(batch: pa.RecordBatch, key: str) -> Iterator[Section]:
    """Stored rows, cut by bucket."""
    buckets = of_hashes(hash_array(batch.column(key)))
    order = np.argsort(buckets, kind="stable")
    rows = batch.take(pa.array(order))
    bounds = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
    yield from ((b, rows.slice(low, high - low)) for b, (low, high) in enumerate(pairwise(bounds)) if high > low)


def _level(records: int) -> int:
    """As often as segments of few records would have been merged to have so many in one."""
    level = 0
    while records > FEW_RECORDS * FAN_OUT:
        records, level = records // FAN_OUT, level + 1
    return level


def _signatures(operator: OperatorState) -> list[list[Any] | None] | None:
    """What the members of an operator mean that are results of others; None where there are none."""
    found = [operator.signature(number) for number in range(len(operator.tables))]
    return found if any(found) else None


def _compared(manifest: Mapping[str, Any], name: str) -> Any:
    """A part of a manifest that every attempt at its version must agree on."""
    if name == "inputs":
        return manifest["rows"]
    return manifest[name] if name == "positions" else [figures.get(name) for figures in manifest["operators"]]


def arrived_of(batch: pa.RecordBatch) -> Array:
    """For each row of a segment the number of events before its arrival."""
    arrived: Array = batch.column(ARRIVED).to_numpy()
    return arrived


def _cut(table: Table, start: int, end: int) -> list[list[pa.RecordBatch]]:
    """Rows start..end-1 of a table, by bucket."""
    found: list[list[pa.RecordBatch]] = [[] for _ in range(BUCKETS)]
    for piece in table.pieces(start, end, end - start):
        buckets, start = table.buckets[start : start + piece.num_rows], start + piece.num_rows
        order = np.argsort(buckets, kind="stable")
        rows = piece.take(pa.array(order))
        bounds = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
        for bucket, (low, high) in enumerate(pairwise(bounds)):
            if high > low:
                found[bucket].append(rows.slice(low, high - low))
    return found


def _together(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in few batches, none of which has more than Arrow's offsets reach."""
    for pool in pools(parts, None):
        for batch in pa.Table.from_batches(pool).combine_chunks().to_batches(max_chunksize=WRITE_ROWS):
            yield batch.replace_schema_metadata(None)


def pools(batches: Iterable[pa.RecordBatch], rows: int | None) -> Iterator[list[pa.RecordBatch]]:
    """Batches to be put together: until they have so many rows, or as many bytes as should go into one."""
    pool: list[pa.RecordBatch] = []
    found = size = 0
    for batch in batches:
        pool.append(batch)
        found, size = found + batch.num_rows, size + batch.get_total_buffer_size()
        if size >= columns.MAX_GATHERED_BYTES:  # or less: slices share their buffers, and to know takes longer
            size = sum(each.nbytes for each in pool)
        if size >= columns.MAX_GATHERED_BYTES or (rows is not None and found >= rows):
            yield pool
            pool, found, size = [], 0, 0
    if found:
        yield pool
