"""One way of `benchmarks.small_batches` in a process of its own: reads what is asked as JSON, prints what it found."""

from __future__ import annotations

import json
import sys
import tempfile
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import spark_mjoin
from benchmarks import child
from benchmarks.engines import RESULT_MARK, TUNED, Engine
from benchmarks.turns import processor_seconds

ALIASES = "abc"
WARM_UP = 15
QUERY = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"


def measure(way: str, partitions: int, batches: int, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mjoin-small-") as directory:
        root = Path(directory)
        _write(root, WARM_UP + batches, rows)
        conf = TUNED | {"spark.sql.shuffle.partitions": str(partitions)} if way == "spark" else {}
        spark = child.session(Engine(way, "streams", way, driver_memory="1g", conf=conf, jar=True), directory)
        writer = _frame(spark, way, partitions, root).writeStream.format("noop")
        query = writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()
        while _batches(query) < WARM_UP and query.isActive:
            query.awaitTermination(0.25)
        before, seen = processor_seconds(), _batches(query)
        query.awaitTermination()
        processor = processor_seconds() - before
        found = [progress["durationMs"] for progress in query.recentProgress[WARM_UP : WARM_UP + batches]]
        assert len(found) == batches, f"there were {len(query.recentProgress)} batches"
        spent = 1000 * processor / (len(query.recentProgress) - seen)
        spark.stop()
    return {"batches": found, "processor": spent}


def _batches(query: Any) -> int:
    """How many have ended."""
    last = query.lastProgress
    return 0 if last is None else int(last["batchId"]) + 1


def _write(root: Path, files: int, rows: int) -> None:
    """Files of each input; every key comes in all inputs, and in one batch."""
    for alias in ALIASES:
        (root / alias).mkdir()
        for number in range(files):
            keys = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
            pq.write_table(pa.table({"k": keys, "v": keys.cast(pa.string())}), root / alias / f"{number:05d}.parquet")


def _frame(spark: Any, way: str, partitions: int, root: Path) -> Any:
    if way == "format":
        reader = spark.readStream.format("mjoin").option("query", QUERY).option("partitions", str(partitions))
        for alias in ALIASES:
            reader = reader.option(f"source.{alias}.format", "parquet")
            reader = reader.option(f"source.{alias}.path", str(root / alias))
        return reader.option("maxFilesPerTrigger", "1").load()
    inputs = {
        alias: spark.readStream.schema("k BIGINT, v STRING")
        .option("maxFilesPerTrigger", "1")
        .parquet(str(root / alias))
        for alias in ALIASES
    }
    if way == "join":
        return spark_mjoin.join(inputs, QUERY, partitions=partitions)
    if way == "floor":
        return reduce(lambda some, more: some.unionAll(more), inputs.values()).repartition(partitions, "k")
    for alias, stream in inputs.items():
        stream.createOrReplaceTempView(alias)
    return spark.sql(QUERY)


if __name__ == "__main__":
    print(RESULT_MARK + json.dumps(measure(**json.loads(sys.stdin.read()))), flush=True)
