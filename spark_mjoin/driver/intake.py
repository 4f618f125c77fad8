"""What comes into a join, as the driver sees it: how far each source can be read, and the rows between two positions.

    Reading    the tasks of the join read upstream sources themselves: format("mjoin")
    Brought    somebody brings rows to the tasks, batch by batch: spark_mjoin.join

Positions and ranges are by the alias of the source. A source that is read writes what it learns to its log, which the
caller opens: a durable one for a query, one in memory for a batch read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_mjoin import sources
from spark_mjoin.model import STAGE, JoinSpec, Position, Range
from spark_mjoin.sources.protocol import Limits, SourceLog

Positions = Mapping[str, Position]


class Intake(Protocol):
    """The sources of one join."""

    @property
    def is_limited(self) -> bool:
        """Whether a batch may take only a part of what some source has."""

    def initial(self) -> dict[str, Position]:
        """Where a new query starts."""

    def freeze(self, logs: Sequence[SourceLog]) -> None:
        """Take what is there now as the end of every source."""

    def latest(self, start: Positions, logs: Sequence[SourceLog], unlimited: bool = False) -> dict[str, Position]:
        """How far the next batch can read."""

    def ranges(self, start: Positions, end: Positions, logs: Sequence[SourceLog]) -> dict[str, list[Range]]:
        """The rows between two positions of each source that tasks have to read."""

    def delivering(self, moved: Sequence[str], before: Mapping[str, int]) -> Sequence[str]:
        """The sources that are not idle. moved: with new positions; before: rows of each in the batch before."""

    def behind(self, positions: Positions, logs: Sequence[SourceLog]) -> list[int]:
        """How much is known to be there after the positions, in units of each source; empty where that is not known."""


class Brought:
    """Rows that somebody brings. A position says how many batches had any."""

    is_limited = False

    def __init__(self, spec: JoinSpec) -> None:
        self._aliases = [described.alias for described in spec.sources]
        self._results = [described.alias for described in spec.sources if described.format == STAGE]

    def initial(self) -> dict[str, Position]:
        return {alias: {"batches": 0} for alias in self._aliases}

    def freeze(self, logs: Sequence[SourceLog]) -> None:
        """Nothing: whoever brings the rows knows when they end."""

    def latest(self, start: Positions, logs: Sequence[SourceLog], unlimited: bool = False) -> dict[str, Position]:
        """As it is: nothing comes unless it is brought."""
        return dict(start)

    def after(self, start: Positions, has_news: bool = True) -> dict[str, Position]:
        """After one more batch. Which inputs have rows in it shows only when it runs.

        Without news from any stream it has none, but for results that an earlier stage had on disk.
        """
        moving = self._aliases if has_news else self._results
        return {a: {"batches": p["batches"] + 1} if a in moving else p for a, p in start.items()}

    def ranges(self, start: Positions, end: Positions, logs: Sequence[SourceLog]) -> dict[str, list[Range]]:
        return {}

    def delivering(self, moved: Sequence[str], before: Mapping[str, int]) -> Sequence[str]:
        """As in the batch before, because positions say nothing."""
        return [alias for alias, rows in before.items() if rows]

    def behind(self, positions: Positions, logs: Sequence[SourceLog]) -> list[int]:
        return []


class Reading:
    """Upstream sources that the tasks read."""

    def __init__(self, spec: JoinSpec) -> None:
        self._sources = {described.alias: sources.open_source(described) for described in spec.sources}
        self._limits = {s.alias: sources.limits(s.alias, dict(s.options)) for s in spec.sources}

    @property
    def is_limited(self) -> bool:
        return any(limits != Limits() for limits in self._limits.values())

    def initial(self) -> dict[str, Position]:
        return {alias: source.initial() for alias, source in self._sources.items()}

    def freeze(self, logs: Sequence[SourceLog]) -> None:
        for source, log in zip(self._sources.values(), logs, strict=True):
            source.freeze(log)

    def latest(self, start: Positions, logs: Sequence[SourceLog], unlimited: bool = False) -> dict[str, Position]:
        return {
            alias: source.latest(start[alias], Limits() if unlimited else self._limits[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        }

    def ranges(self, start: Positions, end: Positions, logs: Sequence[SourceLog]) -> dict[str, list[Range]]:
        return {
            alias: source.plan(start[alias], end[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        }

    def delivering(self, moved: Sequence[str], before: Mapping[str, int]) -> Sequence[str]:
        return moved

    def behind(self, positions: Positions, logs: Sequence[SourceLog]) -> list[int]:
        return [
            source.behind(positions[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        ]
