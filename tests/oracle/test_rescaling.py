"""Other numbers of partitions at every restart, against the same oracles: nothing lost, nothing repeated.

With all that a state may have in it: rows on disk by every policy, windows in time and rows, promises and what is told
downstream because of them, shed rows, trees; and with faults in the first batches of each number.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin import flush
from tests.harness import ABANDONED, CRASH, LIMITED, OK, PARTLY, TORN, TWICE, rescaled
from tests.oracle import test_promises as promised
from tests.oracle import test_windows as windowed
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
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


@given(st.data(), cases(star_only=True), st.integers(0, 10**6), NUMBERS, FAULTS)
@examples(150)
def oracle_trees(data: st.DataObject, case: Case, seed: int, numbers: list[int], faults: tuple[str, ...]) -> None:
    overflow = data.draw(overflowing(star_only=True).map(lambda drawn: drawn[1])) if data.draw(st.booleans()) else {}
    with rescaled(numbers):
        assert tree_rows(with_schedule(case, faults), seed, **overflow) == duckdb_rows(case)
