"""Metrics without the jar: the same names, in `latestOffset`, one batch late."""

from pathlib import Path

from pyspark.sql import SparkSession

from spark_mjoin import metrics_of
from tests.jar.scenarios import LIMITED, expected_per_batch, results
from tests.spark.joins import FileJoin


def oracle_metrics_come_one_batch_late(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options=LIMITED | {"stateLocation": str(tmp_path / "state"), "memory": "1g"}).fill(
        files=3
    )
    query = join.run(spark_session)
    assert [p["sources"][0]["metrics"] for p in query.recentProgress] == [{}] * 3
    reported = [metrics_of(p) for p in query.recentProgress]
    assert [results(m) for m in reported] == [0, *expected_per_batch(join)[:2]]
    assert [m["maxOffsetsBehindLatest"] for m in reported[1:]] == ["2", "1"]
    assert reported[2]["resultsTotal"] == str(sum(expected_per_batch(join)[:2]))
    assert reported[2]["memoryBudgetBytes"] == str(1 << 30)

    join.fill(files=1)
    (after,) = map(metrics_of, join.run(spark_session).recentProgress)
    assert results(after) == expected_per_batch(join)[2], "a restart begins with the batch before it"
    assert after["aRowsPerSecond"] == "0.0", "how long that took is not known any more"
