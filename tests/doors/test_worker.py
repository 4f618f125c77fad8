"""What a worker does once, beside its tasks: it looks for garbage only among what is new."""

import gc
import weakref
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin.doors import worker
from spark_mjoin.engine import cache
from tests.harness import run, scripted

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
