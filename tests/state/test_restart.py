"""Restarts with a state that is there: other options, another time, other files."""

import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_mjoin.engine import cache
from spark_mjoin.errors import SourceError, StateError
from spark_mjoin.state.manifest import Segment
from spark_mjoin.state.segments import FAN_OUT, LARGE_BYTES, place
from tests.harness import LIMITED, ReadAllAvailable, reader, run, scripted

ORDERS = [pa.table({"id": [i], "name": [f"order{i}"]}) for i in range(8)]
PAYMENTS = [pa.table({"id": [i - 1], "name": [f"pay{i - 1}"]}) for i in range(8)]
QUERY = "SELECT o.id, o.name AS o_name, p.name AS p_name FROM o JOIN p ON o.id = p.id"


class Query:
    """A query that is stopped and started again: its checkpoint is the list of offsets."""

    def __init__(self, options: dict[str, str], state: Path) -> None:
        self.options = {**options, "stateLocation": str(state)}
        self.offsets = [reader(self.options).initialOffset()]

    def restart(self, batches: int = 1, **changed: str) -> list[tuple]:
        """Run some batches in a fresh process, as far as this one can be; the rows that came out."""
        cache.of_worker().clear()
        current = reader({**self.options, **changed})
        found: list[tuple] = []
        for _ in range(batches):
            self.offsets.append(current.latestOffset(self.offsets[-1], ReadAllAvailable()))
            found += self._last(current)
        return found

    def again(self, **changed: str) -> list[tuple]:
        """Run the last batch once more, in a fresh process."""
        cache.of_worker().clear()
        return self._last(reader({**self.options, **changed}))

    def _last(self, current: Any) -> list[tuple]:
        batches = (b for p in current.partitions(*self.offsets[-2:]) for b in current.read(p))
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    def skip(self, **changed: str) -> None:
        """A batch that nobody reads."""
        current = reader({**self.options, **changed})
        self.offsets.append(current.latestOffset(self.offsets[-1], ReadAllAvailable()))


def test_another_order_of_the_inputs_is_refused(tmp_path: Path) -> None:
    query = Query(scripted({"o": ORDERS, "p": PAYMENTS}, QUERY), tmp_path)
    query.restart(2)
    with pytest.raises(StateError, match="order of the inputs in the query was o, p, is now p, o"):
        query.restart(query="SELECT o.id, o.name AS o_name, p.name AS p_name FROM p JOIN o ON o.id = p.id")
    assert query.restart() == [(1, "order1", "pay1")]


def files(tmp_path: Path, first: pa.Table, second: pa.Table) -> tuple[Query, Path]:
    """A query over parquet files without a declared schema, stopped after the first file, which is then removed."""
    for alias in "xy":
        (tmp_path / alias).mkdir()
    pq.write_table(first, tmp_path / "x" / "1.parquet")
    pq.write_table(pa.table({"id": [-1]}), tmp_path / "y" / "1.parquet")
    columns = [name for name in first.column_names if name != "id"]
    options = {"query": "SELECT x.id, " + ", ".join(f"x.{c}" for c in columns) + " FROM x JOIN y ON x.id = y.id"}
    for alias in "xy":
        options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / alias)}
    query = Query(options, tmp_path / "state")
    assert query.restart() == []
    (tmp_path / "x" / "1.parquet").unlink()
    pq.write_table(second, tmp_path / "x" / "2.parquet")
    pq.write_table(pa.table({"id": first["id"]}), tmp_path / "y" / "2.parquet")
    return query, tmp_path


def test_columns_are_found_by_name_when_files_change_their_order(tmp_path: Path) -> None:
    first = pa.table({"id": [1], "a": ["A1"], "b": ["B1"]})
    query, _ = files(tmp_path, first, pa.table({"id": [2], "b": ["B2"], "a": ["A2"]}))
    assert query.restart() == [(1, "A1", "B1")]


def test_another_type_of_a_key_that_is_emitted_is_refused(tmp_path: Path) -> None:
    first = pa.table({"id": [2**32 + 7], "a": ["A"]})
    query, _ = files(tmp_path, first, pa.table({"id": pa.array([7], pa.int32()), "a": ["B"]}))
    with pytest.raises(StateError, match=r"key was `?id`? .*BIGINT.*, is now `?id`? .*INT"):
        query.restart()


@pytest.mark.parametrize("change", ["name LIKE 'a!_b' ESCAPE '!'", "o.id * 0.1 = 0.3"])
def test_another_filter_is_refused(tmp_path: Path, change: str) -> None:
    other = {"name LIKE 'a!_b' ESCAPE '!'": "o.name LIKE 'a!_b'", "o.id * 0.1 = 0.3": "o.id * 1e-1 = 3e-1"}[change]
    query = Query(scripted({"o": ORDERS, "p": PAYMENTS}, f"{QUERY} WHERE {change.replace('name', 'o.name')}"), tmp_path)
    query.restart()
    with pytest.raises(StateError, match="filter was"):
        query.restart(query=f"{QUERY} WHERE {other}")


def test_a_checkpoint_that_was_set_back_goes_on_and_keeps_its_state(tmp_path: Path) -> None:
    query = Query(scripted({"o": ORDERS, "p": PAYMENTS}, QUERY), tmp_path)
    everything = query.restart(6)
    del query.offsets[3:]  # back to version 2, which is not kept any more: it is rebuilt from the input
    assert query.restart(4) == everything[1:]
    assert query.restart() == [(5, "order5", "pay5")]


def test_a_state_of_another_time_is_refused(tmp_path: Path) -> None:
    query = Query(scripted({"o": ORDERS, "p": PAYMENTS}, QUERY), tmp_path)
    query.restart(3)
    query.offsets[-1] = {**query.offsets[-1], "positions": query.offsets[-2]["positions"]}
    with pytest.raises(StateError, match="not of the same time"):
        query.restart()


def test_batches_that_are_always_cut_off_are_read_again_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = [pa.table({"id": [1]})] * 6
    options = scripted({"o": script, "p": script}, "SELECT o.id FROM o JOIN p ON o.id = p.id")
    results = run(options, tmp_path, [LIMITED] * 5)
    again = [message for message in caplog.messages if "reading again" in message]
    assert again == [
        f"state version {version} was not committed; reading again from version {version - 1}"
        for version in (1, 2, 3, 4, 5)
    ]
    assert [t.num_rows for t in results] == [0, 0, 0, 0, 0, 6 * 6 - 5 * 5]


BUDGETS = {
    "no budget": {},
    "nothing stays": {"memory": "1"},
    "little": {"memory": "20k"},
    "enough": {"memory": "1m"},
    "no more": {"memory": "1m", "overflow": "fail"},
}


@pytest.mark.parametrize("after", BUDGETS)
@pytest.mark.parametrize("before", BUDGETS)
def test_another_budget_after_a_batch_that_nobody_read(tmp_path: Path, before: str, after: str) -> None:
    """The version that is missing is made as the batch was planned that should have made it; then a task that is run
    twice starts from the same rows in memory.
    """
    script = [pa.table({"id": range(50)})] * 4
    query = Query(scripted({"o": script, "p": script}, "SELECT o.id FROM o JOIN p ON o.id = p.id"), tmp_path)
    query.restart(**BUDGETS[before])
    query.skip(**BUDGETS[before])
    assert sorted(query.restart(**BUDGETS[after])) == sorted(query.again(**BUDGETS[after]))
    query.restart(**BUDGETS[after])


def test_small_segments_are_merged_behind_a_large_one() -> None:
    def after(sizes: list[int]) -> int:
        """The number of files after segments of these sizes, at one row each."""
        segments: list[Segment] = []
        for row, size in enumerate(sizes):
            start, level, replaced = place(segments, clustered=False, start=row)
            end = row + 1
            total = size + sum(s.bytes for s in replaced)
            segments = [s for s in segments if s not in replaced]
            segments.append(Segment("x", 0, start, end, level, total, 0))
        return len(segments)

    few = 4 * FAN_OUT
    assert after([1] * 1000) < few
    assert after([2 * LARGE_BYTES] + [1] * 1000) < few
    assert after([LARGE_BYTES // 6] * 7 + [1] * 1000) < few + 7


def test_an_alias_that_is_no_file_name(tmp_path: Path) -> None:
    results = run(
        scripted({"o": ORDERS, "p": PAYMENTS}, "SELECT `a/b`.id FROM o `a/b` JOIN p `.. %` ON `a/b`.id = `.. %`.id"),
        tmp_path,
    )
    assert sum(t.num_rows for t in results) == 7


def lost(tmp_path: Path, **options: str) -> Query:
    """A query whose first batch has committed its state and is run again, after one of its two files has gone."""
    for alias in "xy":
        (tmp_path / alias).mkdir()
        for number, ids in enumerate(([1, 2], [3])):
            pq.write_table(pa.table({"id": ids}), tmp_path / alias / f"{number}.parquet")
        options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / alias)}
        options |= {f"source.{alias}.schema": "id BIGINT"}
    query = Query({"query": "SELECT x.id FROM x JOIN y ON x.id = y.id", **options}, tmp_path / "state")
    query.restart()
    (tmp_path / "x" / "0.parquet").unlink()
    with pytest.raises(SourceError, match=r"is gone.*source\.x\.failOnDataLoss"):
        query.again()
    pq.write_table(pa.table({"id": [1, 3, 4]}), tmp_path / "x" / "9.parquet")
    pq.write_table(pa.table({"id": [2, 4]}), tmp_path / "y" / "9.parquet")
    return query


LENIENT = {"source.x.failOnDataLoss": "false"}


@pytest.mark.parametrize("partitions", ["1", "3"])
def test_a_batch_goes_on_without_input_that_was_lost_after_its_first_attempt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, partitions: str
) -> None:
    query = lost(tmp_path, partitions=partitions)
    assert query.again(**LENIENT) == [(3,)]
    assert "has rows that cannot be read any more" in caplog.text
    assert sorted(query.restart(**LENIENT)) == [(1,), (2,), (3,), (4,)], "what was committed is still joined"
    assert not [p for p in (tmp_path / "state").rglob("rows-000000000001-*") if not _is_named(p)]


def _is_named(segment: Path) -> bool:
    return any(segment.name.encode() in manifest.read_bytes() for manifest in segment.parent.glob("version-*"))


def test_input_that_was_lost_with_rows_on_disk_is_an_error_that_says_how_to_go_on(tmp_path: Path) -> None:
    query = lost(tmp_path, memory="1")
    with pytest.raises(
        StateError, match=r"input was lost between two attempts.*remove .*version-000000000001.json"
    ) as e:
        query.again(**LENIENT)
    named = re.search(r"remove (\S+version-\d+\.json)", str(e.value))
    assert named is not None
    Path(named[1]).unlink()
    found = query.again(**LENIENT)
    while query.offsets[-1] != query.offsets[-2]:
        found += query.restart(**LENIENT)
    assert sorted(found) == [(1,), (3,), (3,), (4,)], "2 is lost"


def test_other_rows_are_an_error_unless_input_may_be_lost(tmp_path: Path) -> None:
    query = lost(tmp_path)
    query.offsets.append(reader({**query.options, **LENIENT}).latestOffset(query.offsets[-1], ReadAllAvailable()))
    query.again(**LENIENT)  # a later version is there: the checkpoint was set back
    query.offsets.pop()
    with pytest.raises(StateError, match=r"is there already, with other rows.*of the same time"):
        query.again(**LENIENT)


@pytest.mark.parametrize("whose", ["of another source", "of another query"])
def test_a_log_that_was_copied_is_an_error_that_names_it(tmp_path: Path, whose: str) -> None:
    """Its entries would be taken for files that the source has found."""

    def started(place: str) -> tuple[Query, Path]:
        options = {"query": "SELECT x.id FROM x JOIN y ON x.id = y.id"}
        for alias in "xy":
            (tmp_path / place / alias).mkdir(parents=True)
            pq.write_table(pa.table({"id": [1]}), tmp_path / place / alias / "1.parquet")
            options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / place / alias)}
        query = Query(options, tmp_path / place / "state")
        assert query.restart() == [(1,)]
        return query, tmp_path / place / "state" / query.offsets[0]["query"] / "sources"

    query, logs = started("first")
    other, from_ = (query, logs / "1") if whose == "of another source" else started("second")
    named = "y" if whose == "of another source" else "x"
    shutil.copytree(from_ if named == "y" else from_ / "0", logs / "0", dirs_exist_ok=True)
    is_not = r"state file .*/sources/0/entries-0+-0+1\.json is not of the log of source 'x', but of that of source "
    with pytest.raises(StateError, match=rf"{is_not}'{named}' of query {other.offsets[0]['query']}"):
        query.restart()
    with pytest.raises(StateError, match=is_not):
        query.again()


@pytest.mark.parametrize(
    ("pattern", "name", "message"),
    [
        ("sources/0/*", "entries-000000000002-000000000003.json", r"entries-0+2-0+3\.json has entries 0 to 0 .* 'x'"),
        ("sources/0/*", "entries-000000000000-000000000002.json", r"entries-0+-0+2\.json has entries 0 to 0 .* 'x'"),
        (
            "partition-0-*/version-*",
            "version-000000000002.json",
            r"version-0+2\.json is of version 1: it was copied",
        ),
    ],
)
def test_a_file_under_the_name_of_another_is_an_error(tmp_path: Path, pattern: str, name: str, message: str) -> None:
    """Its checksum is right, and it is of the same source or partition."""
    options = {"query": "SELECT x.id FROM x JOIN y ON x.id = y.id"}
    for alias in "xy":
        options |= {f"source.{alias}.format": "parquet", f"source.{alias}.path": str(tmp_path / alias)}
        options |= {f"source.{alias}.schema": "id BIGINT"}
        (tmp_path / alias).mkdir()
    query = Query(options, tmp_path / "state")
    for number in (1, 2):
        for alias in "xy":
            pq.write_table(pa.table({"id": [number]}), tmp_path / alias / f"{number}.parquet")
        assert query.restart() == [(number,)]
    first = min((tmp_path / "state" / query.offsets[0]["query"]).glob(pattern))
    shutil.copy(first, first.with_name(name))
    for alias in "xy":
        pq.write_table(pa.table({"id": [3]}), tmp_path / alias / "3.parquet")
    with pytest.raises(StateError, match=message):
        query.restart()
