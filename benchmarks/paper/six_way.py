"""Figure 15: two star joins of three streams and a join of their results, under overflow (section 3.5, table 2).

All plans are the product's own, by its options: `plan` says which joins there are, `flush` which rows are evicted,
and `memory` is one budget over all of them. No option divides it. The paper's plans do no disk work while rows
arrive; the last one does what the state manager says (PermJoin).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.paper.inputs import MS, Stream, poisson, relation
from benchmarks.paper.machine import AHEAD
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least, complete
from benchmarks.paper.pipelines import Disk, Query, run_query
from benchmarks.paper.virtual import Run

ROW_BYTES, FEW_BYTES = 90, 54  # of memory, per row of the inputs
FUEL = "64k"  # of disk work in a batch: a run has a few hundred of them
DRAWS = 3  # of the streams, to compare adaptive flushing: when a plan happens to flush decides some per cent
NEARLY = 0.9  # of coordinated flushing
# Results with coordinated flushing over those of others, when all has arrived: half of what was measured above 1.
OVER_RANDOM, OVER_XJOINS, OVER_LARGEST, OVER_RANDOM_TIGHT = 1.23, 1.43, 1.3, 1.37

QUERY = (
    "SELECT s1.id AS a, s2.id AS b, s3.id AS c, s4.id AS d, s5.id AS e, s6.id AS f FROM s1, s2, s3, s4, s5, s6 "
    "WHERE s1.unique1 = s2.tenk6 AND s1.unique1 = s3.tenk6 AND s4.unique1 = s5.tenk6 AND s4.unique1 = s6.tenk6 "
    "AND s2.unique14 = s5.unique14"
)
MJOINS, XJOINS = "((s1 s2 s3) (s4 s5 s6))", "(((s1 s2) s3) ((s4 s5) s6))"


def six_way(scale: float) -> Outcome:
    """Section 3.5: two star joins of three streams and a join of their results (table 2)."""
    streams = table_2(scale)
    runs = [run_query(query, streams, AHEAD) for query in queries(streams)]
    coordinated, scattered, adaptive, xjoin, xjoin_largest, _, *tight = runs
    arrived = coordinated.arrived
    shown = [arrived * k / 4 for k in (1, 2, 3, 4)]

    def ahead(upper: Run, lower: Run, claim: str, times: float) -> list[Check]:
        """A flush is a pause, in which a plan may be overtaken by one that flushes later."""
        points = np.linspace(0.6 * arrived, arrived, 21)
        figures = "at each quarter: " + ", ".join(f"{upper.at(t):,} to {lower.at(t):,}" for t in shown)
        return [
            at_least(
                f"{claim}: results when all has arrived: times", upper.at(arrived) / lower.at(arrived), times, figures
            ),
            Check(
                "and above in the last 40 % of the arrivals", all(upper.at(t) > lower.at(t) for t in points), figures
            ),
        ]

    checks = [
        *ahead(coordinated, scattered, "coordinated flushing against random flushing", OVER_RANDOM),
        *ahead(coordinated, xjoin, "coordinated flushing against the plan of XJoins", OVER_XJOINS),
        *ahead(
            coordinated,
            xjoin_largest,
            "coordinated flushing against XJoins that flush their largest bucket",
            OVER_LARGEST,
        ),
        *ahead(tight[0], tight[1], "with less memory, coordinated against random flushing", OVER_RANDOM_TIGHT),
        _nearly("", [(adaptive, coordinated), *(_drawn_again(scale, draw) for draw in range(1, DRAWS))], NEARLY),
        _nearly("with less memory, ", [(tight[2], tight[0])], NEARLY, expected=False),
        complete(runs),
    ]
    header = ["plan", *(f"results at {t:.1f} s" for t in shown), "before clean-up", "all", "virtual seconds in all"]
    table = [[r.plan, *(r.at(t) for t in shown), r.before_clean_up, r.total, f"{r.finished:.1f}"] for r in runs]
    panels = [
        Panel("while the inputs arrive", runs, arrived * 1.02),
        Panel("to the end of the clean-up", runs, max(r.finished for r in runs), [r.ended for r in runs]),
    ]
    return Outcome("fig15", "Figure 15: coordinated flushing on the six-way join", panels, checks, header, table)


def _nearly(memory: str, drawn: Sequence[tuple[Run, Run]], bar: float, expected: bool = True) -> Check:
    """That adaptive flushing gives nearly what coordinated flushing gives, over all drawings."""
    given = [(adaptive.at(adaptive.arrived), most.at(most.arrived)) for adaptive, most in drawn]
    return at_least(
        f"{memory}adaptive flushing gives nearly what coordinated flushing gives, when all has arrived: part",
        sum(own for own, _ in given) / sum(most for _, most in given),
        bar,
        "in each drawing: " + ", ".join(f"{own:,} to {most:,}" for own, most in given),
        expected,
    )


def _drawn_again(scale: float, draw: int) -> tuple[Run, Run]:
    """Adaptive and coordinated flushing on another drawing of the streams."""
    streams = table_2(scale, 100 * draw)
    coordinated, _, adaptive, *_ = queries(streams)
    return run_query(adaptive, streams, AHEAD), run_query(coordinated, streams, AHEAD)


def table_2(scale: float, seeds: int = 0) -> dict[str, Stream]:
    """Table 2's streams, drawn with seeds from one on."""
    rows, rows2 = round(10_000 * scale), round(100_000 * scale)

    def small(seed: int) -> Stream:
        return Stream(relation(rows, seed, unique1=rows), poisson(rows, 1 * MS, 10 + seed))

    def large(seed: int) -> Stream:
        return Stream(relation(rows2, seed, tenk6=rows, unique14=rows2), poisson(rows2, 5 * MS, 10 + seed))

    return {f"s{i}": small(seeds + i) if i in (1, 4) else large(seeds + i) for i in range(1, 7)}


def queries(streams: dict[str, Stream]) -> list[Query]:
    """The plans that are compared with the same memory, and the MJoins with less."""
    rows = sum(stream.seconds.size for stream in streams.values())

    def query(name: str, plan: str, flush: str, disk: Disk = "blocked", row_bytes: int = ROW_BYTES) -> Query:
        options = {"query": QUERY, "plan": plan, "flush": flush, "memory": str(row_bytes * rows)}
        return Query(name, options | {"diskFuel": FUEL, "blockingThreshold": "1"}, disk)

    return [
        query("MJoins, coordinated flushing", MJOINS, "coordinated"),
        query("MJoins, random flushing", MJOINS, "random"),
        query("MJoins, adaptive flushing", MJOINS, "adaptive"),
        query("XJoins, random flushing", XJOINS, "random"),
        query("XJoins, largest bucket first", XJOINS, "largest"),
        query("MJoins, adaptive flushing, state manager", MJOINS, "adaptive", "planned"),
        *(
            query(f"MJoins, {flush} flushing, less memory", MJOINS, flush, row_bytes=FEW_BYTES)
            for flush in ("coordinated", "random", "adaptive")
        ),
    ]
