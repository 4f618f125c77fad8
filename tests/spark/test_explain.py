"""`spark_mjoin.explain` of a query of a real Spark, and advice on the same files."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

import spark_mjoin
from tests.spark.joins import FileJoin


def test_a_query_is_explained_and_advised_on(spark_session: SparkSession, tmp_path: Path) -> None:
    limited = {"maxFilesPerTrigger": "1", "plan": "((a b) c)", "partitions": "2"}
    join = FileJoin(tmp_path, options=limited).fill(files=3, rows=100, keys=200)
    advice = spark_mjoin.advise(join.all_options(), show=False)
    query = join.run(spark_session)
    results = sum(join.collected.values())
    for seen in (
        spark_mjoin.explain(join.all_options(), query=query, show=False),
        spark_mjoin.explain(join.all_options(), query=query.recentProgress[-1], state=str(join.state), show=False),
        spark_mjoin.explain(join.all_options(), state=str(join.state), show=False),
    ):
        assert seen.plan == "((a b) c)" and seen.observed is not None
        assert seen.observed.figure("resultsTotal") == results
        assert re.search(rf"\n  results +[\d,.]+ +{results:,}\n", str(seen))
        assert "  (a b) > c\n" in str(seen) and re.search(r"a, b by k1 +\S+ +assumed +\S+ +measured: ", str(seen))
    assert [each.rows for each in advice.samples] == [seen.observed.figure(f"{alias}NumRowsTotal") for alias in "abc"]
    assert all(each.is_whole for each in advice.samples)
