"""Arrivals in runs: the same answers as one number per row gives, in memory, on disk and after a restart."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin import flush
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import overflow
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.loading import load
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.model import JoinSpec
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.tree import layout
from spark_mjoin.state import segments as stores
from spark_mjoin.state.arrivals import Arrivals, median
from spark_mjoin.state.buckets import of_hashes
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.segments import FAN_OUT
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.table import ARRIVED, Table, index_bytes

QUERY = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
INTEGERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
STRINGS = pa.schema([("k", pa.string()), ("v", pa.list_(pa.int64()))])
SCHEMAS = pytest.mark.parametrize("schema", [INTEGERS, STRINGS], ids=["integers", "strings and lists"])


def planned(schema: pa.Schema) -> JoinSpec:
    options = Options.parse({"query": QUERY, **{f"source.{name}.format": "arrow" for name in "abc"}})
    return plan_join(options, [schema] * 3)


def some_rows(schema: pa.Schema, seed: int, count: int, keys: int = 50) -> pa.RecordBatch:
    dice = np.random.default_rng(seed)
    k = dice.integers(0, keys, count)
    v = pa.array(np.arange(count) + 1000 * seed)
    if schema is STRINGS:
        lists = pa.ListArray.from_arrays(pa.array(np.arange(count + 1), pa.int32()), v)
        return pa.RecordBatch.from_arrays([pa.array([f"key {n}" for n in k]), lists], schema=schema)
    return pa.RecordBatch.from_arrays([pa.array(k), v], schema=schema)


# --- runs ----------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("together"), st.integers(0, 9), st.integers(0, 6)),
        st.tuples(st.just("each"), st.lists(st.integers(0, 9), max_size=8)),
        st.tuples(st.just("keep"), st.integers(0, 2**32)),
        st.tuples(st.just("cut"), st.integers(0, 12)),
    ),
    max_size=12,
)


def after(steps: list[tuple]) -> tuple[Arrivals, list[int]]:
    """Arrivals, and the same with one number for each row."""
    runs, plain = Arrivals(), list[int]()
    for what, *given_ in steps:
        if what == "together":
            event, count = given_
            runs.append(event, count)
            plain += [event] * count
        elif what == "each":
            runs.append(np.array(given_[0], np.int32), len(given_[0]))
            plain += given_[0]
        elif what == "keep":
            mask = np.random.default_rng(given_[0]).random(len(plain)) < 0.6
            runs.keep(mask)
            plain = [n for n, kept in zip(plain, mask, strict=True) if kept]
        else:
            runs.cut(given_[0])
            plain = plain[: given_[0]]
    return runs, plain


def test_rows_that_continue_the_last_run_and_then_go_back_are_not_in_order() -> None:
    runs, plain = after([("together", 1, 1), ("each", [1, 0])])
    assert plain == [1, 1, 0] and not runs.in_order
    assert runs.since(1, np.array([0, 1, 2], np.int32)).tolist() == [True, True, False]


@given(STEPS, st.data())
def differential_runs_say_what_one_number_per_row_says(steps: list[tuple], data: st.DataObject) -> None:
    runs, plain = after(steps)
    numbers = np.array(plain, np.int32)
    assert runs.rows == numbers.size
    assert runs.runs == sum(1 for n in range(len(plain)) if n == 0 or plain[n] != plain[n - 1])
    low, high = sorted(data.draw(st.lists(st.integers(0, len(plain)), min_size=2, max_size=2)))
    assert runs.between(low, high).tolist() == plain[low:high]
    rows = np.array(data.draw(st.lists(st.integers(0, max(len(plain) - 1, 0)), max_size=20 if plain else 0)), np.int32)
    assert runs.of(rows).tolist() == numbers[rows].tolist()
    event = data.draw(st.integers(0, 10))
    assert runs.since(event, rows).tolist() == (numbers[rows] >= event).tolist()
    assert runs.spread(lambda events: events + 1).tolist() == (numbers + 1).tolist()
    events, counts = runs.by_age()
    assert np.repeat(events, counts).tolist() == sorted(plain)
    if plain != sorted(plain):
        assert not runs.in_order


@given(STEPS, STEPS)
def differential_medians(first: list[tuple], second: list[tuple]) -> None:
    (one, of_one), (other, of_other) = after(first), after(second)
    together = [*of_one, *of_other]
    assert median([one, other]) == (int(np.median(together)) if together else 0)


def test_few_of_many_rows_are_looked_up() -> None:
    """The other way to answer: without a number for every row."""
    runs = Arrivals()
    for event in range(100):
        runs.append(3 * event, 100)
    rows = np.array([0, 99, 100, 5050, 9999], np.int32)
    assert runs.of(rows).tolist() == [0, 0, 3, 150, 297]


def test_in_order_again_when_what_was_out_of_order_is_gone() -> None:
    runs = Arrivals()
    runs.append(np.array([1, 5, 2, 3], np.int32), 4)
    assert not runs.in_order
    runs.keep(np.array([True, False, True, True]))
    assert runs.in_order and runs.runs == 3


# --- tables --------------------------------------------------------------------------------------------------------


def contents(table: Table) -> list[tuple]:
    """All rows with arrival and bucket, in order."""
    batch = table.arrow(0, table.rows)
    assert batch.column(ARRIVED).to_pylist() == table.arrived.tolist()
    columns = [column.to_pylist() for column in batch.columns]
    return list(zip(*columns, table.buckets.tolist(), strict=True))


def filled(schema: pa.Schema, arrivals: list[int], ordered: bool) -> Table:
    spec = planned(schema)
    table = Table(spec.inputs[0], spec.inputs[0].keys[0][0])
    for number, event in enumerate(arrivals):
        batch = some_rows(schema, number, 7)
        stored = [batch.column(column.name) for column in spec.inputs[0].stored]
        table.append(stored, event if ordered else np.full(7, event, np.int32))
    return table


@SCHEMAS
@pytest.mark.parametrize("hash_bits", ["64", "2"])
def test_buckets_follow_from_keys(schema: pa.Schema, hash_bits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MJOIN_HASH_BITS", hash_bits)
    table = filled(schema, [1, 4, 6], ordered=True)
    expected = of_hashes(hash_array(table.arrow(0, table.rows).column(table.bucket_key)))
    assert len(set(expected.tolist())) > 5
    assert np.array_equal(table.buckets, expected)
    assert np.array_equal(table.buckets_between(5, 16), expected[5:16])
    some = np.array([20, 3, 3, 0], np.int32)
    assert np.array_equal(table.buckets_of(some), expected[some])
    mask = np.arange(table.rows) % 3 > 0
    table.keep(mask)
    assert np.array_equal(table.buckets, expected[mask])
    assert np.array_equal(table.buckets_of(some[1:] // 2), expected[mask][some[1:] // 2])


@SCHEMAS
def test_the_last_rows_are_cut_and_come_again(schema: pa.Schema) -> None:
    table = filled(schema, [1, 4, 6], ordered=True)
    before = contents(table)
    mask = np.arange(11) % 2 == 0
    table.keep_of_last(10, mask)
    kept = [row for row, stays in zip(before[10:], mask, strict=True) if stays]
    assert contents(table) == [*before[:10], *kept]
    assert table.arrivals.runs == 3


@SCHEMAS
def test_rows_are_put_in_order_of_arrival(schema: pa.Schema) -> None:
    table = filled(schema, [2, 9, 4, 4, 7, 3], ordered=False)
    key = table.spec.keys[0][0]
    table.index((key,))
    before = contents(table)
    table.put_in_order()
    ordinal = len(before[0]) - 2
    assert contents(table) == sorted(before, key=lambda row: row[ordinal])
    assert table.arrivals.in_order and table.arrivals.runs == 5
    found = table.index((key,))
    assert found.rows == table.rows
    assert np.array_equal(table.buckets, of_hashes(hash_array(table.arrow(0, table.rows).column(table.bucket_key))))


# --- states --------------------------------------------------------------------------------------------------------


class Driven:
    """A star whose state is committed after every arrival, and evicts rows now and then."""

    def __init__(self, schema: pa.Schema, directory: Path, compression: str | None = None) -> None:
        self.spec, self.tree = planned(schema), (0, 1, 2)
        self.schema, self.directory, self.compression = schema, directory, compression
        self.state = PartitionState.empty(self.tree, layout(self.spec, self.tree), {}, tracked=True)
        self.store, self.version = StateStore(str(directory), 0, compression), 0

    def step(self, rows: int, policy: str | None = None) -> None:
        self.version += 1
        counts = BatchCounts([0] * 3)
        plan = Plan(self.tree, overflow=Overflow(None, "adaptive", blocking_rows=0, fuel_bytes=1))
        pipeline = Pipeline(self.state, plan, self.store.draft(self.version, "x"), counts, lambda: 0.0)
        for input in range(3):
            batch = some_rows(self.schema, 3 * self.version + input, rows, keys=50 if rows < 100 else 1 << 40)
            for _ in pipeline.arrivals([Piece.whole(input, batch)]):
                pass
        if policy is not None:
            limit = Overflow(self.state.nbytes() * 4 // 5, policy, blocking_rows=0, fuel_bytes=1)
            overflow.make_room(self.state, limit, self.store.draft(self.version, "x"), counts)
        assert self.store.commit(self.state, self.version, {}, counts, "x")

    def loaded(self) -> PartitionState:
        fresh = StateStore(str(self.directory), 0, self.compression)
        return load(fresh, self.spec, self.tree, self.version, {}, Overflow(None, "adaptive", 0, 1))

    def segments(self) -> Iterator[tuple[str, pa.ipc.RecordBatchFileReader]]:
        for segment in self.state.root.segments:
            yield segment.name, pa.ipc.open_file(self.store.directory.map(segment.name))


@SCHEMAS
@pytest.mark.parametrize("run_rows", [1, 1 << 30], ids=["in runs", "row by row"])
@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
def differential_a_loaded_state_is_as_it_was_left(
    schema: pa.Schema, run_rows: int, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and runs; from segments in order of arrival, clustered ones and merged ones.

    Rows are in order of arrival again; which of those that arrived together comes first is not known any more.
    """
    monkeypatch.setattr(stores, "RUN_ROWS", run_rows)
    driven = Driven(schema, tmp_path)
    clustered = merged = left = 0
    for number in range(3 * FAN_OUT):
        driven.step(40, policy if number > FAN_OUT and number % 3 == 0 else None)
        loaded, state = driven.loaded().root, driven.state.root
        for ours, theirs in zip(state.tables, loaded.tables, strict=True):
            assert sorted(map(repr, contents(theirs))) == sorted(map(repr, contents(ours)))
            assert np.array_equal(theirs.arrived, ours.arrived)
            assert theirs.arrivals.in_order and theirs.arrivals.runs == ours.arrivals.runs
            assert (theirs.nbytes(), theirs.row_bytes()) == (ours.nbytes(), ours.row_bytes())
        clustered += any(s.clusters for s in state.segments)
        merged += any(s.clusters and s.level for s in state.segments)
        left += state.residency.overflowed()
    assert clustered and merged and left


@pytest.mark.parametrize(("clustered", "compression"), [(False, None), (True, None), (False, "zstd"), (True, "zstd")])
def test_a_row_has_no_bytes_for_its_bucket_and_its_arrival(
    clustered: bool, compression: str | None, tmp_path: Path
) -> None:
    """Two words of a row are sixteen bytes, in memory and, apart from what a file has anyway, on disk."""
    driven = Driven(INTEGERS, tmp_path, compression)
    if clustered:
        driven.step(40)
        driven.step(40, "largest")
    driven.step(64 * 600)
    for table in driven.state.root.tables:
        assert table.row_bytes() == 16.0
        assert table.nbytes() == 16 * table.rows + index_bytes(table.rows, hashed=False)
        assert table.arrivals.runs <= 3
    for segment in driven.state.root.segments:
        if segment.end - segment.start == 64 * 600:
            assert (segment.clusters is not None) == clustered
            assert segment.bytes < 17 * (segment.end - segment.start)


def test_arrivals_of_a_part_of_a_record_batch_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has some rows of a merged segment reads the others from the middle of a run."""
    monkeypatch.setattr(stores, "RUN_ROWS", 1)
    driven = Driven(INTEGERS, tmp_path)
    for _ in range(FAN_OUT - 3):
        driven.step(30)
    behind = driven.loaded()
    for _ in range(FAN_OUT):
        driven.step(30)
    assert any(s.level for s in driven.state.root.segments)
    assert driven.store.catch_up(behind, driven.version)
    for ours, theirs in zip(driven.state.root.tables, behind.root.tables, strict=True):
        assert contents(theirs) == contents(ours)


def test_which_files_have_runs(tmp_path: Path) -> None:
    """Those where they are smaller: not with a codec, nor in record batches of a few rows."""

    def in_runs(name: str, rows: int, policy: str | None, compression: str | None = None) -> set[bool]:
        driven = Driven(INTEGERS, tmp_path / name, compression)
        driven.step(40)
        driven.step(40, policy)
        driven.step(rows)
        types = [file.schema.field(ARRIVED).type for name, file in driven.segments() if "000003" in name]
        assert len(types) == 3
        return {pa.types.is_run_end_encoded(of) for of in types}

    assert in_runs("plain", 100, None) == {True}
    assert in_runs("tiny", 10, None) == {False}
    assert in_runs("compressed", 100, None, "lz4") == {False}
    assert in_runs("clustered", 64 * 64, "largest") == {True}
    assert in_runs("clustered tiny", 64 * 32, "largest") == {False}


def test_rows_that_left_are_known_by_the_runs_of_their_bucket(tmp_path: Path) -> None:
    """`spread` over runs and a look at every row give the same departures."""
    driven = Driven(INTEGERS, tmp_path)
    for number in range(10):
        driven.step(50, "coordinated" if number % 3 == 2 else None)
    root = driven.state.root
    found = set[int]()
    for segment in root.segments:
        for bucket, batch in driven.store.segments.batches(segment) if segment.clusters else ():
            runs = Arrivals()
            runs.append(stores.arrived_of(batch), batch.num_rows)
            own = np.full(batch.num_rows, bucket, np.uint8)
            each = root.residency.flushed(segment.input, own, stores.arrived_of(batch))
            by_run = runs.spread(lambda a, i=segment.input, b=own: root.residency.flushed(i, b[: a.size], a))
            assert np.array_equal(each, by_run)
            found |= set(each.tolist())
    assert len(found) > 2 and NEVER in found
