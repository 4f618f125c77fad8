"""What micro-batches cost when they do nothing: a Python source that gives a thousand numbers per batch, noop sink.

    python -m benchmarks.floor [--batches 20] [--repeats 3] [--enable] [--forkless-checkpoints] [--unix-sockets]

No streaming join in a Python source can be faster than this, with the same number of micro-batches. Prints the best of
the repeats and what Spark says it spent the time on.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import spark_mjoin
from benchmarks.engines import FORKLESS_CHECKPOINTS, UNIX_SOCKETS


class Numbers(DataSource):
    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number BIGINT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumbersReader(int(self.options["batches"]))


class NumbersReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, batches: int) -> None:
        self._batches = batches

    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """The number of batches is fixed."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": pa.array(range(1000), pa.int64())})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.floor", description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--enable", action="store_true", help="with spark_mjoin.enable(spark)")
    parser.add_argument("--forkless-checkpoints", action="store_true")
    parser.add_argument("--unix-sockets", action="store_true")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "1g")
    chosen = FORKLESS_CHECKPOINTS if options.forkless_checkpoints else {}
    for name, value in (chosen | (UNIX_SOCKETS if options.unix_sockets else {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Numbers)
    if options.enable:
        spark_mjoin.enable(spark)
    runs = [run(spark, options.batches) for _ in range(options.repeats + 1)][1:]  # the first warms up
    seconds, spent = min(runs, key=lambda r: r[0])
    print(f"{options.batches} micro-batches that do nothing: {seconds:.2f} s, best of {len(runs)}")
    print(", ".join(f"{name} {ms} ms" for name, ms in sorted(spent.items(), key=lambda item: -item[1])))
    spark.stop()


def run(spark: SparkSession, batches: int) -> tuple[float, Counter[str]]:
    with tempfile.TemporaryDirectory() as checkpoint:
        numbers = spark.readStream.format("numbers").option("batches", str(batches)).load()
        started = time.perf_counter()
        query = (
            numbers.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - started
    spent: Counter[str] = Counter()
    for progress in query.recentProgress:
        spent.update(progress["durationMs"])
    return seconds, spent


if __name__ == "__main__":
    main()
