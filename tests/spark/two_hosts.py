"""A join on a cluster of two hosts, with keys that come from one host each: `python -m tests.spark.two_hosts …json`.

The large stream goes through Spark's own deduplication before the join. So each of its keys comes from the executor
that has the key's state, batch after batch. Keys are chosen so that all of a partition of Spark's are in one partition
of the join: then they can meet on the same host. Or any keys are taken, and they cannot.

Runs both. Writes `said.json`: the metrics of each batch, and what Spark itself has counted of the stages before and of
the join.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import spark_mjoin
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.slots import of_hashes
from tests.spark.driver import CONF

PARTITIONS, BATCHES, KEYS = 4, 6, 40  # in each batch, in each partition


def main(request: dict[str, Any]) -> None:
    root = Path(request["root"])
    builder = SparkSession.builder.master(request["master"])
    settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.sql.shuffle.partitions": str(PARTITIONS)}
    for name, value in (CONF | request["conf"] | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    said: dict[str, Any] = {}
    for name in ("together", "anywhere"):
        (root / name).mkdir()
        said[name] = joined(spark, root / name, name == "together")
    (root / "said.json").write_text(json.dumps(said))
    spark.stop()


def joined(spark: SparkSession, root: Path, together: bool) -> dict[str, Any]:
    """What is said of one query."""
    write(spark, root, together)
    before = {stage["stageId"] for stage in stages(spark)}
    files = spark.readStream.option("maxFilesPerTrigger", 1)
    large = files.schema("k BIGINT, words STRING").parquet(str(root / "large")).dropDuplicates(["k"])
    small = files.schema("k BIGINT, n BIGINT").parquet(str(root / "small"))
    query = "SELECT l.k, length(l.words) AS long, s.n FROM l JOIN s ON l.k = s.k"
    frame = spark_mjoin.join({"l": large, "s": small}, query, partitions=PARTITIONS)
    writer = frame.writeStream.format("parquet").option("path", str(root / "out"))
    running = writer.option("checkpointLocation", str(root / "checkpoint")).trigger(availableNow=True).start()
    running.awaitTermination()
    inputs = {"l": spark_mjoin.Stream(large, hosts="127.0.0.2"), "s": small}
    explained: Any = spark_mjoin.explain(inputs, query=query, partitions=PARTITIONS, show=False)
    operators = [p["stateOperators"] for p in running.recentProgress if p["numInputRows"]]
    metrics = [o["customMetrics"] for all in operators for o in all if o["operatorName"].startswith("mjoin")]
    own = [stage for stage in stages(spark) if stage["shuffleReadBytes"] and stage["stageId"] not in before]
    counted = [stage for stage in own if not stage["shuffleWriteBytes"]]
    return {
        "metrics": metrics,
        "read": sum(stage["shuffleReadBytes"] for stage in counted),
        "away": sum(stage["shuffleRemoteBytesRead"] for stage in counted),
        "results": spark.read.parquet(str(root / "out")).count(),
        "sent": sent(spark),
        "explained": str(explained),
        "expected": [sum(getattr(s, name) for s in explained.stages) for name in ("moved_bytes", "bytes")],
    }


def write(spark: SparkSession, root: Path, together: bool) -> None:
    """A file of each stream for each batch, each with as many keys of each partition."""
    keys = spark.range(64 * PARTITIONS * BATCHES * KEYS).selectExpr("id", f"pmod(hash(id), {PARTITIONS}) AS part")
    found = keys.toArrow()
    own = of_hashes(hash_array(found["id"].combine_chunks())).astype(np.int64) * PARTITIONS // 4096
    wanted = found["part"].to_numpy() == own if together else np.ones(own.size, np.bool_)
    by_partition = [found["id"].to_numpy()[wanted & (own == p)] for p in range(PARTITIONS)]
    for batch in range(BATCHES):
        some = np.concatenate([of[batch * KEYS : (batch + 1) * KEYS] for of in by_partition])
        assert some.size == PARTITIONS * KEYS
        put(root / "large", batch, pa.table({"k": some, "words": [os.urandom(1000).hex() for _ in some]}))
        put(root / "small", batch, pa.table({"k": some, "n": some}))


def put(directory: Path, number: int, table: pa.Table) -> None:
    directory.mkdir(exist_ok=True)
    pq.write_table(table, directory / f"{number}.parquet")
    os.utime(directory / f"{number}.parquet", (1_700_000_000 + number,) * 2)


def stages(spark: SparkSession) -> list[Any]:
    return asked(spark, "stages?status=complete")


def sent(spark: SparkSession) -> list[dict[str, int]]:
    """Of the last stage that sends the large stream, the bytes that each host has written for shuffles."""
    senders = [stage for stage in stages(spark) if stage["shuffleReadBytes"] and stage["shuffleWriteBytes"]]
    last = max(senders, key=lambda stage: stage["stageId"])
    tasks = asked(spark, f"stages/{last['stageId']}/0/taskList?length=100")
    return [{"host": t["host"], "bytes": t["taskMetrics"]["shuffleWriteMetrics"]["bytesWritten"]} for t in tasks]


def asked(spark: SparkSession, what: str) -> Any:
    context = spark.sparkContext
    with urlopen(f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}", timeout=20) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
