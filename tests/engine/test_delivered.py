"""Rows on their way to tasks: each comes to the owner of its slot, in an order that depends on nothing else."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.loading import load
from spark_mjoin.engine import delivered, exchange
from spark_mjoin.engine.delivered import Delivered, row_hashes
from spark_mjoin.engine.exchange import Sender, unpacked
from spark_mjoin.errors import StateError
from spark_mjoin.model import JoinSpec, Room
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.tree import single
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes
from spark_mjoin.task import PartitionTask, Step
from tests.examples import examples
from tests.harness import scripted

QUERY = "SELECT a.k, a.s, b.n FROM a JOIN b ON a.k = b.k"


def rows_of(keys: list[int | None], first: int = 0) -> pa.Table:
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "s": pa.array([f"row {first + i}" for i in range(len(keys))]),
            "over": pa.array([False] * len(keys)),
        }
    )


def spec_of(table: pa.Table, **options: str) -> JoinSpec:
    other = pa.table({"k": pa.array([1], pa.int64()), "n": pa.array([1], pa.int64())})
    return load(scripted({"a": [table], "b": [other]}, QUERY, **options))[0]


def sent(spec: JoinSpec, table: pa.Table, partitions: int, **more: Any) -> list[pa.RecordBatch]:
    """Parcels, each in a batch of its own."""
    columns = table.select(list(spec.inputs[0].columns))
    batches = Sender(spec, 0, Routing(partitions), **more).parcels(columns.to_batches(max_chunksize=7))
    return [batch.slice(number, 1) for batch in batches for number in range(batch.num_rows)]


def task_of(spec: JoinSpec, partition: int, partitions: int) -> PartitionTask:
    plan = Plan(single(2), routing=Routing(partitions))
    return PartitionTask(spec, partition, Step(0, 1, plan), {}, {}, {})


# --- sending ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.none(), st.integers(-50, 50)), max_size=60), st.sampled_from([1, 2, 5, 64]))
def test_a_row_comes_to_the_owner_of_its_slot_once(keys: list[int | None], partitions: int) -> None:
    spec, routing = spec_of(rows_of([1])), Routing(partitions)
    found = Counter[tuple[int, str]]()
    for parcel in sent(spec, rows_of(keys), partitions):
        ((number, rows),) = unpacked([parcel], spec)
        assert number == 0
        assert routing.slots(parcel["target"][0].as_py()).have(of_hashes(hash_array(rows["k"]))).all()
        found.update(zip(rows["k"].to_pylist(), rows["s"].to_pylist(), strict=True))
    assert found == Counter((key, f"row {i}") for i, key in enumerate(keys) if key is not None)


def test_punctuations_come_to_all_and_a_whole_input_too() -> None:
    table = rows_of([1, 2, 3]).set_column(2, "over", pa.array([False, True, False]))
    spec = spec_of(table, **{"source.a.punctuation": "over"})
    seen = Counter(
        (p["target"][0].as_py(), k)
        for p in sent(spec, table, 3)
        for _, r in unpacked([p], spec)
        for k in r["k"].to_pylist()
    )
    assert {target for target, key in seen if key == 2} == {0, 1, 2} and sum(k != 2 for _, k in seen.elements()) == 2
    whole = sent(spec, table, 3, whole=True)
    assert [rows["k"].to_pylist() for _, rows in unpacked(whole, spec)] == [[1, 2, 3]] * 3


def test_the_event_time_of_a_row_without_a_key_counts() -> None:
    timed = {"source.a.timestamp": "at", "source.b.timestamp": "at", "window": "1 minute"}
    timed |= {f"source.{alias}.watermark": "1 minute" for alias in "ab"}
    at = pa.array([1, 2], pa.timestamp("us", "UTC"))
    table = pa.table(
        {"k": pa.array([None, 5], pa.int64()), "s": ["x", "y"], "n": pa.array([1, 2], pa.int64()), "at": at}
    )
    spec = load(scripted({"a": [table], "b": [table]}, QUERY, **timed))[0]
    keys = [(p["target"][0].as_py(), r["k"].to_pylist()) for p in sent(spec, table, 2) for _, r in unpacked([p], spec)]
    assert (0, [None]) in keys and len(keys) == 2


def test_large_parcels_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PARCEL_BYTES", 200)
    spec = spec_of(rows_of([1]))
    parcels = sent(spec, rows_of([1] * 100), 2)
    assert len(parcels) > 5 and sum(rows.num_rows for _, rows in unpacked(parcels, spec)) == 100


def test_parcels_travel_together_until_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, table = spec_of(rows_of([1])), rows_of(list(range(200)))
    columns = table.select(list(spec.inputs[0].columns)).to_batches()
    (together,) = Sender(spec, 0, Routing(16)).parcels(columns)
    assert sorted(together["target"].to_pylist()) == list(range(16))
    monkeypatch.setattr(exchange, "SENT_TOGETHER_BYTES", 1)
    assert [batch.num_rows for batch in Sender(spec, 0, Routing(16)).parcels(columns)] == [1] * 16


def test_senders_keep_nothing_of_what_they_have_sent() -> None:
    """A worker sends for days."""
    spec, table = spec_of(rows_of([1])), rows_of(list(range(50_000)))
    columns = table.select(list(spec.inputs[0].columns)).to_batches()
    size, before = table.nbytes, pa.total_allocated_bytes()
    for _ in range(20):
        for _ in Sender(spec, 0, Routing(4)).parcels(columns):
            continue
    assert pa.total_allocated_bytes() - before < size


# --- the order -------------------------------------------------------------------------------------------------------


def in_order(spec: JoinSpec, parcels: list[pa.RecordBatch], directory: Path) -> list[Any]:
    feed = Delivered(task_of(spec, 0, 1), parcels, directory)
    pieces = list(feed.read(0, 10))
    numbers = [n for piece in pieces for n in piece.data_numbers().tolist()]
    assert numbers == list(range(10, 10 + feed.count(0)))
    return [row for piece in pieces for row in piece.rows.to_pylist()]


@examples(60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.randoms(use_true_random=False), st.booleans())
def test_the_order_does_not_depend_on_how_rows_came(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], chance: random.Random, spools: bool
) -> None:
    """Cut and shuffled otherwise, and with files in between or without: the same rows in the same order."""
    spec, table = spec_of(rows_of([1])), rows_of(keys)
    first = in_order(spec, sent(spec, table, 1), tmp_path_factory.mktemp("one"))
    mixed = table.take(chance.sample(range(len(keys)), len(keys)))
    with pytest.MonkeyPatch.context() as patched:
        if spools:
            patched.setattr(delivered, "SPOOL_BYTES", 100)
        parcels = [p for start in range(0, len(keys), 9) for p in sent(spec, mixed.slice(start, 9), 1)]
        chance.shuffle(parcels)
        assert in_order(spec, parcels, tmp_path_factory.mktemp("other")) == first
    assert Counter(row["s"] for row in first) == Counter(table["s"].to_pylist())


@examples(40)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.randoms(use_true_random=False), st.booleans())
def test_what_was_brought_is_known_by_its_rows_alone(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], chance: random.Random, spools: bool
) -> None:
    """Not by their order, or by files in between. A row more or another row is noticed, and so is a punctuation."""
    table = rows_of(keys).set_column(2, "over", pa.array([i % 3 == 2 for i in range(len(keys))]))
    spec = spec_of(table, **{"source.a.punctuation": "over"})

    def brought(some: pa.Table) -> Any:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(delivered, "SPOOL_BYTES", 100 if spools else 1 << 20)
            return Delivered(task_of(spec, 0, 1), sent(spec, some, 1), tmp_path_factory.mktemp("some")).brought()

    first = brought(table)
    assert first == brought(table.take(chance.sample(range(len(keys)), len(keys))))
    assert first[0][0] == len(keys) and first[1] == (0, 0)
    chosen = chance.randrange(len(keys))
    assert first != brought(pa.concat_tables([table, table.slice(chosen, 1)]))
    others = [*keys[:chosen], keys[chosen] + 1, *keys[chosen + 1 :]]
    assert first != brought(table.set_column(0, "k", pa.array(others, pa.int64())))


@pytest.mark.parametrize("descending", [False, True])
def test_an_ordered_input_comes_in_its_order_and_punctuations_come_last(descending: bool, tmp_path: Path) -> None:
    table = rows_of([3, 1, 2, 9, 1]).set_column(2, "over", pa.array([False, True, False, False, False]))
    options = {"source.a.punctuation": "over", "source.a.ordered": "k desc" if descending else "k"}
    spec = spec_of(table, **options)
    found = [row["k"] for row in in_order(spec, sent(spec, table, 1), tmp_path)]
    assert found == ([9, 3, 2, 1] if descending else [1, 2, 3, 9]) + [1]


def test_a_task_holds_a_part_of_its_budget_and_the_rest_is_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs share what may be held; the order is that of a task without a budget."""
    monkeypatch.setattr(delivered, "LEAST_SPOOL_BYTES", 2_000)
    monkeypatch.setattr(delivered, "SPOOLED_TOGETHER_BYTES", 500)
    spec, table = spec_of(rows_of([1])), rows_of(list(range(3_000)))
    parcels = [p for start in range(0, 3_000, 50) for p in sent(spec, table.slice(start, 50), 1)]
    plain = task_of(spec, 0, 1)
    assert delivered.spool_bytes(plain) == delivered.SPOOL_BYTES
    for bounded in (
        replace(plain, memory_bytes=40_000),
        replace(plain, ledger=Step(0, 1, replace(plain.ledger.plan, overflow=Overflow(40_000, "random", 1, 1)))),
        replace(plain, ledger=Step(0, 1, replace(plain.ledger.plan, room=Room(40_000, (1, 1))))),
    ):
        assert delivered.spool_bytes(bounded) == 10_000
    assert delivered.spool_bytes(replace(plain, memory_bytes=4_000)) == 2_000
    held = []

    def watched() -> Iterator[pa.RecordBatch]:
        for parcel in parcels:
            yield parcel
            held.append(sum(p.stat().st_size for p in (tmp_path / "few").rglob("*") if p.is_file()))

    (tmp_path / "few").mkdir()
    few = Delivered(replace(plain, memory_bytes=40_000), watched(), tmp_path / "few")
    assert held[-1] > 0.8 * sum(p.nbytes for p in parcels) - 10_000, "all but a part of the budget is in files"
    rows = [row for piece in few.read(0, 0) for row in piece.rows.to_pylist()]
    assert rows == [row for piece in Delivered(plain, parcels, tmp_path).read(0, 0) for row in piece.rows.to_pylist()]


def test_the_input_cannot_be_asked_for_again(tmp_path: Path) -> None:
    feed = Delivered(task_of(spec_of(rows_of([1])), 0, 1), [], tmp_path)
    with pytest.raises(StateError, match=r"has no version 0 .* cannot be asked for again"):
        feed.again({})


# --- hashes of rows --------------------------------------------------------------------------------------------------

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [0, 1, -1],
    pa.int32(): [0, 1, -1, 2**31 - 1],
    pa.int64(): [0, 1, -1, 2**62],
    pa.float64(): [0.0, 1.0, -1.5, float("inf")],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "b", "a longer one than eight", "a longer one than eighu"],
    pa.binary(): [b"", b"\x00", b"\x00\x00"],
    pa.date32(): [0, 1],
    pa.timestamp("us", "UTC"): [0, 1],
    pa.decimal128(30, 2): [Decimal("0.00"), Decimal("1.00"), Decimal("-1.00"), Decimal(10**20)],
    pa.list_(pa.int64()): [[], [0], [0, 0], [1, 2], [2, 1], [None]],
    pa.struct([("x", pa.int64()), ("y", pa.string())]): [
        {"x": 1, "y": "a"},
        {"x": None, "y": "a"},
        {"x": 1, "y": None},
    ],
    pa.map_(pa.string(), pa.int64()): [[], [("a", 1)], [("a", 2)], [("b", 1)]],
    pa.list_(pa.list_(pa.string())): [[["a"], ["b"]], [["a", "b"]], [["a", "b"], []], [[], ["a", "b"]]],
}


@pytest.mark.parametrize("type", VALUES, ids=str)
def test_rows_have_one_hash_each(type: pa.DataType) -> None:
    """Also in a slice, and beside another column; NULL is a value of its own."""
    values = [*VALUES[type], None]
    column = pa.array([values[0], *values, *values], type)
    hashes = row_hashes(pa.RecordBatch.from_arrays([column], ["v"]).slice(1))
    half = len(values)
    assert hashes[:half].tolist() == hashes[half:].tolist() and len(set(hashes[:half].tolist())) == half
    beside = pa.array(np.arange(2 * half) // half)
    both = row_hashes(pa.RecordBatch.from_arrays([column.slice(1), beside], ["v", "w"]))
    assert len(set(both.tolist())) == 2 * half


def test_columns_have_their_places() -> None:
    one = row_hashes(pa.RecordBatch.from_pydict({"x": [1], "y": [2]}))
    assert one.tolist() != row_hashes(pa.RecordBatch.from_pydict({"x": [2], "y": [1]})).tolist()
