"""Memory over inputs: the paper's closed forms for two of them, and for three against a grid of all divisions."""

import math
import time
from itertools import product
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.config import Options
from spark_mjoin.driver.admission import DelayLimit, Load
from spark_mjoin.driver.allocation import Flexible, decide, divide, divide_all, results
from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.table import Table
from tests.examples import examples
from tests.harness import reader

NO_LIMIT = [1e12] * 3


def test_all_memory_goes_to_the_slower_of_two_inputs() -> None:
    """Equation 13, with the figures of figure 9; a window of zero is one whose rows only probe."""
    assert divide([10, 50], NO_LIMIT[:2], [1, 1], 1000) == [1000, 0]
    assert divide([50, 10], NO_LIMIT[:2], [1, 1], 1000) == [0, 1000]


def test_what_the_slower_cannot_use_goes_to_the_other() -> None:
    assert divide([10, 50], [600, 3000], [1, 1], 1000) == [600, 400]
    assert divide([10, 50], [600, 300], [1, 1], 1000) == [600, 300]


def test_smaller_rows_are_worth_more_memory() -> None:
    assert divide([10, 20], NO_LIMIT[:2], [400, 100], 1000) == [0, 1000]


def test_rows_of_three_equal_inputs_share_equally() -> None:
    assert divide([5, 5, 5], NO_LIMIT, [1, 1, 1], 300) == pytest.approx([100, 100, 100], rel=0.01)


@given(
    st.tuples(*[st.floats(1, 100)] * 3),
    st.tuples(*[st.floats(5, 200)] * 3),
    st.tuples(*[st.sampled_from([1.0, 2.0, 5.0])] * 3),
)
@examples(100)
def oracle_no_other_division_between_three_gives_more(
    rates: tuple[float, ...], most: tuple[float, ...], sizes: tuple[float, ...]
) -> None:
    memory, steps = 200.0, 40
    chosen = divide(rates, most, sizes, memory)
    assert sum(chosen) <= memory * 1.000001
    assert all(c <= m * s * 1.000001 for c, m, s in zip(chosen, most, sizes, strict=True))
    best = 0.0
    for a, b in product(range(steps + 1), repeat=2):
        divided = [memory * a / steps, memory * b / steps, memory * (steps - a - b) / steps]
        if a + b <= steps:
            rows = [min(g / s, m) for g, s, m in zip(divided, sizes, most, strict=True)]
            best = max(best, results(rates, rows))
    assert results(rates, [c / s for c, s in zip(chosen, sizes, strict=True)]) >= 0.999 * best


def test_free_rates_and_windows_of_two_inputs() -> None:
    """Equation 14: the maximum is service times memory, all memory to one and nearly all rows of the other."""
    let_in, windows = divide_all([1000, 1000], 10, [600, 600], [1, 1], 100)
    stored = 0 if windows[0] > windows[1] else 1
    assert windows[stored] == pytest.approx(100, rel=0.01) and let_in[1 - stored] > 0.9 * 10
    assert sum(let_in) <= 10.0001
    assert results(let_in, windows) > 0.9 * 10 * 100


def test_a_window_gets_no_more_rows_than_it_needs_and_no_fewer() -> None:
    let_in, windows = divide_all([1000, 1000], 100, [10, 10], [1, 1], 200)
    stored = 0 if windows[0] > windows[1] else 1
    assert let_in[stored] * 10 == pytest.approx(windows[stored], rel=0.05)


@given(st.tuples(*[st.floats(1, 50)] * 2), st.floats(5, 40), st.tuples(*[st.floats(2, 100)] * 2), st.floats(20, 2000))
@examples(60)
def oracle_no_other_rates_and_windows_of_two_give_more(
    rates: tuple[float, ...], capacity: float, spans: tuple[float, ...], memory: float
) -> None:
    let_in, windows = divide_all(rates, capacity, spans, [1, 1], memory)
    assert sum(let_in) <= min(capacity, sum(rates)) * 1.0001 and sum(windows) <= memory * 1.0001
    best = 0.0
    for x, w in product(range(41), repeat=2):
        a = min(rates[0], capacity) * x / 40
        b = min(rates[1], capacity - a)
        one = min(memory * w / 40, a * spans[0])
        best = max(best, results([a, b], [one, min(memory - one, b * spans[1])]))
    assert results(let_in, windows) >= 0.98 * best


def test_many_inputs_are_divided_in_good_time() -> None:
    windows = divide([1.0, 2, 3, 4, 5, 6, 7, 8], [1e6] * 8, [10.0] * 8, 1e6)
    assert sum(windows) == pytest.approx(1e6) and math.isfinite(results([1.0] * 8, windows))


# --- what the next batch does ----------------------------------------------------------------------------------------

MINUTE = 60_000_000
EQUAL = (0.5, 0.5)


def loaded(rates: list[float], service: float) -> Load:
    load = Load(len(rates))
    taken = [round(rate * 10) for rate in rates]
    load.note(taken, (WHOLE,) * len(rates), 10.0, sum(taken) / service, 0.0)
    return load


def flexible(rows: int, *sizes: tuple[int, bool]) -> Flexible:
    return Flexible(rows * 100, sizes, (100.0,) * len(sizes), (0.0,) * len(sizes))


def test_memory_goes_to_the_slower_input_and_back_only_if_that_is_worth_it() -> None:
    load, windows = loaded([10, 50], 1e6), flexible(300, (MINUTE, False), (MINUTE, False))
    everything = (WHOLE, WHOLE)
    assert decide(load, (None, None), 1.0, None, [1, 1], windows) == (everything, (1.0, 0.0))
    assert decide(load, (None, EQUAL), 1.0, None, [1, 1], windows) == (everything, (1.0, 0.0))
    assert decide(loaded([50, 52], 1e6), (None, (0.0, 1.0)), 1.0, None, [1, 1], windows)[1] == (0.0, 1.0)
    assert decide(load, (None, None), 1.0, None, [1, 1], None) == (everything, None)


def test_equal_parts_before_anything_is_known() -> None:
    windows = flexible(300, (MINUTE, False), (100, True))
    assert decide(Load(2), (None, None), None, None, [1, 1], windows) == ((WHOLE, WHOLE), EQUAL)
    assert decide(Load(2), (None, (1.0, 0.0)), None, None, [1, 1], windows) == ((WHOLE, WHOLE), (1.0, 0.0))


def test_rows_that_count_by_their_number_need_memory_for_so_many() -> None:
    load, windows = loaded([10, 50], 1e6), flexible(300, (120, True), (1000, True))
    assert decide(load, (None, None), 1.0, None, [1, 1], windows)[1] == pytest.approx((0.4, 0.6))


def test_an_input_that_pauses_keeps_what_the_others_meet() -> None:
    load = loaded([0.0, 50.0], 1e6)
    windows = Flexible(30_000, ((MINUTE, False), (MINUTE, False)), (100.0, 100.0), (250.0, 50.0))
    assert decide(load, (None, None), 1.0, None, [1, 1], windows)[1] == pytest.approx((250 / 300, 50 / 300), abs=0.001)


def test_with_too_little_of_both_one_input_is_stored_and_the_other_probes() -> None:
    """Section 4.3, four variables: against equal division of both, as figure 10."""
    load, windows = loaded([1000.0, 1000.0], 100.0), flexible(500, (MINUTE, False), (MINUTE, False))
    parts, memory = decide(load, (None, None), 10.0, DelayLimit(max_delay=10.0), [1, 1], windows)
    stored = memory.index(max(memory))
    assert memory[stored] > 0.95 and parts[1 - stored] > 5 * parts[stored]
    assert sum(parts) / WHOLE * 1000 == pytest.approx(100, rel=0.02)
    again = decide(load, (parts, memory), 10.0, DelayLimit(max_delay=10.0), [1, 1], windows)
    assert again[1] == memory and again[0] == pytest.approx(parts, rel=0.02)


def test_where_windows_fit_only_admission_is_shared() -> None:
    load, windows = loaded([800.0, 200.0], 100.0), flexible(10**6, (MINUTE, False), (MINUTE, False))
    parts, _ = decide(load, (None, None), 10.0, DelayLimit(max_delay=10.0), [1, 1], windows)
    assert [r * p / WHOLE for r, p in zip([800, 200], parts, strict=True)] == pytest.approx([50, 50], rel=0.02)


def test_flexible_windows_of_a_join() -> None:
    schema = pa.schema([("k", pa.int64())])
    given = {"source.a.format": "arrow", "source.b.format": "arrow", "on": "k"}
    spec = plan_join(Options.parse(given | {"window": "50 rows"}), [schema, schema])
    held = [Held(input_bytes=(500, 0), kept_rows=(10, 0)), Held()]
    assert Flexible.of(spec, 1000, held) == Flexible(1000, ((50, True), (50, True)), (50.0, 50.0), (10.0, 0.0))
    assert Flexible.of(spec, 1000, []).row_bytes == (100.0, 100.0)
    assert Flexible.of(plan_join(Options.parse(given), [schema, schema]), 1000, []) is None


def test_five_inputs_are_decided_in_good_time() -> None:
    load, windows = loaded([100.0, 200, 300, 400, 500], 200.0), flexible(5000, *[(MINUTE, False)] * 5)
    began = time.perf_counter()
    parts, memory = decide(load, (None, None), 10.0, DelayLimit(max_delay=10.0), [1.0] * 5, windows)
    assert time.perf_counter() - began < 20 and sum(memory) == pytest.approx(1, abs=0.01)
    assert sum(r * p for r, p in zip(load.rates, parts, strict=True)) / WHOLE == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_the_memory_of_a_row_does_not_depend_on_when_its_index_doubled(kind: pa.DataType) -> None:
    """Or a choice between two inputs with the same rows would go back and forth as one grows and the other shrinks."""
    sources = {"source.a.format": "arrow", "source.b.format": "arrow"}
    schema = pa.schema([("x", kind)])
    spec = plan_join(Options.parse({"query": "SELECT a.x FROM a JOIN b ON a.x = b.x", **sources}), [schema] * 2)
    per_row, off = [], []
    for rows in (600, 1024, 1025, 1500, 2048, 2049, 4000):
        table = Table(spec.inputs[0])
        table.append([pa.array(range(10_000, 10_000 + rows)).cast(kind)])
        per_row.append(table.steady_bytes() / rows)
        off.append(table.steady_bytes() / table.nbytes())
    assert max(per_row) == pytest.approx(min(per_row), rel=0.01)
    assert min(off) < 1 < max(off) and max(off) / min(off) < 1.5  # of what is accounted for, in the mean


def test_that_is_what_a_batch_tells_the_planner(tmp_path: Path) -> None:
    options = {"on": "unique1", "stateLocation": str(tmp_path)}
    for alias in "ab":
        options |= {f"source.{alias}.format": "wisconsin", f"source.{alias}.rows": "2100"}
        options[f"source.{alias}.maxRowsPerTrigger"] = "700"
    current = reader(options)
    start, per_row = current.initialOffset(), set()
    while (end := current.latestOffset(start, current.getDefaultReadLimit())) != start:
        for partition in current.partitions(start, end):
            assert all(batch.num_rows for batch in current.read(partition))
        held = Manifests(f"{tmp_path}/{end['query']}", 0).manifest(end["version"]).held
        per_row.add(held.input_bytes[0] / held.kept_rows[0])
        start = end
    assert max(per_row) == pytest.approx(min(per_row), rel=0.01)
