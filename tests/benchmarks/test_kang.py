"""Kang's figures: the algorithm that counts is right, the model's conclusions hold, and files are written."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import access
from benchmarks.paper import kang


@pytest.mark.parametrize("one_way", [True, False], ids=["one way", "full"])
def oracle_the_counting_algorithm_joins(one_way: bool) -> None:
    run = kang.Run(25.0, 4, seconds=100.0, rate_a=3.0)
    of_a, of_b = (np.flatnonzero(run.sides == side) for side in (0, 1))
    together = np.abs(run.times[of_a][:, None] - run.times[of_b][None, :]) < kang.SECONDS
    together &= run.keys[of_a][:, None] == run.keys[of_b][None, :]
    if one_way:  # only what rows of A find in B
        together &= run.times[of_a][:, None] > run.times[of_b][None, :]
    for way in kang.JOINS.values():
        scans, hashes, results = run.touches(*way, one_way=one_way)
        assert results.sum() == together.sum()
        assert bool(scans.sum()) == (not way[1] or not (one_way or way[0]))
        assert bool(hashes.sum()) == (way[1] or (way[0] and not one_way))


def test_touches_are_what_equations_2_and_3_say() -> None:
    run = kang.Run(50.0, 10)
    assert run.cost(False, False, True) == pytest.approx(kang.nested(10.0, 50.0), rel=0.01)
    assert run.cost(False, True, True) == pytest.approx(kang.hashed(10.0, 50.0, 10), rel=0.02)


def test_figures_2_and_3_are_written_and_checked(tmp_path: Path) -> None:
    outcome = kang.cost_curves(1.0)
    assert [check.holds for check in outcome.checks] == [check.expected for check in outcome.checks]
    outcome.write(tmp_path)
    assert (tmp_path / "kang2.png").stat().st_size > 5_000
    assert len((tmp_path / "kang2.csv").read_text().splitlines()) == 3 * (1 + len(kang.RATES))
    assert (tmp_path / "kang2-table.csv").read_text().startswith("figure,rows of B per second,HHJ,HNJ,NHJ,NNJ\n")


def test_where_curves_cross() -> None:
    assert kang.first_where((0, 10, 20), (5, 5, 5), (1, 3, 7)) == 15
    assert kang.first_where((0, 10), (5, 5), (1, 1)) == float("inf")
    assert kang.first_where((0, 10), (0, 0), (1, 1)) == 0
    assert kang.turning_point(lambda x: 3, lambda x: x, 0, 10) == pytest.approx(3, abs=0.05)


def test_ways_are_compared_on_the_same_rows() -> None:
    ways = {"hash": access.HASH, "scan": access.SCAN, "auto": "auto"}
    ms = access.compare({"a": 5, "b": 400}, 2, ways, 1)
    assert set(ms) == set(ways) and all(of > 0 for of in ms.values())
