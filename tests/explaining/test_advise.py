"""`spark_mjoin.advise`: estimates against inputs whose cardinalities are known, from a bounded number of rows."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_mjoin
from spark_mjoin import sources
from spark_mjoin.__main__ import main
from spark_mjoin.explaining import advice, matching
from spark_mjoin.explaining.advice import Advice, advised
from spark_mjoin.explaining.explanation import explained
from spark_mjoin.model import Array, Range
from spark_mjoin.sources.files import FileSource
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Surveyed
from tests.explaining.test_explain import section
from tests.harness import run, scripted

ROWS, SAMPLE = 200_000, 20_000
FACTOR = 1.25  # by which an estimate may be wrong here, unless a test says otherwise


@pytest.fixture(autouse=True)
def default_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def the_same_chance() -> None:
    """What a test draws does not depend on the tests that this process has run before."""
    RANDOM.bit_generator.state = START


def close(estimate: float, truth: float, factor: float = FACTOR) -> bool:
    return truth / factor <= estimate <= truth * factor


def write(path: Path, columns: Mapping[str, Sequence[object] | Array], files: int = 4, text: bool = False) -> None:
    """A table in several files, all of the distant past, and of one moment."""
    path.mkdir()
    table = pa.table({name: pa.array(values) for name, values in columns.items()})
    size = -(-table.num_rows // files)
    for n in range(files):
        file = path / f"{n:02d}.{'csv' if text else 'parquet'}"
        part = table.slice(n * size, size)
        pacsv.write_csv(part, file) if text else pq.write_table(part, file)
        os.utime(file, (1_000_000 + n / 1000, 1_000_000 + n / 1000))


def parquet(directory: Path, **tables: Mapping[str, Sequence[object] | Array]) -> dict[str, str]:
    options = {}
    for name, columns in tables.items():
        write(directory / name, columns)
        options |= {f"source.{name}.format": "parquet", f"source.{name}.path": str(directory / name)}
    return options


RANDOM = np.random.default_rng(20260101)
IN_ORDER, SHUFFLED = np.arange(ROWS), RANDOM.permutation(ROWS)
START = RANDOM.bit_generator.state
Columns = Callable[[], tuple[Array, Array]]

SHAPES: dict[str, tuple[Columns, float]] = {  # two key columns, and the factor within which the estimate must be
    "unique, in the same order": (lambda: (IN_ORDER, IN_ORDER), 1.05),
    "unique, in no order": (lambda: (IN_ORDER, SHUFFLED), 1.15),
    "a few values, many rows each": (lambda: (RANDOM.integers(0, 500, ROWS), RANDOM.integers(0, 500, ROWS)), 1.05),
    "three rows of one in a row": (lambda: (IN_ORDER // 3, IN_ORDER[: ROWS // 3]), 1.25),
    "facts and a small table": (lambda: (RANDOM.integers(0, 1000, ROWS), np.arange(1000)), 1.05),
    "the same order, a tenth without a partner": (lambda: (IN_ORDER, IN_ORDER[IN_ORDER % 10 > 0]), 1.15),
    "about the same order": (lambda: (IN_ORDER, IN_ORDER + RANDOM.integers(-50, 50, ROWS)), 1.1),
    "skewed": (lambda: (RANDOM.zipf(1.5, ROWS) % 10_000, RANDOM.integers(0, 10_000, ROWS)), 1.25),
}


@pytest.mark.parametrize("shape", SHAPES)
def oracle_selectivities_are_close_to_the_truth(shape: str, tmp_path: Path) -> None:
    make, factor = SHAPES[shape]
    left, right = make()
    options = parquet(tmp_path, a={"k": left}, b={"k": right}) | {"on": "k"}
    many, more = Counter(left.tolist()), Counter(right.tolist())
    truth = sum(count * more[key] for key, count in many.items())
    made = advised(options, SAMPLE)
    found = made.matches[0, 1]
    assert close(found.selectivity, truth / (left.size * right.size), factor), found
    assert close(made.expectation.results, truth, factor)
    assert all(each.read_rows <= SAMPLE for each in made.samples)


@pytest.mark.parametrize("seed", [1, 4])
def oracle_the_few_partners_of_a_frequent_key_are_not_taken_for_an_order(seed: int, tmp_path: Path) -> None:
    """Two fifths of the rows have one key, and of the few rows that the sample has of it on the other side all are in
    its first half: as if rows found their partners close by. The estimate was a quarter of the truth."""
    dice = np.random.default_rng(seed)
    left, right = dice.zipf(1.5, ROWS) % 10_000, dice.integers(0, 10_000, ROWS)
    made = advised(parquet(tmp_path, a={"k": left}, b={"k": right}) | {"on": "k"}, SAMPLE)
    found = made.matches[0, 1]
    assert found.basis == "in no common order"
    assert close(found.selectivity, np.bincount(left, minlength=10_000) @ np.bincount(right) / ROWS**2, 1.5)


@pytest.mark.parametrize(
    ("values", "truth"),
    [
        (lambda: IN_ORDER, ROWS),
        (lambda: SHUFFLED, ROWS),
        (lambda: RANDOM.integers(0, 300, ROWS), 300),
        (lambda: RANDOM.integers(0, 30_000, ROWS), 30_000),
        (lambda: IN_ORDER // 4, ROWS // 4),
    ],
    ids=["unique", "unique, shuffled", "few", "more than the sample has", "four in a row"],
)
def oracle_key_cardinalities_are_close_to_the_truth(values: Callable[[], Array], truth: int, tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"k": values()}, b={"k": np.arange(10)}) | {"on": "k"}
    made = advised(options, SAMPLE)
    assert close(made.keys[0][0].different, truth)
    assert made.keys[1][0].different == 10 and made.samples[1].is_whole


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30))
@settings(deadline=None)
def oracle_common_counts_pairs(left: list[int], right: list[int]) -> None:
    pairs = sum(a == b for a in left for b in right)
    assert matching.equal_pairs(np.array(left, np.uint64), np.array(right, np.uint64)) == pairs


def test_inputs_that_never_match_are_not_taken_for_some_that_do(tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": IN_ORDER + 10 * ROWS}) | {"on": "k"}
    made = advised(options, SAMPLE)
    assert made.matches[0, 1].matches == 0 and made.matches[0, 1].selectivity <= 1 / SAMPLE**2
    assert "no match was found: less than this" in section(made, "SAMPLED KEYS")


def test_several_keys_at_once_match_only_together(tmp_path: Path) -> None:
    x, y = RANDOM.integers(0, 40, ROWS), RANDOM.integers(0, 50, ROWS)
    options = parquet(tmp_path, a={"x": x, "y": y}, b={"x": RANDOM.permutation(x), "y": y}) | {"on": "x, y"}
    assert close(advised(options, SAMPLE).matches[0, 1].selectivity, 1 / 2000)


def test_filters_and_null_keys_count(tmp_path: Path) -> None:
    keys = pa.array(IN_ORDER, mask=IN_ORDER % 4 == 0)
    options = parquet(tmp_path, a={"k": keys, "v": RANDOM.random(ROWS)}, b={"k": np.arange(100)})
    made = advised(options | {"query": "SELECT a.v FROM a JOIN b ON a.k = b.k WHERE a.v < 0.5"}, SAMPLE)
    assert close(made.samples[0].kept_share, 0.375, 1.05) and close(made.samples[0].rows, 0.375 * ROWS)


# --- how much is read ----------------------------------------------------------------------------------------------


def test_only_so_many_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[str] = Counter()
    decode = FileSource.read

    def counted(self: FileSource, range: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for batch in decode(self, range, columns):
            read[self._alias] += batch.num_rows
            yield batch

    monkeypatch.setattr(FileSource, "read", counted)
    write(tmp_path / "c", {"k": IN_ORDER}, text=True)
    options = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": SHUFFLED}) | {"on": "k"}
    options |= {f"source.c.{n}": v for n, v in (("format", "csv"), ("path", str(tmp_path / "c")), ("header", "true"))}
    made = advised(options | {"source.c.schema": "k BIGINT"}, 1000)
    assert dict(read) == {"a": 1000, "b": 1000, "c": 1000}
    assert [each.read_rows for each in made.samples] == [1000, 1000, 1000]
    assert all(close(each.rows, ROWS) for each in made.samples)


def test_no_state_is_written(tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"k": np.arange(10)}, b={"k": np.arange(10)}) | {"on": "k"}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    advised(options | {"stateLocation": str(tmp_path / "state")})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("format", "compress"),
    [(f, None) for f in ("parquet", "arrow", "csv", "json")] + [(f, c) for f in ("csv", "json") for c in ("gz", "bz2")],
)
def test_rows_of_files_are_estimated_from_their_sizes(format: str, compress: str | None, tmp_path: Path) -> None:
    count = 600_000  # files larger than what is looked at, compressed or not
    values = RANDOM.integers(0, 1 << 40, count)
    files: list[tuple[str, bytes]] = []
    for n, part in enumerate(np.array_split(values, 3)):
        table, sink = pa.table({"k": part}), pa.BufferOutputStream()
        if format == "parquet":
            pq.write_table(table, sink)
        elif format == "arrow":
            with pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        elif format == "csv":
            pacsv.write_csv(table, sink)
        else:
            sink.write("".join(f'{{"k": {v}}}\n' for v in part.tolist()).encode())
        body = sink.getvalue().to_pybytes()
        if compress is not None:
            body = {"gz": gzip, "bz2": bz2}[compress].compress(body)
        files.append((f"{n}.{format}.{compress}" if compress else f"{n}.{format}", body))
    for name, body in files:
        (tmp_path / name).write_bytes(body)
        os.utime(tmp_path / name, (1_000_000, 1_000_000))
    options = {"path": str(tmp_path), "schema": "k BIGINT"} | ({"header": "true"} if format == "csv" else {})
    source = sources.create("a", format, options)
    assert isinstance(source, Surveyed)
    survey = source.survey(100, MemoryLog())
    assert survey.rows is not None and close(survey.rows, count, 1.5 if compress == "bz2" else 1.02)
    assert survey.rows_per_second is None, "files of one moment tell no rate"


def test_files_that_keep_coming_tell_a_rate(tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"k": np.arange(4000)}, b={"k": np.arange(10)}) | {"on": "k"}
    now = time.time()
    for n, file in enumerate(sorted((tmp_path / "a").iterdir())):  # four files, ten seconds between them
        os.utime(file, (now - 31 + 10 * n, now - 31 + 10 * n))
    made = advised(options, seconds=100)
    assert close(made.expectation.knowledge.rates[0].value, 100, 1.1)
    assert made.expectation.knowledge.rates[1].origin == "not known"
    assert close(made.expectation.rows[0], 4000 + 100 * 100, 1.1)
    given_ = advised(options | {"source.a.expectedRowsPerSecond": "7"}, seconds=100)
    assert given_.expectation.knowledge.rates[0].value == 7 and given_.expectation.knowledge.rates[0].origin == "given"
    assert "source.a.expectedRowsPerSecond" not in {s.option for s in given_.suggestions}


def test_a_generator_says_how_fast_it_is() -> None:
    options = {f"source.{alias}.format": "wisconsin" for alias in "ab"} | {"on": "unique1", "source.b.seed": "3"}
    options |= {"source.a.rowsPerSecond": "1000", "source.b.rates": "0s:100, 1800s:300", "source.b.rows": "100000"}
    made = advised(options, SAMPLE)
    assert [rate.value for rate in made.expectation.knowledge.rates] == [1000, 200]
    assert made.expectation.rows == (3_600_000, 100_000), "b ends before the hour does"
    assert close(made.matches[0, 1].selectivity, 1 / 1_000_000, 1.5)
    window = section(made, "A WINDOW")
    assert re.search(r"of 10 min: .* = .*/s x 600 s", window)
    assert re.search(r"of up to \S+ min: fits into 'memory' = \S+ .iB", window)


def test_a_source_that_cannot_tell_is_read_from_its_beginning() -> None:
    tables = {alias: [pa.table({"k": range(50)})] * 3 for alias in "ab"}
    made = advised(scripted(tables, "SELECT a.k FROM a JOIN b ON a.k = b.k"))
    assert [each.rows for each in made.samples] == [150, 150]
    assert made.expectation.results == pytest.approx(50 * 9)


# --- what is advised -----------------------------------------------------------------------------------------------


def test_the_state_is_as_large_as_advised(tmp_path: Path) -> None:
    """Runs the join that was advised on, and compares."""
    notes = np.array([f"note {n % 977}" for n in range(ROWS)])
    options = parquet(tmp_path, a={"k": IN_ORDER, "note": notes}, b={"k": SHUFFLED, "x": RANDOM.random(ROWS)})
    made = advised(options | {"on": "k"}, SAMPLE)
    results = sum(t.num_rows for t in run(made.options, tmp_path / "state"))
    seen = explained(made.options, state=str(tmp_path / "state")).observed
    assert seen is not None
    assert close(made.expectation.state_bytes, seen.figure("memoryUsedBytes"), 1.05)
    assert close(made.expectation.results, results, 1.15)
    assert seen.figure("numRowsOnDisk") == 0, "the memory that is advised is enough"


def test_suggestions_can_be_copied_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": SHUFFLED}) | {"on": "k"}
    made = spark_mjoin.advise(options, sample_rows=SAMPLE)
    assert isinstance(made, Advice) and capsys.readouterr().out == f"{made}\n"
    lines = dict(re.findall(r'^  \.option\("(.*)", "(.*)"\)$', section(made, "SUGGESTED"), re.MULTILINE))
    assert {**options, **lines} == made.options and set(lines) == {"expectedSelectivity", "memory"}
    again = explained(made.options)
    assert re.search(r"a, b by k1 +\S+ +given", section(again, "INPUTS"))
    second = advised(made.options, SAMPLE)
    assert "memory" not in {s.option for s in second.suggestions}, "what is set is enough"
    assert "fits: " in section(second, "RATES AND STATE")


def test_of_sources_without_rows_nothing_is_known(tmp_path: Path) -> None:
    options = {"query": "SELECT a.k FROM a JOIN b ON a.k = b.k"}
    for alias in "ab":
        (tmp_path / alias).mkdir()
        own = {"format": "csv", "path": str(tmp_path / alias), "schema": "k BIGINT"}
        options |= {f"source.{alias}.{name}": value for name, value in own.items()}
    made = advised(options)
    assert made.suggestions == ()
    assert "nothing: the sources have no rows yet, and no rates" in section(made, "SUGGESTED")


def test_too_little_memory_is_found_out(tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": SHUFFLED}) | {"on": "k", "Memory": "1m"}
    made = advised(options, SAMPLE)
    (memory,) = [s for s in made.suggestions if s.option == "memory"]
    assert memory.value == "16m" and "75% of it for" in memory.reason
    assert {name.lower(): value for name, value in made.options.items()}["memory"] == "16m"


def test_more_than_the_machine_has_is_not_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "machine_bytes", lambda: float(256 << 20))
    options = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": SHUFFLED}) | {"on": "k"}
    made = advised(options | {"source.a.expectedRowsPerSecond": "100000"}, SAMPLE)
    (memory,) = [s for s in made.suggestions if s.option == "memory"]
    assert memory.value == "128m" and "the rest is joined from disk" in memory.reason
    assert "does not fit: 96.0 MiB of 'memory' = 128 MiB" in section(made, "RATES AND STATE")


def test_partitions_follow_from_the_work_and_from_skew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    fast = {f"source.{alias}.expectedRowsPerSecond": "20000000" for alias in "ab"}
    even = parquet(tmp_path, a={"k": IN_ORDER}, b={"k": IN_ORDER}) | {"on": "k"} | fast
    made = advised(even, SAMPLE, seconds=10)
    busy = made.expectation.work_seconds
    assert 1.5 < busy < 8
    assert made.options["partitions"] == str(int(np.ceil(busy / advice.BUSY)))
    (tmp_path / "skewed").mkdir()
    third = np.where(IN_ORDER % 3 == 0, 0, IN_ORDER)
    skewed = parquet(tmp_path / "skewed", a={"k": third}, b={"k": IN_ORDER}) | {"on": "k"} | fast
    whole = advised(skewed | {"splitHotKeys": "false"}, SAMPLE, seconds=10)
    assert int(whole.options["partitions"]) == 2, "a third of the rows goes to one task"
    split = advised(skewed, SAMPLE, seconds=10)
    assert int(split.options["partitions"]) == 16, "or to several"
    said = section(split, "PARTITIONING")
    found = re.search(r"fullest of 16 partitions has ([\d.]+) times the mean", said)
    assert found is not None and float(found[1]) > 3, said
    assert "because of 1 hot key with 16.7% of all rows. It is split, into 13 parts: then it has 1." in said, said
    slow = dict.fromkeys(fast, "10")
    assert "partitions" not in advised(even | slow, SAMPLE).options
    for scheme in ("range", "rate"):
        assert "into 13 parts" in section(
            advised(skewed | {"partitioning": scheme}, SAMPLE, seconds=10), "PARTITIONING"
        )


def test_a_chain_is_not_advised_to_be_split(tmp_path: Path) -> None:
    options = parquet(tmp_path, a={"x": IN_ORDER}, b={"x": IN_ORDER, "y": IN_ORDER}, c={"y": IN_ORDER})
    options |= {"query": "SELECT a.x FROM a JOIN b ON a.x = b.x JOIN c ON b.y = c.y"}
    fast = {f"source.{alias}.expectedRowsPerSecond": "20000000" for alias in "abc"}
    made = advised(options | fast, SAMPLE, seconds=10)
    assert "partitions" not in made.options
    assert section(made, "PLAN").startswith("  (")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps(parquet(tmp_path, a={"k": IN_ORDER}, b={"k": SHUFFLED}) | {"on": "k"}))
    assert main(["advise", "--options", str(file), "--sample-rows", "5000", "--seconds", "60"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\n  a +5,000 +100.0% +200,000 +sampled: 4 files, ", text)
    assert "SUGGESTED" in text
