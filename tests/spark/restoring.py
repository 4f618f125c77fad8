"""Checkpoint and state are set back while the Spark application lives on, and input changes: what then comes out.

Spark keeps its Python workers from query to query. Some of them hold states of the time line that was abandoned, with
the versions, positions and row counts of the new one.

Results go to files, beside checkpoint and state, and are set back with them. So all of it works on Connect too, where a
foreachBatch runs in another process.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness import Rows, rows
from tests.spark.joins import PAYLOAD, FileJoin, write

ROUNDS = 3


def restored_in_rounds(spark: Any, root: Path, **options: str) -> None:
    """Run, copy, run on, restore and correct, run on; several times, and every time another copy."""
    join = FileJoin(root, options={"maxFilesPerTrigger": "1", "partitions": "4", **options})
    for number in range(1, ROUNDS + 1):
        run_into_files(spark, join.fill(files=1))
        copied = len(join.tables["a"])
        shutil.copytree(root / join.place, root / f"copy {number}")
        run_into_files(spark, join.fill(files=2))
        shutil.rmtree(root / join.place)
        shutil.copytree(root / f"copy {number}", root / join.place)
        correct(join, copied, number)
        run_into_files(spark, join)
        assert results(spark, join) == batch_join(spark, join)


def removed_in_rounds(spark: Any, root: Path, **options: str) -> None:
    """Input is lost before its batch is recorded. As an error message advises, the newest manifests are removed."""
    lenient = {"source.a.failOnDataLoss": "false"}
    join = FileJoin(root, options={"maxFilesPerTrigger": "1", "partitions": "4", **lenient, **options})
    for _ in range(ROUNDS):
        run_into_files(spark, join.fill(files=2))
        newest = sorted((root / join.place).rglob("version-*.json"), key=lambda path: path.name)[-1].name
        for manifest in (root / join.place).rglob(newest):
            manifest.unlink()
        for record in (join.checkpoint / "commits", sink(join) / "_spark_metadata"):
            last = max(int(path.name) for path in record.iterdir() if path.name.isdigit())
            for path in (record / str(last), record / f".{last}.crc"):
                path.unlink(missing_ok=True)
        max((root / "in" / "a").glob("[!.]*")).unlink()
        join.tables["a"].pop()
        run_into_files(spark, join.fill(files=2))
        assert results(spark, join) == batch_join(spark, join)


def sink(join: FileJoin) -> Path:
    return join.root / join.place / "sink"


def run_into_files(spark: Any, join: FileJoin) -> None:
    """Run the query to its end."""
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "1000")  # a record of its own for every batch
    join.start_with(join.load(spark).writeStream.format("parquet").option("path", str(sink(join)))).awaitTermination()


def results(spark: Any, join: FileJoin) -> Rows:
    """What the batches that are recorded have written."""
    return rows(spark.read.parquet(str(sink(join))).toArrow())


def correct(join: FileJoin, since: int, number: int) -> None:
    """Give the files of every source from a number on other contents: as many rows, with other values."""
    for alias, tables in join.tables.items():
        files = sorted((join.root / "in" / alias).glob("[!.]*"))
        for at in range(since, len(tables)):
            payload = PAYLOAD[alias]
            values = [value + 1_000_000 * number for value in tables[at][payload].to_pylist()]
            tables[at] = pa.table({"k": tables[at]["k"], payload: values})
            changed = files[at].stat().st_mtime
            write(tables[at], files[at], join.formats[alias])
            os.utime(files[at], (changed, changed))


def batch_join(spark: Any, join: FileJoin) -> Rows:
    """What Spark's own join gives over the files as they are now."""
    for alias in join.tables:
        spark.read.parquet(str(join.root / "in" / alias)).createOrReplaceTempView(alias)
    return rows(spark.sql(join.query).toArrow())
