"""Figure 15: two star joins of three streams and a join of their results, under overflow (section 3.5, table 2).

The paper's plans divide the memory between their joins. As the engine runs a tree, there is one budget over all joins
and one flush policy (PermJoin's AdaptiveGlobalFlush), and the state manager may do disk work while rows arrive.
"""

from __future__ import annotations

import numpy as np

from benchmarks.paper.inputs import MS, Stream, poisson, relation
from benchmarks.paper.machine import AHEAD
from benchmarks.paper.outcome import Check, Outcome, Panel, complete
from benchmarks.paper.pipelines import TreePlan, run_tree
from benchmarks.paper.plans import Join, Plan, run
from benchmarks.paper.virtual import Run

FIG15_BYTES = 100
NEAR = 0.95  # of the best policy


def six_way(scale: float) -> Outcome:
    """Section 3.5: two star joins of three streams and a join of their results (table 2)."""
    streams, plans = table_2(scale)
    coordinated, scattered, adaptive, xjoin, xjoin_largest = divided = [run(plan, streams, AHEAD) for plan in plans]
    one_budget, managed = whole = [run_tree(plan, streams, AHEAD) for plan in one_tree(plans[0].memory_bytes)]
    runs = [*divided, *whole]
    arrived = coordinated.arrived
    behind = max(one_budget.at(t) - managed.at(t) for t in np.linspace(0, arrived, 51)[1:])
    shown = [round(arrived * k / 4, 1) for k in (1, 2, 3, 4)]

    def above(upper: Run, lower: Run, claim: str, share: float = 1.0) -> Check:
        """From the time on when there is a noticeable number of results to compare."""
        points = [t for t in np.linspace(0, arrived, 51)[1:] if lower.at(t) > 0.01 * lower.total]
        figures = "at each quarter: " + ", ".join(f"{upper.at(t):,} to {lower.at(t):,}" for t in shown)
        return Check(
            f"while the inputs arrive, {claim}", all(upper.at(t) >= share * lower.at(t) for t in points), figures
        )

    checks = [
        above(coordinated, scattered, "coordinated flushing is above random flushing"),
        above(coordinated, xjoin, "coordinated flushing is above the plan of XJoins"),
        above(coordinated, xjoin_largest, "coordinated flushing is above XJoins that flush their largest bucket"),
        above(scattered, xjoin, "with random flushing in both, MJoins are above XJoins"),
        above(adaptive, coordinated, f"adaptive flushing gives {NEAR:.0%} of coordinated flushing or more", NEAR),
        Check(
            "with divided memory, coordinated flushing leaves the least to the clean-up",
            coordinated.before_clean_up >= max(r.before_clean_up for r in divided),
            "given out before it: " + ", ".join(f"{r.before_clean_up / r.total:.0%}" for r in divided),
        ),
        above(one_budget, adaptive, "one budget over the tree is above divided memory, both flushed adaptively"),
        above(one_budget, coordinated, "one budget over the tree is above coordinated flushing with divided memory"),
        Check(
            "when all has arrived, the state manager has given more than there is without it",
            managed.at(arrived) > one_budget.at(arrived),
            f"{managed.at(arrived):,} to {one_budget.at(arrived):,}",
        ),
        Check(
            "the state manager is never behind (by more than 1 % of all results)",
            behind <= 0.01 * managed.total,
            f"most behind: {max(behind, 0):,} of {managed.total:,}; to the end of the clean-up it takes "
            f"{managed.finished:.0f} s instead of {one_budget.finished:.0f} s",
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


QUERY = (
    "SELECT s1.id AS a, s2.id AS b, s3.id AS c, s4.id AS d, s5.id AS e, s6.id AS f FROM s1, s2, s3, s4, s5, s6 "
    "WHERE s1.unique1 = s2.tenk6 AND s1.unique1 = s3.tenk6 AND s4.unique1 = s5.tenk6 AND s4.unique1 = s6.tenk6 "
    "AND s2.unique14 = s5.unique14"
)


def one_tree(memory_bytes: int | None) -> list[TreePlan]:
    """The MJoins of the paper's plan as the engine runs them, without and with disk work while rows arrive."""
    assert memory_bytes is not None
    names = {"blocked": "one tree, one budget, adaptive", "root down": "the same, with the state manager"}
    return [
        TreePlan(name, QUERY, "((s1 s2 s3) (s4 s5 s6))", memory_bytes, "adaptive", disk) for disk, name in names.items()
    ]


def table_2(scale: float) -> tuple[dict[str, Stream], list[Plan]]:
    """Table 2's streams, and the plans that are compared on them."""
    rows, rows2 = round(10_000 * scale), round(100_000 * scale)

    def small(seed: int) -> Stream:
        return Stream(relation(rows, seed, unique1=rows), poisson(rows, 1 * MS, 10 + seed))

    def large(seed: int) -> Stream:
        return Stream(relation(rows2, seed, tenk6=rows, unique14=rows2), poisson(rows2, 5 * MS, 10 + seed))

    streams = {f"s{i}": small(i) if i in (1, 4) else large(i) for i in range(1, 7)}
    memory = FIG15_BYTES * (2 * rows + 4 * rows2)
    stars, deep = _table_2_query(binary=False), _table_2_query(binary=True)
    return streams, [
        Plan("MJoins, coordinated flushing", stars, "coordinated", memory),
        Plan("MJoins, random flushing", stars, "random", memory),
        Plan("MJoins, adaptive flushing", stars, "adaptive", memory),
        Plan("XJoins, random flushing", deep, "random", memory),
        Plan("XJoins, largest bucket first", deep, "largest", memory),
    ]


def _table_2_query(binary: bool) -> Join:
    """The query of table 2; weights are the rows that a join has to hold, in units of 10,000 at full size.

    Two XJoins divide what one star has.
    """

    def star(name: str, small: str, middle: str, last: str) -> Join:
        if not binary:
            query = (
                f"SELECT {middle}.unique14 AS u, {small}.id AS a, {middle}.id AS b, {last}.id AS c "
                f"FROM {small}, {middle}, {last} "
                f"WHERE {small}.unique1 = {middle}.tenk6 AND {small}.unique1 = {last}.tenk6"
            )
            return Join(name, query, (small, middle, last), weight=21)
        lower = Join(
            f"{name}_lower",
            f"SELECT {small}.unique1 AS k, {middle}.unique14 AS u, {small}.id AS a, {middle}.id AS b "
            f"FROM {small}, {middle} WHERE {small}.unique1 = {middle}.tenk6",
            (small, middle),
            weight=21 * 11 / 31,
        )
        query = f"SELECT x.u AS u, x.a AS a, x.b AS b, {last}.id AS c FROM {lower.name} AS x, {last} "
        query += f"WHERE x.k = {last}.tenk6"
        return Join(name, query, (lower, last), weight=21 * 20 / 31)

    left, right = star("left_star", "s1", "s2", "s3"), star("right_star", "s4", "s5", "s6")
    query = (
        "SELECT left_star.a AS a, left_star.b AS b, left_star.c AS c, right_star.a AS d, right_star.b AS e, "
        "right_star.c AS f FROM left_star, right_star WHERE left_star.u = right_star.u"
    )
    return Join("top", query, (left, right), weight=200)
