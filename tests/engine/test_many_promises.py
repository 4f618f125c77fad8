"""Promises of one input only, which no other ever makes: what they cost in a batch, on disk and in memory."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pyarrow as pa
import pytest

from spark_mjoin.engine import cache
from tests.engine.test_purge import TWO, Promising, punctuated

NEW = 1000  # promises of a batch


@pytest.fixture(autouse=True)
def whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 1 << 16)


def key(number: int, text: bool) -> Any:
    """Neither neighbours nor in order."""
    scattered = number * 0x9E3779B97F4A7C15 % (1 << 62)
    return f"order {scattered:020d}" if text else scattered


def batch(promised: range, text: bool, rows: range = range(0)) -> pa.Table:
    """Rows, and then punctuations."""
    keys = [key(number, text) for number in (*rows, *promised)]
    return pa.table(
        {
            "n": pa.array([*rows, *[None] * len(promised)], pa.int64()),
            "k": pa.array(keys, pa.string() if text else pa.int64()),
            "p": pa.array([False] * len(rows) + [True] * len(promised), pa.bool_()),
        }
    )


def promising(state: Path, first: int, batches: int, text: bool, **options: str) -> Promising:
    """A run that promises many keys at once, then NEW with every batch; on the other input nothing happens."""
    ranges = [range(first), *(range(first + NEW * i, first + NEW * (i + 1)) for i in range(batches))]
    given = {"a": [batch(of, text) for of in ranges], "b": [batch(range(0), text)] * (batches + 1)}
    return Promising(given, TWO, state, **punctuated("a", **options))


def written(run: Promising, state: Path) -> Iterator[int]:
    """For every batch, the bytes of new files about promises."""
    known = set[Path]()
    for _ in run.steps():
        found = set(state.rglob("promises-*"))
        yield sum(path.stat().st_size for path in found - known)
        known |= found


@pytest.mark.parametrize("text", [True, False])
def test_a_batch_writes_what_it_promises(tmp_path: Path, text: bool) -> None:
    """And now and then what some batches before it have promised, to keep files few."""
    batches = 20
    sizes = list(written(promising(tmp_path, 60 * NEW, batches, text), tmp_path))
    new = sizes[0] / 60  # bytes of what a batch promises
    assert max(sizes[1:]) <= 10 * new, "never all"
    assert sum(sizes[1:]) <= 4 * new * batches
    assert len(list(tmp_path.rglob("promises-*"))) <= 30


def test_time_does_not_grow_with_promises(tmp_path: Path) -> None:
    """A hundred times as many promises: the same batches, by the time of the processor."""
    medians: dict[int, list[float]] = {}
    for first in (2 * NEW, 200 * NEW, 2 * NEW, 200 * NEW):
        steps, seconds = promising(Path(mkdtemp(dir=tmp_path)), first, 12, True).steps(), list[float]()
        next(steps)
        for _ in range(12):
            began = time.process_time()
            next(steps)
            seconds.append(time.process_time() - began)
        medians.setdefault(first, []).append(sorted(seconds)[6])
    assert min(medians[200 * NEW]) <= 3 * min(medians[2 * NEW]), medians


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("overflow", ["spill", "fail"])
def test_promises_keep_to_a_fourth_of_the_budget(tmp_path: Path, text: bool, overflow: str) -> None:
    memory, batches = 1 << 20, 24
    given = {
        "a": [batch(range(NEW * i, NEW * (i + 1)), text, range(NEW * i, NEW * i + 50)) for i in range(batches)],
        "b": [batch(range(0), text, range(NEW * i, NEW * i + 100, 2)) for i in range(batches)],
    }
    run = Promising(given, TWO, tmp_path, **punctuated("a", memory=str(memory), overflow=overflow))
    for counts in run.steps():
        assert counts["memoryUsedBytes"] <= memory
        (state,) = cache.of_worker().states()
        assert state.root.promises.nbytes() <= memory // 4
    run.check()
    promises = state.root.promises
    forgotten = sum(c["promisesForgotten"] for c in run.counts)
    assert forgotten + sum(of.entries for p in promises.of for of in p.sets.values()) == NEW * batches
    assert forgotten > NEW * batches // 3


def test_without_a_budget_nothing_is_forgotten(tmp_path: Path) -> None:
    run = promising(tmp_path, 20 * NEW, 5, True).to_the_end()
    assert not any(c["promisesForgotten"] for c in run.counts)
    assert run.counts[-1]["memoryUsedBytes"] > 25 * NEW * 50, "and they are accounted for"


def test_a_broken_promise_is_found_as_long_as_it_is_remembered(tmp_path: Path) -> None:
    """What `verifyConstraints` counts under a budget."""
    given = {
        "a": [
            *(batch(range(NEW * i, NEW * (i + 1)), True) for i in range(12)),
            batch(range(0), True, range(0, 12 * NEW, 100)),
        ],
        "b": [batch(range(0), True)] * 13,
    }
    broken = {}
    for memory in ("", "1m"):
        options = {"memory": memory} if memory else {}
        run = Promising(given, TWO, tmp_path / f"in {memory}", **punctuated("a", verifyConstraints="count", **options))
        run.to_the_end()
        run.check()
        broken[memory] = sum(c["promisesBroken"] for c in run.counts)
    assert 0 < broken["1m"] < broken[""] == 120
