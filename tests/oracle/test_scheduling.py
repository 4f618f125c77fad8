"""Every schedule gives the same multiset: against duckdb, with faults, overflow, partitions, trees and windows."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mjoin import task
from tests.harness import ABANDONED, LIMITED, ReadAllAvailable, Rows, reader, rows, run, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.test_join import duckdb_rows
from tests.oracle.test_overflow import overflowing
from tests.oracle.test_trees import any_tree, spec_of
from tests.oracle.windows import EXACT_FAULTS, WindowCase, sizes, window_cases

SCHEDULES = st.fixed_dictionaries(
    {"streamScheduling": st.sampled_from(["priority", "random"]), "schedulingQuota": st.sampled_from("1235")}
)
IN_TIME = sizes([1, 2, 5, 20]).filter(lambda window: window is None or window[0] == "time")


def scheduled_rows(case: Case, options: dict[str, str]) -> Rows:
    task._CACHE.clear()
    everything = scripted(case.scripts, case.query, partitions=str(case.partitions), **options)
    with tempfile.TemporaryDirectory() as state:
        return rows(run(everything, Path(state), case.schedule))


def check(case: Case, options: dict[str, str]) -> None:
    found, expected = scheduled_rows(case, options), duckdb_rows(case)
    if {ABANDONED, LIMITED} & set(case.schedule):  # nobody took what such a batch gave: nothing twice, that is all
        assert not found - expected
    else:
        assert found == expected


@given(cases(), SCHEDULES)
@settings(max_examples=30)
def oracle_every_schedule_gives_what_duckdb_gives(case: Case, options: dict[str, str]) -> None:
    check(case, options)


@given(cases(most_inputs=3, faults=True), SCHEDULES)
@settings(max_examples=30)
def oracle_faults_under_every_schedule(case: Case, options: dict[str, str]) -> None:
    check(case, options)


@given(overflowing(faults=True), SCHEDULES, st.integers(0, 1 << 30))
@settings(max_examples=40)
def oracle_schedules_under_overflow_in_any_tree(
    given_case: tuple[Case, dict[str, str]], options: dict[str, str], seed: int
) -> None:
    case, overflow = given_case
    check(case, {**overflow, **options, "plan": any_tree(spec_of(case), seed)})


@given(st.data(), window_cases(faults=EXACT_FAULTS, windows=IN_TIME), SCHEDULES)
@settings(max_examples=30)
def oracle_windows_in_time_do_not_depend_on_the_schedule(
    data: st.DataObject, case: WindowCase, options: dict[str, str]
) -> None:
    memory = data.draw(st.sampled_from([{}, {"memory": "1"}, {"memory": "20k"}]))
    everything = scripted(case.scripts(), case.query(), **case.options(), **options, **memory)
    task._CACHE.clear()
    with tempfile.TemporaryDirectory() as state:
        tables = run(everything, Path(state), case.schedule)
    assert rows([t.select([f"n{i}" for i in range(len(case.inputs))]) for t in tables]) == case.results()


@given(overflowing(), SCHEDULES)
@settings(max_examples=15)
def differential_a_batch_that_is_read_again_gives_the_same_rows_in_the_same_order(
    given_case: tuple[Case, dict[str, str]], options: dict[str, str]
) -> None:
    """Whether the state is in the worker or loaded, and though the query is started again with other options."""
    case, overflow = given_case
    everything = scripted(case.scripts, case.query, partitions=str(case.partitions), **overflow)
    task._CACHE.clear()
    with tempfile.TemporaryDirectory() as state:
        current = reader({**everything, **options, "stateLocation": state})
        start = current.initialOffset()
        while (end := current.latestOffset(start, ReadAllAvailable())) != start:
            first = [list(current.read(partition)) for partition in current.partitions(start, end)]
            task._CACHE.clear()
            again = reader({**everything, "stateLocation": state})
            assert [list(again.read(partition)) for partition in again.partitions(start, end)] == first
            start = end
