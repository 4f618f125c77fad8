"""State on a file system that is not the local disk: fsspec's memory file system, in this process.

And on one that has no hard links: there, of two attempts that publish at the same time the last may win.
"""

import errno
import os
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from spark_mjoin.engine import batch as task
from spark_mjoin.engine import cache
from spark_mjoin.engine.feed import AllRows
from spark_mjoin.state import garbage
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import Manifests
from tests.harness import CRASH, OK, TWICE, ReadAllAvailable, reader, rows, run, scripted

QUERY = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"


@pytest.mark.parametrize("memory", ["", "1", "20k"], ids=["in memory", "nothing stays", "some stays"])
def test_state_on_an_fsspec_file_system(memory: str) -> None:
    script = [pa.table({"k": [i % 3, i % 5], "v": [f"{i}", None]}) for i in range(12)]
    options = scripted({"a": script, "b": script}, QUERY, stateLocation="memory://mjoin-test/state")
    if memory:
        options["memory"] = memory
    cache.of_worker().clear()
    try:
        found = rows(run(options, Path("unused"), [OK, CRASH, OK, TWICE, OK, CRASH]))
        names = [path.rsplit("/", 1)[-1] for path in fsspec.filesystem("memory").find("mjoin-test")]
    finally:
        fsspec.filesystem("memory").rm("/mjoin-test", recursive=True)
    everything = pa.concat_tables(script).to_pylist()
    pairs = [(a["k"], a["v"], b["v"]) for a in everything for b in everything if a["k"] == b["k"]]
    assert sorted(map(str, found.elements())) == sorted(map(str, pairs))
    assert any(name.startswith("version-") for name in names)
    assert any(name.startswith("rows-") for name in names)


@pytest.mark.parametrize("moment", ["before garbage is collected", "after the commit"])
@pytest.mark.parametrize("place", ["memory", "local, without links"])
def test_a_manifest_that_another_attempt_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, moment: str
) -> None:
    """Attempt B looks whether version 2 is there, and is slow; A publishes it; B moves its own over it.

    Then both workers resume from what they have in memory, one of them again at the same time, and a third one loads.
    """
    location = f"memory://mjoin-raced{tmp_path}" if place == "memory" else str(tmp_path)
    monkeypatch.setattr(os, "link", _no_links)
    script = [pa.table({"k": [i, i + 1], "v": ["", ""]}) for i in range(6)]
    current = reader(scripted({"a": script, "b": script}, QUERY, stateLocation=location))
    of_a, of_b = cache.StateCache(), cache.StateCache()
    start = current.initialOffset()

    def attempt(job: task.PartitionTask, name: str, states: cache.StateCache) -> int:
        return sum(batch.num_rows for batch in task.run(job, AllRows.of(job), name * 32, states))

    def slow(job: task.PartitionTask) -> None:
        with monkeypatch.context() as other:
            other.setattr(Directory, "exists", lambda self, name: False)
            assert attempt(job, "b", of_b) == expected

    def raced(job: task.PartitionTask) -> None:
        collect = garbage.collect

        def interrupted(manifests: Manifests, version: int, attempt: str) -> None:
            first.setattr(garbage, "collect", collect)
            if moment == "before garbage is collected":
                slow(job)
            collect(manifests, version, attempt)

        with monkeypatch.context() as first:
            first.setattr(garbage, "collect", interrupted)
            assert attempt(job, "a", of_a) == expected
        if moment == "after the commit":
            slow(job)

    for version in range(1, 7):
        end = current.latestOffset(start, ReadAllAvailable())
        (partition,) = current.partitions(start, end)
        expected = 2 if version == 1 else 4
        if version in (2, 3):
            raced(partition.task)
        else:
            assert attempt(partition.task, "a", of_a if version < 5 else cache.StateCache()) == expected
        start = end


def _no_links(source: str, target: str) -> None:
    raise OSError(errno.EOPNOTSUPP, "no hard links here")
