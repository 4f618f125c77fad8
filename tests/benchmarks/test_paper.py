"""The papers' experiments at a small scale: they run, they repeat exactly, and what holds at that scale holds."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import by_default, experiments, orders, pipelines, plans, resources
from benchmarks.paper.__main__ import main
from benchmarks.paper.decomposition import decomposition
from benchmarks.paper.experiments import EXPERIMENTS, Experiment, permjoin, star
from benchmarks.paper.machine import AHEAD, Work
from benchmarks.paper.outcome import Check, Outcome, Panel
from benchmarks.paper.pipelines import run_query
from benchmarks.paper.six_way import queries, table_2
from benchmarks.paper.state_manager import pipeline
from benchmarks.paper.virtual import Run


def test_figures_11_and_12_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "fig11", "--scale", "0.0625", "--out", str(tmp_path)]) == 0
    assert main(["--only", "fig12", "--scale", "0.1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("  OK: ") == 5 + 5 and said.count("DOES NOT HOLD") == 1 and "FAILED" not in said
    for name in ("fig11", "fig12"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000
        header, *lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        assert header == "panel,plan,seconds,results" and len(lines) > 300


def test_figure_13_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "fig13", "--scale", "0.01", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("  OK: ") == 3
    assert (tmp_path / "fig13.png").stat().st_size > 5_000


def test_ding_figure_8_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ding8", "--scale", "0.03", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("  OK: ") >= 3 and "FAILED" not in said
    assert (tmp_path / "ding8.png").stat().st_size > 5_000


def test_figures_9_to_11_of_ding_at_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ding9,ding10,ding11", "--scale", "0.1", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.count("  OK: ") == 6 + 6 + 4 and said.count("DOES NOT HOLD") == 2
    for name in ("ding9", "ding10", "ding11"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


@pytest.mark.parametrize(("expected", "code"), [(True, 1), (False, 0)])
def test_a_failed_check_is_an_exit_code(
    expected: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(scale: float) -> Outcome:
        panel = Panel("", [Run("plan", np.zeros(1), np.zeros(1), 0, 0, Work(), 0)], 1)
        return Outcome("failing", "", [panel], [Check("a claim", False, "", expected)])

    monkeypatch.setitem(EXPERIMENTS, "failing", Experiment(failing, 1))
    assert main(["--only", "failing", "--out", str(tmp_path)]) == code
    assert ("FAILED: a claim" if expected else "DOES NOT HOLD") in capsys.readouterr().out


def test_figure_15_by_the_options_of_the_product_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "SLICES", 60)
    streams = table_2(0.05)
    compared = queries(streams)
    assert {"plan", "flush", "memory"} <= set(compared[0].options)
    coordinated, scattered, again = (run_query(query, streams, AHEAD) for query in (*compared[:2], compared[0]))
    assert coordinated.total == scattered.total == 10 * 10 * 0.05 * 100_000
    assert coordinated.at(coordinated.arrived) > 1.1 * scattered.at(scattered.arrived)
    assert np.array_equal(coordinated.seconds, again.seconds) and np.array_equal(coordinated.results, again.results)
    assert coordinated.work == again.work


def test_disk_work_in_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "SLICES", 100)
    outcome = pipeline(0.05)
    assert len(outcome.checks) == 3
    for check in outcome.checks:
        assert check.holds, f"{check.claim}: {check.figures}"


def test_permjoin_by_default_on_one_join() -> None:
    outcome = by_default.by_default(2_000, {"steady": experiments._steady}, ["planned", "blocked"])
    for check in outcome.checks:
        assert check.holds, f"{check.claim}: {check.figures}"


def test_figure_17_and_what_the_model_says_of_it(tmp_path: Path) -> None:
    outcome = decomposition(0.05)
    assert len(outcome.checks) == 9
    for check in outcome.checks:
        assert check.holds, f"{check.claim}: {check.figures}"
    outcome.write(tmp_path)
    assert (tmp_path / "fig17.png").stat().st_size > 5_000


def test_the_six_way_star(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SLICES", 100)
    assert all(check.holds for check in star(0.125, ("adaptive", "random")).checks)


def test_permjoin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SLICES", 100)
    outcome = permjoin(0.2, ("adaptive", "random"), ("sorted", "uneven"))
    assert len(outcome.checks) == 4 and all(check.holds for check in outcome.checks)


def test_adaptive_orders_are_near_the_best_and_beat_all_when_selectivities_swap() -> None:
    outcome = orders.orders(0.25, [graph for graph in orders.GRAPHS if graph.name in ("chain", "cycle")], (1,), 100)
    assert len(outcome.checks) == 3 and all(check.holds for check in outcome.checks)
    for name, _, best, worst, *_ in outcome.rows:
        assert worst > 1.15 * best, f"{name}: with no order that is bad nothing is shown"


def test_all_orders_of_a_graph() -> None:
    star, chain, tree, cycle = orders.GRAPHS
    assert [len(star.orders(i)) for i in range(4)] == [6, 6, 6, 6]
    assert [len(chain.orders(i)) for i in range(4)] == [1, 3, 3, 1]
    assert [len(tree.orders(i)) for i in range(5)] == [24, 6, 6, 6, 6]
    assert [len(cycle.orders(i)) for i in range(4)] == [4, 4, 4, 4]


def test_work_takes_time() -> None:
    work = Work(hashes=1, moves=2, comparisons=3, disk_rows=39)
    assert work.seconds(1000) == pytest.approx(0.175008e-3 + 2 * 0.426518e-3 + 3 * 0.049133e-3 + 5e-3)
    assert (work + work).seconds(1) == pytest.approx(2 * work.seconds(1))


def test_figures_8_to_10_of_kang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SLICES", 60)
    for experiment, scale, checks in (
        (resources.admission, 0.2, 4),
        (resources.memory, 0.35, 3),
        (resources.both, 0.3, 3),
    ):
        outcome = experiment(scale)
        assert len(outcome.checks) == checks
        for check in outcome.checks:
            assert check.holds, f"{check.claim}: {check.figures}"
    outcome.write(tmp_path)
    assert (tmp_path / "kang10.png").stat().st_size > 5_000


def test_memory_of_the_experiments_is_kept_to() -> None:
    streams = resources._streams((200.0, 1000.0), (4000, 2000), 60.0)
    held = resources.memory_of(20_000)
    simulation = resources._Simulation(
        resources.Strategy("equal", (1.0, 1.0), (0.5, 0.5)), streams, (1e6, 1e6), held, 100, "unused"
    )
    simulation.run()
    assert 0.8 * held < simulation.most_bytes <= held
