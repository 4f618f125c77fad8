"""In which order a batch takes in the rows of its inputs: the choice, and why (Ding 2003, sections 4.1, 4.2 and 5.3).

From what is known of the inputs, and `goal`:

    some inputs have unique keys, others not   the one side first: its rows are there when the many side comes, whose
                                               rows then need not be stored                        priority
    promises of any kind, and goal = memory    in turns, so that rows leave while others come      priority, small turns
    otherwise                                  large batches are fastest                           sequential
    punctuations, and goal = memory            rows first that complete what another has promised  value

Priority: inputs with unique keys first, then by the rows that are expected. Turns are equally long; with goal = memory,
where inputs come in order, as long as their rates say: then no input gets ahead of what the others are about, and few
rows wait for each other (the paper's pairs of substreams). Windows in rows count arrivals, so they are taken as they
come.

Pure. The choice is part of the offset, so a replay takes the same turns; `phases.schedule` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_mjoin.model import JoinSpec, Schedule, Settings

QUOTA_ROWS = 65_536  # of a turn: measured by `python -m benchmarks.scheduling`, smaller ones cost throughput
SMALL_QUOTA_ROWS = 8_192  # where memory matters more
ALIKE = 2.0  # inputs whose expected rows differ by less than this factor keep their order


@dataclass(frozen=True)
class Choice:
    schedule: Schedule
    reason: str


def choose(spec: JoinSpec, settings: Settings, rates: Sequence[float] = (), before: Schedule | None = None) -> Choice:
    """The schedule of the next batch.

    rates: rows per second of each input, 0.0 where nobody knows; before: the schedule of the last batch.
    """
    streams, reason = _streams(spec, settings)
    tuples, why = _tuples(spec, settings)
    inputs = range(len(spec.inputs))
    order: tuple[int, ...] = ()
    if streams == "priority":
        order = _by_priority(spec, rates or [0.0] * len(inputs), before.order if before is not None else ())
        first = ", ".join(spec.inputs[number].alias for number in order)
        by = "unique keys" if any(i.unique for i in spec.inputs) else "fewer rows" if any(rates) else "no more is known"
        reason = f"{reason}; first {first}: {by}"
    quotas: tuple[int, ...] = ()
    if streams != "sequential" or tuples == "value":
        quotas = (settings.quota_rows or (SMALL_QUOTA_ROWS if settings.goal == "memory" else QUOTA_ROWS),) * len(inputs)
    if streams == "priority" and settings.goal == "memory" and _go_along(spec) and all(rates or [0.0]):
        quotas = tuple(max(1, round(quota * rate / max(rates))) for quota, rate in zip(quotas, rates, strict=True))
        reason += "; turns as long as rates say, since keys come in order"
    return Choice(Schedule(streams, order, quotas, tuples), "; ".join(filter(None, (reason, why))))


def _streams(spec: JoinSpec, settings: Settings) -> tuple[str, str]:
    if settings.stream_scheduling != "auto":
        return settings.stream_scheduling, "option 'streamScheduling' says so"
    if any(i.window is not None and i.window.in_rows for i in spec.inputs):
        return "sequential", "windows in rows count arrivals, input by input"
    unique = sum(bool(i.unique) for i in spec.inputs)
    if 0 < unique < len(spec.inputs):
        return "priority", "rows of the many side need not be stored when their partner is there"
    if spec.promising and settings.goal == "memory":
        return "priority", "rows can leave while others come, and goal is memory"
    return "sequential", "nothing is known of the inputs that speaks for turns"


def _tuples(spec: JoinSpec, settings: Settings) -> tuple[str, str]:
    if settings.tuple_scheduling != "auto":
        return settings.tuple_scheduling, "option 'tupleScheduling' says so"
    if any(i.window is not None and i.window.in_rows for i in spec.inputs):
        return "sequential", ""
    if any(i.punctuations is not None for i in spec.inputs) and settings.goal == "memory":
        return "value", "rows first that complete what another input has promised, as goal is memory"
    return "sequential", ""


def _go_along(spec: JoinSpec) -> bool:
    """Whether inputs come in the order of their keys, so that rows that come at the same time are about the same."""
    known = all(i.ordered is not None or i.punctuations is not None for i in spec.inputs)
    return known and any(i.ordered is not None for i in spec.inputs)


def _by_priority(spec: JoinSpec, rates: Sequence[float], before: Sequence[int]) -> tuple[int, ...]:
    """Inputs with unique keys first, then by their expected rows, those without any last.

    As before where they are nearly alike.
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
    """For people: `sequential`, or `priority: a 65536, b 65536`, the rows of a turn behind each input."""
    if schedule.streams == "sequential":
        return schedule.streams
    order = schedule.order or range(len(aliases))
    return f"{schedule.streams}: " + ", ".join(f"{aliases[n]} {schedule.quotas[n]}" for n in order)
