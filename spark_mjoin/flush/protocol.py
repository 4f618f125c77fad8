"""What a flush policy is: it looks at what is in memory and names victims. It never writes, and it has no clock.

The same residents give the same victims, so a replayed batch evicts the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.arrivals import Arrivals
from spark_mjoin.state.buckets import bucket_classes
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.residency import Victim


@dataclass(frozen=True)
class Residents:
    """What one operator of the plan has in memory, as a policy sees it."""

    groups: Groups
    row_bytes: list[float]  # per input, the mean size of a row with its part of the indexes
    arrivals: list[Arrivals]  # per input, when its rows arrived
    events: int
    classes: list[int]  # per input, the key class of its buckets: inputs with the same one form a star
    operator: int = 0
    worth: float = 1.0  # results of the whole join that one of the operator's is expected to lead to

    @staticmethod
    def of(state: OperatorState, worth: float = 1.0) -> Residents:
        sizes = [table.nbytes() / max(table.rows, 1) for table in state.tables]
        arrivals = [table.arrivals for table in state.tables]
        classes = bucket_classes(state.spec)
        return Residents(state.groups, sizes, arrivals, state.residency.events, classes, state.place.number, worth)

    def bytes(self) -> Array:
        """Bytes per input and bucket."""
        sizes: Array = self.groups.resident * np.array(self.row_bytes)[:, None]
        return sizes


class Policy(Protocol):
    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        """Rows of at least `need` bytes, or all there are; never none while there are any.

        All operators of the plan have one budget together, so the victims may be anywhere in the plan.
        """


def enough(candidates: Iterable[tuple[float, list[Victim]]], need: int) -> list[Victim]:
    """The first candidates, each with its bytes, that are at least `need` bytes together; empty ones are skipped."""

    def chosen() -> Iterator[Victim]:
        freed = 0.0
        for size, victims in candidates:
            if freed >= need:
                return
            if size > 0:
                freed += size
                yield from victims

    return list(chosen())


def buckets_of(residents: Sequence[Residents]) -> Iterator[tuple[float, Victim]]:
    """Every bucket of every input of every operator, with its bytes."""
    for of in residents:
        for (input, bucket), size in np.ndenumerate(of.bytes()):
            yield float(size), Victim(input, bucket, operator=of.operator)
