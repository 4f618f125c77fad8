"""One join partition in one micro-batch: the executor's whole story.

    load state v ──> for each input: read its ranges ──> insert, probe, give out ──> commit state v + 1

`run` is a pure function of the task: a retried, speculative or replayed attempt gives the same rows and commits the
same version. It only looks at a clock to say how long it took.

Inputs are taken one after the other. In the first batch this means that all but the last input find an empty partner at
their first probe, and cost only their insertion.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from spark_mjoin import sources
from spark_mjoin.errors import MemoryBudgetError, StateError
from spark_mjoin.join.operator import Bound, materialise, pooled
from spark_mjoin.metrics import BatchCounts
from spark_mjoin.model import JoinSpec, PartitionTask, Range
from spark_mjoin.phases import arrival
from spark_mjoin.state import meaning
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.source_log import DurableLog
from spark_mjoin.state.store import StateStore

log = logging.getLogger(__name__)


def run(task: PartitionTask, attempt: str) -> Iterator[pa.RecordBatch]:
    """Give out the results that this batch completes, and commit the next version of the state."""
    started = time.perf_counter()
    waited = 0.0
    counts = BatchCounts([0] * len(task.spec.inputs), cache_hits=int(_CACHE.holds(task)))
    state = load(task, attempt)
    for bound in pooled(_arrivals(task, state, counts)):
        for results in materialise(task.spec, state.tables, bound):
            counts.rows_out += results.num_rows
            given = time.perf_counter()
            yield results
            waited += time.perf_counter() - given
    counts.memory_bytes = state.nbytes()
    counts.time_ms = round(1000 * (time.perf_counter() - started - waited))
    if task.location is not None:
        StateStore(task.location, task.partition).commit(state, task.version + 1, task.end, counts, attempt)
        _CACHE.put(task, state)


def _arrivals(task: PartitionTask, state: PartitionState, counts: BatchCounts) -> Iterator[Bound]:
    """The memory-to-memory phase over all that arrives in this batch."""
    for number in range(len(task.spec.inputs)):
        for batch in read(task.spec, number, task.ranges):
            yield from arrival.arrive(state, number, batch, task.share, counts)
            _check_budget(task, state)


def load(task: PartitionTask, attempt: str) -> PartitionState:
    """The state at task.version: from this process's cache, the store, or both; what is missing, from the input."""
    if task.location is None:
        return PartitionState.empty(task.spec, task.start)
    store = StateStore(task.location, task.partition)
    state = _CACHE.take(task)
    if state is not None and state.version <= task.version and state.spec == task.spec:
        store.catch_up(state, task.version)
    if state is None or state.spec != task.spec or not _is_before(state, task):
        state = store.load(task.spec, task.version, meaning.initial_positions(task.location))
    if state.version < task.version:
        _rebuild(task, state, store, attempt)
    if not _is_before(state, task):
        raise StateError(
            f"state version {task.version} in {store.directory.location} was made from other input than the checkpoint "
            "says: the checkpoint and 'stateLocation' are not of the same time. Restore both, or start with a new "
            "checkpoint"
        )
    return state


def _is_before(state: PartitionState, task: PartitionTask) -> bool:
    """Whether a task can go on from a state: one of its own version at its own positions, or an older one."""
    if state.version == task.version:
        return state.positions == task.start
    return state.version < task.version


def read(spec: JoinSpec, number: int, ranges: Mapping[str, list[Range]]) -> Iterator[pa.RecordBatch]:
    """The arriving rows of one input."""
    input = spec.inputs[number]
    source = sources.open_source(spec.sources[input.source])
    for range in ranges[spec.sources[input.source].alias]:
        yield from source.read(range, input.columns)


def _rebuild(task: PartitionTask, state: PartitionState, store: StateStore, attempt: str) -> None:
    """Read again the input of batches that were given out without this partition's task coming to its end.

    Their results are not needed any more, so the rows are only inserted. Committed at once: when no task ever comes to
    its end, as under `df.show()` in every foreachBatch, each batch reads again only the one before.
    """
    log.warning("state version %d was not committed; reading again from version %d", task.version, state.version)
    assert task.location is not None
    ranges = {}
    for source in task.spec.sources:
        history = DurableLog(task.location, source.alias)
        since, until = state.positions[source.alias], task.start[source.alias]
        ranges[source.alias] = sources.open_source(source).plan(since, until, history)
    counts = BatchCounts([0] * len(task.spec.inputs))
    for number in range(len(task.spec.inputs)):
        for batch in read(task.spec, number, ranges):
            arrival.insert(state, number, batch, task.share, counts)
            _check_budget(task, state)
    store.commit(state, task.version, task.start, counts, attempt)


def _check_budget(task: PartitionTask, state: PartitionState) -> None:
    if task.memory_bytes is not None and (used := state.nbytes()) > task.memory_bytes:
        raise MemoryBudgetError(
            f"the state of join partition {task.partition} needs {used:,} bytes and its share of option 'memory' is "
            f"{task.memory_bytes:,}. Give more 'memory', or read less; what was committed before is intact"
        )


@dataclass
class StateCache:
    """States that this worker process has left behind, to be gone on with in a later batch of the same query.

    Rows are append-only, so a state that is some versions old is brought up to date from the store. A state that a task
    has taken is gone from the cache until that task commits: an abandoned one is never seen again.
    """

    limit_bytes: int = 1 << 30
    _states: OrderedDict[tuple[str, int], PartitionState] = field(default_factory=OrderedDict)

    def holds(self, task: PartitionTask) -> bool:
        """Whether nothing has to be read to go on."""
        state = self._states.get((task.location or "", task.partition))
        return state is not None and state.version == task.version and state.spec == task.spec

    def take(self, task: PartitionTask) -> PartitionState | None:
        return self._states.pop((task.location or "", task.partition), None)

    def put(self, task: PartitionTask, state: PartitionState) -> None:
        """Keep a state; the least recently used ones of others go when all together exceed the limit."""
        self._states[task.location or "", task.partition] = state
        while len(self._states) > 1 and sum(s.nbytes() for s in self._states.values()) > self.limit_bytes:
            self._states.popitem(last=False)

    def clear(self) -> None:
        self._states.clear()


_CACHE = StateCache()
