"""Figure 17: a six-way join as one MJoin, as small MJoins, and as binary plans; and what the cost model says of them.

Figure 16 annotates the inputs with sizes and delays that the text does not repeat, apart from the fastest: 300,000
rows, 1 ms apart. The others here are chosen in its spirit. Two large streams, S1 and S4, have a key in common, and each
of them two small tables that end early:

    S2 S3              S5 S6      10,000 rows each; a row of S1 has one partner in S2 and one in S3, and a row of S4
      ╲│                │╱        one in S5 and one in S6
       S1 ─── 30,000 ─── S4       300,000 and 150,000 rows
              values

So storing S1 with its partners costs a row for each of its rows, and not storing it costs two more probes for every
pair of S4 and S1 that is found: few at first, and the more the longer the streams run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.paper.inputs import Stream, attribute, batch, poisson
from benchmarks.paper.machine import COMPARISON_SECONDS, HASH_SECONDS, LOADED, MOVE_SECONDS, Work
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least, at_most
from benchmarks.paper.plans import Plan, Run, run
from benchmarks.paper.trees import Even, tree_join
from spark_mjoin.driver.costs import Costs, Forecast, Period, forecast
from spark_mjoin.driver.decompose import Circumstances, choose
from spark_mjoin.model import Tree
from spark_mjoin.query.tree import render

ROWS = (300_000, 10_000, 10_000, 150_000, 10_000, 10_000)
DELAYS = (1e-3, 1e-3, 2e-3, 2e-3, 1e-3, 2e-3)  # seconds
VALUES = (10_000, 10_000, 30_000)  # of the keys S1-S2-S3, S4-S5-S6 and S1-S4
CLASSES = tuple(map(frozenset, ({0, 2}, {0}, {0}, {1, 2}, {1}, {1})))
SINGLE, THREE_AND_THREE, THREE_IN_FOUR, BUSHY, DEEP = (
    "one MJoin", "MJoins (1 2 3) (4 5 6)", "MJoins 1 2 3 (4 5 6)", "bushy XJoins", "deep XJoins",
)  # fmt: skip
TREES: dict[str, Tree] = {
    SINGLE: (0, 1, 2, 3, 4, 5),
    THREE_AND_THREE: ((0, 1, 2), (3, 4, 5)),
    THREE_IN_FOUR: (0, 1, 2, (3, 4, 5)),
    BUSHY: (((0, 1), 2), ((3, 4), 5)),
    DEEP: (((((0, 1), 2), 3), 4), 5),
}
EARLY, MIDDLE, LATE = 0.25, 1.0, 3.0  # times, of that in which the inputs arrive
WITHIN = 0.2  # by which the model may be wrong
MACHINE = Costs(HASH_SECONDS * LOADED, MOVE_SECONDS * LOADED, COMPARISON_SECONDS * LOADED)


def decomposition(scale: float) -> Outcome:
    """Section 3.6: results over time of the five plans, what the model expects of each, and what it would choose."""
    rows = [round(n * scale) for n in ROWS]
    values = [round(v * scale) for v in VALUES]
    streams = {}
    for i, (count, delay, own) in enumerate(zip(rows, DELAYS, CLASSES, strict=True)):
        keys = {f"k{c}": attribute(count, values[c], 10 * i + c) for c in sorted(own)}
        ids = np.arange(count, dtype=np.int64)
        streams[f"s{i + 1}"] = Stream(batch({"id": ids, **keys}), poisson(count, delay, 100 + i))
    until = max(n * d for n, d in zip(rows, DELAYS, strict=True))
    estimates = Even(CLASSES, tuple(map(float, values)), (0.0,) * 6, tuple(1 / d for d in DELAYS))
    on_average = replace(estimates, rates=tuple(n / until for n in rows))  # a choice knows rates, and not when they end
    chosen = choose(estimates.spec, on_average, MACHINE, Circumstances(until)).tree
    own = f"chosen: {render(chosen, [i.alias for i in estimates.spec.inputs])}"
    trees = TREES | {own: chosen}
    runs = {
        name: run(Plan(name, tree_join(CLASSES, tree), order="adaptive"), streams, LOADED)
        for name, tree in trees.items()
    }
    expected = {
        name: forecast(estimates.spec, estimates, tree, MACHINE, Period(until, most=rows))
        for name, tree in trees.items()
    }
    early, middle, late = (round(until * at, 1) for at in (EARLY, MIDDLE, LATE))
    checks = [
        _ahead(f"early, by {early} s, one MJoin is ahead of the others: times", runs, early, SINGLE, list(TREES), 1.09),
        _ahead(
            f"late, by {late} s, small MJoins are ahead of the others: times",
            runs,
            late,
            THREE_AND_THREE,
            list(TREES),
            1.18,
        ),
        _ahead(f"by {late} s one MJoin is behind: times", runs, late, THREE_IN_FOUR, [THREE_IN_FOUR, SINGLE], 1.15),
        _ahead("even the bushy binary plan overtakes it: times", runs, late, BUSHY, [BUSHY, SINGLE], 1.04),
        *(
            Check(
                f"the model predicts the winner at {t} s",
                _winner(runs, t) == _winner(expected, t),
                f"{_winner(runs, t)}; the model says {_winner(expected, t)}",
            )
            for t in (early, late)
        ),
        _accuracy(runs, expected, (early, middle, late)),
        at_least(
            "the best of the five plans takes longer than the one that the planner chooses: times",
            min(runs[n].finished for n in TREES) / runs[own].finished,
            1.055,
            f"{runs[own].finished:.1f} s; the best of the five {min(runs[n].finished for n in TREES):.1f} s",
        ),
        Check(
            "in the end all plans have given the same number of results",
            len({r.total for r in runs.values()}) == 1,
            f"{sorted({r.total for r in runs.values()})}",
        ),
    ]
    header = ["plan", *(f"{t} s{said}" for t in (early, middle, late) for said in ("", ", expected"))]
    header += ["finished, s", "expected", "stored rows"]
    table = [
        [
            name,
            *(figure for t in (early, middle, late) for figure in (runs[name].at(t), round(expected[name].at(t)))),
            *(f"{seconds:.1f}" for seconds in (runs[name].finished, expected[name].finished[-1])),
            runs[name].work.moves,
        ]
        for name in trees
    ]
    panels = [
        Panel("simulated", list(runs.values()), 3.5 * until, [early, late]),
        Panel("expected by the model", [_as_run(*e) for e in expected.items()], 3.5 * until, [early, late]),
    ]
    return Outcome("fig17", "Figure 17: one MJoin or several", panels, checks, header, table)


def _winner(curves: Mapping[str, Run] | Mapping[str, Forecast], seconds: float) -> str:
    """Of the paper's five plans."""
    return max(TREES, key=lambda name: curves[name].at(seconds))


def _ahead(claim: str, runs: Mapping[str, Run], seconds: float, leader: str, others: list[str], bar: float) -> Check:
    """Against the best of the others."""
    figures = {name: runs[name].at(seconds) for name in others}
    best = max(results for name, results in figures.items() if name != leader)
    shown = ", ".join(f"{name}: {results:,}" for name, results in figures.items())
    return at_least(claim, figures[leader] / best, bar, shown)


def _accuracy(runs: Mapping[str, Run], expected: Mapping[str, Forecast], times: tuple[float, ...]) -> Check:
    wrong = [(expected[name].at(t) / max(1, runs[name].at(t)) - 1, name, t) for name in runs for t in times]
    worst, name, seconds = max(wrong, key=lambda w: abs(w[0]))
    return at_most(
        "what the model expects is off by no more than a part of what comes, for all plans and times in the table",
        abs(worst),
        WITHIN,
        f"at most {worst:+.0%}: {name} at {seconds} s",
    )


def _as_run(name: str, expected: Forecast) -> Run:
    end = float(expected.finished[-1])
    return Run(name, expected.finished, expected.results, end, float(expected.arrived[-1]), Work(), 0)
