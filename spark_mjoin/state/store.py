"""The durable state of one join partition: immutable segments of rows, and one manifest per version.

    <state>/<query>/meaning.json            what the rows mean (see meaning.py)
                   /sources/<alias>/...     what the sources have found (see source_log.py)
                   /partition-0/version-000000000007.json                  manifest: the segments of version 7, counters
                               /rows-000000000007-0-orders-<attempt>.arrow   rows that version 7 added to 'orders'

A version is committed by publishing its manifest, after the segments that it names. Nothing that a manifest names is
ever changed, so a version, once there, stays as it is until it is removed as a whole. Two attempts at one version write
different segment names and the same manifest name; the first manifest wins, the other attempt's segments are removed.

Every file has a checksum that is checked when it is read: a segment's is in the manifest, a manifest's is in itself. A
damaged file is an error that names it; nothing is guessed.

Small segments are merged: `FAN_OUT` neighbours of one level become one segment of the next, until they are
`LARGE_BYTES`, so the number of files stays logarithmic in the number of versions and each row is rewritten a few times
at the most.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping

import pyarrow as pa

from spark_mjoin.errors import StateError
from spark_mjoin.metrics import BatchCounts, EdgeCounts
from spark_mjoin.model import JoinSpec, Position
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import ChecksumStream
from spark_mjoin.state.manifests import Manifests, manifest_name, versions_in
from spark_mjoin.state.partition import PartitionState, Segment

KEPT_VERSIONS = 3
FAN_OUT = 8
LARGE_BYTES = 64 << 20
WRITE_ROWS = 1 << 16


class StateStore(Manifests):
    def load(self, spec: JoinSpec, version: int, initial: Mapping[str, Position]) -> PartitionState:
        """The newest committed state that is not past `version`; version 0 is empty, at the initial positions.

        It is older than `version` when a batch was given out without its task coming to an end in this partition, as
        under a downstream LIMIT; the caller then rebuilds the rest from the input.
        """
        state = PartitionState.empty(spec, initial)
        self.catch_up(state, version)
        return state

    def catch_up(self, state: PartitionState, version: int) -> None:
        """Bring a state from its version to the newest committed one up to `version`, reading only what is new."""
        if state.version == version:
            return
        committed = [v for v in self.versions() if v <= version]
        if not committed or committed[-1] <= state.version:
            return
        manifest = self.manifest(committed[-1])
        segments = [Segment(**s) for s in manifest["segments"]]
        for number, (table, rows) in enumerate(zip(state.tables, manifest["rows"], strict=True)):
            for segment in segments:
                if segment.input == number and segment.end > table.rows:
                    for batch in self._read(segment, table.rows - segment.start):
                        table.append([batch.column(stored.name) for stored in table.spec.stored])
            if table.rows != rows:
                raise StateError(
                    f"state version {committed[-1]} in {self.directory.location} is damaged: it has {table.rows} rows "
                    f"of input '{table.spec.alias}' where its manifest counts {rows}"
                )
        state.version = committed[-1]
        state.positions = manifest["positions"]
        state.segments = segments
        state.results = manifest["results"]
        state.orders = manifest["orders"]
        state.edges = {(origin, target): EdgeCounts(*counts) for origin, target, *counts in manifest["edges"]}

    def _read(self, segment: Segment, skip: int) -> Iterator[pa.RecordBatch]:
        """The rows of a segment from number `skip` on, after checking the whole file."""
        path = self.directory.path(segment.name)
        try:
            contents = self.directory.map(segment.name)
        except FileNotFoundError:
            raise StateError(f"state file {path} is missing; restore it, or start with a new checkpoint") from None
        if contents.size != segment.bytes or zlib.crc32(contents) != segment.crc32:
            raise StateError(
                f"state file {path} is damaged: {contents.size} bytes with CRC {zlib.crc32(contents):08x}, expected "
                f"{segment.bytes} with {segment.crc32:08x}; restore it, or start with a new checkpoint"
            )
        skip = max(skip, 0)
        for number in range((reader := pa.ipc.open_file(contents)).num_record_batches):
            batch = reader.get_batch(number)
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)

    # --- writing ---------------------------------------------------------------------------------------------

    def commit(
        self, state: PartitionState, version: int, positions: Mapping[str, Position], batch: BatchCounts, attempt: str
    ) -> None:
        """Make the rows of `state` durable as `version`, and the state that version."""
        segments = list(state.segments)
        for number, table in enumerate(state.tables):
            mine = [s for s in segments if s.input == number]
            covered = mine[-1].end if mine else 0
            if table.rows > covered:
                fresh, replaced = self._add(mine, table.rows)
                written = self._write(state, number, fresh, version, attempt)
                segments = [s for s in segments if s not in replaced] + [written]
        batch.disk_bytes = sum(s.bytes for s in segments)
        state.absorb(batch)
        body = {
            "version": version,
            "positions": dict(positions),
            "rows": [table.rows for table in state.tables],
            "segments": [s.to_json() for s in segments],
            "results": state.results,
            "orders": state.orders,
            "edges": [[*pair, c.probes, c.matches, c.candidates] for pair, c in sorted(state.edges.items())],
            "batch": batch.to_json(),
        }
        checked_json.publish(self.directory, manifest_name(version), attempt, body)
        published = self.manifest(version)
        if published["rows"] != body["rows"] or published["positions"] != body["positions"]:
            raise StateError(
                f"state version {version} in {self.directory.location} is there already, with other rows: the "
                "checkpoint was set back, another query writes to this place, or the input changed between two "
                "attempts (failOnDataLoss is false)"
            )
        state.segments = [Segment(**s) for s in published["segments"]]
        state.version = version
        state.positions = dict(positions)
        self._collect_garbage(version, attempt)

    def _add(self, segments: list[Segment], rows: int) -> tuple[tuple[int, int, int], list[Segment]]:
        """The (start, end, level) of the next segment of an input, and the neighbours that it replaces."""
        start, level, replaced = (segments[-1].end if segments else 0), 0, list[Segment]()
        while True:
            rest = segments[: len(segments) - len(replaced)]
            peers: list[Segment] = []
            while len(peers) < min(len(rest), FAN_OUT - 1) and rest[-1 - len(peers)].level == level:
                peers.append(rest[-1 - len(peers)])
            if len(peers) < FAN_OUT - 1 or sum(s.bytes for s in peers) > LARGE_BYTES:
                return (start, rows, level), replaced
            replaced += peers
            start, level = peers[-1].start, level + 1

    def _write(
        self, state: PartitionState, number: int, extent: tuple[int, int, int], version: int, attempt: str
    ) -> Segment:
        start, end, level = extent
        table = state.tables[number]

        def write(stream: ChecksumStream) -> None:
            sink = pa.PythonFile(stream, mode="w")
            with pa.ipc.new_file(sink, table.arrow(start, start).schema) as writer:
                for low in range(start, end, WRITE_ROWS):
                    writer.write_batch(table.arrow(low, min(low + WRITE_ROWS, end)))

        readable = re.sub(r"\W", "_", table.spec.alias)
        name = f"rows-{version:012d}-{number}-{readable}-{attempt}.arrow"
        size, crc32 = self.directory.publish(name, attempt, write)
        return Segment(name, number, start, end, level, size, crc32)

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
        needed = {s["name"] for v in kept for s in self.manifest(v)["segments"]}
        for name in names:
            if name.startswith("rows-") and name not in needed and (int(name[5:17]) < version or attempt in name):
                self.directory.delete(name)
        for name in self.directory.leftovers():
            made_for = re.search(r"-(?:rows|version)-(\d{12})", name)
            if made_for is not None and int(made_for[1]) < version - 1:
                self.directory.delete(name)
