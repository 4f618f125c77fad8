"""Partitions that take over rows of others: what goes along, what stays behind, what it needs, what is left on disk."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.engine import cache
from spark_mjoin.errors import StateError
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.state.manifest import Manifest
from tests.harness import ReadAllAvailable, Rows, duckdb_join, newest, point, reader, rows, scripted

QUERY = "SELECT a.k, a.v AS x, b.v AS y, c.v AS z FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
BATCHES = 8
TIMED = {
    "window": "2500 milliseconds",
    "expiry": "active",
    **{f"source.{n}.{o}": v for n in "abc" for o, v in (("timestamp", "ts"), ("watermark", "0 seconds"))},
}


def arrivals(size: int = 300, keys: int = 200) -> dict[str, list[pa.Table]]:
    """A second of event time for each batch."""
    dice, out = np.random.Generator(np.random.Philox(11)), {}
    for alias in "abc":
        out[alias] = [
            pa.table(
                {
                    "k": dice.integers(0, keys, size),
                    "v": np.arange(batch * size, (batch + 1) * size),
                    "ts": pa.array(np.arange(size) * 1000 + batch * 1_000_000).cast(pa.timestamp("us", "UTC")),
                }
            )
            for batch in range(BATCHES)
        ]
    return out


@dataclass
class Query:
    """A query that is stopped and started again as a test likes."""

    state: Path
    options: dict[str, str]
    offsets: list[dict[str, Any]] = field(default_factory=list)
    results: list[pa.Table] = field(default_factory=list)
    metrics: list[dict[str, str]] = field(default_factory=list)

    def start(self, partitions: int, **more: str) -> Any:
        cache.of_worker().clear()
        given = {**self.options, "stateLocation": str(self.state), "partitions": str(partitions), **more}
        self.current = reader(given)
        self.offsets = self.offsets or [self.current.initialOffset()]
        return self.current

    def plan(self) -> dict[str, Any]:
        """The offset after the next batch, as Spark writes it down."""
        return json.loads(json.dumps(self.current.latestOffset(self.offsets[-1], ReadAllAvailable())))

    def run(self, end: dict[str, Any] | None = None) -> bool:
        """A batch to its end; whether there is one."""
        end = end or self.plan()
        if end == self.offsets[-1]:
            return False
        produced = [b for p in self.current.partitions(self.offsets[-1], end) for b in self.current.read(p)]
        self.offsets.append(end)
        self.results.append(pa.Table.from_batches(produced, self.current.session.spec.schema))
        self.metrics.append(self.current.reportLatestOffset()["metrics"])
        return True

    def batches(self, number: int) -> "Query":
        for _ in range(number):
            assert self.run()
        return self

    def to_the_end(self) -> "Query":
        while self.run():
            continue
        return self

    def manifests(self) -> list[Manifest]:
        found = newest(self.current, self.offsets[-1])
        assert all(m is not None and m.version == self.offsets[-1]["version"] for m in found)
        return found

    def routings(self) -> list[tuple[int, int]]:
        return [(r.partitions, r.since) for r in (point(self.current, o).plan.routing for o in self.offsets[1:])]

    def directories(self) -> list[str]:
        return sorted({p.name.split("-", 2)[2] for p in self.state.glob("*/partition-*")})


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "state", scripted(arrivals(), QUERY))


def expected(scripts: dict[str, list[pa.Table]] | None = None) -> Rows:
    given = scripts or arrivals()
    return rows(duckdb_join(QUERY, {alias: pa.concat_tables(script) for alias, script in given.items()}))


def straight(tmp_path: Path, options: dict[str, str], partitions: int = 1) -> Query:
    whole = Query(tmp_path / "straight", options)
    whole.start(partitions)
    return whole.to_the_end()


def test_an_offset_says_how_rows_are_divided_and_a_batch_that_runs_again_has_what_it_says(query: Query) -> None:
    query.start(2)
    query.batches(2)
    query.start(5)
    planned = query.plan()
    assert planned["plan"]["routing"] == {"partitions": 5, "since": 3, "before": {"partitions": 2, "since": 1}}
    query.start(3)
    assert len(query.current.partitions(query.offsets[-1], planned)) == 5
    assert query.run(planned)
    assert query.run()
    assert query.routings() == [(2, 1), (2, 1), (5, 3), (3, 4)]
    query.to_the_end()
    assert rows(query.results) == expected()


def test_the_options_of_a_query_that_goes_on_are_not_compared_for_partitions(query: Query) -> None:
    query.start(2)
    query.batches(1)
    (meaning,) = query.state.glob("*/meaning.json")
    assert "partitions" not in meaning.read_text()


@pytest.mark.parametrize("options", [{}, TIMED, {"memory": "150k"}, {"memory": "150k", **TIMED}], ids=str)
def test_sums_over_partitions_go_on_as_if_nothing_had_changed(tmp_path: Path, options: dict[str, str]) -> None:
    given = scripted(arrivals(), QUERY, **options)
    whole, query = straight(tmp_path, given), Query(tmp_path / "state", given)
    for number, batches in ((3, 2), (7, 2), (2, 1), (1, 1), (4, 2)):
        query.start(number)
        before = sum(sum(m.rows_held) for m in query.manifests()) if query.results else 0
        query.run()
        if query.offsets[-1]["plan"].get("emitsPending"):
            assert query.metrics[-1]["rowsTakenOver"] == "0"
            before = sum(sum(m.rows_held) for m in query.manifests())
            query.run()
        assert int(query.metrics[-1]["rowsTakenOver"]) == before
        query.batches(batches - 1)
        assert query.metrics[-1]["rowsTakenOver"] == "0" or batches == 1
    query.to_the_end()
    assert rows(query.results) == rows(whole.results)
    wanted = ["resultsTotal", "completeness", *(f"{a}NumRowsTotal" for a in "abc" if "memory" not in options)]
    assert {n: query.metrics[-1][n] for n in wanted} == {n: whole.metrics[-1][n] for n in wanted}


def test_what_probes_have_seen_goes_along(query: Query, tmp_path: Path) -> None:
    """The planner concludes the same from it, whatever the numbers of partitions were."""
    whole = straight(tmp_path, query.options)
    for number in (2, 6, 3, 1, 1, 4, 4, 5):
        query.start(number)
        query.run()
    found, wanted = (
        Statistics.of_manifests(q.current.session.spec, [m.root for m in q.manifests()]) for q in (query, whole)
    )
    pairs = ((0, 1), (0, 2), (1, 2))
    assert sum(found.evidence(a, b) for a, b in pairs) > 0.5 * sum(wanted.evidence(a, b) for a, b in pairs)
    for a, b in pairs:
        if found.evidence(a, b) > 500:
            assert found.selectivity(a, b) == pytest.approx(wanted.selectivity(a, b), rel=0.1)


def test_rows_that_were_dropped_stay_behind(tmp_path: Path) -> None:
    query = Query(tmp_path, scripted(arrivals(), QUERY, **TIMED))
    query.start(2)
    query.batches(6)
    before = query.manifests()
    assert sum(sum(m.dropped) for m in before) > 0
    query.start(3)
    query.batches(1)
    assert int(query.metrics[-1]["rowsTakenOver"]) == sum(sum(m.rows_held) for m in before)
    assert sum(sum(m.rows) for m in query.manifests()) <= sum(sum(m.rows_held) for m in before) + 900


@pytest.mark.parametrize(
    ("policy", "change"),
    [("adaptive", (2, 5)), ("coordinated", (5, 2)), ("largest", (1, 4)), ("random", (4, 1)), ("adaptive", (4, 1))],
    ids=str,
)
def test_memory_stays_bounded_and_what_is_pending_comes_first(
    tmp_path: Path, change: tuple[int, int], policy: str
) -> None:
    scripts = arrivals(800, 1600)
    budget = 200 << 10
    given = scripted(scripts, QUERY, memory=str(budget), flush=policy, blockingThreshold="1", diskFuel="1")
    query = Query(tmp_path, given)
    query.start(change[0])
    query.batches(4)
    assert int(query.metrics[-1]["deferredRows"]) > 0
    query.start(change[1], diskFuel="1g")
    query.batches(2)
    emitting, taking = query.offsets[-2:]
    assert emitting["plan"]["emitsPending"] and emitting["positions"] == query.offsets[-3]["positions"]
    assert query.metrics[-2]["deferredRows"] == "0"
    assert query.results[-2].num_rows > 0
    assert query.routings()[-2:] == [(change[0], 1), (change[1], 6)]
    assert "emitsPending" not in taking["plan"] and taking["plan"]["overflow"]["memory"] == budget // change[1]
    assert int(query.metrics[-1]["numRowsOnDisk"]) > 0
    assert int(query.metrics[-1]["memoryPeakBytes"]) < 1.5 * budget
    assert int(query.metrics[-1]["memoryUsedBytes"]) <= budget
    query.to_the_end()
    assert rows(query.results) == expected(scripts)


def test_directories_of_older_numbers_go_once_nobody_needs_them(query: Query) -> None:
    query.start(4)
    query.batches(2)
    query.start(8)
    query.batches(3)  # versions 3, 4, 5
    assert query.directories() == ["of-4", "of-8-since-3"]
    query.batches(1)  # it is planned past version 5, that all have committed
    assert query.directories() == ["of-8-since-3"]
    query.start(4)
    query.batches(1)
    assert query.directories() == ["of-4-since-7", "of-8-since-3"]
    query.to_the_end()
    assert rows(query.results) == expected()


def test_a_users_file_keeps_the_directory(query: Query) -> None:
    query.start(2)
    query.batches(2)
    (mine,) = (p / "notes.txt" for p in query.state.glob("*/partition-1-of-2"))
    mine.write_text("mine")
    query.start(1)
    query.to_the_end()
    assert [p.name for p in mine.parent.iterdir()] == ["notes.txt"] and not list(query.state.glob("*/partition-0-of-2"))


def test_nothing_goes_while_a_partition_has_not_got_to_its_first_version(query: Query) -> None:
    """A downstream LIMIT that is content with the first partitions, batch after batch."""
    query.start(2)
    query.batches(2)
    query.start(3)
    for _ in range(4):
        end = query.plan()
        for partition in query.current.partitions(query.offsets[-1], end)[:2]:
            for _ in query.current.read(partition):
                continue
        query.offsets.append(end)
    assert query.directories() == ["of-2", "of-3-since-3"]
    query.start(1)
    query.batches(1)  # which makes up for what was left out; the number cannot change before
    assert query.routings()[-1] == (3, 3)
    assert query.directories() == ["of-2", "of-3-since-3"]
    query.batches(1)
    assert query.routings()[-1] == (1, 8)
    whole = rows(query.results)
    assert not whole - expected()


@pytest.mark.parametrize("restored", [1, 2, 3, 4])
def test_a_restored_checkpoint_and_state_go_on(query: Query, tmp_path: Path, restored: int) -> None:
    query.start(2)
    copies: dict[int, Path] = {}
    for number in (2, 3, 3, 1, 4):
        query.start(number)
        query.batches(1)
        copies[len(query.results)] = shutil.copytree(query.state, tmp_path / str(len(query.results)))
    shutil.rmtree(query.state)
    copies[restored].rename(query.state)
    del query.offsets[restored + 1 :], query.results[restored:]
    query.start(5)
    query.to_the_end()
    assert rows(query.results) == expected()


def test_the_state_before_the_change_is_missing(query: Query) -> None:
    query.start(2)
    query.batches(2)
    query.start(3)
    end = query.plan()
    (lost,) = query.state.glob("*/partition-1-of-2/version-*2.json")
    lost.unlink()
    query.start(3)
    with pytest.raises(StateError, match=r"state version 2 is not in .*/partition-1-of-2 \(kept: 1\)"):
        query.run(end)


def test_a_join_without_a_common_key_has_one_partition_whatever_the_option_says(tmp_path: Path) -> None:
    chain = "SELECT a.v FROM a JOIN b ON a.k = b.k JOIN c ON b.v = c.v"
    query = Query(tmp_path, scripted(arrivals(), chain))
    for number in (1, 3, 2):
        query.start(number)
        query.batches(1)
    assert query.routings() == [(1, 1)] * 3 and query.directories() == ["of-1"]


def test_a_tree_is_made_anew(tmp_path: Path) -> None:
    query = Query(tmp_path, scripted(arrivals(), QUERY, plan="((a b) c)"))
    query.start(2)
    query.batches(3)
    kept = sum(m.intermediate_rows for m in query.manifests())
    assert kept > 0
    query.start(3)
    query.batches(1)
    assert all(m.tree == ((0, 1), 2) for m in query.manifests())
    assert sum(m.intermediate_rows for m in query.manifests()) > kept
    query.to_the_end()
    assert rows(query.results) == expected()


def test_a_worker_keeps_no_states_of_another_number(query: Query) -> None:
    with cache.using(cache.StateCache()) as worker:
        query.current = reader({**query.options, "stateLocation": str(query.state), "partitions": "2"})
        query.offsets = [query.current.initialOffset()]
        query.batches(2)
        assert len(worker.states()) == 2 and query.metrics[-1]["stateCacheHits"] == "2"
        for number in (3, 2):
            query.current = reader({**query.options, "stateLocation": str(query.state), "partitions": str(number)})
            query.batches(2)
            assert len(worker.states()) == number
            assert [m["stateCacheHits"] for m in query.metrics[-2:]] == ["0", str(number)]
        query.to_the_end()
    assert rows(query.results) == expected()
