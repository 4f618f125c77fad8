"""The door to Spark: offsets in and out, and what of it travels to executors."""

import json
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle

from spark_mjoin.doors import offsets
from spark_mjoin.driver.session import Point
from spark_mjoin.model import Expiry
from spark_mjoin.plan import Plan
from tests.harness import ReadAllAvailable, reader, scripted

QUERY = "SELECT a.k FROM a JOIN b ON a.k = b.k"


def test_an_offset_is_a_point_in_json() -> None:
    plan = Plan((0, 1), expiry=Expiry((5, None), active=True), alike_since=3)
    point = Point("q", 7, {"a": {"files": 3}, "b": {"files": 1}}, plan)
    body = json.loads(json.dumps(offsets.encode(point, 2)))
    assert set(body) == {"query", "version", "positions", "plan"}
    assert offsets.decode(body, 2) == point


def test_a_reader_that_travels_leaves_its_session_behind(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2, 3]})
    current = reader(scripted({"a": [rows], "b": [rows]}, QUERY, stateLocation=str(tmp_path)))
    start = current.initialOffset()
    partitions = current.partitions(start, current.latestOffset(start, ReadAllAvailable()))
    travelled = cloudpickle.loads(cloudpickle.dumps(current))
    assert not hasattr(travelled, "session")
    assert sum(batch.num_rows for p in partitions for batch in travelled.read(p)) == 3
