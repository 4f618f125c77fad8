"""The join against duckdb: generated schemas, graphs, arrivals and faults. Nothing missing, nothing twice."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given

from spark_mjoin import kernel
from spark_mjoin.engine import cache
from spark_mjoin.errors import OptionError
from spark_mjoin.kernel import slow
from spark_mjoin.mjoin import operator
from tests.harness import ABANDONED, LIMITED, Rows, duckdb_join, reader, rows, run, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples


def duckdb_rows(case: Case, upto: int | None = None) -> Rows:
    """The answer for the rows of the first `upto` batches of every source; of all by default."""
    arrived = {alias: script[:upto] or [script[0].slice(0, 0)] for alias, script in case.scripts.items()}
    return rows(duckdb_join(case.query, {alias: pa.concat_tables(script) for alias, script in arrived.items()}))


def mjoin_rows(case: Case) -> Rows:
    options = scripted(case.scripts, case.query, partitions=str(case.partitions))
    with tempfile.TemporaryDirectory() as state:
        return rows(run(options, Path(state), case.schedule))


@pytest.fixture(params=["1", "40k"], ids=["nothing stays in memory", "overflow"])
def overflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MJOIN_MEMORY", request.param)
    cache.of_worker().clear()


@pytest.fixture(params=[("64", 1), ("1", operator.FEW_CANDIDATES)], ids=["rounds", "collisions"])
def probing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to follow chains: in rounds over all candidates, and long chains of colliding hashes one by one."""
    bits, few = request.param
    monkeypatch.setenv("SPARK_MJOIN_HASH_BITS", bits)
    monkeypatch.setattr(operator, "FEW_CANDIDATES", few)
    cache.of_worker().clear()


@pytest.mark.usefixtures("probing")
@given(cases())
@examples(150)
def oracle_results_are_those_of_duckdb(case: Case) -> None:
    assert mjoin_rows(case) == duckdb_rows(case)


@pytest.mark.usefixtures("probing")
@given(cases(most_inputs=3, faults=True))
@examples(150)
def oracle_faults_neither_lose_nor_repeat_results(case: Case) -> None:
    expected = duckdb_rows(case)
    for batch, fault in enumerate(case.schedule):
        if fault in (ABANDONED, LIMITED):  # what the batch would have added is nobody's
            expected = expected - (duckdb_rows(case, batch + 1) - duckdb_rows(case, batch))
    assert mjoin_rows(case) == expected


@pytest.mark.usefixtures("probing", "overflow")
@given(cases())
@examples(40)
def oracle_results_are_those_of_duckdb_under_overflow(case: Case) -> None:
    assert mjoin_rows(case) == duckdb_rows(case)


@pytest.mark.usefixtures("overflow")
@given(cases(most_inputs=3, most_rows=6))
@examples(10)
def differential_slow_kernels_give_the_same_results_under_overflow(case: Case) -> None:
    differential_slow_kernels_give_the_same_results.hypothesis.inner_test(case)


@given(cases(most_inputs=3, most_rows=6))
@examples(40)
def differential_slow_kernels_give_the_same_results(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in kernel.__all__:
            if hasattr(slow, name):
                patch.setattr(kernel, name, getattr(slow, name))
        twin = mjoin_rows(case)
    assert twin == mjoin_rows(case)


@given(cases(most_inputs=10, most_rows=3))
@examples(40)
def oracle_ten_inputs(case: Case) -> None:
    assert mjoin_rows(case) == duckdb_rows(case)


@pytest.mark.usefixtures("overflow")
@given(cases(most_inputs=10, most_rows=3))
@examples(10)
def oracle_ten_inputs_under_overflow(case: Case) -> None:
    assert mjoin_rows(case) == duckdb_rows(case)


def test_a_first_batch_without_rows_changes_no_state(tmp_path: Path) -> None:
    """Spark runs the first batch of a query even when the sources have nothing: start and end are the same version."""
    empty = pa.table({"k": pa.array([], pa.int64())})
    one = pa.table({"k": [1]})
    options = scripted({"a": [empty, one], "b": [one]}, "SELECT a.k FROM a JOIN b ON a.k = b.k")
    current = reader({**options, "stateLocation": str(tmp_path)})
    start = current.initialOffset()
    assert list(current.partitions(start, start)) == []
    assert rows(run(options, tmp_path)) == {(1,): 1}


def test_a_source_that_the_query_does_not_use_is_an_error(tmp_path: Path) -> None:
    one = pa.table({"k": [1]})
    options = scripted({"a": [one], "b": [one], "c": [one]}, "SELECT a.k FROM a JOIN b ON a.k = b.k")
    with pytest.raises(OptionError, match="source 'c' is not in option 'query'"):
        reader({**options, "stateLocation": str(tmp_path)})
