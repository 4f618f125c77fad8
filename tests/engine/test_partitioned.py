"""Passes over inputs that have no key in common: what they give, what they read, and what they need."""

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.engine import fitting, overflow, partitioned
from spark_mjoin.engine.disk import Part
from spark_mjoin.engine.fitting import Division
from spark_mjoin.errors import StateError
from spark_mjoin.state.buckets import BUCKETS
from tests.engine.test_overflow import Run
from tests.harness import duckdb_join

SHAPES = {
    "chain of 3": "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v",
    "chain of 4": "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v JOIN d ON c.w = d.w",
    "chain of 5": "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v JOIN d ON c.w = d.w JOIN e ON d.k = e.k",
    "star with a tail": "a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON c.s = d.s",
    "snowflake": "a JOIN b ON a.k = b.k JOIN c ON a.v = c.v JOIN d ON a.w = d.w",
    "cycle": "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v JOIN d ON c.w = d.w AND d.k = a.w",
    "strings": "a JOIN b ON a.s = b.s JOIN c ON b.t = c.t JOIN d ON c.k = d.k",
    "two keys": "a JOIN b ON a.k = b.k AND a.v = b.v JOIN c ON b.w = c.w JOIN d ON c.s = d.s",
    "residual": "a JOIN b ON a.k = b.k JOIN c ON b.v = c.v AND a.w < c.w JOIN d ON c.w = d.w AND d.v <> b.w",
}


def query_of(shape: str) -> str:
    aliases = [alias for alias in "abcde" if f" {alias} " in f" {SHAPES[shape]} "]
    return f"SELECT {', '.join(f'{x}.n AS {x}n, {x}.t AS {x}t' for x in aliases)} FROM {SHAPES[shape]}"


def arrivals(dice: np.random.Generator, batches: int, size: int, keys: int, hot: float) -> list[pa.Table]:
    """Batches of numbered rows with keys in all columns; a share of them has one value; some are NULL."""
    out = []
    for batch in range(batches):
        columns: dict[str, Any] = {"n": pa.array(range(batch * size, (batch + 1) * size), pa.int64())}
        for name in "kvwst":
            drawn = dice.integers(0, keys, size)
            drawn[dice.random(size) < hot] = 1
            values = [f"a key of some length {x}" for x in drawn] if name in "st" else drawn
            columns[name] = pa.array(values, mask=dice.random(size) < 0.02)
        out.append(pa.table(columns))
    return out


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[partitioned.Pass, int]]:
    """A list to which every run of a pass is added, with its origin."""
    runs: list[tuple[partitioned.Pass, int]] = []
    real = partitioned.Pass.results

    def results(self: partitioned.Pass) -> Iterator[pa.RecordBatch]:
        runs.extend((self, origin) for origin, _ in self.runs())
        yield from real(self)

    monkeypatch.setattr(partitioned.Pass, "results", results)
    return runs


@pytest.mark.parametrize("area", [3 << 10, 24 << 10], ids=["small area", "larger area"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_gives_what_duckdb_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any], shape: str, area: int
) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", area)
    monkeypatch.setattr(fitting, "LEAST_PORTION", 16)
    dice = np.random.default_rng([len(shape), area])
    aliases = "abcde" if "5" in shape else "abc" if "3" in shape else "abcd"
    for attempt, (fuel, threshold) in enumerate([("1g", "1"), ("12k", "1000000")]):
        given = {
            x: arrivals(dice, 4, int(dice.integers(30, 70)), 120, float(dice.choice([0.0, 0.05]))) for x in aliases
        }
        run = Run(
            given,
            query_of(shape),
            tmp_path / str(attempt),
            memory=str(dice.choice(["1", "8k", "30k"])),
            flush=str(dice.choice(["adaptive", "random", "largest"])),
            diskFuel=fuel,
            blockingThreshold=threshold,
            partitions=str(dice.choice([1, 1, 2])),
        ).to_the_end()
        run.check()
        assert sum(table.num_rows for table in run.results) > 0
    assert seen, "no pass was divided"
    assert len({origin for _, origin in seen}) > 1, "no pass began with new rows of one input after the other"


@pytest.mark.parametrize("seed", range(2))
def test_rows_outside_their_window_are_in_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any], seed: int
) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", 4 << 10)
    monkeypatch.setattr(fitting, "LEAST_PORTION", 16)
    dice, size = np.random.default_rng(seed), 100
    given = {x: arrivals(dice, 5, size, 60, 0.0) for x in "abcd"}
    for tables in given.values():
        for number, table in enumerate(tables):
            times = pa.array(1_000_000 * (np.arange(size) + number * size), pa.timestamp("us", "UTC"))
            tables[number] = table.append_column("at", times)
    options = {f"source.{x}.timestamp": "at" for x in given} | {f"source.{x}.watermark": "0 seconds" for x in given}
    options |= {"window": "150 seconds", "memory": "8k", "blockingThreshold": "1" if seed % 2 else "1000000"}
    query = query_of("chain of 4")
    run = Run(given, query, tmp_path, **options).to_the_end()
    youngest = "greatest(a.at, b.at, c.at, d.at)"
    inside = " AND ".join(f"{x}.at > {youngest} - INTERVAL 150 SECOND" for x in given)
    monkeypatch.setattr(run, "expected", lambda: duckdb_join(f"{query} WHERE {inside}", run.tables))
    run.check()
    assert seen


def test_every_input_is_read_once_however_small_the_memory_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    dice = np.random.default_rng(3)
    given = {x: arrivals(dice, 4, 2000, 8000, 0.0) for x in "abcd"}
    run = Run(given, query_of("chain of 4"), tmp_path, memory="256k", blockingThreshold="1")
    read: dict[int, int] = {}
    real = Part.read

    def counting(self: Part, *args: Any) -> Iterator[pa.RecordBatch]:
        for batch in real(self, *args):
            read[self.input] = read.get(self.input, 0) + batch.num_rows
            yield batch

    monkeypatch.setattr(Part, "read", counting)
    run.to_the_end()
    run.check()
    assert len(seen) == 1
    assert all(each <= 8000 for each in read.values()), read  # rows with NULL are not stored
    assert sorted(read) == [0, 1, 2, 3]


def test_a_pass_stays_within_the_work_area(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    dice = np.random.default_rng(4)
    given = {x: arrivals(dice, 4, 2500, 8000, 0.0) for x in "abcd"}
    run = Run(given, query_of("chain of 4"), tmp_path, memory="256k", blockingThreshold="1").to_the_end()
    run.check()
    (the_pass,) = {id(p): p for p, _ in seen}.values()
    assert the_pass.area == 64 << 10
    assert the_pass.phase.peak_bytes <= 1.25 * the_pass.area


def test_a_frequent_key_is_joined_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", 16 << 10)
    monkeypatch.setattr(fitting, "LEAST_PORTION", 16)
    dice = np.random.default_rng(5)
    given = {x: arrivals(dice, 3, 200, 2000, 0.0) for x in "abc"}
    given["b"] = arrivals(dice, 3, 20, 2000, 0.5)
    given["c"] = arrivals(dice, 3, 300, 2000, 0.6)
    blocks, real = list[int](), partitioned.filled_tables

    def filled(*args: Any) -> Iterator[Any]:
        tables = 0
        for table in real(*args):
            tables += 1
            yield table
        blocks.append(tables)

    monkeypatch.setattr(partitioned, "filled_tables", filled)
    run = Run(given, query_of("chain of 3"), tmp_path, memory="32k", blockingThreshold="1").to_the_end()
    run.check()
    assert max(blocks) > 2


def test_buckets_that_are_too_large_are_divided_by_digits() -> None:
    sizes = np.full(BUCKETS, 100.0)
    whole = Division.packed(range(BUCKETS), sizes, 350.0)
    assert (whole.depth, len(whole.buckets)) == (0, -(-BUCKETS // 3))
    parts = Division.packed(range(BUCKETS), sizes, 30.0)
    assert parts.depth == 1
    hashes = np.random.default_rng(0).integers(0, 2**63, 10_000).astype(np.uint64)
    for division in (whole, parts):
        groups = division.groups(hashes)
        assert set(groups) == set(range(len(division.buckets)))
        buckets = (hashes >> np.uint64(32)) & np.uint64(BUCKETS - 1)
        assert all(int(bucket) in division.buckets[group] for bucket, group in zip(buckets, groups, strict=True))
    assert np.bincount(parts.groups(hashes)).max() < 2 * hashes.size / len(parts.buckets)


def test_a_full_temporary_directory_stops_the_query_and_it_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", 8 << 10)

    class Full(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    dice = np.random.default_rng(6)
    given = {x: arrivals(dice, 3, 300, 500, 0.0) for x in "abc"}
    run = Run(given, query_of("chain of 3"), tmp_path, memory="16k", blockingThreshold="1")
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "TemporaryFile", lambda **_: Full())
        with pytest.raises(StateError, match=r"cannot write to a temporary file in .*No space left"):
            run.to_the_end()
    run.restart()
    run.to_the_end()
    run.check()
