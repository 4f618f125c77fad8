"""Shedding: the results are exactly those of the rows that are let in, and the recall is estimated as it is."""

import json
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.engine import cache
from spark_mjoin.model import WHOLE
from tests.harness import (
    ABANDONED,
    CRASH,
    LIMITED,
    OK,
    TORN,
    TWICE,
    ReadAllAvailable,
    Rows,
    reader,
    rows,
    run,
    scripted,
)
from tests.oracle.examples import examples
from tests.oracle.shedding import decisions
from tests.oracle.windows import WindowCase, window_cases

FAULTS = (CRASH, TORN, TWICE, ABANDONED)
PARTS = st.sampled_from([64, WHOLE // 4, WHOLE // 2, WHOLE - 1, WHOLE])
SCRIPTS = st.lists(st.tuples(PARTS, PARTS, PARTS), min_size=1, max_size=5)


@given(window_cases(faults=FAULTS), SCRIPTS)
@examples(40)
def oracle_with_windows_results_are_those_of_the_rows_that_are_let_in(case: WindowCase, script: list) -> None:
    cache.of_worker().clear()
    inputs = len(case.inputs)
    options = scripted(case.scripts(), case.query(), overflow="shed", **case.options())
    with tempfile.TemporaryDirectory() as state, decisions([parts[:inputs] for parts in script]) as decided:
        found = rows([t.select([f"n{i}" for i in range(inputs)]) for t in run(options, Path(state), case.schedule)])
    length = max(len(i.batches) for i in case.inputs)
    lost = [b for b, fault in enumerate(case.schedule) if fault == ABANDONED]
    admitted = [decided.admitted(i, [len(b) for b in of.batches]) for i, of in enumerate(case.inputs)]
    wanted = case.results([b for b in range(length) if b not in lost])
    assert found == Counter({c: n for c, n in wanted.items() if all(admitted[i][at] for i, at in enumerate(c))})


@st.composite
def streams(draw: st.DrawFn) -> list[list[list[int]]]:
    """Keys, per input and batch; 12 rows a batch, so that they come in two pieces."""
    keys = st.lists(st.integers(0, 3), min_size=0, max_size=12)
    batches = draw(st.integers(1, 4))
    return [[draw(keys) for _ in range(batches)] for _ in range(3)]


@given(streams(), SCRIPTS, st.lists(st.sampled_from([OK, *FAULTS]), max_size=4), st.data())
@examples(40)
def oracle_without_windows_results_are_those_of_the_rows_that_are_let_in(
    keys: list[list[list[int]]], script: list, schedule: list[str], data: st.DataObject
) -> None:
    """In trees of joins and in partitions too; batches that no task came to the end of let in what was decided."""
    cache.of_worker().clear()
    plan = data.draw(st.sampled_from(["(r0 r1 r2)", "((r0 r1) r2)", "((r0 r2) r1)"]))
    tables, numbers = {}, [0, 0, 0]
    for i, of in enumerate(keys):
        tables[f"r{i}"] = []
        for batch in of:
            table = {"n": range(numbers[i], numbers[i] + len(batch)), "k": batch}
            tables[f"r{i}"].append(pa.table({name: pa.array(list(v), pa.int64()) for name, v in table.items()}))
            numbers[i] += len(batch)
    query = "SELECT r0.n AS a, r1.n AS b, r2.n AS c FROM r0, r1, r2 WHERE r0.k = r1.k AND r1.k = r2.k"
    partitions = str(data.draw(st.integers(1, 3)))
    options = scripted(tables, query, overflow="shed", plan=plan, partitions=partitions)
    with tempfile.TemporaryDirectory() as state, decisions(script) as decided:
        found = rows(run(options, Path(state), schedule))
    admitted = [decided.admitted(i, [len(b) for b in of]) for i, of in enumerate(keys)]
    arrivals = [
        [(b, n, k) for n, (b, k) in enumerate((b, k) for b, batch in enumerate(of) for k in batch)] for of in keys
    ]
    lost = {b for b, fault in enumerate(schedule) if fault == ABANDONED}
    wanted: Rows = Counter()
    for combination in product(*arrivals):
        joined = len({k for _, _, k in combination}) == 1 and max(b for b, _, _ in combination) not in lost
        if joined and all(admitted[i][n] for i, (_, n, _) in enumerate(combination)):
            wanted[tuple(n for _, n, _ in combination)] += 1
    assert found == wanted


@pytest.mark.parametrize("partitions", ["1", "2"])
@pytest.mark.parametrize("last", [OK, LIMITED])
def oracle_batches_that_nobody_ran_are_made_up_for_as_they_were_decided(
    last: str, partitions: str, tmp_path: Path
) -> None:
    """Several in a row, read again as one: a decision must not change in between."""
    keys = list(range(50)) * 4
    tables = {
        name: [pa.table({"n": range(200 * b, 200 * b + 200), "k": keys}) for b in range(6)] for name in ("r0", "r1")
    }
    query = "SELECT r0.n AS a, r1.n AS b FROM r0 JOIN r1 ON r0.k = r1.k"
    script = [(WHOLE // n, WHOLE // m) for n, m in ((1, 2), (2, 1), (4, 2), (1, 4), (2, 3), (1, 1))]
    options = scripted(tables, query, overflow="shed", partitions=partitions)
    with decisions(script) as decided:
        results = run(options, tmp_path, [OK, ABANDONED, ABANDONED, last, OK, OK])
    assert len({decided.parts[version] for version in (2, 3, 4)}) == 1
    admitted = [[n for n, let_in in enumerate(decided.admitted(i, [200] * 6)) if let_in] for i in (0, 1)]
    for batch in (4, 5):
        wanted = Counter(
            (a, b) for a in admitted[0] for b in admitted[1] if a % 50 == b % 50 and max(a, b) // 200 == batch
        )
        assert rows(results[batch]) == wanted


def batches_of(options: dict[str, str], state: Path) -> list[tuple[int, dict[str, str]]]:
    """Per batch, its results and its metrics, with a state that is loaded anew in every other batch."""
    current = reader({"stateLocation": str(state), **options})
    start, out = current.initialOffset(), []
    while (end := current.latestOffset(start, ReadAllAvailable())) != start:
        if len(out) % 2:
            cache.of_worker().clear()
        found = sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))
        out.append((found, current.reportLatestOffset()["metrics"]))
        start = json.loads(json.dumps(end))
    return out


@pytest.mark.parametrize(("window", "partitions"), [(None, 1), (None, 2), ("1500 microseconds", 1), ("2000 rows", 2)])
def oracle_the_recall_is_estimated_as_it_is(window: str | None, partitions: int, tmp_path: Path) -> None:
    """Fractions that change from batch to batch, of three inputs with duplicate keys: within 5 % in the mean."""
    random = np.random.Generator(np.random.Philox(11))
    tables: dict[str, list[pa.Table]] = {}
    for name in ("a", "b", "c"):
        tables[name] = [
            pa.table(
                {
                    "k": random.integers(0, 150, 1000),
                    "ts": pa.array(np.sort(random.integers(1000 * b, 1000 * b + 1000, 1000))).cast(
                        pa.timestamp("us", "UTC")
                    ),
                }
            )
            for b in range(6)
        ]
    query = "SELECT a.k AS k FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
    options = {"partitions": str(partitions), "overflow": "shed"}
    if window is not None:
        options["window"] = window
        if "rows" not in window:
            for name in tables:
                options |= {f"source.{name}.timestamp": "ts", f"source.{name}.watermark": "0 seconds"}
    half = WHOLE // 2
    script = [(WHOLE, WHOLE, WHOLE), (half, WHOLE, WHOLE), (half, half, half), (WHOLE // 4, WHOLE, half), (WHOLE,) * 3]
    everything = scripted(tables, query, **options)
    with decisions(script):
        shed = batches_of(everything, tmp_path / "shed")
    with decisions([(WHOLE, WHOLE, WHOLE)]):
        true = batches_of(everything, tmp_path / "all")
    ratios = [float(m["estimatedRecall"]) / (n / t) for (n, m), (t, _) in zip(shed, true, strict=True)]
    assert all(0.8 < ratio < 1.25 for ratio in ratios) and 0.95 < np.mean(ratios) < 1.05, ratios
    assert all(m["estimatedRecall"] == "1.0000" and m["rowsShed"] == "0" for _, m in true)
    assert {float(m["estimatedRecall"]) for _, m in shed[1:4]} < {x / 10_000 for x in range(9_000)}
    let_in = [[float(m[f"{name}AdmittedFraction"]) for name in tables] for _, m in shed]
    assert let_in == [[p / WHOLE for p in parts] for parts in [*script, script[-1]]]
    for (_, m), parts in zip(shed, [*script, script[-1]], strict=True):
        assert int(m["rowsShed"]) == pytest.approx(sum(1000 * (1 - p / WHOLE) for p in parts), abs=120)


def test_a_query_that_is_restarted_without_shedding_lets_everything_in(tmp_path: Path) -> None:
    tables = {name: [pa.table({"k": list(range(100))})] * 4 for name in ("a", "b")}
    query = "SELECT a.k AS k FROM a JOIN b ON a.k = b.k"
    options = scripted(tables, query, stateLocation=str(tmp_path))
    with decisions([(WHOLE // 2, WHOLE)]):
        current = reader(options | {"overflow": "shed"})
        start = current.initialOffset()
        for _ in range(2):
            end = current.latestOffset(start, ReadAllAvailable())
            for partition in current.partitions(start, end):
                list(current.read(partition))
            start = end
    assert "admission" in start["plan"]
    current = reader(options)
    end = current.latestOffset(start, ReadAllAvailable())
    assert "admission" not in end.get("plan", {})
    again = current.latestOffset(
        end, ReadAllAvailable()
    )  # nobody has run the batch: what is made up for must not change
    assert "admission" not in again.get("plan", {})
    found = sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))
    metrics = current.reportLatestOffset()["metrics"]
    half = float(metrics["estimatedRecall"])
    assert metrics["rowsShed"] == "0" and 0.6 < half < 0.95 and 400 < found < 500


def six_batches(**options: str) -> dict[str, str]:
    tables = {name: [pa.table({"k": list(range(200))})] * 6 for name in ("a", "b")}
    return scripted(tables, "SELECT a.k AS k FROM a JOIN b ON a.k = b.k", **options)


def offsets_of(options: dict[str, str], frozen: bool = False) -> list[dict]:
    """With limits that leave several batches; frozen: as with availableNow."""
    current = reader(options | {"maxRowsPerTrigger": "1"})
    start, out = current.initialOffset(), []
    if frozen:
        current.prepareForTriggerAvailableNow()
    while (end := current.latestOffset(start, current.getDefaultReadLimit())) != start:
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
        out.append(end.get("plan", {}))
    return out


def test_batches_that_take_too_long_make_the_reader_shed(tmp_path: Path) -> None:
    """Measured with real clocks: no batch can be done within ten microseconds."""
    plans = offsets_of(six_batches(stateLocation=str(tmp_path), overflow="shed", maxDelay="10 microseconds"))
    assert "admission" not in plans[0] and all(sum(plan["admission"]) < WHOLE for plan in plans[3:])


def test_where_nothing_arrives_any_more_only_max_delay_sheds(tmp_path: Path) -> None:
    short = six_batches(stateLocation=str(tmp_path / "a"), overflow="shed", maxDelay="10 microseconds")
    assert all("admission" in plan for plan in offsets_of(short, frozen=True)[2:])
    for promise in ({}, {"minRecall": "0.5"}):
        options = six_batches(stateLocation=str(tmp_path / f"b{len(promise)}"), overflow="shed", **promise)
        assert not any("admission" in plan for plan in offsets_of(options, frozen=True))


def test_a_promise_of_recall_is_kept_by_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FREE_SECONDS", "RECOVERY"):  # so that every batch takes too long
        monkeypatch.setattr(f"spark_mjoin.driver.admission.{name}", 1e-5)
    plans = offsets_of(six_batches(stateLocation=str(tmp_path), overflow="shed", minRecall="0.64"))
    let_in = [plan["admission"] for plan in plans if "admission" in plan]
    assert let_in and min(a for a, _ in let_in) * min(b for _, b in let_in) >= 0.64 * WHOLE**2 - WHOLE


def test_small_batches_are_never_shed(tmp_path: Path) -> None:
    assert not any(
        "admission" in plan for plan in offsets_of(six_batches(stateLocation=str(tmp_path), overflow="shed"))
    )
