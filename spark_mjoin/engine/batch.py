"""One join partition in one micro-batch: the executor's whole story.

    load state v ──> the feed, as scheduled ──> insert, probe, emit ──> disk work ──> commit state v + 1
                                 over budget: rows are evicted ──┘

`run` is a pure function of the task: a retried, speculative or replayed attempt gives the same rows and commits the
same version. It only looks at a clock to say how long it took.

Unless they are scheduled otherwise (`engine.schedule`), inputs are taken one after the other. In the first batch this
means that all but the last input find an empty partner at their first probe, and cost only their insertion.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryDirectory

import pyarrow as pa

from spark_mjoin.counts import BatchCounts, Recall, Standing
from spark_mjoin.engine import loading, pending, schedule, takeover
from spark_mjoin.engine.arrival import Own
from spark_mjoin.engine.cache import StateCache
from spark_mjoin.engine.emission import Emission
from spark_mjoin.engine.feed import Feed, Piece
from spark_mjoin.engine.kept import copies
from spark_mjoin.engine.overflow import Limit
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.replan import replan
from spark_mjoin.engine.schedule import Turns
from spark_mjoin.errors import StateError
from spark_mjoin.evidence import Held
from spark_mjoin.model import IN_STEP, WHOLE, JoinSpec, Position
from spark_mjoin.plan import Plan
from spark_mjoin.query.tree import layout, single
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import Draft, StateStore
from spark_mjoin.task import PartitionTask

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ended:
    """What is known of a batch when it has ended."""

    committing: float  # seconds that the commit took: no manifest can say that of itself
    floor: int | None  # no result to come has an event time below this; None: it may


def run(task: PartitionTask, feed: Feed, attempt: str, cache: StateCache) -> Generator[pa.RecordBatch, None, Ended]:
    """Emit the results that what arrives completes, and commit the next version of the state."""
    committing = 0.0
    with _store(task) as store:
        counts = _counts(task)
        try:
            held = cache.held(task)
            state = _load(task, feed, store, attempt, cache, counts)
            counts.cache_hits = int(state is held)
            batch = _begin(task, state, task.ledger.plan, store.draft(task.ledger.next_version, attempt), counts)
            emission = Emission.of(task, feed)
            counts.brought = emission.brought
            yield from emission.early(_results(task, feed, batch))
            floor = batch.retention.floor()
            if task.location is not None:
                started = time.perf_counter()
                if _commit(batch, task.end, feed):
                    cache.put(task, batch.state)
                committing = time.perf_counter() - started
            yield from emission.late()
        except StateError:
            store.discard(attempt)
            raise
    return Ended(committing, floor)


def _counts(task: PartitionTask) -> BatchCounts:
    """What a batch that begins now has done so far."""
    copied = partial(copies, routing=task.routing, partition=task.partition) if task.routing.layout.replicates else None
    return BatchCounts([0] * len(task.spec.inputs), began=time.time(), copies_among=copied)


def _begin(task: PartitionTask, state: PartitionState, plan: Plan, draft: Draft, counts: BatchCounts) -> Pipeline:
    """A batch of a task by a plan, which makes a version."""
    limit = Limit(task.partition, task.memory_bytes)
    state.count_keys(plan.counts_keys)
    return Pipeline(state, plan, draft, counts, time.perf_counter, limit, _sampled(task))


@contextmanager
def _store(task: PartitionTask) -> Iterator[StateStore]:
    """The partition's store; a batch read has one for the time that it runs, should it have to spill."""
    if task.location is not None:
        yield StateStore(task.location, task.partition, task.compression, task.routing)
        return
    with TemporaryDirectory(prefix="mjoin-") as directory:
        yield StateStore(directory, task.partition, task.compression, task.routing)


def _results(task: PartitionTask, feed: Feed, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """All that a batch emits: where the partition is new, first what others have left pending."""
    plan, counts = batch.plan, batch.counts
    if plan.routing.before is not None and task.ledger.next_version == plan.routing.since:
        yield from counts.disk_to_disk.timed(pending.emit(task, batch), batch.clock)
    yield from _advance(task, feed, batch)


def _advance(task: PartitionTask, feed: Feed, batch: Pipeline) -> Iterator[pa.RecordBatch]:
    """Take in what arrives, then do the disk work that there is time for; the state is that of batch.version then."""
    plan = batch.plan
    if batch.state.tree != plan.tree:
        yield from replan(batch, task.spec, plan.tree)
    in_step = plan.schedule.streams == IN_STEP
    counted = [feed.count(number) for number in range(len(task.spec.inputs))] if in_step else []
    yield from batch.arrivals(_arriving(task.spec, feed, batch, counted), _own(task), counted, feed.floors())
    last = task.location is None  # a batch read, after which nothing comes
    if last:
        yield from batch.emit_pending()
    elif plan.overflow is not None:
        if plan.emits_pending:
            yield from batch.emit_pending()
        yield from batch.planned_work(plan.overflow.work_of(task.partition))
        yield from batch.tidy_disk()
    yield from batch.retention.punctuations(task.slots, last)


def _own(task: PartitionTask) -> Own:
    """What the partition has of rows that come to all."""
    layout, routing = task.routing.layout, task.routing
    numbers = None if layout.by_slots else partial(routing.numbers_of, partition=task.partition)
    return Own(task.slots, numbers, layout.hot_keys)


def _arriving(spec: JoinSpec, feed: Feed, batch: Pipeline, rows: Sequence[int]) -> Iterator[Piece]:
    """All that arrives in a batch, as it is scheduled."""
    inputs = [feed.read(number, before) for number, before in enumerate(batch.state.delivered())]
    turns = Turns(batch.plan.schedule, inputs, batch.draft.version, schedule.clusters(spec), rows)
    return batch.taking_turns(turns)


def _commit(batch: Pipeline, positions: Mapping[str, Position], feed: Feed) -> bool:
    """Commit a batch; whether the next one can resume from its state."""
    counts, operators, retained = batch.counts, batch.state.operators, batch.retention.report()
    inputs, sample = batch.state.inputs(), batch.state.sample
    admitted = [operator.admitted[member] for operator, member in inputs]
    counts.held = Held(
        rows_resident=sum(table.rows for operator in operators for table in operator.tables),
        memory_bytes=batch.state.nbytes(),
        input_bytes=tuple(operator.tables[member].steady_bytes() for operator, member in inputs),
        kept_rows=tuple(a.rows for a in admitted),
        least_fractions=tuple(a.least for a in admitted),
        purge_pending=retained.purge_pending,
    )
    if batch.state.traffic is not None and dict(positions) != dict(batch.state.positions):
        batch.state.traffic.fade()
    found = batch.estimate()
    counts.recall = Recall(counts.memory_to_memory.rows + found.fresh, found.lost)
    if sample is not None:
        sample.lost_results += found.lost
    expected = batch.state.results + counts.rows_out + found.pending
    counts.standing = Standing(
        sample_bytes=0 if sample is None else sample.nbytes(),
        rows_deferred=sum(operator.groups.deferred_rows() for operator in operators),
        expected_results=expected if sample is None else expected + sample.lost_results,
        windows=retained.windows,
        fractions=tuple(batch.parts(number) / WHOLE for number in range(len(admitted))),
        kept_weights=tuple(a.weight for a in admitted),
    )
    store, version, attempt = batch.draft.store, batch.draft.version, batch.draft.attempt
    return store.commit(batch.state, version, positions, counts, attempt, feed.may_lose_rows())


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
    state = _resumed(task, task.ledger.plan, state, store.draft(task.ledger.next_version, attempt), counts)
    if not loading.is_before(state, task):
        raise StateError(
            f"state version {task.ledger.version} in {store.directory.location} was made from other input than "
            "the checkpoint says: the checkpoint and 'stateLocation' are not of the same time. Restore both, or start "
            "with a new checkpoint"
        )
    return state


def _resumed(
    task: PartitionTask, plan: Plan, state: PartitionState | None, draft: Draft, counts: BatchCounts
) -> PartitionState:
    """The newest state of a partition, for a batch with this plan; where it has none yet, what it takes over."""
    found = loading.newest(task, plan, state, draft.store)
    if found is None:
        started = time.perf_counter()
        found = takeover.take_over(task, plan, draft, counts)
        counts.disk_to_disk.seconds += time.perf_counter() - started
    return found


def _rebuild(
    task: PartitionTask, feed: Feed, state: PartitionState | None, store: StateStore, attempt: str
) -> PartitionState | None:
    """Read again the input of batches that were emitted without this partition's task coming to its end.

    Their results are not needed any more: rows are only inserted, unless the state depends on what they gave, as it
    does where rows are evicted or dropped, and where results of one operator are rows of another. All as the batch
    before was planned, and from a state as that batch would have loaded it: nothing here depends on the batch that
    needs it. Committed at once: when no task ever comes to its end, as under `df.show()` in every foreachBatch, each
    batch reads again only the one before. What is returned, if anything, is a state at hand like one from the cache.

    Several batches are made up for as one, with the watermarks and the admission of the last. That is right for batches
    that nobody has read to their end: they had the same ones (doors.reader). A state that is older than that, because
    it is not of the checkpoint's time, is right as long as no row is late under the last watermarks, as then none was
    late under earlier ones, which are lower.
    """
    plan = task.ledger.plan_before or Plan(task.ledger.plan.tree)
    draft, counts = store.draft(task.ledger.version, attempt), _counts(task)
    state = _resumed(task, plan, state, draft, counts)
    log.warning("state version %d was not committed; reading again from version %d", task.ledger.version, state.version)
    before, feed = state.version, feed.again(state.positions)
    batch = _begin(task, state, plan, draft, counts)
    plain = batch.retention.keeps_all and plan.tree == state.tree and len(state.operators) == 1
    if state.tracked or not plain:
        for _ in _advance(task, feed, batch):
            continue
    else:
        batch.only_insert((feed.read(number, at) for number, at in enumerate(state.delivered())), _own(task))
    if before + 1 < plan.alike_since and (batch.counts.dropped.late or plan.admission is not None):
        raise StateError(
            f"the checkpoint is at state version {task.ledger.version}, and the newest up to it in "
            f"{store.directory.location} is {before or 'none'}. The rest cannot be made up for from the input: "
            "watermarks, or what is shed, have changed in between, and rows would be left out that were not. The "
            "checkpoint and 'stateLocation' are not of the same time: restore both, or start with a new checkpoint"
        )
    return batch.state if _commit(batch, task.start, feed) else None
