"""Kang, Naughton and Viglas, "Evaluating Window Joins over Unbounded Streams", figures 2 to 7: hash and scan (HJ, NLJ).

Two streams, A with ten rows a second and B with more, windows of sixty seconds, keys drawn evenly from as many values
as the window has hash buckets; the scale has no effect. The formulas are the paper's, (2) to (7). What they are
compared with is the paper's algorithm itself, a tuple at a time, which counts the tuples that it touches (`touched`):

    NLJ window   a queue: a probe touches all of it, an arrival the row itself and the one that expires
    HJ window    chains by bucket, the newest first: a probe touches one chain, an arrival the row itself, and for each
                 that expires the chain that it is at the end of

A touch costs C_n = 0.5 in NLJ and C_h = 0.65 in HJ, the paper's weights; so this is virtual time and every run is the
same. `python -m benchmarks.access` measures the same algorithm and the engine's own in seconds.

Not the engine: it works on chunks of rows, and forgets many together (`driver.access` has its model, which is shown
next to the paper's in figure 2). docs/paper.md says what follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba as nb
import numpy as np

from benchmarks.paper.outcome import Check, Graph, Graphs, at_least, at_most
from spark_mjoin.driver.access import Direction, Target, cost
from spark_mjoin.driver.calibrate import DEFAULTS
from spark_mjoin.model import LAZY, Array

RATE_A, SECONDS, C_N, C_H = 10.0, 60.0, 0.5, 0.65
RATES = tuple(float(rate) for rate in range(10, 201, 10))
JOINS = {"HHJ": (True, True), "HNJ": (True, False), "NHJ": (False, True), "NNJ": (False, False)}  # window A, window B
HELD = 1 + 0.5 / (LAZY - 1)  # of the rows in a window, in the mean, where many rows are dropped together
BATCH_SECONDS = 10.0  # between micro-batches, where the engine's model is shown


# --- the paper's model -----------------------------------------------------------------------------------------------


def nested(probing: float, rate: float, seconds: float = SECONDS, weight: float = C_N) -> float:
    """Equation 2: NLJ in one direction, per second."""
    return (probing * seconds * rate + 2 * rate) * weight


def hashed(probing: float, rate: float, keys: float, seconds: float = SECONDS, weight: float = C_H) -> float:
    """Equation 3: HJ in one direction, per second."""
    bucket = seconds * rate / keys
    return (probing * bucket + rate * (bucket + 1)) * weight


def full(join: str, rate_b: float, keys: float) -> float:
    """Equations 4 to 6: both directions."""
    of_a, of_b = JOINS[join]
    to_b = hashed(RATE_A, rate_b, keys) if of_b else nested(RATE_A, rate_b)
    to_a = hashed(rate_b, RATE_A, keys) if of_a else nested(rate_b, RATE_A)
    return to_a + to_b


def crossover(keys: float, ratio: float = C_H / C_N) -> float:
    """Equation 7: how many times faster B must be for NLJ from A to B to take less than HJ; ratio is C_h / C_n."""
    return (keys - ratio) / ratio


def engine(join: str, rate_b: float) -> float:
    """Nanoseconds per second of the engine's own model, with micro-batches every BATCH_SECONDS."""
    rates, of = (RATE_A, rate_b), JOINS[join]
    rows = [HELD * SECONDS * rate for rate in rates]
    purges = (LAZY - 1) * sum(rates) / sum(rows)
    total = 0.0
    for origin, target in ((0, 1), (1, 0)):
        direction = Direction(origin, target, (0,), rates[origin], 1 / BATCH_SECONDS)
        scans = frozenset[int]() if of[target] else frozenset((origin,))
        total += cost(Target(rows[target], rates[target], purges), [direction], scans, DEFAULTS)
    return 1e9 * total


# --- the paper's algorithm -------------------------------------------------------------------------------------------


@nb.njit(cache=True)
def touched(  # type: ignore[no-untyped-def]
    times, sides, keys, windows, buckets, is_hashed, probed, scans, hashes, results
) -> None:
    """For every arrival: tuples touched by NLJ and by HJ, and results.

    sides: 0 for A, 1 for B; windows: seconds of each; is_hashed: whether each window has chains; probed: whether it is
    probed at all, and therefore kept.
    """
    n = times.size
    head = np.full((2, buckets), -1, np.int64)
    link = np.full(n, -1, np.int64)
    queue = np.empty((2, n), np.int64)
    queue_keys, queue_times = np.empty((2, n), np.int64), np.empty((2, n))
    first, last = np.zeros(2, np.int64), np.zeros(2, np.int64)
    for i in range(n):
        own, key, now = sides[i], keys[i], times[i]
        other = 1 - own
        if probed[other]:
            oldest = now - windows[other]
            if is_hashed[other]:
                row = head[other, key % buckets]
                while row >= 0:
                    hashes[i] += 1
                    if keys[row] == key and times[row] > oldest:
                        results[i] += 1
                    row = link[row]
            else:
                for at in range(first[other], last[other]):
                    if queue_keys[other, at] == key and queue_times[other, at] > oldest:
                        results[i] += 1
                scans[i] += last[other] - first[other]
        if probed[own]:
            queue[own, last[own]], queue_keys[own, last[own]], queue_times[own, last[own]] = i, key, now
            last[own] += 1
            if is_hashed[own]:
                link[i] = head[own, key % buckets]
                head[own, key % buckets] = i
                hashes[i] += 1
            else:
                scans[i] += 1
            while times[queue[own, first[own]]] <= now - windows[own]:
                expired = queue[own, first[own]]
                first[own] += 1
                if is_hashed[own]:
                    bucket = keys[expired] % buckets
                    row = head[own, bucket]
                    before = row
                    hashes[i] += 1
                    while row != expired:
                        hashes[i] += 1
                        before = row
                        row = link[row]
                    if before == row:
                        head[own, bucket] = link[row]
                    else:
                        link[before] = link[row]
                else:
                    scans[i] += 1


class Run:
    """Arrivals of A and B, evenly spaced, and what they touch. Rates are per second."""

    def __init__(self, rate_b: float, keys: int, seconds: float = 2 * SECONDS, rate_a: float = RATE_A) -> None:
        dice = np.random.default_rng((7, keys, round(rate_b)))
        each = [(np.arange(round(rate * seconds)) + 0.5) / rate for rate in (rate_a, rate_b)]
        times, sides = np.concatenate(each), np.repeat([0, 1], [each[0].size, each[1].size])
        order = np.argsort(times, kind="stable")
        self.times, self.sides = times[order], sides[order]
        self.keys = dice.integers(0, keys, times.size)
        self._buckets = keys

    def touches(self, hashed_a: bool, hashed_b: bool, one_way: bool = False) -> tuple[Array, Array, Array]:
        """Per arrival: touches of NLJ, of HJ, and results. one_way: rows of A probe B, and that is all."""
        scans, hashes, results = (np.zeros(self.times.size, np.int64) for _ in range(3))
        arrays = [np.array(of) for of in ((SECONDS, SECONDS), (hashed_a, hashed_b), (not one_way, True))]
        windows, is_hashed, probed = arrays
        touched(self.times, self.sides, self.keys, windows, self._buckets, is_hashed, probed, scans, hashes, results)
        return scans, hashes, results

    def cost(self, hashed_a: bool, hashed_b: bool, one_way: bool = False) -> float:
        """Per second, when the windows are full."""
        scans, hashes, _ = self.touches(hashed_a, hashed_b, one_way)
        full = self.times >= SECONDS
        return float((C_N * scans + C_H * hashes)[full].sum() / (self.times[-1] - SECONDS))


def rows_at(rates: Sequence[float], curves: Mapping[str, Sequence[float]]) -> list[list[object]]:
    """Rows of a table: some rates of B, and the curves there."""
    return [[f"{rate:.0f}", *(f"{of[RATES.index(rate)]:.1f}" for of in curves.values())] for rate in rates]


def first_where(at: Sequence[float], less: Sequence[float], more: Sequence[float]) -> float:
    """Where one curve first goes below another, between the points."""
    for n in range(1, len(at)):
        before, after = less[n - 1] - more[n - 1], less[n] - more[n]
        if after < 0 <= before:
            return float(at[n - 1] + (at[n] - at[n - 1]) * before / (before - after))
    return float("inf") if less[-1] >= more[-1] else float(at[0])


def turning_point(
    less: Callable[[float], float], more: Callable[[float], float], low: float, high: float, step: float = 0.05
) -> float:
    """The ratio of rates from which on `less` is below `more`, by bisection."""
    while high - low > step:
        middle = (low + high) / 2
        low, high = (low, middle) if less(middle) < more(middle) else (middle, high)
    return (low + high) / 2


# --- figures ---------------------------------------------------------------------------------------------------------


def cost_curves(scale: float) -> Graphs:
    """Figures 2 and 3: the model cost of the four full joins, with 10 and 20 keys; and the engine's own model."""
    graphs, crossings, table = [], [], []
    for keys, number in ((10, 2), (20, 3)):
        curves = {join: [full(join, rate, keys) / 1000 for rate in RATES] for join in JOINS}
        crossings.append(first_where(RATES, curves["HNJ"], curves["HHJ"]))
        title = f"figure {number}: {keys} keys"
        graphs.append(Graph(title, "rows of B per second", "cost, thousands", RATES, curves, crossings[-1:]))
        table += [[title, *row] for row in rows_at((10, 70, 140, 200), curves)]
    ours = {join: [engine(join, rate) / 1000 for rate in RATES] for join in JOINS}
    graphs.append(Graph("this engine, a batch every 10 s", "rows of B per second", "µs per second", RATES, ours))
    best = [[min(JOINS, key=lambda j: full(j, rate, keys)) for rate in RATES[1:]] for keys in (10, 20)]
    table += [["this engine, µs per second", *row] for row in rows_at((10, 70, 140, 200), ours)]
    engines_best = [min(JOINS, key=lambda j: engine(j, rate)) for rate in RATES[1:]]
    checks = [
        Check(
            "either HHJ or HNJ is the cheapest, with 10 keys and with 20",
            set(best[0]) == set(best[1]) == {"HHJ", "HNJ"},
            ", ".join(best[0]),
        ),
        _crossing("with 10 keys HHJ is cheapest until B has about 70 rows a second, then HNJ", crossings[0], 70),
        _crossing("with 20 keys until about 140", crossings[1], 140),
        Check(
            "with this engine's model too, an asymmetric join is the cheapest when B is fast",
            engines_best[-1] == "HNJ",
            f"{engines_best[-1]} at 200 rows a second",
            expected=False,
        ),
    ]
    header = ["figure", "rows of B per second", *JOINS]
    return Graphs("kang2", "Kang 2003, figures 2 and 3: cost of window joins", [], checks, header, table, graphs)


NEAR = 0.1  # of what the paper reads from its curves, in steps of ten rows


def _crossing(claim: str, found: float, there: float) -> Check:
    return at_most(f"{claim}: off by", abs(found / there - 1), NEAR, f"from {found:.0f} on")


def one_way(scale: float) -> Graphs:
    """Figure 4: what the algorithm does against what the model says, for joins from A to B."""
    runs = [Run(rate, 10) for rate in RATES]
    curves = {
        "NLJ, counted": [r.cost(False, False, True) / 1000 for r in runs],
        "HJ, counted": [r.cost(False, True, True) / 1000 for r in runs],
        "NLJ, model": [nested(RATE_A, rate) / 1000 for rate in RATES],
        "HJ, model": [hashed(RATE_A, rate, 10) / 1000 for rate in RATES],
    }
    kinds = ("counted", "model")
    crossings = [first_where(RATES, curves[f"NLJ, {kind}"], curves[f"HJ, {kind}"]) for kind in kinds]
    off = max(
        abs(a / b - 1)
        for j in ("NLJ", "HJ")
        for a, b in zip(curves[f"{j}, counted"], curves[f"{j}, model"], strict=True)
    )
    checks = [
        at_most("the model says what the algorithm does: off by", off, 0.015, "at the most"),
        _crossing("counted, NLJ takes less than HJ from about 70 rows of B a second on", crossings[0], 70),
        _crossing("and by the model", crossings[1], 70),
    ]
    table = rows_at((10, 40, 70, 100, 200), curves)
    graph = Graph("joins from A to B, 10 keys", "rows of B per second", "cost, thousands", RATES, curves, crossings[:1],
                  frozenset(name for name in curves if "model" in name))  # fmt: skip
    header = ["rows of B per second", *curves]
    return Graphs("kang4", "Kang 2003, figure 4: the algorithm and the model", [], checks, header, table, [graph])


def crossovers(scale: float) -> Graphs:
    """Figure 5: where NLJ starts to take less than HJ, over the number of keys."""
    keys = list(range(5, 51, 5))

    def counted(count: int) -> float:
        def of(is_hashed: bool) -> Callable[[float], float]:
            return lambda ratio: Run(RATE_A * ratio, count).cost(False, is_hashed, True)

        return turning_point(of(False), of(True), 0.5, count)

    found, said = [counted(count) for count in keys], [crossover(count) for count in keys]
    off = max(abs(a - b) / max(b, 1.0) for a, b in zip(found, said, strict=True))
    steps = np.diff(found)
    checks = [
        at_most("equation 7 predicts the crossover: off by", off, 0.01, "at the most"),
        at_most(
            "the number of keys is all that determines it: steps for five keys more differ by",
            float(1 - steps.min() / steps.max()),
            0.03,
            f"{steps.min():.2f} to {steps.max():.2f}",
        ),
    ]
    curves = {"counted": found, "equation 7": said}
    graph = Graph("crossover", "keys in B", "rate of B / rate of A", keys, curves, (), frozenset(("equation 7",)))
    table = [[str(k), f"{a:.1f}", f"{b:.1f}"] for k, a, b in zip(keys, found, said, strict=True)]
    title = "Kang 2003, figure 5: where NLJ starts to outperform HJ"
    return Graphs("kang5", title, [], checks, ["keys", *curves], table, [graph])


def full_joins(scale: float) -> Graphs:
    """Figure 6: the work of the four full joins, as the algorithm counts it."""
    runs = [Run(rate, 10) for rate in RATES]
    curves = {join: [r.cost(*of) / 1000 for r in runs] for join, of in JOINS.items()}
    crossing = first_where(RATES, curves["HNJ"], curves["HHJ"])
    best = [min(JOINS, key=lambda j: curves[j][n]) for n in range(len(RATES))]
    checks = [
        _crossing("HHJ outperforms all others until about 70 rows of B a second, then HNJ", crossing, 70),
        Check("either HHJ or HNJ wins where B is the faster stream", set(best[1:]) == {"HHJ", "HNJ"}, ", ".join(best)),
    ]
    table = rows_at((10, 40, 70, 100, 200), curves)
    graph = Graph("four full joins, 10 keys", "rows of B per second", "cost, thousands", RATES, curves, (crossing,))
    title = "Kang 2003, figure 6: four full joins"
    return Graphs("kang6", title, [], checks, ["rows of B per second", *curves], table, [graph])


FALLS, GRACE = 0.11, 1.17  # bars


def output_rates(scale: float) -> Graphs:
    """Figure 7: results per second on a machine that can do what one-way HJ needs for 120 rows of B a second."""
    rates = [float(rate) for rate in range(10, 301, 10)]
    per_second = Run(120.0, 10).cost(False, True, True)
    ways: dict[str, tuple[Any, ...]] = {
        "HJ one way": (False, True, True),
        "NLJ one way": (False, False, True),
        "HHJ": (True, True),
        "HNJ": (True, False),
    }
    curves: dict[str, list[float]] = {name: [] for name in ways}
    keeps_up = dict.fromkeys(ways, 0.0)
    for rate in rates:
        run = Run(rate, 10, 3 * SECONDS)
        for name, way in ways.items():
            scans, hashes, results = run.touches(*way)
            need = (C_N * scans + C_H * hashes) / per_second
            spent = np.cumsum(need)
            finished = spent + np.maximum.accumulate(run.times - (spent - need))  # in order, never before arrival
            inside = (finished >= 2 * SECONDS) & (finished < 3 * SECONDS)
            curves[name].append(float(results[inside].sum() / SECONDS))
            if finished[-1] < 3 * SECONDS + 1:
                keeps_up[name] = rate
    there = {name: curves[name][rates.index(keeps_up[name])] for name in ways}
    later = {name: min(1.5 * keeps_up[name] // 10 * 10, rates[-1]) for name in ("HHJ", "HNJ")}
    falls = {name: curves[name][rates.index(at)] / there[name] for name, at in later.items()}
    checks = [
        Check(
            "one-way HJ thrashes from 120 rows of B a second on, HHJ a little earlier",
            110 <= keeps_up["HJ one way"] <= 130 and 100 <= keeps_up["HHJ"] < keeps_up["HJ one way"],
            f"they keep up with {keeps_up['HJ one way']:.0f} and {keeps_up['HHJ']:.0f}",
        ),
        Check("HNJ keeps up until 160 to 190", 160 <= keeps_up["HNJ"] <= 190, f"until {keeps_up['HNJ']:.0f}"),
        at_most(
            "where HNJ thrashes it gives 1.6 times what HHJ gives where it does (18,939 against 11,844 there): off by",
            abs(there["HNJ"] / there["HHJ"] / (18_939 / 11_844) - 1),
            0.07,
            f"{there['HNJ']:,.0f} against {there['HHJ']:,.0f} results a second",
        ),
        at_least(
            "past that point the output of HHJ falls, and that of HNJ degrades more gracefully: part that HHJ loses",
            1 - falls["HHJ"],
            FALLS,
            f"at 1.5 times the rate {falls['HHJ']:.0%} and {falls['HNJ']:.0%} of what there was",
        ),
        at_least(
            "at 1.5 times the rate HNJ has more left of its output than HHJ: times",
            falls["HNJ"] / falls["HHJ"],
            GRACE,
            f"{falls['HNJ']:.0%} and {falls['HHJ']:.0%}",
        ),
    ]
    table = [[name, f"{keeps_up[name]:.0f}", f"{there[name]:,.0f}", f"{curves[name][-1]:,.0f}"] for name in ways]
    graph = Graph("a machine for 120 rows of B", "rows of B per second", "results per second", rates, curves)
    header = ["join", "keeps up with rows of B per second", "results per second there", "at 300 rows of B"]
    return Graphs("kang7", "Kang 2003, figure 7: output rates", [], checks, header, table, [graph])
