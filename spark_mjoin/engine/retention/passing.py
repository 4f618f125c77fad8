"""Keeping to the memory without a disk, where there are no windows: rows only pass by.

Without windows no row is worth less than another, and dropping rows would cost more than it gives: what is there stays,
and what comes when memory is full meets it and is not kept. Sizes are accounted, so a replay keeps the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from spark_mjoin.counts import Reason
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention.protocol import KeepAll
from spark_mjoin.engine.sampling import Sampler
from spark_mjoin.mjoin.bound import EMIT_FIRST, Found
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.table import indexes_bytes


@dataclass(frozen=True)
class Passing(KeepAll):
    state: PartitionState
    memory_bytes: int
    sampler: Sampler

    @property
    def keeps_all(self) -> bool:
        return False

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        if self._fits(operator, member, piece.size):
            yield from found
            return
        yield EMIT_FIRST  # another table is in the place of the member's meanwhile
        self.sampler.begin()
        with passing(operator, member):
            yield from found
            yield EMIT_FIRST

    def _fits(self, operator: OperatorState, member: int, rows: int) -> bool:
        """Whether so many rows more of an input would fit, if they are like those that are there."""
        table = operator.tables[member]
        indexes = indexes_bytes(table.spec, table.rows + rows) - indexes_bytes(table.spec, table.rows)
        return self.state.nbytes() + rows * table.row_bytes() + indexes <= self.memory_bytes


@contextmanager
def passing(state: OperatorState, member: int) -> Iterator[None]:
    """While this lasts, rows of a member meet the others and are kept apart. At its end they depart."""
    kept, state.tables[member] = state.tables[member], new_table(state.spec, member, state.tracked)
    sample, input = state.sample, state.place.leaves[member][0]
    before = 0 if sample is None else sample.tables[input].rows
    yield
    passed, state.tables[member] = state.tables[member], kept
    if sample is not None:
        arrived = sample.tables[input].arrived
        sample.lose(input, np.arange(arrived.size) >= before, arrived)
    state.depart(member, passed, Reason.PASSED)
