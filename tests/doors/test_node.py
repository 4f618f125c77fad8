"""The driver's side of a join of streams, driven as the jar drives it, and tasks that get parcels: no Spark."""

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin.doors.node import KEPT_PLANS, Joining, NodePlanner
from spark_mjoin.driver.clock import SYSTEM, Clock
from spark_mjoin.driver.loading import load
from spark_mjoin.engine import batch, cache, delivered, emission
from spark_mjoin.engine.delivered import Delivered
from spark_mjoin.engine.exchange import Sender
from spark_mjoin.errors import StateError
from spark_mjoin.model import Scheme
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.layouts import Cube
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes
from spark_mjoin.state.store import StateStore
from tests.clock import SetClock
from tests.examples import examples
from tests.feeds import brought_to
from tests.harness import Rows, duckdb_join, rows, scripted
from tests.relaid import relaid

QUERY = "SELECT a.k, a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON c.k = b.k"
OK, CRASH, TORN, PARTLY, TWICE = "ok", "crash", "torn", "partly", "twice"


class Node:
    """A node of a query, with what Spark and the jar do around it."""

    clock: Clock = SYSTEM

    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # option `hosts`, which is of `spark_mjoin.join` alone
    shares: tuple[tuple[int, int], ...] = ()  # of a cube, as only `spark_mjoin.join` has it

    def __init__(self, root: Path, scripts: dict[str, list[pa.Table]], **options: str) -> None:
        self.root, self.scripts, self.options = root, scripts, options
        self.version = 0
        self.restart()

    def restart(self, **options: str) -> None:
        self.options |= options
        cache.of_worker().clear()
        spec, settings = load(scripted(self.scripts, QUERY, **self.options))
        settings = replace(settings, expected=replace(settings.expected, hosts=self.hosts), shares=self.shares)
        self.planner = NodePlanner(Joining(spec, settings), self.clock)

    def point(self, version: int, **more: Any) -> dict[str, Any]:
        return {"state": str(self.root / "state" / "0"), "queryId": "some-query", "version": version, **more}

    def tasks(self, arriving: bool = True, **known: Any) -> list[Any]:
        after = self.point(self.version + 1, arriving=arriving, **known)
        return [partition.task for partition in self.planner.partitions(self.point(self.version), after)]

    def run(self, task: Any, input: Sequence[pa.Table | None], results: int | None = None) -> list[pa.RecordBatch]:
        """The results of a task, to its end or cut off, with parcels in some order."""
        parcels = []
        for number, (of, table) in enumerate(zip(task.spec.inputs, input, strict=True)):
            if table is not None:
                sent = Sender(task.spec, number, task.routing).parcels(table.select(list(of.columns)).to_batches())
                parcels += brought_to(task.partition, sent)
        random.shuffle(parcels)
        directory = self.root / uuid.uuid4().hex
        directory.mkdir(parents=True)
        running = batch.run(task, Delivered(task, parcels, directory), uuid.uuid4().hex, cache.of_worker())
        found = [next(running, None) for _ in range(results)] if results is not None else list(running)
        running.close()
        return [each for each in found if each is not None]

    def batch(self, input: Sequence[pa.Table | None], fault: str = OK) -> Rows:
        """One micro-batch, and what of it reaches a sink that is idempotent by batch."""
        arriving = any(table is not None for table in input)
        if fault in (CRASH, TORN, PARTLY):
            for task in self.tasks(arriving)[:: 2 if fault == PARTLY else 1]:
                self.run(task, input, 1 if fault == TORN else None)
            self.restart()
        produced: list[pa.RecordBatch] = []
        for _ in range(2 if fault == TWICE else 1):
            produced = [found for task in self.tasks(arriving) for found in self.run(task, input)]
        self.version += 1
        return rows(pa.Table.from_batches(produced)) if produced else Rows()

    def has_more(self) -> bool:
        return bool(self.planner.latestOffset(self.point(self.version), ReadAllAvailable())["more"])

    def places(self) -> list[str]:
        return list(self.planner.latestOffset({"places": True}, ReadAllAvailable())["places"])

    def routing(self) -> Routing:
        """What senders hear of the batch that was planned last."""
        said = self.planner.latestOffset({"places": True}, ReadAllAvailable())["routing"]
        return Routing.from_json(json.loads(said))

    def metrics(self) -> dict[str, str]:
        said = self.planner.reportLatestOffset()
        assert said is not None
        return dict(said["metrics"])


def table(keys: Sequence[int | None], first: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64()), "n": pa.array(range(first, first + len(keys)), pa.int64())})


def script(size: int, batches: int, keys: int = 7) -> dict[str, list[pa.Table]]:
    step = {"a": 1, "b": 3, "c": 5}
    return {
        alias: [table([(i * step[alias] + n) % keys for i in range(size)], n * size) for n in range(batches)]
        for alias in step
    }


def expected(scripts: dict[str, list[pa.Table]]) -> Rows:
    return rows(duckdb_join(QUERY, {alias: pa.concat_tables(tables) for alias, tables in scripts.items()}))


MUCH = 1 << 40  # bytes of results that wait in memory


def whole(node: Node, schedule: Sequence[str] = ()) -> Rows:
    """All results of the scripts, and then of ticks while there is something to do."""
    found = Rows()
    for number, input in enumerate(zip(*node.scripts.values(), strict=True)):
        found += node.batch(input, schedule[number] if number < len(schedule) else OK)
    for _ in range(50):
        if not node.has_more():
            return found
        found += node.batch([None] * 3)
    raise AssertionError("there is always more to do")


@examples(40)
@given(
    st.lists(st.sampled_from([OK, CRASH, TORN, PARTLY, TWICE]), min_size=4, max_size=4),
    st.sampled_from(["1", "2", "3"]),
    st.sampled_from(["", "2k"]),
    st.sampled_from(["adaptive", "coordinated", "largest", "random"]),
    st.sampled_from([0, 1000, MUCH]),
)
def oracle_results_come_once_under_faults(
    tmp_path_factory: pytest.TempPathFactory, schedule: list[str], partitions: str, memory: str, flush: str, held: int
) -> None:
    """held: bytes of results that wait for the commit, so that tasks are cut off before it or after it."""
    scripts = script(30, 4)
    options = {"partitions": partitions, "flush": flush, "blockingThreshold": "1"} | (
        {"memory": memory} if memory else {}
    )
    node = Node(tmp_path_factory.mktemp("node"), scripts, **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(emission, "held_bytes", lambda _: held)
        assert whole(node, schedule) == expected(scripts)


def test_disk_work_is_done_in_batches_without_input(tmp_path: Path) -> None:
    scripts = script(60, 3)
    node = Node(tmp_path, scripts, memory="2k", partitions="2", blockingThreshold="1")
    inputs = list(zip(*scripts.values(), strict=True))
    early = sum((node.batch(input) for input in inputs), Rows())
    assert early.total() < expected(scripts).total() and node.has_more()
    assert int(node.metrics()["deferredRows"]) > 0
    late = Rows()
    while node.has_more():
        late += node.batch([None] * 3)
    assert early + late == expected(scripts) and int(node.metrics()["deferredRows"]) == 0


def test_a_batch_that_was_planned_is_not_planned_anew(tmp_path: Path) -> None:
    """Also with other options by then; and only the plans that may be needed again are kept."""
    scripts = script(20, 8)
    node = Node(tmp_path, scripts, memory="2k")
    first = node.tasks()
    node.restart(memory="1g", flush="largest")
    assert node.tasks() == first
    assert whole(node) == expected(scripts)
    plans = sorted(path.name for path in (tmp_path / "state" / "0" / "mjoin").glob("plan-*"))
    assert len(plans) == KEPT_PLANS and plans[-1] == f"plan-{node.version:012d}.json"


def test_a_batch_that_nobody_has_read_is_an_error_and_no_gap(tmp_path: Path) -> None:
    scripts = script(20, 3)
    node = Node(tmp_path, scripts, partitions="3")
    input = [tables[0] for tables in scripts.values()]
    for read in (0, 1, 2):
        node.restart()
        for task in node.tasks()[:read]:
            node.run(task, input)
        node.version = 1
        with pytest.raises(StateError, match=r"no version 1 .* cannot be asked for again"):
            node.tasks()
        node.version = 0
    node.version = 5
    with pytest.raises(StateError, match="no version 5"):
        node.tasks()


@pytest.mark.parametrize("held", [0, MUCH])
def test_rows_are_durable_before_the_first_result_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """However many results there are: an attempt that dies before its commit has emitted nothing."""
    monkeypatch.setattr(emission, "held_bytes", lambda _, held=held: held)
    node = Node(tmp_path, script(20, 1))
    (task,) = node.tasks()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StateStore, "commit", _fail)
        with pytest.raises(OSError, match="wanted"):
            node.run(task, [table([1, 2, 3], 0)] * 3, results=1)
    assert files(tmp_path, "version-*") == []
    other = [table([1, 2, 4], 0)] * 3
    assert len(node.run(task, other, results=1)) == 1
    assert files(tmp_path, "version-*") == ["version-000000000001.json"], "cut off at its first result"
    node.version = 1
    assert len(node.tasks()) == 1


def _fail(*_: Any) -> bool:
    raise OSError("a fault that is wanted")


def test_results_that_wait_in_a_file_come_whole_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "PIECE_ROWS", 50)
    found = []
    for held in (MUCH, 3000, 0):
        monkeypatch.setattr(emission, "held_bytes", lambda _, held=held: held)
        node = Node(tmp_path / str(held), script(20, 1))
        (task,) = node.tasks()
        found.append(pa.Table.from_batches(node.run(task, [table(list(range(1000)), 0)] * 3)).combine_chunks())
    assert found[0].num_rows == 1000 and found[1] == found[0] and found[2] == found[0]


@pytest.mark.parametrize("held", [0, MUCH])
def test_input_that_is_not_the_same_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """A later attempt has the same rows as the one that is committed, or ends with an error before it emits."""
    monkeypatch.setattr(emission, "held_bytes", lambda _, held=held: held)
    node = Node(tmp_path, script(20, 3))
    (task,) = node.tasks()
    same = [table([1, 2, 3], 0)] * 3
    assert len(node.run(task, same, results=1)) == 1
    for other in (table([1, 2, 4], 0), table([1, 2], 0), table([], 0)):
        with pytest.raises(
            StateError, match=rf"other rows of 'b' \(3 rows, now {other.num_rows}\).*remove .*version-000000000001"
        ):
            node.run(task, [same[0], other, same[2]], results=1)
    backwards = [each.take([2, 1, 0]) for each in same]
    assert rows(pa.Table.from_batches(node.run(task, backwards))).total() == 3


def test_of_two_attempts_at_once_with_other_rows_one_does_not_emit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commits while the other is about to: that one notices, and has emitted nothing."""
    node = Node(tmp_path, script(20, 1))
    (task,) = node.tasks()
    one, other = [table([1, 2, 3], 0)] * 3, [table([1, 2, 4], 0)] * 3
    emitted = []
    publish = Directory.publish

    def between(self: Directory, name: str, *rest: Any) -> tuple[int, int]:
        if name.startswith("version-"):
            monkeypatch.setattr(Directory, "publish", publish)
            emitted.extend(node.run(task, one))
        return publish(self, name, *rest)

    monkeypatch.setattr(Directory, "publish", between)
    with pytest.raises(StateError, match=r"other rows of 'a' \(3 rows, now 3\), 'b'"):
        emitted.extend(node.run(task, other))
    assert rows(pa.Table.from_batches(emitted)).total() == 3 and files(tmp_path, "version-*")


def files(root: Path, pattern: str) -> list[str]:
    """Names in the directories of partitions."""
    return sorted(path.name for path in root.glob(f"state/0/mjoin/partition-*/{pattern}"))


def test_the_order_of_rows_does_not_matter_to_another_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered, "PIECE_ROWS", 10)
    node = Node(tmp_path, script(20, 1), memory="17k", flush="largest")
    (task,) = node.tasks()
    one = table(list(range(100)), 0)
    other = one.take(list(range(99, -1, -1)))
    first, second = (rows(pa.Table.from_batches(node.run(task, [each] * 3))) for each in (one, other))
    assert first == second and 0 < first.total() < 100, "some of the results are pending"


@examples(40)
@given(
    st.lists(st.sampled_from(["1", "2", "3", "5"]), min_size=4, max_size=4),
    st.sampled_from(["1g", "2k", "9k"]),
    st.sampled_from([OK, CRASH, TORN, PARTLY, TWICE]),
    st.sampled_from(["adaptive", "coordinated", "largest", "random"]),
    st.sampled_from(["(a b c)", "((a b) c)", "(a (b c))"]),
    st.booleans(),
)
def oracle_partitions_change_while_results_are_pending(
    tmp_path_factory: pytest.TempPathFactory,
    partitions: list[str],
    memory: str,
    fault: str,
    flush: str,
    plan: str,
    ticks: bool,
) -> None:
    """memory: after the first batch. ticks: whether a batch without input is the first in the new partitions."""
    scripts = script(60, 4)
    options = {"memory": "2k", "flush": flush, "plan": plan, "blockingThreshold": "1"}
    node = Node(tmp_path_factory.mktemp("node"), scripts, **options)
    found = Rows()
    for number, input in enumerate(zip(*scripts.values(), strict=True)):
        node.restart(partitions=partitions[number], memory=memory if number else "2k")
        if ticks and number:
            found += node.batch([None] * 3, fault)
        found += node.batch(input, fault if number else OK)
        assert number or node.has_more(), "results are pending"
    while node.has_more():
        found += node.batch([None] * 3)
    assert found == expected(scripts)


@examples(30)
@given(
    st.sampled_from(get_args(Scheme)),
    st.booleans(),
    st.sampled_from(["1g", "2k", "9k"]),
    st.sampled_from([OK, CRASH, TORN, PARTLY, TWICE]),
    st.sampled_from(["(a b c)", "((a b) c)"]),
    st.sampled_from(["2", "3", "5"]),
)
def oracle_layouts_change_while_results_are_pending(
    tmp_path_factory: pytest.TempPathFactory,
    scheme: Scheme,
    split: bool,
    memory: str,
    fault: str,
    plan: str,
    partitions: str,
) -> None:
    """From batch to batch, with copies in the old partitions, or in the new ones, or in both."""
    scripts, seen = script(40, 5), list[str]()
    options = {"memory": "2k", "plan": plan, "blockingThreshold": "1", "partitions": partitions}
    with relaid(scheme, seen, split):
        node, found = Node(tmp_path_factory.mktemp("node"), scripts, **options), Rows()
        for number, input in enumerate(zip(*scripts.values(), strict=True)):
            if number:
                node.restart(memory=memory)
            found += node.batch(input, fault if number else OK)
        while node.has_more():
            found += node.batch([None] * 3)
    assert found == expected(scripts)
    assert len(set(seen)) > 1 or (scheme == "hash" and not split), "layouts change"


def test_a_batch_that_was_not_finished_wants_the_partitions_that_it_was_planned_with(tmp_path: Path) -> None:
    scripts = script(60, 4)
    inputs = list(zip(*scripts.values(), strict=True))
    node = Node(tmp_path, scripts, memory="2k", partitions="2", blockingThreshold="1", plan="((a b) c)")
    found = node.batch(inputs[0])
    assert node.has_more(), "results are pending"
    node.restart(partitions="4")
    assert len(node.tasks()) == 4  # nothing follows this plan, so it does not count
    node.restart(partitions="3")
    node.run(node.tasks()[0], inputs[1])
    node.restart(partitions="5")
    with pytest.raises(StateError, match="was planned with partitions = 3"):
        node.tasks()
    node.restart(partitions="3")
    for input in inputs[1:]:
        found += node.batch(input)
    while node.has_more():
        found += node.batch([None] * 3)
    assert found == expected(scripts)


def test_a_batch_that_was_planned_is_divided_as_it_was_if_it_has_as_many_partitions(tmp_path: Path) -> None:
    """Senders hear so, and not since when, which does not matter to them."""
    scripts = script(20, 4)
    inputs = list(zip(*scripts.values(), strict=True))
    shares = ((0, 2),)
    even, cube = Routing(2), Routing(2, layout=Cube(shares))
    node = Node(tmp_path, scripts, partitions="2")
    found = node.batch(inputs[0])
    node.run(node.tasks()[0], inputs[1])  # and Spark is killed
    node.shares = shares
    node.restart()
    found += node.batch(inputs[1])
    assert node.routing() == even, "as planned"
    found += node.batch(inputs[2])
    assert node.routing() == cube
    node.tasks()  # and Spark is killed
    node.shares = ()
    node.restart()
    found += node.batch(inputs[3])
    assert node.routing() == cube and found == expected(scripts)
    node.tasks()
    assert node.routing() == even


def test_the_state_can_be_elsewhere(tmp_path: Path) -> None:
    scripts = script(20, 1)
    node = Node(tmp_path, scripts, stateLocation=str(tmp_path / "elsewhere"))
    assert whole(node) == expected(scripts)
    assert (tmp_path / "elsewhere" / "some-query-0" / "meaning.json").exists() and not (tmp_path / "state").exists()


class Timed(Node):
    """With a clock that the test sets."""

    def __init__(self, root: Path, scripts: dict[str, list[pa.Table]], **options: str) -> None:
        self.clock: SetClock = SetClock()
        super().__init__(root, scripts, **options)


def test_an_input_without_rows_is_idle_though_others_have_some(tmp_path: Path) -> None:
    """Spark does not say which inputs have rows before the batch runs: the batch before says it."""
    timed = {
        alias: [of.append_column("at", of["n"].cast(pa.timestamp("us", "UTC"))) for of in tables]
        for alias, tables in script(10, 6).items()
    }
    options = {f"source.{alias}.timestamp": "at" for alias in "abc"}
    options |= {f"source.{alias}.watermark": "0 seconds" for alias in "abc"}
    node = Timed(tmp_path, timed, window="1 second", idleTimeout="50 seconds", **options)
    found = []
    for number, (a, b, c) in enumerate(zip(*timed.values(), strict=True)):
        node.batch([a, b if number == 0 else None, c])
        node.clock.pass_by(20)
        found.append(node.tasks()[0].ledger.plan.expiry.watermarks)
    assert [b for _, b, _ in found[:3]] == [9, 9, 9]
    assert [b for _, b, _ in found[3:]] == [a for a, *_ in found[3:]] == [39, 49, 59]


EXECUTORS = {"e1": "h1", "e2": "h2"}


def test_partitions_run_where_their_rows_come_from(tmp_path: Path) -> None:
    node = Node(tmp_path, script(8, 3), partitions="2")
    node.tasks(executors=EXECUTORS)
    assert node.places() == ["e1", "e2"]
    came = [{"h2": 1e9, "h1": 1e3}, {"h1": 1e9}]
    node.tasks(executors=EXECUTORS, cameFrom=came)
    assert node.places() == ["e2", "e1"]
    node.tasks(executors=EXECUTORS)
    assert node.places() == ["e2", "e1"], "nothing new is known"
    node.tasks(executors={"e1": "h1"})
    assert node.places() == ["e1", "e1"]
    node.tasks(executors={})
    assert node.places() == [], "the driver is the only executor"


def test_hosts_of_inputs_count_until_something_is_measured(tmp_path: Path) -> None:
    """Keys of partition 0 come with the first input, and those of partition 1 with the others."""
    slots = of_hashes(hash_array(pa.array(range(100), pa.int64())))
    own = [[key for key, slot in enumerate(slots) if Routing(2).slots(p).have(slot)][:20] for p in (0, 1)]
    scripts = {"a": [table(own[0], 0)], "b": [table(own[1], 0)], "c": [table(own[1], 0)]}
    node = Node(tmp_path, scripts, partitions="2")
    node.batch([each[0] for each in scripts.values()])
    assert node.places() == []
    node.hosts = (("a", ("h2",)), ("b", ("h1",)), ("c", ("h1",)))
    node.restart()
    node.tasks(executors=EXECUTORS)
    assert node.places() == ["e2", "e1"]
