"""The joins whose candidates are measured: every plan of stages is among them, and data is what the planner knows."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given

from benchmarks.candidates import SHAPES, Shape, every_tree
from spark_mjoin.driver.staging import Expected
from spark_mjoin.query import tree as trees
from spark_mjoin.query.stages import can_run
from tests.driver import estimates
from tests.driver.test_staging import joins
from tests.examples import examples
from tests.harness import duckdb_join


@given(joins())
@examples(40)
def oracle_every_tree_that_can_run(expected: Expected) -> None:
    spec, inputs = expected.spec, range(len(expected.spec.inputs))
    able = {trees.normal(tree) for tree in estimates.every_tree(inputs) if can_run(spec, tree)}
    assert set(every_tree(spec)) == able


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_pairs_of_inputs_match_as_often_as_the_planner_knows(shape: Shape, tmp_path: Path) -> None:
    """Within what chance does, at a tenth of the size."""
    small = shape.scaled(0.1)
    small.write(tmp_path)
    tables = {alias: pq.read_table(tmp_path / alias) for alias in small.rows}
    assert {alias: table.num_rows for alias, table in tables.items()} == small.rows
    for entry in small.selectivities.split(", "):
        pair, share = entry.split(": ")
        a, b = pair.split(".")
        (key,) = set(small.keys[a]) & set(small.keys[b])
        query = f"SELECT count(*) AS n FROM a JOIN b ON a.{key} = b.{key}"
        (found,) = duckdb_join(query, {"a": tables[a], "b": tables[b]})["n"].to_pylist()
        expected = float(share) * small.rows[a] * small.rows[b]
        assert abs(found - expected) < 6 * expected**0.5 + 0.2 * expected, (entry, found, expected)
