"""Windows that are shortened to fit into memory: the results are exactly those of the rows that are left.

What is dropped is noted as it happens, and the results are compared with the definition of windows over all rows, less
the combinations of which a row was dropped before the last one arrived.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts, Reason
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.engine import arrival, cache
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention import passing, windows
from spark_mjoin.engine.retention.shrinking import divided, make_room
from spark_mjoin.errors import StateError
from spark_mjoin.model import WHOLE
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.progress import Progress
from tests.harness import ABANDONED, CRASH, OK, TORN, TWICE, ReadAllAvailable, Rows, reader, rows, run, scripted
from tests.oracle.examples import examples
from tests.oracle.shedding import decisions
from tests.oracle.windows import WindowCase, window_cases

FAULTS = (CRASH, TORN, TWICE, ABANDONED)
WINDOWS = st.one_of(
    st.tuples(st.just("time"), st.sampled_from([2, 5, 20, 100])), st.tuples(st.just("rows"), st.integers(1, 12))
)
MEMORY = st.sampled_from(["1", "5k", "9k", "8400", "12400", "16k", "1m"])
EVERYTHING = (WHOLE, WHOLE, WHOLE)


@dataclass
class Noted:
    """When rows arrived and what was dropped, in events of the state."""

    arrived: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(3)])  # row number -> event
    dropped: dict[tuple[int, int], int] = field(default_factory=dict)  # (input, event) -> position

    def is_whole(self, case: WindowCase, combination: tuple[int, ...]) -> bool:
        """Whether all rows were still there when the last one arrived."""
        last = max(self.arrived[i][n] for i, n in enumerate(combination))
        for i, n in enumerate(combination):
            row = next(r for batch in case.inputs[i].batches for r in batch if r.n == n)
            position, limit = row.ts if case.inputs[i].window[0] == "time" else row.n, -(2**63)
            for at, dropped in sorted((e, p) for (of, e), p in self.dropped.items() if of == i):
                limit = max(limit, dropped)
                if position <= limit and self.arrived[i][n] < at < last:
                    return False
        return True


@contextmanager
def noting() -> Iterator[Noted]:
    noted, deliver, drop = Noted(), Progress.deliver, Progress.drop

    def delivered(self: Progress, input: int, rows: int, newest: object, event: int, counted: bool) -> None:
        for number in range(self.read[input], self.read[input] + rows):
            noted.arrived[input][number] = event
        deliver(self, input, rows, newest, event, counted)

    def dropped(self: Progress, input: int, buckets: object, position: int, event: int) -> None:
        noted.dropped[input, event] = position
        drop(self, input, buckets, position, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "deliver", delivered)
        patch.setattr(Progress, "drop", dropped)
        yield noted


def wanted(case: WindowCase) -> Rows:
    length = max(len(i.batches) for i in case.inputs)
    lost = [b for b, fault in enumerate(case.schedule) if fault == ABANDONED]
    return case.results([b for b in range(length) if b not in lost])


@given(window_cases(faults=FAULTS, windows=WINDOWS), MEMORY, st.sampled_from([(1, 0, 0), (0, 1, 0), (0.2, 0.3, 0.5)]))
@examples(60)
def oracle_results_are_those_of_the_rows_that_are_left(case: WindowCase, memory: str, parts: tuple[float, ...]) -> None:
    case = replace(case, partitions=1)
    cache.of_worker().clear()
    columns = [f"n{i}" for i in range(len(case.inputs))]
    options = scripted(case.scripts(), case.query(), overflow="shrink", memory=memory, **case.options())
    script = [EVERYTHING[: len(columns)]]
    with tempfile.TemporaryDirectory() as state, noting() as noted, decisions(script, parts):
        found = rows([t.select(columns) for t in run(options, Path(state), case.schedule)])
    complete = wanted(case)
    left = Counter({c: n for c, n in complete.items() if noted.is_whole(case, c)})
    assert found == left
    event("all" if left == complete else "some are lost")
    if memory == "1m":
        assert left == complete


@given(window_cases(faults=(CRASH, TORN, TWICE), windows=WINDOWS, star_only=True), MEMORY)
@examples(25)
def oracle_partitions_together_give_no_more_than_there_is(case: WindowCase, memory: str) -> None:
    cache.of_worker().clear()
    columns = [f"n{i}" for i in range(len(case.inputs))]
    options = scripted(case.scripts(), case.query(), overflow="shrink", memory=memory, **case.options())
    with tempfile.TemporaryDirectory() as state:
        found = rows([t.select(columns) for t in run(options, Path(state), case.schedule)])
    assert not found - case.results()
    assert memory != "1m" or found == case.results()


def metered(options: dict[str, str], state: Path) -> list[tuple[int, dict[str, str]]]:
    current = reader({"stateLocation": str(state), **options})
    start, out = current.initialOffset(), []
    while (end := current.latestOffset(start, ReadAllAvailable())) != start:
        if len(out) % 2:
            cache.of_worker().clear()
        found = sum(b.num_rows for p in current.partitions(start, end) for b in current.read(p))
        out.append((found, current.reportLatestOffset()["metrics"]))
        start = end
    return out


def uneven(batches: int = 12) -> dict[str, list[pa.Table]]:
    """b has five times the rows of a."""
    random, out = np.random.Generator(np.random.Philox(3)), {}
    for name, size in (("a", 200), ("b", 1000)):
        out[name] = [
            pa.table(
                {
                    "k": random.integers(0, 500, size),
                    "ts": pa.array(np.sort(random.integers(1_000_000 * b, 1_000_000 * (b + 1), size))).cast(
                        pa.timestamp("us", "UTC")
                    ),
                }
            )
            for b in range(batches)
        ]
    return out


QUERY = "SELECT a.k AS k FROM a JOIN b ON a.k = b.k"
TIMED = {f"source.{n}.{o}": v for n in "ab" for o, v in (("timestamp", "ts"), ("watermark", "0 seconds"))}


@pytest.mark.parametrize("window", ["10 seconds", "100000 rows"])
@pytest.mark.parametrize("partitions", ["1", "2"])
def test_memory_is_kept_to_and_goes_to_the_slower_input(window: str, partitions: str, tmp_path: Path) -> None:
    options = scripted(
        uneven(),
        QUERY,
        overflow="shrink",
        memory="80k",
        window=window,
        partitions=partitions,
        **(TIMED if "rows" not in window else {}),
    )
    measured = metered(options, tmp_path)
    last = measured[-1][1]
    assert all(int(m["memoryUsedBytes"]) <= 80 * 1024 for _, m in measured)
    assert int(last["aNumRowsTotal"]) > int(last["bNumRowsTotal"])
    assert sum(int(m["rowsShrunk"]) for _, m in measured) > 5000
    unit = "rows" if "rows" in window else "seconds"
    slow, fast = (float(last[f"{name}EffectiveWindow"].removesuffix(f" {unit}")) for name in "ab")
    assert slow > (2 if unit == "rows" else 5) * fast


def test_more_results_than_with_other_divisions(tmp_path: Path) -> None:
    """Figure 9: all to the slower input, against equal parts and all to the faster one."""
    options = scripted(uneven(20), QUERY, overflow="shrink", memory="80k", window="100 seconds", **TIMED)
    chosen = sum(n for n, _ in metered(options, tmp_path / "chosen"))
    others = []
    for number, parts in enumerate([(0.5, 0.5), (0.0, 1.0)]):
        with decisions([EVERYTHING[:2]], parts):
            others.append(sum(n for n, _ in metered(options, tmp_path / str(number))))
    assert chosen > 1.2 * others[0] > 1.2 * others[1]


def test_what_fits_is_not_shortened(tmp_path: Path) -> None:
    options = scripted(uneven(), QUERY, overflow="shrink", memory="10m", window="5 seconds", **TIMED)
    measured = metered(options, tmp_path / "shrink")
    assert all(m["rowsShrunk"] == "0" and m["aEffectiveWindow"] == "5.000000 seconds" for _, m in measured)
    whole = scripted(uneven(), QUERY, window="5 seconds", **TIMED)
    assert [n for n, _ in measured] == [n for n, _ in metered(whole, tmp_path / "whole")]


def test_shed_with_memory_shortens_windows_too(tmp_path: Path) -> None:
    options = scripted(uneven(), QUERY, overflow="shed", memory="80k", window="10 seconds", **TIMED)
    measured = metered(options, tmp_path)
    assert all(int(m["memoryUsedBytes"]) <= 80 * 1024 for _, m in measured)
    assert sum(int(m["rowsShrunk"]) for _, m in measured) > 5000


def test_with_max_delay_both_are_divided(tmp_path: Path) -> None:
    """Section 4.3, four variables, by the reader: no batch can be done within ten microseconds."""
    options = scripted(uneven(), QUERY, overflow="shrink", memory="80k", window="100 seconds", **TIMED)
    measured = metered(options | {"maxDelay": "10 microseconds"}, tmp_path / "delay")
    assert all(int(m["memoryUsedBytes"]) <= 80 * 1024 and int(m["rowsShed"]) > 0 for _, m in measured[4:])
    assert all(m["rowsShed"] == "0" for _, m in metered(options, tmp_path / "none"))


def test_a_batch_read_has_all_its_input_and_gives_nothing_up() -> None:
    options = scripted(uneven(4), QUERY, overflow="shrink", memory="80k", window="100 seconds", **TIMED)
    found = []
    for given_up in (options, {name: v for name, v in options.items() if name not in ("overflow", "memory")}):
        source = MJoinDataSource(CaseInsensitiveDict(given_up))
        batch_reader = source.reader(source.schema())
        found.append(sum(b.num_rows for p in batch_reader.partitions() for b in batch_reader.read(p)))
    assert found[0] == found[1] > 0


def test_rows_on_disk_cannot_be_given_up(tmp_path: Path) -> None:
    options = scripted(uneven(), QUERY, memory="40k", window="100 seconds", stateLocation=str(tmp_path), **TIMED)
    current = reader(options)
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    for partition in current.partitions(start, end):
        list(current.read(partition))
    with pytest.raises(StateError, match="'shrink' cannot resume from a state with rows on disk"):
        reader(options | {"overflow": "shrink"}).latestOffset(end, ReadAllAvailable())


def test_a_budget_that_is_lowered_is_kept_to_at_once(tmp_path: Path) -> None:
    options = scripted(uneven(), QUERY, overflow="shrink", window="100 seconds", stateLocation=str(tmp_path), **TIMED)
    current = reader(options | {"memory": "10m"})
    start = current.initialOffset()
    for memory in ("10m", "10m", "40k"):
        current = reader(options | {"memory": memory})
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
    assert int(current.reportLatestOffset()["metrics"]["memoryUsedBytes"]) <= 40 * 1024


# --- without windows: rows pass by -----------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", ["1", "2"])
def test_without_windows_rows_pass_by_when_memory_is_full(partitions: str, tmp_path: Path) -> None:
    """In one batch after the other: what is stored stays, and what comes later still meets it."""
    options = scripted(uneven(), QUERY, overflow="shed", memory="60k", partitions=partitions)
    measured = metered(options, tmp_path / "shed")
    whole = metered(scripted(uneven(), QUERY), tmp_path / "whole")
    assert all(int(m["memoryUsedBytes"]) <= 60 * 1024 for _, m in measured)
    assert [n <= w for (n, _), (w, _) in zip(measured, whole, strict=True)] == [True] * len(whole)
    assert measured[-1][0] > 0 and int(measured[-1][1]["rowsShed"]) == 1200
    for (found, m), (true, _) in list(zip(measured, whole, strict=True))[3:]:
        assert float(m["estimatedRecall"]) == pytest.approx(found / true, rel=0.25)


def oracle_rows_that_pass_by_meet_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the definition: every row of a result but the last was kept."""
    random, batches = np.random.Generator(np.random.Philox(5)), 8
    keys = [[random.integers(0, 20, 30).tolist() for _ in range(batches)] for _ in range(2)]
    tables = {
        name: [pa.table({"n": range(30 * b, 30 * b + 30), "k": keys[i][b]}) for b in range(batches)]
        for i, name in enumerate("ab")
    }
    options = scripted(tables, "SELECT a.n AS x, b.n AS y FROM a JOIN b ON a.k = b.k", overflow="shed", memory="9k")
    kept_apart = passing.passing
    passed: list[set[int]] = [set(), set()]

    @contextmanager
    def noted(state: OperatorState, number: int) -> Iterator[None]:
        with kept_apart(state, number):
            yield
            table = state.tables[number]
            every = np.arange(table.rows, dtype=np.int32)
            passed[number] |= set(table.gather("n", every, pa.int64()).to_pylist())

    monkeypatch.setattr("spark_mjoin.engine.retention.passing.passing", noted)
    found = rows(run(options, tmp_path, [CRASH, TORN, TWICE, OK, ABANDONED, OK, ABANDONED]))
    lost = (4, 6)
    arrived, at = {}, 0
    for b in range(batches):
        for i in (0, 1):
            for n in range(30 * b, 30 * b + 30):
                arrived[i, n], at = at, at + 1
    expected: Rows = Counter()
    for x, k in enumerate(k for of in keys[0] for k in of):
        for y, other in enumerate(k for of in keys[1] for k in of):
            early = (0, x) if arrived[0, x] < arrived[1, y] else (1, y)
            if k == other and early[1] not in passed[early[0]] and max(x, y) // 30 not in lost:
                expected[x, y] += 1
    assert found == expected and passed[0] and len(passed[0]) < 30 * batches
    (query,) = tmp_path.iterdir()
    store = Manifests(str(query), 0)
    assert all(store.manifest(v).held.memory_bytes <= 9 * 1024 for v in store.versions())


@pytest.mark.parametrize(
    ("held", "parts", "limit", "expected"),
    [
        ([100, 100], (1.0, 0.0), 120, [100, 20]),
        ([100, 100], (0.5, 0.5), 120, [60, 60]),
        ([10, 200], (0.5, 0.5), 120, [10, 110]),
        ([200, 100], (1.0, 0.0), 120, [120, 0]),
    ],
)
def test_what_an_input_leaves_goes_to_the_others(
    held: list[int], parts: tuple[float, ...], limit: float, expected: list[float]
) -> None:
    assert divided(held, parts, limit) == expected


def test_what_is_in_memory_is_what_a_state_that_is_loaded_would_have() -> None:
    """Rows that come late, behind what was given up, go with the next drop: the rule knows one position per bucket."""
    schema = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    options = {f"source.{n}.{o}": v for n in "ab" for o, v in (("format", "arrow"), ("timestamp", "ts"))}
    options |= {f"source.{n}.watermark": "1 hour" for n in "ab"}
    parsed = Options.parse({"query": QUERY, "window": "1 hour", **options})
    state, counts = OperatorState.alone(plan_join(parsed, [schema, schema])), BatchCounts([0, 0])

    def arrive(times: list[int]) -> None:
        rows = pa.RecordBatch.from_pydict({"k": list(range(len(times))), "ts": times}, schema=schema)
        arrival.insert(state, 0, Piece.whole(0, rows), counts)

    arrive(list(range(100, 200)))
    make_room(state, state.nbytes() // 2, (1.0, 0.0))
    given_up = state.progress.shortened[0]
    assert given_up > 120 and state.departures[Reason.SHRUNK] > 20
    arrive([10, 20, 110, given_up, given_up + 1])
    gone = windows.drop(state, 0, np.arange(64), 15, Reason.EXPIRED)
    assert gone == 4, "all that are behind, though only one is at 15 or before"
    positions = state.tables[0].position(state.spec.inputs[0].window.position)
    assert positions.min() == given_up + 1
    assert not state.progress.gone(0, state.tables[0].buckets, state.tables[0].arrived, positions).any()
