"""Which campaign earned a conversion: impressions, clicks and conversions joined while they arrive.

    impressions ──impression_id── clicks ──click_id── conversions        a chain: no key is common to all three

A click counts within 30 minutes of its impression, a conversion within 7 days of its click. Both are conditions on
joined rows and not equalities, so they are checked as soon as the two rows have met. The three streams are read 250
rows at a time, and a downstream aggregation keeps the totals per campaign.
"""

import json
import os
import random
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

CAMPAIGNS = ("autumn", "brand", "retarget")
VALUES = (0, 5, 20)
QUERY = """
SELECT i.campaign, v.value, unix_timestamp(c.at) - unix_timestamp(i.at) AS seconds_to_click
FROM impressions i
JOIN clicks c      ON c.impression_id = i.impression_id
                  AND c.at BETWEEN i.at AND i.at + INTERVAL 30 MINUTES
JOIN conversions v ON v.click_id = c.click_id
                  AND v.at BETWEEN c.at AND c.at + INTERVAL 7 DAYS
WHERE v.value > 0
"""


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("ad attribution")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory() as work:
            expected = write_streams(Path(work))
            run(spark, Path(work), expected)
    finally:
        spark.stop()


def run(spark: SparkSession, work: Path, expected: Counter[str]) -> None:
    totals = (
        attributed(spark, work)
        .groupBy("campaign")
        .agg(
            F.count("*").alias("conversions"),
            F.sum("value").alias("value"),
            F.round(F.avg("seconds_to_click") / 60, 1).alias("minutes_to_click"),
        )
    )
    query = (
        totals.writeStream.format("memory")
        .queryName("per_campaign")
        .outputMode("complete")
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.table("per_campaign").orderBy("campaign").show()
    explain(query.recentProgress)
    found = {row.campaign: row.conversions for row in spark.table("per_campaign").collect()}
    print("as computed without Spark:", "yes" if found == dict(expected) else f"NO, expected {dict(expected)}")
    if found != dict(expected):
        sys.exit(1)


def attributed(spark: SparkSession, work: Path) -> DataFrame:
    """The join: a streaming DataFrame like any other."""
    stream = (
        spark.readStream.format("mjoin")
        .option("query", QUERY)
        .option("stateLocation", str(work / "state"))
        .option("maxRowsPerTrigger", 250)
        .option("memory", "64m")
    )
    for name in ("impressions", "clicks", "conversions"):
        stream = stream.option(f"source.{name}.format", "parquet").option(f"source.{name}.path", str(work / name))
    return stream.load()


def explain(progress: list[Any]) -> None:
    """How many micro-batches it took, and what the source reports about itself."""
    joined = [p for p in progress if p["numInputRows"]]  # what Spark calls input here is what the join emitted
    metrics = json.loads(progress[-1]["sources"][0]["latestOffset"])["metrics"]
    print(f"{len(progress)} micro-batches, {len(joined)} of them with results")
    print("a click looks for its partners in this order:", metrics["cProbeOrder"])


def write_streams(work: Path) -> Counter[str]:
    """Three directories of Parquet files; returns the conversions per campaign, computed row by row."""
    draw = random.Random(7)
    monday = datetime(2026, 3, 2, tzinfo=UTC)
    impressions = [
        {"impression_id": n, "campaign": draw.choice(CAMPAIGNS), "at": monday + timedelta(seconds=9 * n)}
        for n in range(1000)
    ]
    clicks = [
        {"click_id": n, "impression_id": i["impression_id"], "at": i["at"] + timedelta(minutes=draw.uniform(0, 40))}
        for n, i in enumerate(draw.sample(impressions, 400))
    ]
    conversions = [
        {
            "click_id": c["click_id"],
            "value": draw.choice([0, 5, 20]),
            "at": c["at"] + timedelta(days=draw.uniform(-1, 9)),
        }
        for c in draw.sample(clicks, 200)
    ]
    for name, rows in (("impressions", impressions), ("clicks", clicks), ("conversions", conversions)):
        (work / name).mkdir()
        for part in range(4):
            pq.write_table(pa.Table.from_pylist(rows[part::4]), work / name / f"{part}.parquet")

    earned: Counter[str] = Counter()
    for conversion in conversions:
        click = clicks[conversion["click_id"]]
        impression = impressions[click["impression_id"]]
        in_time = timedelta(0) <= conversion["at"] - click["at"] <= timedelta(days=7)
        if in_time and click["at"] - impression["at"] <= timedelta(minutes=30) and conversion["value"] > 0:
            earned[impression["campaign"]] += 1
    return earned


if __name__ == "__main__":
    main()
