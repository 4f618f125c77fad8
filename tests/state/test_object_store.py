"""State on S3: a server of our own (tests/object_store.py), with puts on condition (s3fs) and without."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin import filesystem
from spark_mjoin.engine import cache
from spark_mjoin.state.directory import ChecksumStream, Directory
from tests.harness import CRASH, OK, TWICE, duckdb_join, rows, run, scripted
from tests.object_store import ObjectStore

pytest.importorskip("moto", reason="moto's server is not installed")

QUERY = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"
SCRIPT = [pa.table({"k": [i % 3, i % 5], "v": [f"{i}", None]}) for i in range(12)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def store(running: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_MJOIN_CACHE", str(tmp_path / "copies"))
    return running


@pytest.fixture(params=["s3fs", "pyarrow alone"])
def puts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "s3fs":
        pytest.importorskip("s3fs")
    else:
        monkeypatch.setitem(sys.modules, "s3fs", None)
    return str(request.param)


def joined(location: str, **options: str) -> None:
    cache.of_worker().clear()
    given = scripted({"a": SCRIPT, "b": SCRIPT}, QUERY, stateLocation=location, **options)
    found = rows(run(given, Path("unused"), [OK, CRASH, OK, TWICE, OK, CRASH]))
    whole = pa.concat_tables(SCRIPT)
    assert found == rows(duckdb_join(QUERY, {"a": whole, "b": whole}))


@pytest.mark.parametrize("memory", ["", "1"], ids=["in memory", "nothing stays"])
def oracle_state_on_an_object_store(store: ObjectStore, puts: str, memory: str, tmp_path: Path) -> None:
    joined(store.location(tmp_path.name), **({"memory": memory} if memory else {}))
    assert store.count("PUT", f"{tmp_path.name}.*rows-") > 0
    assert store.count("PUT", f"{tmp_path.name}.*tmp-") == 0, "nothing is written under another name first"


def test_the_first_of_two_attempts_wins(store: ObjectStore, puts: str, tmp_path: Path) -> None:
    one, two = (Directory(store.location(tmp_path.name)) for _ in range(2))
    assert one.exact == (puts == "s3fs")
    for directory, said in ((one, b"one"), (two, b"two")):
        directory.publish("version-1.json", said.hex(), lambda stream, said=said: stream.write(said))
    assert one.read("version-1.json") == two.read("version-1.json") == b"one"
    assert one.exact == (puts == "s3fs")


def test_of_two_attempts_at_once_the_first_wins_where_puts_have_conditions(
    store: ObjectStore, puts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked and found nothing. Where the last wins, `exact` says so, and the store knows what to do."""
    one, two = (Directory(store.location(tmp_path.name)) for _ in range(2))
    monkeypatch.setattr(Directory, "exists", lambda self, name: False)
    for directory, said in ((one, b"one"), (two, b"two")):
        directory.publish("version-1.json", said.hex(), lambda stream, said=said: stream.write(said))
    assert one.read("version-1.json") == (b"one" if one.exact else b"two")
    assert one.exact == (puts == "s3fs")


def test_a_store_that_ignores_conditions_is_noticed(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"{store.other_bucket('careless')}/{tmp_path.name}"
    plain, _ = filesystem.resolve(other)

    def ignoring(path: str, contents: bytes) -> bool:
        with plain.open_output_stream(path) as sink:
            sink.write(contents)
        return True

    monkeypatch.setattr(filesystem, "conditional_creator", lambda location, fs: ignoring)
    directory = Directory(other)
    directory.publish("version-1.json", "one", lambda stream: stream.write(b"one"))
    assert not directory.exact
    directory.publish("version-1.json", "two", lambda stream: stream.write(b"two"))
    assert directory.read("version-1.json") == b"one"


def test_who_is_killed_while_writing_leaves_nothing_to_see(store: ObjectStore, puts: str, tmp_path: Path) -> None:
    for name in ("rows-1-attempt.arrow", "version-1.json"):
        code = f"""
import os, signal, sys
if {puts == "pyarrow alone"}:
    sys.modules["s3fs"] = None
from spark_mjoin.state.directory import Directory
def write(stream):
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
Directory({store.location(tmp_path.name)!r}).publish({name!r}, "attempt", write)
"""
        assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ)).returncode == -signal.SIGKILL
    assert Directory(store.location(tmp_path.name)).names() == []


def test_who_fails_while_writing_leaves_nothing_to_see(store: ObjectStore, puts: str, tmp_path: Path) -> None:
    directory = Directory(store.location(tmp_path.name))

    def write(stream: ChecksumStream) -> None:
        stream.write(b"half")
        raise KeyError("cut off")

    for name in ("rows-1-attempt.arrow", "version-1.json"):
        with pytest.raises(KeyError):
            directory.publish(name, "attempt", write)
    assert directory.names() == []


def test_a_restart_reads_no_segment_that_this_host_has_written(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has lost its memory reads what is on its host's disk; without a cache it reads the store."""
    here, elsewhere = store.location(f"{tmp_path.name}-here"), store.location(f"{tmp_path.name}-elsewhere")
    joined(here)
    assert store.count("GET", f"{tmp_path.name}-here.*rows-") == 0
    monkeypatch.setenv("SPARK_MJOIN_CACHE", "")
    joined(elsewhere)
    assert store.count("GET", f"{tmp_path.name}-elsewhere.*rows-") > 0
