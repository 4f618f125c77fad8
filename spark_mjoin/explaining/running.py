"""The sections about a query that runs, or has run: what was expected of it next to what was observed.

The expected figures follow from the options, and otherwise from assumptions, for as many rows as have arrived. With
windows they follow from the rates in the options after a long time, since nothing records how long a query has run. The
plan and the orders that would be chosen now come from the planner of the driver, over the same manifests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_mjoin.driver.choice import Planner
from spark_mjoin.driver.costs import Period, forecast
from spark_mjoin.explaining import drawing, partitions, sizes
from spark_mjoin.explaining.drawing import INDENT, count, share, size
from spark_mjoin.explaining.expected import ASSUMED, GIVEN, MEASURED, Expectation
from spark_mjoin.explaining.observed import Observed
from spark_mjoin.explaining.sections import (
    MOST_PAIRS,
    access_rule,
    candidates,
    names_of,
    orders_of,
    pair_name,
    pairs_of,
    threshold,
    tree_lines,
    turns,
    windows,
)
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.mjoin.statistics import Pair, Statistics
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.redaction import public_value


def sections(expected: Expectation, seen: Observed) -> list[str]:
    planner = Planner(expected.spec, expected.settings, expected.costs)
    given = [figure.value for figure in expected.knowledge.rates]
    statistics = planner.statistics(seen.committed, list(seen.rates or given))
    where = [f"{INDENT}version {seen.version}" + (f" of {public_value(seen.location)}" if seen.location else "")]
    if seen.others:
        where.append(f"{INDENT}the newest of {seen.others + 1} queries with these options there")
    believed = _believed(expected, seen)
    pairs = _pairs(expected, seen, statistics, believed)
    return [
        *drawing.titled("OBSERVED", where, _inputs(expected, seen), pairs),
        *windows(expected),
        *drawing.titled("RESULTS AND STATE", _results(expected, seen, believed)),
        *_partitions(expected, seen),
        *_plan(expected, seen, planner, statistics),
        *_orders(expected, seen, planner),
        *_access(expected, seen, planner),
        *turns(expected, seen.metrics.get("streamScheduling")),
    ]


def _believed(expected: Expectation, seen: Observed) -> Statistics:
    """What the planner would expect of the rows that have arrived if nothing had been counted."""
    rows = [seen.figure(f"{i.alias}NumRowsTotal") for i in expected.spec.inputs]
    rates = [figure.value for figure in expected.knowledge.rates]
    given = {pair: figure.value for pair, figure in expected.knowledge.pairs.items()}
    if expected.spec.windowed and all(rates):
        return expected.statistics
    return Statistics.of(expected.spec, rows, rates=rates, given=given)


def _inputs(expected: Expectation, seen: Observed) -> list[str]:
    rows = []
    for n, input in enumerate(expected.spec.inputs):
        rate = expected.knowledge.rates[n].value
        now = "?" if seen.rates is None else count(seen.rates[n])
        arrived = count(seen.figure(f"{input.alias}NumRowsTotal"))
        rows.append([input.alias, arrived, count(rate) if rate else "?", now])
    held = "rows in the state" if expected.spec.windowed else "rows"
    lines = drawing.table(["input", held, "rows/s expected", "rows/s observed"], rows)
    if seen.rates is None:
        return lines
    over = "of the last progress" if seen.seconds is None else f"over the last {seen.seconds:.3g} s of kept versions"
    return [*lines, f"{INDENT}observed rates are {over}"]


def _pairs(expected: Expectation, seen: Observed, statistics: Statistics, believed: Statistics) -> list[str]:
    if not seen.has_manifests:
        return [f"{INDENT}selectivities are in the state: give its location too, as state="]
    spec, every, rows = expected.spec, pairs_of(expected.spec), []
    shown = every if len(every) <= MOST_PAIRS else [p for p in every if statistics.evidence(*p)]
    for pair in shown:
        origin = GIVEN if pair in expected.knowledge.pairs else ASSUMED
        before, now = believed.selectivity(*pair), statistics.selectivity(*pair)
        rows.append([pair_name(spec, pair), share(before), origin, share(now), _evidence(statistics, pair)])
    lines = drawing.table(["pair", "selectivity expected", "from", "observed", "from"], rows)
    if len(shown) < len(every):
        lines.append(f"{INDENT}{len(every) - len(shown)} other pairs were not probed by themselves")
    for residual in spec.residuals:
        last = max(residual.inputs)
        passing = statistics.passing(residual.inputs - {last}, last)
        lines.append(f"{INDENT}{render(residual.expr, names_of(spec))} lets {passing:.3g} of the matches pass")
    return lines


def _evidence(statistics: Statistics, pair: Pair) -> str:
    """Where the selectivity of a pair comes from."""
    probes = statistics.evidence(*pair)
    if probes:
        return f"{MEASURED}: {count(probes)} recent probes"
    through = sum(
        counts.probes
        for (_, bound, target), counts in statistics.edges.items()
        if target in pair and {target, *bound} >= set(pair)
    )
    if through:
        return f"{MEASURED}: {count(through)} recent probes after other inputs"
    return GIVEN if pair in statistics.given else ASSUMED


def _results(expected: Expectation, seen: Observed, believed: Statistics) -> list[str]:
    spec, settings, metric = expected.spec, expected.settings, seen.figure
    widths = expected.knowledge.widths
    needed = intermediate = 0.0
    for place in trees.layout(spec, seen.tree):
        for member, input in zip(place.leaves, place.spec.inputs, strict=True):
            rows = believed.size(frozenset(member))
            intermediate += rows if input.joined else 0.0
            needed += sizes.state_bytes(input, rows, widths, settings.partitions)
    rate = "?"
    if any(believed.rates) and not spec.windowed:
        rate = count(forecast(spec, believed, seen.tree, expected.costs, Period(1.0, steps=1)).rate(1.0))
    results, rows_there = believed.size(frozenset(range(len(spec.inputs)))), sum(believed.rows) + intermediate
    figures = [count(results), rate, count(rows_there), count(intermediate), size(needed)]
    if spec.windowed:
        steady = [count(expected.output_rate), count(sum(expected.held)), "0", size(expected.state_bytes)]
        figures = ["?", *(steady if all(expected.paces) else ["?", "?", "0", "?"])]
    budget = "without a limit" if settings.memory_bytes is None else f"of {size(settings.memory_bytes)}"
    table = [
        ["results", figures[0], count(metric("resultsTotal"))],
        ["results/s", figures[1], "?" if seen.output_rate is None else count(seen.output_rate)],
        ["rows in the state", figures[2], count(metric("numRowsTotal"))],
        ["  of intermediate results", figures[3], count(metric("intermediateRowsTotal"))],
        ["  in memory", "", count(metric("numRowsInMemory"))],
        ["  on disk alone", "", count(metric("numRowsOnDisk"))],
        ["bytes for all rows", figures[4], ""],
        ["bytes in memory", "", f"{size(metric('memoryUsedBytes'))} {budget}"],
        ["completeness", "", f"{metric('completeness'):.4g}"],
        ["estimated recall", "", f"{metric('estimatedRecall'):.4g}"],
    ]
    head = "expected of these rows"
    if spec.windowed:
        head = f"expected after {drawing.seconds(expected.seconds)}"
        table += [["late, in the last batch", "", count(metric("rowsLate"))]]
        table += [["outside their window, dropped in the last batch", "", count(metric("rowsPurged"))]]
    return drawing.table(["", head, "observed"], table)


def _partitions(expected: Expectation, seen: Observed) -> list[str]:
    aliases = [input.alias for input in expected.spec.inputs]
    lines = partitions.observed([manifest for manifest in seen.committed if manifest is not None], aliases)
    return drawing.titled("PARTITIONING", lines) if lines else []


def _plan(expected: Expectation, seen: Observed, planner: Planner, statistics: Statistics) -> list[str]:
    spec = expected.spec
    head = [f"{INDENT}runs: {trees.render(seen.tree, names_of(spec))}"]
    if not seen.has_manifests:
        return drawing.titled("PLAN", head, tree_lines(spec, seen.tree))
    choice = planner.choice(Plan(seen.tree), seen.committed, statistics)
    if expected.settings.plan is not None:
        head.append(f"{INDENT}because: option 'plan' says so")
    else:
        head.append(f"{INDENT}would be chosen now: {trees.render(choice.tree, names_of(spec))}")
        head.append(f"{INDENT}because: {choice.reason}")
    return drawing.titled("PLAN", head, tree_lines(spec, seen.tree), candidates(spec, choice, seen.tree))


def _orders(expected: Expectation, seen: Observed, planner: Planner) -> list[str]:
    spec = expected.spec
    if not seen.has_manifests:
        named = [f"{i.alias}ProbeOrder" for i in spec.inputs]
        return drawing.titled(
            "PROBING ORDERS last used", [f"{INDENT}{seen.metrics[name]}" for name in named if name in seen.metrics]
        )
    found, places = [m for m in seen.committed if m is not None], trees.layout(spec, seen.tree)
    used = [_targets(place.spec.inputs, [m.operators[place.number].orders for m in found]) for place in places]
    operators = planner.counted(seen.tree, seen.committed)
    _, choices = planner.orders(seen.tree, Plan(seen.tree, tuple(map(tuple, used))), operators)
    parts, at = [], 0
    for operator in operators:
        place, statistics = operator.place, operator.statistics
        own = choices[at : at + len(place.spec.inputs)]
        at += len(own)
        lines = orders_of(place, statistics, own, len(places))
        for origin, targets in enumerate(used[place.number]):
            if targets is not None and own[origin].order != targets:
                last = orders.describe(place.spec, orders.order_of(place.spec, origin, targets))
                lines.append(f"{INDENT}last used: {last}")
        parts.append(lines)
    return drawing.titled("PROBING ORDERS of the next batch", *parts, [threshold(spec)])


def _access(expected: Expectation, seen: Observed, planner: Planner) -> list[str]:
    """Which probes scan, and what it costs against looking up; nothing without windows or the option."""
    spec, found = expected.spec, [m for m in seen.committed if m is not None]
    places = trees.layout(spec, seen.tree)
    scans = [found[0].operators[p.number].scans if found else () for p in places]
    if not found or not (spec.windowed or expected.settings.access or any(scans)):
        return []
    used = [_targets(place.spec.inputs, [m.operators[place.number].orders for m in found]) for place in places]
    now = tuple(scans)
    before = Plan(seen.tree, tuple(map(tuple, used)), access=now)
    planned, choices = planner.access(seen.tree, before, planner.counted(seen.tree, seen.committed))
    lines = []
    for place in places:
        names = [i.alias for i in place.spec.inputs]
        rows = [
            [
                names[o],
                names[t],
                "scan" if (o, t) in now[place.number] else "hash",
                "scan" if (o, t) in planned[place.number] else "hash",
            ]
            for o in range(len(names))
            for t in range(len(names))
            if o != t
        ]
        lines += drawing.table(["rows of", "find those of", "last by", "next by"], rows)
    reasons = [f"{INDENT}{choice.reason}" for choice in choices]
    return drawing.titled("ACCESS", lines, reasons, [access_rule(expected.costs)])


def _targets(members: Sequence[Any], used: Sequence[Sequence[str]]) -> list[tuple[int, ...] | None]:
    """The orders that tasks have last used, by members; None for a member that has not probed yet."""
    names = [orders.named(member) for member in members]
    out: list[tuple[int, ...] | None] = []
    for origin in range(len(members)):
        text = next((of[origin] for of in used if of[origin]), None)
        out.append(None if text is None else _parsed(text.removeprefix(names[origin]), names))
    return out


def _parsed(text: str, names: Sequence[str]) -> tuple[int, ...] | None:
    """The members that a text names, each behind a sign that names may have as well; None where it is no such text."""
    if not text:
        return ()
    for number, name in enumerate(names):
        if text.startswith(orders.BEFORE + name):
            rest = _parsed(text[len(orders.BEFORE + name) :], names)
            if rest is not None:
                return (number, *rest)
    return None
