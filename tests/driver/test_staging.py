"""Which stages are chosen: those of least bytes by brute force, and none where one task has less to do."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from time import process_time

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.config import SourceOptions
from spark_mjoin.driver.loading import load
from spark_mjoin.driver.staging import (
    Expected,
    choose,
    least_bytes,
    obstacle,
    of_stages_and_cube,
    settings_of,
    width,
)
from spark_mjoin.errors import OptionError
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.stages import can_run, classes_of, staged
from spark_mjoin.query.tree import inputs_below, normal, parse, render
from tests.driver.estimates import every_tree
from tests.examples import examples
from tests.harness import scripted

KEYS = ["i", "j", "k", "l", "m"]
CHAIN = [("r0", "i", "r1", "i"), ("r1", "j", "r2", "j")]
Edges = list[tuple[str, str, str, str]]


def loaded(edges: Edges, **options: str) -> tuple[JoinSpec, Settings]:
    """A join of inputs r0, r1 … by these equalities."""
    aliases = sorted({alias for a, _, b, _ in edges for alias in (a, b)}, key=lambda alias: int(alias[1:]))
    names = {"n", *(name for _, x, _, y in edges for name in (x, y))}
    empty = pa.table({name: pa.array([], pa.int64()) for name in sorted(names)} | {"s": pa.array([], pa.string())})
    output = ", ".join(f"{alias}.n AS {alias}n" for alias in aliases)
    where = " AND ".join(f"{a}.{x} = {b}.{y}" for a, x, b, y in edges)
    query = f"SELECT {output}, r0.s FROM {', '.join(aliases)} WHERE {where}"
    return load(scripted({alias: [empty] for alias in aliases}, query, **{"partitions": "4"} | options))


def rates(*per_second: float) -> dict[str, str]:
    return {f"source.r{n}.expectedRowsPerSecond": str(rate) for n, rate in enumerate(per_second)}


def settings(**changed: object) -> Settings:
    return Settings(partitions=4, **changed)  # type: ignore[arg-type]


def chain(count: int) -> Edges:
    return [(f"r{a}", "i" if a % 2 else "j", f"r{b}", "i" if a % 2 else "j") for a, b in pairwise(range(count))]


@st.composite
def joins(draw: st.DrawFn, most: int = 5) -> Expected:
    count = draw(st.integers(3, most))
    pairs = [(draw(st.integers(0, b - 1)), b) for b in range(1, count)]
    pairs += draw(st.lists(st.sampled_from([(a, b) for b in range(count) for a in range(b)]), max_size=2))
    key = st.sampled_from(KEYS)
    spec, _ = loaded([(f"r{a}", draw(key), f"r{b}", draw(key)) for a, b in pairs])
    rows = [draw(st.sampled_from([10.0, 500.0, 1e4])) for _ in range(count)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=3))
    given_ = {pair: draw(st.sampled_from([1e-4, 1e-2, 0.5])) for pair in chosen}
    return Expected(spec, tuple(rows), given_)


@given(joins())
@examples(60)
def oracle_no_other_stages_move_less(expected: Expected) -> None:
    spec = expected.spec
    able = [tree for tree in every_tree(range(len(spec.inputs))) if can_run(spec, tree)]
    found = least_bytes(expected)
    assert found in [normal(tree) for tree in able]
    assert sum(expected.moved(found)) == pytest.approx(min(sum(expected.moved(tree)) for tree in able))


@given(joins())
@examples(60)
def test_each_stage_has_a_key_in_common_and_what_comes_later(expected: Expected) -> None:
    spec, tree = expected.spec, least_bytes(expected)
    plain = [SourceOptions(source.alias, source.format, source.options) for source in spec.sources]
    stages = staged(spec, tree, plain)
    assert all(stage.spec.star_class is not None for stage in stages)
    assert [stage.onward is None for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert stages[-1].spec.schema == spec.schema
    for number, stage in enumerate(stages[:-1]):
        assert stage.onward is not None and stage.onward[0] > number
        next_, member = stage.onward
        assert stages[next_].leaves[member] == inputs_below(stage.tree)
        assert stages[next_].spec.sources[member].schema == stage.spec.schema
        assert classes_of(spec, inputs_below(stage.tree))


@pytest.mark.parametrize("shape", ["chain", "clique"])
def test_ten_inputs_are_planned_within_seconds(shape: str) -> None:
    edges = chain(10)
    if shape == "clique":
        edges = [(f"r{a}", f"k{a}{b}", f"r{b}", f"k{a}{b}") for b in range(10) for a in range(b)]
    spec, given_ = loaded(edges)
    assert spec.star_class is None
    begin = process_time()
    tree = least_bytes(Expected.of(spec, given_))
    assert can_run(spec, tree)
    assert process_time() - begin < 10


def test_a_slow_input_comes_first() -> None:
    """Of a chain of three, the pair with the fewer results goes first."""
    spec, given_ = loaded(CHAIN, **rates(1000, 1000, 1))
    chosen = choose(spec, settings(expected=given_.expected), Expected.of(spec, given_))
    assert chosen.tree == parse("(r0 (r1 r2))", spec)
    spec, given_ = loaded(CHAIN, **rates(1, 1000, 1000))
    chosen = choose(spec, settings(expected=given_.expected), Expected.of(spec, given_))
    assert chosen.tree == parse("((r0 r1) r2)", spec)


def test_one_task_where_it_has_less_to_do() -> None:
    spec, _ = loaded(CHAIN)
    expected = Expected(spec, (1000.0,) * 3, {})
    assert choose(spec, settings(), expected).tree is not None
    assert choose(spec, Settings(partitions=1), expected).reason == "there is one partition"
    inflating = Expected(spec, (1000.0,) * 3, {(0, 1): 0.5, (1, 2): 0.5})
    of_stages, _ = of_stages_and_cube(spec, settings(), inflating)
    assert of_stages.rejected == "one task has less to do than each of several"
    promising = replace(spec, inputs=(replace(spec.inputs[0], unique=(0,)), *spec.inputs[1:]))
    assert choose(promising, settings(), replace(inflating, spec=promising)).reason == (
        "one task has less to do than each of several, and inputs make key promises"
    )


def test_the_option_decides() -> None:
    spec, _ = loaded(CHAIN)
    expected = Expected(spec, (1000.0,) * 3, {})
    for text in ("((r0 r1) r2)", "(r0 (r1 r2))"):
        assert choose(spec, settings(plan=text), expected).tree == parse(text, spec)
        assert choose(spec, Settings(partitions=1, plan=text), expected).tree == parse(text, spec)
    assert choose(spec, settings(plan="(r0 r1 r2)"), expected).tree is None
    with pytest.raises(OptionError, match="not connected"):
        choose(spec, settings(plan="((r0 r2) r1)"), expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"window": "5 minutes", **{f"source.r{n}.{o}": v for n in range(3) for o, v in
                                    (("timestamp", "t"), ("watermark", "1 minute"))}}, None),
        ({"window": "50 rows"}, "it has windows in rows"),
        ({"source.r0.window": "5 minutes", **{f"source.r{n}.{o}": v for n in range(3) for o, v in
          (("timestamp", "t"), ("watermark", "1 minute"))}}, "some inputs have windows and others have none"),
        ({"source.r0.unique": "i"}, None),
        ({"overflow": "shed", "maxDelay": "5 seconds"}, "option 'overflow' is 'shed'"),
        ({"overflow": "fail", "memory": "1m"}, "option 'overflow' is 'fail'"),
        ({"access": "r0>r1: scan"}, "option 'access' names single inputs"),
        ({"access": "hash"}, None),
        ({"memory": "1m"}, None),
    ],
)  # fmt: skip
def test_what_is_not_proved_stays_in_one_task(options: dict[str, str], reason: str | None) -> None:
    empty = {name: pa.array([], pa.int64()) for name in "ij"} | {"t": pa.array([], pa.timestamp("us", "UTC"))}
    query = "SELECT r0.i FROM r0, r1, r2 WHERE r0.i = r1.i AND r1.j = r2.j"
    spec, given_ = load(scripted({f"r{n}": [pa.table(empty)] for n in range(3)}, query, **options))
    assert obstacle(spec, given_) == reason
    expected = Expected(spec, (1000.0,) * 3, {})
    assert (choose(spec, Settings(**{**vars(given_), "partitions": 4}), expected).tree is None) == (reason is not None)


@given(st.integers(1, 10**9), st.lists(st.floats(0, 1e12), min_size=1, max_size=9))
@examples(60)
def test_stages_together_keep_to_the_budget(memory: int, moved: list[float]) -> None:
    parts = [each.memory_bytes for each in settings_of(settings(memory_bytes=memory, plan="x"), moved)]
    assert len(parts) == len(moved)
    assert sum(part or 0 for part in parts) <= memory
    assert all(part is not None and part >= int(memory / 2 / len(moved)) - 1 for part in parts)
    assert all(each.memory_bytes is None for each in settings_of(settings(), moved))


def test_what_is_not_known_is_assumed() -> None:
    spec, given_ = loaded(CHAIN)
    assert set(Expected.of(spec, given_, seconds=2).rows) == {2000.0}
    spec, given_ = loaded(CHAIN, **rates(10, 30))
    assert Expected.of(spec, given_, seconds=1).rows == (10.0, 30.0, 20.0)
    assert Expected.of(spec, given_, [None, 7.0, 8.0], seconds=1).rows == (10.0, 30.0, 8.0)


def test_widths_are_those_of_the_columns_that_are_sent() -> None:
    spec, _ = loaded(CHAIN)
    expected = Expected(spec, (100.0, 100.0, 100.0), {})
    assert expected.width_of(frozenset((1,))) == 3 * 8  # i, j, n
    assert expected.width_of(frozenset((0,))) == 2 * 8 + 20  # i, n, s
    assert expected.width_of(frozenset((0, 1))) == 3 * 8 + 20  # j, r0.n, r1.n, s
    assert expected.moved(parse("((r0 r1) r2)", spec)) == [100 * (36 + 24), 100 * (44 + 16)]
    assert width(pa.struct([("a", pa.int32()), ("b", pa.bool_())])) == 4 + 1 / 8
    assert render(least_bytes(expected), ["a", "b", "c"]) == "(a (b c))"
