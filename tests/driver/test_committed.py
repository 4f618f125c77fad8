"""What the driver knows of the partitions: the newest manifest of each, read once for a batch, and again if it must."""

from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin.driver.committed import Committed
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import manifest_name
from spark_mjoin.state.routing import Routing
from tests.harness import ReadAllAvailable, reader, scripted
from tests.manifests import manifest


def commit(location: Path, partition: int, version: int) -> None:
    place = Directory(str(location)).child(Routing(3).directory(partition))
    checked_json.publish(place, manifest_name(version), "test", manifest((1, 2), version=version).text())


def test_a_version_that_every_partition_has(tmp_path: Path) -> None:
    for partition in range(3):
        commit(tmp_path, partition, 4)
        commit(tmp_path, partition, 5)
    found = Committed.read(str(tmp_path), Routing(3), 5)
    assert found.is_complete and [m.version for m in found.of_all] == [5, 5, 5]
    newest = [tmp_path / Routing(3).directory(partition) / manifest_name(5) for partition in range(3)]
    assert found.written == pytest.approx(max(path.stat().st_mtime for path in newest))


def test_a_partition_that_is_behind_and_one_that_has_nothing(tmp_path: Path) -> None:
    for partition, version in ((0, 5), (0, 6), (1, 4)):
        commit(tmp_path, partition, version)
    found = Committed.read(str(tmp_path), Routing(3), 5)
    assert [None if m is None else m.version for m in found.partitions] == [5, 4, None]
    assert len(found.found) == 2 and not found.is_complete and not found.of_all


def test_before_the_first_batch_there_is_nothing(tmp_path: Path) -> None:
    found = Committed.read(str(tmp_path), Routing(2), 0)
    assert found.partitions == (None, None) and not found.found


def test_what_was_not_there_yet_is_looked_at_again(tmp_path: Path) -> None:
    """Spark may ask for a report while tasks still run; the plan of the next batch must not rest on what it saw."""
    script = [pa.table({"k": range(20)})] * 3
    query = "SELECT a.k FROM a JOIN b ON a.k = b.k"
    current = reader({**scripted({"a": script, "b": script}, query, partitions="2"), "stateLocation": str(tmp_path)})
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    for partition in current.partitions(start, end):
        shown = current.reportLatestOffset()["metrics"]
        assert shown["aNumRowsTotal"] == shown["bNumRowsTotal"]
        list(current.read(partition))
    assert 0 < int(shown["aNumRowsTotal"]) < 20
    assert current.reportLatestOffset()["metrics"]["aNumRowsTotal"] == "20"
