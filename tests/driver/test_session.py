"""A query on the driver, without Spark and with a clock that the test sets."""

import uuid
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin.doors import worker
from spark_mjoin.driver import watermarks
from spark_mjoin.driver.clock import IDLE_SECONDS, SYSTEM, Clock
from spark_mjoin.driver.committed import Committed
from spark_mjoin.driver.intake import Brought
from spark_mjoin.driver.loading import load
from spark_mjoin.driver.session import Point, Session, batch_tasks
from spark_mjoin.engine import batch, cache
from spark_mjoin.engine.delivered import Delivered
from spark_mjoin.engine.exchange import Sender
from spark_mjoin.errors import OptionError
from spark_mjoin.plan import Plan
from spark_mjoin.state.manifest import Manifest
from tests.clock import SetClock
from tests.harness import scripted

TWO = "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k"
WINDOWS = {"window": "100 microseconds"} | {
    f"source.{alias}.{name}": value
    for alias in "ab"
    for name, value in {"timestamp": "ts", "watermark": "0 seconds"}.items()
}


def table(rows: int, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    times = pa.array(numbers, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.table({"k": list(numbers), "n": list(numbers), "ts": times})


def session(script: dict[str, list[pa.Table]], state: Path, clock: Clock = SYSTEM, **options: str) -> Session:
    given = scripted(script, TWO, stateLocation=str(state), **options)
    return Session(*load(given), clock)


def advance(current: Session, start: Point) -> Point:
    """Run the next batch, if there is one."""
    end = current.next(start)
    for task in current.tasks(start, end):
        for _ in worker.run(task):
            continue
    return end


def test_new_rows_make_a_batch_and_nothing_makes_none(tmp_path: Path) -> None:
    current = session({"a": [table(5)], "b": [table(5)]}, tmp_path)
    start = current.initial()
    assert start.version == 0 and start.plan == Plan((0, 1)) and current.tasks(start, start) == []
    end = advance(current, start)
    assert (end.query, end.version) == (start.query, 1)
    assert end.positions == {"a": {"batch": 1}, "b": {"batch": 1}}
    assert current.next(end) is end


def test_tasks_follow_from_two_points_alone(tmp_path: Path) -> None:
    """As after a crash: another process is asked for the tasks of a batch that it has not planned."""
    script = {alias: [table(200), table(200, 200)] for alias in "ab"}
    current = session(script, tmp_path, memory="64k", partitions="3")
    first = advance(current, current.initial())
    second = current.next(first)
    tasks = current.tasks(first, second)
    again = session(script, tmp_path, memory="1k", flush="random", partitions="3").tasks(first, second)
    assert [t.partition for t in tasks] == [0, 1, 2] and tasks == again
    for p, task in enumerate(tasks):
        assert (task.ledger.version, task.ledger.next_version) == (1, 2)
        assert task.ledger.plan == second.plan.for_partition(p)
        assert task.ledger.plan_before == first.plan.for_partition(p)
        assert task.ledger.plan.overflow is not None
        assert task.ledger.plan.overflow.memory_bytes == (64 << 10) // 3, "as it was planned"


def test_without_a_state_there_is_no_session() -> None:
    given = scripted({"a": [table(1)], "b": [table(1)]}, TWO)
    with pytest.raises(OptionError, match="'stateLocation' is missing"):
        Session(*load(given))
    (task,) = batch_tasks(*load(given))
    assert task.location is None and task.ledger.plan_before is None
    assert sum(batch.num_rows for batch in worker.run(task)) == 1


def test_a_quiet_query_purges_once(tmp_path: Path) -> None:
    clock = SetClock()
    options = {"source.a.unique": "k", "source.b.unique": "k", "purgeEvery": "1000"}
    current = session({"a": [table(10)], "b": [table(10)]}, tmp_path, clock, **options)
    end = advance(current, current.initial())
    assert current.next(end) is end, "not at once"
    clock.pass_by(IDLE_SECONDS)
    purged = advance(current, end)
    assert purged.version == end.version + 1 and purged.positions == end.positions
    assert purged.plan.purging is not None
    clock.pass_by(10 * IDLE_SECONDS)
    assert current.next(purged) is purged


def test_what_will_come_is_known_so_a_frozen_query_does_not_wait(tmp_path: Path) -> None:
    options = {"source.a.unique": "k", "source.b.unique": "k", "purgeEvery": "1000"}
    current = session({"a": [table(10)], "b": [table(10)]}, tmp_path, SetClock(), **options)
    current.freeze()
    end = advance(current, current.initial())
    assert advance(current, end).version == end.version + 1


def marks(point: Point) -> tuple[int | None, ...]:
    assert point.plan.expiry is not None
    return point.plan.expiry.watermarks


def test_an_idle_input_follows_the_others_after_its_time(tmp_path: Path) -> None:
    clock = SetClock()
    script = {"a": [table(10, 100 * n) for n in range(6)], "b": [table(10)]}
    current = session(script, tmp_path, clock, idleTimeout="50 seconds", **WINDOWS)
    point, found = current.initial(), []
    for _ in range(6):
        point = advance(current, point)
        found.append(marks(point))
        clock.pass_by(20)
    assert found[:3] == [(None, None), (9, 9), (109, 9)], "b has given nothing for 40 seconds"
    assert [b for _, b in found[3:]] == [a for a, _ in found[3:]] == [209, 309, 409]


def seeing(manifest: Manifest | None, seen: tuple[int | None, ...]) -> Manifest:
    assert manifest is not None and manifest.root.progress is not None
    root = replace(manifest.root, progress=replace(manifest.root.progress, seen=seen))
    return replace(manifest, operators=(root,))


def test_no_partition_speaks_for_the_others_about_event_times(tmp_path: Path) -> None:
    assert watermarks.newest([[5, None, None], [3, 7, None]]) == [5, 7, None]
    current = session({"a": [table(50)] * 2, "b": [table(50)] * 2}, tmp_path, partitions="2", **WINDOWS)
    end = advance(current, current.initial())
    committed = current.committed(end)
    few = [(None, 3), (49, 2)]  # as if each partition had been given its own rows alone
    changed = tuple(seeing(m, seen) for m, seen in zip(committed.partitions, few, strict=True))
    current.committed = lambda at: replace(committed, partitions=changed)  # type: ignore[method-assign]
    assert marks(current.next(end)) == (49, 3)


def test_time_that_batches_leave_is_measured_for_disk_work(tmp_path: Path) -> None:
    clock = SetClock()
    script = {alias: [table(2000, 2000 * n) for n in range(4)] for alias in "ab"}
    current = session(script, tmp_path, clock, memory="64k")
    point = advance(current, current.initial())
    assert current.pace.spare == 0.0
    point = advance(current, point)
    assert current.pace.spare == 0.0, "no time has passed"
    clock.pass_by(3600)
    point = advance(current, point)
    assert current.pace.spare > 1.0
    assert current.pace.rates == pytest.approx([2000 / 3600] * 2, rel=0.01)


def test_a_report_is_about_the_newest_batch(tmp_path: Path) -> None:
    clock = SetClock()
    current = session({"a": [table(30)] * 2, "b": [table(30)] * 2}, tmp_path, clock)
    assert current.report() is None
    first = advance(current, current.initial())
    clock.pass_by(10)
    second = advance(current, first)
    said = current.report()
    assert said is not None and said.at == second
    assert said.metrics["aNumInputRows"] == "30" and said.metrics["aRowsPerSecond"] == "3.0"
    assert said.metrics["plan"] == "(a b)" and said.metrics["resultsTotal"] == "120"


def test_a_batch_begins_once_however_often_its_tasks_are_asked_for(tmp_path: Path) -> None:
    """As for two actions in one foreachBatch: the second is no new batch, between which and the first time passed."""
    clock = SetClock()
    current = session({"a": [table(30)] * 2, "b": [table(30)] * 2}, tmp_path, clock)
    first = advance(current, current.initial())
    clock.pass_by(10)
    second = advance(current, first)
    clock.pass_by(5)
    current.tasks(first, second)
    said = current.report()
    assert said is not None and said.metrics["aRowsPerSecond"] == "3.0"


def test_a_query_that_waits_for_rows_reads_no_manifests(tmp_path: Path) -> None:
    """Spark asks again and again, and there may be hundreds of partitions; once it is looked for rows on disk."""
    current = session({"a": [table(5)], "b": [table(5)]}, tmp_path)
    end = advance(current, current.initial())
    read, reads = current.committed, list[Point]()

    def noted(at: Point) -> Committed:
        reads.append(at)
        return read(at)

    current.committed = noted  # type: ignore[method-assign]
    assert all(current.next(end) is end for _ in range(3)) and len(reads) <= 1
    again = session({"a": [table(5)], "b": [table(5)]}, tmp_path, memory="1m")
    again.committed = noted  # type: ignore[method-assign]
    assert again.next(end) is end and len(reads) <= 2, "with a budget: once for a look"


def test_what_is_brought_has_arrived_since_the_batch_before(tmp_path: Path) -> None:
    """A question whether there is something to do is no look at the sources."""
    spec, settings = load(scripted({"a": [table(10)], "b": [table(10)]}, TWO, overflow="shed"))
    clock, brought = SetClock(), Brought(spec)
    current = Session(spec, replace(settings, state_location=str(tmp_path)), clock, brought)
    point = current.initial()
    for _ in range(3):
        end = current.accept(point, brought.after(point.positions))
        for task in current.tasks(point, end):
            rows = table(10).select(["k", "n"]).to_batches()
            parcels = chain.from_iterable(Sender(spec, number, task.routing).parcels(rows) for number in range(2))
            running = batch.run(task, Delivered(task, parcels, tmp_path), uuid.uuid4().hex, cache.of_worker())
            assert sum(found.num_rows for found in running)
        point = end
        clock.pass_by(30)
        assert not current.has_work(point)
    assert current.pace.load.rates == pytest.approx([10 / 30] * 2)
