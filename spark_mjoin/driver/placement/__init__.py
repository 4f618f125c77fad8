"""Where to join distributed streams so that little is shipped: PMJoin (Zhou, Yan, Yu, Zhou, 2006) as a pure planner.

costs.py          streams with rates, windows and nodes; what a join of any of them gives (equations 1 to 3)
plans.py          trees of MJoins with a node each, what they ship, the routes of rows, the steps that led there
greedy.py         algorithm 1, and the plans `local` and `simple` to compare it with
exhaustive.py     the cheapest plan of all, for up to 14 streams
partitioning.py   substreams by hash, range or rates; a plan for each group of them; the cost of routing
general.py        joins on several attributes: which operators of a plan to partition (algorithm 2)

    query = Query(streams, (attribute_of("dest", histogram),))
    for step in greedy(query).steps:
        print(step.text(query))
    partition(query, by_rates(rates(query), 100)).cost

Nodes are names of hosts, volumes are bytes per second. Nothing here reads a clock, draws a number or knows Spark.

Not covered: the load of nodes, links of different cost, where the final result is wanted, and changes of a running
plan. Rates are taken as they are given, so a plan is as good as the histogram.
"""

from __future__ import annotations

from spark_mjoin.driver.placement.costs import Attribute, Edge, Query, Stream
from spark_mjoin.driver.placement.exhaustive import optimal
from spark_mjoin.driver.placement.general import General, find, plan, select
from spark_mjoin.driver.placement.greedy import greedy, local, simple
from spark_mjoin.driver.placement.partitioning import (
    Partitioned,
    attribute_of,
    by_hash,
    by_range,
    by_rates,
    partition,
    rates,
    routing,
)
from spark_mjoin.driver.placement.plans import Operator, Plan, Step, routes

__all__ = [
    "Attribute",
    "Edge",
    "General",
    "Operator",
    "Partitioned",
    "Plan",
    "Query",
    "Step",
    "Stream",
    "attribute_of",
    "by_hash",
    "by_range",
    "by_rates",
    "find",
    "greedy",
    "local",
    "optimal",
    "partition",
    "plan",
    "rates",
    "routes",
    "routing",
    "select",
    "simple",
]
