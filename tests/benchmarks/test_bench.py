"""The benchmark against Spark's own joins: cold and warm, measured in a small session, and what the table says."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import bench, check, child, engines, report
from benchmarks.engines import Engine, Measurement, NoResult, Request
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("kind", ["mjoin", "spark"])
def test_the_first_query_of_a_session_is_the_cold_one(
    kind: str, spark_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = WORKLOADS["b"].prepare(tmp_path / "data", 0.01, 2)
    engine = Engine(kind, "mjoin" if kind == "mjoin" else "spark", "it", files_per_trigger=1)
    (tmp_path / "scratch").mkdir()
    request = Request(engine, "b", 0.01, str(tmp_path / "data"), str(tmp_path / "scratch"), 2, 60.0, verify=True)
    taken, stream = [], child._stream

    def noted(*arguments: object) -> tuple[float, int, int]:
        taken.append(stream(*arguments))  # type: ignore[arg-type]
        return taken[-1]

    monkeypatch.setattr(child, "_stream", noted)
    found = child.in_session(spark_session, request, data, Measurement("b", engine.name, engine.label))
    assert found.cold == taken[0][0]
    assert found.times == tuple(seconds for seconds, *_ in taken[2:4])  # the second run samples memory
    assert found.micro_batches == 2 and not found.error
    assert bench.compared(found, check.reference(data)).same


def test_what_numba_compiles_is_no_part_of_a_cold_time(tmp_path: Path) -> None:
    """The small join before the session gives results, so all that a join needs has been compiled."""
    small = WORKLOADS["b"].prepare(tmp_path / "data", 0.01, 2)
    child._compile(small, Engine("mjoin", "mjoin", "ours"), tmp_path / "state")
    assert list((tmp_path / "state").rglob("*.json"))


def test_the_table_has_cold_and_warm_and_compares_like_with_like() -> None:
    results = report.Results(0.5, {})
    results.add(Measurement("a", "mjoin-batches", "ours", cold=10.0, times=(3.0, 2.0), same=True))
    results.add(Measurement("a", "spark", "theirs", cold=60.0, times=(50.0,), same=True))
    results.add(Measurement("a", "duckdb-1", "duckdb", times=(1.0,), same=True))
    ours, theirs, duckdb = (dict(zip(report.HEADER, row, strict=True)) for row in report.rows(results, "a"))
    assert (ours["cold s"], ours["warm s"]) == ("10.000", "2.000")
    assert (ours["x Spark, cold"], ours["x Spark"]) == ("6.00", "25.00")
    assert theirs["x Spark, cold"] == "1.00" and duckdb["cold s"] == duckdb["x Spark, cold"] == ""
    assert "cold 10.000, warm 3.000 2.000 s" in bench.line(results.measurements[0])
    results.add(Measurement("a", "spark", "wrong", cold=1.0, times=(1.0,), same=False))
    assert report.rows(results, "a")[0][4] == "6.00"  # a time with wrong rows is no time


def test_figures_from_elsewhere_fit_the_table() -> None:
    results = report.Results(1.0, {})
    results.add(Measurement("a", "spark", "theirs", cold=60.0, times=(27.0,), same=True))
    flink = dict(zip(report.HEADER, report.rows(results, "a")[1], strict=True))
    assert flink["engine"] == "Flink *" and flink["warm s"] == "13.5" and flink["x Spark"] == "2.00"


def test_a_child_without_a_result_says_so(tmp_path: Path) -> None:
    assert engines.in_own_process("benchmarks.arrivals", _nothing(tmp_path), tmp_path / "log", 60.0)["came"] == []
    with pytest.raises(NoResult, match="ended with code 1"):
        engines.in_own_process("benchmarks.arrivals", "no JSON", tmp_path / "log", 60.0)
    assert "JSONDecodeError" in (tmp_path / "log").read_text()


def _nothing(directory: Path) -> str:
    from benchmarks.arrivals import Delivery

    return Delivery(str(directory), str(directory), 0, 0, 0.25).to_json()
