"""One join partition in one micro-batch: the executor's whole story.

    load state v ──> the feed, as scheduled ──> insert, probe, give out ──> disk work ──> commit state v + 1
                                 over budget: rows leave memory ──┘

`run` is a pure function of the task: a retried, speculative or replayed attempt gives the same rows and commits the
same version. It only looks at a clock to say how long it took.

Unless they are scheduled otherwise (`engine.schedule`), inputs are taken one after the other. In the first batch this
means that all but the last input find an empty partner at their first probe, and cost only their insertion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from tempfile import TemporaryDirectory

import pyarrow as pa

from spark_mjoin.counts import BatchCounts, Recall, Standing
from spark_mjoin.engine import arrival, overflow, schedule, takeover
from spark_mjoin.engine.arrival import Gate
from spark_mjoin.engine.cache import StateCache
from spark_mjoin.engine.feed import Feed, Piece
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.replan import replan
from spark_mjoin.engine.retention import expiry, promises, shrinking
from spark_mjoin.errors import MemoryBudgetError, StateError
from spark_mjoin.evidence import Held
from spark_mjoin.model import IN_STEP, WHOLE, JoinSpec, Position
from spark_mjoin.plan import Plan
from spark_mjoin.query.tree import layout, single
from spark_mjoin.state import meaning
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore
from spark_mjoin.task import PartitionTask

log = logging.getLogger(__name__)


def run(task: PartitionTask, feed: Feed, attempt: str, cache: StateCache) -> Iterator[pa.RecordBatch]:
    """Give out the results that what arrives completes, and commit the next version of the state."""
    with _store(task) as store:
        counts = BatchCounts([0] * len(task.spec.inputs), began=time.time())
        try:
            held = cache.held(task)
            state = _load(task, feed, store, attempt, cache, counts)
            counts.cache_hits = int(state is held)
            check = partial(_check_budget, task)
            clock, sampled = time.perf_counter, _sampled(task)
            batch = Pipeline(
                state, store, task.ledger.plan, task.ledger.next_version, attempt, counts, clock, check, sampled
            )
            yield from _advance(task, feed, batch)
            if task.location is not None and _commit(batch, task.end, feed):
                cache.put(task, batch.state)
        except StateError:
            store.discard(attempt)
            raise


@contextmanager
def _store(task: PartitionTask) -> Iterator[StateStore]:
    """The partition's store; a batch read has one for the time that it runs, should it have to spill."""
    if task.location is not None:
        yield StateStore(task.location, task.partition, task.compression, task.routing)
        return
    with TemporaryDirectory(prefix="mjoin-") as directory:
        yield StateStore(directory, task.partition, task.compression, task.routing)


def _advance(task: PartitionTask, feed: Feed, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """Take in what arrives, then do the disk work that there is time for; the state is that of batch.version then."""
    plan = batch.plan
    if batch.state.tree != plan.tree:
        yield from replan(batch, task.spec, plan.tree)
    in_step = plan.schedule.streams == IN_STEP
    counted = [feed.count(number) for number in range(len(task.spec.inputs))] if in_step else []
    yield from batch.arrivals(_arriving(task.spec, feed, batch, counted), task.slots, counted)
    if task.location is None:  # a batch read, after which nothing comes
        yield from batch.settle()
        if task.spec.gives_punctuations:
            batch.purge_memory()
    elif plan.overflow is not None:
        if plan.emits_pending:
            yield from batch.settle()
        yield from batch.planned_work(plan.overflow.work_of(task.partition))
        batch.tidy_disk()
        if plan.purging is not None:
            yield from batch.purge_disk(sum(batch.counts.rows_in) < plan.overflow.blocking_rows)
    if task.spec.gives_punctuations:
        yield from batch.punctuations(task.slots)


def _arriving(spec: JoinSpec, feed: Feed, batch: Pipeline, rows: Sequence[int]) -> Iterator[Piece]:
    """All that arrives in a batch, as it is scheduled."""
    inputs = [feed.read(number, before) for number, before in enumerate(batch.state.delivered())]
    awaited = partial(promises.awaited, batch.state.root) if spec.promising else None
    clusters = schedule.clusters(spec)
    return schedule.merge(batch.plan.schedule, inputs, batch.version, awaited, clusters, batch.counts, rows)


def _commit(batch: Pipeline, positions: Mapping[str, Position], feed: Feed) -> bool:
    """Commit a batch; whether its state can be gone on with."""
    counts, operators = batch.counts, batch.state.operators
    for operator in operators:
        expiry.look(operator)
    inputs, sample = batch.state.inputs(), batch.state.sample
    admitted = [operator.admitted[member] for operator, member in inputs]
    counts.held = Held(
        rows_resident=sum(table.rows for operator in operators for table in operator.tables),
        memory_bytes=batch.state.nbytes(),
        input_bytes=tuple(operator.tables[member].steady_bytes() for operator, member in inputs),
        kept_rows=tuple(a.rows for a in admitted),
        least_fractions=tuple(a.least for a in admitted),
        purge_pending=batch.has_to_purge,
    )
    found = batch.estimate()
    counts.recall = Recall(counts.memory_to_memory.rows + found.fresh, found.lost)
    if sample is not None:
        sample.lost_results += found.lost
    expected = batch.state.results + counts.rows_out + found.pending
    shrinks = batch.plan.room is not None and batch.plan.room.parts is not None
    counts.standing = Standing(
        sample_bytes=0 if sample is None else sample.nbytes(),
        rows_deferred=sum(operator.groups.deferred_rows() for operator in operators),
        expected_results=expected if sample is None else expected + sample.lost_results,
        windows=tuple(shrinking.effective(batch.state.root)) if shrinks else (),
        fractions=tuple(batch.parts(number) / WHOLE for number in range(len(admitted))),
        kept_weights=tuple(a.weight for a in admitted),
    )
    return batch.store.commit(batch.state, batch.version, positions, counts, batch.attempt, feed.may_lose_rows)


def _sampled(task: PartitionTask) -> JoinSpec | None:
    """The join that estimates are about; a batch read has none."""
    return None if task.location is None else layout(task.spec, single(len(task.spec.inputs)))[0].spec


def _load(
    task: PartitionTask, feed: Feed, store: StateStore, attempt: str, cache: StateCache, counts: BatchCounts
) -> PartitionState:
    """The state that a task starts from: out of the cache, the store, or both, or made anew from input."""
    tree, plan = task.ledger.plan.tree, task.ledger.plan.overflow
    if task.location is None:
        return PartitionState.empty(tree, layout(task.spec, tree), task.start, tracked=plan is not None)
    state = cache.take(task)
    if task.ledger.version >= task.routing.since and not store.has(task.ledger.version):
        state = _rebuild(task, feed, state, store, attempt)
    state = _newest(task, task.ledger.plan, state, store)
    if state is None:
        state = _take_over(task, task.ledger.plan, store, task.ledger.next_version, attempt, counts)
    if not _is_before(state, task):
        raise StateError(
            f"state version {task.ledger.version} in {store.directory.location} was made from other input than "
            "the checkpoint says: the checkpoint and 'stateLocation' are not of the same time. Restore both, or start "
            "with a new checkpoint"
        )
    return state


def _newest(task: PartitionTask, batch: Plan, state: PartitionState | None, store: StateStore) -> PartitionState | None:
    """The newest committed state up to task.ledger.version, for a batch with this plan: one at hand, or from the store.

    Either way it is the same state with the same rows in memory, so that it does not matter which worker has it. None
    where the partition has none, since its slots were divided otherwise before.
    """
    if state is not None and _usable(state, task, batch, store):
        return state
    if batch.routing.before is not None and not any(v <= task.ledger.version for v in store.versions()):
        return None
    assert task.location is not None
    plan, initial = batch.overflow, meaning.initial_positions(task.location)
    grown = (lambda state: overflow.shrink(state, plan)) if plan is not None else (lambda state: None)
    return store.load(partial(layout, task.spec), batch.tree, task.ledger.version, initial, plan is not None, grown)


def _take_over(
    task: PartitionTask, plan: Plan, store: StateStore, version: int, attempt: str, counts: BatchCounts
) -> PartitionState:
    """The state of the partitions that there were before, as far as it is this one's, for the batch of a version."""
    started = time.perf_counter()
    state = takeover.take_over(task, plan, store, version, attempt, counts)
    counts.disk_to_disk.seconds += time.perf_counter() - started
    return state


def _usable(state: PartitionState, task: PartitionTask, batch: Plan, store: StateStore) -> bool:
    """Whether a state in memory can be gone on with by a batch, after bringing it up to date.

    One that is over a budget cannot: loading lets rows leave in an order that does not depend on this process.
    """
    if state.version > task.ledger.version:
        return False
    plan = batch.overflow
    if plan is not None and (not state.tracked or overflow.is_over(state, plan)):
        return False
    return store.catch_up(state, task.ledger.version) and _is_before(state, task)


def _is_before(state: PartitionState, task: PartitionTask) -> bool:
    """Whether a task can go on from a state: one of its own version at its own positions, or an older one."""
    if state.version == task.ledger.version:
        return state.positions == task.start
    return state.version < task.ledger.version


def _rebuild(
    task: PartitionTask, feed: Feed, state: PartitionState | None, store: StateStore, attempt: str
) -> PartitionState | None:
    """Read again the input of batches that were given out without this partition's task coming to its end.

    Their results are not needed any more: rows are only inserted, unless the state depends on what they gave, as it
    does where rows leave memory or the state, and where results of one operator are rows of another. All as the batch
    before was planned, and from a state as that batch would have loaded it: nothing here depends on the batch that
    needs it. Committed at once: when no task ever comes to its end, as under `df.show()` in every foreachBatch, each
    batch reads again only the one before. What is returned, if anything, is a state at hand like one from the cache.

    Several batches are made up for as one, with the watermarks and the admission of the last. That is right for batches
    that nobody has read to their end: they had the same ones (doors.reader). A state that is older than that, because
    it is not of the checkpoint's time, is right as long as no row is late under the last watermarks, as then none was
    late under earlier ones, which are lower.
    """
    plan = task.ledger.plan_before or Plan(task.ledger.plan.tree)
    counts = BatchCounts([0] * len(task.spec.inputs), began=time.time())
    state = _newest(task, plan, state, store)
    if state is None:
        state = _take_over(task, plan, store, task.ledger.version, attempt, counts)
    log.warning("state version %d was not committed; reading again from version %d", task.ledger.version, state.version)
    before, feed = state.version, feed.again(state.positions)
    check = partial(_check_budget, task)
    clock, sampled = time.perf_counter, _sampled(task)
    batch = Pipeline(state, store, plan, task.ledger.version, attempt, counts, clock, check, sampled)
    if state.tracked or len(state.operators) > 1 or plan.tree != state.tree or plan.room is not None:
        for _ in _advance(task, feed, batch):
            continue
    else:
        batch.begin_sample_if_lossy()
        for number, delivered in enumerate(state.delivered()):
            for piece in feed.read(number, delivered):
                member = state.root.place.leaves.index((number,))
                arrival.insert(state.root, member, piece, batch.counts, Gate(task.slots, batch.parts(number)))
                check(state)
    if before + 1 < plan.alike_since and (counts.dropped.late or plan.admission is not None):
        raise StateError(
            f"the checkpoint is at state version {task.ledger.version}, and the newest up to it in "
            f"{store.directory.location} is {before or 'none'}. The rest cannot be made up for from the input: "
            "watermarks, or what is shed, have changed in between, and rows would be left out that were not. The "
            "checkpoint and 'stateLocation' are not of the same time: restore both, or start with a new checkpoint"
        )
    return batch.state if _commit(batch, task.start, feed) else None


def _check_budget(task: PartitionTask, state: PartitionState) -> None:
    if task.memory_bytes is not None and (used := state.nbytes()) > task.memory_bytes:
        raise MemoryBudgetError(
            f"the state of join partition {task.partition} needs {used:,} bytes and its share of option 'memory' is "
            f"{task.memory_bytes:,}. Give more 'memory', or read less; what was committed before is intact"
        )
