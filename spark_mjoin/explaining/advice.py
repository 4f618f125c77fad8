"""Read the first rows of every source and print what to expect of the join, and which options to set.

`sampling` reads the rows and `matching` estimates from them. The planner and the cost model say what follows, as in
`explain`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_mjoin.config import Options
from spark_mjoin.driver import balance, calibrate
from spark_mjoin.driver.loading import load
from spark_mjoin.engine.overflow import capacity
from spark_mjoin.errors import OptionError
from spark_mjoin.explaining import drawing, matching, partitions, sampling, sections
from spark_mjoin.explaining.commands import add_options, options_of, reported
from spark_mjoin.explaining.drawing import INDENT, count, share, size
from spark_mjoin.explaining.expected import SAMPLED, UNKNOWN, Expectation, Figure, Knowledge
from spark_mjoin.explaining.explanation import SECONDS, ahead, as_text
from spark_mjoin.explaining.matching import Keys, Match
from spark_mjoin.explaining.sampling import Sample
from spark_mjoin.mjoin.statistics import Pair
from spark_mjoin.model import LAZY, JoinSpec, Settings
from spark_mjoin.plan import Overflow
from spark_mjoin.redaction import Secrets
from spark_mjoin.state.table import MAX_ROWS

SAMPLE_ROWS = 100_000
WINDOWS = (60.0, 600.0, 3600.0)  # seconds, as examples
BUSY = 0.5  # of a core, that a partition should need at the most
FOR_ROWS = 0.75  # of `memory`; the rest is for disk work
LEAST_MEMORY = 16 << 20
OF_MACHINE = 0.5  # of its memory, that is suggested at the most


@dataclass(frozen=True)
class Suggestion:
    option: str
    value: str
    reason: str


@dataclass(frozen=True)
class Advice:
    expectation: Expectation
    samples: tuple[Sample, ...]
    matches: Mapping[Pair, Match]
    keys: tuple[Mapping[int, Keys], ...]
    suggestions: tuple[Suggestion, ...]
    options: Mapping[str, str]  # as given, and with what is suggested
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Advice: {', '.join(f'{s.option} = {s.value}' for s in self.suggestions)}>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument(
        "--sample-rows", type=int, help=f"that are read of each source at the most (default: {SAMPLE_ROWS:,})"
    )
    parser.add_argument("--seconds", type=float, help=f"that the forecast looks ahead (default: {SECONDS:g})")


def command(given: argparse.Namespace) -> int:
    return reported(lambda: advised(options_of(given), given.sample_rows, given.seconds))


def advised(options: Mapping[str, Any], sample_rows: int | None = None, seconds: float | None = None) -> Advice:
    """What to expect of a join with these options, and what to set."""
    given, most = as_text(options), SAMPLE_ROWS if sample_rows is None else sample_rows
    if most < 1:
        raise OptionError(f"argument 'sample_rows' is {most}: give how many rows may be read of each source, 1 or more")
    with Secrets.of(given.items()).kept():
        return _advised(given, most, ahead(seconds))


def _advised(given: Mapping[str, str], most: int, looking: float) -> Advice:
    spec, settings = load(given)
    rates = [rate.value for rate in Knowledge.given(spec, settings).rates]
    samples = sampling.sample(spec, most, looking, rates)
    matches, keys = matching.matches(spec, samples), matching.keys(samples)
    knowledge = _knowledge(spec, settings, samples, matches)
    suggestions = _expectations(spec, knowledge)
    with_rates = replace(settings, expected=Options.parse({**given, **_values(suggestions)}).settings.expected)
    costs = calibrate.calibrated()
    tracked = replace(with_rates, memory_bytes=settings.memory_bytes or LEAST_MEMORY)
    expectation = Expectation(spec, tracked, costs, knowledge, looking)
    if expectation.is_known:
        suggestions += [*_memory(settings, expectation), *_partitions(spec, settings, expectation, keys)]
    advised_options = {**_without(given, suggestions), **_values(suggestions)}
    final = replace(expectation, settings=replace(load(advised_options)[1], expected=with_rates.expected))
    lines = [
        *sections.graph(spec),
        *_samples(spec, samples, knowledge),
        *_times(spec, samples),
        *_matches(final, samples, matches, keys),
        *sections.windows(final),
        *sections.plan(final),
        *_divided(final, samples),
        *sections.future(final),
        *_windows(final),
        *_suggested(suggestions, final.is_known),
        *sections.legend(costs),
    ]
    text = "\n".join(lines).rstrip()
    return Advice(final, tuple(samples), matches, tuple(keys), tuple(suggestions), advised_options, text)


def _knowledge(
    spec: JoinSpec, settings: Settings, samples: Sequence[Sample], matches: Mapping[Pair, Match]
) -> Knowledge:
    """What the options say of rates, and what was sampled of all else."""
    by_user = Knowledge.given(spec, settings)
    rates = []
    for rate, each in zip(by_user.rates, samples, strict=True):
        sampled = Figure(0.0, UNKNOWN) if not each.rows_per_second else Figure(each.rows_per_second, SAMPLED)
        rates.append(rate if rate.value else sampled)
    infinite = float("inf")
    most = tuple(infinite if each.most is None else each.most for each in samples)
    return Knowledge(
        rows=tuple(Figure(each.rows, SAMPLED) for each in samples),
        rates=tuple(rates),
        pairs={**by_user.pairs, **{pair: Figure(min(1.0, m.selectivity), SAMPLED) for pair, m in matches.items()}},
        widths={name: width for each in samples for name, width in each.widths.items()},
        most=most,
        paces=tuple(rate.value or each.pace for rate, each in zip(by_user.rates, samples, strict=True)),
        kept=tuple(each.kept_share for each in samples),
    )


# --- suggestions -----------------------------------------------------------------------------------------------------


def _values(suggestions: Sequence[Suggestion]) -> dict[str, str]:
    return {s.option: s.value for s in suggestions}


def _without(options: Mapping[str, str], suggestions: Sequence[Suggestion]) -> dict[str, str]:
    replaced = {s.option.lower() for s in suggestions}
    return {name: value for name, value in options.items() if name.lower() not in replaced}


def _expectations(spec: JoinSpec, knowledge: Knowledge) -> list[Suggestion]:
    """What the planner should expect until it has counted; rates that the user has given stay."""
    out, pairs = list[Suggestion](), dict[tuple[str, str], float]()
    for input, rate in zip(spec.inputs, knowledge.rates, strict=True):
        option = f"source.{spec.sources[input.source].alias}.expectedRowsPerSecond"
        if rate.origin == SAMPLED and option not in {s.option for s in out}:
            out.append(Suggestion(option, f"{rate.value:.4g}", "as sampled, after filters"))
    for (a, b), figure in knowledge.pairs.items():
        first, second = sorted(spec.sources[spec.inputs[i].source].alias for i in (a, b))
        pairs[first, second] = max(figure.value, pairs.get((first, second), 0.0))
    if pairs:
        value = ", ".join(f"{a}.{b}: {s:.3g}" for (a, b), s in sorted(pairs.items()))
        out.append(Suggestion("expectedSelectivity", value, "as sampled; the planner's until it has counted"))
    return out


def _memory(settings: Settings, expected: Expectation) -> list[Suggestion]:
    """Enough for all rows, or as much as the machine can spare; nothing where what is set is enough."""
    needed = expected.state_bytes / FOR_ROWS
    if settings.memory_bytes is not None and settings.memory_bytes >= needed:
        return []
    known = any(figure.value for figure in expected.knowledge.rates)
    span = f"after {drawing.seconds(expected.seconds)}" if known else "of what is there now"
    wanted = _round_size(needed)
    rows = f"{FOR_ROWS:.0%} of it for {size(expected.state_bytes)} of rows and indexes {span}"
    available = int(machine_bytes() * OF_MACHINE)
    if wanted <= available:
        return [Suggestion("memory", _size_option(wanted), rows)]
    kept = available * FOR_ROWS / expected.state_bytes
    reason = (
        f"{OF_MACHINE:.0%} of this machine's; {size(needed)} would keep all rows in memory {span}, this keeps"
        f" {kept:.0%} of them, and the rest is joined from disk"
    )
    return [Suggestion("memory", _size_option(available), reason)]


def _partitions(
    spec: JoinSpec, settings: Settings, expected: Expectation, keys: Sequence[Mapping[int, Keys]]
) -> list[Suggestion]:
    star = spec.star_class
    if star is None:
        return []
    busy = expected.work_seconds
    for_work = math.ceil(busy / BUSY)
    for_rows = math.ceil(max(expected.held) / (MAX_ROWS / 2))
    largest = max((of[star].largest for of in keys if star in of), default=0.0)
    cores = os.cpu_count() or 1
    useful = max(1, math.floor(1 / largest)) if largest else 1
    if balance.may_split(spec, replace(settings, partitions=2)):
        useful = cores  # a frequent key is split
    wanted = max(for_rows, min(for_work, useful, cores), 1)
    if wanted == settings.partitions:
        return []
    reason = (
        f"joining takes {busy:.2%} of a core; the most frequent key has {largest:.2%} of the rows of an input; this"
        f" machine has {cores} cores"
    )
    return [Suggestion("partitions", str(wanted), reason)]


def _round_size(needed: float) -> int:
    """The next 2^k or 3 * 2^k bytes."""
    top = max(float(LEAST_MEMORY), needed)
    power = 1 << math.ceil(math.log2(top))
    return power * 3 // 4 if power * 3 // 4 >= top else power


def _size_option(value: int) -> str:
    return f"{value >> 30}g" if value >= 1 << 30 and value % (1 << 30) == 0 else f"{value >> 20}m"


def machine_bytes() -> float:
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


# --- text ------------------------------------------------------------------------------------------------------------


def _samples(spec: JoinSpec, samples: Sequence[Sample], knowledge: Knowledge) -> list[str]:
    rows = []
    for input, each, rate in zip(spec.inputs, samples, knowledge.rates, strict=True):
        basis = "all of it was read" if each.is_whole else f"{SAMPLED}: {each.survey.basis}"
        rows.append(
            [
                input.alias,
                count(each.read_rows),
                f"{each.kept_share:.1%}",
                count(each.rows),
                basis,
                count(rate.value) if rate.value else "?",
                rate.origin,
            ]
        )
    head = ["input", "rows read", "stored", "rows there now", "from", "rows/s", "from"]
    return drawing.titled("SAMPLED INPUTS", drawing.table(head, rows))


def _times(spec: JoinSpec, samples: Sequence[Sample]) -> list[str]:
    """Event times, and how far out of order they come; nothing where there are none."""
    rows = []
    for input, each in zip(spec.inputs, samples, strict=True):
        if input.time is not None and each.kept_rows:
            behind = each.behind
            late = float((behind > input.lateness).mean())
            most = [drawing.seconds(float(value) / 1e6) for value in (np.quantile(behind, 0.99), behind.max())]
            rows.append([input.alias, count(each.pace) if each.pace else "?", *most, f"{late:.3%}"])
    head = ["input", "rows per second of event time", "behind the newest: 99%", "all", "by more than 'watermark'"]
    return drawing.titled("SAMPLED TIMES", drawing.table(head, rows)) if rows else []


def _matches(
    expected: Expectation, samples: Sequence[Sample], matches: Mapping[Pair, Match], keys: Sequence[Mapping[int, Keys]]
) -> list[str]:
    spec = expected.spec
    values = [
        [
            input.alias,
            drawing.key_name(key_class),
            count(found.different),
            count(each.population / found.different),
            f"{found.largest:.2%}",
        ]
        for input, each, of in zip(spec.inputs, samples, keys, strict=True)
        for key_class, found in of.items()
    ]
    rows = []
    for pair, found in matches.items():
        there = [expected.inside[i] if spec.windowed else samples[i].population for i in pair]
        basis = f"{samples[pair[0]].kept_rows:,} x {samples[pair[1]].kept_rows:,} rows; {found.basis}"
        if found.pairs is not None:
            basis = f"{found.pairs:,} pairs of rows inside the windows{found.basis}"
        per_row = [count(found.selectivity * rows_there) for rows_there in reversed(there)]
        text = f"{found.matches:,} matches in {basis}"
        rows.append([sections.pair_name(spec, pair), share(found.selectivity), *per_row, text])
    return drawing.titled(
        "SAMPLED KEYS",
        drawing.table(["input", "key", "values", "rows per value", "most frequent"], values),
        drawing.table(["pair a, b", "selectivity", "b per a", "a per b", "from"], rows),
    )


def _divided(expected: Expectation, samples: Sequence[Sample]) -> list[str]:
    """How evenly the rows of the samples are divided among the partitions that are suggested."""
    lines = partitions.sampled(expected.spec, expected.settings, samples)
    return drawing.titled("PARTITIONING", lines) if lines else []


def _windows(expected: Expectation) -> list[str]:
    """To what a window would bound the state of the inputs, where there is none."""
    if expected.spec.windowed:
        return []
    members = [m for o in expected.operators for m in o.members if not m.joined]
    by_name = {i.alias: rate for i, rate in zip(expected.spec.inputs, expected.knowledge.rates, strict=True)}
    per_second = sum(by_name[m.name].value * m.state_bytes / m.rows for m in members if m.rows)
    if not per_second:
        return []
    lines = [
        f"{INDENT}of {drawing.seconds(window)}: {size(per_second * window)} = {size(per_second)}/s x {window:g} s"
        for window in WINDOWS
    ]
    room = expected.settings.partitions * capacity(Overflow.of(expected.settings))
    longest = drawing.about(room / per_second * (LAZY - 1) / LAZY)
    budget = size(expected.settings.memory_bytes or 0)
    lines.append(f"{INDENT}of up to {longest}: fits into 'memory' = {budget} with what lazy expiry holds besides")
    return drawing.titled("A WINDOW would bound the inputs' rows", lines)


def _suggested(suggestions: Sequence[Suggestion], is_known: bool) -> list[str]:
    if not suggestions:
        why = "what is set is enough" if is_known else "the sources have no rows yet, and no rates"
        return drawing.titled("SUGGESTED", [f"{INDENT}nothing: {why}"])
    lines = []
    for each in suggestions:
        lines += [f'{INDENT}.option("{each.option}", "{each.value}")', f"{INDENT * 3}{each.reason}"]
    return drawing.titled("SUGGESTED", lines)
