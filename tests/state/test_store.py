"""Versions of the state: whole or not there, checked when read, few files, and nothing left behind."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_mjoin.engine import cache, loading
from spark_mjoin.errors import StateError
from spark_mjoin.evidence import edges_of, kept_edges
from spark_mjoin.state import checked_json, columns, garbage
from spark_mjoin.state import directory as directory_module
from spark_mjoin.state import manifest as manifest_module
from spark_mjoin.state import segments as segments_module
from spark_mjoin.state.directory import ChecksumStream, Directory
from spark_mjoin.state.garbage import KEPT_VERSIONS
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.segments import FAN_OUT
from spark_mjoin.state.source_log import MERGE_FILES, DurableLog
from spark_mjoin.state.store import StateStore
from tests.harness import CRASH, ReadAllAvailable, reader, rows, run, scripted

JOIN_OF_LISTS = "SELECT a.n, b.n AS m, a.l, b.l AS o FROM a JOIN b ON a.k = b.k"
QUERY = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"


def batches(count: int) -> list[pa.Table]:
    return [pa.table({"k": [i, i + 1], "v": [f"{i}", None]}) for i in range(count)]


def options(count: int) -> dict[str, str]:
    return scripted({"a": batches(count), "b": batches(count)}, QUERY)


def partition_directory(state: Path) -> Path:
    (found,) = state.glob("*/partition-0-of-1")
    return found


def load(state: Path, spec: object, version: int) -> object:
    location = partition_directory(state).parent
    return loading.load(StateStore(str(location), 0), spec, (0, 1), version, {}, None)


def test_files_stay_few_and_rows_stay_whole(tmp_path: Path) -> None:
    count = 3 * FAN_OUT * FAN_OUT
    run(options(count), tmp_path)
    names = [p.name for p in partition_directory(tmp_path).iterdir()]
    versions = sorted(n for n in names if n.startswith("version-"))
    assert [int(v[8:20]) for v in versions] == [count - 2, count - 1, count]
    assert len(versions) == KEPT_VERSIONS
    assert not [n for n in names if n.startswith(".")]
    assert len([n for n in names if n.startswith("rows-")]) <= 2 * (3 * (FAN_OUT - 1) + KEPT_VERSIONS)
    spec = reader({**options(count), "stateLocation": str(tmp_path)}).session.spec
    state = load(tmp_path, spec, count)
    whole = pa.concat_tables(batches(count))
    for table in state.root.tables:
        stored = pa.Table.from_batches([table.arrow(0, table.rows)])
        assert stored.column(0).to_pylist() == whole.column("k").to_pylist()
        assert stored.column(1).to_pylist() == whole.column("v").to_pylist()


def test_large_segments_are_not_merged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "LARGE_BYTES", 0)
    run(options(3 * FAN_OUT), tmp_path)
    manifest = StateStore(str(partition_directory(tmp_path).parent), 0).manifest(3 * FAN_OUT)
    assert len(manifest.root.segments) == 2 * 3 * FAN_OUT


@pytest.mark.parametrize(("small", "room", "opened"), [(1 << 20, 1 << 20, 4), (1 << 20, 1, 8), (1, 1 << 20, 8)])
def test_the_last_small_segments_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, room: int, opened: int
) -> None:
    run(options(2), tmp_path)
    monkeypatch.setattr(segments_module, "READ_BYTES", small)
    monkeypatch.setattr(segments_module, "OPEN_BYTES", room)
    store = StateStore(str(partition_directory(tmp_path).parent), 0)
    segments = store.manifest(2).root.segments
    mapped: list[str] = []
    real = store.directory.map
    monkeypatch.setattr(store.directory, "map", lambda name: (mapped.append(name), real(name))[1])
    first, second = ([b.num_rows for s in segments for _, b in store.segments.batches(s)] for _ in range(2))
    assert first == second == [2, 2, 2, 2]
    assert len(mapped) == opened


def test_edge_counts_and_results_are_kept(tmp_path: Path) -> None:
    results = run(options(5), tmp_path)
    manifest = StateStore(str(partition_directory(tmp_path).parent), 0).manifest(5)
    assert manifest.results == sum(t.num_rows for t in results)
    edges = edges_of(manifest.root.edges)
    assert edges.keys() == {(0, frozenset({0}), 1), (1, frozenset({1}), 0)}
    counts = edges[1, frozenset({1}), 0]
    assert 9.9 < counts.probes < 10  # older batches fade: of two rows in each, by a little
    assert 0 < counts.matches == counts.kept <= counts.candidates
    assert kept_edges(edges) == manifest.root.edges


@pytest.mark.parametrize("memory", [None, "1", "40k"], ids=["in memory", "nothing stays in memory", "overflow"])
def test_large_nested_values_are_stored_and_emitted_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str | None
) -> None:
    monkeypatch.setattr(columns, "MAX_GATHERED_BYTES", 300)
    monkeypatch.setattr(columns, "MAX_STORED_BYTES", 500)
    script = [
        pa.table({"k": [n % 5 for n in range(30)], "n": range(30), "l": [[f"{b}", "x" * n] for n in range(30)]})
        for b in range(3)
    ]
    budget = {} if memory is None else {"memory": memory}
    given = scripted({"a": script, "b": [t.slice(0, 7) for t in script]}, JOIN_OF_LISTS, **budget)
    found = rows(run(given, tmp_path, [CRASH] * 3))  # every batch loads its state from the store
    a, b = (pa.concat_tables(s).to_pylist() for s in (script, [t.slice(0, 7) for t in script]))
    pairs = ((x, y) for x in a for y in b if x["k"] == y["k"])
    assert found == Counter((x["n"], y["n"], tuple(x["l"]), tuple(y["l"])) for x, y in pairs)
    if memory is None:  # else they are cut by bucket anyway
        segments = partition_directory(tmp_path).glob("rows-*-0-*-*.arrow")
        pieces = [pa.ipc.open_file(pa.memory_map(str(path))).num_record_batches for path in segments]
        assert min(pieces) > 2


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 0x10
    path.write_bytes(contents)


def damage_remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [damage_truncate, damage_flip, damage_remove])
@pytest.mark.parametrize("kind", ["rows-", "version-"])
def test_damage_is_found_and_named(tmp_path: Path, kind: str, damage: Callable[[Path], None]) -> None:
    run(options(3), tmp_path)
    cache.of_worker().clear()
    victim = max(p for p in partition_directory(tmp_path).iterdir() if p.name.startswith(kind))
    healthy = victim.read_bytes()
    spec = reader({**options(3), "stateLocation": str(tmp_path)}).session.spec
    damage(victim)
    if kind == "version-" and damage is damage_remove:
        assert load(tmp_path, spec, 3).version == 2  # as if the batch had never ended: rebuilt from the input
    else:
        with pytest.raises(StateError, match=victim.name):
            load(tmp_path, spec, 3)
    victim.write_bytes(healthy)
    assert load(tmp_path, spec, 3).version == 3


def test_an_unknown_format_is_refused_by_number(tmp_path: Path) -> None:
    run(options(1), tmp_path)
    manifest = partition_directory(tmp_path) / "version-000000000001.json"
    body = json.loads(manifest.read_bytes().split(b" ", 1)[1].splitlines()[0])
    location = Directory(str(partition_directory(tmp_path)))
    manifest.unlink()
    checked_json.publish(location, manifest.name, "test", json.dumps({**body, "format": 99}).encode())
    with pytest.raises(StateError, match="format 99"):
        StateStore(str(partition_directory(tmp_path).parent), 0).manifest(1)


def test_a_manifest_that_names_files_is_parsed_once_and_checked_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(options(3), tmp_path)
    place = partition_directory(tmp_path)
    manifests = Manifests(str(place.parent), 0)
    parsed = []
    monkeypatch.setattr(checked_json, "parsed", lambda text, path: parsed.append(path) or json.loads(text))
    manifest_module.remembered.cache_clear()
    named = manifests.manifest(3).files
    assert sorted(named) == sorted(p.name for p in place.glob("rows-*"))
    assert manifests.manifest(3).files == named
    assert len(parsed) == 1
    assert manifests.manifest(2).files != named
    assert len(parsed) == 2
    damage_flip(place / "version-000000000003.json")
    with pytest.raises(StateError, match=r"version-000000000003.json is damaged"):
        manifests.manifest(3)
    (place / "version-000000000003.json").unlink()
    with pytest.raises(StateError, match=r"state version 3 is not in .* \(kept: 1, 2\)"):
        manifests.manifest(3)


def test_a_missing_state_directory_is_an_error_and_not_a_fresh_start(tmp_path: Path) -> None:
    with_state = {**options(4), "stateLocation": str(tmp_path / "there")}
    first = reader(with_state)
    start = first.initialOffset()
    end = first.latestOffset(start, ReadAllAvailable())
    moved = reader({**options(4), "stateLocation": str(tmp_path / "elsewhere")})
    with pytest.raises(StateError, match="stateLocation"):
        moved.latestOffset(end, ReadAllAvailable())
    with pytest.raises(StateError, match="stateLocation"):
        moved.partitions(start, end)


def test_the_first_publication_of_a_name_wins(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "new"))
    directory.publish("x", "first", lambda stream: stream.write(b"1"))
    directory.publish("x", "second", lambda stream: stream.write(b"2"))
    assert directory.read("x") == b"1"
    assert directory.names() == ["x"]
    assert directory.leftovers() == []


def test_a_file_that_was_not_finished_is_not_there(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))

    def half(stream: object) -> None:
        stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(StateError, match=f"cannot write state file {directory.path('x')}: disk full"):
        directory.publish("x", "a", half)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["meaning", "entries", "rows", "version"])
def test_a_full_disk_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whatever is being written; it leaves nothing behind, and once there is space the query goes on."""
    (tmp_path / "in").mkdir()
    pq.write_table(batches(1)[0], tmp_path / "in" / "1.parquet")
    given = {"query": QUERY, "stateLocation": str(tmp_path / "state")}
    for alias in "ab":
        given |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / "in")}

    class Full(ChecksumStream):
        def write(self, data: Any) -> int:
            self._sink.write(bytes(data)[:10])
            raise OSError(28, "No space left on device")

    def stream(sink: Any) -> ChecksumStream:
        return (Full if f"-{kind}" in Path(sink.name).name else ChecksumStream)(sink)

    def first_batch() -> int:
        current = reader(given)
        start = current.initialOffset()
        end = current.latestOffset(start, ReadAllAvailable())
        return sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))

    with (
        monkeypatch.context() as full,
        pytest.raises(StateError, match=rf"cannot write state file .*/{kind}.*No space"),
    ):
        full.setattr(directory_module, "ChecksumStream", stream)
        first_batch()
    left = [p.name for p in (tmp_path / "state").rglob("*") if p.name.startswith((".tmp-", "rows-"))]
    assert left == []
    assert first_batch() == 2


def test_state_on_another_file_system() -> None:
    import fsspec

    run_options = {**options(5), "stateLocation": "memory://states/one"}
    current = reader(run_options)
    start, produced = current.initialOffset(), []
    while (end := current.latestOffset(start, ReadAllAvailable())) != start:
        cache.of_worker().clear()  # every batch loads its state from the store
        for partition in current.partitions(start, end):
            produced += current.read(partition)
        start = end
    assert len(rows(pa.Table.from_batches(produced))) == 2 + 4 * 4  # 0 and 5 come once on each side, 1 to 4 twice
    assert fsspec.filesystem("memory").find("/states/one")


def test_source_log_survives_merges_and_reopening(tmp_path: Path) -> None:
    log = DurableLog(str(tmp_path), 0, "orders")
    expected = []
    for i in range(3 * MERGE_FILES):
        entries = [{"path": f"{i}-{j}"} for j in range(i % 3)]
        log.append(entries)
        expected += entries
        assert len(log) == len(expected)
    for reopened in (log, DurableLog(str(tmp_path), 0, "orders")):
        assert reopened.read(0, len(expected)) == expected
        assert reopened.read(17, 23) == expected[17:23]
        assert reopened.read(5, 5) == []
    assert len(list((tmp_path / "sources" / "0").iterdir())) <= MERGE_FILES + 1


def test_source_log_after_a_crash_in_the_middle_of_a_merge(tmp_path: Path) -> None:
    log = DurableLog(str(tmp_path), 0, "orders")
    log.append([{"n": 0}])
    log.append([{"n": 1}, {"n": 2}])
    elsewhere = tmp_path / "elsewhere" / tmp_path.name  # of a query of the same name
    DurableLog(str(elsewhere), 0, "orders").append([{"n": 0}, {"n": 1}, {"n": 2}])
    (merged,) = (elsewhere / "sources" / "0").iterdir()
    merged.rename(tmp_path / "sources" / "0" / merged.name)  # the merged file is there, the old ones too
    reopened = DurableLog(str(tmp_path), 0, "orders")
    assert reopened.read(0, 3) == [{"n": 0}, {"n": 1}, {"n": 2}]
    reopened.append([{"n": 3}])
    assert DurableLog(str(tmp_path), 0, "orders").read(2, 4) == [{"n": 2}, {"n": 3}]


def test_a_source_log_with_a_hole_is_refused(tmp_path: Path) -> None:
    log = DurableLog(str(tmp_path), 0, "orders")
    for n in range(3):
        log.append([{"n": 2 * n}, {"n": 2 * n + 1}])
    first, second, _ = sorted((tmp_path / "sources" / "0").iterdir())
    first.rename(tmp_path / "first")
    with pytest.raises(StateError, match=r"log of source 'orders' in .*entries 0 to 1 are missing"):
        len(DurableLog(str(tmp_path), 0, "orders"))
    (tmp_path / "first").rename(first)
    second.unlink()
    with pytest.raises(StateError, match=r"log of source 'orders' in .*entries 2 to 3 are missing"):
        DurableLog(str(tmp_path), 0, "orders").read(4, 6)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """Copies that a user has made, and what systems leave in directories, are neither read nor removed."""
    run(options(5), tmp_path / "state")
    partition = partition_directory(tmp_path / "state")
    log = DurableLog(str(tmp_path), 0, "orders")
    log.append([{"n": 0}])
    segment, manifest = (max(partition.glob(f"{kind}-*")).name for kind in ("rows", "version"))
    foreign = [partition / name for name in (f"{manifest}.bak", f"{segment}.bak", "version-new.json", ".nfs0001")]
    foreign += [tmp_path / "sources" / "0" / name for name in (".DS_Store", "entries-0-1.json", ".nfs0001")]
    for path in foreign:
        path.touch()
    store = StateStore(str(partition.parent), 0)
    assert store.versions() == [3, 4, 5]
    garbage.collect(store, 9, "other")
    assert DurableLog(str(tmp_path), 0, "orders").read(0, 1) == [{"n": 0}]
    assert all(path.exists() for path in foreign)


def test_a_damaged_version_that_no_batch_needs_does_not_end_the_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {**options(9), "stateLocation": str(tmp_path)}
    current = reader(given)
    start = current.initialOffset()

    def batch() -> int:
        nonlocal start
        end = current.latestOffset(start, ReadAllAvailable())
        found = sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))
        start = end
        return found

    for _ in range(4):
        batch()
    damage_flip(partition_directory(tmp_path) / "version-000000000003.json")
    assert [batch() for _ in range(4)] == [4] * 4
    assert "version-000000000003.json is damaged" in caplog.text
    names = sorted(p.name for p in partition_directory(tmp_path).iterdir())
    assert [n for n in names if n.startswith("version-")] == [f"version-{v:012d}.json" for v in (6, 7, 8)]
    store = StateStore(str(partition_directory(tmp_path).parent), 0)
    needed = {s.name for v in (6, 7, 8) for s in store.manifest(v).root.segments}
    assert needed == {n for n in names if n.startswith("rows-")}


def test_leftovers_of_attempts_that_were_cut_off_are_removed(tmp_path: Path) -> None:
    """Whatever the attempt is called: ids are hexadecimal and may look like a version."""
    run(options(2), tmp_path)
    directory = partition_directory(tmp_path)
    for attempt in ("123456789012abcd", "abcdef", "999999999999"):
        (directory / f".tmp-rows-000000000001-0-1-{attempt}.arrow").touch()
        (directory / f".tmp-{attempt}-version-000000000001.json").touch()
    store = StateStore(str(directory.parent), 0)
    garbage.collect(store, 2, "other")
    assert len(list(directory.glob(".tmp-*"))) == 6  # an attempt at version 1 may still be under way
    garbage.collect(store, 3, "other")
    assert list(directory.glob(".tmp-*")) == []
