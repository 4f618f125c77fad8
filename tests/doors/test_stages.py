"""Joins in stages against duckdb: any graph, any tree of stages, with budgets, ticks and faults."""

import tempfile
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.errors import StateError
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.tree import parse
from tests.examples import examples
from tests.harness import CRASH, OK, TORN, TWICE, Rows, duckdb_join, reader, rows, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.test_join import duckdb_rows
from tests.staged import Arriving, StagedJoin, any_stages

FAULTS = st.lists(st.tuples(st.sampled_from([OK, CRASH, TORN, TWICE]), st.integers(0, 3)), max_size=8)


def spec_of(case: Case) -> JoinSpec:
    return reader({**scripted(case.scripts, case.query), "stateLocation": "unused"}).session.spec


def batches_of(scripts: dict[str, list[pa.Table]]) -> list[Arriving]:
    """What arrives in each batch."""
    taken = zip_longest(*scripts.values())
    return [{alias: t for alias, t in zip(scripts, some, strict=True) if t is not None} for some in taken]


@given(cases(), st.integers(0, 999), st.integers(1, 3), st.sampled_from([None, 1, 3000]), FAULTS)
@examples(150)
def oracle_any_stages_give_the_join(
    case: Case, seed: int, partitions: int, memory: int | None, faults: list[tuple[str, int]]
) -> None:
    spec = spec_of(case)
    tree = any_stages(spec, seed)
    settings = Settings(partitions, memory, blocking_rows=1)
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, tree, settings)
        assert join.whole(batches_of(case.scripts), faults) == duckdb_rows(case)


# --- what must not happen ------------------------------------------------------------------------------------------


def spec_over(tables: dict[str, pa.Table], query: str) -> JoinSpec:
    return reader({**scripted({a: [t] for a, t in tables.items()}, query), "stateLocation": "unused"}).session.spec


def test_a_class_compares_as_it_does_in_the_whole() -> None:
    """As doubles, though the two that meet in the second stage are integers, of which one stands for a double."""
    big = 2**53
    tables = {
        "a": pa.table({"k": pa.array([big + 1], pa.int64()), "m": pa.array([1], pa.int64())}),
        "b": pa.table({"k": pa.array([float(big)], pa.float64()), "m": pa.array([1], pa.int64())}),
        "c": pa.table({"k": pa.array([big], pa.int64())}),
    }
    query = "SELECT a.k AS x, c.k AS y FROM a, b, c WHERE a.m = b.m AND a.k = b.k AND c.k = b.k"
    spec = spec_over(tables, query)
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, parse("((a b) c)", spec), Settings(2))
        found = join.whole([tables])
    assert found == Rows({(big + 1, big): 1}) == rows(duckdb_join(query, tables))


def test_two_keys_of_one_input_in_a_class_stay_equal() -> None:
    tables = {
        "a": pa.table({"k": pa.array([1, 1], pa.int64()), "l": pa.array([1, 2], pa.int64())}),
        "b": pa.table({"k": pa.array([1, 2], pa.int64()), "m": pa.array([5, 5], pa.int64())}),
        "c": pa.table({"m": pa.array([5], pa.int64())}),
    }
    query = "SELECT a.k, a.l FROM a, b, c WHERE a.k = b.k AND a.l = b.k AND b.m = c.m"
    spec = spec_over(tables, query)
    for text in ("((a b) c)", "(a (b c))"):
        with tempfile.TemporaryDirectory() as root:
            found = StagedJoin(Path(root), spec, parse(text, spec), Settings(2)).whole([tables])
        assert found == Rows({(1, 1): 1})


def spilled(size: int) -> dict[str, list[pa.Table]]:
    """Rows of a chain, in three batches."""
    columns = {"a": ("i",), "b": ("i", "j"), "c": ("j",)}
    return {
        alias: [
            pa.table(
                {name: pa.array([(i * (3 + place) + n) % 20 for i in range(size)], pa.int64()) for name in names}
                | {"n": pa.array([n * size + i for i in range(size)], pa.int64())}
            )
            for n in range(3)
        ]
        for place, (alias, names) in enumerate(columns.items())
    }


CHAIN = "SELECT a.n AS x, b.n AS y, c.n AS z FROM a JOIN b ON a.i = b.i JOIN c ON b.j = c.j"


def test_the_number_of_partitions_changes_in_all_stages_though_one_has_rows_on_disk(tmp_path: Path) -> None:
    scripts = spilled(40)
    spec = spec_over({alias: tables[0] for alias, tables in scripts.items()}, CHAIN)
    first, second = Settings(2, None), Settings(2, 3000)  # rows are on disk in the second alone
    join = StagedJoin(tmp_path, spec, parse("((a b) c)", spec), [first, second])
    arriving = batches_of(scripts)
    found = join.batch(arriving[0]) + join.batch(arriving[1])
    assert join.has_more()
    for partitions in (3, 1):
        join.settings = [replace(first, partitions=partitions), replace(second, partitions=partitions)]
        join.restart()
        found += join.batch(arriving[2] if partitions == 3 else {})
    found += join.whole(arriving[3:])
    assert found == rows(duckdb_join(CHAIN, {alias: pa.concat_tables(tables) for alias, tables in scripts.items()}))


def test_a_stage_does_not_insist_on_a_number_that_an_earlier_one_has_refused(tmp_path: Path) -> None:
    """The earlier one is planned after it, and has run tasks in another number."""
    scripts = spilled(10)
    spec = spec_over({alias: tables[0] for alias, tables in scripts.items()}, CHAIN)
    join = StagedJoin(tmp_path, spec, parse("((a b) c)", spec), Settings(2))
    found, numbers = Rows(), [2, 3, 2, 3]
    for number, arriving in enumerate(batches_of(scripts)):
        join.settings = [Settings(numbers[number])] * 2
        join.restart()
        join.run(arriving, until=0)  # and Spark is killed
        for other in (1, numbers[number + 1]):
            join.settings = [Settings(other)] * 2
            join.restart()
            with pytest.raises(StateError, match=f"was planned with partitions = {numbers[number]} and was not"):
                join.batch(arriving)
        join.settings = [Settings(numbers[number])] * 2
        join.restart()
        found += join.batch(arriving)
    assert found == rows(duckdb_join(CHAIN, {alias: pa.concat_tables(tables) for alias, tables in scripts.items()}))


def test_other_stages_are_refused_with_the_plan_that_keeps_the_old_ones(tmp_path: Path) -> None:
    scripts = spilled(10)
    spec = spec_over({alias: tables[0] for alias, tables in scripts.items()}, CHAIN)
    StagedJoin(tmp_path, spec, parse("((a b) c)", spec), Settings(2)).batch(batches_of(scripts)[0])
    other = StagedJoin(tmp_path, spec, parse("(a (b c))", spec), Settings(2))
    other.version = 1
    with pytest.raises(StateError, match=r"set option 'plan' to '\(\(a b\) c\)'"):
        other.batch(batches_of(scripts)[1])
