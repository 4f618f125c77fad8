"""States that a worker process keeps from one batch to the next, so that a partition need not be loaded again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from spark_mjoin.model import JoinSpec
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.routing import Routing
from spark_mjoin.task import PartitionTask

Name = tuple[str, Routing, int]  # of a state: where its query is, how it is divided, the partition


@dataclass
class StateCache:
    """States that tasks have left behind, for later batches of the same query to resume from.

    Rows are append-only, so a state that is some versions old is brought up to date from the store. A state that a task
    has taken is not in the cache until that task commits: an abandoned one is never seen again.
    """

    limit_bytes: int = 1 << 30
    _states: OrderedDict[Name, tuple[JoinSpec, PartitionState]] = field(default_factory=OrderedDict)

    def held(self, task: PartitionTask) -> PartitionState | None:
        """The state that a task can resume from without reading rows, if it is the one that is published."""
        spec, state = self._states.get(_name(task), (None, None))
        return state if state is not None and state.version == task.ledger.version and spec == task.spec else None

    def take(self, task: PartitionTask) -> PartitionState | None:
        spec, state = self._states.pop(_name(task), (None, None))
        return state if spec == task.spec else None

    def put(self, task: PartitionTask, state: PartitionState) -> None:
        """Keep a state; the least recently used ones of others go when all together exceed the limit.

        Those of the query go that are divided otherwise: it does not go back to them.
        """
        location, routing, _ = name = _name(task)
        for other in [n for n in self._states if n[0] == location and n[1] != routing]:
            del self._states[other]
        self._states[name] = task.spec, state
        while len(self._states) > 1 and sum(s.nbytes() for s in self.states()) > self.limit_bytes:
            self._states.popitem(last=False)

    def states(self) -> list[PartitionState]:
        """All of them, the least recently used first."""
        return [state for _, state in self._states.values()]

    def clear(self) -> None:
        self._states.clear()


def _name(task: PartitionTask) -> Name:
    return task.location or "", task.routing, task.partition


_of_worker = StateCache()


def of_worker() -> StateCache:
    """The cache of this process: Spark's workers live longer than tasks, and share nothing else between them."""
    return _of_worker


@contextmanager
def using(cache: StateCache) -> Iterator[StateCache]:
    """While this lasts, this process is a worker that has another cache."""
    global _of_worker
    before, _of_worker = _of_worker, cache
    try:
        yield cache
    finally:
        _of_worker = before
