"""Keeping to the memory budget: when it is reached, a policy names rows and this module lets them leave.

    budget  |------------- rows in memory: 3/4 -------------|--- disk work: 1/4 ---|
                               ^ a flush goes down to here

Sizes are accounted, not measured: a function of the rows that are there, so that a replay flushes at the same points.
The budget is exceeded by one arriving batch at the most, of an input or of results that go up, because it is looked at
after each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa

from spark_mjoin import flush
from spark_mjoin.counts import BatchCounts, Evicted
from spark_mjoin.errors import MemoryBudgetError
from spark_mjoin.flush.protocol import Residents
from spark_mjoin.model import Settings
from spark_mjoin.plan import Overflow
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import Victim
from spark_mjoin.state.store import Draft


@dataclass(frozen=True)
class Limit:
    """The memory of a join partition that may do nothing about it but fail."""

    partition: int
    memory_bytes: int | None  # None: there is no limit

    def check(self, state: PartitionState) -> None:
        """MemoryBudgetError where a state needs more."""
        if self.memory_bytes is not None and (used := state.nbytes()) > self.memory_bytes:
            raise MemoryBudgetError(
                f"the state of join partition {self.partition} needs {used:,} bytes and its share of option 'memory' "
                f"is {self.memory_bytes:,}. Give more 'memory', or read less; what was committed before is intact"
            )


NO_LIMIT = Limit(0, None)

FLUSH_TO = 0.8  # of the room for rows
SAMPLE_SHARE = 16  # of the budget, what the sample for estimates may take of the room for rows is one in so many
LEAST_AREA = 64 << 10  # less than this for disk work would be all indexes and no rows


def work_area(plan: Overflow | None) -> int:
    """Bytes for disk work; without a budget there is as much as there is fuel."""
    if plan is None:
        return Settings.fuel_bytes
    return max(LEAST_AREA, plan.fuel_bytes if plan.memory_bytes is None else plan.memory_bytes // 4)


def capacity(plan: Overflow) -> float:
    """Bytes for rows in memory."""
    return float("inf") if plan.memory_bytes is None else plan.memory_bytes - plan.memory_bytes // 4


def is_over(state: PartitionState, plan: Overflow) -> bool:
    return state.nbytes() > _room(state, plan)


def _room(state: PartitionState, plan: Overflow) -> float:
    """What is left for rows beside the sample; of a small budget the sample does not take more than its share."""
    sample = 0 if state.sample is None else state.sample.nbytes()
    return capacity(plan) - (0 if plan.memory_bytes is None else min(sample, plan.memory_bytes // SAMPLE_SHARE))


def make_room(
    state: PartitionState, plan: Overflow, draft: Draft, counts: BatchCounts, busy: Collection[OperatorState] = ()
) -> None:
    """Evict rows until the rest is well below its limit; what is in no segment yet is written to one.

    The rows of an operator that is busy, because it is giving results just now, stay.
    """
    before = state.nbytes()
    while state.nbytes() > _room(state, plan) * FLUSH_TO and (victims := _victims(state, plan, busy)):
        for operator in sorted({v.operator for v in victims}):
            draft.save(state.operators[operator], sorted({v.input for v in victims if v.operator == operator}))
        counts.evicted += Evicted(1, state.evict(victims))
    counts.evicted += Evicted(bytes=before - state.nbytes())
    give_back()


def evict_loaded(state: PartitionState, plan: Overflow | None) -> None:
    """The same for a state that is being loaded, whose rows are all in segments."""
    if plan is not None and is_over(state, plan):
        while state.nbytes() > _room(state, plan) * FLUSH_TO and (victims := _victims(state, plan)):
            state.evict(victims)


def give_back() -> None:
    """Return freed memory to the system, so that the process shrinks with what it accounts for.

    Arrow's pool and the C library keep what was freed, in case it is needed again; a flush frees in small pieces.
    """
    pa.default_memory_pool().release_unused()
    if _TRIM is not None:
        _TRIM(0)


def _find_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim; other C libraries have none."""
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return trim


_TRIM = _find_trim()


def _victims(state: PartitionState, plan: Overflow, busy: Collection[OperatorState] = ()) -> list[Victim]:
    need = state.nbytes() - int(_room(state, plan) * FLUSH_TO)
    worth = state.worth()
    free = [(o, w) for o, w in zip(state.operators, worth, strict=True) if not any(o is b for b in busy)]
    residents = [Residents.of(o, w) for o, w in free]
    return flush.policy(plan.flush).victims(residents, max(need, 1)) if residents else []
