"""How much of each input is let in: shares against every other division, delay limits, and batches in virtual time."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.admission import (
    FREE_SECONDS,
    LEAST_PARTS,
    DelayLimit,
    Load,
    admit,
    keeps,
    least_fractions,
    shares,
)
from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE
from tests.examples import examples


@pytest.mark.parametrize(
    ("rows", "capacity", "expected"),
    [
        ([80, 20], 10, [5, 5]),  # figure 8
        ([5, 100], 50, [5, 45]),  # the example of section 4.2
        ([1, 10, 100], 30, [1, 10, 19]),
        ([50, 50, 50], 30, [10, 10, 10]),
        ([3, 4], 10, [3, 4]),
        ([0, 4], 2, [0, 2]),
    ],
)
def test_equal_shares_and_what_a_slow_input_leaves_goes_to_the_others(
    rows: list[float], capacity: float, expected: list[float]
) -> None:
    assert shares(rows, capacity) == pytest.approx(expected)


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=4),
    st.integers(2, 24),
    st.lists(st.integers(1, 5), min_size=4, max_size=4),
)
@examples(60)
def oracle_no_other_division_gives_more_results(rows: list[int], capacity: int, windows: list[int]) -> None:
    """Against all divisions into whole rows, by the rate of results with windows."""

    def rate(let_in: tuple[float, ...]) -> float:
        return sum(
            let_in[i] * math.prod(let_in[j] * windows[j] for j in range(len(rows)) if j != i) for i in range(len(rows))
        )

    chosen = shares(rows, capacity)
    assert sum(chosen) <= capacity + 1e-9 and all(c <= r for c, r in zip(chosen, rows, strict=True))
    others = product(*(range(r + 1) for r in rows))
    best = max(rate(other) for other in others if sum(other) <= capacity)
    assert rate(tuple(chosen)) >= best - 1e-6


def served(
    load: Load, parts: tuple[int, ...], seconds: float, rates: list[float], service: float, fixed: float
) -> float:
    """A batch in virtual time: its input arrived in so many seconds. Returns how long it takes."""
    taken = [round(rate * seconds * part / WHOLE) for rate, part in zip(rates, parts, strict=True)]
    worked = sum(taken) / service
    load.note(taken, parts, seconds, worked, fixed)
    return fixed + worked


def batches(rates: list[float], service: float, limit: DelayLimit, number: int = 40) -> tuple[list[float], list]:
    """How long batches take that begin when the one before is over, and what they let in."""
    load, parts, least = Load(len(rates)), None, [1.0] * len(rates)
    took, chosen = [1.0], []
    for _ in range(number):
        parts = admit(load, parts, took[-1], limit, least)
        least = [min(old, part / WHOLE) for old, part in zip(least, parts, strict=True)]
        chosen.append(parts)
        took.append(served(load, parts, took[-1], rates, service, fixed=0.2))
    return took, chosen


def test_nothing_is_shed_while_batches_keep_up() -> None:
    took, chosen = batches([300.0, 600.0], 1000.0, DelayLimit())
    assert set(chosen) == {(WHOLE, WHOLE)} and max(took) < FREE_SECONDS


def test_under_overload_batches_stop_growing_and_inputs_share_equally() -> None:
    rates = [8000.0, 2000.0, 500.0]
    took, chosen = batches(rates, 3000.0, DelayLimit())
    assert max(took[-10:]) < 1.2 * FREE_SECONDS
    let_in = [rate * part / WHOLE for rate, part in zip(rates, chosen[-1], strict=True)]
    assert let_in[2] == 500.0 and let_in[0] == pytest.approx(let_in[1], rel=0.01)
    assert sum(let_in) == pytest.approx(3000.0, rel=0.1)


def test_max_delay_is_kept() -> None:
    took, _ = batches([8000.0, 2000.0], 3000.0, DelayLimit(max_delay=1.5))
    assert max(took[3:]) < 1.05 * 1.5


def test_min_recall_is_kept_and_delay_grows() -> None:
    took, chosen = batches([8000.0, 2000.0], 3000.0, DelayLimit(min_recall=0.8), 12)
    lowest = [min(parts[i] for parts in chosen) / WHOLE for i in (0, 1)]
    assert lowest[0] * lowest[1] >= 0.8 - 1e-9 and lowest[0] < 1
    assert took[-1] > took[5] > FREE_SECONDS


@given(
    st.lists(st.floats(1, 1e4), min_size=2, max_size=4),
    st.floats(1, 1e4),
    st.floats(0.01, 1),
    st.lists(st.floats(0.3, 1), min_size=4, max_size=4),
)
@examples(100)
def test_a_recall_is_kept_whatever_the_state_has(
    rates: list[float], service: float, recall: float, old: list[float]
) -> None:
    load, least = Load(len(rates)), old[: len(rates)]
    served(load, (WHOLE,) * len(rates), 10.0, rates, service, 0.1)
    parts = admit(load, None, 10.0, DelayLimit(min_recall=recall), least)
    assert keeps(parts, least, recall) or set(parts) == {WHOLE}


def test_without_evidence_it_stays_as_it_was() -> None:
    assert admit(Load(2), None, 1.0, DelayLimit(), [1.0, 1.0]) == (WHOLE, WHOLE)
    assert admit(Load(2), (7, WHOLE), 1.0, DelayLimit(), [1.0, 1.0]) == (7, WHOLE)


def test_what_was_decided_under_another_limit_does_not_stay() -> None:
    """As after a restart, with minRecall where there was maxDelay, or a higher one."""
    whole, limit = [1.0, 1.0], DelayLimit(min_recall=0.64)
    assert admit(Load(2), (64, 64), 1.0, limit, whole) == (WHOLE, WHOLE)
    load = Load(2)
    load.note([90_000, 90_000], (WHOLE, WHOLE), 1.0, 100.0, 0.0)
    before = (round(0.78 * WHOLE), round(0.78 * WHOLE))
    assert not keeps(before, whole, 0.64) and keeps(admit(load, before, 1.0, limit, whole), whole, 0.64)


def test_where_nothing_arrives_any_more_only_max_delay_sheds() -> None:
    load = Load(2)
    load.note([90_000, 10_000], (WHOLE, WHOLE), 1.0, 10.0, 0.0)
    assert admit(load, None, None, DelayLimit(), [1.0, 1.0]) == (WHOLE, WHOLE)
    assert admit(load, None, None, DelayLimit(min_recall=0.5), [1.0, 1.0]) == (WHOLE, WHOLE)
    big, small = admit(load, None, None, DelayLimit(max_delay=5.0), [1.0, 1.0])
    assert small == WHOLE and big / WHOLE == pytest.approx(40_000 / 90_000, rel=0.01)


def test_the_fit_separates_reading_from_joining() -> None:
    """Under overload that reading alone nearly fills the time: batches come down to it, and do not grow."""
    load, parts, took, known = Load(2), None, 2.0, []
    for _ in range(30):
        parts = admit(load, parts, took, DelayLimit(), [1.0, 1.0])
        rows = [3000.0 * took, 500.0 * took]
        taken = [round(r * p / WHOLE) for r, p in zip(rows, parts, strict=True)]
        worked = sum(rows) / 5000 + sum(taken) / 2000
        load.note(taken, parts, took, worked, 0.1)
        took, known = worked + 0.1, [*known, load.costs()]
    assert took < 1.1 * FREE_SECONDS
    each, let_in = known[5]
    assert each == pytest.approx(1 / 5000, rel=0.05) and let_in == pytest.approx(1 / 2000, rel=0.05)


def test_a_sample_without_rows_does_not_mean_that_there_are_none() -> None:
    load = Load(2)
    load.note([200, 200], (WHOLE, WHOLE), 1.0, 1.0, 0.0)
    load.note([0, 0], (LEAST_PARTS, LEAST_PARTS), 1.0, 0.5, 0.0)
    assert load.offered == [100.0, 100.0]
    load.note([0, 20], (WHOLE, LEAST_PARTS), 1.0, 0.5, 0.0)
    assert load.offered == [0.0, 20 * 1024]


def test_the_first_batch_says_nothing_about_time() -> None:
    load = Load(2)
    load.note([10, 10], (WHOLE, WHOLE), None, 1e6, 0.0)
    assert not load.is_known and load.offered == [10, 10]
    assert admit(load, None, 1.0, DelayLimit(max_delay=1.0), [1.0, 1.0]) == (WHOLE, WHOLE)


def test_a_little_is_always_let_in() -> None:
    load = Load(2)
    load.note([10, 10], (WHOLE, WHOLE), 1.0, 1e6, 0.0)
    assert admit(load, None, 1.0, DelayLimit(max_delay=0.001), [1.0, 1.0]) == (LEAST_PARTS, LEAST_PARTS)


def test_least_fractions_over_partitions() -> None:
    held = [Held(least_fractions=of) for of in ((0.5, 1.0), (0.7, 0.2), ())]
    assert least_fractions(held, 2) == [0.5, 0.2]
