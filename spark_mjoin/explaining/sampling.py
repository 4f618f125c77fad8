"""The first rows of the sources, as far as they say something about all rows: sizes, keys and event times.

It reads at most some number of rows of each source through the source's own protocol, writes nothing, and keeps the
hashes of the keys of every row. It reads the first rows, so an estimate holds for the rest as far as the rest is like
them.

Not covered: what samples say about keys and matches (`matching.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin import sources
from spark_mjoin.engine.arrival import admit, with_numbers
from spark_mjoin.explaining.sizes import Widths, known_as
from spark_mjoin.model import Array, InputSpec, JoinSpec, Range
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source, Survey, Surveyed
from spark_mjoin.state.columns import fixed_values, hash_array, is_bytes, raw_dtype
from spark_mjoin.state.slots import ALL_SLOTS

CENTRAL = 0.01, 0.99  # quantiles of event times between which rows are counted: a few may be from anywhere


@dataclass(frozen=True)
class Sample:
    """The first rows of one input."""

    read_rows: int  # of its source
    survey: Survey
    keys: Mapping[int, Array]  # key class -> hashes, of the rows that the join stores, in their order
    widths: Widths  # mean bytes of values without a fixed width
    is_whole: bool  # the source has no more now
    ahead_rows: float  # that are expected to come in the time that is looked at
    times: Array | None = None  # event times in microseconds, of the rows that the join stores; None: it has none

    @property
    def kept_rows(self) -> int:
        return int(next(iter(self.keys.values())).size)

    @property
    def kept_share(self) -> float:
        """Of the rows that were read, those that pass the input's filter and have all keys."""
        return self.kept_rows / self.read_rows if self.read_rows else 0.0

    @property
    def rows(self) -> float:
        """The rows that the join would store of what is there now."""
        if self.is_whole or self.survey.rows is None:
            return float(self.kept_rows)
        return self.survey.rows * self.kept_share

    @property
    def rows_per_second(self) -> float | None:
        rate = self.survey.rows_per_second
        return None if rate is None else rate * self.kept_share

    @property
    def pace(self) -> float:
        """Rows per second of event time; 0.0 where event times do not say."""
        if self.times is None or self.times.size < 2:
            return 0.0
        low, high = np.quantile(self.times, CENTRAL)
        between = (CENTRAL[1] - CENTRAL[0]) * self.times.size
        return float(between * 1e6 / (high - low)) if high > low else 0.0

    @property
    def behind(self) -> Array:
        """For each row by how many microseconds it is behind the newest before it."""
        times = np.empty(0, np.int64) if self.times is None else self.times
        return (np.maximum.accumulate(times) - times).view(np.uint64) if times.size else times

    @property
    def most(self) -> float | None:
        """The rows at which the input ends."""
        return None if self.survey.most is None else self.survey.most * self.kept_share

    @property
    def population(self) -> float:
        """The rows that the sample is the beginning of: those of the time that is looked at."""
        most = float("inf") if self.most is None else self.most
        return max(min(self.rows + self.ahead_rows, most), float(self.kept_rows))


def sample(spec: JoinSpec, rows: int, seconds: float, rates: Sequence[float]) -> list[Sample]:
    """The first rows of every input, at most so many of each source.

    rates: rows per second of each input in the seconds to come; 0.0 where the source knows better, or it is not known.
    """
    by_source = {s: _read(spec, s, rows) for s in sorted({i.source for i in spec.inputs})}
    out = []
    for number, input in enumerate(spec.inputs):
        batches, survey, is_whole = by_source[input.source]
        stored, first = list[list[pa.Array]](), 0
        for batch in batches:
            numbers = np.arange(first, first + batch.num_rows)
            known = batch if input.number is None else with_numbers(input, batch, numbers)
            stored.append(admit(spec, number, known, ALL_SLOTS))
            first += batch.num_rows
        columns = [
            pa.chunked_array([arrays[n] for arrays in stored], type=column.type)
            for n, column in enumerate(input.stored)
        ]
        keys = {c: _hashes(columns[ordinal]) for c, ordinal in input.keys}
        times = None if input.time is None else _integers(columns[input.time])
        made = Sample(first, survey, keys, _widths(input, columns), is_whole, 0.0, times)
        out.append(replace(made, ahead_rows=(rates[number] or made.rows_per_second or 0.0) * seconds))
    return out


def _read(spec: JoinSpec, number: int, rows: int) -> tuple[list[pa.RecordBatch], Survey, bool]:
    """At most this many rows of a source, what the source says of itself, and whether these were all."""
    described = spec.sources[number]
    source, log = sources.open_source(described), MemoryLog()
    survey = source.survey(rows, log) if isinstance(source, Surveyed) else _from_the_beginning(source, rows, log)
    needed = {column for input in spec.inputs if input.source == number for column in input.columns}
    columns = [name for name in described.schema.names if name in needed]
    batches, read = list[pa.RecordBatch](), 0
    for batch in _batches(source, survey.ranges, columns):
        batches.append(batch.slice(0, rows - read))
        read += batches[-1].num_rows
        if read >= rows:
            break
    goes_on = survey.rows_per_second is not None or (survey.rows is None and read >= rows)
    is_whole = not goes_on and (read < rows or (survey.rows is not None and survey.rows <= read))
    return batches, survey, is_whole


def _from_the_beginning(source: Source, rows: int, log: MemoryLog) -> Survey:
    source.freeze(log)
    start = source.initial()
    return Survey(source.plan(start, source.latest(start, Limits(max_rows=rows), log), log), None, "what was read")


def _batches(source: Source, ranges: Sequence[Range], columns: Sequence[str]) -> Iterable[pa.RecordBatch]:
    for each in ranges:
        yield from source.read(each, columns)


def _hashes(column: pa.ChunkedArray) -> Array:
    parts = [hash_array(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def _integers(column: pa.ChunkedArray) -> Array:
    parts = [fixed_values(chunk, np.int64) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _widths(input: InputSpec, columns: Sequence[pa.ChunkedArray]) -> dict[tuple[bool, str], float]:
    out = {}
    for stored, column in zip(input.stored, columns, strict=True):
        if raw_dtype(stored.type) is None and len(column):
            used = pc.sum(pc.binary_length(column)).as_py() or 0 if is_bytes(stored.type) else column.nbytes
            out[known_as(input, stored)] = used / len(column)
    return out
