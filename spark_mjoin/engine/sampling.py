"""Estimating what is pending and what is lost, from a sample of the rows (state.sample).

    before rows are first evicted, dropped or shed         a sample of what is there
    when rows arrive                                       those that are sampled come in (engine.arrival)
    at the end of a batch                                  the sample is joined, and its combinations are looked at

The sample is joined as a whole, with windows and all conditions. Of each combination it is known, by the rules that the
join itself goes by, what has become of it:

    pending    it has not been emitted yet (mjoin.emitted), and will be
    lost       one of its rows was dropped before the last of them arrived
    emitted    all others

What is emitted is counted exactly anyway; the sample is asked for the rest alone. So an error of the sample matters
only as far as anything is pending or lost, and where nothing is, nothing is estimated. A row that is there because only
a part of its input was let in stands for others that were shed; so does each combination, for as many as the product
over its rows.

In a plan with intermediate results it is not known of a combination when it went up. There all that have been completed
since nothing was pending are counted, and what was emitted since is taken off.

The sample fits LIMIT_BYTES and gives at most MOST_RESULTS. When it is too large, rows go that no result to come needs;
then half of the keys of a class or of the rows of an input: the ones that add the least variance for each row that
goes. Halving units (keys or rows) of which t results depend on each adds the sum of t^2, so rows are halved where few
keys have most of the results, and keys elsewhere.

All of it follows from the rows: a replay estimates the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.disk import Part
from spark_mjoin.evidence import WorkCounts
from spark_mjoin.mjoin.bound import Bound
from spark_mjoin.mjoin.completion import Completion, View
from spark_mjoin.mjoin.emitted import not_yet
from spark_mjoin.mjoin.operator import Joining
from spark_mjoin.mjoin.orders import probe_order
from spark_mjoin.mjoin.windows import Windows
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.sample import MOST_HALVINGS, Sample
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.store import StateStore

LIMIT_BYTES = 2 << 20
MOST_RESULTS = 1 << 15
PIECES = 8  # in which rows that are there are taken, of all inputs in turn


@dataclass(frozen=True)
class Estimate:
    pending: float = 0.0  # results that are still to be emitted
    lost: float = 0.0  # results that rows of this batch would have completed, and never will
    fresh: float = 0.0  # pending results that rows of this batch have completed


@dataclass(frozen=True)
class Sampler:
    """Begins the sample of a state when it is first needed."""

    state: PartitionState
    spec: JoinSpec | None  # all inputs in one join, to estimate what is pending or lost; None: do not
    store: StateStore

    def begin(self) -> None:
        """Before anything is lost, or cannot be emitted at once: sample what is there, to estimate that later."""
        if self.spec is not None and self.state.sample is None:
            _begin(self.state, self.spec, self.store)


def _begin(state: PartitionState, spec: JoinSpec, store: StateStore) -> None:
    """Sample the rows that are there. Nothing is lost yet, except by shedding, which the inputs know of."""
    sample = Sample.empty(spec)
    state.watch(sample)
    pieces = [_rows(operator, member, store) for operator, member in state.inputs()]
    known = len(state.operators) == 1 and state.tracked
    while pieces:
        left = []
        for input, batches in enumerate(pieces):
            if (batch := next(batches, None)) is not None:
                operator, member = state.inputs()[input]
                arrived = arrived_of(batch)
                weight = operator.admitted[member].weights(arrived)
                stored = [batch.column(s.field) for s in operator.spec.inputs[member].stored]
                sample.take(input, stored, arrived if known else 0, weight)
                left.append(batches)
        fit(state)
        pieces = pieces if left else []
    sample.complete_at = state.results, sample.clock


def _rows(operator: OperatorState, member: int, store: StateStore) -> Iterator[pa.RecordBatch]:
    """All rows of an input in the state, as they are stored."""
    if operator.residency.overflowed():
        yield from Part(member).read(operator, store)
        return
    table = operator.tables[member]
    yield from table.pieces(0, table.rows, math.ceil(table.rows / PIECES) or 1)


def moment(state: PartitionState) -> int:
    """Now, as rows of the sample know when they arrived: rows that come later have a larger number."""
    if len(state.operators) == 1 and state.tracked:
        return state.root.residency.events
    return 0 if state.sample is None else state.sample.clock


def mark_emitted(state: PartitionState) -> None:
    """Nothing that the rows so far have is pending."""
    assert state.sample is not None
    state.sample.complete_at = state.results, moment(state)


def fit(state: PartitionState) -> None:
    """Make the sample as small as it has to be."""
    sample = state.sample
    if sample is None or sample.nbytes() <= LIMIT_BYTES:
        return
    _forget(state, sample)
    while sample.nbytes() > LIMIT_BYTES and _halve(sample, _combinations(state, sample)[0], by_rows=True):
        continue


def estimate(state: PartitionState, results: int, since: int) -> Estimate:
    """What is pending and lost after a batch that began at such a moment, with so many results in all so far."""
    sample = state.sample
    if sample is None:
        return Estimate()
    pending_results = any(operator.groups.in_debt().any() for operator in state.operators if operator.tracked)
    if not pending_results:
        sample.complete_at = results, moment(state)
    if not (pending_results or sample.lossy):
        return Estimate()
    bound, complete = _combinations(state, sample)
    while not complete and _halve(sample, bound, by_rows=False):
        bound, complete = _combinations(state, sample)
    if not bound:
        return Estimate()
    inputs = range(len(sample.tables))
    arrived = [sample.tables[i].arrivals.of(bound[i]) for i in inputs]
    youngest = np.maximum.reduce(arrived)
    fresh, lost = youngest > since, np.zeros(youngest.size, np.bool_)
    for i in inputs:
        lost |= sample.lost[i][bound[i]] < youngest
    weights = math.prod((sample.weights[i][bound[i]] for i in inputs), start=np.ones(youngest.size))
    missing = float((weights - ~lost)[fresh].sum()) * sample.scale
    if not pending_results:
        return Estimate(lost=missing)
    if len(state.operators) > 1:
        before, clock = sample.complete_at
        since_then = int((~lost & (youngest > clock)).sum()) * sample.scale
        pending = max(0.0, before + since_then - results)
        return Estimate(pending, missing, pending)
    waits = _pending(state.root, sample, bound, arrived) & ~lost
    return Estimate(int(waits.sum()) * sample.scale, missing, int((waits & fresh).sum()) * sample.scale)


def _pending(state: OperatorState, sample: Sample, bound: Bound, arrived: list[Array]) -> Array:
    """Which combinations have not been emitted, of an operator that has all inputs."""
    residency, inputs, main = state.residency, range(len(sample.tables)), state.groups.main[0]
    buckets = [sample.tables[i].buckets_of(bound[i]) for i in inputs]
    maybe = np.flatnonzero(state.groups.in_debt()[buckets[main]])
    flushed = [residency.flushed(i, table.buckets, table.arrived) for i, table in enumerate(sample.tables)]
    apart = np.minimum.reduce([flushed[i][bound[i]][maybe] for i in inputs]) != NEVER
    maybe = maybe[apart]
    out = np.zeros(arrived[0].size, np.bool_)
    out[maybe] = not_yet(
        [arrived[i][maybe] for i in inputs],
        [flushed[i][bound[i]][maybe] for i in inputs],
        residency.cleaned[buckets[main][maybe]],
        residency.visits,
        [buckets[i][maybe] for i in inputs],
    )
    return out


def _combinations(state: PartitionState, sample: Sample) -> tuple[Bound, bool]:
    """The combinations of the sample, or the first of them; and whether these are all."""
    sizes = [table.rows for table in sample.tables]
    origin = sizes.index(min(sizes))
    windows = Windows.of(sample.spec, state.root.progress)
    order = probe_order(sample.spec, origin, sizes)
    found: list[Bound] = []
    count = 0
    for bound in Joining(sample.spec, sample.tables, WorkCounts(), windows).produce(order, 0, sizes[origin]):
        found.append(bound)
        count += bound[origin].size
        if count > MOST_RESULTS:
            break
    if not count:
        return {}, True
    return {i: np.concatenate([of[i] for of in found]) for i in range(len(sizes))}, count <= MOST_RESULTS


def _halve(sample: Sample, bound: Bound, by_rows: bool) -> bool:
    """Make the sample smaller by the halving that adds the least variance, for each row that goes or for each result.

    False where there is nothing left to halve.
    """
    rows = [table.rows for table in sample.tables]
    best, choice = math.inf, None
    for at, key_class in enumerate(sample.classes):
        members = sample.with_class(key_class)
        gone = sum(rows[i] for i in members)
        if gone and sample.key_halvings[at] < MOST_HALVINGS:
            some = members[0]
            _, key = np.unique(hash_array(sample.key(some, key_class)), return_inverse=True)
            cost = _variance(key[bound[some]] if bound else None) / (gone if by_rows else 1)
            if cost < best:
                best, choice = cost, (True, key_class)
    for input, gone in enumerate(rows):
        if gone and sample.row_halvings[input] < MOST_HALVINGS:
            cost = _variance(bound[input] if bound else None) / (gone if by_rows else 1)
            if cost < best:
                best, choice = cost, (False, input)
    if choice is None:
        return False
    by_key, which = choice
    if by_key:
        sample.halve_keys(which)
    else:
        sample.halve_rows(which)
    return True


def _variance(units: Array | None) -> float:
    """The sum of squares of the results that depend on each unit, per result, given the unit of each.

    Without results, as if each unit had one.
    """
    return 1.0 if units is None else float((np.bincount(units).astype(np.float64) ** 2).sum() / units.size)


def _forget(state: PartitionState, sample: Sample) -> None:
    """Let rows of the sample go that no result to come needs: outside their window, or made useless by promises.

    As in the join itself, where combinations with them may be pending they stay.
    """
    root = state.root
    if not root.spec.forgetful:
        return
    debt = root.groups.in_debt()
    completion = None
    if root.spec.promising and root.promises:
        views = [View.of_table(root.spec, t, root.groups.disk[n] > 0) for n, t in enumerate(root.tables)]
        completion = Completion(root.spec, root.promises, views)
    for input, table in enumerate(sample.tables):
        free = (~debt if input in root.groups.main else np.full(BUCKETS, not debt.any()))[table.buckets]
        gone = np.zeros(table.rows, np.bool_)
        window = sample.spec.inputs[input].window
        horizon = root.progress.horizons[input] if root.progress.horizons else None
        if window is not None and horizon is not None:
            gone |= table.position(window.position) <= horizon
        if completion is not None:
            gone |= completion.useless(input, View.of_table(root.spec, table, np.zeros(BUCKETS, np.bool_)))
        sample.keep(input, ~(gone & free))
