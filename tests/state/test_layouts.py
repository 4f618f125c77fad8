"""Layouts of one key: each combination is in one partition, each row has one first copy, hot keys are spread."""

import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.model import SLOTS, Array
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.layouts import EVEN, Assigned, Hot, Layout, Ranges, Split, read_layout
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes
from tests.examples import examples

INPUTS = 3
KEYS = range(-3, 4)
SIGN = 1 << 63


@dataclass(frozen=True)
class Given:
    """Rows of an input: each has a key and something else."""

    input: int
    keys: list[int]
    others: list[int]

    @property
    def count(self) -> int:
        return len(self.keys)

    def has(self, key_class: int) -> bool:
        return True

    def hashes(self, key_class: int | None = None) -> Array:
        return hash_array(pa.array(self.keys, pa.int64()))

    def orders(self) -> Array:
        return np.array([key + SIGN for key in self.keys], np.uint64)

    def row_hashes(self, rows: Array) -> Array:
        return hash_array(pa.array([self.others[row] for row in rows.tolist()], pa.int64()))

    def taken(self, rows: Array) -> "Given":
        return Given(self.input, [self.keys[row] for row in rows], [self.others[row] for row in rows])


def hash_of(key: int) -> int:
    return int(hash_array(pa.array([key], pa.int64()))[0])


@st.composite
def bases(draw: st.DrawFn, partitions: int) -> Layout:
    kind = draw(st.sampled_from(["even", "assigned", "ranges"]))
    if kind == "even":
        return EVEN
    if kind == "ranges":
        ends = draw(st.lists(st.integers(-3, 3), min_size=partitions - 1, max_size=partitions - 1))
        return Ranges(tuple(sorted(end + SIGN for end in ends)))
    seed = draw(st.integers(0, 1000))
    targets = np.random.Generator(np.random.Philox(seed)).permutation(np.arange(SLOTS) % partitions)
    return Assigned.of(targets)


@st.composite
def layouts(draw: st.DrawFn, partitions: int) -> Layout:
    base, hot = draw(bases(partitions)), []
    for key in sorted(draw(st.sets(st.sampled_from(KEYS), max_size=3)), key=hash_of):
        shares = tuple(draw(st.integers(1, 3)) for _ in range(INPUTS))
        cells = int(np.prod(shares))
        if 1 < cells <= partitions:
            there = draw(st.permutations(range(partitions)))[:cells]
            hot.append(Hot(hash_of(key), shares, tuple(there)))
    return Split(base, tuple(hot)) if hot else base


@st.composite
def rows(draw: st.DrawFn, input: int) -> Given:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    return Given(input, keys, draw(st.lists(st.integers(0, 99), min_size=len(keys), max_size=len(keys))))


ROUTINGS = st.integers(1, 12).flatmap(lambda n: layouts(n).map(lambda layout: Routing(n, layout=layout)))


@given(st.data(), ROUTINGS)
@examples(300)
def oracle_each_combination_is_in_one_partition(data: st.DataObject, routing: Routing) -> None:
    inputs = [data.draw(rows(number)) for number in range(INPUTS)]
    there = [
        [set(routing.numbers_of(each, partition).tolist()) for partition in range(routing.partitions)]
        for each in inputs
    ]
    for combination in product(*(range(each.count) for each in inputs)):
        if len({each.keys[row] for each, row in zip(inputs, combination, strict=True)}) == 1:
            found = [
                p for p in range(routing.partitions) if all(row in there[n][p] for n, row in enumerate(combination))
            ]
            assert len(found) == 1


@given(st.data(), ROUTINGS)
@examples(200)
def test_each_row_has_one_first_copy_where_its_slot_is_held(data: st.DataObject, routing: Routing) -> None:
    each, firsts = data.draw(rows(data.draw(st.integers(0, INPUTS - 1)))), []
    slots = of_hashes(each.hashes())
    for partition in range(routing.partitions):
        here = routing.numbers_of(each, partition)
        assert sorted(here.tolist()) == here.tolist()
        assert routing.holds(partition).have(slots[here]).all()
        if routing.layout.by_slots:
            assert routing.slots(partition).have(slots[here]).all()
        first = routing.layout.firsts(each.taken(here), partition, routing.partitions)
        firsts += here.tolist() if first is None else here[first].tolist()
    assert sorted(firsts) == list(range(each.count))


@given(ROUTINGS)
def test_a_layout_is_in_a_plan_as_it_was(routing: Routing) -> None:
    assert read_layout(json.loads(json.dumps(routing.layout.to_json()))) == routing.layout
    assert Routing.from_json(json.loads(json.dumps(routing.to_json()))) == routing
    assert hash(routing) == hash(Routing.from_json(routing.to_json()))


@given(ROUTINGS)
def test_what_is_counted_once_for_all_is_counted_in_one_partition(routing: Routing) -> None:
    owned = [routing.slots(partition) for partition in range(routing.partitions)]
    assert (sum(slots.owned.astype(int) for slots in owned) == 1).all()
    assert all(slots.size for slots in owned), "each partition has a first slot"


def test_the_rows_of_a_hot_key_are_spread_and_those_that_they_meet_are_copied() -> None:
    hot = Hot(hash_of(1), (6, 1, 1), (0, 2, 3, 5, 6, 7))
    routing = Routing(8, layout=Split(EVEN, (hot,)))
    large, small = Given(0, [1] * 6000, list(range(6000))), Given(1, [1] * 10, list(range(10)))
    counted = [routing.numbers_of(large, partition).size for partition in range(8)]
    assert sum(counted) == 6000 and counted[1] == counted[4] == 0
    assert all(900 < counted[cell] < 1100 for cell in hot.cells)
    assert [routing.numbers_of(small, p).size for p in range(8)] == [10 * (p in hot.cells) for p in range(8)]
    assert [hot.copies(input) for input in range(3)] == [1, 6, 6]


def test_other_keys_stay_where_they_are() -> None:
    others = Given(0, list(range(100, 400)), [0] * 300)
    split = Routing(5, layout=Split(EVEN, (Hot(hash_of(1), (2, 2, 1), (0, 1, 2, 3)),)))
    for partition in range(5):
        assert split.numbers_of(others, partition).tolist() == Routing(5).numbers_of(others, partition).tolist()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (EVEN, "4"),
        (Ranges((1, 2, 3)), "4 (range)"),
        (Assigned.of(np.arange(SLOTS) % 4), "4 (rate)"),
        (Split(EVEN, (Hot(1, (2, 1), (0, 1)),)), "4 (hash, 1 hot key)"),
        (Split(Ranges((1, 2, 3)), (Hot(1, (2, 1), (0, 1)), Hot(2, (2, 1), (0, 1)))), "4 (range, 2 hot keys)"),
    ],
)
def test_a_layout_is_called_by_what_it_goes_by(layout: Layout, words: str) -> None:
    assert str(Routing(4, layout=layout)) == words
