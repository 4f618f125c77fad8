"""Statistics: what probes count comes out as the selectivities that the data have, from whichever side it was seen."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival
from spark_mjoin.engine.arrival import Gate, Own
from spark_mjoin.engine.feed import Piece
from spark_mjoin.evidence import EdgeCounts, Edges, faded, kept_edges
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import JoinSpec
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import ALL_SLOTS, Slots
from tests.manifests import operator

COLUMNS = ("k", "j", "s", "v")
STAR = "a.k = b.k AND b.k = c.k"
CHAIN = "a.k = b.k AND b.j = c.j"
TRIANGLE = "a.k = b.k AND b.j = c.j AND c.s = a.s"
A, B, C = 0, 1, 2


def plan(where: str, aliases: str = "abc") -> JoinSpec:
    query = f"SELECT a.v FROM {', '.join(aliases)} WHERE {where}"
    options = Options.parse({"query": query, **{f"source.{alias}.format": "arrow" for alias in aliases}})
    return plan_join(options, [pa.schema([(c, pa.int64()) for c in COLUMNS])] * len(aliases))


def only(*inputs: int) -> frozenset[int]:
    return frozenset(inputs)


def draw(seed: int, rows: int, **values: int) -> pa.RecordBatch:
    """Rows whose column c is uniform over values[c] values."""
    random = np.random.Generator(np.random.Philox(seed))
    return pa.RecordBatch.from_pydict({c: random.integers(0, values.get(c, 10), rows) for c in COLUMNS})


def joined(spec: JoinSpec, batches: list[tuple[int, pa.RecordBatch]], slots: Slots = ALL_SLOTS) -> OperatorState:
    """The state after some arrivals, each in a batch of its own."""
    state = OperatorState.alone(spec)
    for input, rows in batches:
        counts = BatchCounts([0] * len(spec.inputs))
        for _ in arrival.arrive(state, input, Piece.whole(input, rows), counts, Gate(Own(slots))):
            continue
        state.probed.learn(counts.work().edges, sum(counts.rows_in))
    return state


def statistics(state: OperatorState) -> Statistics:
    return Statistics.of(state.spec, [float(table.rows) for table in state.tables], state.probed.edges)


def streams(
    values: Mapping[int, Mapping[str, int]], batches: int = 10, rows: int = 300
) -> list[tuple[int, pa.RecordBatch]]:
    return [(i, draw(100 * n + i, rows, **values[i])) for n in range(batches) for i in values]


@pytest.mark.parametrize("seed", range(3))
def test_a_star(seed: int) -> None:
    inputs = {A: {"k": 200}, B: {"k": 200}, C: {"k": 200}}
    seen = statistics(
        joined(plan(STAR), [(i, draw(1000 * seed + n, 300, **inputs[i])) for n, i in enumerate([A, B, C] * 9)])
    )
    for pair in ((A, B), (B, C), (C, A)):
        assert seen.selectivity(*pair) == pytest.approx(1 / 200, rel=0.1)
    assert seen.fan_out(A, only(A), B) == pytest.approx(2700 / 200, rel=0.1)
    assert seen.fan_out(A, only(A, B), C) == pytest.approx(2700 / 200, rel=0.1)
    assert seen.size(only(A, B, C)) == pytest.approx(2700**3 / 200**2, rel=0.2)


def test_keys_of_one_input_are_contained_in_those_of_another() -> None:
    """A row of a finds b or c in one of ten cases; once it has found one, it finds the other too."""
    inputs = {A: {"k": 1000}, B: {"k": 100}, C: {"k": 100}}
    seen = statistics(joined(plan(STAR), streams(inputs)))
    assert seen.selectivity(A, B) == pytest.approx(1 / 1000, rel=0.15)
    assert seen.selectivity(B, C) == pytest.approx(1 / 100, rel=0.1)
    assert seen.fan_out(A, only(A, B), C) == pytest.approx(30, rel=0.15)
    assert seen.fan_out(A, only(A, C), B) == pytest.approx(30, rel=0.15)


def test_a_chain_and_a_cycle() -> None:
    values = {i: {"k": 50, "j": 500, "s": 20} for i in (A, B, C)}
    chain = statistics(joined(plan(CHAIN), streams(values)))
    assert chain.selectivity(A, B) == pytest.approx(1 / 50, rel=0.1)
    assert chain.selectivity(B, C) == pytest.approx(1 / 500, rel=0.1)
    assert chain.selectivity(A, C) == 1.0  # they share nothing
    assert chain.fan_out(A, only(A, B), C) == pytest.approx(3000 / 500, rel=0.1)
    cycle = statistics(joined(plan(TRIANGLE), streams(values)))
    for pair, count in (((A, B), 50), ((B, C), 500), ((C, A), 20)):
        assert cycle.selectivity(*pair) == pytest.approx(1 / count, rel=0.2)
    assert cycle.size(only(A, B, C)) == pytest.approx(3000**3 / 50 / 500 / 20, rel=0.3)


def test_what_one_side_saw_tells_about_the_other() -> None:
    spec = plan(STAR)
    edges = {(A, only(A), B): EdgeCounts(1000, 20, 1000 * 500, 20)}
    seen = Statistics.of(spec, [500, 500, 500], edges)
    assert seen.fan_out(A, only(A), B) == pytest.approx(0.02, rel=0.25)
    assert seen.fan_out(B, only(B), A) == pytest.approx(0.02, rel=0.25)
    assert seen.evidence(B, A) == 1000 and seen.evidence(B, C) == 0
    assert seen.fan_out(A, only(A), C) < 0.1  # the class is the same
    assert Statistics.of(spec, [500, 500, 500]).fan_out(A, only(A), C) == 1  # nothing is known: as if keys


def test_a_measured_context_stands_against_what_pairs_say() -> None:
    """Every row of a has ten matches in b and in c, but never both: what pairs tell is far off."""
    keys = {
        A: list(range(100)),
        B: [k for k in range(50) for _ in range(20)],
        C: [k + 50 for k in range(50) for _ in range(20)],
    }
    rows = {i: pa.RecordBatch.from_pydict({c: pa.array(of, pa.int64()) for c in COLUMNS}) for i, of in keys.items()}
    seen = statistics(joined(plan(STAR), [(B, rows[B]), (C, rows[C]), *[(A, rows[A])] * 5]))
    assert seen.fan_out(A, only(A), B) == pytest.approx(10, rel=0.1)
    assert seen.fan_out(A, only(A, B), C) < 0.5
    assert seen.expected(A)[only(A, B, C)] < 5


def test_fresh_evidence_from_the_other_side_outweighs_what_is_stale() -> None:
    rows = [1000.0] * 3
    stale, fresh = (A, only(A), B), (B, only(B), A)
    edges: Edges = {stale: EdgeCounts(1000, 5000, 1e6, 5000)}
    assert Statistics.of(plan(STAR), rows, edges).fan_out(A, only(A), B) == pytest.approx(5, rel=0.05)
    for _ in range(12):
        edges = faded(edges, 1000)
        edges.setdefault(fresh, EdgeCounts()).add(EdgeCounts(1000, 10, 1e6, 10))
    assert Statistics.of(plan(STAR), rows, edges).fan_out(A, only(A), B) < 0.5


def test_counts_fade_by_the_batch_and_small_batches_fade_little() -> None:
    edges: Edges = {(A, only(A), B): EdgeCounts(100, 10, 1000, 10)}
    assert faded(edges, 0) == edges
    assert faded(edges, 5000)[A, only(A), B] == EdgeCounts(75, 7.5, 750, 7.5)
    assert faded(edges, 10)[A, only(A), B].probes > 99
    for _ in range(40):
        edges = faded(edges, 1000)
    assert not edges


def test_little_evidence_moves_little() -> None:
    one = {(A, only(A), B): EdgeCounts(1, 0, 100, 0)}
    many = {(A, only(A), B): EdgeCounts(1000, 0, 100_000, 0)}
    rows = [100.0, 100.0, 100.0]
    assert 0.5 < Statistics.of(plan(STAR), rows, one).fan_out(A, only(A), B) < 1
    assert Statistics.of(plan(STAR), rows, many).fan_out(A, only(A), B) < 0.01


def test_what_is_given_counts_until_there_is_evidence() -> None:
    spec = plan(CHAIN)
    expected = Statistics.of(spec, [100, 200, 300], given={(B, A): 0.05, (B, C): 0.001}, rates=[1, 2, 3])
    assert expected.selectivity(A, B) == expected.selectivity(B, A) == 0.05
    assert expected.size(only(A, B, C)) == pytest.approx(100 * 200 * 300 * 0.05 * 0.001)
    assert expected.size(only(A, B), [10, 10, 0]) == pytest.approx(5)
    assert expected.fan_out(A, only(A), B) == pytest.approx(10)
    assert expected.rates == (1, 2, 3)
    edges = {(A, only(A), B): EdgeCounts(1000, 200, 200_000, 200)}
    assert Statistics.of(spec, [100, 200, 300], edges, given={(A, B): 0.05}).selectivity(A, B) == pytest.approx(
        0.001, rel=0.3
    )


def test_residuals_count_for_what_goes_on_and_not_for_what_is_looked_at() -> None:
    seen = statistics(joined(plan(STAR + " AND a.v < b.v"), streams({i: {"k": 100} for i in (A, B, C)})))
    assert seen.passing(only(A), B) == pytest.approx(0.45, rel=0.05)
    assert seen.passing(only(A), C) == 1
    assert seen.fan_out(A, only(A), B) == pytest.approx(0.45 * 30, rel=0.1)
    assert seen.size(only(A, B, C)) == pytest.approx(0.45 * 3000**3 / 100**2, rel=0.2)
    assert seen.fan_out(A, only(A, C), B) == pytest.approx(0.45 * 30, rel=0.1)  # in whatever step it is decided


def test_partitions_give_the_statistics_of_the_whole() -> None:
    spec, arrivals = plan(STAR), streams({i: {"k": 150} for i in (A, B, C)})
    parts = [joined(spec, arrivals, Routing(3).slots(p)) for p in range(3)]
    manifests = [operator(tuple(part.totals), kept_edges(part.probed.edges)) for part in parts]
    seen = Statistics.of_manifests(spec, [*manifests, None])
    whole = statistics(joined(spec, arrivals))
    assert seen.selectivity(A, B) == pytest.approx(whole.selectivity(A, B), rel=0.05)
    assert seen.fan_out(A, only(A), B) == pytest.approx(3000 / 150, rel=0.1)


def test_size_and_fan_out_agree_without_measurements() -> None:
    spec = plan("a.k = b.k AND b.j = c.j AND c.s = d.s AND d.k = a.k", "abcd")
    assumed = Statistics.of(spec, [10, 20, 30, 40], given={(0, 1): 0.1, (1, 2): 0.2, (2, 3): 0.3, (0, 3): 0.05})
    for bound, target in ((only(0), 1), (only(0, 1), 2), (only(0, 1), 3), (only(0, 1, 3), 2)):
        ratio = assumed.size(bound | {target}) / assumed.size(bound)
        assert assumed.fan_out(0, bound, target) == pytest.approx(ratio)
        assert assumed.expected(0)[bound | {target}] == pytest.approx(assumed.size(bound | {target}) / 10)
