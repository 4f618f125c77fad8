"""Plans of several MJoins against duckdb: any tree, changed between batches, with budgets and faults.

Every plan of a join gives the same multiset.
"""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.choice import Planner
from spark_mjoin.engine import cache
from spark_mjoin.mjoin import orders
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.plan import Plan
from spark_mjoin.query.tree import is_connected, parse, render
from tests.harness import ABANDONED, CRASH, LIMITED, OK, TORN, Rows, consume, reader, rows, run, scripted
from tests.harness import ReadAllAvailable as Everything
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.test_join import duckdb_rows
from tests.oracle.test_overflow import overflowing


def any_tree(spec: JoinSpec, seed: int) -> str:
    """A plan over the inputs of a join, as the option has it."""
    chance = random.Random(seed)
    members: list[Tree] = list(range(len(spec.inputs)))
    while len(members) > 1:
        size = chance.randint(2, len(members))
        chosen = [chance.choice(members)]
        while len(chosen) < size:
            near = [m for m in members if m not in chosen and is_connected(spec, [*chosen, m])]
            chosen.append(chance.choice(near))
        members = [m for m in members if m not in chosen] + [tuple(chosen)]
    return render(members[0], [i.alias for i in spec.inputs])


def spec_of(case: Case) -> JoinSpec:
    return reader({**scripted(case.scripts, case.query), "stateLocation": "unused"}).session.spec


def tree_rows(case: Case, seed: int, **options: str) -> Rows:
    cache.of_worker().clear()
    everything = scripted(
        case.scripts, case.query, plan=any_tree(spec_of(case), seed), partitions=str(case.partitions), **options
    )
    with tempfile.TemporaryDirectory() as state:
        return rows(run(everything, Path(state), case.schedule))


def changing_rows(case: Case, seeds: list[int], **options: str) -> Rows:
    """The results where the query is stopped after every batch and started again with another plan.

    Each batch runs in one of two workers, which have seen different batches before.
    """
    with tempfile.TemporaryDirectory() as state:
        return rows(list(_changing(case, seeds, {**options, "stateLocation": state})))


def _changing(case: Case, seeds: list[int], options: dict[str, str]) -> Iterator[pa.Table]:
    spec, start, batch = spec_of(case), None, 0
    workers = cache.StateCache(), cache.StateCache()
    while True:
        seed = seeds[batch % len(seeds)]
        plan = any_tree(spec, seed // 2)
        everything = scripted(case.scripts, case.query, plan=plan, partitions=str(case.partitions), **options)
        current = reader(everything)
        start = current.initialOffset() if start is None else start
        end = current.latestOffset(start, Everything())
        if end == start:
            return
        fault = case.schedule[batch] if batch < len(case.schedule) else OK
        with cache.using(workers[seed % 2]):
            if fault in (CRASH, TORN):
                for partition in current.partitions(start, end):
                    consume(current.read(partition), None if fault == CRASH else 1)
                for worker in workers:
                    worker.clear()
                current = reader(everything)
            found = [b for partition in current.partitions(start, end) for b in current.read(partition)]
        yield pa.Table.from_batches(found, current.session.spec.schema)
        start, batch = end, batch + 1


@given(cases(most_inputs=6, most_rows=6, faults=True), st.integers(0, 10**6))
@examples(60)
def oracle_every_plan_gives_what_duckdb_gives(case: Case, seed: int) -> None:
    assert tree_rows(case, seed) == _without_what_nobody_took(case)


def _without_what_nobody_took(case: Case) -> Rows:
    """What duckdb gives, less what batches would have added whose rows nobody asked for."""
    expected = duckdb_rows(case)
    for batch, fault in enumerate(case.schedule):
        if fault in (ABANDONED, LIMITED):
            expected = expected - (duckdb_rows(case, batch + 1) - duckdb_rows(case, batch))
    return expected


@given(overflowing(most_inputs=5, most_rows=6), st.integers(0, 10**6))
@examples(60)
def oracle_every_plan_gives_it_under_overflow(given_case: tuple[Case, dict[str, str]], seed: int) -> None:
    case, options = given_case
    assert tree_rows(case, seed, **options) == duckdb_rows(case)


@given(overflowing(most_inputs=4, most_rows=6, faults=True), st.integers(0, 10**6))
@examples(50)
def oracle_faults_under_overflow_in_every_plan(given_case: tuple[Case, dict[str, str]], seed: int) -> None:
    case, options = given_case
    found, expected = tree_rows(case, seed, **options), duckdb_rows(case)
    if {ABANDONED, LIMITED} & set(case.schedule):  # nobody took what such a batch gave: nothing twice, that is all
        assert not found - expected
    else:
        assert found == expected


def chosen_rows(case: Case, seed: int, **options: str) -> Rows:
    """The results where the planner chooses other trees and orders for most batches, by chance.

    So trees change within one run, in batches that are abandoned, limited or read twice as in others.
    """
    chance, spec = random.Random(seed), spec_of(case)

    def tree(planner: Planner, before: Plan, *_: object) -> tuple[Tree, str]:
        if chance.random() < 0.3:
            return before.tree, "as it was"
        return parse(any_tree(spec, chance.randrange(10**6)), spec), "chance"

    cache.of_worker().clear()
    everything = scripted(case.scripts, case.query, partitions=str(case.partitions), **options)
    with tempfile.TemporaryDirectory() as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Planner, "tree", tree)
        patch.setattr(orders, "LEAST_PROBES", 1)
        patch.setattr(orders, "LEAST_GAIN", -1)
        return rows(run(everything, Path(state), case.schedule))


@given(cases(most_inputs=6, most_rows=6, faults=True), st.integers(0, 10**6))
@examples(25)
def oracle_the_planner_may_change_the_tree_in_any_batch(case: Case, seed: int) -> None:
    assert chosen_rows(case, seed) == _without_what_nobody_took(case)


@given(overflowing(most_inputs=5, most_rows=6, faults=True), st.integers(0, 10**6))
@examples(25)
def oracle_the_planner_may_change_the_tree_under_overflow(given_case: tuple[Case, dict[str, str]], seed: int) -> None:
    case, options = given_case
    found, expected = chosen_rows(case, seed, **options), duckdb_rows(case)
    if {ABANDONED, LIMITED} & set(case.schedule):
        assert not found - expected
    else:
        assert found == expected


@given(cases(most_inputs=10, most_rows=3, faults=True), st.integers(0, 10**6))
@examples(10)
def oracle_trees_of_ten_inputs(case: Case, seed: int) -> None:
    assert chosen_rows(case, seed) == _without_what_nobody_took(case)


SEEDS = st.lists(st.integers(0, 10**6), min_size=1, max_size=5)


@given(cases(most_inputs=5, most_rows=6, faults=True), SEEDS)
@examples(60)
def oracle_a_change_of_plan_neither_loses_nor_repeats_results(case: Case, seeds: list[int]) -> None:
    assert changing_rows(case, seeds) == duckdb_rows(case)


@given(overflowing(most_inputs=5, most_rows=6, faults=True), SEEDS)
@examples(60)
def oracle_a_change_of_plan_under_overflow(given_case: tuple[Case, dict[str, str]], seeds: list[int]) -> None:
    case, options = given_case
    assert changing_rows(case, seeds, **options) == duckdb_rows(case)
