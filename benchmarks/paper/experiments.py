"""The experiments: inputs, plans, and what the papers conclude from them. `EXPERIMENTS` lists them.

A scale of 1 is the paper's cardinalities; delays are the paper's at every scale, so a smaller run is a shorter one.
Memory is given in bytes per input row of the experiment, so it shrinks with the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from benchmarks.paper import by_default as default
from benchmarks.paper import (
    inputs,
    kang,
    orders,
    pmjoin_partitions,
    pmjoin_plans,
    pmjoin_queries,
    punctuations,
    resources,
    scheduling,
    windows,
)
from benchmarks.paper.decomposition import decomposition
from benchmarks.paper.inputs import MS, Stream, attribute, changing, poisson, relation
from benchmarks.paper.machine import AHEAD, LOADED
from benchmarks.paper.outcome import SLICE, Check, Outcome, Panel, at_least, at_most, behind, complete
from benchmarks.paper.plans import Join, Plan, run
from benchmarks.paper.six_way import six_way
from benchmarks.paper.state_manager import pipeline
from benchmarks.paper.virtual import Run
from spark_mjoin.model import Array


@dataclass(frozen=True)
class Experiment:
    run: Callable[[float], Outcome]
    scale: float  # unless another is asked for


# --- figure 11 -----------------------------------------------------------------------------------------------------

FAST, SLOW, STEADY = 1.1 * MS, 25 * MS, 7 * MS  # mean delays; the paper does not give its own
FAST_SHARE = 0.45  # of the rows of S3 in each of its two fast phases
FIG11_BYTES = 26
FIG11_DRAWS = 5  # of the streams: when a binary plan happens to flush decides more than its shape in any one of them
FIG11_BEHIND = 0.01  # bars: see outcome.at_least
FIG11_AHEAD = 1.085
FIG11_SWITCHES = (1.035, 1.04, 1.045)  # of each phase


def fluctuating(scale: float) -> Outcome:
    """Section 3.2: key-to-key join of three streams; the third is fast, slow, and fast again."""
    rows, rows3 = round(100_000 * scale), round(200_000 * scale)
    fast = round(rows3 * FAST_SHARE)
    phases = [(fast, FAST), (rows3 - 2 * fast, SLOW), (fast, FAST)]
    memory = FIG11_BYTES * (2 * rows + rows3)
    plans = [
        Plan("MJoin", _three_way("unique1"), "random", memory),
        Plan("S3 high: (S1, S2), S3", _deep("unique1", "s1", "s2", "s3"), "random", memory),
        Plan("S3 low: (S1, S3), S2", _deep("unique1", "s1", "s3", "s2"), "random", memory),
    ]
    drawn, in_phase, most_behind = list[tuple[list[Run], list[float]]](), np.zeros((3, len(plans)), np.int64), 0.0
    for draw in range(FIG11_DRAWS):
        seed = 100 * draw
        streams = {
            "s1": Stream(relation(rows, seed + 1, unique1=rows), poisson(rows, STEADY, seed + 11)),
            "s2": Stream(relation(rows, seed + 2, unique1=rows), poisson(rows, STEADY, seed + 12)),
            "s3": Stream(relation(rows3, seed + 3, unique1=rows3), changing(phases, seed + 13)),
        }
        found = [run(plan, streams, LOADED) for plan in plans]
        bounds = [0.0, *(float(streams["s3"].seconds[n - 1]) for n in np.cumsum([n for n, _ in phases]))]
        in_phase += [[r.between(a, b) for r in found] for a, b in pairwise(bounds)]
        most_behind = max(most_behind, behind(found[0], found[1:], found[0].arrived))
        drawn.append((found, bounds))
    (runs, bounds), (mjoin, *_) = drawn[0], drawn[0][0]
    names = ("fast", "slow", "fast again")
    last = ", ".join(f"{r.at(mjoin.arrived):,}" for r in runs)
    checks = [
        at_most(
            "MJoin is never behind a binary plan, as a part of what that has given by then",
            most_behind,
            FIG11_BEHIND,
            f"at the last arrival of the first drawing: {last}",
        ),
        *(
            at_least(
                f"while S3 is {name}, MJoin gives more than the better binary plan: times",
                in_mjoin / max(in_high, in_low),
                FIG11_AHEAD,
                f"{in_mjoin:,} to {max(in_high, in_low):,}",
            )
            for name, (in_mjoin, in_high, in_low) in list(zip(names, in_phase.tolist(), strict=True))[1:]
        ),
        *(
            at_least(
                f"while S3 is {name}, the plan with S3 {'low' if name == 'slow' else 'high'} gives more: times",
                in_low / in_high if name == "slow" else in_high / in_low,
                bar,
                f"high {in_high:,}, low {in_low:,}",
            )
            for name, bar, (_, in_high, in_low) in zip(names, FIG11_SWITCHES, in_phase.tolist(), strict=True)
        ),
        complete([r for found, _ in drawn for r in found]),
    ]
    rows_out = [[name, *figures] for name, figures in zip(names, in_phase.tolist(), strict=True)]
    panel = Panel("S3 fast, slow, fast", runs, mjoin.arrived * 1.1, bounds[1:])
    return Outcome(
        "fig11", "Figure 11: fluctuating rates", [panel], checks, ["S3 is", *(r.plan for r in runs)], rows_out
    )


# --- figure 12 and table 1 -----------------------------------------------------------------------------------------


FIG12_BEHIND = 0.005


def probing(scale: float) -> Outcome:
    """Section 3.3: an inflating three-way join, with probing orders that are right and wrong."""
    rows, rows2, values = round(10_000 * scale), round(15_000 * scale), round(1_000 * scale)
    streams = {
        "s1": Stream(relation(rows, 1, thousand=values), poisson(rows, 20 * MS, 11)),
        "s2": Stream(relation(rows2, 2, thousand=values), poisson(rows2, 20 * MS, 12)),
        "s3": Stream(relation(rows, 3, thousand=values), poisson(rows, 5 * MS, 13)),
    }
    mjoin = _three_way("thousand")
    plans = [
        Plan("MJoin, smallest first", mjoin),
        Plan("MJoin, largest first", mjoin, order="largest"),
        Plan("MJoin, declared by final sizes", mjoin, order=(rows, rows2, rows - 1)),
        Plan("MJoin, adaptive", mjoin, order="adaptive"),
        Plan("XJoin (S1, S2), S3", _deep("thousand", "s1", "s2", "s3")),
        Plan("XJoin (S1, S3), S2", _deep("thousand", "s1", "s3", "s2")),
    ]
    right, wrong, _, adaptive, deep, _ = runs = [run(plan, streams, LOADED) for plan in plans]
    late = right.arrived
    points = np.linspace(0, late, 51)[1:]
    overtaken = [t for t in points if wrong.at(t + SLICE * late) < 0.99 * deep.at(t)]
    spent = [f"{r.work.seconds(LOADED):.0f}" for r in (right, wrong, deep)]
    checks = [
        at_least(
            "the wrong order needs more comparisons than the right one: times",
            wrong.work.comparisons / right.work.comparisons,
            1.03,
            f"{wrong.work.comparisons:,} to {right.work.comparisons:,}",
        ),
        Check(
            "and no more hashes of stored rows, or moves",
            wrong.work.moves == right.work.moves and _stored(wrong) == _stored(right),
            f"moves {wrong.work.moves:,} and {right.work.moves:,}",
        ),
        at_most(
            "adaptive orders need no more comparisons than the right one: times",
            adaptive.work.comparisons / right.work.comparisons,
            1.001,
            f"{adaptive.work.comparisons:,} to {right.work.comparisons:,}",
        ),
        at_least(
            "MJoin needs more comparisons than XJoin: times",
            right.work.comparisons / deep.work.comparisons,
            1.005,
            f"{right.work.comparisons:,} to {deep.work.comparisons:,}",
        ),
        at_least(
            "and XJoin many more hashes of stored rows and moves than MJoin: times",
            min(deep.work.moves / right.work.moves, _stored(deep) / _stored(right)),
            3.1,
            f"moves {deep.work.moves:,} to {right.work.moves:,}",
        ),
        at_most(
            "MJoin in the right order is never behind any other plan, as a part of what that has given by then",
            behind(right, runs, late),
            FIG12_BEHIND,
            f"results at {late * 2 / 3:.0f} s: " + ", ".join(f"{r.at(late * 2 / 3):,}" for r in runs),
        ),
        Check(
            "in the wrong order MJoin falls behind XJoin at some point",
            bool(overtaken),
            f"never; work: {spent[0]} s in the right order, {spent[1]} s in the wrong one, {spent[2]} s for XJoin"
            if not overtaken
            else f"from {overtaken[0]:.0f} s",
            expected=False,
        ),
        complete(runs),
    ]
    header = ["plan", "hashes, stored rows", "hashes, all", "moves", "comparisons", "virtual seconds of work"]
    table = [
        [r.plan, _stored(r), r.work.hashes, r.work.moves, r.work.comparisons, f"{r.work.seconds(LOADED):.1f}"]
        for r in runs
    ]
    panel = Panel("probing order", runs, max(r.finished for r in runs))
    return Outcome("fig12", "Figure 12 and table 1: probing order", [panel], checks, header, table)


def _stored(r: Run) -> int:
    """Hashes of rows that were stored, which is what the paper counts; the engine counts those of probes too."""
    return r.work.hashes - r.work.probes


# --- the six-way star ----------------------------------------------------------------------------------------------

STAR_INPUTS, STAR_BYTES, STAR_BAR = 6, 10.4, 12.0
POLICIES = ("adaptive", "coordinated", "largest", "random")


def star(scale: float, policies: Sequence[str] = POLICIES) -> Outcome:
    """Six streams with a common key, two rows of each key in each, and memory for a part of them."""
    rows = round(40_000 * scale)
    names = [f"s{i}" for i in range(1, STAR_INPUTS + 1)]
    streams = {
        name: Stream(relation(rows, i, k=rows // 2), poisson(rows, 5 * MS, 100 + i)) for i, name in enumerate(names)
    }
    memory = int(STAR_BYTES * rows * STAR_INPUTS)
    runs = [run(Plan(policy, _star(names), policy, memory), streams, AHEAD) for policy in policies]
    scattered = runs[policies.index("random")]
    half = min(r.finished for r in runs) / 2
    arriving = scattered.arrived / 2
    checks = [
        at_least(
            f"in the first half of the run {r.plan} gives more results than random flushing: times",
            r.at(half) / max(1, scattered.at(half)),
            STAR_BAR,
            f"{r.at(half):,} to {scattered.at(half):,} by {half:.0f} s; in the first half of the arrivals "
            f"{r.at(arriving) / max(1, scattered.at(arriving)):.1f} times",
        )
        for r in runs
        if r.plan in ("adaptive", "coordinated")
    ]
    header = ["policy", "first half of the arrivals", "first half of the run", "before clean-up", "all", "seconds"]
    table = [[r.plan, r.at(arriving), r.at(half), r.before_clean_up, r.total, f"{r.finished:.1f}"] for r in runs]
    panel = Panel("six-way star", runs, max(r.finished for r in runs), [half])
    return Outcome("star", "Six-way star join: flush policies", [panel], [*checks, complete(runs)], header, table)


# --- PermJoin ------------------------------------------------------------------------------------------------------

PERM_BYTES = 13.7
NEAR = 0.95  # of the best policy
PERM_BARS = {"skewed": 2.6, "sorted": 1.035, "bursty": 1.035, "uneven": 1.24}


def permjoin(scale: float, policies: Sequence[str] = POLICIES, only: Sequence[str] = ()) -> Outcome:
    """Flush policies on inputs that are skewed, sorted, bursty, of uneven length: results before the clean-up."""
    rows = round(20_000 * scale)
    names = ["s1", "s2", "s3"]
    cases = {"skewed": _skewed, "sorted": _sorted, "bursty": _bursty, "uneven": _uneven}
    panels, table, checks = [], [], []
    for case in only or cases:
        streams = dict(zip(names, cases[case](rows), strict=True))
        memory = int(PERM_BYTES * rows * len(names))
        runs = [run(Plan(p, _star(names), p, memory), streams, AHEAD, blocking=0.2) for p in policies]
        best = max(runs, key=lambda r: r.before_clean_up)
        adaptive = runs[policies.index("adaptive")]
        table += [[case, r.plan, r.before_clean_up, r.total, f"{r.before_clean_up / r.total:.3f}"] for r in runs]
        scattered = runs[policies.index("random")]
        checks += [
            at_least(
                f"{case}: adaptive gives the most before the clean-up, or nearly: part of the most",
                adaptive.before_clean_up / best.before_clean_up,
                NEAR,
                ", ".join(f"{r.plan} {r.before_clean_up:,}" for r in runs) + f" of {adaptive.total:,}",
            ),
            at_least(
                f"{case}: adaptive gives more than random flushing: times",
                adaptive.before_clean_up / scattered.before_clean_up,
                PERM_BARS[case],
                f"{adaptive.before_clean_up:,} to {scattered.before_clean_up:,}",
            ),
        ]
        checks.append(complete(runs))
        panels.append(Panel(case, runs, max(r.ended for r in runs)))
    header = ["input", "policy", "before clean-up", "all", "share"]
    return Outcome("permjoin", "PermJoin: adaptive flushing against others", panels, checks, header, table)


def by_default(scale: float) -> Outcome:
    """One join with nothing set but its memory: results by the last arrival."""
    return default.by_default(round(12_000 * scale), {"steady": _steady, "bursty": _bursty, "skewed": _skewed})


def _steady(rows: int) -> list[Stream]:
    """Four rows of each key in every input, all at the same rate."""
    return [Stream(_keyed(attribute(rows, rows // 4, 400 + s)), poisson(rows, 5 * MS, 410 + s)) for s in (1, 2, 3)]


def _skewed(rows: int) -> list[Stream]:
    """Few keys have many rows: Zipf with exponent 0.5, the same hot keys in all inputs."""
    values = rows // 4
    weights = np.arange(1, values + 1) ** -0.5
    names = attribute(values, values, 7)  # so that hot keys are not neighbours
    out = []
    for seed in (1, 2, 3):
        random = np.random.Generator(np.random.Philox(200 + seed))
        keys = names[random.choice(values, rows, p=weights / weights.sum())]
        out.append(Stream(_keyed(keys), poisson(rows, 5 * MS, 210 + seed)))
    return out


def _sorted(rows: int) -> list[Stream]:
    """Keys ascend in all inputs, up to a disorder of 5 % of the rows; four rows of a key in each."""
    out = []
    for seed in (1, 2, 3):
        random = np.random.Generator(np.random.Philox(220 + seed))
        position = np.arange(rows) + random.uniform(0, 0.05 * rows, rows)
        keys = np.argsort(position, kind="stable") // 4
        out.append(Stream(_keyed(keys), poisson(rows, 5 * MS, 230 + seed)))
    return out


def _bursty(rows: int) -> list[Stream]:
    """Twenty bursts, in which one input after the other sends, and pauses between them."""
    out = []
    for seed in (1, 2, 3):
        unit = np.random.Generator(np.random.Philox(240 + seed)).exponential(1 * MS, rows)
        burst = np.arange(rows) * 20 // rows
        length = rows / 20 * 1 * MS
        starts = burst * length * 8 + (seed - 1) * length  # three bursts, then five times as long nothing
        within: Array = np.concatenate([np.cumsum(unit[burst == b]) for b in range(20)])
        out.append(Stream(_keyed(attribute(rows, rows // 4, 250 + seed)), np.sort(starts + within)))
    return out


def _uneven(rows: int) -> list[Stream]:
    """One input has each key once and ends early, as S1 of table 2 does; the others go on."""
    values = rows // 8
    short = Stream(_keyed(attribute(values, values, 261)), poisson(values, 1 * MS, 271))
    return [short, *(Stream(_keyed(attribute(rows, values, 260 + s)), poisson(rows, 5 * MS, 270 + s)) for s in (2, 3))]


def _keyed(keys: Array) -> pa.RecordBatch:
    return inputs.batch({"id": np.arange(keys.size, dtype=np.int64), "k": keys.astype(np.int64)})


# --- queries -------------------------------------------------------------------------------------------------------


def _three_way(key: str) -> Join:
    names = ("s1", "s2", "s3")
    query = (
        f"SELECT s1.id AS a, s2.id AS b, s3.id AS c FROM s1, s2, s3 WHERE s1.{key} = s2.{key} AND s2.{key} = s3.{key}"
    )
    return Join("mjoin", query, names, 3)


def _deep(key: str, first: str, second: str, third: str) -> Join:
    """(first, second), third as two binary joins."""
    lower = f"SELECT {first}.{key} AS k, {first}.id AS a, {second}.id AS b FROM {first}, {second}"
    lower += f" WHERE {first}.{key} = {second}.{key}"
    upper = f"SELECT lower_join.a AS a, lower_join.b AS b, {third}.id AS c FROM lower_join, {third}"
    upper += f" WHERE lower_join.k = {third}.{key}"
    return Join("upper_join", upper, (Join("lower_join", lower, (first, second), 2), third), 2)


def _star(names: Sequence[str]) -> Join:
    columns = ", ".join(f"{name}.id AS id_{name}" for name in names)
    equal = " AND ".join(f"{names[0]}.k = {name}.k" for name in names[1:])
    return Join("star", f"SELECT {columns} FROM {', '.join(names)} WHERE {equal}", tuple(names), len(names))


EXPERIMENTS = {
    "fig11": Experiment(fluctuating, 0.25),
    "fig12": Experiment(probing, 1.0),
    "orders": Experiment(orders.orders, 1.0),
    "fig13": Experiment(windows.window_join, 0.05),
    "fig15": Experiment(six_way, 0.1),
    "fig17": Experiment(decomposition, 1.0),
    "star": Experiment(star, 0.25),
    "permjoin": Experiment(permjoin, 0.5),
    "pipeline": Experiment(pipeline, 0.5),
    "default": Experiment(by_default, 0.5),
    "kang2": Experiment(kang.cost_curves, 1.0),
    "kang4": Experiment(kang.one_way, 1.0),
    "kang5": Experiment(kang.crossovers, 1.0),
    "kang6": Experiment(kang.full_joins, 1.0),
    "kang7": Experiment(kang.output_rates, 1.0),
    "kang8": Experiment(resources.admission, 1.0),
    "kang9": Experiment(resources.memory, 1.0),
    "kang10": Experiment(resources.both, 1.0),
    "kang11": Experiment(resources.surface, 1.0),
    "ding8": Experiment(scheduling.figure_8, 0.125),
    "ding9": Experiment(punctuations.against_xjoin, 0.25),
    "ding10": Experiment(punctuations.memory, 0.25),
    "ding11": Experiment(punctuations.immediate_or_batch, 0.25),
    "pmjoin5": Experiment(pmjoin_plans.figure_5, 1.0),
    "pmjoin6": Experiment(pmjoin_plans.figure_6, 1.0),
    "pmjoin7": Experiment(pmjoin_plans.figure_7, 1.0),
    "pmjoin8": Experiment(pmjoin_partitions.figure_8, 1.0),
    "pmjoin9": Experiment(pmjoin_partitions.figure_9, 1.0),
    "pmjoin10": Experiment(pmjoin_partitions.figure_10, 1.0),
    "pmjoin11": Experiment(pmjoin_queries.figure_11, 1.0),
}
