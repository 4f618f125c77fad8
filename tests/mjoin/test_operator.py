"""Probing sequences: which tables are visited, when a sequence ends, and that output is bounded."""

from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival
from spark_mjoin.engine.feed import Piece
from spark_mjoin.evidence import WorkCounts
from spark_mjoin.mjoin import operator
from spark_mjoin.mjoin.bound import pooled
from spark_mjoin.mjoin.operator import Joining, materialise
from spark_mjoin.mjoin.orders import probe_order
from spark_mjoin.model import JoinSpec
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state import columns
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.slots import ALL_SLOTS

SCHEMA = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("s", pa.string())])
STAR = "SELECT a.k, b.s FROM a, b, c WHERE a.k = b.k AND b.k = c.k"
CHAIN = "SELECT a.k, b.s FROM a, b, c WHERE a.k = b.k AND b.j = c.j"
TRIANGLE = "SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.j = c.j AND c.s = a.s AND a.k < c.k + b.k"


def plan(query: str) -> JoinSpec:
    options = Options.parse({"query": query, **{f"source.{alias}.format": "arrow" for alias in "abc"}})
    return plan_join(options, [SCHEMA] * 3)


def table(keys: list[int], others: list[int] | None = None) -> pa.RecordBatch:
    others = keys if others is None else others
    return pa.RecordBatch.from_pydict({"k": keys, "j": others, "s": [f"s{k}" for k in keys]}, SCHEMA)


def arrive(state: OperatorState, number: int, batch: pa.RecordBatch) -> tuple[int, WorkCounts]:
    counts = BatchCounts([0] * 3)
    found = sum(len(bound[0]) for bound in arrival.arrive(state, number, Piece.whole(number, batch), counts))
    return found, counts.work()


def test_smallest_table_is_visited_first() -> None:
    spec = plan(STAR)
    assert [step.target for step in probe_order(spec, 0, [9, 5, 2]).steps] == [2, 1]
    assert [step.target for step in probe_order(spec, 1, [1, 5, 2]).steps] == [0, 2]


def test_a_table_is_reached_only_through_what_is_bound() -> None:
    order = probe_order(plan(CHAIN), 0, [9, 5, 0])
    assert [step.target for step in order.steps] == [1, 2]  # c is smaller, but only b leads to it
    assert [step.suppliers for step in order.steps] == [(0,), (1,)]


def test_the_closing_edge_of_a_cycle_narrows_the_probe() -> None:
    order = probe_order(plan(TRIANGLE), 0, [0, 1, 2])
    assert [len(step.classes) for step in order.steps] == [1, 2]
    assert [step.residuals for step in order.steps] == [(), (0,)]


def test_a_probe_that_finds_nothing_ends_the_sequence() -> None:
    state = OperatorState.alone(plan(STAR))
    arrive(state, 1, table([1, 2, 3]))
    found, work = arrive(state, 0, table([1, 2]))
    assert (found, work.probes) == (0, 0)  # c is empty and comes first: b is not even hashed for
    arrive(state, 2, table([9, 9, 9, 9]))
    found, work = arrive(state, 0, table([1, 2, 3, 4]))
    assert work.probes == 4 + 3  # four rows probe b; the three that match go on to c, which has none
    assert found == 0


def test_edges_count_what_probes_see() -> None:
    state = OperatorState.alone(plan(CHAIN))
    arrive(state, 1, table([1, 1, 2], [7, 8, 9]))
    arrive(state, 2, table([0, 0], [8, 8]))
    found, work = arrive(state, 0, table([1, 5]))
    assert found == 2
    to_b, to_c = work.edges[0, frozenset({0}), 1], work.edges[0, frozenset({0, 1}), 2]
    assert (to_b.probes, to_b.matches, to_b.candidates) == (2, 2, 6)
    assert (to_c.probes, to_c.matches, to_c.candidates) == (2, 2, 4)


@pytest.mark.parametrize("capacity", [1, 2, 3, 1000])
def test_an_inflating_join_comes_in_bounded_pieces(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "CHUNK_ROWS", capacity)
    state = OperatorState.alone(plan(STAR))
    state.tables[1].append(arrival.admit(state.spec, 1, table([7] * 20), ALL_SLOTS))
    state.tables[2].append(arrival.admit(state.spec, 2, table([7] * 10), ALL_SLOTS))
    state.tables[0].append(arrival.admit(state.spec, 0, table([7] * 5), ALL_SLOTS))
    order = probe_order(state.spec, 0, [5, 20, 10])
    pieces = list(Joining(state.spec, state.tables, WorkCounts()).produce(order, 0, 5))
    assert max(len(piece[0]) for piece in pieces) <= capacity
    found = Counter((a, b, c) for p in pieces for a, b, c in zip(p[0], p[1], p[2], strict=True))
    assert found == Counter(product(range(5), range(20), range(10)))


def test_pieces_are_pooled_before_payload_is_gathered() -> None:
    small = [{0: np.array([i], np.int32), 1: np.array([-i], np.int32)} for i in range(100)]
    (whole,) = pooled(iter(small))
    assert whole[0].tolist() == list(range(100))
    assert whole[1].tolist() == [-i for i in range(100)]


def test_large_strings_split_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    state = OperatorState.alone(plan(STAR))
    for number in range(3):
        arrive(state, number, table([1, 2, 3, 4]))
    bound = {i: np.arange(4, dtype=np.int32) for i in range(3)}
    (whole,) = materialise(state.spec, state.tables, bound)
    monkeypatch.setattr(columns, "MAX_GATHERED_BYTES", 3)
    pieces = list(materialise(state.spec, state.tables, bound))
    assert len(pieces) == 4
    assert pa.Table.from_batches(pieces).to_pylist() == pa.Table.from_batches([whole]).to_pylist()


def test_large_strings_split_a_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    state = OperatorState.alone(plan(STAR + " AND a.s <> concat(b.s, 'x')"))
    monkeypatch.setattr(columns, "MAX_GATHERED_BYTES", 3)
    for number in range(3):
        found, _ = arrive(state, number, table([1, 2, 3, 4, 4]))
    assert found == 3 + 8
