"""Figure 13: a three-way window join as one MJoin and as two binary plans.

Three inputs of a million rows at full size, S1 and S2 with a mean delay of 3 ms, S3 with 1 ms, and windows of ten
thousand rows. The paper does not say how selective its keys are: here a key has a partner in a window of S1 or S2 once
on average, and in one of S3 three times.

The windows are in time, thirty seconds, which is ten thousand rows of S1 and S2. So all plans can be made to give the
same results: the lower join of a binary plan emits the older time of its two rows as the event time of the result,
and a condition above it checks the younger one. Results come up to a window out of order then, and a slice (plans.py)
more, so the upper join has to keep the rows of its other input for longer.

There is no budget here: what a lower join under overflow gives late, from disk, would be late above. The paper's reason
for its result, that an MJoin's windows fit into memory, is looked at as the rows that each plan holds.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.paper.inputs import Stream, poisson, relation
from benchmarks.paper.machine import LOADED
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least, at_most, behind
from benchmarks.paper.plans import Join, Plan, run
from spark_mjoin.schema import TIMESTAMP

DELAYS = {"s1": 3e-3, "s2": 3e-3, "s3": 1e-3}
ROWS, WINDOW_ROWS = 1_000_000, 10_000
FIG13_BEHIND, FIG13_FASTER, FIG13_ROWS = 0.001, 1.2, 1.6  # bars


def window_join(scale: float) -> Outcome:
    """Section 3.4: results over time with windows; S3 is the fast stream."""
    rows, window_rows = round(ROWS * scale), round(WINDOW_ROWS * scale)
    micros = round(window_rows * DELAYS["s1"] * 1e6)
    streams = {name: _stream(rows, window_rows, number, DELAYS[name]) for number, name in enumerate(DELAYS, 1)}
    plans = [
        Plan("MJoin", _mjoin(micros)),
        Plan("fast high: (S1, S2), S3", _deep(micros, "s1", "s2", "s3")),
        Plan("fast low: (S1, S3), S2", _deep(micros, "s1", "s3", "s2")),
    ]
    mjoin, *binary = runs = [run(plan, streams, LOADED) for plan in plans]
    totals = {r.total for r in runs}
    end = max(r.finished for r in runs)
    checks = [
        at_most(
            "MJoin is never behind a binary plan, as a part of what that has given by then",
            behind(mjoin, binary, end),
            FIG13_BEHIND,
            f"results in all: {mjoin.total:,}",
        ),
        at_least(
            "both binary plans take longer than MJoin: times",
            min(r.finished for r in binary) / mjoin.finished,
            FIG13_FASTER,
            "finished after " + ", ".join(f"{r.finished:.0f}" for r in runs) + " virtual seconds",
        ),
        at_least(
            "MJoin holds the rows of the windows, and both binary plans more: times",
            min(r.most_rows for r in binary) / mjoin.most_rows,
            FIG13_ROWS,
            "the most rows in memory: " + ", ".join(f"{r.most_rows:,}" for r in runs),
        ),
        Check("in the end all plans have given the same number of results", len(totals) == 1, f"{totals}"),
    ]
    half = mjoin.arrived / 2
    header = [
        "plan",
        f"results at {half:.0f} s",
        "all",
        "most rows in memory",
        "comparisons",
        "moves",
        "virtual seconds",
    ]
    table = [
        [r.plan, r.at(half), r.total, r.most_rows, r.work.comparisons, r.work.moves, f"{r.finished:.0f}"] for r in runs
    ]
    panel = Panel(f"windows of {micros / 1e6:g} s, {window_rows:,} rows of S1 and S2", runs, end)
    return Outcome("fig13", "Figure 13: window joins, windows in time", [panel], checks, header, table)


def _stream(rows: int, values: int, seed: int, delay: float) -> Stream:
    seconds = poisson(rows, delay, 10 + seed)
    times = pa.array((seconds * 1e6).astype(np.int64)).cast(TIMESTAMP)
    return Stream(relation(rows, seed, k=values).append_column("ts", times), seconds)


def _in_time(micros: int, **lateness: int) -> tuple[tuple[str, str], ...]:
    out = {"window": f"{micros} microseconds"}
    for name, late in lateness.items():
        out |= {f"source.{name}.timestamp": "ts", f"source.{name}.watermark": f"{late} microseconds"}
    return tuple(out.items())


def _mjoin(micros: int) -> Join:
    query = "SELECT s1.id AS a, s2.id AS b, s3.id AS c FROM s1, s2, s3 WHERE s1.k = s2.k AND s2.k = s3.k"
    return Join("mjoin", query, ("s1", "s2", "s3"), 3, _in_time(micros, s1=0, s2=0, s3=0))


def _deep(micros: int, first: str, second: str, third: str) -> Join:
    """(first, second), third as two binary joins."""
    lower = f"SELECT {first}.k AS k, {first}.id AS a, {second}.id AS b, least({first}.ts, {second}.ts) AS ts, "
    lower += f"greatest({first}.ts, {second}.ts) AS younger FROM {first}, {second} WHERE {first}.k = {second}.k"
    upper = f"SELECT lower_join.a AS a, lower_join.b AS b, {third}.id AS c FROM lower_join, {third} "
    upper += f"WHERE lower_join.k = {third}.k AND lower_join.younger < {third}.ts + INTERVAL {micros} MICROSECONDS"
    below = Join("lower_join", lower, (first, second), 3, _in_time(micros, **{first: 0, second: 0}))
    return Join("upper_join", upper, (below, third), 2, _in_time(micros, lower_join=2 * micros, **{third: 0}))
