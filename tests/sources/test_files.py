"""The file sources beyond what every source does: which files are found, what their values become, what is refused."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import logging
import os
import pickle
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from spark_mjoin.errors import OptionError, SourceError
from spark_mjoin.sources import completeness, create, discovery, storage
from spark_mjoin.sources.decoding import batches as decoded
from spark_mjoin.sources.decoding import csv as csv_decoding
from spark_mjoin.sources.decoding import json as json_decoding
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source, SourceLog


def parquet(path: Path, values: list[int], age: float = 100.0, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(values, pa.int64()), **more}), path)
    return aged(path, age)


def text(path: Path, content: str | bytes, age: float = 100.0) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return aged(path, age)


def written(path: Path, format: str, table: pa.Table) -> Path:
    if format == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return aged(path, 100.0)


def aged(path: Path, seconds: float) -> Path:
    then = int(time.time_ns() - seconds * 1e9)
    os.utime(path, ns=(then, then))
    return path


def all_rows(source: Source, log: SourceLog | None = None, columns: list[str] | None = None) -> list[dict[str, Any]]:
    log = MemoryLog() if log is None else log
    start = source.initial()
    return read(source, start, source.latest(start, Limits(), log), log, columns)


def read(
    source: Source, start: Any, end: Any, log: SourceLog, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    names = source.schema().names if columns is None else columns
    return [row for part in source.plan(start, end, log) for b in source.read(part, names) for row in b.to_pylist()]


def ids(source: Source, log: SourceLog | None = None) -> list[int]:
    return [row["id"] for row in all_rows(source, log, ["id"])]


# --- which files -----------------------------------------------------------------------------------------------


def test_files_come_by_age_then_path_and_latest_first_reverses(tmp_path: Path) -> None:
    for name, age in (("c", 30), ("a", 10), ("b", 20)):
        parquet(tmp_path / name, [ord(name)], age)
    order = [ord(c) for c in "cba"]
    assert ids(create("s", "parquet", {"path": str(tmp_path)})) == order
    source = create("s", "parquet", {"path": str(tmp_path), "latestFirst": "true"})
    assert ids(source) == order[::-1]
    log, start = MemoryLog(), source.initial()
    first = source.latest(start, Limits(max_files=1), log)
    parquet(tmp_path / "d", [ord("d")], 1)
    second = source.latest(first, Limits(max_files=1), log)
    assert [r["id"] for r in read(source, first, second, log)] == [ord("d")]


def test_hidden_empty_and_nested_files_are_ignored(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", [1])
    for name in (".b.parquet", "_c.parquet", "_tmp/d.parquet", ".tmp/e.parquet"):
        parquet(tmp_path / name, [9])
    parquet(tmp_path / "deep" / "f.parquet", [2])
    text(tmp_path / "g.parquet", "")
    path = str(tmp_path)
    assert ids(create("s", "parquet", {"path": path})) == [1]
    assert sorted(ids(create("s", "parquet", {"path": path, "recursiveFileLookup": "true"}))) == [1, 2]


def test_paths_may_be_files_globs_and_uris(tmp_path: Path) -> None:
    for day in ("d=1", "d=2", "e=3"):
        parquet(tmp_path / day / "x.parquet", [int(day[-1])])
        parquet(tmp_path / day / "y.pq", [10 * int(day[-1])])

    def found(path: str, **options: str) -> list[int]:
        return sorted(ids(create("s", "parquet", {"path": path, **options})))

    root = str(tmp_path)
    assert found(f"{root}/d=1/x.parquet") == [1]
    assert found(f"{root}/d=*") == [1, 2, 10, 20]
    assert found(f"{root}/*/x.*") == [1, 2, 3]
    assert found(f"{root}/{{d=1,e=3}}/y.pq") == [10, 30]
    assert found(f"{root}/[d]=?/*.p{{arquet,q}}") == [1, 2, 10, 20]
    assert found(f"{root}/[^d]=?") == found(f"{root}/[!d]=?") == [3, 30]
    assert found(root, recursiveFileLookup="true", pathGlobFilter="*.pq") == [10, 20, 30]
    assert found(root, recursiveFileLookup="true", pathGlobFilter="[^x].{pq,parquet}") == [10, 20, 30]
    assert found(f"file:{root}/d=1") == found(f"file://{root}/d=1") == [1, 10]


@pytest.mark.parametrize("path", ["in::1", "in::", "-::;", "in::in", "in::/1", "::in"])
def test_two_colons_are_no_chain_of_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """fsspec takes them for one, and reads what is before them. To Spark it is an error."""
    monkeypatch.chdir(tmp_path)
    for directory in ("in", "-"):
        parquet(tmp_path / directory / "x.parquet", [1])
    with pytest.raises(OptionError, match=r"source\.s\.path.*no scheme|relative path"):
        create("s", "parquet", {"path": path}).schema()


def test_fsspec_uris(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for number in (1, 2):
        memory.pipe(f"/mj/in/f{number}.parquet", parquet(tmp_path / "x", [number]).read_bytes())
    memory.pipe("/mj/in/c.csv", b"7,x\n")
    try:
        source = create("s", "parquet", {"path": "memory://mj/in", "pathGlobFilter": "*.parquet"})
        assert ids(pickle.loads(pickle.dumps(source))) == [1, 2]
        assert ids(create("s", "parquet", {"path": "memory://mj/*/f*.parquet"})) == [1, 2]
        csv = create("s", "csv", {"path": "memory://mj/in/c.csv", "schema": "id INT, n STRING"})
        log = MemoryLog()
        csv.freeze(log)
        assert all_rows(csv, log) == [{"id": 7, "n": "x"}]
        chained = create("s", "parquet", {"path": "simplecache::memory://mj/in", "pathGlobFilter": "*.parquet"})
        assert ids(pickle.loads(pickle.dumps(chained))) == [1, 2]
        memory.rm("/mj/in/f1.parquet")
        with pytest.raises(OptionError, match=r"source\.s\.path.*does not exist"):
            create("s", "parquet", {"path": "memory://mj/nowhere"}).schema()
    finally:
        memory.rm("/mj", recursive=True)


@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "json"])
def test_a_name_that_is_not_utf8_is_refused_with_a_remedy(tmp_path: Path, format: str) -> None:
    name = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        with open(name, "wb") as handle:
            handle.write(b"1\n")
    except OSError:
        pytest.skip("this file system has no such names")
    os.utime(name, (1, 1))
    source, log = create("s", format, {"path": str(tmp_path), "schema": "id INT"}), MemoryLog()
    refusal = r"source 's'.*/caf\\xe9'.*source\.s\.path.*not UTF-8.*Rename the file"
    for look in (lambda: source.freeze(log), lambda: source.latest(source.initial(), Limits(), log)):
        with pytest.raises(SourceError, match=refusal) as caught:
            look()
        str(caught.value).encode()
    os.rename(name, tmp_path / ".hidden")
    assert source.latest(source.initial(), Limits(), log) == source.initial()


def test_new_files_are_found_and_changed_ones_are_not_new(tmp_path: Path) -> None:
    one = parquet(tmp_path / "1", [1])
    source, log = create("s", "parquet", {"path": str(tmp_path)}), MemoryLog()
    first = source.latest(source.initial(), Limits(), log)
    assert source.latest(first, Limits(), log) == first
    parquet(one, [1, 1])
    assert source.latest(first, Limits(), log) == first
    parquet(tmp_path / "0", [2])
    fresh = pickle.loads(pickle.dumps(source))
    for instance in (source, fresh):
        second = instance.latest(first, Limits(), log)
        assert [r["id"] for r in read(instance, first, second, log)] == [2]
    assert len(log) == 2
    assert set(log.read(0, 1)[0]) == {"path", "size", "mtime_ns", "rows"}


def test_polling_does_not_reread_the_log(tmp_path: Path) -> None:
    class Counting(MemoryLog):
        reads = 0

        def read(self, start: int, end: int) -> list[dict[str, Any]]:
            self.reads += 1
            return super().read(start, end)

    for number in range(20):
        parquet(tmp_path / str(number), [number])
    source, log = create("s", "parquet", {"path": str(tmp_path)}), Counting()
    end = source.latest(source.initial(), Limits(), log)
    before = log.reads
    for _ in range(5):
        source.latest(end, Limits(), log)
    assert log.reads == before


def test_a_backlog_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        parquet(tmp_path / str(number), [number], age=100 - number)
    listings = []
    find = discovery.find
    monkeypatch.setattr(discovery, "find", lambda *a: listings.append(1) or find(*a))
    source, log = create("s", "parquet", {"path": str(tmp_path), "schema": "id BIGINT"}), MemoryLog()
    position = source.initial()
    for number in range(10):
        if number == 4:
            (tmp_path / "5").unlink()  # no position counts it
        end = source.latest(position, Limits(max_files=1), log)
        assert len(read(source, position, end, log)) == (1 if number < 9 else 0)
        position = end
    assert len(listings) == 2


def test_half_written_files_wait(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "x", [1]).read_bytes()
    (tmp_path / "x").unlink()
    source, log = create("s", "parquet", {"path": str(tmp_path), "schema": "id BIGINT"}), MemoryLog()
    text(tmp_path / "y", whole[: len(whole) // 2])
    start = source.initial()
    assert source.latest(start, Limits(), log) == start
    text(tmp_path / "y", whole)
    assert ids(source, log) == [1]


def test_young_text_waits_and_freeze_waits_for_it(tmp_path: Path) -> None:
    options = {"path": str(tmp_path), "schema": "id INT"}
    source, log = create("s", "csv", options), MemoryLog()
    text(tmp_path / "a.csv", "1\n", age=0)
    start = source.initial()
    assert source.latest(start, Limits(), log) == start
    source.freeze(log)
    text(tmp_path / "b.csv", "2\n")
    assert ids(source, log) == [1]
    assert sorted(ids(create("s", "csv", options))) == [1, 2]


def test_text_that_still_changes_is_left_out_of_a_freeze(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text(tmp_path / "a.csv", "1\n", age=0)
    source, log = create("s", "csv", {"path": str(tmp_path), "schema": "id INT"}), MemoryLog()
    monkeypatch.setattr(completeness.time, "sleep", lambda _: text(tmp_path / "a.csv", "1\n2\n", age=0))
    source.freeze(log)
    assert len(log) == 0


def test_file_and_byte_limits(tmp_path: Path) -> None:
    for number in range(5):
        parquet(tmp_path / str(number), [number] * 3, age=100 - number)
    size = (tmp_path / "0").stat().st_size
    source = create("s", "parquet", {"path": str(tmp_path)})

    def steps(limit: Limits) -> list[int]:
        log, position, counts = MemoryLog(), source.initial(), []
        while (end := source.latest(position, limit, log)) != position:
            counts.append(len(read(source, position, end, log)))
            position = end
        return counts

    assert steps(Limits(max_files=2)) == [6, 6, 3]
    assert steps(Limits(max_bytes=2 * size + 1)) == [6, 6, 3]
    assert steps(Limits(max_bytes=1)) == [3] * 5
    assert steps(Limits(max_bytes=10 * size, max_files=3, max_rows=4)) == [4, 4, 4, 3]
    assert steps(Limits(max_rows=100, max_files=1)) == [3] * 5
    assert steps(Limits(max_rows=2, max_files=1)) == [2, 1] * 5


def test_row_ranges_skip_row_groups(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(300_000), pa.int64())})
    pq.write_table(table, tmp_path / "f", row_group_size=70_000)
    source, log = create("s", "parquet", {"path": str(tmp_path)}), MemoryLog()
    for start, end in ((0, 1), (69_999, 70_001), (140_000, 280_000), (299_999, 300_000), (123_456, 299_999)):
        source.latest(source.initial(), Limits(), log)
        got = read(source, {"files": 0, "rows": start}, {"files": 0, "rows": end}, log)
        assert [r["id"] for r in got] == list(range(start, end))


# --- loss ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["is gone", "has changed"])
def test_a_lost_or_changed_file_is_an_error(tmp_path: Path, problem: str, caplog: pytest.LogCaptureFixture) -> None:
    lost, _ = parquet(tmp_path / "1", [1], 20), parquet(tmp_path / "2", [2], 10)
    options = {"path": str(tmp_path)}
    log = MemoryLog()
    strict, lenient = create("s", "parquet", options), create("s", "parquet", {**options, "failOnDataLoss": "false"})
    start = strict.initial()
    end = strict.latest(start, Limits(), log)
    strict.schema(), lenient.schema()
    lost.unlink()
    if problem == "has changed":
        parquet(lost, [7, 7])
    with pytest.raises(SourceError, match=rf"source 's'.*/1' {problem}.*source\.s\.failOnDataLoss"):
        read(strict, start, end, log)
    with caplog.at_level(logging.WARNING):
        got = [r["id"] for r in read(lenient, start, end, log)]
    assert got == ([2] if problem == "is gone" else [7, 7, 2])
    assert "failOnDataLoss" in caplog.text


def cut_short(file: Path) -> None:
    file.write_bytes(b"")


def overwritten(file: Path) -> None:
    """In place, with as many bytes: half a file that is read on then gives rows of both, or nonsense."""
    with file.open("r+b") as handle:
        content = handle.read()
        handle.seek(0)
        handle.write(content.replace(b"1", b"2"))
    aged(file, 0)


def removed(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("change", [cut_short, overwritten, removed])
@pytest.mark.parametrize("format", ["parquet", "arrow", "csv", "json"])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, format: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded, "SMALL_ROWS", 1_000)
    monkeypatch.setattr(csv_decoding, "BLOCK_BYTES", 4_096)
    monkeypatch.setattr(json_decoding, "CHUNK_BYTES", 4_096)
    file, table = tmp_path / "f", pa.table({"id": pa.array([1] * 100_000, pa.int64())})
    if format == "parquet":
        pq.write_table(table, file, row_group_size=1_000)
    elif format == "arrow":
        with ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=1_000)
    else:
        file.write_text(("1\n" if format == "csv" else '{"id": 1}\n') * 100_000)
    aged(file, 100)
    options = {"path": str(tmp_path), "schema": "id BIGINT"}
    source, log = create("s", format, options), MemoryLog()
    with storage.storage(str(file)).open(str(file)) as handle:
        assert not isinstance(handle, pa.MemoryMappedFile)  # or what follows would end this process with SIGBUS
    start = source.initial()
    (part,) = source.plan(start, source.latest(start, Limits(), log), log)
    batches = source.read(part, ["id"])
    assert next(batches)["id"][0].as_py() == 1
    change(file)
    with pytest.raises(SourceError, match=rf"source 's': '{file}' (has changed|is gone).*source\.s\.failOnDataLoss"):
        list(batches)


def test_a_file_that_changes_while_it_is_read_may_be_allowed_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = text(tmp_path / "f", "1\n" * 200_000)
    options = {"path": str(tmp_path), "schema": "id INT", "failOnDataLoss": "false"}
    source, log = create("s", "csv", options), MemoryLog()
    (part,) = source.plan(source.initial(), source.latest(source.initial(), Limits(), log), log)
    batches = source.read(part, ["id"])
    next(batches)
    removed(file)
    with caplog.at_level(logging.WARNING):
        list(batches)
    assert [r.message for r in caplog.records] == [f"source 's': '{file}' is gone; failOnDataLoss is false"]


def test_a_position_beyond_the_log_is_refused(tmp_path: Path) -> None:
    """Also as a start: what is found next would be numbered as files that were read."""
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "1.parquet")
    source = create("s", "parquet", {"path": str(tmp_path), "schema": "id INT"})
    with pytest.raises(SourceError, match="do not belong together"):
        source.plan({"files": 0, "rows": 0}, {"files": 1, "rows": 0}, MemoryLog())
    for position in ({"files": 1, "rows": 0}, {"files": 0, "rows": 1}):
        with pytest.raises(SourceError, match="log has 0 files where the checkpoint counts 1"):
            source.latest(position, Limits(), MemoryLog())


# --- schema ----------------------------------------------------------------------------------------------------


def test_schema_errors_name_the_options(tmp_path: Path) -> None:
    def schema(format: str, **options: str) -> pa.Schema:
        return create("s", format, {"path": str(tmp_path), **options}).schema()

    with pytest.raises(OptionError, match=r"source\.s\.path'.*is required"):
        create("s", "csv", {})
    with pytest.raises(OptionError, match=r"source\.s\.path.*does not exist"):
        schema("parquet", path=str(tmp_path / "no"))
    with pytest.raises(OptionError, match=r"source\.s\.path.*does not exist"):
        schema("csv", path=str(tmp_path / "no"), schema="id INT")
    with pytest.raises(OptionError, match=r"source\.s\.schema.*source\.s\.path"):
        schema("parquet")
    for format in ("csv", "json"):
        with pytest.raises(OptionError, match=r"source\.s\.schema' is required"):
            schema(format)
    with pytest.raises(OptionError, match=r"source\.s\.schema.*nested"):
        schema("csv", schema="a ARRAY<INT>")
    with pytest.raises(OptionError, match=r"source\.s\.schema.*MAP"):
        schema("json", schema="a ARRAY<MAP<STRING, INT>>")
    with pytest.raises(OptionError, match=r"source\.s\.schema.*twice"):
        schema("csv", schema="a INT, A INT")
    with pytest.raises(OptionError, match=r"source\.s\.header"):
        schema("csv", schema="a INT", header="maybe")
    with pytest.raises(OptionError, match=r"source\.s\.path.*nosuch"):
        schema("csv", schema="a INT", path="nosuch://x")
    assert schema("csv", schema="a INT", path=f"{tmp_path}/*.csv").names == ["a"]
    twice = pa.table([pa.array([1]), pa.array([2])], names=["k", "k"])
    for format in ("parquet", "arrow"):
        written(tmp_path / f"twice.{format}", format, twice)
        with pytest.raises(OptionError, match=rf"source\.s\.path.*twice\.{format}.*more than one column 'k'.*schema"):
            schema(format, path=f"{tmp_path}/*.{format}")
        (tmp_path / f"twice.{format}").unlink()
    text(tmp_path / "bad.parquet", b"PAR1" + b"x" * 20 + b"PAR1")
    with pytest.raises(OptionError, match=r"source\.s\.path.*bad\.parquet"):
        schema("parquet")


def test_inferred_types_are_canonical_and_travel_with_the_instance(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array(["a", None]).dictionary_encode(),
            "l": pa.array(["b", "c"], pa.large_string()),
            "u": pa.array([1, 2], pa.uint32()),
            "t": pa.array([1, 2], pa.timestamp("ns", tz="Europe/Rome")),
        }
    )
    pq.write_table(table, tmp_path / "f", version="2.6")
    source = create("s", "parquet", {"path": str(tmp_path)})
    assert source.schema() == pa.schema(
        {"d": pa.string(), "l": pa.string(), "u": pa.int64(), "t": pa.timestamp("us", tz="UTC")}
    )
    assert [r["d"] for r in all_rows(source)] == ["a", None]
    (tmp_path / "f").unlink()
    assert pickle.loads(pickle.dumps(source)).schema() == source.schema()


def test_int96_is_an_instant(tmp_path: Path) -> None:
    at = dt.datetime(2024, 1, 2, 3, 4, 5, 6)
    pq.write_table(pa.table({"t": pa.array([at])}), tmp_path / "f", use_deprecated_int96_timestamps=True)
    source = create("s", "parquet", {"path": str(tmp_path)})
    assert source.schema().field("t").type == pa.timestamp("us", tz="UTC")
    assert all_rows(source) == [{"t": at.replace(tzinfo=dt.UTC)}]


def test_int96_is_an_instant_at_every_depth(tmp_path: Path) -> None:
    """As Spark writes TIMESTAMP; names with dots do not mislead."""
    at, instant = dt.datetime(2024, 1, 2, 3, 4, 5, 6), pa.timestamp("us", tz="UTC")
    naive = pa.timestamp("us")
    columns = {
        "l": pa.array([[at, None]], pa.list_(naive)),
        "m": pa.array([[("k", {"at": at, "n": 1})]], pa.map_(pa.string(), pa.struct({"at": naive, "n": pa.int64()}))),
        "s.at": pa.array([1]),
        "s": pa.array([{"at": at, "l": [{"x": 1, "at": at}]}]),
        "t": pa.array([at]),
    }
    pq.write_table(pa.table(columns), tmp_path / "f", use_deprecated_int96_timestamps=True, store_schema=False)
    source = create("s", "parquet", {"path": str(tmp_path)})
    types = {f.name: f.type for f in source.schema()}
    assert types["l"].value_type == types["t"] == instant
    assert types["m"].item_type == pa.struct({"at": instant, "n": pa.int64()})
    assert types["s"].field("at").type == types["s"].field("l").type.value_type.field("at").type == instant
    (row,) = all_rows(source)
    utc = at.replace(tzinfo=dt.UTC)
    assert (row["l"], row["t"], row["s.at"]) == ([utc, None], utc, 1)
    assert (row["m"], row["s"]) == ([("k", {"at": utc, "n": 1})], {"at": utc, "l": [{"x": 1, "at": utc}]})


POINT = pa.struct({"X": pa.int32(), "y": pa.int64()})
POINTS = [{"X": 1, "y": 2}, None, {"X": None, "y": 3}]
AS_READ = [{"x": 1, "z": None}, None, {"x": None, "z": None}]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize(
    ("values", "ddl", "expected"),
    [
        (pa.array(POINTS, POINT), "STRUCT<x: BIGINT, z: STRING>", AS_READ),
        (pa.array([{"P": p} for p in POINTS], pa.struct({"P": POINT})), "STRUCT<p: STRUCT<x: BIGINT, z: STRING>>",
         [{"p": p} for p in AS_READ]),
        (pa.array([POINTS, None, []], pa.list_(POINT)), "ARRAY<STRUCT<x: BIGINT, z: STRING>>", [AS_READ, None, []]),
        (pa.array([POINTS, None, []], pa.large_list(POINT)), "ARRAY<STRUCT<x: BIGINT, z: STRING>>",
         [AS_READ, None, []]),
        (pa.array([[POINTS, []], None, [None]], pa.list_(pa.list_(POINT))),
         "ARRAY<ARRAY<STRUCT<x: BIGINT, z: STRING>>>", [[AS_READ, []], None, [None]]),
        (pa.array([list(zip("abc", POINTS, strict=True)), None, []], pa.map_(pa.string(), POINT)),
         "MAP<STRING, STRUCT<x: BIGINT, z: STRING>>", [list(zip("abc", AS_READ, strict=True)), None, []]),
        (pa.array([{"v": 1.5}, None, {"v": 2}], pa.struct({"v": pa.float32()})), "STRUCT<V: DOUBLE>",
         [{"V": 1.5}, None, {"V": 2.0}]),
    ],
)  # fmt: skip
def test_nested_fields_match_in_any_case_and_missing_ones_are_null(
    tmp_path: Path, format: str, values: pa.Array, ddl: str, expected: list[Any]
) -> None:
    written(tmp_path / "f", format, pa.table({"id": [0, 1, 2], "V": values}))
    source, log = create("s", format, {"path": str(tmp_path), "schema": f"id BIGINT, v {ddl}"}), MemoryLog()
    assert [row["v"] for row in all_rows(source, log)] == expected
    rest = read(source, {"files": 0, "rows": 1}, {"files": 1, "rows": 0}, log)
    assert [row["v"] for row in rest] == expected[1:], "a slice"


def test_missing_columns_are_null_and_names_match_in_any_case(tmp_path: Path) -> None:
    parquet(tmp_path / "1", [1], 30)
    parquet(tmp_path / "2", [2], 20, NAME=["x"])
    source = create("s", "parquet", {"path": str(tmp_path), "schema": "id INT, name STRING"})
    assert all_rows(source) == [{"id": 1, "name": None}, {"id": 2, "name": "x"}]
    assert all_rows(source, None, ["name"]) == [{"name": None}, {"name": "x"}]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_types_of_another_kind_are_refused_by_name(tmp_path: Path, format: str) -> None:
    table = pa.table({"id": ["1"], "n": pa.array([1 << 40], pa.int64()), "o": [[{"x": "1"}]]})
    written(tmp_path / "f", format, table)
    path = {"path": str(tmp_path)}
    nested = "o ARRAY<STRUCT<x: BIGINT>>"
    for ddl, column in (("id BIGINT", "id"), ("id TIMESTAMP", "id"), ("n INT", "n"), (nested, "o")):
        with pytest.raises(SourceError, match=rf"source 's'.*/f', column '{column}' cannot be read"):
            all_rows(create("s", format, {**path, "schema": ddl}))


def test_damaged_files_are_source_errors(tmp_path: Path) -> None:
    good = parquet(tmp_path / "f", list(range(1000))).read_bytes()
    text(tmp_path / "f", good[:4] + b"\0" * 50 + good[54:])
    with pytest.raises(SourceError, match=r"source 's'.*/f'"):
        all_rows(create("s", "parquet", {"path": str(tmp_path), "schema": "id BIGINT"}))
    text(tmp_path / "f", "no arrow file")
    with pytest.raises(SourceError, match=r"source 's'.*/f'"):
        all_rows(create("s", "arrow", {"path": str(tmp_path), "schema": "id BIGINT"}))
    text(tmp_path / "f.gz", gzip.compress(b"1\n" * 9999)[:-20])
    with pytest.raises(SourceError, match=r"source 's'.*/f.gz'"):
        all_rows(create("s", "csv", {"path": f"{tmp_path}/*.gz", "schema": "id BIGINT"}))


# --- arrow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_files_and_streams(tmp_path: Path, compression: str | None) -> None:
    table = pa.table({"id": pa.array(range(1000)), "d": pa.array(["x", "y"] * 500).dictionary_encode()})
    options = ipc.IpcWriteOptions(compression=compression)
    with ipc.new_file(tmp_path / "file", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    with ipc.new_stream(tmp_path / "stream", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    whole = (tmp_path / "stream").read_bytes()
    text(tmp_path / "unfinished", whole[:-8])
    source, log = create("s", "arrow", {"path": str(tmp_path)}), MemoryLog()
    assert len(ids(source)) == 2000
    start = source.initial()
    middle = source.latest(start, Limits(max_rows=1550), log)
    assert middle == {"files": 1, "rows": 550}
    rest = read(source, middle, source.latest(middle, Limits(), log), log)
    assert [r["id"] for r in rest] == list(range(550, 1000))
    assert rest[0]["d"] == "x"


# --- csv -------------------------------------------------------------------------------------------------------


def csv_rows(tmp_path: Path, content: str | bytes, ddl: str, name: str = "f.csv", **options: str) -> list[Any]:
    text(tmp_path / name, content)
    rows = all_rows(create("s", "csv", {"path": str(tmp_path / name), "schema": ddl, **options}))
    return [tuple(row.values()) for row in rows]


def test_csv_types(tmp_path: Path) -> None:
    ddl = (
        "b BOOLEAN, i8 TINYINT, i BIGINT, f DOUBLE, d DECIMAL(10,2), s STRING, x BINARY, day DATE, t TIMESTAMP, "
        "n TIMESTAMP_NTZ"
    )
    content = "true,-1,9,1.5,1.5,é,é,2024-02-29,2024-02-29T10:00:00+02:00,2024-02-29 10:00\n,,,,,,,,,\n"
    utc = dt.datetime(2024, 2, 29, 8, tzinfo=dt.UTC)
    assert csv_rows(tmp_path, content, ddl) == [
        (True, -1, 9, 1.5, Decimal("1.50"), "é", "é".encode(), dt.date(2024, 2, 29), utc, dt.datetime(2024, 2, 29, 10)),
        (None,) * 10,
    ]


def test_csv_timestamps_with_and_without_zone(tmp_path: Path) -> None:
    values = {
        "2024-01-15T10:00:00Z": (10, 0),
        "2024-01-15 10:00:00.123": (10, 123_000),
        "2024-01-15T10:00:00.123456789+0100": (9, 123_456),
        "2024-01-15": (0, 0),
        "2024-01-15 10:00-02": (12, 0),
    }
    got = csv_rows(tmp_path, "\n".join(values), "t TIMESTAMP")
    assert got == [(dt.datetime(2024, 1, 15, h, 0, 0, us, tzinfo=dt.UTC),) for h, us in values.values()]


def test_csv_header_goes_by_name(tmp_path: Path) -> None:
    content = "extra,NAME,id\n1,x,7\n"
    assert csv_rows(tmp_path, content, "id INT, name STRING, gone DATE", header="true") == [(7, "x", None)]
    assert csv_rows(tmp_path, "id\n", "id INT", header="true") == []
    with pytest.raises(SourceError, match=r"column 'id'.*more than one"):
        csv_rows(tmp_path, "id,id\n1,2\n", "id INT", header="true")
    with pytest.raises(SourceError, match=r"f\.csv', column 'name' cannot be read: the header has it as ' Name'"):
        csv_rows(tmp_path, "id, Name\n1,x\n", "id INT, name STRING", header="true")
    assert csv_rows(tmp_path, "id, name\n1,x\n", "id INT, ` name` STRING", header="true") == [(1, "x")]
    with pytest.raises(SourceError, match=r"first line, 'id,name', names no column of the schema: see options 'sep'"):
        csv_rows(tmp_path, "id,name\n1,x\n", "id INT, name STRING", header="true", sep=";")
    with pytest.raises(SourceError, match=r"'1,x', names no column.*'header'.*'source.s.failOnDataLoss' to false"):
        csv_rows(tmp_path, "1,x\n2,y\n", "id INT, name STRING", header="true")


def test_csv_dialects(tmp_path: Path) -> None:
    ddl = "a STRING, b STRING"
    assert csv_rows(tmp_path, 'x,"y"\n,"a ""b""\nc"\n', ddl) == [("x", "y"), (None, 'a "b"\nc')]
    assert csv_rows(tmp_path, "x\t'y\tz'\n", ddl, sep="\\t", quote="'") == [("x", "y\tz")]
    assert csv_rows(tmp_path, "NA;\n", ddl, delimiter=";", nullValue="NA") == [(None, None)]
    assert csv_rows(tmp_path, '"x\\"y",C:\\\\d\n', ddl, escape="\\") == [('x"y', "C:\\d")]
    assert csv_rows(tmp_path, '"x",y\n', ddl, quote="") == [('"x"', "y")]
    assert csv_rows(tmp_path, "é,ü\n".encode("latin-1"), ddl, encoding="ISO-8859-1") == [("é", "ü")]
    assert csv_rows(tmp_path, b"\xef\xbb\xbfa,b", ddl) == [("a", "b")]
    assert csv_rows(tmp_path, gzip.compress(b"a,b\n"), ddl, name="f.csv.gz") == [("a", "b")]
    assert csv_rows(tmp_path, bz2.compress(b"a,b\n"), ddl, name="f.csv.bz2") == [("a", "b")]
    assert csv_rows(tmp_path, pa.compress(b"a,b\n", "zstd", asbytes=True), ddl, name="f.csv.zst") == [("a", "b")]
    assert csv_rows(tmp_path, gzip.compress(b""), ddl, name="f.csv.gz") == []
    for options in ({"sep": "||"}, {"sep": ",", "delimiter": ","}, {"encoding": "klingon"}):
        with pytest.raises(OptionError, match=rf"source\.s\.{list(options)[-1]}"):
            csv_rows(tmp_path, "", ddl, **options)


@pytest.mark.parametrize(
    ("ddl", "content", "column"),
    [
        ("a STRING, id BIGINT", "x,1\ny,abc\n", "id"),
        ("a STRING, id TIMESTAMP", "x,2024-01-01\ny,yesterday\n", "id"),
        ("id TINYINT", "300\n", "id"),
        ("id STRING", b"\xff\xfe\n", "id"),
    ],
)
def test_csv_values_that_do_not_fit_name_the_column(
    tmp_path: Path, ddl: str, content: str | bytes, column: str
) -> None:
    with pytest.raises(SourceError, match=rf"source 's'.*f\.csv', column '{column}' cannot be read"):
        csv_rows(tmp_path, content, ddl)


@pytest.mark.parametrize(
    ("ddl", "content", "null_value", "values"),
    [
        ("s STRING", '""\nNA\n"NA"\n"x"\n', "", [None, "NA", "NA", "x"]),
        ("s STRING", '""\nNA\n"NA"\n"x"\n', "NA", ["", None, None, "x"]),
        ("s BINARY", '"é"\né\n""\n', "é", [None, None, b""]),
        ("s TIMESTAMP_NTZ", '"-"\n-\n2024-01-01\n', "-", [None, None, dt.datetime(2024, 1, 1)]),
        ("s INT", '""\n"1"\n', "", [None, 1]),
        ("s DATE", "NA\n2024-01-01\n", "NA", [None, dt.date(2024, 1, 1)]),
        ("s BOOLEAN", "tRue\nFALSe\ntrue\nFalse\n", "", [True, False, True, False]),
    ],
)
def test_csv_nulls_and_booleans_are_those_of_spark(
    tmp_path: Path, ddl: str, content: str, null_value: str, values: list[Any]
) -> None:
    options = {"nullValue": null_value} if null_value else {}
    assert [row[0] for row in csv_rows(tmp_path, content, ddl, **options)] == values


OPEN = [
    ("k INT, s STRING", '1,a\n2,"b\n3,c\n', {}),
    ("k INT, s STRING", 'k,s\n1,a\n2,"b\n3,c', {"header": "true"}),
    ("k INT, n INT", '1,2\n2,"3\n4,5\n', {}),
    ("k INT, t TIMESTAMP", '1,2024-01-01\n2,"2024-01-01\n', {}),
    ("k INT, s STRING", "1,a\n2,'é\n".encode("utf-16"), {"quote": "'", "encoding": "utf-16"}),
    ("s STRING", '"a\n', {}),
]


@pytest.mark.parametrize(("ddl", "content", "options"), OPEN)
def test_csv_quotes_that_are_never_closed_are_errors(
    tmp_path: Path, ddl: str, content: str | bytes, options: dict[str, str]
) -> None:
    """Or all rows behind the quote would be part of one value."""
    message = r"source 's'.*f\.csv' cannot be read: a quote is opened and never closed.*'quote'"
    with pytest.raises(SourceError, match=message):
        csv_rows(tmp_path, content, ddl, **options)
    source = create("s", "csv", {"path": str(tmp_path), "schema": ddl, **options})
    with pytest.raises(SourceError, match=message):
        source.latest(source.initial(), Limits(max_rows=1), MemoryLog())
    with pytest.raises(SourceError, match=message):
        all_rows(source, columns=[source.schema().names[0]])


MARKS = "\x1e\x1f\x1d\x1c"


@pytest.mark.parametrize("line", ["\x1eend of file", "\x1e", "\x1e" * 9, MARKS, "\x1f", "\x1e" * 70])
@pytest.mark.parametrize("block", [64, 1 << 20])
def test_no_csv_line_is_taken_for_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, block: int
) -> None:
    """The reader adds a line of its own: whatever a file has in it, every line of the file is a row or an error."""
    monkeypatch.setattr(csv_decoding, "BLOCK_BYTES", block)
    ddl = "s STRING, t STRING"
    assert csv_rows(tmp_path, f"a,b\n{line},c\nd,{line}\n{line},{line}", ddl) == [
        ("a", "b"), (line, "c"), ("d", line), (line, line),
    ]  # fmt: skip
    for wide in (f"{line},1,2", f"{line},,", f"{line}\x1e,,", f"{line},,,,,,,"):
        for content in (f"a,b\n{wide}\nc,d\n", f"a,b\n{wide}", f"{wide}\n" + "c,d\n" * 40, f"{wide}\n{wide}\n"):
            with pytest.raises(SourceError, match="Expected 2 columns, got"):
                csv_rows(tmp_path, content, ddl)
            with pytest.raises(SourceError, match=r"never closed|Expected 2 columns, got"):
                csv_rows(tmp_path, content + '\ne,"f\n', ddl)
    with pytest.raises(SourceError, match="never closed"):
        csv_rows(tmp_path, f'a,b\n{line},c\nd,"{line}\n', ddl)


@pytest.mark.parametrize("option", ["sep", "quote", "escape"])
@pytest.mark.parametrize("character", MARKS)
def test_csv_dialects_may_use_any_control_character(tmp_path: Path, option: str, character: str) -> None:
    sep = character if option == "sep" else ","
    quote = character if option == "quote" else '"'
    content = f"a{sep}{quote}b\nc{quote}\nd{sep}e\n"
    assert csv_rows(tmp_path, content, "s STRING, t STRING", **{option: character}) == [("a", "b\nc"), ("d", "e")]
    with pytest.raises(SourceError, match="never closed"):
        csv_rows(tmp_path, f"a{sep}b\nd{sep}{quote}e\n", "s STRING, t STRING", **{option: character})


def test_csv_files_may_end_in_any_way(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n", "\n\n\n"):
        for last in ('"b"', "b", '"b\n"', 'b"', '"b"""'):
            expected = [("a",), ({'"b"': "b", '"b\n"': "b\n", '"b"""': 'b"'}.get(last, last),)]
            assert csv_rows(tmp_path, f"a\n{last}{end}", "s STRING") == expected, (last, end)


def test_csv_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_decoding, "BLOCK_BYTES", 64)
    monkeypatch.setattr(decoded, "SMALL_ROWS", 1)
    lengths = [1, 20, 3, 1000, 5, 300, 1]
    content = "k,s\n" + "".join(f"{n},{'x' * n}\n" for n in lengths)
    got = csv_rows(tmp_path, content, "k INT, s STRING", header="true")
    assert [(k, len(s)) for k, s in got] == [(n, n) for n in lengths]
    monkeypatch.setattr(csv_decoding, "LARGEST_BLOCK_BYTES", 256)
    with pytest.raises(SourceError, match=r"f\.csv' cannot be read: a line is longer than"):
        csv_rows(tmp_path, content, "k INT, s STRING", header="true")


def test_csv_rows_of_the_wrong_width_are_errors(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"f\.csv' cannot be read.*Expected 2 columns, got 1"):
        csv_rows(tmp_path, "1,2\n3\n", "a INT, b INT")


def test_big_csv_in_ranges(tmp_path: Path) -> None:
    numbers = np.arange(400_000)
    text(
        tmp_path / "f.csv", "".join(f'{i},"quoted {i}, with\nbreak and some length to pass a block"\n' for i in numbers)
    )
    source, log = create("s", "csv", {"path": str(tmp_path), "schema": "id BIGINT, s STRING"}), MemoryLog()
    position, got = source.initial(), []
    while (end := source.latest(position, Limits(max_rows=150_000), log)) != position:
        for part in source.plan(position, end, log):
            batches = list(source.read(part, ["id"]))
            assert all(b.num_rows <= 262_144 for b in batches)
            got += [b.column(0).to_numpy() for b in batches]
        position = end
    assert np.array_equal(np.concatenate(got), numbers)


# --- json ------------------------------------------------------------------------------------------------------


def json_rows(tmp_path: Path, content: str | bytes, ddl: str, name: str = "f.json") -> list[dict[str, Any]]:
    text(tmp_path / name, content)
    return all_rows(create("s", "json", {"path": str(tmp_path / name), "schema": ddl}))


def test_json_types(tmp_path: Path) -> None:
    ddl = (
        "id BIGINT, f DOUBLE, ok BOOLEAN, d DECIMAL(10,2), s STRING, x BINARY, day DATE, t TIMESTAMP, "
        "l ARRAY<TIMESTAMP>, o STRUCT<a: INT, t: DATE, l: ARRAY<STRUCT<b: TIMESTAMP>>>"
    )
    row = {
        "id": 1, "f": 2, "ok": True, "d": 1.5, "s": "é", "x": "aGk=", "day": "2024-01-02", "t": "2024-01-02T03:04:05Z",
        "l": ["2024-01-02", None], "o": {"a": 1, "t": "2024-01-02", "l": [{"b": "2024-01-02T01:00:00+01:00"}]},
        "unexpected": {"deep": [1]},
    }  # fmt: skip
    day, midnight = dt.date(2024, 1, 2), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)
    got = json_rows(tmp_path, json.dumps(row) + '\n\n{"o": null, "l": []}\n{}', ddl)
    none = dict.fromkeys(("id", "f", "ok", "d", "s", "x", "day", "t", "l", "o"))
    assert got == [
        {
            "id": 1, "f": 2.0, "ok": True, "d": Decimal("1.50"), "s": "é", "x": b"hi", "day": day,
            "t": dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "l": [midnight, None],
            "o": {"a": 1, "t": day, "l": [{"b": midnight}]},
        },
        {**none, "l": []},
        none,
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["", "\n\n", " \t\r\n ", '{"k": 0}\n'])
@pytest.mark.parametrize("after", ["", "\n", '\n{"k": 1}\n', "\nnull\nnull", " \r\nnull\r\n"])
def test_a_json_line_that_is_null_is_a_row_of_nulls(tmp_path: Path, before: str, after: str) -> None:
    got = json_rows(tmp_path, f"{before}null{after}", "k BIGINT, s STRING")
    rows = [json.loads(line) or {} for line in f"{before}null{after}".split("\n") if line.strip()]
    assert got == [{"k": row.get("k"), "s": None} for row in rows]


def test_json_null_may_begin_any_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow ends the process when null is the first value that it sees."""
    monkeypatch.setattr(json_decoding, "CHUNK_BYTES", 7)
    got = json_rows(tmp_path, 'null\n{"k": 1}\nnull\n\nnull\n{"k": 2}\n', "k BIGINT")
    assert [row["k"] for row in got] == [None, 1, None, None, 2]
    with pytest.raises(SourceError, match=r"f\.json', column 'k' cannot be read"):
        json_rows(tmp_path, 'null\n{"k": "x"}', "k BIGINT")


@pytest.mark.parametrize("line", [b'{"s": "a%sb"}', b'{"s%s": "a"}', b'{"s": "a", "z": ["%s"]}', b'{"s": "a"} %s'])
@pytest.mark.parametrize(
    "bytes", [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"]
)
def test_json_that_is_not_utf8_is_an_error_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: bytes, bytes: bytes
) -> None:
    """Arrow would take it for a STRING, which nobody downstream can read."""
    monkeypatch.setattr(json_decoding, "CHUNK_BYTES", 64)
    before = b'{"s": "caf\xc3\xa9"}\n\n' * 9
    for columns in (["s"], []):
        text(tmp_path / "f.json", before + line % bytes + b"\n{}")
        source = create("s", "json", {"path": str(tmp_path / "f.json"), "schema": "s STRING"})
        with pytest.raises(SourceError, match=r"f\.json' cannot be read: line 19 is not UTF-8: byte \d+ is 0x"):
            all_rows(source, columns=columns)


def test_json_lines_longer_than_a_chunk(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "s": "x" * (9_000_000 if i == 3 else 10)}) for i in range(6)]
    got = json_rows(tmp_path, gzip.compress("\r\n".join(lines).encode()), "id BIGINT, s STRING", "f.json.gz")
    assert [(r["id"], len(r["s"])) for r in got] == [(i, 9_000_000 if i == 3 else 10) for i in range(6)]


@pytest.mark.parametrize("end", ["gz", "zst"])
def test_compressed_text_may_have_several_members(tmp_path: Path, end: str) -> None:
    """As when compressed files are put one behind the other."""
    codec = {"gz": gzip.compress, "zst": lambda text: pa.compress(text, "zstd", asbytes=True)}[end]
    lines = codec(b'{"id": 1}\n{"id": 2}\n') + codec(b'{"id": 3}\n')
    assert [row["id"] for row in json_rows(tmp_path, lines, "id BIGINT", f"f.json.{end}")] == [1, 2, 3]
    assert csv_rows(tmp_path, codec(b"1\n2\n") + codec(b"3\n"), "id BIGINT", f"f.csv.{end}") == [(1,), (2,), (3,)]


def test_json_errors_name_the_column(tmp_path: Path) -> None:
    for content, column in (
        ('{"a": 1, "id": "x"}', "id"),
        ('{"a": 1, "id": 1.5}', "id"),
        ('{"id": 1, "t": "yesterday"}', "t"),
        ('{"id": 1, "x": "%%"}', "x"),
    ):
        with pytest.raises(SourceError, match=rf"source 's'.*f\.json', column '{column}' cannot be read"):
            json_rows(tmp_path, content, "a INT, id BIGINT, t TIMESTAMP, x BINARY")
    with pytest.raises(SourceError, match=r"source 's'.*f\.json' cannot be read"):
        json_rows(tmp_path, '{"id": 1}\n{"id": \n', "id BIGINT")


def test_batches_are_neither_tiny_nor_huge(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int64()})
    with ipc.new_file(tmp_path / "f", schema) as writer:
        for size in (10,) * 1000 + (500_000,):
            writer.write_batch(pa.record_batch([pa.array(np.zeros(size, np.int64))], schema=schema))
    source, log = create("s", "arrow", {"path": str(tmp_path)}), MemoryLog()
    start = source.initial()
    (part,) = source.plan(start, source.latest(start, Limits(), log), log)
    sizes = [b.num_rows for b in source.read(part, ["id"])]
    assert sum(sizes) == 510_000
    assert len(sizes) <= 6
    assert max(sizes) <= 131_072


def test_wide_rows_are_not_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the offsets of their strings and lists would not reach, in files that are fine."""
    monkeypatch.setattr(decoded, "SMALL_BYTES", 1000)
    schema = pa.schema({"s": pa.string()})
    written = [["x" * 400] * n for n in (1, 1, 1, 5, 1, 1)]
    with ipc.new_file(tmp_path / "f", schema) as writer:
        for texts in written:
            writer.write_batch(pa.record_batch([pa.array(texts)], schema=schema))
    source, log = create("s", "arrow", {"path": str(tmp_path)}), MemoryLog()
    start = source.initial()
    (part,) = source.plan(start, source.latest(start, Limits(), log), log)
    assert [b.num_rows for b in source.read(part, ["s"])] == [2, 1, 5, 2]
