"""Overflow against duckdb: any policy, any budget, any graph, idle times, crashes. Nothing missing, nothing twice."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin import flush
from spark_mjoin.engine import cache
from spark_mjoin.state import segments
from spark_mjoin.state.residency import Residency
from tests.harness import ABANDONED, LIMITED, Rows, rows, run, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.test_join import duckdb_rows

POLICIES = sorted(flush.REGISTRY)
BUDGETS = ["1", "20k", "40k", "80k"]  # with the smallest, everything is evicted after each arrival


@st.composite
def overflowing(draw: st.DrawFn, **kinds: object) -> tuple[Case, dict[str, str]]:
    """A join and the options under which its memory overflows."""
    case = draw(cases(**kinds))
    policy = draw(st.sampled_from(POLICIES))
    options = {
        "memory": draw(st.sampled_from(BUDGETS)),
        "flush": policy,
        "diskFuel": draw(st.sampled_from(["1", "4k", "1g"])),
        "blockingThreshold": draw(st.sampled_from(["1", "3", "1000"])),
        "segmentCompression": draw(st.sampled_from(["none", "none", "lz4", "zstd"])),
    }
    return case, options


def overflow_rows(case: Case, options: dict[str, str], hash_bits: str = "64", general: bool = False) -> Rows:
    """What a join gives. general: by the rule for rows that are evicted one by one, even if they are in epochs."""
    cache.of_worker().clear()
    everything = scripted(case.scripts, case.query, partitions=str(case.partitions), **options)
    with tempfile.TemporaryDirectory() as state, pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "RUN_ROWS", 1)  # arrivals are written in runs, few as the rows are
        patch.setenv("SPARK_MJOIN_HASH_BITS", hash_bits)
        if general:
            patch.setattr(Residency, "in_epochs", lambda self, buckets: False)
        return rows(run(everything, Path(state), case.schedule))


@given(overflowing())
@examples(200)
def oracle_overflow_gives_what_duckdb_gives(given_case: tuple[Case, dict[str, str]]) -> None:
    case, options = given_case
    assert overflow_rows(case, options) == duckdb_rows(case)


@given(overflowing(most_inputs=3, faults=True))
@examples(150)
def oracle_faults_under_overflow(given_case: tuple[Case, dict[str, str]]) -> None:
    case, options = given_case
    found, expected = overflow_rows(case, options), duckdb_rows(case)
    if {ABANDONED, LIMITED} & set(case.schedule):  # nobody took what such a batch gave: nothing twice, that is all
        assert not found - expected
    else:
        assert found == expected


@pytest.mark.parametrize("policy", POLICIES)
@given(cases(most_inputs=3, star_only=True))
@examples(40)
def oracle_every_policy_on_stars(policy: str, case: Case) -> None:
    assert overflow_rows(case, {"memory": "20k", "flush": policy}) == duckdb_rows(case)


@pytest.mark.parametrize("hash_bits", ["64", "2", "0"])
@given(case=cases(most_inputs=4, star_only=True, faults=True), budget=st.sampled_from(BUDGETS))
@examples(40)
def oracle_both_rules_on_stars_whose_buckets_leave_whole(hash_bits: str, case: Case, budget: str) -> None:
    expected = duckdb_rows(case)
    for general in (False, True):
        options = {"memory": budget, "flush": "coordinated", "diskFuel": "4k", "blockingThreshold": "3"}
        found = overflow_rows(case, options, hash_bits, general)
        if {ABANDONED, LIMITED} & set(case.schedule):
            assert not found - expected
        else:
            assert found == expected


@given(cases(star_only=False))
@examples(60)
def oracle_coordinated_flushing_on_every_graph(case: Case) -> None:
    """Each star of a larger join is flushed as a whole; an input may have the keys of several."""
    assert overflow_rows(case, {"memory": "20k", "flush": "coordinated"}) == duckdb_rows(case)
