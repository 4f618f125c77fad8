"""Other numbers of partitions at every restart, against the same oracles: nothing lost, nothing repeated."""

from hypothesis import given
from hypothesis import strategies as st

from tests.harness import CRASH, OK, PARTLY, TORN, TWICE, rescaled
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.test_join import duckdb_rows, mjoin_rows

NUMBERS = st.lists(st.integers(1, 5), min_size=2, max_size=5)
FAULTS = st.lists(st.sampled_from([OK, OK, CRASH, TORN, TWICE, PARTLY]), max_size=6)


@given(cases(star_only=True), NUMBERS)
@examples(100)
def oracle_any_numbers_of_partitions(case: Case, numbers: list[int]) -> None:
    with rescaled(numbers):
        assert mjoin_rows(case) == duckdb_rows(case)
