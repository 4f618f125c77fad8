"""Punctuations and constraints on runs that are long enough to tell: state stays flat, and results are duckdb's."""

from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_mjoin import flush
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.driver.clock import IDLE_SECONDS
from spark_mjoin.engine import cache
from spark_mjoin.errors import OptionError, PromiseError, StateError
from spark_mjoin.state.garbage import KEPT_VERSIONS
from tests.clock import SetClock
from tests.engine.test_overflow import Run
from tests.harness import LIMITED, ReadAllAvailable, reader, rows, run, scripted

NAMES = ("a", "b", "c")
STAR = "SELECT a.k AS k, a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
TWO = "SELECT a.k AS k, a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k"
CHAIN = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
SIZE, OPEN = 300, 100  # rows per batch; keys that come at a time, of which a batch closes most
LIVE = 3 * 2 * SIZE  # rows whose key is open on some input, about


@pytest.fixture(autouse=True)
def larger_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 100)


def stream(seed: int, batches: int, columns: tuple[str, ...] = ("k",), text: bool = False) -> list[pa.Table]:
    """Rows with keys of a moving range; at the end of a batch those are punctuated that do not come any more."""
    dice = np.random.default_rng(seed)
    out = []
    for batch in range(batches):
        low = batch * OPEN
        data = {c: dice.integers(low, low + 2 * OPEN, SIZE).tolist() for c in ("k", "m")}
        closed = dice.permutation(np.arange(low, low + OPEN)).tolist()
        keys: dict[str, Any] = {c: data[c] + (closed if c in columns[:1] else [None] * OPEN) for c in data}
        for other in columns[1:]:  # a second key column has punctuations of its own
            for c in data:
                keys[c] += closed if c == other else [None] * OPEN
        count = len(keys["k"])
        if text:
            keys = {c: [None if v is None else f"key {v:06d}" for v in of] for c, of in keys.items()}
        dtype = pa.string() if text else pa.int64()
        out.append(
            pa.table(
                {
                    "n": pa.array([*range(batch * SIZE, (batch + 1) * SIZE), *[None] * (count - SIZE)], pa.int64()),
                    "k": pa.array(keys["k"], dtype),
                    "m": pa.array(keys["m"], dtype),
                    "p": [False] * SIZE + [True] * (count - SIZE),
                }
            )
        )
    return out


def punctuated(*aliases: str, **more: str) -> dict[str, str]:
    return {f"source.{alias}.punctuation": "p" for alias in aliases or NAMES} | more


class Promising(Run):
    """A run whose results are checked without the punctuations, which are no rows."""

    def __init__(self, given: dict[str, list[pa.Table]], *rest: Any, **options: str) -> None:
        super().__init__(given, *rest, **options)
        for alias, table in self.tables.items():
            if "p" in table.schema.names:
                self.tables[alias] = table.filter(pa.compute.invert(table["p"]))

    def states(self) -> list[dict[str, Any]]:
        """What each batch leaves behind."""
        found = []
        for counts in self.steps():
            operators = [m.root for m in self.manifests()]
            found.append(
                {
                    "rows": sum(sum(m.rows_held) for m in self.manifests()),
                    "stored": sum(s.rows for o in operators for s in o.segments),
                    "purgedFiles": sum(s.rows for o in operators for s in o.purged_files),
                    "memory": counts["memoryUsedBytes"],
                    "purged": counts["rowsPurged"],
                    "dropped": counts["rowsDropped"],
                }
            )
        return found


@pytest.mark.parametrize("purge", ["immediate", "batch"])
@pytest.mark.parametrize(("partitions", "text"), [("1", False), ("2", True)])
def test_the_state_stays_flat(tmp_path: Path, purge: str, partitions: str, text: bool) -> None:
    given = {alias: stream(seed, 16, text=text) for seed, alias in enumerate(NAMES)}
    run = Promising(given, STAR, tmp_path, partitions=partitions, **punctuated(purge=purge))
    states = run.states()
    run.check()
    most = {name: max(s[name] for s in states[6:]) for name in states[0]}
    assert most["rows"] <= LIVE, "only open keys are there"
    assert most["stored"] <= 2.5 * LIVE and most["purgedFiles"] <= 2 * LIVE, "and on disk not many more"
    assert most["memory"] <= max(s["memory"] for s in states[2:6]) * 1.3
    gone = sum(s["purged"] + s["dropped"] for s in states)
    assert gone + states[-1]["rows"] == 16 * 3 * SIZE
    assert sum(s["dropped"] for s in states) > 0, "some rows come when the others are over"
    assert sum(c["numInputPunctuations"] for c in run.counts) == 16 * 3 * OPEN
    files = [*tmp_path.rglob("rows-*"), *tmp_path.rglob("purged-*"), *tmp_path.rglob("promises-*")]
    assert len(files) <= int(partitions) * 30 * KEPT_VERSIONS, "files that are not needed are removed"
    logs = [sum(s.bytes for s in m.root.promise_files) for m in run.manifests()]
    assert max(logs) < 100_000, "what all said is forgotten"


def test_what_was_announced_is_forgotten(tmp_path: Path) -> None:
    """Where punctuations are passed on, the state does not grow with their number either."""
    given = {alias: stream(seed, 16, text=True) for seed, alias in enumerate("ab")}
    run = Promising(given, TWO, tmp_path, **punctuated("a", "b", purge="immediate", emitPunctuations="true"))
    sizes = []
    for _ in run.steps():
        sizes.append(sum(s.bytes for s in run.manifests()[0].root.promise_files))
    announced = [r["k"] for t in run.results for r in t.to_pylist() if r["punctuation"]]
    assert sorted(announced) == [f"key {k:06d}" for k in range(16 * OPEN)], "each once"
    assert max(sizes[8:]) <= 1.2 * max(sizes[2:8])


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
def test_the_disk_stays_flat_too(tmp_path: Path, policy: str) -> None:
    """With a budget below what is open."""
    given = {alias: stream(seed, 16) for seed, alias in enumerate(NAMES)}
    options = punctuated(memory="20k", flush=policy, blockingThreshold="2000")
    run = Promising(given, STAR, tmp_path, **options)
    states = run.states()
    run.check()
    assert sum(c["flushes"] for c in run.counts) > 5
    assert max(s["stored"] for s in states[6:]) <= 3 * LIVE
    assert max(s["rows"] for s in states[6:]) <= 1.5 * LIVE


@pytest.mark.parametrize("memory", [None, "40k"])
def test_a_chain_purges_all_its_inputs(tmp_path: Path, memory: str | None) -> None:
    given = {alias: stream(seed, 8, columns=("k", "m")) for seed, alias in enumerate(NAMES)}
    more = {} if memory is None else {"memory": memory, "blockingThreshold": "2000"}
    run = Promising(given, CHAIN, tmp_path, **punctuated(**more))
    states = run.states()
    run.check()
    assert max(s["rows"] for s in states[4:]) <= 1.5 * LIVE
    if memory is not None:
        assert sum(c["flushes"] for c in run.counts) > 0


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"memory": "20k", "blockingThreshold": "2000"},
        {"memory": "60k", "blockingThreshold": "2000", "verifyConstraints": "count"},
        {"purge": "immediate"},
    ],
)
def differential_a_loaded_state_is_the_one_that_was_left(tmp_path: Path, options: dict[str, str], text: bool) -> None:
    """A worker that resumes from what it has, one that loads every time, and one that catches up now and then."""

    def versions(name: str, forget: int) -> list[Any]:
        given = {alias: stream(seed, 10, text=text) for seed, alias in enumerate(NAMES)}
        run = Promising(given, STAR, tmp_path / name, **punctuated(**options))
        kept, found = cache.StateCache(), []
        with ExitStack() as worker:
            for number, _ in enumerate(run.steps()):
                if forget == 1:
                    cache.of_worker().clear()
                elif forget > 1 and number % forget == 0:
                    kept, other = cache.of_worker(), kept
                    worker.enter_context(cache.using(other))
                (manifest,) = run.manifests()
                figures = manifest.root
                promised = figures.promises, [(s.end, s.crc32) for s in figures.promise_files]
                found.append([figures.rows, figures.residency, figures.progress, promised])
        run.check()
        return found

    left = versions("left", 0)
    assert left == versions("loaded", 1) == versions("behind", 3)


def test_a_unique_input_needs_no_punctuation(tmp_path: Path) -> None:
    """One to many: what has met its one partner goes; what comes later is not even stored."""
    dice = np.random.default_rng(5)
    news = [pa.table({"k": np.arange(b * 50, (b + 1) * 50), "n": np.arange(50)}) for b in range(20)]
    hits = [pa.table({"k": dice.integers(0, (b + 2) * 50, 400), "n": np.arange(400)}) for b in range(20)]
    run = Run({"a": news, "b": hits}, TWO, tmp_path, **{"source.a.unique": "k"}).to_the_end()
    run.check()
    (manifest,) = run.manifests()
    assert manifest.rows_held[1] <= 400
    assert sum(c["rowsDropped"] for c in run.counts) > 5000 and sum(c["rowsPurged"] for c in run.counts) > 0


@pytest.mark.parametrize("constraint", ["clustered", "ordered"])
@pytest.mark.parametrize("text", [False, True])
def test_clusters_that_are_over_purge_the_other_input(tmp_path: Path, constraint: str, text: bool) -> None:
    """1-NC: the many come clustered; what they have left behind needs no partner any more."""

    def keys(numbers: Any) -> pa.Array:
        return pa.array([f"{n:05d}" for n in numbers] if text else numbers)

    news = [pa.table({"k": keys(np.arange(b * 50, (b + 1) * 50)), "n": np.arange(50)}) for b in range(20)]
    hits = [
        pa.table({"k": keys(np.repeat(np.arange(b * 50, (b + 1) * 50), 4)), "n": np.arange(200)}) for b in range(20)
    ]
    options = {"source.a.unique": "k", f"source.b.{constraint}": "k"}
    run = Run({"a": news, "b": hits}, TWO, tmp_path, purge="immediate", **options).to_the_end()
    run.check()
    assert run.counts[-1]["numRowsInMemory"] <= 50 and all(c["numRowsInMemory"] <= 110 for c in run.counts)
    assert sum(c["rowsDropped"] for c in run.counts) == 20 * 200, "each of the many meets its one at once"


def test_a_range_a_list_and_the_end_of_an_input(tmp_path: Path) -> None:
    def table(rows: list[dict[str, Any]]) -> pa.Table:
        fields = [("k", pa.int64()), ("n", pa.int64()), ("p", pa.bool_()), ("ks", pa.list_(pa.int64()))]
        return pa.Table.from_pylist(rows, pa.schema([*fields, ("lo", pa.int64()), ("hi", pa.int64())]))

    data = [{"k": k, "n": k, "p": False} for k in range(10)]
    said = [{"p": True, "ks": [1, 3]}, {"p": True, "lo": 5, "hi": 6}, {"p": True, "hi": 0}, {"p": True, "k": 9}]
    given = {"a": [table(data), table([]), table([])], "b": [table([]), table(said), table([{"p": True}])]}
    options = punctuated("b", purge="immediate", emitPunctuations="true")
    options |= {"source.b.punctuationValues": "ks", "source.b.punctuationRange": "lo, hi"}
    run = Promising(given, TWO, tmp_path, **options)
    states = run.states()
    assert [s["rows"] for s in states] == [10, 4, 0], "0, 1, 3, 5, 6 and 9 go, then all"
    announced = [(r["k"], r["punctuationLow"], r["punctuationHigh"]) for t in run.results for r in t.to_pylist()]
    constants, ranges = [(3, None, None), (9, None, None)], [(None, None, 1), (None, 5, 6)]
    assert announced == [*constants, *ranges, (None, None, None)], "1 has become one with all below it"


@pytest.mark.parametrize("text", [False, True])
def test_ranges_of_all_keys_are_the_end_and_announced_once(tmp_path: Path, text: bool) -> None:
    key, ends = (pa.string(), ("b", "a")) if text else (pa.int64(), (2, 1))
    schema = pa.schema([("k", key), ("n", pa.int64()), ("p", pa.bool_()), ("lo", key), ("hi", key)])
    said = [[{"p": True, "hi": ends[0]}, {"p": True, "lo": ends[1]}], [{"p": True}]]
    given = {"a": [pa.Table.from_pylist([], schema)] * 2, "b": [pa.Table.from_pylist(rows, schema) for rows in said]}
    options = punctuated("b", purge="immediate", emitPunctuations="true") | {"source.b.punctuationRange": "lo, hi"}
    done = Promising(given, TWO, tmp_path, **options).to_the_end()
    assert [sum(t.column("punctuation").to_pylist()) for t in done.results] == [1, 0]


INT = pa.int32()
FLOATS = (pa.float32(), pa.float64())


@pytest.mark.parametrize(
    ("held", "said", "ranges", "expected"),
    [
        ((INT, pa.int64()), [], [(3 * 10**9, 4 * 10**9)], []),
        ((INT, pa.int64()), [7, 3 * 10**9], [(10, 3 * 10**9), (-(10**10), 3)], [(7,), (None, 3), (10, None)]),
        ((INT, pa.decimal128(12, 2)), ["3.5"], [("10.00", "25000000.00"), ("5.5", "6.5")], [(10, 25_000_000)]),
        ((pa.decimal128(6, 2), pa.decimal128(8, 4)), ["9.0001"], [("1.0001", "1.0099")], []),
        ((pa.decimal128(6, 2), pa.decimal128(8, 4)), ["9.5"], [("1.0", "1.5")], [("9.50",), ("1.00", "1.50")]),
        (FLOATS, [0.1, 0.5], [(0.1, 0.2), (1.5, 2.5)], [(0.5,), (1.5, 2.5)]),
    ],
)
def test_what_the_output_cannot_hold_is_not_announced(
    tmp_path: Path, held: tuple[pa.DataType, ...], said: list[Any], ranges: list[Any], expected: list[Any]
) -> None:
    """NULL says that an end is open, or that all is over, so it must not stand for a key that does not fit."""

    def table(dtype: pa.DataType, rows: list[Any]) -> pa.Table:
        fields = [("k", dtype), ("n", pa.int64()), ("p", pa.bool_()), ("lo", dtype), ("hi", dtype)]
        if pa.types.is_decimal(dtype):
            rows = [{c: Decimal(v) if isinstance(v, str) else v for c, v in row.items()} for row in rows]
        return pa.Table.from_pylist(rows, pa.schema(fields))

    promised = [{"k": k, "p": True} for k in said] + [{"lo": lo, "hi": hi, "p": True} for lo, hi in ranges]
    given = {"a": [table(held[0], [])], "b": [table(held[1], promised)]}
    options = punctuated("b", purge="immediate", emitPunctuations="true") | {"source.b.punctuationRange": "lo, hi"}
    done = Promising(given, TWO, tmp_path, **options).to_the_end()
    announced = [r for t in done.results for r in t.to_pylist()]
    columns = ("punctuationLow", "punctuationHigh")
    found = [(r["k"],) if r["k"] is not None else tuple(r[c] for c in columns) for r in announced]
    assert [tuple(str(v) if isinstance(v, Decimal) else v for v in row) for row in found] == expected


def test_ranges_of_strings_that_have_become_one_are_announced_once(tmp_path: Path) -> None:
    """b has promised all from a on, c all up to a: that is the end, which is not announced again when b has ended."""
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), ("p", pa.bool_()), ("lo", pa.string())])
    ranged = pa.Table.from_pylist([{"p": True, "lo": "a"}], schema)
    over = pa.Table.from_pylist([{"p": True}], schema)
    rows = pa.Table.from_pylist([{"k": k, "n": 1, "p": False} for k in ("a", "ab")], schema)
    given = {
        "a": [rows.slice(0, 0)] * 2,
        "b": [ranged.append_column("hi", pa.nulls(1, pa.string())), over],
        "c": [rows],
    }
    given["b"][1] = given["b"][1].append_column("hi", pa.nulls(1, pa.string()))
    options = punctuated("b", purge="immediate", emitPunctuations="true")
    options |= {"source.b.punctuationRange": "lo, hi", "source.c.ordered": "k"}
    done = Promising(given, STAR, tmp_path, **options).to_the_end()
    announced = [
        tuple(r[c] for c in ("punctuationLow", "punctuationHigh")) for t in done.results for r in t.to_pylist()
    ]
    assert announced == [("a", None), (None, None)]


def test_an_input_that_is_over_and_empty_ends_a_chain(tmp_path: Path) -> None:
    """Nothing of the far end can be completed either."""
    schema = pa.schema([("k", pa.int64()), ("m", pa.int64()), ("n", pa.int64()), ("p", pa.bool_())])
    data = pa.Table.from_pylist([{"k": k, "m": k, "n": k, "p": False} for k in range(10)], schema)
    over, nothing = pa.Table.from_pylist([{"p": True}], schema), data.slice(0, 0)
    given = {"a": [data, nothing, data], "b": [data, nothing], "c": [nothing, over]}
    run = Promising(given, CHAIN, tmp_path, **punctuated(purge="immediate"))
    assert [s["rows"] for s in run.states()] == [20, 0, 0]
    assert run.counts[-1]["rowsDropped"] == 10


@pytest.mark.parametrize("promise", ["punctuation", "unique"])
def test_rows_leave_when_inputs_are_idle(tmp_path: Path, promise: str) -> None:
    """Though fewer punctuations have come than purgeEvery says: in a batch of its own, once."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("p", pa.bool_())])
    data = pa.Table.from_pylist([{"k": k, "n": k, "p": False} for k in range(10)], schema)
    said = pa.Table.from_pylist([{"k": k, "p": True} for k in range(10)] + [{"k": 99, "n": 0, "p": False}], schema)
    given = {"a": [data, data.slice(0, 0)], "b": [data.slice(0, 0), said]}
    options = punctuated("a", "b", emitPunctuations="true")
    if promise == "unique":
        given, options = {"a": [data], "b": [data]}, {"source.b.unique": "k"}
    clock = SetClock()
    run = Promising(given, TWO, tmp_path, clock, **options)
    before = run.states()[-1]["rows"]
    assert before >= 10 and run.current.latestOffset(run.offset, ReadAllAvailable()) == run.offset, "not at once"
    clock.pass_by(0.9 * IDLE_SECONDS)
    assert run.current.latestOffset(run.offset, ReadAllAvailable()) == run.offset, "nor a little later"
    clock.pass_by(0.1 * IDLE_SECONDS)
    states = run.states()
    assert len(states) == 1 and states[0]["rows"] == before - 10
    announced = [r["k"] for t in run.results for r in t.to_pylist() if r.get("punctuation")]
    assert announced == ([] if promise == "unique" else list(range(10)))
    assert run.current.latestOffset(run.offset, ReadAllAvailable()) == run.offset


def test_where_nothing_comes_any_more_rows_leave_at_once(tmp_path: Path) -> None:
    """As with availableNow."""
    given = {alias: stream(seed, 2) for seed, alias in enumerate("ab")}
    run = Promising(given, TWO, tmp_path, **punctuated("a", "b", purgeEvery="1000000"))
    run.current.prepareForTriggerAvailableNow()
    states = run.states()
    run.check()
    assert [s["purged"] > 0 for s in states] == [False, True]


def test_a_batch_read_tells_all_punctuations() -> None:
    given = {alias: stream(seed, 2) for seed, alias in enumerate("ab")}
    options = scripted(given, TWO, **punctuated("a", "b", purgeEvery="1000000", emitPunctuations="true"))
    source = MJoinDataSource(CaseInsensitiveDict(options))
    batch = source.reader(source.schema())
    found = [row for p in batch.partitions() for results in batch.read(p) for row in results.to_pylist()]
    assert sorted(row["k"] for row in found if row["punctuation"]) == list(range(2 * OPEN))
    assert not any(row["punctuation"] for row in found[: -2 * OPEN]), "after all results"


def test_keys_that_are_computed_are_not_looked_at_before_filters(tmp_path: Path) -> None:
    """A promise is about rows as they come, but a row that the filter leaves out must not fail in a cast."""
    a = [pa.table({"s": ["1", "x", "1"], "m": [1, 2, 1], "g": [True, False, True]})]
    b = [pa.table({"k": [1], "m": [1]})]
    query = "SELECT a.s, b.m FROM a JOIN b ON CAST(a.s AS BIGINT) = b.k AND a.m = b.m WHERE a.g"
    for partitions in ("1", "3"):
        options = {"source.a.ordered": "m", "verifyConstraints": "count", "partitions": partitions}
        done = Run({"a": a, "b": b}, query, tmp_path / partitions, **options).to_the_end()
        assert sum(t.num_rows for t in done.results) == 2
        assert sum(c["promisesBroken"] for c in done.counts) == 1


def test_a_punctuation_about_another_column_does_not_end_the_input(tmp_path: Path) -> None:
    a = [pa.table({"k": [1], "n": [1]}), pa.table({"k": [1], "n": [2]})]
    b = [
        pa.table({"k": pa.array([1, None], pa.int64()), "n": [1, 7], "p": [False, True]}),
        pa.table({"k": [1], "n": [2], "p": [False]}),
    ]
    run = Promising({"a": a, "b": b}, TWO, tmp_path, **punctuated("b", purge="immediate")).to_the_end()
    assert sum(t.num_rows for t in run.results) == 4


BROKEN = {
    "punctuation": ({"source.a.punctuation": "p"}, [(1, False), (1, True), (2, False), (1, False)], {"k": 1, "n": 3}),
    "unique": ({"source.a.unique": "k"}, [(1, False), (2, False), (1, False)], {"k": 1, "n": 2}),
    "clustered": ({"source.a.clustered": "k"}, [(1, False), (2, False), (1, False)], {"k": 1, "n": 2}),
    "ordered": ({"source.a.ordered": "k"}, [(1, False), (3, False), (2, False)], {"k": 2, "n": 2}),
}


@pytest.mark.parametrize("promise", sorted(BROKEN))
@pytest.mark.parametrize("size", [1, 2, 10])
@pytest.mark.parametrize("text", [False, True])
def test_a_broken_promise_is_counted_or_an_error(tmp_path: Path, promise: str, size: int, text: bool) -> None:
    """In one batch or in several, as numbers and as strings."""
    options, keys, row = BROKEN[promise]
    whole = pa.table(
        {
            "k": pa.array([str(k) if text else k for k, _ in keys]),
            "n": pa.array(range(len(keys))),
            "p": [p for _, p in keys],
        }
    )
    a = [whole.slice(at, size) for at in range(0, whole.num_rows, size)]
    b = [pa.table({"k": ["5"] if text else [5], "n": [0]})]
    counting = Run({"a": a, "b": b}, TWO, tmp_path / "count", verifyConstraints="count", **options).to_the_end()
    assert sum(c["promisesBroken"] for c in counting.counts) == 1
    shown = str({"k": str(row["k"]) if text else row["k"], "n": row["n"]})[1:-1]
    with pytest.raises(PromiseError, match=f"source 'a' broke a promise.*{shown}"):
        Run({"a": a, "b": b}, TWO, tmp_path / "fail", verifyConstraints="fail", **options).to_the_end()
    Run({"a": a, "b": b}, TWO, tmp_path / "off", **options).to_the_end()


def test_kept_promises_are_not_taken_for_broken_ones(tmp_path: Path) -> None:
    given = {alias: stream(seed, 10) for seed, alias in enumerate(NAMES)}
    options = punctuated(verifyConstraints="fail", purge="immediate", partitions="2")
    run = Promising(given, STAR, tmp_path, **options).to_the_end()
    run.check()
    assert all(c["promisesBroken"] == 0 for c in run.counts)


def test_batches_that_are_cut_off_are_made_up_for(tmp_path: Path) -> None:
    given = {alias: stream(seed, 8) for seed, alias in enumerate(NAMES)}
    whole = run(scripted(given, STAR, **punctuated()), tmp_path / "whole")
    cache.of_worker().clear()
    schedule = [LIMITED if b in (3, 5) else "ok" for b in range(8)]
    cut = run(scripted(given, STAR, **punctuated()), tmp_path / "cut", schedule)
    assert [rows(t) for t in cut] == [rows(t) if b not in (3, 5) else {} for b, t in enumerate(whole)]


def test_promises_cannot_change_at_a_restart(tmp_path: Path) -> None:
    given = {alias: stream(seed, 4) for seed, alias in enumerate(NAMES)}
    run = Promising(given, STAR, tmp_path, **punctuated())
    next(run.steps())
    run.restart(purge="immediate")
    next(run.steps())
    run.restart(**{"source.a.unique": "k"})
    with pytest.raises(StateError, match="input a: constraints was not given, is now unique k"):
        run.to_the_end()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source.a.unique": "m"}, "m is not what the join compares"),
        ({"source.a.clustered": "x"}, "source 'a' has no column 'x'"),
        ({"source.a.punctuation": "k +"}, "option 'source.a.punctuation': syntax error"),
        ({"source.a.punctuation": "k + 1"}, "not a condition on rows"),
        ({"source.a.punctuation": "p", "source.a.punctuationValues": "m"}, "has to be ARRAY<BIGINT>"),
        ({"source.a.punctuation": "p", "source.a.punctuationRange": "p, m"}, "column 'p' is BOOLEAN"),
        ({"source.a.unique": "k", "plan": "((a b) c)"}, "a join with punctuations or constraints does not"),
        (
            {"source.a.ordered": "k", "emitPunctuations": "true", "partitions": "2"},
            "emit no punctuations that are ranges",
        ),
    ],
)
def test_mistakes(tmp_path: Path, options: dict[str, str], message: str) -> None:
    given = {alias: stream(0, 1) for alias in NAMES}
    with pytest.raises(OptionError, match=message.replace("+", r"\+").replace("(", r"\(")):
        reader(scripted(given, STAR, stateLocation=str(tmp_path), **options))


def test_the_key_must_be_in_the_projection(tmp_path: Path) -> None:
    given = {alias: stream(0, 1) for alias in NAMES}
    query = STAR.replace("a.k AS k, ", "a.k + 1 AS k, ")
    with pytest.raises(OptionError, match=r"add one of a\.k, b\.k, c\.k to the SELECT"):
        reader(scripted(given, query, stateLocation=str(tmp_path), emitPunctuations="true", **punctuated()))
