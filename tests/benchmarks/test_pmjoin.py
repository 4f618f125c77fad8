"""The experiments of PMJoin: what the streams are like, and that a few drawings show what the figures show."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import pmjoin_inputs as inputs
from benchmarks.paper import pmjoin_plans as plans
from benchmarks.paper.outcome import Outcome


def broken(outcome: Outcome, unless: Sequence[str] = ()) -> list[str]:
    """Checks that do not come out as they should, but for those that need more drawings, which begin like this."""
    assert all(any(check.claim.startswith(claim) for check in outcome.checks) for claim in unless)
    return [
        f"{check.claim}: {check.against} ({check.figures})"
        for check in outcome.checks
        if check.holds != check.expected and not check.claim.startswith(tuple(unless))
    ]


def test_distributions() -> None:
    for shares in (inputs.uniform(40), inputs.normal(40, 0.1), inputs.zipf(40, 1.5), inputs.self_similar(40, 0.9)):
        assert shares.shape == (40,) and shares.sum() == pytest.approx(1) and shares.min() > 0
    assert inputs.zipf(10, 0.7)[0] / inputs.zipf(10, 0.7)[3] == pytest.approx(4**0.7)
    for skew in (0.1, 0.5, 0.8):  # the first h N have 1 - h of the weight, and the first h of these again
        shares = inputs.self_similar(1_000, skew)
        first = round(1_000 * skew)
        assert shares[:first].sum() == pytest.approx(1 - skew)
        assert shares[: round(first * skew)].sum() == pytest.approx((1 - skew) ** 2)
    values, shares = np.arange(1, 1_001), inputs.normal(1_000, 0.1)
    mean = (values * shares).sum()
    assert mean == pytest.approx(500.5) and (((values - mean) ** 2) * shares).sum() ** 0.5 == pytest.approx(
        100, rel=0.01
    )


def test_hot_spots() -> None:
    same, own = (inputs.Spread(50, similar, False).shares(inputs.chance(1), 4) for similar in (True, False))
    order = np.argsort(-same[0])
    assert not np.array_equal(order, np.arange(50))
    assert all(np.array_equal(np.argsort(-each), order) for each in same)
    assert not any(
        np.array_equal(np.argsort(-each, kind="stable"), np.argsort(-own[0], kind="stable")) for each in own[1:]
    )
    contiguous = inputs.Spread(50, True).shares(inputs.chance(1), 4)
    assert np.array_equal(np.sort(same, axis=1), np.sort(contiguous, axis=1)) and (np.diff(contiguous) < 0).all()


def test_a_seed_decides_the_streams() -> None:
    one, again, other = (inputs.Spread(50).shares(inputs.chance(3, seed), 5) for seed in (1, 1, 2))
    assert np.array_equal(one, again) and not np.array_equal(one, other)


def test_figures_5_to_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "COUNTS", (2, 4, 6, 8, 10))
    fig5, fig6, fig7 = plans.figure_5(0.2), plans.figure_6(0.4), plans.figure_7(0.4)
    assert not broken(fig5, unless=["the heuristic costs more than the best plan"])
    assert not broken(fig6, unless=["with 1,000 values and more streams"])  # which few drawings show
    assert not broken(fig7, unless=["the heuristic is never behind Local"])
    fig7.write(tmp_path)
    assert (tmp_path / "pmjoin7.png").stat().st_size > 5_000
    assert (tmp_path / "pmjoin7.csv").read_text().startswith("panel,streams,Simple,Local,heuristic,optimal\n")
