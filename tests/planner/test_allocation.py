"""Memory over inputs: the paper's closed forms for two of them, and for three against a grid of all divisions."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mjoin.planner.allocation import divide, divide_all, results

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
@settings(max_examples=100)
def oracle_no_other_division_between_three_gives_more(
    rates: tuple[float, ...], most: tuple[float, ...], sizes: tuple[float, ...]
) -> None:
    memory, steps = 200.0, 40
    chosen = divide(rates, most, sizes, memory)
    assert sum(chosen) <= memory * 1.000001
    assert all(c <= m * s * 1.000001 for c, m, s in zip(chosen, most, sizes, strict=True))
    best = 0.0
    for a, b in product(range(steps + 1), repeat=2):
        given_out = [memory * a / steps, memory * b / steps, memory * (steps - a - b) / steps]
        if a + b <= steps:
            rows = [min(g / s, m) for g, s, m in zip(given_out, sizes, most, strict=True)]
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
@settings(max_examples=60)
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
