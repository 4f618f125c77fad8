"""Scans against their definition and against looking up: any mixture of both gives the same multiset."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.mjoin import operator
from spark_mjoin.state.table import Table
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.test_join import duckdb_rows
from tests.oracle.test_overflow import overflow_rows, overflowing
from tests.oracle.test_trees import tree_rows
from tests.oracle.test_windows import engine_rows
from tests.oracle.windows import EXACT_FAULTS, WindowCase, window_cases


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    """Several blocks of a target, and outputs that are full in the middle of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "CHUNK_ROWS", 5)
        patch.setattr(operator, "FEW_CANDIDATES", 2)
        yield


def some(inputs: int, seed: int) -> str:
    """Option `access`: every direction as it happens."""
    chance = random.Random(seed)
    pairs = [(a, b) for a in range(inputs) for b in range(inputs) if a != b]
    return ", ".join(f"r{a}>r{b}: {chance.choice(['hash', 'scan', 'scan'])}" for a, b in pairs)


@pytest.mark.parametrize("bits", ["64", "1"], ids=["all-bits", "collisions"])
@given(cases(), st.integers(0, 99))
@examples(40)
def oracle_any_access_joins(bits: str, case: Case, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_MJOIN_HASH_BITS", bits)
        assert overflow_rows(case, {"access": some(len(case.scripts), seed)}) == duckdb_rows(case)


@given(cases(faults=True))
@examples(30)
def differential_scans_and_faults(case: Case) -> None:
    """Batches that nobody asked for give the same as well: what is committed does not depend on access."""
    assert overflow_rows(case, {"access": "scan"}) == overflow_rows(case, {"access": "hash"})


@given(overflowing(most_rows=12), st.integers(0, 99))
@examples(30)
def oracle_scans_under_overflow(given_case: tuple[Case, dict[str, str]], seed: int) -> None:
    case, options = given_case
    assert overflow_rows(case, {**options, "access": some(len(case.scripts), seed)}) == duckdb_rows(case)


@given(cases(), st.integers(0, 99))
@examples(30)
def oracle_scans_in_trees(case: Case, seed: int) -> None:
    assert tree_rows(case, seed, access="scan") == duckdb_rows(case)


@given(window_cases(faults=EXACT_FAULTS), st.integers(0, 99))
@examples(60)
def oracle_scans_of_windows(case: WindowCase, seed: int) -> None:
    assert engine_rows(case, access=some(len(case.inputs), seed)) == case.results()


@given(window_cases())
@examples(20)
def test_no_index_is_made_where_all_directions_scan(case: WindowCase) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "index", lambda *given: pytest.fail("an index was asked for"))
        assert engine_rows(case, access="scan") == case.results()
