"""Windows on runs that are long enough to tell: state stays flat, in memory and on disk, and results are duckdb's."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from spark_mjoin.engine import cache
from spark_mjoin.errors import MemoryBudgetError, StateError
from spark_mjoin.state.garbage import KEPT_VERSIONS
from spark_mjoin.state.segments import FAN_OUT
from tests.clock import SetClock
from tests.engine.test_overflow import Run
from tests.harness import LIMITED, rows, run, scripted
from tests.state.test_restart import Query

TIMESTAMP = pa.timestamp("us", "UTC")
NAMES = ("a", "b", "c")
STAR = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
CHAIN = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
SIZE, STEP, WINDOW, DISORDER = 300, 1_000, 5_000, 400  # rows and microseconds per batch; microseconds
INSIDE = " AND ".join(f"epoch_us({i}.ts) > epoch_us(greatest(a.ts, b.ts, c.ts)) - {WINDOW}" for i in NAMES)


@pytest.fixture(autouse=True)
def larger_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 100)


def stream(seed: int, batches: int, keys: int = 400) -> list[pa.Table]:
    """Rows whose event times advance from batch to batch, out of order by up to DISORDER."""
    dice = np.random.default_rng(seed)
    out = []
    for batch in range(batches):
        ts = batch * STEP + np.sort(dice.integers(0, STEP, SIZE)) - dice.integers(0, DISORDER, SIZE)
        out.append(
            pa.table(
                {
                    "n": np.arange(batch * SIZE, (batch + 1) * SIZE),
                    "k": dice.integers(0, keys, SIZE),
                    "m": dice.integers(0, keys, SIZE),
                    "ts": pa.array(ts).cast(TIMESTAMP),
                }
            )
        )
    return out


def at(*times: int) -> pa.Table:
    """Rows of one key at some event times, which are also their names."""
    return pa.table({"n": np.array(times, np.int64), "k": np.ones(len(times), int), "ts": pa.array(times, TIMESTAMP)})


def timed(watermark: str = f"{DISORDER} microseconds", **more: str) -> dict[str, str]:
    options = {"window": f"{WINDOW} microseconds", **more}
    for alias in NAMES:
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": watermark}
    return options


class Windowed(Run):
    """A run with windows in time, checked with windows written as conditions."""

    def expected(self) -> pa.Table:
        self.query, query = f"{self.query} WHERE {INSIDE}", self.query
        try:
            return super().expected()
        finally:
            self.query = query

    def states(self) -> list[dict[str, Any]]:
        """What each batch leaves behind."""
        return list(self.each_state())

    def each_state(self) -> Iterator[dict[str, Any]]:
        for counts in self.steps():
            manifests = self.manifests()
            operators = [m.root for m in manifests]
            yield {
                "rows": sum(sum(m.rows_held) for m in manifests),
                "stored": sum(s.rows for o in operators for s in o.segments),
                "segments": max(len(o.segments) for o in operators),
                "records": sum(of.size // 3 for o in operators for of in o.residency.departures),
                "memory": counts["memoryUsedBytes"],
                "disk": counts["diskUsedBytes"],
                "purged": counts["rowsPurged"],
                "late": counts["rowsLate"],
            }


LIVE = 3 * SIZE * (WINDOW + STEP + 2 * DISORDER) // STEP  # rows that are inside a window, or may still be


@pytest.mark.parametrize("expiry", ["lazy", "active"])
@pytest.mark.parametrize("partitions", ["1", "2"])
def test_the_state_stays_flat(tmp_path: Path, expiry: str, partitions: str) -> None:
    given = {alias: stream(seed, 40) for seed, alias in enumerate(NAMES)}
    run = Windowed(given, STAR, tmp_path, partitions=partitions, **timed(expiry=expiry))
    states = run.states()
    run.check()
    assert sum(s["late"] for s in states) == 0
    most = {name: max(s[name] for s in states[20:]) for name in states[0]}
    assert most["rows"] <= LIVE * (1 if expiry == "active" else 1.6)
    assert most["stored"] <= 2.6 * LIVE and most["segments"] < 60
    assert sum(s["purged"] for s in states) + states[-1]["rows"] == 40 * 3 * SIZE
    files = list(tmp_path.rglob("rows-*.arrow"))
    assert len(files) <= int(partitions) * most["segments"] * KEPT_VERSIONS, "dropped segments are removed"


@pytest.mark.parametrize("partitions", ["1", "2"])
def test_rows_of_a_burst_leave_though_few_follow(tmp_path: Path, partitions: str) -> None:
    """A third of them would not arrive for as long as the test lasts; that time goes on is enough."""
    given = {
        alias: [*stream(seed, 3), *(t.slice(0, 3) for t in stream(seed, 40)[3:])] for seed, alias in enumerate("abc")
    }
    run = Windowed(given, STAR, tmp_path, partitions=partitions, **timed())
    states = run.states()
    run.check()
    assert states[3]["rows"] > 3 * 3 * SIZE
    later = states[3 + (WINDOW + 2 * DISORDER) * 3 // (2 * STEP) + 1 :]  # a window and a half
    assert max(s["rows"] for s in later) <= LIVE * 1.6 * 3 / SIZE
    assert max(s["stored"] for s in later[FAN_OUT:]) <= 500  # small segments are merged, and go when all of them can


def test_rows_that_a_window_in_rows_has_left_go_though_a_filter_lets_few_follow(tmp_path: Path) -> None:
    script = [
        pa.table({"n": range(b * 100, b * 100 + 100), "k": range(100), "v": [int(b < 3)] * 100}) for b in range(30)
    ]
    query = "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k WHERE (a.v = 1 OR a.k = 0) AND (b.v = 1 OR b.k = 0)"
    run = Run({"a": script, "b": script}, query, tmp_path, window="300 rows")
    left = []
    for _ in run.steps():
        (manifest,) = run.manifests()
        left.append(sum(manifest.rows_held))
    assert left[2] == 600 and max(left[9:]) <= 2 * (3 + 3)


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
def test_the_disk_stays_flat_too(tmp_path: Path, policy: str) -> None:
    """With a budget far below the windows, and batches that leave no time for disk work but what is urgent."""
    given = {alias: stream(seed, 40) for seed, alias in enumerate(NAMES)}
    options = timed(memory="150k", flush=policy, blockingThreshold="1")
    run = Windowed(given, STAR, tmp_path, **options)
    states = run.states()
    run.check()
    assert sum(c["flushes"] for c in run.counts) > 10
    middle, last = (max(s["stored"] for s in states[a:b]) for a, b in ((14, 27), (27, 40)))
    assert last <= 1.25 * middle and last <= 4 * LIVE
    assert max(s["memory"] for s in states) <= 150 << 10


@pytest.mark.parametrize("silent", [False, True])
def test_rows_leave_the_disk_where_nothing_is_pending(tmp_path: Path, silent: bool) -> None:
    """One input has one key, or nothing: no pass is ever due in buckets in which it has no row."""
    few = [t.slice(0, 1).set_column(1, "k", pa.array([7])) for t in stream(2, 40)]
    given = {"a": stream(0, 40), "b": stream(1, 40), "c": few[:1] if silent else few}
    clock = SetClock()
    options = timed(memory="100k", blockingThreshold="1", idleTimeout="15 seconds")
    run = Windowed(given, STAR, tmp_path, clock, **options)
    states = []
    for state in run.each_state():
        clock.pass_by(10)
        states.append(state)
    run.check()
    assert sum(c["flushes"] for c in run.counts) > 10
    for name in ("stored", "records"):
        middle, last = (max(s[name] for s in states[a:b]) for a, b in ((16, 28), (28, 40)))
        assert last <= 1.25 * middle, name
    assert max(s["stored"] for s in states) <= 4 * LIVE


def test_a_chain_drops_rows_of_all_its_inputs(tmp_path: Path) -> None:
    given = {alias: stream(seed, 36, keys=900) for seed, alias in enumerate(NAMES)}
    run = Windowed(given, CHAIN, tmp_path, **timed(memory="350k", blockingThreshold="1"))
    states = run.states()
    run.check()
    assert sum(c["flushes"] for c in run.counts) > 0
    assert max(s["stored"] for s in states[24:36]) <= 4 * LIVE
    (manifest,) = run.manifests()
    assert all(dropped > 0 for dropped in manifest.dropped)


@pytest.mark.parametrize("options", [{}, {"memory": "150k", "blockingThreshold": "1"}, {"expiry": "active"}])
def differential_a_loaded_state_is_the_one_that_was_left(tmp_path: Path, options: dict[str, str]) -> None:
    """A worker that resumes from what it has, one that loads every time, and one that catches up now and then."""

    def versions(name: str, forget: int) -> list[Any]:
        given = {alias: stream(seed, 25) for seed, alias in enumerate(NAMES)}
        run = Windowed(given, STAR, tmp_path / name, **timed(**options))
        kept, found = cache.StateCache(), []
        with ExitStack() as worker:
            for number, _ in enumerate(run.steps()):
                if forget == 1:
                    cache.of_worker().clear()
                elif forget > 1 and number % forget == 0:  # another worker has the state of some batches ago
                    kept, other = cache.of_worker(), kept
                    worker.enter_context(cache.using(other))
                (manifest,) = run.manifests()
                found.append((manifest.root.rows, manifest.root.residency, manifest.root.progress))
        run.check()
        return found

    left = versions("left", 0)
    assert left == versions("loaded", 1) == versions("behind", 3)


def test_rows_outside_a_window_in_rows_leave_while_others_arrive(tmp_path: Path) -> None:
    script = [pa.table({"n": np.arange(5000), "k": np.arange(5000) % 50})]
    options = scripted({"a": script, "b": script}, "SELECT a.n AS an, b.n AS bn FROM a, b WHERE a.k = b.k")
    turns = {"schedulingQuota": "100"}
    run = Run({"a": script, "b": script}, options["query"], tmp_path, window="100 rows", **turns).to_the_end()
    assert run.counts[0]["memoryPeakBytes"] < 60_000
    assert run.counts[0]["rowsPurged"] > 9_000
    assert sum(t.num_rows for t in run.results) == 2 * 5000 * 100 // 50 - 200, "at the beginning windows are not full"
    (manifest,) = run.manifests()
    assert len(manifest.root.progress.rounds) == 1


def test_rounds_are_forgotten_when_nothing_is_pending(tmp_path: Path) -> None:
    """However many there are: one for each micro-batch, and for each delivery where inputs do not come in step."""
    script = [pa.table({"n": np.arange(50), "k": np.arange(50) % 5})] * 30
    query = "SELECT a.n AS an, b.n AS bn FROM a, b WHERE a.k = b.k"
    for more in ({}, {"streamScheduling": "sequential"}):
        run = Run({"a": script, "b": script}, query, tmp_path / f"{len(more)}", window="20 rows", **more).to_the_end()
        (manifest,) = run.manifests()
        assert len(manifest.root.progress.rounds) <= (20 if more else 2)


def test_late_rows_are_counted_once_and_left_out(tmp_path: Path) -> None:
    given = {"a": [at(100), at(99, 95, 94, 50)], "b": [at(100), at(100)]}
    options = {"window": "20 microseconds", "partitions": "3"}
    for alias, late in (("a", 5), ("b", 0)):
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": f"{late} microseconds"}
    run = Run(given, "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k", tmp_path, **options).to_the_end()
    assert run.counts[1]["rowsLate"] == 2, "95 is at the watermark, 94 and 50 are below it"
    assert rows(run.results) == {(100, 100): 2, (99, 100): 2, (95, 100): 2}


def test_the_edges_of_a_window(tmp_path: Path) -> None:
    """A row that is exactly as old as the window is outside, and is dropped as soon as nothing younger can come."""

    given = {"a": [at(90, 91), at()], "b": [at(100), at(100)]}
    options = {"window": "10 microseconds", "expiry": "active"}
    for alias in "ab":
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": "0 seconds"}
    run = Run(given, "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k", tmp_path, **options).to_the_end()
    assert [rows(t) for t in run.results] == [{(91, 100): 1}, {(91, 100): 1}]
    assert [c["rowsPurged"] for c in run.counts] == [0, 1]


@pytest.mark.parametrize("timeout", [None, "30 seconds"])
def test_an_idle_input_does_not_hold_the_others_back(tmp_path: Path, timeout: str | None) -> None:
    clock = SetClock()
    given = {"a": stream(0, 40), "b": stream(1, 40), "c": stream(2, 5)}
    run = Windowed(given, STAR, tmp_path, clock, **timed(**({} if timeout is None else {"idleTimeout": timeout})))
    states = []
    for step in run.steps():
        clock.pass_by(10)
        states.append(step)
    rows_left = [sum(m.rows_held) for m in run.manifests()]
    if timeout is None:
        assert rows_left[0] > 40 * 2 * SIZE * 0.9
    else:
        assert rows_left[0] < LIVE * 1.6
        marks = run.offset["plan"]["windows"]["watermarks"]
        assert marks[2] == min(marks[:2])
    run.check()


def test_what_may_change_at_a_restart(tmp_path: Path) -> None:
    given = {alias: stream(seed, 12) for seed, alias in enumerate(NAMES)}
    run = Windowed(given, STAR, tmp_path, **timed())
    steps = run.steps()
    for _ in range(6):
        next(steps)
    with pytest.raises(StateError, match=r"input a: window was 5000 microseconds, is now 6000 microseconds"):
        run.restart(window="6000 microseconds")
        run.to_the_end()
    run.restart(window=f"{WINDOW} microseconds", expiry="active", **{"source.a.watermark": "1 second"})
    run.to_the_end()
    run.check()


def test_a_budget_that_must_hold_counts_what_is_inside_the_windows(tmp_path: Path) -> None:
    given = {alias: stream(seed, 40) for seed, alias in enumerate(NAMES)}
    run = Windowed(given, STAR, tmp_path, **timed(memory="800k", overflow="fail")).to_the_end()
    run.check()
    with pytest.raises(MemoryBudgetError):
        Windowed(given, STAR, tmp_path / "less", **timed(memory="80k", overflow="fail")).to_the_end()


def test_batches_that_are_cut_off_are_made_up_for(tmp_path: Path) -> None:
    given = {alias: stream(seed, 12) for seed, alias in enumerate(NAMES)}
    whole = run(scripted(given, STAR, **timed()), tmp_path / "whole")
    cache.of_worker().clear()
    cut = run(
        scripted(given, STAR, **timed()), tmp_path / "cut", [LIMITED if b in (4, 5, 8) else "ok" for b in range(12)]
    )
    assert [rows(t) for t in cut] == [rows(t) if b not in (4, 5, 8) else {} for b, t in enumerate(whole)]


def pairs(tmp_path: Path, lateness: int) -> Query:
    """Two inputs of one key whose event times advance by 100 in each of eight batches, and are out of order by 90."""
    given = {alias: [at(100 * b, 100 * b - 90) for b in range(1, 9)] for alias in "ab"}
    options = {"window": "500 microseconds"}
    for alias in "ab":
        options |= {f"source.{alias}.timestamp": "ts", f"source.{alias}.watermark": f"{lateness} microseconds"}
    query = "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k"
    return Query(scripted(given, query, **options), tmp_path)


@pytest.mark.parametrize("lateness", [90, 1000])
def test_a_state_that_is_older_than_the_checkpoint_is_refused_where_rows_are_late_by_now(
    tmp_path: Path, lateness: int
) -> None:
    """Batches that were run are not made up for under the watermarks of the last: rows on time would be lost."""
    query = pairs(tmp_path, lateness)
    query.restart(8)
    del query.offsets[4:]  # the checkpoint of version 3 is restored, and of the state versions 6 to 8 are there
    if lateness == 90:
        with pytest.raises(StateError, match=r"version 3, and the newest up to it.* is none.*not of the same time"):
            query.restart()
    else:  # nothing is late under any watermark, so it does not matter which
        whole = pairs(tmp_path / "whole", lateness)
        whole.restart(3)
        assert sorted(query.restart(2)) == sorted(whole.restart(2))


def test_batches_that_nobody_reads_are_made_up_for_with_windows(tmp_path: Path) -> None:
    """Several in a row: watermarks wait for them, so what was late in each is late in all of them together."""
    query, whole = pairs(tmp_path / "some", 90), pairs(tmp_path / "all", 90)
    assert sorted(query.restart(3)) == sorted(whole.restart(3))
    for _ in range(3):
        query.skip()
    whole.restart(3)
    assert sorted(query.restart(2)) == sorted(whole.restart(2))


def test_a_self_join_with_times_without_a_zone(tmp_path: Path) -> None:
    """Both inputs have the window of their source, and each counts its own rows."""
    times = [[10, 14], [17, 30], [33, 34]]
    script = [pa.table({"n": t, "k": [1] * len(t), "ts": pa.array(t, pa.timestamp("us"))}) for t in times]
    options = {"window": "5 microseconds", "source.a.timestamp": "ts", "source.a.watermark": "0 seconds"}
    query = "SELECT l.n AS ln, r.n AS rn FROM a l JOIN a r ON l.k = r.k WHERE l.n < r.n"
    done = Run({"a": script}, query, tmp_path, expiry="active", **options).to_the_end()
    assert rows(done.results) == {(10, 14): 1, (14, 17): 1, (30, 33): 1, (30, 34): 1, (33, 34): 1}
    assert sum(c["rowsPurged"] for c in done.counts) > 0
