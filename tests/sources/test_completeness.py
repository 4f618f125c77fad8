"""Files that somebody is still writing to: none is taken half, and none is left for ever, whatever the clocks say."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from spark_mjoin.sources import completeness, create, discovery
from spark_mjoin.sources.decoding.arrow import Arrow
from spark_mjoin.sources.decoding.csv import Csv
from spark_mjoin.sources.decoding.file import File
from spark_mjoin.sources.decoding.parquet import Parquet
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source

NOW_NS = 1_750_000_000 * 10**9
LATER = 100 * 365 * 86_400.0


class Clock:
    """Stands for `time` in completeness.py; it goes on when somebody sleeps, and when the test says so."""

    def __init__(self) -> None:
        self.passed_ns = 0
        self.meanwhile: Callable[[], Any] = lambda: None  # what happens while somebody sleeps

    def time_ns(self) -> int:
        return NOW_NS + self.passed_ns

    def monotonic_ns(self) -> int:
        return self.passed_ns

    def sleep(self, seconds: float) -> None:
        assert seconds <= 0.2
        self.meanwhile()
        self.passed_ns += int(seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(completeness, "time", clock)
    return clock


def write(path: Path, content: bytes, ahead: float) -> None:
    """Write a file in place, with a time of change so many seconds after the clock's beginning."""
    path.write_bytes(content)
    changed = NOW_NS + int(ahead * 1e9)
    os.utime(path, ns=(changed, changed))


def sealed(format: str, values: list[int]) -> bytes:
    table = pa.table({"id": pa.array(values, pa.int64())})
    out = pa.BufferOutputStream()
    if format == "parquet":
        pq.write_table(table, out)
    else:
        with ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)
    return bytes(out.getvalue())


def source_of(format: str, path: Path) -> Source:
    return create("s", format, {"path": str(path), "schema": "id BIGINT"})


def ids(source: Source, start: Any, end: Any, log: MemoryLog) -> list[int]:
    return [v for part in source.plan(start, end, log) for b in source.read(part, ["id"]) for v in b["id"].to_pylist()]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("look", ["latest", "freeze"])
def test_a_file_that_is_finished_after_it_was_listed_is_left_for_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock, format: str, look: str
) -> None:
    whole, file = sealed(format, [1, 2]), tmp_path / "f"
    write(file, whole[: len(whole) // 2], -1)
    source, log = source_of(format, tmp_path), MemoryLog()
    kind = Parquet if format == "parquet" else Arrow
    looked_at_end = kind.is_complete

    def finished_just_before(self: Any, found: File) -> bool:
        write(file, whole, 0)
        return looked_at_end(self, found)

    start = source.initial()
    with monkeypatch.context() as patched:
        patched.setattr(kind, "is_complete", finished_just_before)
        if look == "freeze":
            source.freeze(log)
        assert source.latest(start, Limits(), log) == start
    if look == "freeze":
        source = source_of(format, tmp_path)  # the next run
        source.freeze(log)
    assert ids(source, start, source.latest(start, Limits(), log), log) == [1, 2]


def test_a_sealed_file_that_never_looks_the_same_is_warned_of_once(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "f", sealed("parquet", [1]), -100)
    source, log = source_of("parquet", tmp_path), MemoryLog()
    monkeypatch.setattr(Parquet, "is_complete", lambda self, f: write(Path(f.stat.path), b"12", -99) or True)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            write(tmp_path / "f", sealed("parquet", [1]), -100)
            assert source.latest(source.initial(), Limits(), log) == source.initial()
    assert [r.message for r in caplog.records] == [f"source 's': '{tmp_path}/f' is still being written and is skipped"]


def test_a_slow_listing_does_not_make_text_old(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "old", b"1\n", -1)
    write(tmp_path / "growing", b"2", 0)
    source, log, find = source_of("csv", tmp_path), MemoryLog(), discovery.find

    def slow(*arguments: Any) -> Any:
        found = list(find(*arguments))
        clock.passed_ns += 10**10
        return found

    monkeypatch.setattr(discovery, "find", slow)
    start = source.initial()
    assert ids(source, start, source.latest(start, Limits(), log), log) == [1]


@pytest.mark.parametrize("limits", [Limits(max_files=1), Limits(max_rows=3)], ids=["files", "rows"])
@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_a_file_of_the_backlog_that_changes_is_judged_anew(
    tmp_path: Path, clock: Clock, format: str, limits: Limits
) -> None:
    def content(values: list[int]) -> bytes:
        return sealed(format, values) if format == "parquet" else "".join(f"{v}\n" for v in values).encode()

    for number in (1, 2, 3):
        write(tmp_path / str(number), content([number] * 3), number - 100)
    source, log = source_of(format, tmp_path), MemoryLog()
    first = source.latest(source.initial(), limits, log)
    again = content([20, 20, 20])
    write(tmp_path / "2", again[:-2], 0)
    second = source.latest(first, limits, log)
    assert ids(source, first, second, log) == [3, 3, 3]
    assert source.latest(second, limits, log) == second
    write(tmp_path / "2", again, 0.1)
    clock.passed_ns += 3 * 10**8
    assert ids(source, second, source.latest(second, limits, log), log) == [20, 20, 20]


@pytest.mark.parametrize("error", [False, True])
def test_a_file_that_changes_while_it_is_counted_is_judged_anew(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: bool
) -> None:
    write(tmp_path / "f", b"1\n2\n", -100)
    source, log, count = source_of("csv", tmp_path), MemoryLog(), Csv.count

    def changed_meanwhile(self: Any, *arguments: Any) -> int:
        rows = count(self, *arguments)
        write(tmp_path / "f", b"1\n2\n3\n", 0)
        if error:
            raise pa.ArrowInvalid("a row of two files")
        return rows

    start, limits = source.initial(), Limits(max_rows=9)
    with monkeypatch.context() as patched:
        patched.setattr(Csv, "count", changed_meanwhile)
        assert source.latest(start, limits, log) == start
    clock.passed_ns += 3 * 10**8
    assert ids(source, start, source.latest(start, limits, log), log) == [1, 2, 3]


@pytest.mark.parametrize("ahead", [0.3, 3600.0, LATER])
def test_text_from_the_future_is_taken_once_it_rests_by_our_clock(tmp_path: Path, clock: Clock, ahead: float) -> None:
    write(tmp_path / "f", b"1\n2", ahead)
    source, log = source_of("csv", tmp_path), MemoryLog()
    start = source.initial()
    assert source.latest(start, Limits(), log) == start
    clock.passed_ns += 150_000_000
    write(tmp_path / "f", b"1\n20\n", ahead + 0.15)
    assert source.latest(start, Limits(), log) == start  # it has changed
    clock.passed_ns += 150_000_000
    assert source.latest(start, Limits(), log) == start  # and does not rest for long enough
    clock.passed_ns += 50_000_000
    assert ids(source, start, source.latest(start, Limits(), log), log) == [1, 20]


@pytest.mark.parametrize("ahead", [0.3, 3600.0, LATER])
def test_the_last_look_takes_text_from_the_future_after_one_wait(tmp_path: Path, clock: Clock, ahead: float) -> None:
    write(tmp_path / "f", b"1\n", ahead)
    source, log = source_of("csv", tmp_path), MemoryLog()
    source.freeze(log)
    assert clock.passed_ns == 200_000_000
    assert ids(source, source.initial(), source.latest(source.initial(), Limits(), log), log) == [1]


def test_the_last_look_leaves_growing_text_from_the_future_to_the_next_run(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "f", b"1\n2", 3600.0)
    source, log = source_of("csv", tmp_path), MemoryLog()
    clock.meanwhile = lambda: write(tmp_path / "f", b"1\n20\n", 3600.1)
    with caplog.at_level(logging.WARNING):
        source.freeze(log)
    start = source.initial()
    assert source.latest(start, Limits(), log) == start
    assert "is still being written and is skipped" in caplog.text
    clock.meanwhile = lambda: None
    source = source_of("csv", tmp_path)
    source.freeze(log)
    assert ids(source, start, source.latest(start, Limits(), log), log) == [1, 20]
