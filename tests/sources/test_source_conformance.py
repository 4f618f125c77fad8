"""What every source in the registry must do. A new format needs a case in `CASES`, or the first test fails."""

from __future__ import annotations

import json
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from spark_mjoin.errors import OptionError
from spark_mjoin.schema import canonical_schema
from spark_mjoin.sources import REGISTRY, create, formats, limits
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Counting, Limits, Source, Surveyed

SIZES = (7, 1, 0, 20, 3, 12)
DDL = "id BIGINT, name STRING"


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=5)


def write_arrow(table: pa.Table, path: Path) -> None:
    with ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_csv(table: pa.Table, path: Path) -> None:
    pacsv.write_csv(table, path)


def write_json(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()) or "\n")


def files(write: Callable[[pa.Table, Path], None], suffix: str, **options: str) -> Callable[[Path], dict[str, str]]:
    def build(tmp_path: Path) -> dict[str, str]:
        at = 0
        for number, size in enumerate(SIZES):
            ids = range(at, at + size)
            table = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{i}" for i in ids], pa.string())})
            path = tmp_path / f"f{number}.{suffix}"
            write(table, path)
            os.utime(path, ns=(time.time_ns(), 1_700_000_000_000_000_000 + number * 1_000_000_000))
            at += size
        return {"path": str(tmp_path), **options}

    return build


CASES: dict[str, Callable[[Path], dict[str, str]]] = {
    "parquet": files(write_parquet, "parquet"),
    "arrow": files(write_arrow, "arrow", schema=DDL),
    "csv": files(write_csv, "csv", schema=DDL, header="true"),
    "json": files(write_json, "json", schema=DDL),
    "wisconsin": lambda _: {"rows": "43", "cardinality": "10"},
}


@pytest.fixture(params=sorted(CASES))
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    return create("a", request.param, CASES[request.param](tmp_path))


def rows(source: Source, start: Any, end: Any, log: MemoryLog) -> list[tuple[Any, ...]]:
    columns = source.schema().names
    found: list[tuple[Any, ...]] = []
    for part in source.plan(start, end, log):
        for batch in source.read(json.loads(json.dumps(part)), columns):
            assert batch.schema == source.schema()
            found.extend(tuple(row.values()) for row in batch.to_pylist())
    return found


def walk(source: Source, limit: Limits, log: MemoryLog, start: Any) -> Iterator[tuple[Any, Any]]:
    while (end := source.latest(start, limit, log)) != start:
        yield start, end
        start = end


def test_every_format_has_a_case() -> None:
    # Tests and benchmarks add sources of their own.
    own = {name for name, where in REGISTRY.items() if where.startswith("spark_mjoin.")}
    assert set(CASES) == own
    assert formats() == sorted(REGISTRY)


def test_schema_is_canonical(source: Source) -> None:
    assert source.schema().equals(canonical_schema(source.schema()), check_metadata=True)


def test_everything_is_there_once_and_then_nothing(source: Source) -> None:
    log = MemoryLog()
    start = source.initial()
    end = source.latest(start, Limits(), log)
    assert len(rows(source, start, end, log)) == 43
    assert source.latest(end, Limits(), log) == end
    assert source.plan(end, end, log) == []


@pytest.mark.parametrize("wanted", [1, 10, 1000])
def test_a_survey_gives_the_first_rows_and_not_many_more(source: Source, wanted: int) -> None:
    if not isinstance(source, Surveyed):
        pytest.skip("it is read from its beginning")
    log = MemoryLog()
    survey = source.survey(wanted, log)
    ids = [
        value
        for part in survey.ranges
        for batch in source.read(json.loads(json.dumps(part)), source.schema().names[:1])
        for value in batch.column(0).to_pylist()
    ]
    start = source.initial()
    every = rows(source, start, source.latest(start, Limits(), log), log)
    assert ids[:wanted] == [row[0] for row in every[:wanted]]
    assert all(batch.num_rows <= wanted for part in survey.ranges for batch in source.read(part, ()))
    assert survey.rows == pytest.approx(43, rel=0.1) and survey.rows_per_second is None


def test_how_far_behind(source: Source) -> None:
    log = MemoryLog()
    start = source.initial()
    some = source.latest(start, Limits(max_rows=17), log)
    assert source.behind(start, log) >= source.behind(some, log) > 0
    all_of_it = source.latest(some, Limits(), log)
    assert source.behind(all_of_it, log) == 0
    source.freeze(log)
    assert source.behind(start, log) >= source.behind(some, log) > source.behind(all_of_it, log) == 0


def test_plan_and_read_are_pure(source: Source) -> None:
    log = MemoryLog()
    start = source.initial()
    end = source.latest(start, Limits(max_rows=17), log)
    again = pickle.loads(pickle.dumps(source))
    assert source.plan(start, end, log) == again.plan(start, end, log)
    first = rows(source, start, end, log)
    assert first == rows(source, start, end, log) == rows(again, start, end, log)
    assert len(first) == 17


def test_positions_are_json_and_small(source: Source) -> None:
    log = MemoryLog()
    for _, end in walk(source, Limits(max_rows=5), log, source.initial()):
        assert json.loads(json.dumps(end)) == end
        assert len(json.dumps(end)) < 100


@pytest.mark.parametrize("step", [1, 2, 7, 8, 42, 43, 1000])
def test_row_limits_are_exact_and_lose_nothing(source: Source, step: int) -> None:
    log = MemoryLog()
    begin = source.initial()
    whole = rows(source, begin, source.latest(begin, Limits(), log), log)
    log = MemoryLog()
    parts = [rows(source, s, e, log) for s, e in walk(source, Limits(max_rows=step), log, begin)]
    assert [row for part in parts for row in part] == whole
    full = [len(p) for p in parts if p]
    assert all(n == step for n in full[:-1])
    assert full[-1] <= step


@pytest.mark.parametrize("step", [None, 1, 7, 42])
def test_a_range_has_as_many_rows_as_are_counted(source: Source, step: int | None) -> None:
    assert isinstance(source, Counting)
    log, total = MemoryLog(), 0
    for start, end in walk(source, Limits(max_rows=step), log, source.initial()):
        for part in source.plan(start, end, log):
            read = sum(batch.num_rows for batch in source.read(part, source.schema().names[:1]))
            assert pickle.loads(pickle.dumps(source)).count(part) == read
            total += read
    assert total == 43


def test_any_sequence_of_limits_and_crashes_gives_the_same_rows(source: Source) -> None:
    begin = source.initial()
    log = MemoryLog()
    whole = rows(source, begin, source.latest(begin, Limits(), log), log)
    for seed in range(10):
        draw = random.Random(seed)
        log, position, got = MemoryLog(), begin, []
        for _ in range(200):
            limit = Limits(max_rows=draw.choice([None, 1, 3, 9]), max_files=draw.choice([None, 1, 2]))
            end = source.latest(position, limit, log)
            if draw.random() < 0.3:  # a crash after latest: what was logged stays, the position is lost
                source = pickle.loads(pickle.dumps(source))
                continue
            got += rows(source, position, end, log)
            position = json.loads(json.dumps(end))
        assert got == whole, f"seed {seed}"


def test_resume_from_any_position(source: Source) -> None:
    log = MemoryLog()
    begin = source.initial()
    steps = list(walk(source, Limits(max_rows=4), log, begin))
    last = steps[-1][1]
    whole = rows(source, begin, last, log)
    for start, _ in steps:
        fresh = pickle.loads(pickle.dumps(source))
        consumed = rows(fresh, begin, start, log)
        assert consumed + rows(fresh, start, fresh.latest(start, Limits(), log), log) == whole


def test_freeze_takes_what_is_there(source: Source) -> None:
    log = MemoryLog()
    source.freeze(log)
    begin = source.initial()
    parts = [rows(source, s, e, log) for s, e in walk(source, Limits(max_rows=10), log, begin)]
    assert sum(map(len, parts)) == 43


def test_columns_come_in_the_order_asked_for_and_may_be_none(source: Source) -> None:
    log = MemoryLog()
    start = source.initial()
    ranges = source.plan(start, source.latest(start, Limits(max_rows=30), log), log)
    names = source.schema().names[1::-1]
    assert all(b.schema.names == names for r in ranges for b in source.read(r, names))
    none = [b for r in ranges for b in source.read(r, [])]
    assert sum(b.num_rows for b in none) == 30
    assert all(b.num_columns == 0 for b in none)


# --- options ---------------------------------------------------------------------------------------------------


def test_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"source\.o\.format.*Did you mean 'parquet'.*arrow, csv"):
        create("o", "parquett", {})


def test_unknown_option_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"source\.o\.failOnDataLos'.*Did you mean 'failOnDataLoss'"):
        create("o", "csv", {"path": "/tmp", "failOnDataLos": "true"})


def test_options_are_found_in_any_case(tmp_path: Path) -> None:
    write_csv(pa.table({"id": [1], "name": ["x"]}), tmp_path / "a.csv")
    source = create("o", "CSV", {"PATH": str(tmp_path), "schema": DDL, "HEADER": "TRUE", "pathglobfilter": "*.csv"})
    log = MemoryLog()
    source.freeze(log)
    assert rows(source, source.initial(), source.latest(source.initial(), Limits(), log), log) == [(1, "x")]


def test_limits_are_read() -> None:
    assert limits("o", {}) == Limits()
    assert limits("o", {"maxrowspertrigger": "5", "maxFilesPerTrigger": "2", "maxBytesPerTrigger": "64m"}) == Limits(
        5, 2, 64 << 20
    )


@pytest.mark.parametrize(
    "options", [{"maxRowsPerTrigger": "0"}, {"maxFilesPerTrigger": "x"}, {"maxBytesPerTrigger": "64q"}]
)
def test_bad_limits_name_the_option(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=rf"source\.o\.{next(iter(options))}"):
        limits("o", options)
