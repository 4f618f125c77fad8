"""What an experiment comes to: curves, figures, and whether the paper's conclusions hold. Written as CSV and PNG."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.paper.virtual import Run
from spark_mjoin.model import Array

POINTS = 200  # of a curve in a CSV


@dataclass(frozen=True)
class Check:
    """A conclusion, and whether it holds here; `expected` is False where it is known not to, which the docs explain."""

    claim: str
    holds: bool
    figures: str
    expected: bool = True
    measured: float | None = None
    bar: float | None = None  # that the measured figure is held against
    is_limit: bool = False  # whether the figure may not be above its bar, and not: below

    @property
    def against(self) -> str:
        """What was measured, and the bar; empty where a claim is no matter of degree."""
        if self.measured is None or self.bar is None:
            return ""
        return f"{_number(self.measured)}, at {'most' if self.is_limit else 'least'} {_number(self.bar)}"


def at_least(claim: str, measured: float, bar: float, figures: str, expected: bool = True) -> Check:
    """A ratio that must not be smaller than a bar.

    A bar stands at about half of the effect that docs/paper.md reports: 1.1 where 1.2 times was measured, 5 where it
    was 9. So half of an effect cannot get lost without a check that fails. It is meant for the scale of the docs.
    """
    return Check(claim, measured >= bar, figures, expected, measured, bar)


def at_most(claim: str, measured: float, bar: float, figures: str, expected: bool = True) -> Check:
    """An error or a lag that must not be larger than a bar, which is at about twice of what docs/paper.md reports."""
    return Check(claim, measured <= bar, figures, expected, measured, bar, is_limit=True)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value - 1) > 0.2 else f"{value:.4g}"


FEW = 50  # results, which say little about who is ahead
SLICE = 1 / 500  # of a run (plans.SLICES): what a slice gives is counted at its end


def behind(run: Run, others: Sequence[Run], until: float) -> float:
    """The most that a run is behind the best of others at any time, as a part of what that one has given by then.

    Of what there is by then, and not of all that there will be: a tolerance in parts of the whole would forgive
    anything that happens early. A lag of one slice is none, and times with only a FEW results are left out.
    """
    points = np.linspace(0, until, 51)[1:]
    leaders = [(max(other.at(t) for other in others), run.at(t + SLICE * until)) for t in points]
    return max((1 - own / leader for leader, own in leaders if leader >= FEW), default=0.0)


def complete(runs: Sequence[Run]) -> Check:
    totals = {r.total for r in runs}
    return Check("in the end all plans have given the same number of results", len(totals) == 1, f"{totals}")


@dataclass(frozen=True)
class Panel:
    """Curves in one diagram."""

    title: str
    runs: Sequence[Run]
    until: float  # seconds
    marks: Sequence[float] = ()  # instants to be marked
    what: str = "results"  # or "comparisons", "rows in memory": what the curves show

    def curve(self, run: Run) -> Array:
        return {"comparisons": run.compared, "rows in memory": run.held}.get(self.what, run.results)


@dataclass(frozen=True)
class Outcome:
    name: str
    title: str
    panels: Sequence[Panel]
    checks: Sequence[Check]
    header: Sequence[str] = ()  # of a table of figures, besides the curves
    rows: Sequence[Sequence[object]] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._curves(directory / f"{self.name}.csv")
        if self.rows:
            with (directory / f"{self.name}-table.csv").open("w", newline="") as file:
                csv.writer(file).writerows([self.header, *self.rows])
        self._picture(directory / f"{self.name}.png")

    def _curves(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["panel", "plan", "seconds", self.panels[0].what])
            for panel in self.panels:
                for run in panel.runs:
                    for at in np.linspace(0, run.finished, POINTS + 1):
                        position = int(np.searchsorted(run.seconds, at, side="right")) - 1
                        writer.writerow([panel.title, run.plan, f"{at:.3f}", int(panel.curve(run)[position])])

    def _picture(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(
            1, len(self.panels), figsize=(max(7, 4.6 * len(self.panels)), 4), squeeze=False, layout="constrained"
        )
        for panel, axis in zip(self.panels, axes[0], strict=True):
            for run in panel.runs:
                shown = run.seconds <= panel.until
                axis.plot(run.seconds[shown], panel.curve(run)[shown], label=run.plan, linewidth=1.4)
            for mark in panel.marks:
                axis.axvline(mark, color="0.7", linewidth=0.8, linestyle=":")
            axis.set_title(panel.title, fontsize=10)
            axis.set_xlabel("virtual seconds")
            axis.set_ylabel(panel.what)
            axis.legend(fontsize=8)
        figure.savefig(path, dpi=90)
        pyplot.close(figure)


@dataclass(frozen=True)
class Graph:
    """Curves over anything in one diagram."""

    title: str
    over: str  # what is on the x axis
    what: str  # and on the y axis
    at: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    marks: Sequence[float] = ()
    dashed: frozenset[str] = frozenset()
    below_zero: bool = False


@dataclass(frozen=True)
class Graphs(Outcome):
    """An outcome whose curves are not results over time."""

    graphs: Sequence[Graph] = ()

    def _curves(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            for graph in self.graphs:
                writer.writerow(["panel", graph.over, *graph.curves])
                for at, *values in zip(graph.at, *graph.curves.values(), strict=True):
                    writer.writerow([graph.title, f"{at:g}", *(f"{value:.6g}" for value in values)])

    def _picture(self, path: Path) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        count = len(self.graphs)
        figure, axes = pyplot.subplots(1, count, figsize=(max(7, 4.6 * count), 4), squeeze=False, layout="constrained")
        for graph, axis in zip(self.graphs, axes[0], strict=True):
            for name, values in graph.curves.items():
                axis.plot(graph.at, values, label=name, linewidth=1.4, linestyle="--" if name in graph.dashed else "-")
            for mark in graph.marks:
                axis.axvline(mark, color="0.7", linewidth=0.8, linestyle=":")
            axis.set_title(graph.title, fontsize=10)
            axis.set_xlabel(graph.over)
            axis.set_ylabel(graph.what)
            if graph.below_zero:
                axis.axhline(0, color="0.7", linewidth=0.8)
            else:
                axis.set_ylim(bottom=0)
            axis.legend(fontsize=8)
        figure.savefig(path, dpi=90)
        pyplot.close(figure)
