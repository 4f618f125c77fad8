"""Text that is not what it should be: what the source reads, Spark reads alike in its mode FAILFAST."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_mjoin.errors import SourceError
from spark_mjoin.sources import create
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits

TEXT = (b"", b"\xc3\xa9", b"\xf0\x9f\x98\x80", b"\xef\xbf\xbe", b"\\ud83d\\ude00", b"\\u0000", b"\x7f")
BROKEN = (b"\xff", b"\xfe", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xe9t", b"\x00", b"\x01")
BROKEN += (b"\xed\xa0\xbd\xed\xb8\x80", b"\xf8\x88\x80\x80\x80")
LENIENT = (b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\\ud800")
"""What Spark takes for some text, though it is none: an error here."""
LINES = (b'{"k": 1, "s": "a%sb"}', b'{"k": 1, "s_%s": "x", "s": "y"}', b'{"z": {"y": ["%s"]}, "s": "y"}')


def by_us(path: Path) -> list[tuple[object, ...]] | None:
    source, log = create("s", "json", {"path": str(path), "schema": "k BIGINT, s STRING"}), MemoryLog()
    source.freeze(log)
    end = source.latest(source.initial(), Limits(), log)
    try:
        batches = [b for r in source.plan(source.initial(), end, log) for b in source.read(r, ["k", "s"])]
    except SourceError as e:
        assert path.name in str(e)
        return None
    for batch in batches:
        batch.validate(full=True)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def by_spark(spark: SparkSession, path: Path) -> list[tuple[object, ...]] | None:
    read = spark.read.schema("k BIGINT, s STRING").json(str(path), mode="FAILFAST")
    try:
        return [tuple(row) for row in read.collect()]
    except (PySparkException, Py4JJavaError):
        return None


@pytest.mark.parametrize("line", LINES)
def differential_bytes_in_json_are_what_they_are_to_spark(
    spark_session: SparkSession, tmp_path: Path, line: bytes
) -> None:
    different = []
    for number, some in enumerate((*TEXT, *BROKEN, *LENIENT)):
        path = tmp_path / f"{number}.json"
        path.write_bytes(b'{"k": 0, "s": "z"}\n' + line % some + b"\n")
        ours, theirs = by_us(path), by_spark(spark_session, path)
        is_stricter = ours is None and (some in LENIENT or (some in BROKEN and line != LINES[0]))
        if ours != theirs and not is_stricter:
            different.append((some, ours, theirs))
    assert different == []
