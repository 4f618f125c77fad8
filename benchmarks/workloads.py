"""What is joined: five three-way equi-joins, their data and their one query text. Larger joins are in `shapes`.

The data is a pure function of (workload, scale, files): seeded generators, written once as parquet into a cache
directory and then read by every engine from the same files. All engines run the same SQL text.

Not covered: late data, NULL keys, windows, inputs that arrive at different rates.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

DATA_VERSION = 1
"""Part of the cache path: raise it when a generator changes."""

ALIASES = ("r", "s", "t")
WARM_UP_SCALE = 0.002
WARM_UP_FILES = 2

Ints = npt.NDArray[np.int64]
Tables = dict[str, pa.Table]


@dataclass(frozen=True)
class Workload:
    letter: str
    title: str
    joins: str
    output: tuple[str, ...]
    """Qualified columns of the projection: every key once and all payload columns."""
    files: int
    generate: Callable[[float], Tables]
    exact_rows: Callable[[float], int] | None = None
    """Results by construction, where that is known: a check on the reference join itself."""
    aliases: tuple[str, ...] = ALIASES

    @property
    def query(self) -> str:
        return f"SELECT {', '.join(self.output)} FROM {self.joins}"

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(column.split(".")[1] for column in self.output)

    def prepare(self, cache: Path, scale: float, files: int | None = None) -> Dataset:
        """The workload's files under `cache`, written unless they are there already."""
        files = files or self.files
        directory = cache / f"v{DATA_VERSION}-{self.letter}-scale{scale:g}-files{files}"
        if not directory.exists():
            cache.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(dir=cache, prefix=".writing-"))
            for alias, table in self.generate(scale).items():
                _write(table, unfinished / alias, files)
            try:
                unfinished.rename(directory)
            except OSError:  # another run was faster
                shutil.rmtree(unfinished)
        return Dataset(self, scale, files, directory)


@dataclass(frozen=True)
class Dataset:
    workload: Workload
    scale: float
    files: int
    directory: Path

    def path(self, alias: str) -> Path:
        return self.directory / alias

    def glob(self, alias: str) -> str:
        return str(self.path(alias) / "*.parquet")

    def ddl(self, alias: str) -> str:
        """The input's schema as Spark DDL; Spark's own file stream asks for it."""
        schema = pq.read_schema(next(self.path(alias).glob("*.parquet")))
        return ", ".join(f"{field.name} {_SPARK_TYPES[field.type]}" for field in schema)

    def tables(self) -> Tables:
        """The inputs in memory, one contiguous chunk per column."""
        return {alias: pq.read_table(self.path(alias)).combine_chunks() for alias in self.workload.aliases}


_SPARK_TYPES = {pa.int32(): "INT", pa.int64(): "BIGINT", pa.string(): "STRING"}


def _write(table: pa.Table, directory: Path, files: int) -> None:
    directory.mkdir()
    bounds = np.linspace(0, table.num_rows, files + 1).astype(int)
    for number, (start, end) in enumerate(pairwise(bounds)):
        path = directory / f"{number:03d}.parquet"
        pq.write_table(table.slice(start, end - start), path)
        # Spark's file stream takes files by modification time: make that the order of the numbers.
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def payload(alias: str, rows: int, rng: np.random.Generator) -> dict[str, pa.Array]:
    """Two integers and a 12-character string."""
    return {
        f"{alias}_x": pa.array(rng.integers(0, 1_000_000, rows)),
        f"{alias}_y": pa.array(rng.integers(-(2**60), 2**60, rows)),
        f"{alias}_text": _strings(rng.integers(ord("a"), ord("z") + 1, (rows, 12), dtype=np.uint8)),
    }


def _strings(characters: npt.NDArray[np.uint8]) -> pa.Array:
    rows, width = characters.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(characters)))


def _hex16(numbers: Ints) -> pa.Array:
    """A distinct 16-character string for each number: the hexadecimal digits of a bijective 64-bit mix (splitmix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    shifts = np.arange(60, -4, -4, dtype=np.uint64)
    digits = (mixed[:, None] >> shifts[None, :]) & np.uint64(15)
    return _strings(np.frombuffer(b"0123456789abcdef", dtype=np.uint8)[digits.astype(np.int64)])


def _rng(letter: str, alias: str) -> np.random.Generator:
    return np.random.default_rng([ord(letter), ord(alias)])


def scaled(full: int, scale: float) -> int:
    return max(1, round(full * scale))


def _star(letter: str, keys: Callable[[str, np.random.Generator], pa.Array]) -> Tables:
    tables: Tables = {}
    for alias in ALIASES:
        rng = _rng(letter, alias)
        key = keys(alias, rng)
        tables[alias] = pa.table({"k": key} | payload(alias, len(key), rng))
    return tables


def _key_key(scale: float) -> Tables:
    rows = scaled(1_000_000, scale)
    return _star("a", lambda _, rng: pa.array(rng.permutation(rows)))


def _inflating(scale: float) -> Tables:
    """Every key value 10, 15 and 10 times: 1,500 results per key value. The scale changes the number of key values."""
    values = scaled(1_000, scale)
    times = {"r": 10, "s": 15, "t": 10}
    return _star("b", lambda alias, rng: pa.array(rng.permutation(np.repeat(np.arange(values), times[alias]))))


def _chain(scale: float) -> Tables:
    """Keys drawn with repetition from as many values as there are rows: one expected partner in each direction."""
    rows = scaled(500_000, scale)
    tables: Tables = {}
    for alias, keys in (("r", "a"), ("s", "ab"), ("t", "b")):
        rng = _rng("c", alias)
        drawn = {key: pa.array(rng.integers(0, rows, rows)) for key in keys}
        tables[alias] = pa.table(drawn | payload(alias, rows, rng))
    return tables


def _zipf(scale: float) -> Tables:
    """All inputs draw from the same Zipf distribution, exponent 0.5: a key that is hot is hot in all three.

    The expected number of results is rows^3 * sum(p^3), with p = i^-0.5 / (2 sqrt(values)) and sum(i^-1.5) = 2.612;
    the number of key values is solved for 25 results per row. At full scale the hottest key has some 120 rows in each
    input and gives a third of all results; a larger exponent over common keys would give far more than 5 million.
    """
    rows = scaled(200_000, scale)
    values = max(1, round((2.612 / 8 * rows**2 / 25) ** (2 / 3)))
    weights = np.arange(1, values + 1) ** -0.5
    cumulated = np.cumsum(weights) / weights.sum()
    names = np.random.default_rng([ord("d")]).permutation(values)

    def draw(_: str, rng: np.random.Generator) -> pa.Array:
        ranks = np.minimum(np.searchsorted(cumulated, rng.random(rows)), values - 1)
        return pa.array(names[ranks])

    return _star("d", draw)


def _string_keys(scale: float) -> Tables:
    rows = scaled(1_000_000, scale)
    return _star("e", lambda _, rng: _hex16(rng.permutation(rows)))


_STAR = "r JOIN s ON r.k = s.k JOIN t ON r.k = t.k"
_CHAIN = "r JOIN s ON r.a = s.a JOIN t ON s.b = t.b"
_PAYLOAD = tuple(f"{alias}.{alias}_{column}" for alias in ALIASES for column in ("x", "y", "text"))
_STAR_OUTPUT = ("r.k", *_PAYLOAD)

WORKLOADS: dict[str, Workload] = {
    workload.letter: workload
    for workload in (
        Workload(
            "a",
            "star, 3 x 1,000,000 unique int64 keys",
            _STAR,
            _STAR_OUTPUT,
            20,
            _key_key,
            lambda scale: scaled(1_000_000, scale),
        ),
        Workload(
            "b",
            "inflating star, 10,000 / 15,000 / 10,000 rows, 1.5 million results",
            _STAR,
            _STAR_OUTPUT,
            20,
            _inflating,
            lambda scale: 1_500 * scaled(1_000, scale),
        ),
        Workload("c", "chain r-s-t, 3 x 500,000 rows", _CHAIN, ("s.a", "s.b", *_PAYLOAD), 20, _chain),
        Workload("d", "Zipf-skewed star, 3 x 200,000 rows, about 5 million results", _STAR, _STAR_OUTPUT, 20, _zipf),
        Workload(
            "e",
            "star, 3 x 1,000,000 unique 16-character keys",
            _STAR,
            _STAR_OUTPUT,
            20,
            _string_keys,
            lambda scale: scaled(1_000_000, scale),
        ),
    )
}
