"""Which shares are chosen: those of least bytes by brute force; and which cubes can be asked for."""

from __future__ import annotations

from itertools import product
from math import prod
from time import process_time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver import cubes
from spark_mjoin.driver.cubes import Costs, best
from spark_mjoin.driver.loading import load
from spark_mjoin.driver.staging import SEVERAL_COST, Expected, choose, least_bytes, settings_of_cube
from spark_mjoin.errors import OptionError
from spark_mjoin.model import Settings
from spark_mjoin.query.cubes import is_cube, parse, render
from tests.driver.test_staging import CHAIN, chain, joins, loaded, rates
from tests.examples import examples
from tests.harness import scripted


def part(costs: Costs, shares: tuple[int, ...]) -> float:
    """The bytes of a cell by its definition: of each input, its bytes over the shares of its classes."""
    spec = costs.spec
    return sum(size / prod(shares[c] for c in spec.classes_of(input)) for input, size in enumerate(costs.bytes))


@given(joins(), st.integers(2, 30))
@examples(100)
def oracle_no_other_shares_give_a_cell_less(expected: Expected, cells: int) -> None:
    costs, classes = expected.cube, len(expected.spec.classes)
    every = (s for s in product(range(1, cells + 1), repeat=min(classes, 4)) if prod(s) <= cells)
    least = min(part(costs, (*s, *[1] * (classes - len(s)))) for s in every)
    shares = dict(best(costs, cells))
    assert prod(shares.values()) <= cells and all(share > 1 for share in shares.values())
    if classes <= 4:
        assert costs.of_cell(shares) == pytest.approx(least)
    else:
        assert costs.of_cell(shares) <= least * (1 + 1e-9)


@given(joins(), st.integers(2, 64))
@examples(60)
def test_copies_are_for_the_classes_that_an_input_has_not(expected: Expected, cells: int) -> None:
    costs, shares = expected.cube, dict(best(expected.cube, cells))
    for input, copies in enumerate(costs.copies(shares)):
        own = prod(share for c, share in shares.items() if c in expected.spec.classes_of(input))
        assert own * copies == prod(shares.values())
    assert costs.moved(shares) == pytest.approx(costs.of_cell(shares) * prod(shares.values()))


def test_shares_of_a_triangle_are_equal_and_those_of_a_large_input_its_own() -> None:
    edges = [("r0", "i", "r1", "i"), ("r1", "j", "r2", "j"), ("r2", "k", "r0", "k")]
    spec, _ = loaded(edges)
    assert dict(best(Costs(spec, (1.0, 1.0, 1.0)), 64)) == {0: 4, 1: 4, 2: 4}
    alone = best(Costs(spec, (1e6, 1.0, 1.0)), 64)
    assert {c for c, _ in alone} == spec.classes_of(0), "so a row of it is in one cell"
    assert max(share for _, share in alone) == 8, "of equal ones the shares that are alike"


@pytest.mark.parametrize("cells", [64, 1000, 1024, 4096])
@pytest.mark.parametrize("shape", ["chain", "clique"])
def test_ten_inputs_are_planned_within_seconds(shape: str, cells: int) -> None:
    edges = chain(10)
    if shape == "clique":
        edges = [(f"r{a}", f"k{a}{b}", f"r{b}", f"k{a}{b}") for b in range(10) for a in range(b)]
    spec, given_ = loaded(edges, **rates(*range(1, 11)))
    begin = process_time()
    shares = best(Expected.of(spec, given_).cube, cells)
    assert 1 < prod(share for _, share in shares) <= cells
    assert process_time() - begin < 5


@given(joins(), st.integers(2, 64))
@examples(40)
def test_steps_come_near_to_the_best(expected: Expected, cells: int) -> None:
    """By which larger joins are planned."""
    costs = expected.cube
    steps = cubes.step_by_step(costs, range(len(expected.spec.classes)), cells)
    assert costs.of_cell(dict(best(costs, cells))) <= costs.of_cell(steps) * (1 + 1e-9)
    assert costs.of_cell(steps) <= 2.5 * costs.of_cell(dict(best(costs, cells)))


# --- what can be asked for -------------------------------------------------------------------------------------------


def test_a_cube_is_written_as_it_is_shown() -> None:
    spec, _ = loaded(CHAIN)
    shares = ((0, 4), (1, 2))
    assert parse(render(shares), spec, Settings(8)) == shares
    assert parse(" CUBE ( K2 = 2,k1=4 )", spec, Settings(8)) == shares
    assert parse("cube(k1=4, k2=1)", spec, Settings(8)) == ((0, 4),)
    assert parse("cube", spec, Settings(8)) is None
    assert not any(map(is_cube, ("(cube a)", "cube (a b)", "(a b) cube", "cubes", "k1=4")))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("cube(k3=2)", "'k3=2' is not a key and its share, such as 'k1=4'. Keys are: k1, k2"),
        ("cube(k1=0)", "'k1=0' is not a key and its share"),
        ("cube(i=4)", "'i=4' is not a key and its share"),
        ("cube(k1=2, k1=2)", "has k1 more than once"),
        ("cube(k1=3, k2=2)", "has 6 cells, and option 'partitions' is 4"),
    ],
)
def test_what_is_no_cube_of_the_join(plan: str, said: str) -> None:
    spec, _ = loaded(CHAIN)
    with pytest.raises(OptionError) as raised:
        parse(plan, spec, Settings(4))
    assert said in str(raised.value)


def test_the_option_decides() -> None:
    spec, _ = loaded(CHAIN)
    expected = Expected(spec, (1000.0,) * 3, {})
    chosen = choose(spec, Settings(4, plan="cube(k1=2, k2=2)"), expected)
    assert (chosen.tree, chosen.shares, chosen.reason) == (None, ((0, 2), (1, 2)), "option 'plan' says so")
    assert choose(spec, Settings(4, plan="cube"), expected).shares == best(expected.cube, 4)
    assert choose(spec, Settings(1, plan="cube"), expected).reason == "there is one partition"
    own = settings_of_cube(Settings(8, 1000, plan="cube"), ((0, 2), (1, 3)))
    assert (own.partitions, own.plan, own.memory_bytes) == (6, None, 1000)


def test_the_plan_of_fewest_bytes_is_chosen() -> None:
    """Where results of two are few, stages move less; where each is as large as a product, a cube does."""
    spec, _ = loaded(CHAIN)
    selective = Expected(spec, (1000.0,) * 3, {(0, 1): 1e-5, (1, 2): 1e-5})
    assert choose(spec, Settings(8), selective).tree is not None
    inflating = Expected(spec, (1000.0,) * 3, {(0, 1): 0.1, (1, 2): 0.1})
    chosen = choose(spec, Settings(8), inflating)
    assert chosen.shares == best(inflating.cube, 8)
    assert chosen.reason == "of all plans with several tasks it moves the fewest bytes to each"


@given(joins(), st.sampled_from([2, 4, 8, 16]))
@examples(60)
def test_the_choice_moves_no_more_to_a_task_than_the_others(expected: Expected, partitions: int) -> None:
    wanted = Settings(partitions)
    chosen, alone = choose(expected.spec, wanted, expected), expected.whole_bytes
    parts = {
        "stages": sum(expected.moved(least_bytes(expected))) / partitions,
        "cube": expected.cube.of_cell(dict(best(expected.cube, partitions))),
    }
    mine = "stages" if chosen.tree is not None else "cube" if chosen.shares else None
    if mine is None:
        assert all(SEVERAL_COST * part >= alone for part in parts.values())
    else:
        assert SEVERAL_COST * parts[mine] < alone
        assert parts[mine] == pytest.approx(min(parts.values()))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"source.r0.window": "5 minutes", **{f"source.r{n}.{o}": v for n in range(3) for o, v in
          (("timestamp", "t"), ("watermark", "1 minute"))}}, None),
        ({"window": "50 rows"}, "it has windows in rows"),
        ({"source.r0.unique": "i"}, "inputs make key promises"),
        ({"overflow": "shed", "maxDelay": "5 seconds"}, "option 'overflow' is 'shed'"),
        ({"overflow": "shrink", "memory": "1m", "window": "5 minutes",
          **{f"source.r{n}.{o}": v for n in range(3) for o, v in
             (("timestamp", "t"), ("watermark", "1 minute"))}}, "option 'overflow' is 'shrink'"),
        ({"overflow": "fail", "memory": "1m"}, None),
        ({"access": "r0>r1: scan"}, None),
        ({"memory": "1m"}, None),
    ],
)  # fmt: skip
def test_what_copies_would_break_is_not_in_a_cube(options: dict[str, str], reason: str | None) -> None:
    empty = {name: pa.array([], pa.int64()) for name in "ij"} | {"t": pa.array([], pa.timestamp("us", "UTC"))}
    query = "SELECT r0.i FROM r0, r1, r2 WHERE r0.i = r1.i AND r1.j = r2.j"
    spec, given_ = load(scripted({f"r{n}": [pa.table(empty)] for n in range(3)}, query, **options))
    wanted = Settings(**{**vars(given_), "partitions": 4})
    assert cubes.obstacle(spec, wanted) == reason
    asked = choose(spec, Settings(**{**vars(wanted), "plan": "cube"}), Expected(spec, (1000.0,) * 3, {}))
    assert bool(asked.shares) == (reason is None)


def test_a_cube_is_not_for_the_format() -> None:
    empty = pa.table({"k": pa.array([], pa.int64())})
    for plan in ("cube", "cube(k1=2)"):
        with pytest.raises(OptionError, match=r"is for spark_mjoin\.join, and for inputs without a key that all"):
            load(scripted({"a": [empty], "b": [empty]}, "SELECT a.k FROM a JOIN b ON a.k = b.k", plan=plan))
