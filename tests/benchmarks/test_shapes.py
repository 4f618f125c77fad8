"""The benchmark of shapes, as far as that needs no Spark: data, queries, plans, and what the table says."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import check, shapes_bench
from benchmarks.engines import Engine, Measurement
from benchmarks.shapes import CHAINS, FILES, ROWS, SHAPES, STARS, chain_results, left_deep, one_mjoin
from spark_mjoin.engine import cache
from tests.harness import reader

SCALE = 0.005


def engines(name: str) -> list[Engine]:
    return shapes_bench.engines(SHAPES[name], shapes_bench._parser().parse_args([]))


def results(options: dict[str, str]) -> list[pa.Table]:
    """Of each batch, within the limits per trigger."""
    current = reader(options)
    start, out = current.initialOffset(), []
    while (end := current.latestOffset(start, current.getDefaultReadLimit())) != start:
        found = [batch for partition in current.partitions(start, end) for batch in current.read(partition)]
        out.append(pa.Table.from_batches(found, current.session.spec.schema))
        start = end
    return out


@pytest.mark.parametrize("name", SHAPES)
def test_every_plan_of_a_shape_gives_what_duckdb_gives(name: str, tmp_path: Path) -> None:
    workload = SHAPES[name]
    data = workload.prepare(tmp_path / "data", SCALE)
    expected = check.reference(data)  # which is also compared with what there is by construction
    assert expected.rows > 0
    sources = {
        f"source.{alias}.{option}": value
        for alias in workload.aliases
        for option, value in (("format", "parquet"), ("path", str(data.path(alias))), ("maxFilesPerTrigger", "1"))
    }
    for engine in engines(name)[:-1]:
        cache.of_worker().clear()
        state = {"stateLocation": str(tmp_path / engine.name)}
        batches = results({"query": workload.query, **sources, **engine.options, **state})
        assert len(batches) == FILES
        assert check.of_arrow(pa.concat_tables(batches), workload.output_names) == expected


def test_results_are_known_by_construction() -> None:
    """About as many as rows: a star exactly, a chain up to chance, which adds up with its length."""
    for inputs in STARS:
        rows = SHAPES[f"star{inputs}"].exact_rows
        assert rows is not None and rows(1.0) == ROWS
    for inputs in CHAINS:
        assert chain_results(inputs, 1.0) == pytest.approx(ROWS, rel=0.1)


def test_the_plans_that_are_compared() -> None:
    assert one_mjoin(SHAPES["chain5"]) == "(s1 s2 s3 s4 s5)"
    assert left_deep(SHAPES["star5"]) == "((((s1 s2) s3) s4) s5)"
    assert [(e.name, e.options.get("plan")) for e in engines("star3")] == [
        ("mjoin", None),
        ("one", "(s1 s2 s3)"),
        ("deep", "((s1 s2) s3)"),
        ("spark", None),
    ]


def test_a_time_counts_only_with_the_right_rows() -> None:
    workload = SHAPES["star10"]
    found = [
        Measurement("star10", "mjoin", "ours", times=(2.0, 1.0), rows=ROWS, same=True),
        Measurement("star10", "one", "wrong", times=(0.1,), rows=1, same=False),
        Measurement("star10", "spark", "theirs", times=(8.0,), rows=ROWS, same=True),
    ]
    ours, wrong, theirs = shapes_bench.rows(found, workload, 1.0)
    assert ours[3:5] == ("400,000", "8.00") and theirs[3:5] == ("50,000", "1.00")
    assert wrong[3:5] == ("", "") and wrong[-1] == "WRONG"
    found[2] = Measurement("star10", "spark", "theirs", error="took more than 900 s")
    ours, _, theirs = shapes_bench.rows(found, workload, 1.0)
    assert ours[3:5] == ("400,000", "") and theirs[-1] == "failed: took more than 900 s"
