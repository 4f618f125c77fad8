"""The state that a task starts from: out of the cache of its worker, the store, or both.

Either way it is the same state with the same rows in memory, so that it does not matter which worker has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_mjoin.engine import overflow
from spark_mjoin.model import JoinSpec, Position, Tree
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.tree import layout, single
from spark_mjoin.state import meaning
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore
from spark_mjoin.task import PartitionTask


def newest(task: PartitionTask, batch: Plan, state: PartitionState | None, store: StateStore) -> PartitionState | None:
    """The newest committed state up to a task's version, for a batch with this plan: one at hand, or from the store.

    None where the partition has none, since slots were divided otherwise before.
    """
    if state is not None and _is_usable(state, task, batch, store):
        return state
    if batch.routing.before is not None and not any(v <= task.ledger.version for v in store.versions()):
        return None
    assert task.location is not None
    initial = meaning.initial_positions(task.location)
    return load(store, task.spec, batch.tree, task.ledger.version, initial, batch.overflow)


def load(
    store: StateStore,
    spec: JoinSpec,
    tree: Tree,
    version: int,
    initial: Mapping[str, Position],
    plan: Overflow | None,
) -> PartitionState:
    """The newest committed state that is not past `version`; version 0 is empty, at the initial positions.

    It has the operators that it was committed with, or those of `tree` where there is none yet. Where rows can be
    evicted, they are while the state gets too large for its plan.
    """
    published, tracked = store.published(version), plan is not None
    if published is None:
        return PartitionState.empty(tree, layout(spec, tree), initial, tracked)
    tracked = tracked or published.manifest.root.residency is not None
    tree, whole = published.manifest.tree, single(len(spec.inputs))
    state = PartitionState.empty(tree, layout(spec, tree), initial, tracked)
    if state.signatures() != tuple(kept.joined for kept in published.manifest.operators):
        published = store.in_one(published, state)
        state = PartitionState.empty(whole, layout(spec, whole), initial, tracked)
    state.watch(store.rows.read_sample(published.manifest.root.sample, layout(spec, whole)[0].spec))
    for _ in store.fill(state, published):
        overflow.evict_loaded(state, plan)
    return state


def is_before(state: PartitionState, task: PartitionTask) -> bool:
    """Whether a task can resume from a state: one of its own version at its own positions, or an older one."""
    if state.version == task.ledger.version:
        return state.positions == task.start
    return state.version < task.ledger.version


def _is_usable(state: PartitionState, task: PartitionTask, batch: Plan, store: StateStore) -> bool:
    """Whether a batch can resume from a state in memory, after bringing it up to date.

    Not from one that is over a budget: loading evicts rows in an order that does not depend on this process.
    """
    if state.version > task.ledger.version:
        return False
    plan = batch.overflow
    if plan is not None and (not state.tracked or overflow.is_over(state, plan)):
        return False
    return store.catch_up(state, task.ledger.version) and is_before(state, task)
