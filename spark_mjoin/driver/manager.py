"""The state manager (PermJoin, section III): what the next micro-batch does besides taking new rows.

Runs on the driver, over the statistics that tasks have committed. Its decisions travel in the offset, so a replay makes
no new ones. An operator of the plan is in one of three modes in a batch:

    IN_MEMORY      new input joins what is in memory
    ON_DISK        disk parts are visited or passed over, in the order of expected results per byte read
    LOW_PRIORITY   nothing: it waits for an operator above it, of which more is expected

`decide` looks at the operators from the root down, as the paper does (figure 2). The first operator with more expected
results of the whole join per byte from disk than from memory works on disk. Those below it wait, and the others work in
memory. Those that wait get no new input: their sources are not read in that batch, and they never wait in two batches
in a row. A plan of one operator is the simplest case: it works on disk, and no operator waits.

Disk work with more expected results than new input is *urgent*: a task does it whatever arrives. In a plan of several
operators the inputs below wait for it, so it replaces their work. A single operator has no such inputs. There it delays
the next rows, and an early pass has to be repeated for rows that come later. So it is urgent only as far as it was
earned. Arriving rows earn fuel by their bytes (`earnings`): a small fraction of them (`diskShare`). Where batches leave
time free, they earn as much as fits into half of that time, for any disk work, since it delays nothing. A task does
other work if a batch brings few rows (`blockingThreshold`) or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np

from spark_mjoin.model import DiskWork, JoinSpec, OperatorSpec
from spark_mjoin.state.groups import MOST_HELD, MOST_RECORDS, Groups
from spark_mjoin.state.manifest import Manifest, OperatorFigures

NOTHING = -1.0  # the expectation of new input where there is none, and of a disk without work
LEAST_WORTH = 1e-9
LEAST_SHARE = 1 / 16  # of what passes would read, that has to be earned before a pass while rows arrive
MOST_VISITS = 16  # pieces of disk work in one batch, apart from passes


class Mode(Enum):
    IN_MEMORY = "in-memory"
    ON_DISK = "on-disk"
    LOW_PRIORITY = "low-priority"


@dataclass(frozen=True)
class Outlook:
    """What is expected of an operator: results of the join per byte of new input, and per byte read from disk."""

    memory: float
    disk: float


@dataclass(frozen=True)
class Committed:
    """An operator of the plan in one partition: what it joins, and what its last task has committed."""

    place: OperatorSpec
    figures: OperatorFigures


@dataclass(frozen=True)
class Decision:
    modes: tuple[Mode, ...] = ()
    work: tuple[DiskWork, ...] = ()
    waiting: frozenset[int] = frozenset()  # inputs of the join that wait
    spent: float = 0.0  # of what was earned, by work that is urgent because more is expected of it than of new input


def assign(places: Sequence[OperatorSpec], outlooks: Sequence[Outlook]) -> tuple[Mode, ...]:
    """A mode for every operator of a plan, given in preorder."""
    modes = [Mode.IN_MEMORY] * len(places)
    depths = [0] * len(places)
    for number, place in enumerate(places):
        depths[number] = 0 if place.parent is None else depths[place.parent[0]] + 1
    for number in sorted(range(len(places)), key=lambda n: (depths[n], n)):
        if outlooks[number].disk > outlooks[number].memory:
            modes[number] = Mode.ON_DISK
            for below in range(number + 1, len(places)):
                parent = places[below].parent
                if parent is not None and (parent[0] == number or modes[parent[0]] is Mode.LOW_PRIORITY):
                    modes[below] = Mode.LOW_PRIORITY
            break
    return tuple(modes)


def earnings(manifest: Manifest, rate: float) -> float:
    """The bytes of urgent disk work that the last batch of a partition has earned, at a rate per arrived byte."""
    segments = [s for operator in manifest.operators for s in operator.segments]
    row_bytes = sum(s.bytes for s in segments) / max(1, sum(s.rows for s in segments))
    return manifest.taken.rows * row_bytes * rate


def decide(
    operators: Sequence[Committed],
    fuel_bytes: int,
    arriving: frozenset[int],
    ended: bool,
    earned: float = math.inf,
    has_time: bool = False,
) -> Decision:
    """A mode for every operator, in preorder, and the disk work of one of them: no two work on disk in a batch.

    `arriving` are the inputs of the join that have new rows, and `earned` the bytes of disk work that may be done all
    the same. `has_time`: batches leave time free, so this work delays nothing and need not pay. Where no operator
    expects more from disk, one with disk work left may use the time that new input leaves: the first from the root. If
    no input will come any more (`ended`), it is the first from the leaves, since its results are work for those above.
    """
    places = [o.place for o in operators]
    candidates = [_Candidates.of(o.place.spec, o.figures) for o in operators]
    worths = _worths(places, candidates)
    outlooks = [
        _outlook(c, worth, bool(arriving & place.inputs))
        for c, worth, place in zip(candidates, worths, places, strict=True)
    ]
    modes = assign(places, outlooks)
    busy = [n for n, c in enumerate(candidates) if c is not None and c.passes]
    if not busy:
        return Decision(modes)
    if ended or Mode.ON_DISK not in modes:
        worker = busy[-1] if ended else busy[0]
        free = earned if has_time and arriving else 0.0
        work, spent = _work(candidates[worker], worker, fuel_bytes, ended, bar=0.0, earned=free)
        return Decision(modes, work, spent=spent)
    worker = modes.index(Mode.ON_DISK)
    bar, free = outlooks[worker].memory / max(worths[worker], LEAST_WORTH), earned if arriving else 0.0
    if len(places) > 1:
        free = math.inf if arriving else 0.0  # the inputs below wait for it, for one batch
    elif has_time:
        bar = 0.0
    elif free < min(LEAST_SHARE * _bytes_of_passes(candidates[worker]), fuel_bytes):
        free = 0.0  # a pass opens all segments, so many small ones would cost more than they read
    work, spent = _work(candidates[worker], worker, fuel_bytes, ended, bar, free)
    if arriving and not spent:
        return Decision(modes, work)
    waiting = frozenset(
        i for place, mode in zip(places, modes, strict=True) if mode is Mode.LOW_PRIORITY for i in place.inputs
    )
    return Decision(modes, work, waiting, spent if len(places) == 1 else 0.0)


def _worths(places: Sequence[OperatorSpec], candidates: Sequence[_Candidates | None]) -> list[float]:
    """For each operator, how many results of the whole join one of its results has lately led to."""
    out: list[float] = []
    for place in places:
        above = None if place.parent is None else candidates[place.parent[0]]
        if place.parent is None or above is None:
            out.append(1.0)
        else:
            out.append(out[place.parent[0]] * above.groups.worth(place.parent[1]))
    return out


def _outlook(candidates: _Candidates | None, worth: float, arriving: bool) -> Outlook:
    if candidates is None:
        return Outlook(0.0, NOTHING)
    groups = candidates.groups
    disk = max((score * worth for score, _, _, _ in candidates.passes), default=NOTHING)
    arrived_bytes = float((groups.recent.sum(axis=1) * np.array(candidates.row_bytes)).sum())
    return Outlook(worth * groups.all_results / max(arrived_bytes, 1.0) if arriving else NOTHING, disk)


def _bytes_of_passes(candidates: _Candidates | None) -> float:
    """The bytes that a pass over all buckets with pending results would read."""
    return 0.0 if candidates is None else float(sum(cost for _, cost, _, _ in candidates.passes))


def _work(
    candidates: _Candidates | None,
    operator: int,
    fuel_bytes: int,
    ended: bool,
    bar: float = math.inf,
    earned: float = 0.0,
) -> tuple[tuple[DiskWork, ...], float]:
    """The disk work of an operator, and the bytes of what is urgent in it because it gives more per byte than `bar`.

    The last piece may cost more than there is left, of the fuel and of what was earned: pieces are not divided.
    """
    if candidates is None or not candidates.passes:
        return (), 0.0
    due = candidates.records > MOST_RECORDS or candidates.held > MOST_HELD
    visits = [] if ended or due else candidates.visits()
    fuel, spent = float(fuel_bytes), 0.0
    passes: dict[bool, list[int]] = {True: [], False: []}  # the buckets, by whether that is urgent
    visited: list[DiskWork] = []
    options = [*candidates.passes, *visits]
    for score, cost, bucket, input in sorted(options, key=lambda c: (-c[0], c[3] is not None, c[2])):
        if fuel <= 0:
            break
        urgent = score > bar and spent < earned
        if input is None:
            passes[urgent or due].append(bucket)
        elif len(visited) < MOST_VISITS and bucket not in passes[True] and bucket not in passes[False]:
            visited.append(DiskWork((bucket,), visited=input, urgent=urgent))
        else:
            continue
        fuel -= cost
        spent += cost if urgent else 0.0
    planned = [
        *(DiskWork(tuple(sorted(passes[True])), urgent=True) for _ in range(bool(passes[True]))),
        *visited,
        *(DiskWork(tuple(sorted(passes[False]))) for _ in range(bool(passes[False]))),
    ]
    return tuple(replace(work, operator=operator) for work in planned), spent


Scored = tuple[float, float, int, int | None]  # results per byte, bytes, a bucket, the input that is visited


@dataclass(frozen=True)
class _Candidates:
    """What an operator could do on disk."""

    groups: Groups
    row_bytes: list[float]
    records: int  # records of evictions and visits that are kept
    held: float  # of the rows in segments, the fraction that is outside its window and waits for a pass

    @staticmethod
    def of(spec: JoinSpec, figures: OperatorFigures) -> _Candidates | None:
        """None where the state is not tracked, so that nothing was ever evicted."""
        residency = figures.residency
        if residency is None or figures.groups is None:
            return None
        stored = sum(s.rows for s in figures.segments)
        held = 0.0 if figures.progress is None else figures.progress.held / max(1, stored)
        return _Candidates(Groups.of(spec, figures.groups), figures.row_bytes, residency.records, held)

    @cached_property
    def passes(self) -> list[Scored]:
        """A pass for every bucket with pending results."""
        groups = self.groups
        rows = groups.resident + groups.disk
        in_debt, missing = groups.pending()
        debt = np.flatnonzero(in_debt)
        others = [j for j in range(len(rows)) if j not in groups.main]
        shared = sum(float(rows[j].sum()) * self.row_bytes[j] for j in others) / max(len(debt), 1)
        costs = shared + np.array([self.row_bytes[i] for i in groups.main]) @ rows[groups.main][:, debt]
        scores = missing[debt] / np.maximum(costs, 1.0)
        return [(*found, None) for found in zip(scores.tolist(), costs.tolist(), debt.tolist(), strict=True)]

    def visits(self) -> list[Scored]:
        """A visit for every disk part whose partners in memory have grown since the last visit."""
        groups = self.groups
        selectivity = groups.selectivity()
        out = list[Scored]()
        for i in groups.main:
            gained = groups.unseen(i) * selectivity
            found = np.flatnonzero(gained > 0)
            costs = groups.disk[i, found] * self.row_bytes[i]
            scores = gained[found] / np.maximum(costs, 1.0)
            out += [(*of, i) for of in zip(scores.tolist(), costs.tolist(), found.tolist(), strict=True)]
        return out
