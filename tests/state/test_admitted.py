"""Which rows of an input are let in, and what those in the state stand for."""

import numpy as np
import pytest

from spark_mjoin.model import WHOLE
from spark_mjoin.state.admitted import MOST_COHORTS, Admitted, sampled


@pytest.mark.parametrize("parts", [1, WHOLE // 1000, WHOLE // 3, WHOLE - 1])
def test_a_sample_has_its_size_and_does_not_depend_on_how_rows_are_cut(parts: int) -> None:
    whole = sampled(1, np.arange(200_000), parts)
    spread = 5 * np.sqrt(200_000 * (parts / WHOLE) * (1 - parts / WHOLE)) + 1
    assert abs(int(whole.sum()) - 200_000 * parts / WHOLE) < spread
    cut = [sampled(1, np.arange(first, min(first + 777, 200_000)), parts) for first in range(0, 200_000, 777)]
    assert np.array_equal(np.concatenate(cut), whole)


def test_samples_of_inputs_are_independent_and_larger_ones_contain_smaller_ones() -> None:
    a, b = sampled(0, np.arange(200_000), WHOLE // 2), sampled(1, np.arange(200_000), WHOLE // 2)
    assert abs(int((a & b).sum()) - 50_000) < 1_000
    assert not (sampled(0, np.arange(200_000), WHOLE // 4) & ~a).any()
    assert sampled(0, np.arange(1000), WHOLE).all()


@pytest.mark.parametrize("period", [2, 7, 64, 100])
def test_no_period_of_the_input_shows_in_a_sample(period: int) -> None:
    kept = sampled(0, np.arange(100_000 * period), WHOLE // 4)
    for phase in range(min(period, 5)):
        assert abs(int(kept[phase::period].sum()) - 25_000) < 800


def test_rows_stand_for_those_that_were_not_let_in() -> None:
    admitted = Admitted()
    admitted.admit(100, 1.0, event=1)
    admitted.admit(50, 0.5, event=2)
    admitted.admit(10, 0.5, event=3)
    assert (admitted.rows, admitted.weight, admitted.least) == (160, 220.0, 0.5)
    assert admitted.fraction == 160 / 220
    admitted.leave(np.array([1] * 100 + [2] * 20))
    assert (admitted.rows, admitted.weight, admitted.fraction) == pytest.approx((40, 80.0, 0.5))
    admitted.leave(np.array([], np.int32), others=30)
    assert (admitted.rows, admitted.weight) == pytest.approx((10, 20.0))
    assert Admitted.of(admitted.figures()) == admitted


def test_cohorts_are_merged_and_nothing_is_lost() -> None:
    admitted = Admitted()
    for number in range(1, 200):
        admitted.admit(1, 1 / number, event=number)
    assert len(admitted.cohorts) == MOST_COHORTS
    assert (admitted.rows, admitted.weight) == (199, sum(range(1, 200)))
    assert admitted.least == 1 / 199
    admitted.leave(np.arange(1, 200))
    assert admitted.rows == 0 and admitted.fraction == 1.0 and admitted.least == 1.0
