"""The cost model: numbers by hand, what must always hold, and the counters of the engine."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.inputs import Stream, attribute, batch, poisson
from benchmarks.paper.plans import Plan, run
from benchmarks.paper.trees import Even, tree_join
from spark_mjoin.config import Options
from spark_mjoin.driver.costs import LOAD, Costs, Inputs, Model, Period, Work, expected_of, forecast, operators
from spark_mjoin.model import Tree
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.tree import leaves
from tests.driver.estimates import chain, every_tree, star
from tests.examples import examples

FREE = Costs(0.0, 0.0, 0.0)
TABLE_3 = Costs(175.008e-9, 426.518e-9, 49.133e-9)


def model(estimates: Even, start: list[float], end: list[float]) -> Model:
    return Model(estimates.spec, estimates, start, end)


def sets(*inputs: int) -> frozenset[int]:
    return frozenset(inputs)


def test_leaves_and_operators() -> None:
    tree: Tree = ((0, 1, 2), (3, (4, 5)))
    assert leaves(tree) == sets(0, 1, 2, 3, 4, 5)
    assert operators(tree) == [
        (sets(0, 1, 2), sets(3, 4, 5)),
        (sets(0), sets(1), sets(2)),
        (sets(3), sets(4, 5)),
        (sets(4), sets(5)),
    ]


def test_what_is_expected_of_sources_is_expected_of_their_inputs() -> None:
    query = "SELECT x.n FROM b x JOIN a y ON x.n = y.n JOIN a z ON y.m = z.m"
    options = Options.parse(
        {
            "query": query, "source.a.format": "csv", "source.b.format": "csv", "source.a.expectedRowsPerSecond": "7",
            "expectedSelectivity": "a.b: 0.5, a.a: 0.25",
        }
    )  # fmt: skip
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    spec = plan_join(options, [schema, schema])
    rates, pairs = expected_of(spec, options.settings.expected)
    assert rates == [0.0, 7.0, 7.0]
    assert pairs == {(0, 1): 0.5, (1, 2): 0.25}  # 0 and 2 have no key in common


def test_work_of_two_inputs_by_hand() -> None:
    """100 rows each, 50 values, so 200 pairs: half of them are found from either side."""
    m = model(star(2, 50), [0, 0], [100, 100])
    assert m.found(sets(0), sets(0, 1)) == pytest.approx(100)
    work = m.tree((0, 1))
    assert (work.hashes, work.moves) == (pytest.approx(200 + 200), pytest.approx(200))
    assert work.comparisons == pytest.approx(200 + LOAD * 200)


def test_work_of_three_inputs_by_hand() -> None:
    """10 rows each, 10 values: 10 pairs of any two, and 10 results, each of which is found from any of its rows."""
    m = model(star(3, 10), [0, 0, 0], [10, 10, 10])
    work = m.tree((0, 1, 2))
    assert work.hashes == pytest.approx(30 + 3 * (10 + 5))
    assert work.comparisons == pytest.approx(3 * (5 + 10 / 3) + LOAD * 3 * 15)
    tree = m.tree(((0, 1), 2))  # the pairs of 0 and 1 are stored; 2/3 of the results are found from them
    assert tree.moves == pytest.approx(30 + 10)
    assert tree.hashes == pytest.approx(40 + 20 + 10 + 10)
    assert tree.comparisons == pytest.approx(10 + 10 + LOAD * 40)
    assert tree.gathers == pytest.approx(20)
    assert m.stored(((0, 1), 2)) == pytest.approx(20)


def test_the_order_goes_the_way_with_the_fewest_combinations() -> None:
    """In a chain 0-1-2-3 rows of 1 may go to 0 or to 2 first; 0 has many partners, 2 has few."""
    m = model(chain([1, 1000, 1]), [0, 0, 0, 0], [100, 100, 100, 100])
    near, far = m.found(sets(1), sets(1, 2)), m.found(sets(1), sets(0, 1))
    assert near == pytest.approx(5) and far == pytest.approx(5000)
    others = [sets(0), sets(2), sets(3)]
    best = min(m.found(sets(1), sets(1, 2)) + m.found(sets(1), sets(1, 2, i)) for i in (0, 3))
    hashes = m.operator((sets(1), *others)).hashes
    by_origin = [
        100 + m.found(sets(0), sets(0, 1)) + m.found(sets(0), sets(0, 1, 2)),
        100 + best,
        100 + m.found(sets(2), sets(1, 2)) + min(m.found(sets(2), sets(1, 2, i)) for i in (0, 3)),
        100 + m.found(sets(3), sets(2, 3)) + m.found(sets(3), sets(1, 2, 3)),
    ]
    stored = 100 + 200 + 200 + 100
    assert hashes == pytest.approx(stored + sum(by_origin))


def output_rate(estimates: Even, costs: Costs, second: float) -> float:
    """Equation 2: results per second in the given second of one MJoin that starts with empty inputs.

    The results of that second over the time that its arrivals take, which is a second if they take less.
    """
    tree = tuple(range(len(estimates.classes)))
    m, whole = model(estimates, *([r * t for r in estimates.rates] for t in (second - 1, second))), frozenset(tree)
    return (m.after(whole) - m.before(whole)) / max(1.0, costs.seconds(m.tree(tree)))


def splitting(m: Model, first: Inputs, second: Inputs, costs: Costs) -> tuple[float, float]:
    """Equations 3 and 4: the seconds (S, D) that a split into MJoins over `first` and over `second` adds and saves.

    S is what it takes to store and join the results of two smaller MJoins, D what one MJoin over all inputs takes
    beyond what these two take. A split pays if D > S.
    """
    parts = [tuple(frozenset((i,)) for i in sorted(part)) for part in (first, second)]
    small = sum((m.operator(part) for part in parts if len(part) > 1), Work())
    whole = m.operator(tuple(frozenset((i,)) for i in sorted(first | second)))
    return costs.seconds(m.operator((first, second))), costs.seconds(whole) - costs.seconds(small)


def test_equation_2() -> None:
    """Three inputs, 2 rows a second, 4 values: 8 / 16 results in the first second, (27 - 8) times that in the third."""
    estimates = star(3, 4, [2.0, 2.0, 2.0])
    assert output_rate(estimates, FREE, 1) == pytest.approx(0.5)
    assert output_rate(estimates, FREE, 3) == pytest.approx(0.5 * (27 - 8))
    dear = Costs(0.0, 1.0, 0.0)  # six rows are stored in a second, which takes six
    assert output_rate(estimates, dear, 3) == pytest.approx(0.5 * (27 - 8) / 6)
    idle = Costs(0.0, 0.1, 0.0)
    assert output_rate(estimates, idle, 3) == pytest.approx(0.5 * (27 - 8))


@pytest.mark.parametrize("estimates", [star(4, 30), chain([1, 500, 2]), chain([300, 3, 300, 3])])
def test_equations_3_and_4_say_when_a_split_pays(estimates: Even) -> None:
    """D > S if and only if the two-level tree takes less than one MJoin: they differ by as much."""
    count = len(estimates.classes)
    m = model(estimates, [0.0] * count, [200.0] * count)
    for cut in range(1, count):
        first, second = tuple(range(cut)), tuple(range(cut, count))
        added, saved = splitting(m, frozenset(first), frozenset(second), TABLE_3)
        parts = [part if len(part) > 1 else part[0] for part in (first, second)]
        single, split = m.tree(tuple(range(count))), m.tree(tuple(parts))
        assert saved - added == pytest.approx(TABLE_3.seconds(single) - TABLE_3.seconds(split))


rows = st.floats(0, 1e4)
grown = st.floats(0.1, 1e4)


@given(
    st.sampled_from([star(4, 20), chain([5, 50, 500])]),
    st.lists(st.tuples(rows, grown), min_size=4, max_size=4),
    st.sampled_from([t for t in every_tree(range(4)) if len(leaves(t)) == 4]),
)
@examples(60)
def test_every_combination_is_found_once(estimates: Even, sizes: list[tuple[float, float]], tree: Tree) -> None:
    """What arrivals of the members find adds up to what the join gains, however its inputs are grouped."""
    m = model(estimates, [a for a, _ in sizes], [a + d for a, d in sizes])
    whole = frozenset(range(4))
    gained = m.after(whole) - m.before(whole)
    assert not isinstance(tree, int)
    assert sum(m.found(leaves(member), whole) for member in tree) == pytest.approx(gained, rel=1e-9)


@given(st.lists(st.tuples(rows, grown), min_size=3, max_size=3), st.integers(0, 2), grown)
@examples(60)
def test_more_rows_are_more_work(sizes: list[tuple[float, float]], input: int, more: float) -> None:
    estimates = star(3, 100)
    start, end = [a for a, _ in sizes], [a + d for a, d in sizes]
    longer = [e + more * (i == input) for i, e in enumerate(end)]
    for tree in every_tree(range(3)):
        less, greater = (model(estimates, start, e).tree(tree) for e in (end, longer))
        assert TABLE_3.seconds(less) < TABLE_3.seconds(greater)


@given(st.lists(grown, min_size=3, max_size=3), st.integers(1, 5))
@examples(30)
def test_the_work_of_a_time_is_that_of_its_parts(sizes: list[float], parts: int) -> None:
    estimates = star(3, 100)
    whole = model(estimates, [0, 0, 0], sizes).tree((0, 1, 2))
    cuts = [[s * k / parts for s in sizes] for k in range(parts + 1)]
    pieces = sum((model(estimates, a, b).tree((0, 1, 2)) for a, b in pairwise(cuts)), Work())
    assert pieces.moves == pytest.approx(whole.moves)
    assert pieces.comparisons == pytest.approx(whole.comparisons, rel=0.05)  # orders may change in between


def test_a_forecast_of_a_plan_that_keeps_up_follows_the_arrivals() -> None:
    estimates = star(3, 10, [5.0, 5.0, 5.0])
    coming = forecast(estimates.spec, estimates, (0, 1, 2), FREE, Period(20))
    for t in (5, 10, 20):
        assert coming.at(t) == pytest.approx((5 * t) ** 3 / 100, rel=0.01)
    assert coming.behind == 0
    assert coming.rate(10) == pytest.approx((50**3 - 45**3) / 100, rel=0.01)


def test_a_plan_that_cannot_keep_up_falls_behind_and_gives_all_in_the_end() -> None:
    """15 rows a second of which each takes 0.1 s: two thirds of a second are done in a second."""
    estimates = star(3, 10, [5.0, 5.0, 5.0])
    coming = forecast(estimates.spec, estimates, (0, 1, 2), Costs(0.0, 0.1, 0.0), Period(30))
    assert coming.behind == pytest.approx(15)
    assert coming.at(15) == pytest.approx((5 * 10) ** 3 / 100, rel=0.01)
    assert coming.at(45) == pytest.approx((5 * 30) ** 3 / 100)


def test_inputs_end() -> None:
    estimates = star(2, 10, [10.0, 1.0])
    coming = forecast(estimates.spec, estimates, (0, 1), FREE, Period(10, most=[20, 100]))
    assert coming.at(10) == pytest.approx(20 * 10 / 10)
    assert coming.at(2) == pytest.approx(20 * 2 / 10)


CASES = {
    "star": star(3, 2_000),
    "inflating star": star(3, 300),
    "four": star(4, 1_500),
    "chain": chain([1_000, 1_000]),
    "inflating chain": chain([400, 400, 400]),
}


@pytest.fixture
def larger_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted does not depend on how many rows are taken in at once."""
    monkeypatch.setattr("benchmarks.paper.plans.SLICES", 100)


@pytest.mark.usefixtures("larger_slices")
@pytest.mark.parametrize("case", CASES)
def test_the_engine_counts_what_the_model_expects(case: str) -> None:
    """Hashes and moves within 5 %, comparisons within 15 %, for every connected tree of four inputs or fewer."""
    estimates, rows = CASES[case], 2_000
    count, streams = len(estimates.classes), arriving(CASES[case], rows)
    m = model(estimates, [0.0] * count, [float(rows)] * count)
    trees = [t for t in every_tree(range(count)) if all(_linked(estimates, o) for o in operators(t))]
    assert len(trees) == {"star": 4, "inflating star": 4, "four": 26, "chain": 3, "inflating chain": 11}[case]
    for tree in trees[:: 1 if len(trees) < 12 else 3]:
        counted = run(Plan("", tree_join(estimates.classes, tree)), streams, slower=1e-3)
        expected = m.tree(tree)
        assert counted.work.moves == pytest.approx(expected.moves, rel=0.05), tree
        assert counted.work.hashes == pytest.approx(expected.hashes, rel=0.05), tree
        assert counted.work.comparisons == pytest.approx(expected.comparisons, rel=0.15), tree


@pytest.mark.usefixtures("larger_slices")
def test_the_engine_counts_what_the_model_expects_in_the_best_order() -> None:
    """Rows of the two in the middle of the chain have few partners in each other, and many at the ends."""
    estimates, rows = chain([200, 2_000, 200]), 2_000
    inner_first = Plan("", tree_join(estimates.classes, (0, 1, 2, 3)), order=[2, 1, 1, 2])
    counted = run(inner_first, arriving(estimates, rows), slower=1e-3).work
    expected = model(estimates, [0.0] * 4, [float(rows)] * 4).tree((0, 1, 2, 3))
    assert counted.moves == expected.moves
    assert counted.hashes == pytest.approx(expected.hashes, rel=0.05)
    assert counted.comparisons == pytest.approx(expected.comparisons, rel=0.15)


def arriving(estimates: Even, rows: int) -> dict[str, Stream]:
    """So many rows of each input, at equal rates."""
    streams = {}
    for i, own in enumerate(estimates.classes):
        keys = {f"k{c}": attribute(rows, int(estimates.values[c]), 100 * i + c) for c in own}
        ids = attribute(rows, rows, 7)
        streams[f"s{i + 1}"] = Stream(batch({"id": ids, **keys}), poisson(rows, 1e-3, 1 + i))
    return streams


def _linked(estimates: Even, members: tuple[frozenset[int], ...]) -> bool:
    """Whether the inputs below an operator are connected."""
    inputs = frozenset[int]().union(*members)
    reached = {min(inputs)}
    for _ in inputs:
        reached |= {i for i in inputs for j in reached if estimates.classes[i] & estimates.classes[j]}
    return reached == inputs
