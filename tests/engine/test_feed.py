"""Feeds: pieces and their numbers, and that a join is the same whether tasks get all rows or their own."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.watermarks import newest
from spark_mjoin.engine import cache
from spark_mjoin.engine.feed import Piece
from spark_mjoin.model import WHOLE
from spark_mjoin.state.admitted import sampled
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes
from tests.feeds import ALL_ROWS, OWN_ROWS
from tests.harness import CRASH, LIMITED, OK, ReadAllAvailable, Rows, fed, reader, rows, run, scripted
from tests.oracle.shedding import decisions

# --- pieces ----------------------------------------------------------------------------------------------------------


@st.composite
def pieces(draw: st.DrawFn) -> tuple[Piece, list[tuple[int, int, bool]]]:
    """A piece, and of each of its rows the place in the stretch, the number, and whether it is a punctuation."""
    marked = draw(st.lists(st.sampled_from([False, False, True]), min_size=1, max_size=12))
    own, first = draw(st.booleans()), draw(st.integers(0, 5))
    has = [m or not own or draw(st.booleans()) for m in marked]
    numbers = [first + sum(not m for m in marked[:at]) for at in range(len(marked))]
    known = [(at, numbers[at], m) for at, m in enumerate(marked) if has[at]]
    table = pa.RecordBatch.from_pydict({"at": pa.array([at for at, _, _ in known], pa.int64())})
    marks = np.array([m for _, _, m in known], np.bool_)
    places = np.array([at for at, _, _ in known], np.int64) if own else None
    return Piece(0, table, len(marked), first, marks if marks.any() else None, places, own=own), known


def shown(piece: Piece) -> list[tuple[int, int, bool]]:
    marked = np.zeros(piece.rows.num_rows, np.bool_) if piece.marked is None else piece.marked
    found = zip(piece.rows["at"].to_pylist(), piece.all_numbers().tolist(), marked.tolist(), strict=True)
    assert piece.data()["at"].to_pylist() == piece.rows["at"].filter(pa.array(~marked)).to_pylist()
    assert piece.data_numbers().tolist() == piece.all_numbers()[~marked].tolist()
    assert piece.marked is None or piece.marked.any()
    return list(found)


@given(pieces(), st.data())
def test_numbers_stay_when_a_piece_is_cut_and_when_some_rows_go_ahead(
    made: tuple[Piece, list[tuple[int, int, bool]]], data: st.DataObject
) -> None:
    piece, known = made
    assert shown(piece) == known
    at = data.draw(st.integers(0, piece.size))
    one, other = piece.cut(at)
    assert shown(one) == [row for row in known if row[0] < at] and shown(other) == [r for r in known if r[0] >= at]
    assert (one.size, other.size) == (at, piece.size - at) and one.delivered + other.delivered == piece.delivered
    ahead = np.array([not m and data.draw(st.booleans()) for _, _, m in known], np.bool_)
    first, rest = piece.part(ahead)
    assert shown(first) == [row for row, is_first in zip(known, ahead, strict=True) if is_first]
    assert shown(rest) == [row for row, is_first in zip(known, ahead, strict=True) if not is_first]
    assert first.delivered + rest.delivered == piece.delivered


def test_the_newest_event_time_is_that_of_any_partition() -> None:
    assert newest([[3, None, None], [None, 7, None], [5, 6, None]]) == [5, 7, None]


# --- both kinds ------------------------------------------------------------------------------------------------------

QUERY = """SELECT a.k, a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k
           WHERE a.v < 9 AND b.n % 3 <> c.n % 3"""
BATCHES, ROWS, KEYS = 5, 40, 12
TIMED = {f"source.{a}.{o}": v for a in "abc" for o, v in (("timestamp", "ts"), ("watermark", "1 microsecond"))}
SAID = {f"source.{a}.punctuation": "over" for a in "abc"}
CASES: dict[str, dict[str, str]] = {
    "plain": {},
    "tree": {"plan": "((a b) c)"},
    "overflow": {"memory": "30k", "blockingThreshold": "1"},
    "windows in rows": {"window": "15 rows"},
    "windows in rows, overflow": {"window": "15 rows", "memory": "30k"},
    "windows in time": {"window": "25 microseconds", **TIMED},
    "windows in time, active": {"window": "25 microseconds", "expiry": "active", **TIMED},
    "punctuations": {**SAID, "emitPunctuations": "true", "purgeEvery": "2"},
    "punctuations, verified": {**SAID, "verifyConstraints": "count"},
    "punctuations, turns by value": {**SAID, "tupleScheduling": "value", "schedulingQuota": "11"},
    "clustered": {"source.a.clustered": "k", "verifyConstraints": "count"},
    "turns by chance": {"streamScheduling": "random", "schedulingQuota": "9"},
    "shed": {"overflow": "shed"},
    "shed, windows in rows": {"overflow": "shed", "window": "15 rows"},
    "shrunk": {"overflow": "shrink", "memory": "30k", "window": "25 microseconds", **TIMED},
    "passed by": {"overflow": "shed", "memory": "40k"},
}
SCRIPT = [(WHOLE, WHOLE // 2, WHOLE), (WHOLE // 3, WHOLE, WHOLE // 2), (WHOLE // 4, WHOLE // 2, WHOLE)]


def stream(seed: int, punctuated: bool) -> list[pa.Table]:
    """Keys come in any order, some are NULL, and what is over comes no more; event times are in some disorder."""
    random, out, number, over = np.random.Generator(np.random.Philox(seed)), [], 0, set[int]()
    for batch in range(BATCHES):
        made = []
        for at in range(ROWS):
            key = int(random.integers(0, KEYS))
            if punctuated and at % 13 == 12:
                over.add(key)
                made.append({"k": key, "over": True})
                continue
            row = {"n": number, "k": None if at % 17 == 5 else key, "v": int(random.integers(0, 10)), "over": False}
            number += 1
            if key in over:
                row["k"] = None
            made.append(row | {"ts": 10 * batch + int(random.integers(0, 15))})
        types = [("n", pa.int64()), ("k", pa.int64()), ("v", pa.int64()), ("over", pa.bool_())]
        out.append(pa.Table.from_pylist(made, pa.schema([*types, ("ts", pa.timestamp("us", "UTC"))])))
    return out


def options_of(name: str, state: Path, partitions: int = 3) -> dict[str, str]:
    given_ = CASES[name]
    scripts = {alias: stream(seed, bool(SAID.keys() & given_.keys())) for seed, alias in enumerate("abc")}
    return scripted(scripts, QUERY, partitions=str(partitions), stateLocation=str(state), **given_)


def batches(options: dict[str, str], kind: str) -> Iterator[tuple[Rows, dict[str, str], list[Manifest]]]:
    """Of each batch the results, the metrics and the manifests of all partitions; every other state is loaded."""
    with fed(kind), decisions(SCRIPT, (0.4, 0.3, 0.3)):
        current = reader(options)
        start, number = current.initialOffset(), 0
        while (end := json.loads(json.dumps(current.latestOffset(start, ReadAllAvailable())))) != start:
            if number % 2:
                cache.of_worker().clear()
            found = [b for p in current.partitions(start, end) for b in current.read(p)]
            location, routing = f"{options['stateLocation']}/{end['query']}", Routing(int(options["partitions"]))
            stores = [Manifests(location, p, routing) for p in range(routing.partitions)]
            manifests = [store.manifest(end["version"]) for store in stores]
            metrics = current.reportLatestOffset()["metrics"]
            yield rows(pa.Table.from_batches(found, current.session.spec.schema)), metrics, manifests
            start, number = end, number + 1


MOMENTS = ("Ms", "PerSecond", "CacheHits")  # metrics that depend on clocks and on workers

MOMENTARY = [
    "seen",
    "looked",
    "began",
    "segments",
    "bytes",  # of segments
    "promise_files",
    "crc32",
    "ancestors",
    "identities",
    "windows",
    "shed",
]  # of manifests


def lasting(value: Any, left_out: Sequence[str] = ()) -> Any:
    """A manifest without what depends on a clock or on an attempt's name, or is a task's part of what all see."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if k not in (*MOMENTARY, *left_out) and not k.endswith(("_ms", "_hits"))}
        return {k: lasting(v, left_out) for k, v in kept.items()}
    if isinstance(value, list | tuple):
        return [lasting(v, left_out) for v in value]
    return "" if isinstance(value, str) and value.endswith((".arrow", ".json")) else value


@pytest.mark.parametrize("name", CASES)
def differential_own_rows_give_what_all_rows_give(name: str, tmp_path: Path) -> None:
    """Results, watermarks, metrics, and what every partition commits: rows, progress, admission, promises, groups."""
    every = list(batches(options_of(name, tmp_path / "all"), ALL_ROWS))
    own = list(batches(options_of(name, tmp_path / "own"), OWN_ROWS))
    assert [found for found, _, _ in own] == [found for found, _, _ in every] and sum(len(f) for f, _, _ in own) > 50
    for (_, metrics, manifests), (_, expected, known) in zip(own, every, strict=True):
        # rows of other partitions are awaited too, so there are more turns that bring nothing
        left_out = ("events", "cohorts") if "tupleScheduling" in CASES[name] else ()
        assert lasting(manifests, left_out) == lasting(known, left_out)
        same = [m for m in expected if not m.endswith(MOMENTS) and "EffectiveWindow" not in m]
        assert {m: metrics[m] for m in same} == {m: expected[m] for m in same}
        if "window" in CASES[name] and "ts" in CASES[name].values():
            progress = [[m.root.progress.seen for m in of] for of in (manifests, known)]
            assert newest(progress[0]) == newest(progress[1])
    counted = {
        m: sum(int(metrics[m]) for _, metrics, _ in own) for m in ("rowsShed", "numInputPunctuations", "rowsLate")
    }
    assert bool(counted["rowsShed"]) == ("overflow" in CASES[name])
    assert counted["numInputPunctuations"] == (3 * BATCHES * (ROWS // 13) if SAID.keys() & CASES[name].keys() else 0)
    assert not TIMED.keys() & CASES[name].keys() or counted["rowsLate"]


@pytest.mark.parametrize("kind", [ALL_ROWS, OWN_ROWS])
@pytest.mark.parametrize("name", ["shed", "shed, windows in rows"])
def test_a_row_is_shed_by_its_number_and_counted_once(name: str, kind: str, tmp_path: Path) -> None:
    """Whichever partition it would be in, and in whichever order rows are taken."""
    delivered, shed = [0, 0, 0], 0
    for (_, metrics, manifests), parts in zip(
        batches(options_of(name, tmp_path), kind), [*SCRIPT, SCRIPT[-1], SCRIPT[-1]], strict=True
    ):
        left_out = [~sampled(i, np.arange(delivered[i], delivered[i] + ROWS), parts[i]) for i in range(3)]
        assert int(metrics["rowsShed"]) == sum(int(out.sum()) for out in left_out)
        delivered = [d + ROWS for d in delivered]
        for manifest in manifests:
            assert [a.delivered for a in manifest.root.admitted] == delivered
        shed += int(metrics["rowsShed"])
    assert shed


@pytest.mark.parametrize("kind", [ALL_ROWS, OWN_ROWS])
@pytest.mark.parametrize("partitions", [2, 5])
def test_watermarks_come_from_the_partition_that_has_the_newest_row(kind: str, partitions: int, tmp_path: Path) -> None:
    """Which need not be the first, nor one that keeps the row: here it has no key, or a filter drops it."""
    keys = np.arange(1000)
    slots = of_hashes(hash_array(pa.array(keys)))
    early, late = (int(keys[Routing(partitions).slots(p).have(slots)][0]) for p in (0, partitions - 1))

    def table(*given_: tuple[int | None, int, int]) -> pa.Table:
        k, v, ts = (list(of) for of in zip(*given_, strict=True))
        return pa.table({"k": pa.array(k, pa.int64()), "v": v, "ts": pa.array(ts, pa.timestamp("us", "UTC"))})

    first = [table((early, 0, 10), (late, 0, 90)), table((early, 0, 20), (None, 0, 95)), table((early, 0, 30))]
    second = [table((early, 0, 11), (late, 0, 50)), table((early, 0, 51), (early, 7, 99)), table((early, 0, 95))]
    query = "SELECT a.k, a.ts AS x, b.ts AS y FROM a JOIN b ON a.k = b.k WHERE b.v < 5"
    timed = {f"source.{a}.{o}": v for a in "ab" for o, v in (("timestamp", "ts"), ("watermark", "1 microsecond"))}
    options = scripted(
        {"a": first, "b": second}, query, partitions=str(partitions), stateLocation=str(tmp_path), **timed
    )
    found, marks = [], []
    with fed(kind):
        current = reader({**options, "window": "1 hour"})
        start = current.initialOffset()
        while (end := current.latestOffset(start, ReadAllAvailable())) != start:
            marks.append(list(end["plan"]["windows"]["watermarks"]))
            found += [pa.table(b) for p in current.partitions(start, end) for b in current.read(p)]
            start = end
    assert marks == [[None, None], [89, 49], [94, 98]]
    assert sum(t.num_rows for t in found) == 3  # early: (10, 11), (10, 51); late: (90, 50). The rest is late


@pytest.mark.parametrize("kind", [ALL_ROWS, OWN_ROWS])
@pytest.mark.parametrize("partitions", [1, 2, 5])
@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("a.k = b.k", {"source.a.clustered": "k"}),
        ("a.k = b.k", {"source.a.ordered": "k"}),
        ("a.k = b.k", {"source.a.punctuation": "over"}),
        ("a.k + 0 = b.k AND a.v = b.v", {"source.a.punctuation": "over"}),  # the key of partitions is computed
    ],
)
def test_a_broken_promise_is_counted_once(
    key: str, options: dict[str, str], partitions: int, kind: str, tmp_path: Path
) -> None:
    """As many as where one partition sees all rows, at the same moments."""
    tables = {alias: stream(seed, alias == "a" and "punctuation" in str(options)) for seed, alias in enumerate("ab")}
    said = pa.Table.from_pylist([{"v": 3, "over": True}, {"k": 5, "over": True}], tables["a"][0].schema)
    if "punctuation" in str(options):
        tables["a"][1] = pa.concat_tables([said, tables["a"][1]])
    query = f"SELECT a.n AS x, b.n AS y FROM a JOIN b ON {key}"
    found = []
    for number, of in ((1, ALL_ROWS), (partitions, kind)):
        state = tmp_path / f"{number} {of}"
        given_ = scripted(tables, query, verifyConstraints="count", partitions=str(number), **options)
        every = list(batches({**given_, "stateLocation": str(state)}, of))
        found.append([int(metrics["promisesBroken"]) for _, metrics, _ in every])
    assert found[0] == found[1] and sum(found[0]) > 5


@pytest.mark.parametrize("name", CASES)
def differential_what_is_made_up_for_is_the_same_in_both_kinds(name: str, tmp_path: Path) -> None:
    """Batches that no task came to the end of are read again, with the numbers that their rows had."""
    found = []
    for kind in (ALL_ROWS, OWN_ROWS):
        state = tmp_path / kind
        with fed(kind), decisions(SCRIPT, (0.4, 0.3, 0.3)):
            cache.of_worker().clear()
            found.append([rows(t) for t in run(options_of(name, state), state, [OK, LIMITED, LIMITED, CRASH, OK])])
    assert found[0] == found[1] and sum(map(len, found[0])) > 20
