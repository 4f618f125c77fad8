"""State on a file system that is not the local disk: fsspec's memory file system, in this process."""

from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from spark_mjoin import task
from tests.harness import CRASH, OK, TWICE, rows, run, scripted

QUERY = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"


@pytest.mark.parametrize("memory", ["", "1", "20k"], ids=["in memory", "nothing stays", "some stays"])
def test_state_on_an_fsspec_file_system(memory: str) -> None:
    script = [pa.table({"k": [i % 3, i % 5], "v": [f"{i}", None]}) for i in range(12)]
    options = scripted({"a": script, "b": script}, QUERY, stateLocation="memory://mjoin-test/state")
    if memory:
        options["memory"] = memory
    task._CACHE.clear()
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
