"""In which order a batch takes the rows of its inputs: the choice, and why (Ding 2003, sections 4.1, 4.2 and 5.3).

Large batches are fastest, in any order, and without key promises no row is dropped early. So inputs come one after the
other, as the query names them. Where key promises let the join drop rows, and memory matters (`goal` is memory, or
there is a budget):

    keys come in order, rates are known       turns in proportion to the rates: no input gets ahead of the keys of the
                                              others, and few rows wait for each other; the paper's pairs of substreams
    some inputs have unique keys, others not  all rows of the one side first: rows of the many side find their partner
                                              and need not be stored
    other promises                            equal turns, so that rows are dropped while others come

The paper takes equal turns for a one-to-many join. Here they gain nothing: the shorter input runs ahead as if it came
first, and every turn costs a search through the state (`python -m benchmarks.scheduling --workload news`).

Rows of a turn come by value where punctuations are passed on and `goal` is memory. Punctuations then come earlier, at a
high cost.

Priority: inputs with unique keys first, then by the rows that are expected.

Windows in rows count arrivals. With them inputs come in step. Results do not depend on the length of turns, but rows
can only be dropped at the end of a turn.

Pure. The choice is part of the offset, so a replay takes the same turns; `engine.schedule` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_mjoin.model import IN_STEP, JoinSpec, Schedule, Settings

QUOTA_ROWS = 65_536  # of a turn: measured by `python -m benchmarks.scheduling`, smaller ones cost throughput
SMALL_QUOTA_ROWS = 8_192  # where memory matters more
_ONE_SIDE = "rows of the many side need not be stored when their partner is there"
ALIKE = 2.0  # inputs whose expected rows differ by less than this factor keep their order


@dataclass(frozen=True)
class Choice:
    schedule: Schedule
    reason: str


def choose(spec: JoinSpec, settings: Settings, rates: Sequence[float] = (), before: Schedule | None = None) -> Choice:
    """The schedule of the next batch.

    rates: rows per second of each input, 0.0 where they are not known; before: the schedule of the last batch.
    """
    known = bool(rates) and all(rates)
    streams, reason = _streams(spec, settings, known)
    tuples, why = _tuples(spec, settings)
    inputs, order = range(len(spec.inputs)), tuple[int, ...]()
    if streams == "priority" or reason == _ONE_SIDE:
        order = _by_priority(spec, rates or [0.0] * len(inputs), before.order if before is not None else ())
        first = ", ".join(spec.inputs[number].alias for number in order)
        by = "unique keys" if any(i.unique for i in spec.inputs) else "fewer rows" if any(rates) else "as in the query"
        reason = f"{reason}; first {first}: {by}"
    quotas: tuple[int, ...] = ()
    if streams != "sequential" or tuples == "value":
        saves = settings.goal == "memory" or (settings.stream_scheduling == "auto" and streams == "priority")
        saves = saves or (streams == IN_STEP and settings.memory_bytes is not None)
        quota = settings.quota_rows or (SMALL_QUOTA_ROWS if saves else QUOTA_ROWS)
        quotas = (quota,) * len(inputs)
        if streams == "priority" and saves and known and _go_along(spec):
            quotas = tuple(max(1, round(quota * rate / max(rates))) for rate in rates)
            reason += "; turns in proportion to rates, since keys come in order"
    return Choice(Schedule(streams, order, quotas, tuples), "; ".join(filter(None, (reason, why))))


def _streams(spec: JoinSpec, settings: Settings, known: bool) -> tuple[str, str]:
    if settings.stream_scheduling != "auto":
        return settings.stream_scheduling, "option 'streamScheduling' says so"
    if spec.counts_rows:
        return IN_STEP, "windows in rows count arrivals, so inputs come side by side"
    if not spec.promising:
        return "sequential", "there are no key promises, so turns gain nothing"
    if settings.goal != "memory" and settings.memory_bytes is None:
        return "sequential", "large batches are fastest, and memory is not the goal"
    if known and _go_along(spec):
        return "priority", "rows can be dropped while others come"
    if 0 < sum(bool(i.unique) for i in spec.inputs) < len(spec.inputs):
        return "sequential", _ONE_SIDE
    return "priority", "rows can be dropped while others come"


def _tuples(spec: JoinSpec, settings: Settings) -> tuple[str, str]:
    if settings.tuple_scheduling != "auto":
        return settings.tuple_scheduling, "option 'tupleScheduling' says so"
    if spec.counts_rows:
        return "sequential", ""
    if spec.gives_punctuations and settings.goal == "memory":
        return "value", "rows first that another input waits for, so that it can pass punctuations on"
    return "sequential", ""


def _go_along(spec: JoinSpec) -> bool:
    """Whether inputs come in the order of their keys, so that rows of the same time have about the same keys."""
    known = all(i.ordered is not None or i.punctuations is not None for i in spec.inputs)
    return known and any(i.ordered is not None for i in spec.inputs)


def _by_priority(spec: JoinSpec, rates: Sequence[float], before: Sequence[int]) -> tuple[int, ...]:
    """Inputs with unique keys first, then by their expected rows, those without any last.

    The order stays as it was where these are nearly alike.
    """

    def rank(number: int) -> tuple[bool, float]:
        return not spec.inputs[number].unique, rates[number] or float("inf")

    def in_order(first: int, second: int) -> bool:
        (many, rows), (other_many, others) = rank(first), rank(second)
        return many < other_many or (many == other_many and rows <= ALIKE * others)

    inputs = range(len(spec.inputs))
    pairs = [(a, b) for at, a in enumerate(before) for b in before[at + 1 :]]
    if sorted(before) == list(inputs) and all(in_order(a, b) for a, b in pairs):
        return tuple(before)
    return tuple(sorted(inputs, key=lambda number: (rank(number), number)))


def render(schedule: Schedule, aliases: Sequence[str]) -> str:
    """For people: `sequential`, `sequential: b, a`, or `priority: a 65536, b 65536` with the rows of a turn."""
    if schedule.streams == "sequential":
        named = ", ".join(aliases[n] for n in schedule.order)
        return f"{schedule.streams}: {named}" if named else schedule.streams
    order = schedule.order or range(len(aliases))
    return f"{schedule.streams}: " + ", ".join(f"{aliases[n]} {schedule.quotas[n]}" for n in order)
