"""PermJoin by default: one join, no option but its memory, on steady, bursty and skewed inputs.

How many results are there when the last row arrives, with disk work as the planner says, with disk work only when all
inputs block, and with disk work in every batch? The second is what a single operator did before it had a state manager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.paper.inputs import Stream
from benchmarks.paper.machine import AHEAD
from benchmarks.paper.outcome import Outcome, Panel, at_least, at_most, complete
from benchmarks.paper.pipelines import Disk, Query, run_query

ROW_BYTES = 14  # of memory, per row of the inputs
BATCHES = 80
BLOCKING = 0.2  # seconds without arrivals
# Results of the default when all has arrived, over those of others, and how much later it is done: bars.
OVER_BLOCKED = {"steady": 1.56, "bursty": 1.02, "skewed": 1.04}
OVER_LEAF_FIRST = {"steady": 1.0, "bursty": 1.0, "skewed": 1.14}
LATER = {"steady": 1.025, "bursty": 1.015, "skewed": 1.005}
WAYS: dict[Disk, str] = {
    "planned": "default",
    "blocked": "only when blocked",
    "leaf first": "in every batch, leaf first",
}
QUERY = "SELECT s1.id AS a, s2.id AS b, s3.id AS c FROM s1, s2, s3 WHERE s1.k = s2.k AND s2.k = s3.k"


def by_default(rows: int, cases: dict[str, Callable[[int], list[Stream]]], ways: Sequence[Disk] = ()) -> Outcome:
    panels, table, checks = [], [], []
    for case, made in cases.items():
        streams = dict(zip(("s1", "s2", "s3"), made(rows), strict=True))
        options = {"query": QUERY, "memory": str(ROW_BYTES * rows * len(streams))}
        options |= {"diskFuel": "64k", "blockingThreshold": "1"}  # scaled down, as rows and memory are
        queries = [Query(WAYS[way], options, way) for way in ways or WAYS]
        managed, *others = runs = [run_query(query, streams, AHEAD, BLOCKING, BATCHES) for query in queries]
        arrived = managed.arrived
        figures = ", ".join(f"{r.plan} {r.at(arrived):,}" for r in runs) + f" of {managed.total:,}"
        checks.append(
            at_least(
                f"{case}: when all has arrived, the default has given more results than blocked-only: times",
                managed.at(arrived) / others[0].at(arrived),
                OVER_BLOCKED[case],
                figures,
                expected=case != "bursty",
            )
        )
        checks += [
            at_least(
                f"{case}: and more than disk work in every batch: times",
                managed.at(arrived) / leaf_first.at(arrived),
                OVER_LEAF_FIRST[case],
                figures,
                expected=case == "skewed",
            )
            for leaf_first in others[1:]
        ]
        checks += [
            at_most(
                f"{case}: the last row is dealt with, and all is emitted, hardly later than with blocked-only: times",
                max(managed.ended / others[0].ended, managed.finished / others[0].finished),
                LATER[case],
                ", ".join(f"{r.plan} {r.ended:.1f} and {r.finished:.1f} s" for r in runs),
            ),
            complete(runs),
        ]
        table += [[case, r.plan, r.at(arrived), r.total, r.work.disk_rows, f"{r.finished:.1f}"] for r in runs]
        panels.append(Panel(case, runs, arrived))
    header = ["input", "disk work", "at the last arrival", "all", "rows to and from disk", "virtual seconds"]
    return Outcome("default", "PermJoin by default: one join under a budget", panels, checks, header, table)
