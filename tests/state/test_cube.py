"""Cubes: each combination is in exactly one cell, each row has one first copy, and rows of a cell are spread evenly."""

import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.model import Array
from spark_mjoin.state import buckets
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.layouts import EVEN, Cube, coordinates, read_layout
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes
from tests.examples import examples
from tests.state.test_routing import KEYS, spread


@dataclass(frozen=True)
class Given:
    """Rows of an input by their keys."""

    input: int
    keys: dict[int, list[int]]  # by key class, of each row

    @property
    def count(self) -> int:
        return len(next(iter(self.keys.values())))

    def has(self, key_class: int) -> bool:
        return key_class in self.keys

    def hashes(self, key_class: int | None = None) -> Array | None:
        assert key_class is not None
        return hash_array(pa.array(self.keys[key_class], pa.int64())) if key_class in self.keys else None

    def row_hashes(self) -> Array:
        raise NotImplementedError("a cube goes by keys")


@st.composite
def cubes(draw: st.DrawFn, classes: int = 4) -> Cube:
    shares = [draw(st.integers(1, 4)) for _ in range(classes)]
    return Cube(tuple((c, share) for c, share in enumerate(shares) if share > 1))


@st.composite
def inputs(draw: st.DrawFn, number: int, classes: int = 4) -> Given:
    has = draw(st.sets(st.integers(0, classes - 1), min_size=1))
    rows = draw(st.integers(1, 5))
    keys = st.lists(st.integers(-3, 3), min_size=rows, max_size=rows)
    return Given(number, {key_class: draw(keys) for key_class in sorted(has)})


def cells_of(cube: Cube, rows: Given) -> list[set[int]]:
    """Of each row, the cells that it is in."""
    routing = Routing(cube.cells, layout=cube)
    out: list[set[int]] = [set() for _ in range(rows.count)]
    for partition in range(cube.cells):
        for row in routing.numbers_of(rows, partition).tolist():
            assert partition not in out[row], "at most once in a cell"
            out[row].add(partition)
    return out


@given(st.data(), cubes())
@examples(200)
def oracle_each_combination_is_in_one_cell(data: st.DataObject, cube: Cube) -> None:
    given_ = [data.draw(inputs(number)) for number in range(3)]
    all_classes = set().union(*(each.keys for each in given_))
    if not {c for c, _ in cube.shares} <= all_classes:
        return
    found = [cells_of(cube, each) for each in given_]
    for rows in product(*(range(each.count) for each in given_)):
        keys: dict[int, set[int]] = {}
        for each, row in zip(given_, rows, strict=True):
            for key_class, values in each.keys.items():
                keys.setdefault(key_class, set()).add(values[row])
        if all(len(values) == 1 for values in keys.values()):
            assert len(set.intersection(*(found[n][row] for n, row in enumerate(rows)))) == 1


@given(st.data(), cubes())
@examples(100)
def test_each_row_has_one_first_copy_and_as_many_as_there_are_cells_for_it(data: st.DataObject, cube: Cube) -> None:
    rows, firsts = data.draw(inputs(0)), np.zeros(5, np.int64)
    expected = np.prod([share for c, share in cube.shares if c not in rows.keys], dtype=int)
    found = cells_of(cube, rows)
    assert all(len(cells) == expected for cells in found)
    for partition in range(cube.cells):
        here = Routing(cube.cells, layout=cube).numbers_of(rows, partition)
        taken = Given(0, {c: [values[row] for row in here] for c, values in rows.keys.items()})
        first = cube.firsts(taken, partition, cube.cells)
        assert len(set(first.tolist())) <= 1, "all rows of an input in a cell, or none"
        firsts[here[first]] += 1
    assert firsts[: rows.count].tolist() == [1] * rows.count


@given(cubes())
def test_a_cube_is_in_a_plan_as_it_was(cube: Cube) -> None:
    assert read_layout(json.loads(json.dumps(cube.to_json()))) == cube
    routing = Routing(max(1, cube.cells), 7, Routing(3), cube)
    assert Routing.from_json(json.loads(json.dumps(routing.to_json()))) == routing
    assert Routing(cube.cells, layout=cube).divides_as(routing)
    assert not Routing(cube.cells, layout=EVEN).divides_as(routing)
    assert hash(cube) == hash(Cube(cube.shares))


def test_a_cube_is_called_as_option_plan_calls_it() -> None:
    assert str(Cube(((0, 4), (2, 2)))) == "cube(k1=4, k3=2)"
    assert str(Routing(8, layout=Cube(((0, 4), (2, 2))))) == "8 (cube(k1=4, k3=2))"


def test_what_is_counted_once_for_all_is_counted_in_one_cell() -> None:
    cube = Cube(((0, 4), (2, 3)))
    assert (sum(cube.slots(cell, 12).owned.astype(int) for cell in range(12)) == 1).all()
    assert all(cube.holds(cell, 12).is_all for cell in range(12))


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("share", [2, 3, 8])
def test_slots_buckets_and_indexes_do_not_depend_on_coordinates(keys: pa.Array, share: int) -> None:
    hashes = hash_array(keys)
    found = coordinates(hashes, 0, share)
    assert spread(found, share) < 8
    for coordinate in range(share):
        mine = hashes[found == coordinate]
        in_index = (mine >> np.uint64(64 - 10)).astype(np.int64)
        assert spread(buckets.of_hashes(mine), buckets.BUCKETS) < 2
        assert spread(of_hashes(mine).astype(np.int64), 1 << 12) < 1.3
        assert 0.7 < spread(in_index, 1 << 10) < 1.3


def test_equal_keys_of_two_classes_are_not_on_a_diagonal() -> None:
    hashes = hash_array(KEYS["counted"])
    both = 4 * coordinates(hashes, 0, 4) + coordinates(hashes, 1, 4)
    assert spread(both, 16) < 3


def test_coordinates_are_what_states_on_disk_were_divided_by() -> None:
    """Another coordinate for a key is another state format."""
    words = hash_array(pa.array([0, 1, -1, 10**12]))
    assert coordinates(words, 0, 1000).tolist() == [883, 919, 269, 154]
    assert coordinates(words, 5, 1000).tolist() == [327, 311, 442, 16]
