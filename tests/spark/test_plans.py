"""Plans of several joins under a real Spark: the same results, shown in the progress, changed at a restart."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.harness import rows
from tests.spark.joins import CHAIN, FileJoin
from tests.spark.test_overflow import CRAMPED, metrics_of

LIMITED = {"maxFilesPerTrigger": "1"}


@pytest.mark.parametrize("options", [{**LIMITED, "partitions": "2"}, CRAMPED], ids=["in memory", "overflowing"])
def test_a_plan_changes_between_runs(spark_session: SparkSession, tmp_path: Path, options: dict[str, str]) -> None:
    join = FileJoin(tmp_path, options={**options, "plan": "((a b) c)"}).fill(files=3, rows=100, keys=200)
    query = join.run(spark_session)
    shown = metrics_of(query)
    assert {m.get("plan", "not run yet") for m in shown} == {"not run yet", "((a b) c)"}
    assert int(shown[-1]["intermediateRowsTotal"]) > 0
    assert shown[-1]["cProbeOrder"] == "c > (a b)"
    for plan in ("(a (b c))", "(a b c)"):
        join.options["plan"] = plan
        join.fill(files=2, rows=100, keys=200)
        assert metrics_of(join.run(spark_session))[-1]["plan"] == plan
        assert join.collected == join.expected()


def test_a_batch_read_runs_a_plan(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, CHAIN, options={"plan": "(a (b c))", "memory": "60k"}).fill(files=2, rows=100, keys=50)
    assert rows(join.read(spark_session).toArrow()) == join.expected()
