"""What one join partition does in one batch: the task that travels to an executor, and the ledger in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from spark_mjoin.model import JoinSpec, Position, Range
from spark_mjoin.plan import Plan
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import Slots


class Ledger(Protocol):
    """Which version of the state a task starts from, which one it makes, and by which plan.

    It says the same whenever the batch runs again, because it was recorded before the batch first ran.
    """

    @property
    def version(self) -> int:
        """Of the state that the task starts from."""

    @property
    def next_version(self) -> int:
        """Of the state that it commits."""

    @property
    def plan(self) -> Plan:
        """Of the batch, with the disk work of the task's partition."""

    @property
    def plan_before(self) -> Plan | None:
        """Of the batch before, in case this task has to catch up on it; None where there is none."""


@dataclass(frozen=True)
class Step:
    """A ledger that was recorded as data: from one version of a query to the next."""

    version: int
    next_version: int
    plan: Plan
    plan_before: Plan | None = None


@dataclass(frozen=True)
class PartitionTask:
    """All that one partition needs for one batch. It travels inside Spark's input partition."""

    spec: JoinSpec
    partition: int
    ledger: Ledger
    start: Mapping[str, Position]  # source alias -> position at the version that the task starts from
    end: Mapping[str, Position]
    ranges: Mapping[str, list[Range]]  # source alias -> rows between start and end
    location: str | None = field(default=None, repr=False)  # of the query's state; None: a batch read, which keeps none
    memory_bytes: int | None = None  # the partition's budget where exceeding it is an error
    compression: str | None = None  # of segments

    @property
    def budget_bytes(self) -> int | None:
        """The partition's part of option 'memory', whatever happens when it is reached; None: there is no limit."""
        plan = self.ledger.plan
        if plan.room is not None:
            return plan.room.memory_bytes
        return self.memory_bytes if plan.overflow is None else plan.overflow.memory_bytes

    @property
    def routing(self) -> Routing:
        return self.ledger.plan.routing

    @property
    def slots(self) -> Slots:
        """That the partition owns."""
        return self.routing.slots(self.partition)
