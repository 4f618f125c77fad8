"""Files of rows: segments of a partition's state, written once, merged as they get many, read whole or by bucket.

A segment is an Arrow file with neighbouring rows of one member, counted in order of arrival. Once rows were evicted,
segments are *clustered*: each record batch has the rows of one bucket, so that those of a bucket can be read alone.

Small segments are merged: `FAN_OUT` neighbours of one level become one segment of the next, until they are
`LARGE_BYTES`, so the number of files stays logarithmic in the number of versions and each row is rewritten a few times
at the most.

Where the state is not on this host, a segment is read from its copy here, if there is one (`host_cache`).

Not covered: which rows go into which file (`stored`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.errors import StateError
from spark_mjoin.model import Array, OperatorSpec
from spark_mjoin.state import columns
from spark_mjoin.state.buckets import BUCKETS, of_hashes
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.directory import ChecksumStream, Directory
from spark_mjoin.state.manifest import Segment
from spark_mjoin.state.table import ARRIVED, Table

FAN_OUT = 8
LARGE_BYTES = 64 << 20
WRITE_ROWS = 1 << 16
RUN_ROWS = 64  # of a record batch, from which on arrivals are written in runs
WRITE_BYTES = 1 << 20  # small record batches go to the file together
READ_BYTES = 4 << 20  # of a segment that is read at once
OPEN_BYTES = 8 << 20  # of small segments that stay open: passes read them again and again

Section = tuple[int, pa.RecordBatch]  # a bucket, and rows of it


class Segments:
    """The files of one partition."""

    def __init__(self, directory: Directory, compression: str | None = None) -> None:
        self._directory, self._compression = directory, compression
        self._copies = directory.copies
        self._checked: set[str] = set()  # segments that were read and found whole
        self._open: OrderedDict[str, tuple[int, pa.ipc.RecordBatchFileReader]] = OrderedDict()  # with their bytes
        self._open_bytes = 0

    # --- reading ---------------------------------------------------------------------------------------------

    def batches(self, segment: Segment, buckets: Container[int] | None = None) -> Iterator[tuple[int | None, Any]]:
        """The record batches of a segment, each with its bucket, or with None where rows are in order of arrival.

        With `buckets`, those of other buckets are left out where the segment is clustered.
        """
        return ((bucket, decoded(batch)) for bucket, batch in self.stored(segment, buckets))

    def stored(self, segment: Segment, buckets: Container[int] | None = None) -> Iterator[tuple[int | None, Any]]:
        """The same as they are in the file, perhaps with arrivals in runs (`decoded`)."""
        clusters = segment.buckets
        if clusters is not None:
            wanted = [(n, b) for n, b in enumerate(clusters) if buckets is None or b in buckets]
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
            yield from map(decoded, self._reader(segment).read_all().combine_chunks().to_batches())

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
        try:
            return pa.ipc.open_file(self._contents(segment))
        except FileNotFoundError:
            path = self._directory.path(segment.name)
            raise StateError(f"state file {path} is missing; restore it, or start with a new checkpoint") from None

    def _contents(self, segment: Segment) -> pa.Buffer:
        """The bytes of a segment: of the file itself, or where the state is not on this host of its copy here."""
        name, known = segment.name, segment.name in self._checked
        if self._copies is None:
            if not known:
                self._check(segment, *self._directory.checksum(name))
            return self._directory.map(name)
        path = self._directory.path(name)
        found = self._copies.find(path, segment.bytes, None if known else segment.crc32)
        if found is None:
            with self._copies.copying(path) as copy:
                self._check(segment, *self._directory.checksum(name, copy.write))
            found = self._copies.find(path, segment.bytes, None)
        self._checked.add(name)
        return self._directory.map(name) if found is None else found

    def _check(self, segment: Segment, size: int, crc32: int) -> None:
        """StateError unless a segment has the bytes that its manifest says."""
        if (size, crc32) != (segment.bytes, segment.crc32):
            raise StateError(
                f"state file {self._directory.path(segment.name)} is damaged: {size} bytes with CRC {crc32:08x}, "
                f"expected {segment.bytes} with {segment.crc32:08x}; restore it, or start with a new checkpoint"
            )
        self._checked.add(segment.name)

    def records(self, segments: Iterable[Segment], start: int) -> Iterator[pa.RecordBatch]:
        """The records of some neighbouring segments from number `start` on."""
        for segment in segments:
            if segment.end > start:
                at = segment.start
                for _, batch in self.batches(segment):
                    if at + batch.num_rows > start:
                        yield batch.slice(max(start - at, 0))
                    at += batch.num_rows

    def only(self, segment: Segment) -> pa.RecordBatch:
        """What is in a file of one record batch."""
        return self._mapped(segment).get_batch(0)

    # --- writing ---------------------------------------------------------------------------------------------

    def merged(self, segments: list[Segment], fresh: list[list[pa.RecordBatch]]) -> Iterator[Section]:
        """The rows of clustered segments and new ones, bucket by bucket."""
        for bucket in range(BUCKETS):
            parts = [batch for s in segments for _, batch in self.batches(s, (bucket,))]
            yield from ((bucket, batch) for batch in together([*parts, *fresh[bucket]]))

    def write_rows(
        self, name: str, schema: pa.Schema, sections: Iterable[Section], size: int, attempt: str
    ) -> tuple[int, int, list[int]]:
        """Write a segment of rows, about so many in each record batch, with arrivals in runs where that is smaller.

        A codec does as well without, and in record batches of a few rows an entry of the format is larger than they.
        """
        if self._compression is None and size >= RUN_ROWS:
            schema = schema.set(len(schema) - 1, pa.field(ARRIVED, pa.run_end_encoded(pa.int32(), pa.int32())))
            sections = ((bucket, _encoded(batch, schema)) for bucket, batch in sections)
        return self.write(name, schema, sections, attempt)

    def write(
        self, name: str, schema: pa.Schema, sections: Iterable[Section], attempt: str
    ) -> tuple[int, int, list[int]]:
        """Write a segment; its size, its checksum, and the bucket of each record batch."""
        options = pa.ipc.IpcWriteOptions(compression=self._compression)
        clusters: list[int] = []

        def write(stream: ChecksumStream) -> None:
            with (
                self._copied(name, stream),
                pa.BufferedOutputStream(pa.PythonFile(stream, mode="w"), WRITE_BYTES) as buffered,
                pa.ipc.new_file(buffered, schema, options=options) as writer,
            ):
                for bucket, batch in sections:
                    clusters.append(bucket)
                    writer.write_batch(batch)

        return (*self._directory.publish(name, attempt, write), clusters)

    @contextmanager
    def _copied(self, name: str, stream: ChecksumStream) -> Iterator[None]:
        """While a segment is written to the store, let this host have a copy, where the store is elsewhere."""
        if self._copies is None:
            yield
            return
        with self._copies.copying(self._directory.path(name)) as copy:
            stream.copy = copy.write
            yield


def label(of: OperatorSpec, member: int) -> str:
    """A member in names of files: the number of an input, or for results where they are in the plan."""
    leaves = of.leaves[member]
    return str(leaves[0]) if len(leaves) == 1 else f"r{of.number}.{member}"


def place(segments: list[Segment], clustered: bool, start: int, level: int = 0) -> tuple[int, int, list[Segment]]:
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


def _encoded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows for a segment, with one entry for all neighbours that arrived together."""
    *stored, arrived = batch.columns
    return pa.RecordBatch.from_arrays([*stored, pc.run_end_encode(arrived)], schema=schema)


def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of a segment, with an entry for each of them that says when it arrived."""
    last = batch.num_columns - 1
    if not pa.types.is_run_end_encoded(batch.schema.field(last).type):
        return batch
    return batch.set_column(last, ARRIVED, pc.run_end_decode(batch.column(last)))


def arrived_of(batch: pa.RecordBatch) -> Array:
    """For each row of a segment the number of events before its arrival."""
    arrived: Array = batch.column(ARRIVED).to_numpy()
    return arrived


def by_bucket(batch: pa.RecordBatch, key: str) -> Iterator[Section]:
    """Stored rows, cut by bucket."""
    buckets = of_hashes(hash_array(batch.column(key)))
    order = np.argsort(buckets, kind="stable")
    rows = batch.take(pa.array(order))
    bounds = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
    yield from ((b, rows.slice(low, high - low)) for b, (low, high) in enumerate(pairwise(bounds)) if high > low)


def cut(table: Table, start: int, end: int) -> list[list[pa.RecordBatch]]:
    """Rows start..end-1 of a table, by bucket."""
    found: list[list[pa.RecordBatch]] = [[] for _ in range(BUCKETS)]
    for piece in table.pieces(start, end, end - start):
        buckets, start = table.buckets_between(start, start + piece.num_rows), start + piece.num_rows
        order = np.argsort(buckets, kind="stable")
        rows = piece.take(pa.array(order))
        bounds = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
        for bucket, (low, high) in enumerate(pairwise(bounds)):
            if high > low:
                found[bucket].append(rows.slice(low, high - low))
    return found


def together(parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
