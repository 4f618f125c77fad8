"""Windows in rows: what the engine finds is what rows that come one by one would find, however they really come.

The definition here goes through the rows in their order and keeps the last ones of each input; it knows no rounds, no
fractions of them and no disk.
"""

import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from spark_mjoin.engine import cache
from tests import scripted as scripts
from tests.engine.test_overflow import Run
from tests.harness import CRASH, OK, TORN, TWICE, Rows, rows, run, scripted
from tests.oracle.windows import side_by_side

TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class Stream:
    """One input: the keys of its rows, which are their own numbers otherwise, and its window."""

    keys: Sequence[int]
    window: tuple[str, int] | None  # ("rows", number), ("time", microseconds) of event times that are numbers of rows
    pace: int = 1  # of its event times

    def table(self) -> pa.Table:
        n = np.arange(len(self.keys))
        return pa.table({"n": n, "k": np.array(self.keys, np.int64), "ts": pa.array(n * self.pace, TIMESTAMP)})


def streams(
    *sizes: int, windows: Sequence[tuple[str, int] | None], keys: int = 20, in_order: bool = False
) -> list[Stream]:
    """Random keys; in_order: they move on with the rows, so that rows meet others of their own time."""
    out = []
    for number, (size, window) in enumerate(zip(sizes, windows, strict=True)):
        spread = np.random.default_rng(number).integers(0, keys, size)
        moved = np.arange(size) * max(sizes) // size // 3 if in_order else 0
        out.append(Stream((spread + moved).tolist(), window, max(sizes) // size))
    return out


def cut(size: int, batches: int) -> list[tuple[int, int]]:
    return list(pairwise(size * b // batches for b in range(batches + 1)))


def defined(given: Sequence[Stream], batches: int, one_after_the_other: bool = False) -> Rows:
    """All results, as numbers of rows, where everything comes in so many micro-batches."""
    found = Rows()
    there: list[deque[int]] = []
    for stream in given:
        counted = stream.window is not None and stream.window[0] == "rows"
        there.append(deque(maxlen=stream.window[1] if counted else None))
    for batch in range(batches):
        arriving = [range(*cut(len(stream.keys), batches)[batch]) for stream in given]
        order = [(i, n) for i, of in enumerate(arriving) for n in of] if one_after_the_other else side_by_side(arriving)
        for input, n in order:
            there[input].append(n)
            key = given[input].keys[n]
            alike = [[m for m in of if given[i].keys[m] == key] for i, of in enumerate(there)]
            alike[input] = [n]
            for combination in product(*alike):
                times = [stream.pace * m for stream, m in zip(given, combination, strict=True)]
                found[combination] += all(
                    stream.window is None or stream.window[0] == "rows" or time > max(times) - stream.window[1]
                    for stream, time in zip(given, times, strict=True)
                )
    return +found


def options(given: Sequence[Stream], batches: int, more: Mapping[str, str]) -> dict[str, str]:
    names, out = [f"r{i}" for i in range(len(given))], {"partitions": "1", **more}
    tables = {}
    timed = any(stream.window is not None and stream.window[0] == "time" for stream in given)
    for name, stream in zip(names, given, strict=True):
        table = stream.table()
        tables[name] = [table.slice(low, high - low) for low, high in cut(len(stream.keys), batches)]
        if stream.window is not None:
            out[f"source.{name}.window"] = (
                f"{stream.window[1]} {'rows' if stream.window[0] == 'rows' else 'microseconds'}"
            )
        if timed:
            out |= {f"source.{name}.timestamp": "ts", f"source.{name}.watermark": "1 hour"}
    wanted = ", ".join(f"{name}.n AS n{i}" for i, name in enumerate(names))
    conditions = " AND ".join(f"r0.k = {name}.k" for name in names[1:])
    return scripted(tables, f"SELECT {wanted} FROM {', '.join(names)} WHERE {conditions}", **out)


def engine(given: Sequence[Stream], batches: int, faults: Sequence[str] = (), **more: str) -> Rows:
    cache.of_worker().clear()
    with tempfile.TemporaryDirectory() as state:
        return rows(run(options(given, batches, more), Path(state), faults))


IN_ROWS = ("rows", 40)


@pytest.mark.parametrize("in_order", [False, True], ids=["any keys", "keys in order"])
@pytest.mark.parametrize("sizes", [(200, 200), (200, 50), (50, 200), (200, 20)], ids=str)
def test_results_are_those_of_rows_that_come_one_by_one(sizes: tuple[int, int], in_order: bool) -> None:
    """In micro-batches of one row of the larger input, of ten, of a hundred, and in one."""
    given = streams(*sizes, windows=[IN_ROWS] * 2, keys=10, in_order=in_order)
    one_by_one = defined(given, 200)
    assert one_by_one.total() > 50
    for size in (1, 10, 100, 200):
        found = engine(given, 200 // size)
        assert found == defined(given, 200 // size)
        assert abs(found.total() - one_by_one.total()) <= 0.02 * one_by_one.total()


def test_a_window_of_a_hundred_rows_is_the_same_at_any_size_of_micro_batches() -> None:
    given = streams(2000, 2000, windows=[("rows", 100)] * 2, keys=25)
    one_by_one = defined(given, 2000)
    assert one_by_one.total() > 15_000
    for batches in (200, 20, 1):
        assert engine(given, batches) == one_by_one


@pytest.mark.parametrize("partitions", ["1", "3"])
@pytest.mark.parametrize("batches", [1, 4, 30])
def test_three_inputs_with_windows_of_their_own(batches: int, partitions: str) -> None:
    given = streams(160, 120, 40, windows=[("rows", 60), ("rows", 7), ("rows", 25)], keys=9)
    found = engine(given, batches, partitions=partitions)
    assert found == defined(given, batches) and found.total() > 100
    without = [given[0], given[1], Stream(given[2].keys, None)]
    assert engine(without, batches, partitions=partitions) == defined(without, batches)


@pytest.mark.parametrize("batches", [1, 5, 40])
def test_windows_in_rows_beside_windows_in_time(batches: int) -> None:
    given = streams(160, 40, 80, windows=[("time", 50), ("rows", 12), None], keys=9)
    found, one_by_one = engine(given, batches), defined(given, 160)
    assert found == defined(given, batches) and found.total() > 100
    assert abs(found.total() - one_by_one.total()) <= 0.02 * one_by_one.total()


@pytest.mark.parametrize("chunk", [1, 7, 1000])
@pytest.mark.parametrize("quota", ["1", "7", "64"])
def test_neither_turns_nor_arrow_batches_matter(quota: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave while others arrive, and none that a row of the same micro-batch still needs."""
    monkeypatch.setattr(scripts, "CHUNK_ROWS", chunk)
    given = streams(160, 60, 30, windows=[("rows", 9), ("rows", 30), ("rows", 3)], keys=4)
    for expiry in ("lazy", "active"):
        assert engine(given, 2, schedulingQuota=quota, expiry=expiry) == defined(given, 2)


def test_inputs_that_are_to_come_one_after_the_other_do() -> None:
    given = streams(160, 40, windows=[("rows", 30)] * 2)
    for batches in (1, 4, 40):
        found = engine(given, batches, streamScheduling="sequential")
        assert found == defined(given, batches, one_after_the_other=True)
        assert (found == defined(given, batches)) == (batches == 40), "four rows, then one, is side by side"


@pytest.mark.parametrize("memory", [None, "20k"])
def test_crashes_and_restarts(memory: str | None) -> None:
    given = streams(160, 40, 80, windows=[("rows", 30), ("rows", 12), ("rows", 50)], keys=9)
    faults = [OK, CRASH, TORN, TWICE, OK, CRASH, TORN, OK, TWICE, CRASH]
    more = {"partitions": "2", "schedulingQuota": "5"} | ({} if memory is None else {"memory": memory})
    assert engine(given, 10, faults, **more) == defined(given, 10)


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("batches", [1, 8])
def test_rows_that_are_on_disk(tmp_path: Path, policy: str, batches: int) -> None:
    """What disk work finds later is judged by what had come before the youngest row, as in memory."""
    given = streams(240, 60, 120, windows=[("rows", 90), ("rows", 12), ("rows", 50)], keys=9)
    everything = options(given, batches, {"memory": "20k", "flush": policy, "blockingThreshold": "1"})
    tables = {name: scripts.SCRIPTS[name] for name in ("r0", "r1", "r2")}
    done = Run(tables, everything.pop("query"), tmp_path, **everything).to_the_end()
    assert sum(c["flushes"] for c in done.counts) > 0
    assert sum(c["diskToDiskRows"] + c["diskToMemoryRows"] for c in done.counts) > 0
    assert rows(done.results) == defined(given, batches)


def test_punctuations_are_no_rows(tmp_path: Path) -> None:
    """They are not counted, neither by windows nor as a part of what an input brings."""
    given = streams(160, 160, windows=[("rows", 20)] * 2)
    plain = options(given, 2, {})
    marked: dict[str, list[pa.Table]] = {}
    for name, each in (("r0", 1), ("r1", 4)):
        marked[name] = []
        for table in scripts.SCRIPTS[name]:
            pieces = []
            for at in range(0, table.num_rows, each):
                end = {"n": pa.array([-1]), "k": pa.array([-at - 1]), "ts": pa.array([0], TIMESTAMP)}
                pieces += [table.slice(at, each), pa.table(end)]
            marked[name].append(pa.concat_tables(pieces))
    more: dict[str, Any] = {key: value for key, value in plain.items() if key.endswith("window")}
    punctuated = scripted(marked, plain["query"], **more, **{f"source.{name}.punctuation": "n < 0" for name in marked})
    cache.of_worker().clear()
    assert rows(run(punctuated, tmp_path)) == defined(given, 2)
