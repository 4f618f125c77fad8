"""Sensors that measure at the same time in the same place: a key of several columns, one of them computed.

Temperature comes as JSON, humidity as CSV, power as Parquet. They report at different seconds, so the join is on the
minute (`date_trunc`) and the site. Files arrive while the query runs. The join emits a combination when its last
reading is there. The projection computes what an alert needs.
"""

import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

SITES = ("north", "south")
START = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
QUERY = """
SELECT date_trunc('minute', t.at)     AS minute,
       upper(t.site)                  AS site,
       round(t.celsius * 1.8 + 32, 1) AS fahrenheit,
       h.percent                      AS humidity,
       round(p.watts / 1000, 2)       AS kilowatts,
       CASE WHEN h.percent > 70 AND t.celsius > 24 THEN 'ventilate' ELSE 'ok' END AS advice
FROM temperature t
JOIN humidity h ON date_trunc('minute', h.at) = date_trunc('minute', t.at) AND h.site = t.site
JOIN power p    ON date_trunc('minute', p.at) = date_trunc('minute', t.at) AND p.site = t.site
WHERE p.watts IS NOT NULL
"""


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("sensors")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory() as work:
            run(spark, Path(work))
    finally:
        spark.stop()


def run(spark: SparkSession, work: Path) -> None:
    for sensor in ("temperature", "humidity", "power"):
        (work / sensor).mkdir()
    joined = (
        spark.readStream.format("mjoin")
        .option("query", QUERY)
        .option("stateLocation", str(work / "state"))
        .option("source.temperature.format", "json")
        .option("source.temperature.path", str(work / "temperature"))
        .option("source.temperature.schema", "site STRING, at TIMESTAMP, celsius DOUBLE")
        .option("source.humidity.format", "csv")
        .option("source.humidity.path", str(work / "humidity"))
        .option("source.humidity.schema", "site STRING, at TIMESTAMP, percent INT")
        .option("source.humidity.header", "true")
        .option("source.power.format", "parquet")
        .option("source.power.path", str(work / "power"))
        .option("source.power.schema", "site STRING, at TIMESTAMP, watts DOUBLE")
        .load()
    )
    query = (
        joined.writeStream.format("memory")
        .queryName("readings")
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    for minutes, sensors in (
        (range(3), {"temperature": write_temperature}),
        (range(3), {"humidity": write_humidity}),
        (range(3), {"power": write_power}),
        (range(3, 6), {"temperature": write_temperature, "humidity": write_humidity, "power": write_power}),
    ):
        for write in sensors.values():
            write(work, minutes)
        time.sleep(0.3)  # a text file counts as complete when nobody has written to it for 200 ms
        query.processAllAvailable()
        found = spark.table("readings").count()
        print(f"minutes {minutes.start} to {minutes.stop - 1}: {', '.join(sensors)} arrived, {found} results so far")
    query.stop()
    spark.table("readings").orderBy("minute", "site").show(truncate=False)
    # One of the twelve power readings is NULL: the WHERE clause excludes it.
    if spark.table("readings").count() != 11:
        sys.exit("this should have been 11 results")


def moments(minutes: range, second: int) -> list[tuple[str, datetime, int]]:
    return [(site, START + timedelta(minutes=m, seconds=second), m) for m in minutes for site in SITES]


def write_temperature(work: Path, minutes: range) -> None:
    rows = [
        {"site": site, "at": at.isoformat(), "celsius": 22.5 + m * 0.5 + (site == "south")}
        for site, at, m in moments(minutes, 3)
    ]
    publish(work / "temperature", f"{minutes.start}.json", "".join(json.dumps(row) + "\n" for row in rows))


def write_humidity(work: Path, minutes: range) -> None:
    lines = ["site,at,percent"]
    lines += [f"{site},{at.isoformat()},{64 + 2 * m}" for site, at, m in moments(minutes, 17)]
    publish(work / "humidity", f"{minutes.start}.csv", "".join(line + "\n" for line in lines))


def write_power(work: Path, minutes: range) -> None:
    rows = [
        {"site": site, "at": at, "watts": None if (site, m) == ("north", 1) else 1500.0 + 125 * m}
        for site, at, m in moments(minutes, 41)
    ]
    pq.write_table(pa.Table.from_pylist(rows), work / "power" / f"{minutes.start}.parquet")


def publish(directory: Path, name: str, text: str) -> None:
    """Write under a name that the source does not see, then rename: no reader meets half a file."""
    (directory / ".writing").write_text(text)
    os.rename(directory / ".writing", directory / name)


if __name__ == "__main__":
    main()
