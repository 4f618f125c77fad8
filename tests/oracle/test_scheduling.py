"""Every schedule gives the same multiset: with faults, overflow, partitions, trees, windows and promises.

Against duckdb, and against the definitions of windows and promises.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.engine import cache
from tests.harness import ABANDONED, LIMITED, ReadAllAvailable, Rows, reader, rows, run, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.promises import EXACT_FAULTS as FAULTS_WITH_PROMISES
from tests.oracle.promises import PromiseCase, promise_cases
from tests.oracle.test_join import duckdb_rows
from tests.oracle.test_overflow import overflowing
from tests.oracle.test_promises import data_of, engine, matching, overflow_options
from tests.oracle.test_trees import any_tree, spec_of
from tests.oracle.windows import EXACT_FAULTS, WindowCase, sizes, window_cases

SCHEDULES = st.fixed_dictionaries(
    {"streamScheduling": st.sampled_from(["priority", "random"]), "schedulingQuota": st.sampled_from("1235")}
)
IN_TIME = sizes([1, 2, 5, 20]).filter(lambda window: window is None or window[0] == "time")


def scheduled_rows(case: Case, options: dict[str, str]) -> Rows:
    cache.of_worker().clear()
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
@examples(20)
def oracle_every_schedule_gives_what_duckdb_gives(case: Case, options: dict[str, str]) -> None:
    check(case, options)


@given(cases(most_inputs=3, faults=True), SCHEDULES)
@examples(20)
def oracle_faults_under_every_schedule(case: Case, options: dict[str, str]) -> None:
    check(case, options)


@given(overflowing(faults=True), SCHEDULES, st.integers(0, 1 << 30))
@examples(25)
def oracle_schedules_under_overflow_in_any_tree(
    given_case: tuple[Case, dict[str, str]], options: dict[str, str], seed: int
) -> None:
    case, overflow = given_case
    check(case, {**overflow, **options, "plan": any_tree(spec_of(case), seed)})


@given(st.data(), window_cases(faults=EXACT_FAULTS, windows=IN_TIME), SCHEDULES)
@examples(20)
def oracle_windows_in_time_do_not_depend_on_the_schedule(
    data: st.DataObject, case: WindowCase, options: dict[str, str]
) -> None:
    memory = data.draw(st.sampled_from([{}, {"memory": "1"}, {"memory": "20k"}]))
    everything = scripted(case.scripts(), case.query(), **(case.options() | options | memory))
    cache.of_worker().clear()
    with tempfile.TemporaryDirectory() as state:
        tables = run(everything, Path(state), case.schedule)
    assert rows([t.select([f"n{i}" for i in range(len(case.inputs))]) for t in tables]) == case.results()


@given(overflowing(), SCHEDULES)
@examples(10)
def differential_a_batch_that_is_read_again_gives_the_same_rows_in_the_same_order(
    given_case: tuple[Case, dict[str, str]], options: dict[str, str]
) -> None:
    """Whether the state is in the worker or loaded, and though the query is started again with other options."""
    case, overflow = given_case
    everything = scripted(case.scripts, case.query, partitions=str(case.partitions), **overflow)
    cache.of_worker().clear()
    with tempfile.TemporaryDirectory() as state:
        current = reader({**everything, **options, "stateLocation": state})
        start = current.initialOffset()
        while (end := current.latestOffset(start, ReadAllAvailable())) != start:
            first = [list(current.read(partition)) for partition in current.partitions(start, end)]
            cache.of_worker().clear()
            again = reader({**everything, "stateLocation": state})
            assert [list(again.read(partition)) for partition in again.partitions(start, end)] == first
            start = end


@st.composite
def scheduled_promises(draw: st.DrawFn) -> tuple[PromiseCase, dict[str, str]]:
    """A join with promises that hold in the order of its sources, and a schedule that mixes them."""
    case = replace(draw(promise_cases(faults=FAULTS_WITH_PROMISES)), window=None)
    options = {
        "streamScheduling": draw(st.sampled_from(["sequential", "priority", "random", "auto"])),
        "tupleScheduling": draw(st.sampled_from(["value", "value", "sequential", "auto"])),
        "goal": draw(st.sampled_from(["rate", "memory"])),
    }
    if options["streamScheduling"] != "sequential" or options["tupleScheduling"] == "value":
        options["schedulingQuota"] = draw(st.sampled_from("12359"))
    return case, options | draw(st.one_of(st.just({}), overflow_options(case)))


@given(scheduled_promises())
@examples(50)
def oracle_promises_that_hold_for_the_sources_hold_in_every_schedule(
    given_case: tuple[PromiseCase, dict[str, str]],
) -> None:
    case, options = given_case
    tables = engine(case, **options)
    assert data_of(case, tables) == case.results()
    if case.emit:
        said: list[dict[str, object]] = []
        for table in tables:
            rows_out = table.to_pylist()
            assert not any(matching(p, case, row) for p in said for row in rows_out if not row["punctuation"])
            said += [row for row in rows_out if row["punctuation"]]


@given(scheduled_promises())
@examples(25)
def oracle_no_schedule_breaks_a_promise(given_case: tuple[PromiseCase, dict[str, str]]) -> None:
    """What is checked as the rows arrive, in the order of the schedule, is what the sources have promised."""
    case, options = given_case
    assert data_of(case, engine(case, verifyConstraints="fail", **options)) == case.results()
