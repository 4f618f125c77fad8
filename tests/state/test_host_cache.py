"""Copies of segments on a host's disk: used, damaged, cut off while they were written, evicted, and not to be had."""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from spark_mjoin.engine import cache
from spark_mjoin.errors import OptionError, StateError
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.host_cache import TEMPORARY, HostCache
from spark_mjoin.state.manifest import Segment
from spark_mjoin.state.segments import Segments
from tests.harness import OK, duckdb_join, rows, run, scripted

SCHEMA = pa.schema({"n": pa.int64()})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Directory]:
    """A directory that is not on this host, and copies in a directory of the test's."""
    monkeypatch.setenv("SPARK_MJOIN_CACHE", str(tmp_path / "copies"))
    location = f"memory://host-cache{tmp_path}"
    yield Directory(location)
    files = fsspec.filesystem("memory")
    if files.exists("/host-cache"):
        files.rm("/host-cache", recursive=True)


class Reads:
    """The files that were opened for reading on the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        files = fsspec.filesystem("memory")
        plain = files.open

        def counting(path: str, mode: str = "rb", **options: object) -> object:
            if mode == "rb":
                self.names.append(path.rpartition("/")[2])
            return plain(path, mode, **options)

        monkeypatch.setattr(files, "open", counting)

    def rows(self) -> int:
        return sum(name.startswith("rows-") for name in self.names)


@pytest.fixture
def reads(store: Directory, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def written(store: Directory, name: str, count: int = 1000) -> Segment:
    batch = pa.record_batch([pa.array(range(count), pa.int64())], schema=SCHEMA)
    size, crc32, _ = Segments(store).write(name, SCHEMA, [(0, batch)], "attempt")
    return Segment(name=name, input=0, start=0, end=count, bytes=size, crc32=crc32, level=0, clusters=None)


def sum_of(store: Directory, segment: Segment) -> int:
    """As a worker reads it that has nothing in memory."""
    return sum(sum(batch.column(0).to_pylist()) for _, batch in Segments(store).stored(segment))


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "copies").iterdir())


def test_what_this_host_has_written_is_not_read_from_the_store(store: Directory, reads: Reads, tmp_path: Path) -> None:
    segment = written(store, "rows-1-attempt.arrow")
    assert sum_of(store, segment) == 499_500
    assert reads.rows() == 0
    assert [path.stat().st_size for path in copies(tmp_path)] == [segment.bytes]


def test_what_another_host_has_written_is_read_once(store: Directory, reads: Reads, tmp_path: Path) -> None:
    segment = written(store, "rows-1-attempt.arrow")
    for path in copies(tmp_path):
        path.unlink()
    for _ in range(3):
        assert sum_of(store, segment) == 499_500
    assert reads.rows() == 1


@pytest.mark.parametrize("damage", ["another byte", "cut off", "longer"])
def test_a_damaged_copy_is_replaced(store: Directory, reads: Reads, tmp_path: Path, damage: str) -> None:
    segment = written(store, "rows-1-attempt.arrow")
    (path,) = copies(tmp_path)
    contents = path.read_bytes()
    damaged = {"cut off": contents[:-1], "longer": contents + b"x"}
    path.write_bytes(damaged.get(damage, contents[:600] + bytes([contents[600] ^ 1]) + contents[601:]))
    assert sum_of(store, segment) == 499_500
    assert reads.rows() == 1
    assert copies(tmp_path) == [path] and path.read_bytes() == contents


def test_what_is_damaged_in_the_store_is_an_error_and_no_copy(store: Directory, tmp_path: Path) -> None:
    segment = written(store, "rows-1-attempt.arrow")
    for path in copies(tmp_path):
        path.unlink()
    with pytest.raises(StateError, match="is damaged"):
        sum_of(store, segment._replace(crc32=segment.crc32 ^ 1))
    assert copies(tmp_path) == []


def test_who_is_killed_while_copying_leaves_no_copy(tmp_path: Path) -> None:
    """And what is left goes when the next one writes; a copy that a living process writes stays."""
    place = tmp_path / "copies"
    place.mkdir()
    code = f"""
import os, signal
from pathlib import Path
from spark_mjoin.state.host_cache import HostCache
with HostCache(Path({str(place)!r}), 1 << 20).copying("a") as copy:
    copy.write(b"half" * 100_000)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    left = copies(tmp_path)
    assert [path.name.startswith(TEMPORARY) for path in left] == [True]
    found = HostCache(place, 1 << 20)
    assert found.find("a", 400_000, None) is None
    with found.copying("b") as living:
        living.write(b"b")
        with found.copying("c") as copy:
            copy.write(b"c")
        assert len(copies(tmp_path)) == 2 and left[0] not in copies(tmp_path)
    for name in ("b", "c"):
        assert found.find(name, 1, zlib.crc32(name.encode())) is not None


def test_what_was_not_used_for_the_longest_time_is_evicted(tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    found = HostCache(tmp_path / "copies", 2500)

    def copy(name: str) -> None:
        with found.copying(name) as made:
            made.write(name.encode() * 1000)

    def has(name: str) -> bool:
        return found.find(name, 1000, zlib.crc32(name.encode() * 1000)) is not None

    for number, name in enumerate("ab"):
        copy(name)
        (path,) = (path for path in copies(tmp_path) if path.read_bytes().startswith(name.encode()))
        os.utime(path, (number, number))
    assert has("a"), "which is a use"
    copy("c")
    assert [has(name) for name in "abc"] == [True, False, True]


def test_without_a_disk_for_copies_the_store_is_read(
    store: Directory, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("SPARK_MJOIN_CACHE", str(tmp_path / "file"))
    segment = written(store, "rows-1-attempt.arrow")
    assert sum_of(store, segment) == 499_500
    assert reads.rows() > 0
    assert "the store is read instead" in caplog.text


def test_a_disk_that_is_full_is_no_error(store: Directory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    monkeypatch.setattr("tempfile.NamedTemporaryFile", lambda **_: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    monkeypatch.setattr(Path, "unlink", lambda *_: None)  # nobody removes /dev/full
    segment = written(store, "rows-1-attempt.arrow")
    assert sum_of(store, segment) == 499_500


def test_copies_are_with_temporary_files_unless_a_variable_says_otherwise(
    store: Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.delenv("SPARK_MJOIN_CACHE")
    written(store, "rows-1-attempt.arrow")
    (place,) = (tmp_path / "temporary").iterdir()
    assert place.name == f"spark-mjoin-{os.getuid()}" and place.stat().st_mode & 0o777 == 0o700
    assert len(list(place.iterdir())) == 1
    other = os.getuid() + 1
    place.rename(place.with_name(f"spark-mjoin-{other}"))
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert HostCache.of_host() is None, "somebody else has made it"
    monkeypatch.setenv("SPARK_MJOIN_CACHE", "")
    assert HostCache.of_host() is None


def test_a_size_that_is_none_is_refused(store: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MJOIN_CACHE_SIZE", "much")
    with pytest.raises(OptionError, match=r"SPARK_MJOIN_CACHE_SIZE.*'much' is not a size"):
        Segments(store)


def test_a_copy_goes_with_its_segment(store: Directory, tmp_path: Path) -> None:
    written(store, "rows-1-attempt.arrow")
    written(store, "rows-2-attempt.arrow")
    store.delete("rows-1-attempt.arrow")
    assert len(copies(tmp_path)) == 1


def test_not_every_copy_is_a_look_at_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "copies").mkdir()
    found, looks = HostCache(tmp_path / "copies", 64_000), []
    shrink = HostCache.shrink
    monkeypatch.setattr(HostCache, "shrink", lambda self: (looks.append(1), shrink(self)))
    for number in range(100):
        with found.copying(str(number)) as copy:
            copy.write(bytes(100))
    assert 1 + 100 // 11 - 1 <= len(looks) <= 1 + 100 // 10
    for number in range(100, 1000):
        with found.copying(str(number)) as copy:
            copy.write(bytes(100))
    assert sum(path.stat().st_size for path in copies(tmp_path)) <= 64_000 + 1_100


def oracle_a_join_resumes_from_copies(
    store: Directory, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch in a worker that has nothing in memory; no segment is read from the store."""
    script = [pa.table({"k": [i % 3, i % 5], "v": [f"{i}", None]}) for i in range(12)]
    query = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"
    options = scripted({"a": script, "b": script}, query, stateLocation=f"{store.location}/join")
    with cache.using(cache.StateCache(limit_bytes=0)) as states:
        monkeypatch.setattr(states, "take", lambda task: None)
        found = rows(run(options, Path("unused"), [OK]))
    whole = pa.concat_tables(script)
    assert found == rows(duckdb_join(query, {"a": whole, "b": whole}))
    assert reads.rows() == 0
    held = [path for path in fsspec.filesystem("memory").find("/host-cache") if "/rows-" in path]
    assert 0 < len(copies(tmp_path)) <= len(held), "copies go with their segments"
