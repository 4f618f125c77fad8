"""What a worker does once, beside its tasks: it looks for garbage only among what is new. And where it sends rows."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin.config import SourceOptions
from spark_mjoin.doors import worker
from spark_mjoin.doors.worker import Target
from spark_mjoin.driver.intake import Brought
from spark_mjoin.driver.session import batch_tasks
from spark_mjoin.engine import cache
from spark_mjoin.engine.exchange import Sender
from spark_mjoin.errors import JarError
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.stages import staged
from spark_mjoin.query.tree import parse
from spark_mjoin.state.layouts import Cube
from spark_mjoin.state.routing import Routing
from tests.harness import reader, run, scripted

STAR = "SELECT a.k, a.x, b.x AS y, c.x AS z FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
CHAIN = "SELECT a.k, a.x, b.x AS y, c.k AS z FROM a JOIN b ON a.k = b.k JOIN c ON b.x = c.x"
CASES = {
    "star": (STAR, {}),
    "chain": (CHAIN, {}),
    "tree": (CHAIN, {"plan": "((a, b), c)"}),
    "on disk": (STAR, {"memory": "40k"}),
    "windows": (STAR, {"window": "100 rows"}),
}


@pytest.mark.parametrize(("query", "options"), CASES.values(), ids=CASES)
def test_a_state_goes_without_a_search_for_garbage(query: str, options: dict[str, str], tmp_path: Path) -> None:
    """A worker does not look at its first state for garbage again: it must go as soon as nobody has it."""
    rows = range(600)
    batch = pa.table({"k": pa.array([i % 50 for i in rows], pa.int64()), "x": pa.array(rows, pa.int64())})
    script = {alias: [batch.slice(at, 200) for at in (0, 200, 400)] for alias in "abc"}
    cache.of_worker().clear()
    gc.collect()
    gc.disable()
    try:
        run(scripted(script, query, **options), tmp_path)
        states = cache.of_worker().states()
        assert len(states) == 1
        left = [weakref.ref(state) for state in states]
        left += [weakref.ref(table) for operator in states[0].operators for table in operator.tables]
        del states
        cache.of_worker().clear()
        assert [found() for found in left if found() is not None] == []
    finally:
        gc.enable()


def test_a_worker_freezes_garbage_after_its_first_task(tmp_path: Path) -> None:
    """What is there by then is not looked through again; what comes later is."""

    class Node:
        itself: "Node"

    worker.freeze_gc.cache_clear()
    gc.unfreeze()
    table = pa.table({"k": pa.array([1, 2], pa.int64()), "x": pa.array([1, 2], pa.int64())})
    script = {alias: [table, table] for alias in "abc"}
    run(scripted(script, STAR), tmp_path)
    frozen = gc.get_freeze_count()
    assert frozen > 10_000, "the modules of the engine"
    assert len(gc.get_objects()) < frozen / 10
    lost = Node()
    lost.itself = lost
    gone = weakref.ref(lost)
    del lost
    gc.collect()
    assert gone() is None
    assert gc.get_freeze_count() <= frozen, "the second task froze nothing"


# --- where rows go ---------------------------------------------------------------------------------------------------


class Task:
    """What Spark's task context knows."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties

    def getLocalProperty(self, name: str) -> str | None:
        return self.properties.get(name)


def heard(monkeypatch: pytest.MonkeyPatch, **routings: Routing) -> None:
    """Let a task hear from the jar how rows are divided, by the tokens of joins."""
    said = {worker.ROUTING + token: worker.text_of(routing) for token, routing in routings.items()}
    monkeypatch.setattr("pyspark.taskcontext.TaskContext.get", lambda: Task(**said))


def chain() -> tuple[JoinSpec, dict[str, pa.Table]]:
    tables = {a: pa.table({n: pa.array([i % 9 for i in range(40)], pa.int64()) for n in "kx"}) for a in "abc"}
    given = scripted({alias: [table] for alias, table in tables.items()}, CHAIN)
    return reader({**given, "stateLocation": "unused"}).session.spec, tables


def targets(parcels: Sequence[pa.RecordBatch]) -> set[int]:
    return {target for some in parcels for target in some["target"].to_pylist()}


CELLS = Routing(6, layout=Cube(((0, 2), (1, 3))))


def test_rows_are_sent_as_the_jar_says_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, tables = chain()
    target = Target(spec, 1, "one", Routing(6, layout=Cube(((0, 3), (1, 2)))))
    arriving = tables["b"].select(list(spec.inputs[1].columns)).to_batches()

    def sent() -> list[pa.RecordBatch]:
        return list(worker.send(target, arriving))

    def divided(routing: Routing | None) -> list[pa.RecordBatch]:
        assert routing is not None
        return list(Sender(spec, 1, routing).parcels(arriving))

    assert sent() == divided(target.routing) != divided(CELLS), "there is no task of Spark's"
    heard(monkeypatch, one=CELLS, other=Routing(1))
    assert sent() == divided(CELLS)
    heard(monkeypatch, other=CELLS)
    assert sent() == divided(target.routing), "that was about another join"


def test_a_stream_is_not_sent_without_the_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, tables = chain()
    heard(monkeypatch, other=CELLS)
    with pytest.raises(JarError, match="was planned without the jar"):
        list(worker.send(Target(spec, 1, "one"), tables["b"].to_batches()))


def test_results_of_a_stage_are_sent_as_the_jar_says_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, tables = chain()
    options = [SourceOptions(source.alias, source.format, source.options) for source in spec.sources]
    first, second = staged(spec, parse("((a b) c)", spec), options)
    assert first.onward is not None
    onward = Target(second.spec, first.onward[1], "next", Routing(2))
    tasks = batch_tasks(first.spec, Settings(1), Brought(first.spec))

    def results() -> list[pa.RecordBatch]:
        parcels: list[pa.RecordBatch] = []
        for number, input in enumerate(first.spec.inputs):
            arriving = tables[input.alias].select(list(input.columns)).to_batches()
            parcels += Sender(first.spec, number, Routing(1)).parcels(arriving)
        return list(worker.join(parcels, tasks, onward))

    assert targets(results()) == {0, 1}
    heard(monkeypatch, next=Routing(5), other=CELLS)
    assert targets(results()) == set(range(5))
