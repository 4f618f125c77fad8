"""Other numbers of partitions at every restart, against the same oracles: nothing lost, nothing repeated.

With all that a state may have in it: rows on disk by every policy, windows in time and rows, promises and the
punctuations that are emitted because of them, shed rows, trees; and with faults in the first batches of each number.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin import flush
from tests.harness import ABANDONED, CRASH, LIMITED, OK, PARTLY, TORN, TWICE, rescaled
from tests.oracle import test_estimates as estimated
from tests.oracle import test_promises as promised
from tests.oracle import test_shedding as shed
from tests.oracle import test_shrinking as shrunk
from tests.oracle import test_windows as windowed
from tests.oracle.cases import Case, cases
from tests.oracle.estimates import CHUNK_ROWS, compared
from tests.oracle.examples import examples, in_turn
from tests.oracle.promises import PAIR, STAR, PromiseCase, promise_cases
from tests.oracle.test_join import duckdb_rows, mjoin_rows
from tests.oracle.test_overflow import overflow_rows, overflowing
from tests.oracle.test_trees import tree_rows
from tests.oracle.windows import WindowCase, window_cases

NUMBERS = st.lists(st.integers(1, 5), min_size=2, max_size=5)
EXACT = (CRASH, TORN, TWICE, PARTLY)  # faults after which a batch is run again
FAULTS = st.lists(st.sampled_from([OK, OK, *EXACT]), max_size=8).map(tuple)


def with_schedule(case: Case, schedule: tuple[str, ...]) -> Case:
    return Case(case.scripts, case.query, case.partitions, schedule, case.star)


@given(cases(star_only=True), NUMBERS, FAULTS)
@examples(120)
def oracle_any_numbers_of_partitions(case: Case, numbers: list[int], faults: tuple[str, ...]) -> None:
    with rescaled(numbers):
        assert mjoin_rows(with_schedule(case, faults)) == duckdb_rows(case)


@given(cases(star_only=True, faults=True, most_inputs=3), NUMBERS)
@examples(120)
def oracle_batches_that_nobody_has_read(case: Case, numbers: list[int]) -> None:
    """The first batches of a number may be among them: a task takes over, and makes up for what came since."""
    expected = duckdb_rows(case)
    for batch, fault in enumerate(case.schedule):
        if fault in (ABANDONED, LIMITED):
            expected = expected - (duckdb_rows(case, batch + 1) - duckdb_rows(case, batch))
    with rescaled(numbers):
        assert mjoin_rows(case) == expected


@given(overflowing(star_only=True), NUMBERS, FAULTS)
@examples(200)
def oracle_rows_on_disk(given_case: tuple[Case, dict[str, str]], numbers: list[int], faults: tuple[str, ...]) -> None:
    case, options = given_case
    with rescaled(numbers):
        assert overflow_rows(with_schedule(case, faults), options) == duckdb_rows(case)


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@given(cases(star_only=True, most_inputs=3), NUMBERS)
@examples(30)
def oracle_every_policy(policy: str, case: Case, numbers: list[int]) -> None:
    with rescaled(numbers):
        assert overflow_rows(case, {"memory": "60k", "flush": policy}) == duckdb_rows(case)


@given(overflowing(star_only=True, faults=True, most_inputs=3), NUMBERS)
@examples(80)
def oracle_batches_that_nobody_has_read_with_rows_on_disk(
    given_case: tuple[Case, dict[str, str]], numbers: list[int]
) -> None:
    case, options = given_case
    with rescaled(numbers):
        assert not overflow_rows(case, options) - duckdb_rows(case)


@given(st.data(), window_cases(faults=EXACT, star_only=True), NUMBERS)
@examples(200)
def oracle_windows(data: st.DataObject, case: WindowCase, numbers: list[int]) -> None:
    overflow = data.draw(windowed.overflow_options(case)) if data.draw(st.booleans()) else {}
    with rescaled(numbers):
        assert windowed.engine_rows(case, **overflow) == case.results()


@given(window_cases(faults=(*EXACT, ABANDONED), star_only=True), NUMBERS)
@examples(120)
def oracle_windows_with_batches_that_nobody_has_read(case: WindowCase, numbers: list[int]) -> None:
    length = max(len(i.batches) for i in case.inputs)
    lost = [b for b, fault in enumerate(case.schedule) if fault == ABANDONED]
    with rescaled(numbers):
        assert windowed.engine_rows(case) == case.results([b for b in range(length) if b not in lost])


@promised.FORGETFUL
@given(st.data(), promise_cases(shapes=(STAR, STAR, PAIR), faults=EXACT, emit=False), NUMBERS)
@examples(60)
def oracle_promises(room: str, data: st.DataObject, case: PromiseCase, numbers: list[int]) -> None:
    overflow = data.draw(promised.overflow_options(case)) if data.draw(st.booleans()) else {}
    with rescaled(numbers):
        assert promised.data_of(case, promised.engine(case, room, **overflow)) == case.results()


@promised.FORGETFUL
@given(
    st.data(),
    promise_cases(shapes=(STAR, PAIR), faults=EXACT, emit=True).filter(lambda case: case.partitions > 1),
    NUMBERS,
)
@examples(60)
def oracle_emitted_punctuations_hold_and_come_once(
    room: str, data: st.DataObject, case: PromiseCase, numbers: list[int]
) -> None:
    with rescaled(numbers):
        promised.oracle_emitted_punctuations_hold_and_come_once.hypothesis.inner_test(room, data, case)


@given(window_cases(faults=(*EXACT, ABANDONED), star_only=True), shed.SCRIPTS, NUMBERS)
@examples(60)
def oracle_shed_rows_with_windows(case: WindowCase, script: list, numbers: list[int]) -> None:
    with rescaled(numbers):
        shed.oracle_with_windows_results_are_those_of_the_rows_that_are_let_in.hypothesis.inner_test(case, script)


@given(shed.streams(), shed.SCRIPTS, st.lists(st.sampled_from([OK, *EXACT, ABANDONED]), max_size=4), st.data(), NUMBERS)
@examples(60)
def oracle_shed_rows(
    keys: list[list[list[int]]], script: list, schedule: list[str], data: st.DataObject, numbers: list[int]
) -> None:
    with rescaled(numbers):
        shed.oracle_without_windows_results_are_those_of_the_rows_that_are_let_in.hypothesis.inner_test(
            keys, script, schedule, data
        )


@given(window_cases(faults=EXACT, windows=shrunk.WINDOWS, star_only=True), shrunk.MEMORY, NUMBERS)
@examples(60)
def oracle_shortened_windows(case: WindowCase, memory: str, numbers: list[int]) -> None:
    with rescaled(numbers):
        shrunk.oracle_partitions_together_give_no_more_than_there_is.hypothesis.inner_test(case, memory)


@given(st.data(), cases(star_only=True), st.integers(0, 10**6), NUMBERS, FAULTS)
@examples(150)
def oracle_trees(data: st.DataObject, case: Case, seed: int, numbers: list[int], faults: tuple[str, ...]) -> None:
    overflow = data.draw(overflowing(star_only=True).map(lambda drawn: drawn[1])) if data.draw(st.booleans()) else {}
    with rescaled(numbers):
        assert tree_rows(with_schedule(case, faults), seed, **overflow) == duckdb_rows(case)


@in_turn(["uniform", "skewed", "strings", "windows in time", "shed", "shed, windows", "passing by", "shrunk"])
@pytest.mark.parametrize("numbers", [(2, 4, 1, 3), (1, 5)], ids=str)
def oracle_estimates_are_within_the_tolerance(
    name: str, numbers: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample goes along, with what it knows of rows that are not there any more."""
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", CHUNK_ROWS)
    with rescaled(numbers):
        for metric, estimate, truth in compared(estimated.KINDS[name], 1, tmp_path):
            assert abs(estimate - truth) < estimated.TOLERANCE, f"{metric} says {estimate}, {truth:.4f} is true"
