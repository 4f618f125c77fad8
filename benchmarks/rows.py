"""What it costs to hand rows to Spark: `python -m benchmarks.rows [--rows 5000000] [--repeats 3]`.

One micro-batch of a join that emits five million rows of ten columns (integers, decimals, doubles, strings,
timestamps), with the jar, into noop, into a filter and a sum over one column, and into a count; Arrow batches handed on
as they come against Spark's own reader, which makes rows of them one by one. Best of the repeats, time of `addBatch`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MATCHES = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rows", description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    import spark_mjoin

    builder = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    )
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark_mjoin.enable(spark)
    with tempfile.TemporaryDirectory() as directory:
        make(Path(directory), options.rows)
        best: dict[tuple[str, str], int] = {}
        for number in range(options.repeats + 1):  # the first warms up
            for into in SINKS:
                for way, columnar in (("Arrow batches", "true"), ("rows", "false")):
                    ms = run(spark, Path(directory), f"{number}{into}{way}", columnar, into, options.rows)
                    if number:
                        best[into, way] = min(ms, best.get((into, way), ms))
    spark.stop()
    print(f"| {options.rows:,} rows into | Arrow batches | rows | ratio |\n|---|---|---|---|")
    for into in SINKS:
        arrow, rows = best[into, "Arrow batches"], best[into, "rows"]
        print(f"| {into} | {arrow:,} ms | {rows:,} ms | {rows / arrow:.2f} |")


SINKS = {
    "noop": lambda joined: joined,
    "a filter and a sum over one column": lambda joined: joined.where("i > 10").groupBy().sum("i"),
    "a count": lambda joined: joined.groupBy().count(),
}


def make(root: Path, rows: int) -> None:
    """Two inputs of which each row of one matches MATCHES of the other."""
    number = pa.array(range(rows // MATCHES), pa.int64())
    wide = pa.table({"k": number, "i": pc.bit_wise_and(number, 1023), "x": pc.cast(number, pa.float64())})
    wide = wide.append_column("s", pc.cast(number, pa.string()))
    wide = wide.append_column("d", pc.cast(pc.bit_wise_and(number, 1023), pa.decimal128(19, 0)))
    other = pa.table(
        {"k": pa.concat_arrays([number] * MATCHES), "j": pa.array(range(len(number) * MATCHES), pa.int64())}
    )
    other = other.append_column("at", pc.cast(other["j"], pa.timestamp("us", "UTC")))
    other = other.append_column("y", pc.cast(other["j"], pa.float64())).append_column("b", pc.equal(other["k"], 3))
    other = other.append_column("t", pc.cast(other["k"], pa.string()))
    for name, table in (("wide", wide), ("other", other)):
        (root / name).mkdir()
        pq.write_table(table, root / name / "1.parquet")


def run(spark: Any, root: Path, name: str, columnar: str, into: str, rows: int) -> int:
    join = spark.readStream.format("mjoin").option("partitions", "2").option("__columnar", columnar)
    for alias in ("wide", "other"):
        join = join.option(f"source.{alias}.format", "parquet").option(f"source.{alias}.path", str(root / alias))
    query = "SELECT w.k, w.i, w.x, w.s, w.d, o.j, o.at, o.y, o.b, o.t FROM wide w JOIN other o ON w.k = o.k"
    writer = SINKS[into](join.option("query", query).load()).writeStream.format("noop")
    writer = writer.outputMode("append" if into == "noop" else "complete").trigger(availableNow=True)
    started = writer.option("checkpointLocation", str(root / name)).start()
    started.awaitTermination()
    progress = started.recentProgress[0]
    assert int(progress["sources"][0]["metrics"]["memoryToMemoryRows"]) == rows
    return int(progress["durationMs"]["addBatch"])


if __name__ == "__main__":
    main()
