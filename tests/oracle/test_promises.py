"""Punctuations and constraints against their definition: results, faults, overflow, purged rows, what is emitted."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from spark_mjoin import flush
from spark_mjoin.counts import Reason
from spark_mjoin.engine import arrival, cache
from spark_mjoin.engine.feed import Piece
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.routing import in_directories
from tests.harness import ReadAllAvailable, Rows, at_once, reader, rows, run, scripted
from tests.oracle.examples import examples
from tests.oracle.promises import (
    CHAIN,
    EXACT_FAULTS,
    LETTERS,
    PAIR,
    STAR,
    Data,
    PromiseCase,
    Punctuation,
    promise_cases,
)

POLICIES = sorted(flush.REGISTRY)
REMEMBERED = "all promises are remembered"
FORGETFUL = pytest.mark.parametrize("room", [REMEMBERED, "a few", "none"])


@contextmanager
def room_for_promises(room: str, options: dict[str, str]) -> Iterator[dict[str, str]]:
    """Options of a join, and room for so many promises, whatever the budget for its rows is."""
    if room == REMEMBERED:
        yield options
        return
    options = {"memory": "1g"} | options
    few_bytes = {"a few": 4200, "none": 0}[room]  # an index over strings has 4 KB at the least
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_mjoin.state.promises.FORGET_TO", 1.0)
        patch.setattr("spark_mjoin.driver.session.room_for_promises", lambda settings: few_bytes)
        yield options


def engine(case: PromiseCase, room: str = REMEMBERED, **options: str) -> list[pa.Table]:
    with tempfile.TemporaryDirectory() as state:
        return engine_in(Path(state), case, room, **options)


def engine_in(state: Path, case: PromiseCase, room: str, **options: str) -> list[pa.Table]:
    cache.of_worker().clear()
    with room_for_promises(room, options) as given:
        return run(scripted(case.scripts(), case.query(), **case.options(), **given), state, case.schedule)


def data_of(case: PromiseCase, tables: list[pa.Table]) -> Rows:
    if case.emit:
        tables = [t.filter(pa.compute.invert(t.column("punctuation"))) for t in tables]
    return rows([t.select([f"n{i}" for i in range(len(case.inputs))]) for t in tables])


@st.composite
def overflow_options(draw: st.DrawFn, case: PromiseCase) -> dict[str, str]:
    return {
        "memory": draw(st.sampled_from(["1", "20k", "40k"])),
        "flush": draw(st.sampled_from(POLICIES)),
        "diskFuel": draw(st.sampled_from(["1", "4k", "1g"])),
        "blockingThreshold": draw(st.sampled_from(["1", "3", "1000"])),
    }


@FORGETFUL
@given(promise_cases())
@examples(40)
def oracle_promises_change_no_result(room: str, case: PromiseCase) -> None:
    assert data_of(case, engine(case, room)) == case.results()


@FORGETFUL
@given(st.data(), promise_cases(faults=EXACT_FAULTS))
@examples(40)
def oracle_faults_with_promises(room: str, data: st.DataObject, case: PromiseCase) -> None:
    assert data_of(case, engine(case, room)) == case.results()


@FORGETFUL
@given(st.data(), promise_cases(faults=EXACT_FAULTS))
@examples(40)
def oracle_promises_under_overflow(room: str, data: st.DataObject, case: PromiseCase) -> None:
    assert data_of(case, engine(case, room, **data.draw(overflow_options(case)))) == case.results()


def left_behind(state: Path) -> list[Any]:
    """What the newest versions of all partitions say about promises, and what is in their logs."""
    found = []
    for partition in sorted(state.rglob("partition-*")):
        (routing,) = in_directories([partition.name])
        manifests = Manifests(str(partition.parent), int(partition.name.split("-")[1]), routing)
        newest = manifests.manifest(manifests.versions()[-1])
        log = [(s.start, s.end, s.level, s.crc32) for s in newest.root.promise_files]
        found.append((newest.root.promises, log, newest.done.promised.forgotten))
    return found


@FORGETFUL
@given(promise_cases(faults=EXACT_FAULTS))
@examples(25)
def differential_faults_leave_the_same_promises_behind(room: str, case: PromiseCase) -> None:
    """What is remembered, in which order, and what is forgotten is a function of the input alone."""
    with at_once(), tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        engine_in(Path(one), case, room)  # with idle time, which a slow machine has, there may be a batch that purges
        engine_in(Path(other), replace(case, schedule=()), room)
        assert left_behind(Path(one)) == left_behind(Path(other))


def matching(said: dict[str, Any], case: PromiseCase, row: dict[str, Any]) -> bool:
    """Whether a punctuation of the output is about a row of it."""
    if said.get("punctuationLow") is not None or said.get("punctuationHigh") is not None:
        low, high = said["punctuationLow"], said["punctuationHigh"]
        return (low is None or row["k"] >= low) and (high is None or row["k"] <= high)
    keys = ("k", "m") if case.shape == PAIR else ("k",)
    return all(said[key] is None or said[key] == row[key] for key in keys)


@FORGETFUL
@given(st.data(), promise_cases(shapes=(STAR, PAIR), emit=True, faults=EXACT_FAULTS))
@examples(30)
def oracle_emitted_punctuations_hold_and_come_once(room: str, data: st.DataObject, case: PromiseCase) -> None:
    options = data.draw(st.one_of(st.just({}), overflow_options(case)))
    tables = engine(case, room, **options)
    assert data_of(case, tables) == case.results()
    if not case.emit:
        return
    said: list[dict[str, Any]] = []
    for table in tables:
        emitted = table.to_pylist()
        news = [row for row in emitted if row["punctuation"]]
        assert not any(matching(p, case, row) for p in said for row in emitted if not row["punctuation"])
        if case.partitions == 1:
            last = max((at for at, row in enumerate(emitted) if not row["punctuation"]), default=-1)
            assert all(row["punctuation"] for row in emitted[last + 1 :])
            assert not any(row["punctuation"] for row in emitted[: last + 1]), "after the results of its batch"
        said += news
    if room != REMEMBERED:
        return  # what is forgotten may be emitted never, or once by each input that promises it
    again = {key for key in range(6) if _is_repeated(case, key)}  # then it may be emitted again
    if not again:
        words = [str(sorted(p.items(), key=str)) for p in said]
        assert len(set(words)) == len(words)
    if case.shape == STAR and not options and case.every == 1:
        for key in range(6):
            value = LETTERS[key] if case.text else key
            about = [p for p in said if any(v is not None for k, v in p.items() if k != "punctuation")]
            times = sum(matching(p, case, {"k": value}) for p in about)
            once = times <= 1 or key in again
            assert once or case.text, "ranges of strings may overlap with keys that were emitted before"
            if _is_over(case, key):
                event("a key is over")
                assert times or len(about) < len(said), f"{value} is over on all inputs"


def _sayings(case: PromiseCase) -> list[list[Punctuation]]:
    """The punctuations of each input."""
    return [
        [row for batch in given.batches for row in batch if isinstance(row, Punctuation)] if given.punctuated else []
        for given in case.inputs
    ]


def _is_repeated(case: PromiseCase, key: int) -> bool:
    """Whether an input promises more than once that a key does not come any more."""
    for given_, said in zip(case.inputs, _sayings(case), strict=True):
        if sum(p.matches(Data(0, key, None, 0)) for p in said) + given_.unique > 1:
            return True
    return False


def _is_over(case: PromiseCase, key: int) -> bool:
    """Whether punctuations of all inputs say that a key does not come any more."""
    sayings = _sayings(case)
    if case.partitions > 1 and any(p == Punctuation() for said in sayings for p in said):
        return False  # the end of an input is not emitted then
    return all(any(p.matches(Data(0, key, None, 0)) for p in said) for said in sayings)


@FORGETFUL
@given(st.data(), promise_cases(shapes=(STAR, STAR, PAIR, CHAIN)))
@examples(30)
def oracle_a_row_that_has_left_is_never_needed(room: str, data: st.DataObject, case: PromiseCase) -> None:
    """When rows leave, by key, no result that is not out yet has a row with that key that has come."""
    case = replace(case, partitions=1)
    options: dict[str, str] = {}
    if case.shape != CHAIN and case.window is None:  # rows that leave disk are known here by a key of all inputs
        options = data.draw(st.one_of(st.just({}), overflow_options(case)))
    emitted: Rows = Counter()
    wanted = case.results()
    known = [{row.n: row for _, row in of} for of in case.members()]
    arrived: Counter[int] = Counter()  # data rows that each input has delivered
    left: list[int] = []

    def key_of(row: Data, pair: bool) -> Any:
        parts = [LETTERS[p].encode() if case.text else p for p in ((row.k, row.m) if pair else (row.k,))]
        if not pair:
            return parts[0]
        return b"".join(len(p).to_bytes(8, "little") + p if case.text else p.to_bytes(8, "little") for p in parts)

    def check(number: int, keys: set[Any], among: set[int] | None = None) -> None:
        left.append(number)
        for combination in wanted - emitted:
            row = known[number][combination[number]]
            if among is None:
                gone = row.n < arrived[number] and key_of(row, case.shape == PAIR) in keys
            else:
                gone = row.n in among
            assert not gone, f"row {row} of input {number} has left, and {combination} is not out yet"

    def names(state: OperatorState, number: int, start: int, gone: Any) -> set[int]:
        table = state.tables[number]
        numbers = table.gather("n", start + np.flatnonzero(gone).astype(np.int32), pa.int64())
        return set(numbers.to_pylist())

    insert, depart = arrival.insert, OperatorState.depart

    def counted(state: OperatorState, number: int, piece: Piece, *rest: Any) -> Any:
        if piece.rows.schema.get_field_index("n") >= 0:
            arrived[number] += piece.rows.num_rows - piece.rows.column("n").null_count
        return insert(state, number, piece, *rest)

    def departed(state: OperatorState, number: int, rows: Any, reason: Reason, on_disk: Any = None) -> int:
        if isinstance(rows, np.ndarray):
            check(number, set(), names(state, number, state.tables[number].rows - rows.size, rows))
        if on_disk is not None and state.departed.purged[number].fresh:
            check(number, set(state.departed.purged[number].fresh[-1].column(0).to_pylist()))
        return depart(state, number, rows, reason, on_disk)

    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as state,
        room_for_promises(room, options) as budget,
    ):
        patch.setattr(arrival, "insert", counted)
        patch.setattr(OperatorState, "depart", departed)
        cache.of_worker().clear()
        everything = scripted(case.scripts(), case.query(), stateLocation=state, **case.options(), **budget)
        current = reader(everything)
        start = current.initialOffset()
        while (end := current.latestOffset(start, ReadAllAvailable())) != start:
            for partition in current.partitions(start, end):
                for batch in current.read(partition):
                    emitted += data_of(case, [pa.table(batch)])
            start = end
    assert emitted == wanted
    event("rows have left" if left else "no row has left")
