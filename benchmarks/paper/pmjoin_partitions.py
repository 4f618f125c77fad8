"""PMJoin, figures 8 to 10: substreams by hash, range and rates; what they ship, and what routing them takes.

Ten streams (figure 10: 4 to 12) that are equal in one attribute of 1,000 values, each at a node of its own, with 10 to
1,000 rows a second and windows of 10 to 100 seconds. Every group of substreams has a plan of algorithm 1. All ways to
partition see the same drawings of the streams, which are averaged; the scale is the part of them that is made.

How good a way is: the part that it saves of what groups of one value save, on average over all other numbers of groups.

Routing is counted in operations: one to find where a row of a stream or of an intermediate result goes, two to send it
to another node and to receive it there. To find the substream of a row takes LOOKUP more: a hash, or one look into an
array, next to a message between nodes. It is an assumption, so docs/paper.md says from which price on routing takes
more than without partitioning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache

import numpy as np

from benchmarks.paper.outcome import Check, Graph, Graphs, at_least, at_most
from benchmarks.paper.pmjoin_inputs import Spread, chance, draws, on_one_attribute, streams
from spark_mjoin.driver.placement import Query, by_hash, by_range, by_rates, partition, rates, routing
from spark_mjoin.driver.placement.partitioning import Routing
from spark_mjoin.model import Array

VALUES, STREAMS, MOST = 1_000, 10, 12
DRAWS, DRAWS_OF_COUNTS = 12, 4
GROUPS = (1, 2, 5, 10, 20, 50, 100, 1_000)
SOME = 50  # of them, where ways to partition are compared
COUNTS = (4, 6, 8, 10, 12)
LOOKUP = 0.05
RATES, WINDOWS = (10.0, 1_000.0), (10.0, 100.0)
Grouping = Callable[[Query, int], Array]
METHODS: Mapping[str, Grouping] = {
    "hash": lambda query, count: by_hash(VALUES, count),
    "range": lambda query, count: by_range(VALUES, count),
    "rates": lambda query, count: by_rates(rates(query), count),
}
PANELS = {
    "CHS, SD": Spread(VALUES, is_similar=True, is_contiguous=True),
    "CHS, DD": Spread(VALUES, is_similar=False, is_contiguous=True),
    "RHS, SD": Spread(VALUES, is_similar=True, is_contiguous=False),
    "RHS, DD": Spread(VALUES, is_similar=False, is_contiguous=False),
}


def draw(seed: int, spread: Spread, count: int) -> Query:
    """Streams; more of them are the same ones and others."""
    drawn = chance(8, seed)
    each = drawn.uniform(*RATES, MOST), drawn.uniform(*WINDOWS, MOST)
    parts = streams(each[0][:count].tolist(), each[1][:count].tolist(), range(count))
    return on_one_attribute(parts, spread.shares(drawn, MOST)[:count])


def measured(query: Query, grouping: Grouping, count: int) -> Array:
    """Rows shipped a second, operations of routing, and those among them that are lookups."""
    join = partition(query, grouping(query, count))
    bare = routing(join, Routing(lookup=0.0))
    lookups = routing(join, Routing(lookup=LOOKUP)) - bare
    return np.array([join.cost, bare + lookups, lookups])


Sweep = dict[str, dict[str, Array]]


@cache
def sweep(count: int, numbers: tuple[int, ...]) -> Sweep:
    """For each panel and method, of so many drawings: numbers of groups x (shipped, routed, lookups)."""
    found: Sweep = {}
    for panel, spread in PANELS.items():
        found[panel] = {method: np.zeros((len(numbers), 3)) for method in METHODS}
        for seed in range(count):
            query = draw(seed, spread, STREAMS)
            ends = {groups: measured(query, METHODS["hash"], groups) for groups in (1, VALUES)}  # all methods agree
            for method, grouping in METHODS.items():
                each = [ends[groups] if groups in ends else measured(query, grouping, groups) for groups in numbers]
                found[panel][method] += np.array(each) / count
    return found


# --- figure 8 --------------------------------------------------------------------------------------------------------

FIG8_MODERATE, FIG8_LARGE, FIG8_TWO, FIG8_ROUGHER = 0.005, 0.15, 0.03, 0.001  # bars: see outcome.at_least
FIG8_EVEN = 1.02  # no more than what drawings differ by
FIG8_BEST = {"CHS, SD": FIG8_EVEN, "CHS, DD": FIG8_EVEN, "RHS, SD": 4.9, "RHS, DD": 1.7}
FIG8_HOLDS = {"CHS, SD": False, "CHS, DD": False, "RHS, SD": True, "RHS, DD": True}
FIG8_RANDOM = 0.9  # below it, a difference between two ways to divide at random would be none of chance


def figure_8(scale: float) -> Graphs:
    """Section 4.2: numbers of substreams; hot spots contiguous or random, similar or different data."""
    found = sweep(draws(DRAWS, scale), GROUPS)
    shipped = {panel: {method: each[:, 0] for method, each in of.items()} for panel, of in found.items()}
    worth = {panel: {method: _worth(each) for method, each in of.items()} for panel, of in shipped.items()}
    saved = {panel: float(1 - of["hash"][-1] / of["hash"][0]) for panel, of in shipped.items()}
    two = {panel: float(1 - of["rates"][1] / of["rates"][0]) for panel, of in shipped.items()}
    rougher = max(float((each[1:] / each[:-1]).max() - 1) for of in shipped.values() for each in of.values())
    similar, different = [p for p in PANELS if p.endswith("SD")], [p for p in PANELS if p.endswith("DD")]
    checks = [
        at_most(
            "similar data: PMJoin saves something, and not much: the part of the cost",
            max(saved[panel] for panel in similar),
            FIG8_MODERATE,
            _listed(saved, similar),
        ),
        at_least(
            "different data: PMJoin saves a large part of the cost",
            min(saved[panel] for panel in different),
            FIG8_LARGE,
            _listed(saved, different),
        ),
        at_least(
            "different data: two substreams by rates save much: the part of the cost",
            min(two[panel] for panel in different),
            FIG8_TWO,
            _listed(two, different),
        ),
        at_most(
            "more substreams cost no more: by at most this part, from one number to the next",
            rougher,
            FIG8_ROUGHER,
            "of all panels",
        ),
        *(_best("range" if panel == "CHS, SD" else "rates", panel, of) for panel, of in worth.items()),
        *(
            at_most(
                f"{panel}: range saves less than hash, as a part of it",
                worth[panel]["range"] / worth[panel]["hash"],
                FIG8_RANDOM,
                _listed(worth[panel], METHODS),
                expected=False,
            )
            for panel in PANELS
            if panel.startswith("RHS")
        ),
    ]
    graphs = [_over_groups(panel, of, "rows shipped a second,") for panel, of in shipped.items()]
    rows = [
        [panel, method, *(round(cost) for cost in each.tolist())]
        for panel, of in shipped.items()
        for method, each in of.items()
    ]
    title = "PMJoin, figure 8: numbers of substreams"
    return Graphs("pmjoin8", title, [], checks, ["data", "by", *(f"{count:,}" for count in GROUPS)], rows, graphs)


def _best(method: str, panel: str, worth: Mapping[str, float]) -> Check:
    """That a method saves more than the better of the others."""
    others = max(each for name, each in worth.items() if name != method)
    claim = f"{panel}: {method} saves more than the better of the others: times"
    return at_least(claim, worth[method] / others, FIG8_BEST[panel], _listed(worth, METHODS), FIG8_HOLDS[panel])


def _worth(shipped: Array) -> float:
    """The part that a method saves of what the finest groups save, over all numbers of groups between."""
    return float(((shipped[0] - shipped[1:-1]) / (shipped[0] - shipped[-1])).mean())


def _listed(figures: Mapping[str, float], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {figures[name]:.3f}" for name in names)


def _over_groups(panel: str, curves: Mapping[str, Array], what: str) -> Graph:
    """What is saved, since the costs themselves are nearly the same where data are similar."""
    saved = {name: (each[0] - each).tolist() for name, each in curves.items()}
    at = np.log10(GROUPS).tolist()
    return Graph(panel, "log10 of the substreams", f"{what} saved", at, saved, below_zero=True)


# --- figure 9 --------------------------------------------------------------------------------------------------------

FIG9_LESS, FIG9_MOSTLY, FIG9_BETTER = 0.915, 0.5, 1.045


def figure_9(scale: float) -> Graphs:
    """The same: what routing takes."""
    found = sweep(draws(DRAWS, scale), GROUPS)
    routed = {panel: {method: each[:, 1] for method, each in of.items()} for panel, of in found.items()}
    ratio = {panel: {m: each[1:] / each[0] for m, each in of.items()} for panel, of in routed.items()}
    finest = {panel: float(of["hash"][-1]) for panel, of in ratio.items()}
    price = {panel: break_even(of["hash"]) for panel, of in found.items()}
    similar, different = [p for p in PANELS if p.endswith("SD")], [p for p in PANELS if p.endswith("DD")]
    every = np.concatenate([each for panel in different for each in ratio[panel].values()])
    some = GROUPS.index(SOME)
    better = min(float(routed[p]["hash"][some] / routed[p]["rates"][some]) for p in different)
    checks = [
        at_most(
            "different data, a value to a substream: routing takes less than without partitioning: times",
            max(finest[panel] for panel in different),
            FIG9_LESS,
            _listed(finest, different),
        ),
        at_least(
            "different data: it takes less at this part of all numbers of substreams and ways to partition",
            float((every < 1).mean()),
            FIG9_MOSTLY,
            f"at most {every.max():.3f} times as much",
        ),
        at_most(
            "similar data: it takes no more either: times",
            max(finest[panel] for panel in similar),
            1.0,
            _listed(finest, similar),
            expected=False,
        ),
        at_least(
            f"different data, {SOME} substreams: by rates it takes less than by hash: times",
            better,
            FIG9_BETTER,
            f"a lookup may cost {_listed(price, PANELS)} operations until routing takes more",
        ),
    ]
    graphs = [_over_groups(panel, of, "operations of routing a second,") for panel, of in routed.items()]
    rows = [
        [panel, method, *(round(cost) for cost in each.tolist())]
        for panel, of in routed.items()
        for method, each in of.items()
    ]
    title = "PMJoin, figure 9: the cost of routing"
    return Graphs("pmjoin9", title, [], checks, ["data", "by", *(f"{count:,}" for count in GROUPS)], rows, graphs)


def break_even(each: Array) -> float:
    """The price of a lookup with which the finest groups take as much routing as no groups."""
    _, routed, lookups = each[-1].tolist()
    return float(LOOKUP * (each[0, 1] - (routed - lookups)) / lookups)


# --- figure 10 -------------------------------------------------------------------------------------------------------

FIG10_SAVED, FIG10_RATES, FIG10_RANGE = 2.4, 1.015, 1.025

CURVES = {
    "1": ("hash", 1),
    **{f"500, {method}": (method, 500) for method in METHODS},
    "1,000": ("hash", 1_000),
}


def figure_10(scale: float) -> Graphs:
    """The number of streams with different data, partitioned into 1, 500 and 1,000 substreams."""
    count = draws(DRAWS_OF_COUNTS, scale)
    found = {panel: _over_streams(PANELS[panel], count) for panel in ("CHS, DD", "RHS, DD")}
    contiguous, scattered = found.values()
    saved = {panel: each["1"] - each["1,000"] for panel, each in found.items()}
    growth = {panel: float(each["1,000"][-1] / each["1,000"][0]) for panel, each in found.items()}
    checks = [
        at_least(
            f"{COUNTS[-1]} streams: PMJoin saves more rows than with {COUNTS[0]}: times",
            min(float(each[-1] / each[0]) for each in saved.values()),
            FIG10_SAVED,
            "; ".join(", ".join(f"{rows:,.0f}" for rows in each) for each in saved.values()),
        ),
        at_most(
            "with more streams the cost of PMJoin decreases: times",
            max(growth.values()),
            1.0,
            _listed(growth, growth),
            expected=False,
        ),
        _ahead("RHS: by rates costs less than the better of hash and range: times", scattered, "rates", FIG10_RATES),
        _ahead("CHS: by rates costs less than the better of hash and range: times", contiguous, "rates", 1.0, False),
        at_least(
            "CHS: range costs less than hash: times",
            float((contiguous["500, hash"] / contiguous["500, range"]).min()),
            FIG10_RANGE,
            ", ".join(f"{each:.3f}" for each in contiguous["500, hash"] / contiguous["500, range"]),
        ),
        at_least(
            "RHS: hash costs less than range: times",
            float((scattered["500, range"] / scattered["500, hash"]).min()),
            1.01,
            ", ".join(f"{each:.3f}" for each in scattered["500, range"] / scattered["500, hash"]),
            expected=False,
        ),
    ]
    graphs = [
        Graph(panel, "streams", "rows shipped a second", COUNTS, {k: v.tolist() for k, v in each.items()})
        for panel, each in found.items()
    ]
    rows = [
        [panel, name, *(round(cost) for cost in each.tolist())]
        for panel, of in found.items()
        for name, each in of.items()
    ]
    header = ["data", "substreams", *(f"{many} streams" for many in COUNTS)]
    return Graphs("pmjoin10", "PMJoin, figure 10: the number of streams", [], checks, header, rows, graphs)


def _ahead(claim: str, found: Mapping[str, Array], method: str, bar: float, expected: bool = True) -> Check:
    others = np.min([found[f"500, {name}"] for name in METHODS if name != method], axis=0)
    ratio = others / found[f"500, {method}"]
    return at_least(claim, float(ratio.min()), bar, ", ".join(f"{each:.3f}" for each in ratio), expected)


def _over_streams(spread: Spread, count: int) -> dict[str, Array]:
    """Rows shipped a second: for each curve, by the number of streams."""
    found = {name: np.zeros(len(COUNTS)) for name in CURVES}
    for seed in range(count):
        for at, many in enumerate(COUNTS):
            query = draw(seed, spread, many)
            for name, (method, groups) in CURVES.items():
                found[name][at] += partition(query, METHODS[method](query, groups)).cost / count
    return found
