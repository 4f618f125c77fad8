"""The experiments of PMJoin: what the streams are like, and that a few drawings show what the figures show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from benchmarks.paper import pmjoin_inputs as inputs
from benchmarks.paper import pmjoin_partitions as partitions
from benchmarks.paper import pmjoin_plans as plans
from benchmarks.paper import pmjoin_queries as queries
from benchmarks.paper.outcome import Outcome
from spark_mjoin.driver.placement import greedy

NO_BARS = MappingProxyType[str, float]({})


def broken(outcome: Outcome, unless: Sequence[str] = (), small: Mapping[str, float] = NO_BARS) -> list[str]:
    """Checks that do not come out as they should, by the beginnings of their claims.

    Those in `unless` need more drawings than a test makes; `small` has bars for the few that it makes.
    """
    found = []
    for check in outcome.checks:
        bars = [bar for claim, bar in small.items() if check.claim.startswith(claim)]
        measured = 0.0 if check.measured is None else check.measured
        holds = all(measured <= bar if check.is_limit else measured >= bar for bar in bars) if bars else check.holds
        if holds != check.expected and not check.claim.startswith(tuple(unless)):
            found.append(f"{check.claim}: {check.against} ({check.figures})")
    for claim in (*unless, *small):
        assert any(check.claim.startswith(claim) for check in outcome.checks), claim
    return found


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
    monkeypatch.setattr(plans, "COUNTS", (2, 4, 6, 8))
    fig5, fig6, fig7 = plans.figure_5(0.1), plans.figure_6(0.25), plans.figure_7(0.25)
    assert not broken(fig5, unless=["the heuristic costs more than the best plan"])
    assert not broken(fig6)
    assert not broken(fig7, unless=["from 8 streams on"])
    fig7.write(tmp_path)
    assert (tmp_path / "pmjoin7.png").stat().st_size > 5_000
    assert (tmp_path / "pmjoin7.csv").read_text().startswith("panel,streams,Simple,Local,heuristic,optimal\n")


def test_figures_8_and_9(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "GROUPS", (1, 2, 5, 10, 50, 1_000))
    fig8, fig9 = partitions.figure_8(0.1), partitions.figure_9(0.1)
    one_drawing = {"similar data": 0.02, "different data: two substreams": 0.01, "RHS, DD: rates saves more": 1.2}
    by_chance = ["RHS, SD: range saves less", "RHS, DD: range saves less", "CHS, "]
    assert not broken(fig8, by_chance, one_drawing)
    assert not broken(fig9)


def test_routing_takes_as_much_where_a_lookup_breaks_even() -> None:
    query = partitions.draw(0, partitions.PANELS["RHS, DD"], 5)
    each = np.array([partitions.measured(query, partitions.METHODS["hash"], count) for count in (1, 1_000)])
    price = partitions.break_even(each)
    bare = each[1, 1] - each[1, 2]
    assert price > 0 and bare + each[1, 2] / partitions.LOOKUP * price == pytest.approx(each[0, 1])


def test_figure_10(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(partitions, "COUNTS", (4, 6))
    fig10 = partitions.figure_10(0.5)
    assert not broken(fig10, unless=["6 streams: PMJoin saves more rows"])
    fig10.write(tmp_path)
    assert (tmp_path / "pmjoin10.png").stat().st_size > 5_000


def test_queries_are_trees_of_attributes() -> None:
    drawn = inputs.chance(0)
    of = queries.sources(drawn)
    assert len({stream.node for stream in of}) <= 10 == queries.NODES and len(of) == 20
    for _ in range(50):
        query = queries.query(drawn, of, 100)  # which is refused unless it is connected
        attributes = query.predicates
        assert 3 <= len(attributes) <= 7 and len(query.streams) <= 20
        assert len(query.streams) == 1 + sum(len(each.members) - 1 for each in attributes)
        assert len({stream.rate for stream in query.streams}) == len(query.streams)


def test_all_selections_agree_where_nothing_can_be_partitioned() -> None:
    drawn = inputs.chance(1)
    query = queries.query(drawn, queries.sources(drawn), 10)
    assert set(queries.costs(drawn, query).values()) == {greedy(query).cost}


def test_figure_11() -> None:
    assert not broken(queries.figure_11(0.2))
