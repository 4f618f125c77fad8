"""The order in which a batch takes in its rows: all of them, turn by turn, and the same again in a replay."""

from collections import Counter
from itertools import groupby

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.model import Schedule
from spark_mjoin.phases.schedule import merge

Inputs = list[list[pa.RecordBatch]]


def inputs_of(*sizes: list[int]) -> Inputs:
    """Inputs with batches of the given sizes; rows are numbered."""
    out = []
    for of in sizes:
        rows, batches = 0, []
        for size in of:
            batches.append(pa.RecordBatch.from_pydict({"n": pa.array(range(rows, rows + size), pa.int64())}))
            rows += size
        out.append(batches)
    return out


def taken(schedule: Schedule, inputs: Inputs, version: int = 1) -> list[tuple[int, list[int]]]:
    return [(number, batch.column("n").to_pylist()) for number, batch in merge(schedule, inputs, version)]


def turns(schedule: Schedule, inputs: Inputs, version: int = 1) -> list[tuple[int, int]]:
    """Rows that were taken without a change of input."""
    found = ((number, len(rows)) for number, rows in taken(schedule, inputs, version))
    return [(number, sum(rows for _, rows in of)) for number, of in groupby(found, key=lambda one: one[0])]


def test_one_input_after_the_other() -> None:
    inputs = inputs_of([3, 2], [], [4])
    assert turns(Schedule(), inputs) == [(0, 5), (2, 4)]
    assert turns(Schedule(order=(2, 1, 0)), inputs) == [(2, 4), (0, 5)]


def test_turns_by_priority() -> None:
    schedule = Schedule("priority", (1, 0, 2), (2, 3, 1))
    inputs = inputs_of([5, 1], [2, 2, 2], [2])
    assert turns(schedule, inputs) == [(1, 3), (0, 2), (2, 1), (1, 3), (0, 2), (2, 1), (0, 2)]
    assert taken(schedule, inputs)[:3] == [(1, [0, 1]), (1, [2]), (0, [0, 1])], "a turn may end in a batch"


def test_a_turn_ends_where_its_input_has_no_more() -> None:
    inputs = inputs_of([1], [7])
    assert turns(Schedule("priority", (0, 1), (4, 2)), inputs) == [(0, 1), (1, 7)]


def test_a_batch_is_not_cut_where_the_quota_is_larger() -> None:
    inputs = inputs_of([4, 4], [4])
    assert turns(Schedule("priority", (0, 1), (100, 100)), inputs) == [(0, 8), (1, 4)]
    assert [len(rows) for _, rows in taken(Schedule("priority", (0, 1), (100, 100)), inputs)] == [4, 4, 4]


def test_chance_treats_inputs_alike_and_differs_from_version_to_version() -> None:
    inputs, schedule = inputs_of([300], [300], [300]), Schedule("random", (), (1, 1, 1))
    first = [[number for number, _ in taken(schedule, inputs, version)] for version in (1, 2)]
    assert first[0] != first[1]
    for order in first:
        early = Counter(order[:600])
        assert all(160 < early[number] < 240 for number in range(3)), early
        assert len(list(groupby(order[:600]))) > 350, "no input has long runs"


SIZES = st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=4)


@pytest.mark.parametrize("kind", ["sequential", "priority", "random"])
@given(SIZES, st.data())
def test_all_rows_in_the_order_of_their_input_and_the_same_again(
    kind: str, sizes: list[list[int]], data: st.DataObject
) -> None:
    inputs, everyone = inputs_of(*sizes), range(len(sizes))
    quotas = tuple(data.draw(st.integers(1, 12)) for _ in everyone)
    schedule = Schedule(kind, tuple(data.draw(st.permutations(everyone))), quotas)
    version = data.draw(st.integers(1, 1 << 40))
    found = taken(schedule, inputs, version)
    for number in everyone:
        rows = [n for i, of in found if i == number for n in of]
        assert rows == list(range(sum(sizes[number])))
    assert found == taken(schedule, inputs, version)
    if kind != "sequential":
        assert all(len(rows) <= quotas[number] for number, rows in found)
