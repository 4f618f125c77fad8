"""What a flush policy is: it looks at what is in memory and names victims. It never writes, and it has no clock.

The same residents give the same victims, so a replayed batch lets the same rows leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import Victim


@dataclass(frozen=True)
class Residents:
    """What is in memory, as a policy sees it."""

    groups: Groups
    row_bytes: list[float]  # per input, the mean size of a row with its share of the indexes
    arrived: list[Array]  # per input and row, the number of events before its arrival
    events: int

    @staticmethod
    def of(state: PartitionState) -> Residents:
        sizes = [table.nbytes() / max(table.rows, 1) for table in state.tables]
        return Residents(state.groups, sizes, [t.arrived for t in state.tables], state.residency.events)

    def bytes(self) -> Array:
        """Bytes per input and bucket."""
        sizes: Array = self.groups.resident * np.array(self.row_bytes)[:, None]
        return sizes


class Policy(Protocol):
    def victims(self, residents: Residents, need: int) -> list[Victim]:
        """Rows of at least `need` bytes, or all there are; never none while there are any."""


def enough(candidates: Iterable[tuple[float, list[Victim]]], need: int) -> list[Victim]:
    """The first candidates, each given with its bytes, that are at least `need` bytes together; empty ones are left."""

    def chosen() -> Iterator[Victim]:
        freed = 0.0
        for size, victims in candidates:
            if freed >= need:
                return
            if size > 0:
                freed += size
                yield from victims

    return list(chosen())
