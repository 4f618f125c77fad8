"""PMJoin, figure 11: queries on several attributes, and which of their joins are partitioned.

20 streams with 100 to 1,000 rows a second and windows of 10 to 100 seconds, at 10 nodes by chance; 200 queries on 3 to
7 attributes. How queries are made is not in the paper. Here the first attribute joins two to four streams, and each
further one joins a stream of the query with one to three others. A stream has a distribution of its own in each
attribute. Up to 1,000 values each is a slot; beyond that a slot has several values, which are alike. Joins are
partitioned by rates, into 50 groups or one for each slot. The scale is the part of the queries that is made.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.paper.outcome import Graph, Graphs, at_least, at_most
from benchmarks.paper.pmjoin_inputs import Chance, chance, different, draws, streams
from spark_mjoin.driver.placement import Attribute, Query, Stream, by_rates, find, greedy, rates, select
from spark_mjoin.driver.placement.general import Candidate, assemble, split
from spark_mjoin.model import Array

STREAMS, NODES, QUERIES, GROUPS, SHUFFLES = 20, 10, 200, 50, 5
ATTRIBUTES = (3, 7)
RANGES = (100, 1_000, 3_000, 10_000, 30_000, 100_000)
SLOTS = 1_000  # of a histogram; the values in a slot are alike
NONE, HEURISTIC, RANDOM, ALTERNATIVE = "no PMJoin", "heuristic", "Random", "Alternative"


def sources(drawn: Chance) -> tuple[Stream, ...]:
    each = drawn.uniform(100, 1_000, STREAMS), drawn.uniform(10, 100, STREAMS), drawn.integers(NODES, size=STREAMS)
    return streams(each[0].tolist(), each[1].tolist(), each[2].tolist())


def structure(drawn: Chance) -> tuple[tuple[int, ...], ...]:
    """The members of each attribute, by the number of the stream in the query: a tree of attributes."""
    count = int(drawn.integers(ATTRIBUTES[0], ATTRIBUTES[1] + 1))
    found: list[tuple[int, ...]] = []
    joined = 1
    for left in range(count, 0, -1):
        more = min(int(drawn.integers(1, 4)), STREAMS - joined - (left - 1))
        found.append((int(drawn.integers(joined)), *range(joined, joined + more)))
        joined += more
    return tuple(found)


def query(drawn: Chance, of: tuple[Stream, ...], values: int) -> Query:
    attributes = structure(drawn)
    count = 1 + max(max(members) for members in attributes)
    parts = [of[i] for i in drawn.permutation(STREAMS)[:count]]
    slots = min(SLOTS, values)
    predicates = [
        Attribute(f"a{k}", members, np.array([different(drawn, slots) for _ in members]), slots / values)
        for k, members in enumerate(attributes)
    ]
    return Query(tuple(replace(s, name=f"S{i}") for i, s in enumerate(parts)), tuple(predicates), widens=False)


def by_rank(inputs: Query) -> Array:
    found = rates(inputs)
    return by_rates(found, min(GROUPS, found.shape[1]))


def costs(drawn: Chance, given: Query) -> dict[str, float]:
    """What a query ships with each selection."""
    root = greedy(given).root
    found = find(given, root)
    best = select(found)
    rest = tuple(each for each in found if each not in best)
    chosen: dict[str, list[tuple[Candidate, ...]]] = {
        NONE: [()],
        HEURISTIC: [best],
        RANDOM: [select(found, drawn.permutation(len(found)).tolist()) for _ in range(SHUFFLES)],
        ALTERNATIVE: [select(rest)],
    }
    joins = {each: split(given, each, by_rank) for each in {*best, *rest}}
    shipped = {
        name: [assemble(given, root, [(each, joins[each]) for each in kept]).cost for kept in selections]
        for name, selections in chosen.items()
    }
    return {name: sum(each) / len(each) for name, each in shipped.items()}


FIG11_SAVED, FIG11_RANDOM, FIG11_ALTERNATIVE = 0.1, 1.008, 1.024  # bars: see outcome.at_least


def figure_11(scale: float) -> Graphs:
    """Section 4.3: data ranges, and ways to select what is partitioned."""
    names = (NONE, ALTERNATIVE, RANDOM, HEURISTIC)
    count = draws(QUERIES, scale)
    of = sources(chance(11))
    found = np.zeros((len(RANGES), len(names)))
    for at, values in enumerate(RANGES):
        for number in range(count):
            drawn = chance(11, number)
            given = costs(drawn, query(drawn, of, values))
            found[at] += np.array([given[name] for name in names]) / count
    none, alternative, random, heuristic = found.T
    saved = 1 - heuristic / none
    checks = [
        at_most(
            "without partitioning costs the most, over all data ranges: times",
            float((found[:, 1:] / none[:, None]).max()),
            1 + 1e-9,
            f"the heuristic's {float((heuristic / none).max()):.4f}",
        ),
        at_least(
            "with larger data ranges the heuristic saves a larger part",
            float(np.diff(saved).min()),
            0.0,
            ", ".join(f"{each:.3f}" for each in saved),
        ),
        at_least(
            f"with {RANGES[-1]:,} values it saves the part",
            float(saved[-1]),
            FIG11_SAVED,
            f"{none[-1]:,.0f} to {heuristic[-1]:,.0f}",
        ),
        at_least(
            "from 30,000 values on the heuristic costs less than Random: times",
            float((random / heuristic)[4:].min()),
            FIG11_RANDOM,
            ", ".join(f"{each:.3f}" for each in random / heuristic),
        ),
        at_least(
            "from 30,000 values on the heuristic costs less than Alternative: times",
            float((alternative / heuristic)[4:].min()),
            FIG11_ALTERNATIVE,
            ", ".join(f"{each:.3f}" for each in alternative / heuristic),
        ),
    ]
    curves = dict(zip(names, found.T.tolist(), strict=True))
    relative = dict(zip(names, (found / none[:, None]).T.tolist(), strict=True))
    over = "log10 of the data range", np.log10(RANGES).tolist()
    graphs = [
        Graph("average of the queries", over[0], "rows shipped a second", over[1], curves),
        Graph("to no PMJoin", over[0], "times", over[1], relative),
    ]
    rows = [[values, *(round(cost) for cost in row)] for values, row in zip(RANGES, found.tolist(), strict=True)]
    title = "PMJoin, figure 11: queries on several attributes"
    return Graphs("pmjoin11", title, [], checks, ["values", *names], rows, graphs)
