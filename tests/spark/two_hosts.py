"""A join on a cluster of two hosts, with keys that come from one host each: `python -m tests.spark.two_hosts …json`.

The large stream goes through Spark's own deduplication before the join. So each of its keys comes from the executor
that has the key's state, batch after batch. Keys are chosen so that all of a partition of Spark's are in one partition
of the join: then they can meet on the same host. Or any keys are taken, and they cannot.

Runs both. Writes `said.json`: the metrics of each batch, and what Spark itself has counted of the stages before and of
the join.

With `rates` in the request: two streams, each of which comes from one executor, since its deduplication has one
partition. Each has nearly all rows of every other key. They are joined by hash, and by rates.
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
    by_rates = request.get("rates", False)
    shuffled = str(1 if by_rates else PARTITIONS)
    settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.sql.shuffle.partitions": shuffled}
    for name, value in (CONF | request["conf"] | settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    said: dict[str, Any] = {}
    for name in ("hash", "rate") if by_rates else ("together", "anywhere"):
        (root / name).mkdir()
        said[name] = of_rates(spark, root / name, name) if by_rates else joined(spark, root / name, name == "together")
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


RATED_BATCHES, RATED_ROWS, RATED_KEYS = 14, 3000, 800


def of_rates(spark: SparkSession, root: Path, scheme: Any) -> dict[str, Any]:
    """What is said of a query whose streams have different keys, mostly."""
    dice = np.random.Generator(np.random.Philox(9))
    expected, counts = 0, {alias: np.zeros(RATED_KEYS, np.int64) for alias in "ab"}
    for batch in range(RATED_BATCHES):
        for part, alias in enumerate("ab"):
            keys = 2 * dice.integers(0, RATED_KEYS // 2, RATED_ROWS)
            keys += np.where(dice.random(RATED_ROWS) < 0.1, 1 - part, part)
            numbers = np.arange(batch * RATED_ROWS, (batch + 1) * RATED_ROWS)
            words = [os.urandom(100).hex() for _ in keys]
            put(root / alias, batch, pa.table({"k": keys, "n": numbers, "words": words}))
            counts[alias] += np.bincount(keys, minlength=RATED_KEYS)
    expected = int((counts["a"] * counts["b"]).sum())
    files = spark.readStream.option("maxFilesPerTrigger", 1).schema("k BIGINT, n BIGINT, words STRING")
    inputs = {alias: files.parquet(str(root / alias)).dropDuplicates(["n"]) for alias in "ab"}
    query = "SELECT a.k, length(a.words) AS x, length(b.words) AS y FROM a JOIN b ON a.k = b.k"
    frame = spark_mjoin.join(inputs, query, partitions=PARTITIONS, partitioning=scheme)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(root / "checkpoint"))
    running = writer.trigger(availableNow=True).start()
    running.awaitTermination()
    operators = [p["stateOperators"] for p in running.recentProgress if p["numInputRows"]]
    metrics = [o["customMetrics"] for all in operators for o in all if o["operatorName"].startswith("mjoin")]
    return {
        "metrics": metrics,
        "expected": expected,
        "results": int(metrics[-1]["resultsTotal"]),
        "from": came(spark),
        "kind": kind(root),
    }


def kind(root: Path) -> str:
    """Of the layout by which the last batch was planned."""
    last = max((root / "checkpoint/state/0/mjoin").glob("plan-*"))
    return str(json.loads(last.read_text()[9:])["plan"]["routing"].get("layout", {"kind": "even"})["kind"])


def came(spark: SparkSession) -> list[str]:
    """The hosts from which the two streams came in the last batch."""
    senders = [stage for stage in stages(spark) if stage["shuffleReadBytes"] and stage["shuffleWriteBytes"]]
    last = sorted(senders, key=lambda stage: stage["stageId"])[-2:]
    tasks = [t for stage in last for t in asked(spark, f"stages/{stage['stageId']}/0/taskList?length=100")]
    return [task["host"] for task in tasks if task["taskMetrics"]["shuffleWriteMetrics"]["bytesWritten"]]


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
