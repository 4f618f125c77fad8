"""In which order a batch takes in the rows of its inputs: the choice, and why (Ding 2003, sections 4.1 and 5.3).

Pure. The choice is part of the offset, so a replay takes the same turns; `phases.schedule` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_mjoin.model import JoinSpec, Schedule, Settings

QUOTA_ROWS = 65_536  # of a turn: measured by `python -m benchmarks.scheduling`, smaller ones cost throughput
ALIKE = 2.0  # inputs whose expected rows differ by less than this factor keep their order


@dataclass(frozen=True)
class Choice:
    schedule: Schedule
    reason: str


def choose(spec: JoinSpec, settings: Settings, rates: Sequence[float] = (), before: Schedule | None = None) -> Choice:
    """The schedule of the next batch.

    rates: rows per second of each input, 0.0 where nobody knows; before: the schedule of the last batch.
    """
    kind, reason = settings.stream_scheduling, "option 'streamScheduling' says so"
    if kind == "auto":
        kind, reason = "sequential", "nothing is known of the inputs that speaks for turns"
    if kind == "sequential":
        return Choice(Schedule(), reason)
    inputs = range(len(spec.inputs))
    quotas = (settings.quota_rows or QUOTA_ROWS,) * len(inputs)
    if kind == "random":
        return Choice(Schedule(kind, (), quotas), reason)
    order = _by_rows(inputs, rates or [0.0] * len(inputs), before.order if before is not None else ())
    aliases = [spec.inputs[number].alias for number in order]
    known = "fewer rows are expected of the first" if any(rates) else "how many rows to expect is not known"
    return Choice(Schedule(kind, order, quotas), f"{reason}; {', '.join(aliases)}: {known}")


def _by_rows(inputs: Sequence[int], rates: Sequence[float], before: Sequence[int]) -> tuple[int, ...]:
    """Inputs in the order of their expected rows, those without any last; as before where they are nearly alike."""

    def rows(number: int) -> float:
        return rates[number] or float("inf")

    if sorted(before) == sorted(inputs):
        pairs = [(a, b) for at, a in enumerate(before) for b in before[at + 1 :]]
        if all(rows(a) <= ALIKE * rows(b) for a, b in pairs):
            return tuple(before)
    return tuple(sorted(inputs, key=lambda number: (rows(number), number)))


def render(schedule: Schedule, aliases: Sequence[str]) -> str:
    """For people: `sequential`, or `priority: a 65536, b 65536`, the rows of a turn behind each input."""
    if schedule.streams == "sequential":
        return schedule.streams
    order = schedule.order or range(len(aliases))
    return f"{schedule.streams}: " + ", ".join(f"{aliases[n]} {schedule.quotas[n]}" for n in order)
