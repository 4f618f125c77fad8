"""What the first rows of the sources tell about all of them: sizes, keys, and how often two inputs match.

Reads at most so many rows of each source through the source's own protocol, writes nothing, and keeps of every row the
hashes of its keys. Rows are the first ones, so what is estimated holds for the rest as far as the rest is like them.

The selectivity of two inputs from two samples needs care. If rows come in no particular order, matches over pairs of
the rows that were read is right on average, however sparse the keys are: each pair of rows is as likely to be read as
any other. But streams that belong together come in about the same order. Then the first rows of one find nearly all
their partners among the first rows of the other, and the ratio of n matches in n x n pairs says 1 / n, whatever the
truth. (To keep the rows whose key has a small hash, which is sound for any order, all rows would have to be read.)

Both are told apart by how matches grow. Of the first f of both inputs let there be m matches, and of the first f / 2
there be h. In no particular order h is m / 4, in the same order m / 2. So a = log2(4 h / m) is 0 or 1, or between where
only part of the matches are close, and a selectivity that was found in a share f shrinks by f ** a for the whole. That
takes many matches that do not hang together: where one key has most of the rows of one input, all its matches come with
the few rows that the other has of it, and whether those are in the first half says nothing (`_evidence`).

    same order       m / (f^2 A B) * f      =  m / f matches in all: each row keeps its partners
    no order         m / (f^2 A B)          =  m / f^2 matches in all: each row finds more of them

Where a join has windows, what counts is how often rows match that are inside each other's windows. That is seen in the
samples themselves, whatever the order: matches inside over pairs of rows inside. Windows in rows are laid on the same
axis as if all inputs came evenly.

The number of different keys is Chao's estimate, d + singles^2 / (2 doubles), which is right for keys that are equally
frequent and too small for others; where it doubles from half the rows to all of them, keys are taken to go on coming.

Not covered: keys that only later rows have, and correlations between keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin import sources
from spark_mjoin.engine.arrival import admit, with_numbers
from spark_mjoin.explaining.sizes import Widths, known_as
from spark_mjoin.join.statistics import Pair
from spark_mjoin.model import Array, InputSpec, JoinSpec, Range
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source, Survey, Surveyed
from spark_mjoin.state.columns import fixed_values, hash_array, is_bytes, raw_dtype
from spark_mjoin.state.routing import ALL_SLOTS

LEAST_MATCHES = 256  # that come by themselves, by which orders can be told apart
IN_ORDER = 0.5  # the least exponent that is taken for one
GROWING = 0.75  # the share of a doubling at which keys go on coming
CENTRAL = 0.01, 0.99  # quantiles of event times between which rows are counted: a few may be from anywhere
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


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
        """That the join would store of what is there now."""
        if self.is_whole or self.survey.rows is None:
            return float(self.kept_rows)
        return self.survey.rows * self.kept_share

    @property
    def rows_per_second(self) -> float | None:
        rate = self.survey.rows_per_second
        return None if rate is None else rate * self.kept_share

    @property
    def pace(self) -> float:
        """Rows per second of event time; 0.0 where it cannot be told."""
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


@dataclass(frozen=True)
class Match:
    """How often rows of two inputs match."""

    selectivity: float
    matches: int  # that were found
    basis: str
    pairs: int | None = None  # of rows inside each other's windows, among which they were looked for; None: of all


@dataclass(frozen=True)
class Keys:
    """The values of one key in one input."""

    different: float
    largest: float  # the share of rows that have the most frequent value


# --- reading -------------------------------------------------------------------------------------------------------


def sample(spec: JoinSpec, rows: int, seconds: float, rates: Sequence[float]) -> list[Sample]:
    """The first rows of every input, at most so many of each source.

    rates: rows per second of each input in the seconds to come; 0.0 where a source knows better, or nobody.
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
    """At most so many rows of a source, what it says of itself, and whether that was all."""
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


# --- estimates -----------------------------------------------------------------------------------------------------


def matches(spec: JoinSpec, samples: Sequence[Sample]) -> dict[Pair, Match]:
    """How often the rows of every pair of inputs match that shares a key."""
    out = {}
    for a in range(len(samples)):
        for b in range(a + 1, len(samples)):
            classes = sorted(spec.classes_of(a) & spec.classes_of(b))
            if classes and samples[a].kept_rows and samples[b].kept_rows:
                inside = _match_inside(spec, samples, (a, b), classes) if spec.windowed else None
                out[a, b] = inside or _match(samples[a], samples[b], classes)
    return out


def _match_inside(spec: JoinSpec, samples: Sequence[Sample], pair: Pair, classes: Sequence[int]) -> Match | None:
    """How often rows match that are inside each other's windows; None where no two rows of the samples are."""
    at = _positions([samples[i] for i in pair])
    back = [_reach(spec.inputs[i], samples[i]) for i in pair]
    pairs = _within(at[0], at[1], back)
    if not pairs:
        return None
    hashes = [_combined([samples[i].keys[c] for c in classes]) for i in pair]
    ranks = np.unique(np.concatenate(hashes), return_inverse=True)[1]
    span = max(float(x.max()) for x in at)
    own = at[0] + ranks[: at[0].size] * (2 * span + 2), at[1] + ranks[at[0].size :] * (2 * span + 2)
    found = _within(*own, [min(reach, span + 1) for reach in back])  # rows of other keys are further away
    few = ", which are few" if found < 20 else ""
    return Match(max(found, 0.5) / pairs, found, few if found else ": less than this", pairs)


def _positions(samples: Sequence[Sample]) -> list[Array]:
    """When rows come: in seconds of event time, or where there is none as if all inputs took the same time."""
    times = [sample.times for sample in samples if sample.times is not None]
    if not times:
        return [np.arange(sample.kept_rows) / sample.population for sample in samples]
    first = min(int(of.min()) for of in times)
    return [(of - first).view(np.uint64) / 1e6 for of in times]  # which may be more than a signed word holds


def _reach(input: InputSpec, sample: Sample) -> float:
    """How long the rows of an input count, in the same terms: how far before the youngest one may be."""
    if input.window is None:
        return math.inf
    if not input.window.in_rows:
        return input.window.size / 1e6
    rows = input.window.size * sample.kept_share
    if sample.times is None:
        return rows / sample.population
    return rows / sample.pace if sample.pace else math.inf


def _within(a: Array, b: Array, back: Sequence[float]) -> int:
    """Pairs of rows that count for each other: the older of the two is inside its window, seen from the younger."""
    later = np.sort(b)
    lows = np.searchsorted(later, a - back[1], side="right")
    highs = np.searchsorted(later, a + back[0], side="left")
    return int(np.maximum(highs - lows, 0).sum())


def _match(a: Sample, b: Sample, classes: Sequence[int]) -> Match:
    sides = [_combined([each.keys[c] for c in classes]) for each in (a, b)]
    found = _common(*sides)
    if all(each.kept_rows >= each.population for each in (a, b)):
        return Match(max(found, 0.5) / (sides[0].size * sides[1].size), found, "all rows were read")
    populations = [a.population, b.population]
    shares = [side.size / population for side, population in zip(sides, populations, strict=True)]
    share = min(shares)
    first, half = (
        [side[: round(side.size * part * share / own)] for side, own in zip(sides, shares, strict=True)]
        for part in (1.0, 0.5)
    )
    close = _common(*first)
    if share < 1 and _evidence(*first) >= LEAST_MATCHES:
        exponent = min(1.0, max(0.0, math.log2(max(4 * _common(*half) / close, 1.0))))
        if exponent >= IN_ORDER:
            ratio = close / (first[0].size * first[1].size)
            return Match(ratio * share**exponent, close, "both come in about the same order")
    if found:
        few = ", which are few" if found < 20 else ""
        return Match(found / (sides[0].size * sides[1].size), found, f"in no common order{few}")
    most_keys = max(_different(side, population) for side, population in zip(sides, populations, strict=True))
    return Match(min(1 / most_keys, 1 / (sides[0].size * sides[1].size)), 0, "no match was found: less than this")


def keys(samples: Sequence[Sample]) -> list[dict[int, Keys]]:
    """For every input and key class, how many values there are and how frequent the most frequent is."""
    out = []
    for each in samples:
        of_input = {}
        for key_class, hashes in each.keys.items():
            if hashes.size:
                most = int(np.unique(hashes, return_counts=True)[1].max())
                of_input[key_class] = Keys(_different(hashes, each.population), most / hashes.size)
        out.append(of_input)
    return out


def _combined(parts: Sequence[Array]) -> Array:
    """One hash for keys of several columns."""
    whole = parts[0]
    for part in parts[1:]:
        whole = (whole ^ (whole >> np.uint64(29))) * _SPREAD + part
    return whole


def _common(a: Array, b: Array) -> int:
    """Pairs of equal values."""
    many, more = _shared(a, b)
    return int((many * more).sum())


def _evidence(a: Array, b: Array) -> float:
    """Pairs of equal values, counted as if all rows of a side that have any had equally many: Kish's effective size."""
    many, more = _shared(a, b)
    pairs = float((many * more).sum())
    if not pairs:
        return 0.0
    return min(pairs**2 / float((rows * partners**2).sum()) for rows, partners in ((many, more), (more, many)))


def _shared(a: Array, b: Array) -> tuple[Array, Array]:
    """How many rows of each side have each value that both have."""
    (left, many), (right, more) = (np.unique(side, return_counts=True) for side in (a, b))
    _, at, there = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return many[at].astype(np.int64), more[there].astype(np.int64)


def _different(hashes: Array, population: float) -> float:
    """Different values in a population that some rows are the beginning of."""
    if hashes.size >= population:
        return float(np.unique(hashes).size)
    half, whole = _chao(hashes[: hashes.size // 2]), _chao(hashes)
    growth = math.log2(whole / half) if half else 1.0
    if growth >= GROWING:
        whole *= population / hashes.size
    return min(whole, population)


def _chao(hashes: Array) -> float:
    frequencies = np.unique(hashes, return_counts=True)[1]
    singles, doubles = int((frequencies == 1).sum()), int((frequencies == 2).sum())
    return float(frequencies.size + singles * (singles - 1) / (2 * (doubles + 1)))
