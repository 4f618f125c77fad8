"""Rows that are divided otherwise all the time, against the same oracles: nothing lost, nothing repeated.

By slots that are assigned by rates, by ranges of keys, with keys that are split among partitions, and evenly again.
With all that a state may have in it, and with faults.
"""

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.model import Scheme
from tests.harness import ABANDONED, CRASH, LIMITED, OK, PARTLY, TORN, TWICE, duckdb_join, rescaled, rows, run, scripted
from tests.oracle import test_promises as promised
from tests.oracle import test_windows as windowed
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples
from tests.oracle.promises import PAIR, STAR, PromiseCase, promise_cases
from tests.oracle.test_join import duckdb_rows, mjoin_rows
from tests.oracle.test_overflow import overflow_rows, overflowing
from tests.oracle.test_rescaling import with_schedule
from tests.oracle.test_trees import tree_rows
from tests.oracle.windows import WindowCase, window_cases
from tests.relaid import relaid

EXACT = (CRASH, TORN, TWICE, PARTLY)  # faults after which a batch is run again
FAULTS = st.lists(st.sampled_from([OK, OK, OK, *EXACT]), max_size=8).map(tuple)
SCHEMES = pytest.mark.parametrize("scheme", get_args(Scheme))
NUMBERS = st.sampled_from([(2,), (3,), (5,), (3, 3, 2)])
SPLIT = st.sampled_from([True, True, False])


@SCHEMES
@given(cases(star_only=True), NUMBERS, FAULTS, SPLIT)
@examples(80)
def oracle_any_layouts(
    scheme: Scheme, case: Case, numbers: tuple[int, ...], faults: tuple[str, ...], split: bool
) -> None:
    with rescaled(numbers), relaid(scheme, split=split):
        assert mjoin_rows(with_schedule(case, faults)) == duckdb_rows(case)


@given(cases(star_only=True, faults=True, most_inputs=3), st.sampled_from(get_args(Scheme)), NUMBERS)
@examples(60)
def oracle_batches_that_nobody_has_read(case: Case, scheme: Scheme, numbers: tuple[int, ...]) -> None:
    expected = duckdb_rows(case)
    for batch, fault in enumerate(case.schedule):
        if fault in (ABANDONED, LIMITED):
            expected = expected - (duckdb_rows(case, batch + 1) - duckdb_rows(case, batch))
    with rescaled(numbers), relaid(scheme):
        assert mjoin_rows(case) == expected


@SCHEMES
@given(overflowing(star_only=True), NUMBERS, FAULTS, SPLIT)
@examples(80)
def oracle_rows_on_disk(
    scheme: Scheme,
    given_case: tuple[Case, dict[str, str]],
    numbers: tuple[int, ...],
    faults: tuple[str, ...],
    split: bool,
) -> None:
    case, options = given_case
    with rescaled(numbers), relaid(scheme, split=split):
        assert overflow_rows(with_schedule(case, faults), options) == duckdb_rows(case)


@given(st.data(), window_cases(faults=EXACT, star_only=True), st.sampled_from(get_args(Scheme)), NUMBERS)
@examples(120)
def oracle_windows(data: st.DataObject, case: WindowCase, scheme: Scheme, numbers: tuple[int, ...]) -> None:
    overflow = data.draw(windowed.overflow_options(case)) if data.draw(st.booleans()) else {}
    with rescaled(numbers), relaid(scheme):
        assert windowed.engine_rows(case, **overflow) == case.results()


@promised.FORGETFUL
@given(st.data(), promise_cases(shapes=(STAR, STAR, PAIR), faults=EXACT, emit=False), NUMBERS)
@examples(40)
def oracle_promises(room: str, data: st.DataObject, case: PromiseCase, numbers: tuple[int, ...]) -> None:
    overflow = data.draw(promised.overflow_options(case)) if data.draw(st.booleans()) else {}
    with rescaled(numbers), relaid("rate"):
        assert promised.data_of(case, promised.engine(case, room, **overflow)) == case.results()


@given(st.data(), cases(star_only=True), st.integers(0, 10**6), st.sampled_from(get_args(Scheme)), NUMBERS)
@examples(80)
def oracle_trees(data: st.DataObject, case: Case, seed: int, scheme: Scheme, numbers: tuple[int, ...]) -> None:
    overflow = data.draw(overflowing(star_only=True).map(lambda drawn: drawn[1])) if data.draw(st.booleans()) else {}
    with rescaled(numbers), relaid(scheme):
        assert tree_rows(case, seed, **overflow) == duckdb_rows(case)


@SCHEMES
def test_layouts_do_change(scheme: Scheme, tmp_path: Path) -> None:
    """Or the tests above would test nothing."""
    batches = [pa.table({"k": [n * i % 11 for i in range(40)]}) for n in range(1, 8)]
    scripts, seen, whole = dict.fromkeys("ab", batches), list[str](), list[str]()
    options = scripted(scripts, "SELECT a.k FROM a JOIN b ON a.k = b.k", partitions="3")
    for number, found in enumerate((seen, whole)):
        with relaid(scheme, found, split=not number):
            assert rows(run(options, tmp_path / str(number))) == rows(duckdb_join(options["query"], {
                alias: pa.concat_tables(script) for alias, script in scripts.items()
            }))  # fmt: skip
    assert "hash" in seen and any("hot key" in each and each.startswith(scheme) for each in seen)
    assert scheme == "hash" or scheme in whole
