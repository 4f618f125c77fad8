"""The order in which a batch takes in its rows: all of them, turn by turn, and the same again in a replay."""

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.engine import arrival
from spark_mjoin.engine import schedule as schedules
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention.protocol import KeepAll
from spark_mjoin.engine.schedule import FIRST_ROWS, TURN_COST, Turns
from spark_mjoin.model import Array, Schedule
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.operator import OperatorState
from tests.harness import ReadAllAvailable, reader, rows, run, scripted

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


def whole(inputs: Inputs) -> list[list[Piece]]:
    return [[Piece.whole(number, batch) for batch in batches] for number, batches in enumerate(inputs)]


def taken(schedule: Schedule, inputs: Inputs, version: int = 1) -> list[tuple[int, list[int]]]:
    found = (piece for _, turn in Turns(schedule, whole(inputs), version) for piece in turn)
    return [(piece.input, piece.rows.column("n").to_pylist()) for piece in found]


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


def steps(sizes: list[int], quota: int, outside: int) -> list[tuple[int, int]]:
    """Turns in step, in which each row finds so many combinations outside a window for each row of its step."""
    found, step = list[tuple[int, int]](), 0
    inputs = inputs_of(*([size] for size in sizes))
    schedule = Schedule("in step", (), (quota,) * len(sizes))
    turns = Turns(schedule, whole(inputs), 1, rows=sizes)
    for number, turn in turns:
        size = sum(piece.size for piece in turn)
        if not size:  # the input has ended
            continue
        step = size if number == 0 else step
        turns.outside += outside * size * step
        found.append((number, size))
    return found


def test_inputs_in_step_have_the_same_part_of_their_rows() -> None:
    assert steps([8, 4, 1], 2, 0) == [(0, 2), (1, 1), (0, 2), (1, 1), (0, 2), (1, 1), (0, 2), (1, 1), (2, 1)]
    assert steps([0, 3], 2, 0) == [(1, 2), (1, 1)]
    assert steps([0, 0], 2, 0) == []
    taken = [0, 0, 0]
    for number, size in steps([90_000, 37_000, 10], 5_000, 0):
        assert size <= 5_000
        taken[number] += size
        assert number < 2 or abs(taken[0] / 90_000 - taken[2] / 10) < 0.1
        assert number < 1 or abs(taken[0] / 90_000 - taken[1] / 37_000) < 0.001
    assert taken == [90_000, 37_000, 10]


def test_steps_get_longer_while_little_is_outside_and_shorter_where_much_is() -> None:
    sizes = [400_000, 400_000]
    longer = [size for number, size in steps(sizes, 65_536, 0) if number == 0]
    assert longer[:5] == [8_192, 16_384, 32_768, 65_536, 65_536]
    shorter = [size for number, size in steps(sizes, 65_536, 1) if number == 0]
    assert shorter[0] == FIRST_ROWS and shorter[-2] < FIRST_ROWS / 16, "a row finds all rows of its step"
    at_rest = shorter[len(shorter) // 2 : -1]
    assert len(set(at_rest)) == 1 and TURN_COST / 2 <= at_rest[0] ** 2 <= 2 * TURN_COST


def keyed(*keys: list[int | None]) -> Inputs:
    """One input with batches of these keys."""
    schema = pa.schema([("k", pa.int64())])
    return [[pa.record_batch([pa.array(of, pa.int64())], schema) for of in keys], []]


def clustered_turns(quota: int, *keys: list[int | None]) -> list[list[int | None]]:
    """The turns of an input that comes clustered; another one has a row for each turn, to tell them apart."""
    one = [pa.RecordBatch.from_pydict({"k": pa.array([0])})] * 20
    schedule = Schedule("priority", (0, 1), (quota, 1))
    inputs = whole([keyed(*keys)[0], one])
    found = (piece for _, turn in Turns(schedule, inputs, 1, clusters={0: ["k"]}) for piece in turn)
    turns = [
        [k for p in of for k in p.rows["k"].to_pylist()] for n, of in groupby(found, key=lambda p: p.input) if n == 0
    ]
    assert [k for turn in turns for k in turn] == [k for of in keys for k in of]
    return turns


def test_a_cluster_is_not_interrupted() -> None:
    assert clustered_turns(2, [1, 1, 1, 2, 2, 3, 3, 3]) == [[1, 1, 1], [2, 2], [3, 3, 3]]
    assert clustered_turns(4, [1, 1, 1, 2, 2, 3, 3, 3]) == [[1, 1, 1, 2, 2], [3, 3, 3]]
    assert clustered_turns(1, [1, 1], [1], [], [1, 2], [2, 2]) == [[1, 1, 1, 1], [2, 2, 2]], "over several batches"
    assert clustered_turns(2, [1, 1], [2], [2]) == [[1, 1], [2, 2]]
    assert clustered_turns(1, [None, None, 1]) == [[None], [None], [1]], "NULL is no cluster"


def by_value(quota: int, awaited: list[int] | None, *keys: list[int | None]) -> list[list[int | None]]:
    """Batches of one input in which some keys are awaited from the first batch on, until they have come."""
    left = None if awaited is None else set(awaited)

    class Waiting(KeepAll):
        def awaited(self, piece: Piece) -> Array | None:
            if not left:
                return None
            found = np.array([k in left for k in piece.rows["k"].to_pylist()], np.bool_)
            left.difference_update(piece.rows["k"].to_pylist())
            return found

    turns = Turns(Schedule("sequential", (), (quota, quota), "value"), whole(keyed(*keys)), 1)
    found = [each for _, turn in turns for each in schedules.by_value(turn, Waiting())]
    late = [piece.rows["k"].to_pylist() for piece, waited in found if waited]
    assert sorted(late) == sorted(of for of in late if not set(of) & set(awaited or ())), "none that is awaited waits"
    return [piece.rows["k"].to_pylist() for piece, _ in found]


def test_awaited_rows_come_first_and_the_others_wait_for_the_end_of_the_turn() -> None:
    assert by_value(9, None, [1, 2, 3], [4]) == [[1, 2, 3], [4]], "nobody waits for anything"
    assert by_value(9, [2, 5], [1, 2, 3], [4, 5]) == [[2], [5], [1, 3], [4]]
    assert by_value(3, [2, 5], [1, 2, 3], [4, 5]) == [[2], [1, 3], [5], [4]], "a turn ends after three rows"
    assert by_value(9, [2], [1, 2, 3], [4, 5]) == [[2], [1, 3], [4, 5]], "nobody waits for more"
    assert by_value(9, [1, 2], [1, 2], [3]) == [[1, 2], [3]]
    assert by_value(9, [7], [1, 2], [3]) == [[1, 2], [3]]


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


# --- in whole runs ---------------------------------------------------------------------------------------------------


def news(numbers: list[int]) -> pa.Table:
    return pa.table({"sno": pa.array(numbers, pa.int64()), "over": pa.array([False] * len(numbers))})


def access(numbers: list[int], over: list[int]) -> pa.Table:
    marks = [False] * len(numbers) + [True] * len(over)
    return pa.table({"sno": pa.array(numbers + over, pa.int64()), "over": pa.array(marks)})


QUERY = "SELECT n.sno AS sno FROM access a JOIN news n ON a.sno = n.sno"
PROMISES = {"source.news.unique": "sno", "source.access.punctuation": "over"}


def test_rows_that_are_awaited_come_first_and_the_others_are_counted(tmp_path: Path) -> None:
    """The first batch says that 3 and 4 are over; in the second, their news come before the others of their turn."""
    scripts = {
        "access": [access([3, 4, 5], [3, 4]), access([5], [5])],
        "news": [news([]), news([1, 2, 3, 4, 5, 6])],
    }
    options = scripted(scripts, QUERY, **PROMISES, tupleScheduling="value", schedulingQuota="100")
    taken: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        insert = arrival.insert

        def noted(state: OperatorState, number: int, piece: Piece, *rest: Any) -> tuple[int, int]:
            if state.spec.inputs[number].alias == "n":
                taken.append(piece.rows.column("sno").to_pylist())
            return insert(state, number, piece, *rest)

        patch.setattr(arrival, "insert", noted)
        results = run(options, tmp_path)
    assert rows(results) == {(3,): 1, (4,): 1, (5,): 2}
    assert [of for of in taken if of] == [[3, 4, 5], [1, 2, 6]], "5 is over too: its records come first in this batch"
    (query,) = tmp_path.iterdir()
    assert Manifests(str(query), 0).manifest(2).done.rows_waited == 3


def test_the_schedule_is_in_the_offset_and_in_the_metrics(tmp_path: Path) -> None:
    scripts = {"access": [access([1, 2], [1])] * 3, "news": [news([1]), news([2]), news([3])]}
    options = scripted(scripts, QUERY, stateLocation=str(tmp_path), goal="memory", **PROMISES)
    current = reader(options)
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    assert end["plan"]["schedule"] == {"streams": "sequential", "order": (1, 0), "quotas": (), "tuples": "sequential"}
    for partition in current.partitions(start, end):
        list(current.read(partition))
    shown = current.reportLatestOffset()["metrics"]
    assert (shown["streamScheduling"], shown["tupleScheduling"]) == ("sequential: n, a", "sequential")
    again = reader({**options, "goal": "rate"})
    assert again.partitions(start, end)[0].task.ledger.plan.schedule == Schedule("sequential", (1, 0)), (
        "as it was planned"
    )
