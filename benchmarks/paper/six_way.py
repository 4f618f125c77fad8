"""Figure 15: two star joins of three streams and a join of their results, under overflow (section 3.5, table 2).

All plans are the product's own, by its options: `plan` says which joins there are, `flush` which rows are evicted,
and `memory` is one budget over all of them. No option divides it. The paper's plans do no disk work while rows
arrive; the last one does what the state manager says (PermJoin).
"""

from __future__ import annotations

import numpy as np

from benchmarks.paper.inputs import MS, Stream, poisson, relation
from benchmarks.paper.machine import AHEAD
from benchmarks.paper.outcome import Check, Outcome, Panel, complete
from benchmarks.paper.pipelines import Disk, Query, run_query
from benchmarks.paper.virtual import Run

ROW_BYTES, FEW_BYTES = 100, 60  # of memory, per row of the inputs
FUEL = "64k"  # of disk work in a batch: a run has a few hundred of them
NEAR = 0.95  # of the best policy
# Results with coordinated flushing over those of others, when all has arrived: half of what was measured above 1.
OVER_RANDOM, OVER_XJOINS, OVER_LARGEST, OVER_RANDOM_TIGHT = 1.18, 1.4, 1.33, 1.47

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
    shown = [round(arrived * k / 4, 1) for k in (1, 2, 3, 4)]

    def ahead(upper: Run, lower: Run, claim: str, times: float) -> Check:
        """A flush is a pause, in which a plan may be overtaken by one that flushes later."""
        points = np.linspace(0.6 * arrived, arrived, 21)
        return Check(
            f"{claim}: above in the last 40 % of the arrivals, and {times:g} times the results when all has arrived",
            all(upper.at(t) > lower.at(t) for t in points) and upper.at(arrived) >= times * lower.at(arrived),
            "at each quarter: " + ", ".join(f"{upper.at(t):,} to {lower.at(t):,}" for t in shown),
        )

    checks = [
        ahead(coordinated, scattered, "coordinated flushing against random flushing", OVER_RANDOM),
        ahead(coordinated, xjoin, "coordinated flushing against the plan of XJoins", OVER_XJOINS),
        ahead(coordinated, xjoin_largest, "against XJoins that flush their largest bucket", OVER_LARGEST),
        ahead(tight[0], tight[1], "with less memory, coordinated against random flushing", OVER_RANDOM_TIGHT),
        *(
            Check(
                f"{memory}adaptive flushing gives {NEAR:.0%} of coordinated flushing or more, when all has arrived",
                least.at(arrived) >= NEAR * most.at(arrived),
                f"{least.at(arrived):,} to {most.at(arrived):,}",
                expected,
            )
            for memory, least, most, expected in (
                ("", adaptive, coordinated, True),
                ("with less memory, ", tight[2], tight[0], False),
            )
        ),
        complete(runs),
    ]
    header = ["plan", *(f"results at {t} s" for t in shown), "before clean-up", "all", "virtual seconds in all"]
    table = [[r.plan, *(r.at(t) for t in shown), r.before_clean_up, r.total, f"{r.finished:.1f}"] for r in runs]
    panels = [
        Panel("while the inputs arrive", runs, arrived * 1.02),
        Panel("to the end of the clean-up", runs, max(r.finished for r in runs), [r.ended for r in runs]),
    ]
    return Outcome("fig15", "Figure 15: coordinated flushing on the six-way join", panels, checks, header, table)


def table_2(scale: float) -> dict[str, Stream]:
    """Table 2's streams."""
    rows, rows2 = round(10_000 * scale), round(100_000 * scale)

    def small(seed: int) -> Stream:
        return Stream(relation(rows, seed, unique1=rows), poisson(rows, 1 * MS, 10 + seed))

    def large(seed: int) -> Stream:
        return Stream(relation(rows2, seed, tenk6=rows, unique14=rows2), poisson(rows2, 5 * MS, 10 + seed))

    return {f"s{i}": small(i) if i in (1, 4) else large(i) for i in range(1, 7)}


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
