"""PMJoin, figures 5 to 7: algorithm 1 against the best plan, against sending everything to one node, and `local`.

All streams are equal in one attribute. Data ranges, windows, skews and the rates of figures 6 and 7 are the paper's.
It does not give the rates of figure 5; here they are 10 to 1,000 rows a second, as in its section 4.2. The cost is what
a plan ships in rows per second, by equations 1 to 3, with the selectivities that follow from the distributions.

With 1,000 values most joins give more rows than they take, and little can be saved. So figures 6 and 7 have a second
part with 10,000 values. Several drawings of the streams are averaged; the scale is the part of them that is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.paper.outcome import Check, Graph, Graphs, at_least, at_most
from benchmarks.paper.pmjoin_inputs import Chance, Spread, chance, draws, on_one_attribute, streams
from spark_mjoin.driver.placement import Query, Stream, greedy, local, optimal, simple
from spark_mjoin.driver.placement.costs import volumes
from spark_mjoin.driver.placement.greedy import Planner
from spark_mjoin.model import Array

STREAMS = 10
RANGES = (10, 100, 1_000, 10_000, 100_000)
FEW, MORE = 1_000, 10_000  # values in figures 6 and 7
COUNTS = (2, 4, 6, 8, 10, 12)
DRAWS, DRAWS_OF_COUNTS = 12, 40
RATES, RATES_OF_COUNTS, WINDOWS, NODES = (10.0, 1_000.0), (100.0, 500.0), (10.0, 100.0), 5

SIMPLE, HEURISTIC, OPTIMAL, LOCAL = "Simple", "heuristic", "optimal", "Local"
PLANNERS: Mapping[str, Planner] = {SIMPLE: simple, LOCAL: local, HEURISTIC: greedy, OPTIMAL: optimal}
SHIPPED = "rows shipped a second"
EVEN = 1e-9
Drawing = Callable[[Chance, int], tuple[Stream, ...]]


def costs(query: Query, names: Sequence[str]) -> Array:
    """What the plans of some planners ship."""
    volume = volumes(query).tolist().__getitem__
    return np.array([PLANNERS[name](query, volume).cost for name in names])


def curves(names: Sequence[str], found: Array) -> dict[str, list[float]]:
    return dict(zip(names, found.T.tolist(), strict=True))


# --- figure 5 --------------------------------------------------------------------------------------------------------

FIG5 = (SIMPLE, HEURISTIC, OPTIMAL)
FIG5_SAVED = 10  # bars: see outcome.at_least
FIG5_OFF = 0.25


def figure_5(scale: float) -> Graphs:
    """Section 4.1: data ranges; slow streams with small windows (LASW) or large ones, similar and different data."""
    found = {
        f"{'SD' if is_similar else 'DD'}, {'LASW' if small_first else 'HASW'}": _over_ranges(
            is_similar, small_first, draws(DRAWS, scale)
        )
        for is_similar in (True, False)
        for small_first in (True, False)
    }
    every = np.concatenate(list(found.values())).reshape(len(found), len(RANGES), len(FIG5))
    off = every[:, :, 2].min(axis=0)
    ratio = every[:, :, 1] / every[:, :, 2]
    checks = [
        Check(
            "Simple costs the same for all data ranges", bool(np.ptp(every[:, :, 0], axis=1).max() < 1e-6), "exactly"
        ),
        Check(
            "with 10 values the best plan is Simple, with 10 and 100 the heuristic is",
            bool(np.allclose(every[:, 0, 1:], every[:, 0, :1]) and np.allclose(every[:, 1, 1], every[:, 1, 0])),
            f"with 100 the best plan is {off[1]:,.0f} where Simple is {every[0, 1, 0]:,.0f}",
        ),
        at_least(
            "with 100,000 values Simple costs more than the heuristic: times",
            float((every[:, -1, 0] / every[:, -1, 1]).min()),
            FIG5_SAVED,
            ", ".join(f"{a:,.0f} to {b:,.0f}" for a, b in every[:, -1, :2].tolist()),
        ),
        at_most(
            "the heuristic costs more than the best plan: by at most this part",
            float(ratio.max() - 1),
            FIG5_OFF,
            f"mean {ratio.mean() - 1:.3f}; at {RANGES[int(ratio.max(axis=0).argmax())]:,} values",
        ),
    ]
    graphs = [
        Graph(title, "log10 of the data range", SHIPPED, np.log10(RANGES).tolist(), curves(FIG5, each))
        for title, each in found.items()
    ]
    rows = [
        [title, values, *(round(cost) for cost in row)]
        for title, each in found.items()
        for values, row in zip(RANGES, each.tolist(), strict=True)
    ]
    title = "PMJoin, figure 5: the heuristic over data ranges"
    return Graphs("pmjoin5", title, [], checks, ["data", "values", *FIG5], rows, graphs)


def _over_ranges(is_similar: bool, small_first: bool, count: int) -> Array:
    """Data ranges x planners; the same streams, and the same skews, for every range."""
    found = np.zeros((len(RANGES), len(FIG5)))
    for draw in range(count):
        drawn = chance(5, draw)
        rates = np.sort(drawn.uniform(*RATES, STREAMS))
        windows = np.sort(drawn.uniform(*WINDOWS, STREAMS))[:: 1 if small_first else -1]
        parts = streams(rates.tolist(), windows.tolist(), range(STREAMS))
        for at, values in enumerate(RANGES):
            shares = Spread(values, is_similar).shares(chance(5, draw, 1), STREAMS)
            found[at] += costs(on_one_attribute(parts, shares), FIG5) / count
    return found


# --- figures 6 and 7 -------------------------------------------------------------------------------------------------

FIG6_OFF, FIG6_CLOSE, FIG6_ROWS, FIG6_PART = 0.17, 0.1, 3.6, 0.25
FIG7_AHEAD, FIG7_OFF, FIG7_CLOSE = {FEW: 4.7, MORE: 1.06}, 0.36, 0.1


def figure_6(scale: float) -> Graphs:
    """The number of streams, each at a node of its own, with 100 rows a second."""
    names = (SIMPLE, HEURISTIC, OPTIMAL)

    def drawing(drawn: Chance, count: int) -> tuple[Stream, ...]:
        return streams([100.0] * count, drawn.uniform(*WINDOWS, count).tolist(), range(count))

    few, more = (
        _over_counts((6, values), drawing, names, draws(DRAWS_OF_COUNTS, scale)).mean(axis=0) for values in (FEW, MORE)
    )
    rows, part = few[:, 0] - few[:, 1], 1 - more[:, 1] / more[:, 0]
    checks = [
        Check(
            "Simple costs as much as there are streams to send",
            bool(np.allclose(few[:, 0], [100.0 * (count - 1) for count in COUNTS])),
            "100 rows each",
        ),
        at_least(
            f"with {FEW:,} values and {COUNTS[-1]} streams, the heuristic saves more rows than with {COUNTS[1]}: times",
            float(rows[-1] / rows[1]),
            FIG6_ROWS,
            ", ".join(f"{each:.1f}" for each in rows),
        ),
        at_least(
            f"with {MORE:,} values and more streams it saves a larger part: 8 and more over up to 6",
            float(part[3:].mean() - part[:3].mean()),
            FIG6_PART,
            ", ".join(f"{each:.3f}" for each in part),
        ),
        _close(few, FEW, FIG6_OFF),
        _close(more, MORE, FIG6_CLOSE, expected=False),
    ]
    return _by_count("pmjoin6", "PMJoin, figure 6: the number of streams", names, {FEW: few, MORE: more}, checks)


def figure_7(scale: float) -> Graphs:
    """The number of streams at five nodes, with 100 to 500 rows a second.

    Curves are medians: a few drawings of Local ship thousands of times as much as the others.
    """
    names = (SIMPLE, LOCAL, HEURISTIC, OPTIMAL)

    def drawing(drawn: Chance, count: int) -> tuple[Stream, ...]:
        rates, windows = drawn.uniform(*RATES_OF_COUNTS, count), drawn.uniform(*WINDOWS, count)
        return streams(rates.tolist(), windows.tolist(), drawn.integers(NODES, size=count).tolist())

    every = {values: _over_counts((7, values), drawing, names, draws(DRAWS_OF_COUNTS, scale)) for values in (FEW, MORE)}
    few, more = (np.median(each, axis=0) for each in every.values())
    checks = [
        *(
            at_least(
                f"from 8 streams on, {values:,} values: Local costs more than the heuristic, in the median: times",
                float(np.median(each[:, 3:, 1] / each[:, 3:, 2], axis=0).min()),
                FIG7_AHEAD[values],
                f"ahead, behind in drawings: {_ahead(each[:, 3:])}",
            )
            for values, each in every.items()
        ),
        at_least(
            f"with {MORE:,} values, the heuristic is never behind Local: the part of the drawings",
            float((every[MORE][..., 1] >= every[MORE][..., 2] * (1 - EVEN)).mean()),
            1.0,
            _ahead(every[MORE]),
            expected=False,
        ),
        _close(every[FEW].mean(axis=0), FEW, FIG7_OFF),
        _close(every[MORE].mean(axis=0), MORE, FIG7_CLOSE, expected=False),
    ]
    return _by_count("pmjoin7", "PMJoin, figure 7: streams at five nodes", names, {FEW: few, MORE: more}, checks)


def _over_counts(seed: tuple[int, int], drawing: Drawing, names: Sequence[str], count: int) -> Array:
    """Drawings x numbers of streams x planners; more streams are the same ones and others."""
    number, values = seed
    found = np.zeros((count, len(COUNTS), len(names)))
    for draw in range(count):
        drawn = chance(number, draw)
        parts, shares = drawing(drawn, max(COUNTS)), Spread(values).shares(drawn, max(COUNTS))
        for at, many in enumerate(COUNTS):
            found[draw, at] = costs(on_one_attribute(parts[:many], shares[:many]), names)
    return found


def _ahead(found: Array) -> str:
    """In how many drawings the heuristic is ahead of Local and behind it, by the number of streams."""
    local, heuristic = found[..., 1], found[..., 2]
    ahead, behind = (heuristic < local * (1 - EVEN)).sum(axis=0), (local < heuristic * (1 - EVEN)).sum(axis=0)
    return ", ".join(f"{a} and {b}" for a, b in zip(ahead.tolist(), behind.tolist(), strict=True))


def _close(found: Array, values: int, bar: float, expected: bool = True) -> Check:
    ratio = found[:, -2] / found[:, -1] - 1
    claim = f"with {values:,} values the heuristic costs more than the best plan: by at most this part"
    return at_most(claim, float(ratio.max()), bar, ", ".join(f"{each:.3f}" for each in ratio), expected)


def _by_count(
    name: str, title: str, names: Sequence[str], found: Mapping[int, Array], checks: Sequence[Check]
) -> Graphs:
    rows = [
        [values, count, *(round(cost) for cost in row)]
        for values, each in found.items()
        for count, row in zip(COUNTS, each.tolist(), strict=True)
    ]
    graphs = [
        Graph(f"{values:,} values", "streams", f"log10 of {SHIPPED}", COUNTS, curves(names, np.log10(each)))
        if each.max() > 10 * each[:, 0].max()
        else Graph(f"{values:,} values", "streams", SHIPPED, COUNTS, curves(names, each))
        for values, each in found.items()
    ]
    return Graphs(name, title, [], checks, ["values", "streams", *names], rows, graphs)
