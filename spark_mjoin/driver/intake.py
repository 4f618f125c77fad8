"""The upstream sources of a join on the driver: how far each can be read, and the rows between two positions.

Positions and ranges are by the alias of the source. A source writes what it learns to its log, which the caller opens:
a durable one for a query, one in memory for a batch read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_mjoin import sources
from spark_mjoin.model import JoinSpec, Position, Range
from spark_mjoin.sources.protocol import Limits, SourceLog

Positions = Mapping[str, Position]


class Intake:
    def __init__(self, spec: JoinSpec) -> None:
        self._sources = {described.alias: sources.open_source(described) for described in spec.sources}
        self._limits = {s.alias: sources.limits(s.alias, dict(s.options)) for s in spec.sources}

    @property
    def is_limited(self) -> bool:
        """Whether a batch may take only a part of what some source has."""
        return any(limits != Limits() for limits in self._limits.values())

    def initial(self) -> dict[str, Position]:
        """Where a new query starts."""
        return {alias: source.initial() for alias, source in self._sources.items()}

    def freeze(self, logs: Sequence[SourceLog]) -> None:
        """Take what is there now as the end of every source."""
        for source, log in zip(self._sources.values(), logs, strict=True):
            source.freeze(log)

    def latest(self, start: Positions, logs: Sequence[SourceLog], unlimited: bool = False) -> dict[str, Position]:
        """How far the next batch can read."""
        return {
            alias: source.latest(start[alias], Limits() if unlimited else self._limits[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        }

    def ranges(self, start: Positions, end: Positions, logs: Sequence[SourceLog]) -> dict[str, list[Range]]:
        """The rows between two positions of each source."""
        return {
            alias: source.plan(start[alias], end[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        }

    def behind(self, positions: Positions, logs: Sequence[SourceLog]) -> list[int]:
        """How much is known to be there after the positions, in units of each source."""
        return [
            source.behind(positions[alias], log)
            for (alias, source), log in zip(self._sources.items(), logs, strict=True)
        ]
