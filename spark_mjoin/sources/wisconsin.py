"""The relation of the Wisconsin benchmark, generated, arriving as a Poisson process whose rate can change.

Rows (DeWitt, "The Wisconsin Benchmark: Past, Present, and Future", table 1). Row number n, counted from 0, is
`unique2`. `unique1` is a permutation of 0..cardinality-1, drawn with `seed`; the other numbers are `unique1` modulo
something:

    two four ten twenty             modulo 2, 4, 10, 20       unique3          = unique1
    onePercent tenPercent           modulo 100, 10            evenOnePercent   = 2 * onePercent
    twentyPercent fiftyPercent      modulo 5, 2               oddOnePercent    = 2 * onePercent + 1
    stringu1 stringu2               7 letters, base 26, of unique1 and unique2, and 45 times 'x'
    string4                         AAAA, HHHH, OOOO, VVVV in turn, and 48 times 'x'
    arrival                         when the row arrived (`arrivals.py`)

After `cardinality` rows a new round begins with a new permutation, so that every value of unique1 comes once per round,
while unique2 continues. The same `seed` (0 unless set) gives two sources the same order: set different ones where that
matters. The permutation is a Feistel network over the next power of two, walked until it is inside: arithmetic on the
row number, no table, and a bijection whatever the round function is, since each step can be undone.

Arrivals (`arrivals.py`). Time is counted in slots of 10 ms from `since`, which is in the position. `arrival` is the end
of the row's slot. Without a rate everything is there at `since`.

What is pure: `plan`, and `read` for the same numpy version (numpy may change how its distributions use random bits;
only `arrival` and the pace depend on them, no other column does). `latest` and `initial` look at the clock.

`freeze` (AvailableNow, batch): with `rows` this is a finite relation and all of it is taken, whatever the rate;
without, what has arrived at that moment, which for a query that begins is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_mjoin.errors import SourceError, listed
from spark_mjoin.model import Position, Range
from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.sources.arrivals import SLOT_MS, Arrivals, intensity_of
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import Limits, SourceLog, Survey

BATCH_ROWS = 65_536
_MOST_ROWS = 1 << 62
_SURVEYED_SECONDS = 3_600  # over which a rate that changes is averaged

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class WisconsinSource:
    OPTIONS = ("rows", "cardinality", "seed", "rowsPerSecond", "rates", "bursts", "stalls")
    LIMITS = ("maxRowsPerTrigger",)

    def __init__(self, alias: str, options: Options) -> None:
        self._alias = alias
        self._rows = options.positive_int("rows")
        self._cardinality = options.positive_int("cardinality") or self._rows or 1_000_000
        self._seed = options.integer("seed", 0)
        for name, value in (("rows", self._rows), ("cardinality", self._cardinality)):
            if value is not None and value > _MOST_ROWS:
                raise options.error(name, f"{value} is more than {_MOST_ROWS}")
        intensity = intensity_of(options)
        if intensity is None and self._rows is None:
            raise options.error("rows", "is required unless 'rowsPerSecond' or 'rates' says how fast rows arrive")
        self._arrivals = None if intensity is None else Arrivals(self._seed, intensity)
        self._frozen_at: float | None = None

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(name, dtype) for name, (dtype, _) in _COLUMNS.items()])

    def assume(self, schema: pa.Schema) -> None:
        """Nothing to take over: the relation always has these columns."""

    def initial(self) -> Position:
        """Starts the clock: call it once per query."""
        return {"rows": 0, "since": round(time.time(), 3)}

    def latest(self, start: Position, limits: Limits, log: SourceLog) -> Position:
        end = self._available(start["since"])
        if limits.max_rows is not None:
            end = min(end, start["rows"] + limits.max_rows)
        return {"rows": max(start["rows"], end), "since": start["since"]}

    def _available(self, since: float) -> int:
        most = _MOST_ROWS if self._rows is None else self._rows
        if self._arrivals is None or (self._frozen_at is not None and self._rows is not None):
            return most
        now = time.time() if self._frozen_at is None else self._frozen_at
        # The clock may have been set back; rounding keeps 0.29 / 0.01 from being 28 slots.
        slots = round((now - since) * 1000) // SLOT_MS
        return min(most, self._arrivals.count(max(0, slots)))

    def freeze(self, log: SourceLog) -> None:
        self._frozen_at = time.time()

    def plan(self, start: Position, end: Position, log: SourceLog) -> list[Range]:
        if end["rows"] <= start["rows"]:
            return []
        return [{"start": start["rows"], "end": end["rows"], "since": end["since"]}]

    def behind(self, position: Position, log: SourceLog) -> int:
        return max(0, self._available(position["since"]) - int(position["rows"]))

    def survey(self, rows: int, log: SourceLog) -> Survey:
        begin = self.initial()
        end = rows if self._rows is None else min(rows, self._rows)
        ranges = self.plan(begin, {**begin, "rows": end}, log)
        if self._arrivals is None:
            return Survey(ranges, self._rows, "a generator without a rate", most=self._rows)
        mean = self._arrivals.mean(_SURVEYED_SECONDS)
        return Survey(ranges, 0.0, "a generator with a rate", mean, self._rows)

    def read(self, range: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        unknown = [c for c in columns if c not in _COLUMNS]
        if unknown:
            raise SourceError(f"source '{self._alias}' has no column {listed(unknown)}; it has {listed(_COLUMNS)}")
        schema = pa.schema([pa.field(c, _COLUMNS[c][0]) for c in columns])
        start, end = range["start"], range["end"]
        while start < end:
            stop = min(end, start + BATCH_ROWS)
            if columns:
                rows = Rows(self._seed, self._cardinality, start, stop, self._arrivals, range["since"])
                yield pa.RecordBatch.from_arrays([_COLUMNS[c][1](rows) for c in columns], schema=schema)
            else:
                yield pa.record_batch([pa.nulls(stop - start)], names=["none"]).select([])
            start = stop

    def count(self, range: Range) -> int:
        return int(range["end"] - range["start"])


# --- rows ------------------------------------------------------------------------------------------------------


class Rows:
    """Rows start..stop-1; what several columns need is computed once, when the first of them asks."""

    def __init__(
        self, seed: int, cardinality: int, start: int, stop: int, arrivals: Arrivals | None, since: float
    ) -> None:
        self.unique2: I64 = np.arange(start, stop, dtype=np.int64)
        self._seed = seed
        self._cardinality = cardinality
        self._arrivals = arrivals
        self._since = since
        self._unique1: I64 | None = None

    @property
    def unique1(self) -> I64:
        if self._unique1 is None:
            rounds, index = np.divmod(self.unique2, self._cardinality)
            same = rounds[0] == rounds[-1]
            self._unique1 = permute(self._seed, self._cardinality, rounds[:1] if same else rounds, index)
        return self._unique1

    @property
    def arrival_us(self) -> I64:
        since = round(self._since * 1_000_000)
        if self._arrivals is None:
            return np.full(len(self.unique2), since, np.int64)
        slots = self._arrivals.slots(int(self.unique2[0]), int(self.unique2[-1]) + 1)
        return since + (slots + 1) * (SLOT_MS * 1000)


def permute(seed: int, cardinality: int, rounds: I64, index: I64) -> I64:
    """The image of `index`, which is below `cardinality`, in the permutation of its round.

    `rounds` has one entry per index, or a single one for all.
    """
    bits = max(1, (cardinality - 1).bit_length())
    low_bits = np.uint64(bits // 2)
    low_mask = np.uint64((1 << (bits // 2)) - 1)
    high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
    salt = _mix(np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], np.uint64)) + rounds.astype(np.uint64)
    keys = [_mix(salt * np.uint64(8) + np.uint64(step)) for step in range(_STEPS)]

    def scramble(value: U64, keys: Sequence[U64]) -> U64:
        high, low = value >> low_bits, value & low_mask
        for at in range(0, _STEPS, 2):
            high = high ^ (_mix(low ^ keys[at]) & high_mask)
            low = low ^ (_mix(high ^ keys[at + 1]) & low_mask)
        return (high << low_bits) | low

    value = scramble(index.astype(np.uint64), keys)
    # A value outside is scrambled again: the cycle comes back inside, since it began there. At most half are outside.
    while len(outside := np.flatnonzero(value >= np.uint64(cardinality))):
        value[outside] = scramble(value[outside], [k if len(k) == 1 else k[outside] for k in keys])
    return value.astype(np.int64)


_STEPS = 6


def _mix(x: U64) -> U64:
    """A bijection of 64-bit words in which every bit of the result depends on every bit of the argument."""
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return x ^ (x >> np.uint64(32))


def _letters(values: I64) -> pa.Array:
    text = np.full((len(values), 52), ord("x"), np.uint8)
    rest = values
    for position in range(6, -1, -1):
        rest, letter = np.divmod(rest, 26)
        text[:, position] = letter + ord("A")
    return _strings(text)


def _string4(rows: Rows) -> pa.Array:
    patterns = np.full((4, 52), ord("x"), np.uint8)
    patterns[:, :4] = np.frombuffer(b"AHOV", np.uint8)[:, None]
    return _strings(patterns[rows.unique2 % 4])


def _strings(text: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = text.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def _modulo(divisor: int, times: int = 1, plus: int = 0) -> tuple[pa.DataType, Callable[[Rows], pa.Array]]:
    def column(rows: Rows) -> pa.Array:
        rest = (rows.unique1 % divisor).astype(np.int32)
        return pa.array(rest if (times, plus) == (1, 0) else rest * np.int32(times) + np.int32(plus))

    return pa.int32(), column


_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Rows], pa.Array]]] = {
    "unique1": (pa.int64(), lambda rows: pa.array(rows.unique1)),
    "unique2": (pa.int64(), lambda rows: pa.array(rows.unique2)),
    "two": _modulo(2),
    "four": _modulo(4),
    "ten": _modulo(10),
    "twenty": _modulo(20),
    "onePercent": _modulo(100),
    "tenPercent": _modulo(10),
    "twentyPercent": _modulo(5),
    "fiftyPercent": _modulo(2),
    "unique3": (pa.int64(), lambda rows: pa.array(rows.unique1)),
    "evenOnePercent": _modulo(100, times=2),
    "oddOnePercent": _modulo(100, times=2, plus=1),
    "stringu1": (pa.string(), lambda rows: _letters(rows.unique1)),
    "stringu2": (pa.string(), lambda rows: _letters(rows.unique2)),
    "string4": (pa.string(), _string4),
    "arrival": (TIMESTAMP, lambda rows: pa.array(rows.arrival_us).cast(TIMESTAMP)),
}
