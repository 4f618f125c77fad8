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

Every partition decides for itself. There may be hundreds of them, so all figures here are arrays over partitions.
`disk_work` says what an operator can do on disk, and what of it comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from spark_mjoin.driver.disk_work import NOTHING, Candidates
from spark_mjoin.model import Array, DiskWork, OperatorSpec
from spark_mjoin.state.manifest import Manifest, OperatorFigures

NOBODY = -1  # no operator
LEAST_WORTH = 1e-9
LEAST_SHARE = 1 / 16  # of what passes would read, that has to be earned before there is one while input is waiting


class Mode(Enum):
    IN_MEMORY = "in-memory"
    ON_DISK = "on-disk"
    LOW_PRIORITY = "low-priority"


@dataclass(frozen=True)
class Circumstances:
    """What decisions rest on besides what tasks have committed."""

    fuel_bytes: int  # that disk work may read in a batch of a partition
    arriving: frozenset[int]  # inputs of the join that have new rows
    ended: bool  # no input will come any more
    earned: float = math.inf  # bytes of disk work that a partition may do though rows arrive
    has_time: bool = False  # batches leave time free: this work need not promise more than new input


@dataclass(frozen=True)
class Decision:
    """For one partition."""

    modes: tuple[Mode, ...] = ()
    work: tuple[DiskWork, ...] = ()
    waiting: frozenset[int] = frozenset()  # inputs of the join that wait
    spent: float = 0.0  # of what was earned, by work that is urgent because more is expected of it than of new input


def earnings(manifest: Manifest, rate: float) -> float:
    """The bytes of urgent disk work that the last batch of a partition has earned, at so many for each that arrived."""
    stored = [of for operator in manifest.operators for of in operator.stored]
    row_bytes = sum(of.bytes for of in stored) / max(1, sum(of.rows for of in stored))
    return manifest.taken.rows * row_bytes * rate


def decide(
    places: Sequence[OperatorSpec], partitions: Sequence[Sequence[OperatorFigures]], given: Circumstances
) -> list[Decision]:
    """For every partition a mode for each operator of its plan, and the disk work of one of them.

    The partitions have the same plan, places are its operators in preorder. No two operators work on disk in a batch.
    Where none promises more from disk, one that has anything left there may use what time new input leaves: the first
    from the root, or, where no input will come any more, the first from the leaves, since what it gives is more work
    above.
    """
    out = [Decision()] * len(partitions)
    for alike in _tracked_alike(partitions):
        found = _decide(places, [partitions[p] for p in alike], given)
        for partition, decision in zip(alike, found, strict=True):
            out[partition] = decision
    return out


def _tracked_alike(partitions: Sequence[Sequence[OperatorFigures]]) -> Iterable[list[int]]:
    """The partitions, those together that track the same operators; one that is behind may not track them yet."""
    out: dict[tuple[bool, ...], list[int]] = {}
    for number, operators in enumerate(partitions):
        out.setdefault(tuple(o.groups is not None for o in operators), []).append(number)
    return out.values()


def _decide(
    places: Sequence[OperatorSpec], partitions: Sequence[Sequence[OperatorFigures]], given: Circumstances
) -> list[Decision]:
    """The same where all track the same operators."""
    candidates = [Candidates.of(p.spec, [each[n] for each in partitions]) for n, p in enumerate(places)]
    worths = _worths(places, candidates, len(partitions))
    memory = np.stack([_memory_outlook(c, w, given, p) for c, w, p in zip(candidates, worths, places, strict=True)])
    disk = np.stack([_disk_outlook(c, w) for c, w in zip(candidates, worths, strict=True)])
    on_disk = on_disk_first(places, memory, disk)
    busy = disk != NOTHING
    leisurely = (on_disk == NOBODY) | given.ended
    first, last = busy.argmax(axis=0), len(places) - 1 - busy[::-1].argmax(axis=0)
    workers = np.where(leisurely, last if given.ended else first, on_disk)
    workers[~busy.any(axis=0)] = NOBODY
    modes = {worker: modes_of(places, worker) for worker in np.unique(on_disk).tolist()}
    out = [Decision(modes[worker]) for worker in on_disk.tolist()]
    for number, found in enumerate(candidates):
        chosen = np.flatnonzero(workers == number)
        if found is None or not chosen.size:
            continue
        bar, free = _limits(found, memory[number] / np.maximum(worths[number], LEAST_WORTH), given, len(places) > 1)
        bar[leisurely], free[leisurely] = 0.0, given.earned if given.has_time and given.arriving else 0.0
        options = found.options(chosen, with_visits=not given.ended)
        works = options.best(given.fuel_bytes, bar[chosen], free[chosen], number)
        for partition, (work, spent) in zip(chosen.tolist(), works, strict=True):
            decided = Decision(out[partition].modes, work, spent=spent)
            out[partition] = decided if leisurely[partition] else _with_waiting(places, decided, bool(given.arriving))
    return out


# --- which operator ------------------------------------------------------------------------------------------------


def on_disk_first(places: Sequence[OperatorSpec], memory: Array, disk: Array) -> Array:
    """Per partition, the operator nearest to the root whose disk promises more than new input; or NOBODY.

    memory and disk are outlooks [operator, partition]: results of the join per byte of new input, and per byte read
    from disk parts.
    """
    depths = [0] * len(places)
    for number, place in enumerate(places):
        depths[number] = 0 if place.parent is None else depths[place.parent[0]] + 1
    out = np.full(disk.shape[1], NOBODY)
    for number in sorted(range(len(places)), key=lambda n: (depths[n], n)):
        out[(out == NOBODY) & (disk[number] > memory[number])] = number
    return out


def modes_of(places: Sequence[OperatorSpec], on_disk: int) -> tuple[Mode, ...]:
    """A mode for every operator of a plan where one of them, or NOBODY, goes to disk: those below it wait."""
    modes = [Mode.IN_MEMORY] * len(places)
    if on_disk != NOBODY:
        modes[on_disk] = Mode.ON_DISK
        for below in range(on_disk + 1, len(places)):
            parent = places[below].parent
            if parent is not None and modes[parent[0]] is not Mode.IN_MEMORY:
                modes[below] = Mode.LOW_PRIORITY
    return tuple(modes)


def _worths(places: Sequence[OperatorSpec], candidates: Sequence[Candidates | None], partitions: int) -> list[Array]:
    """For each operator, how many results of the whole join one of its results has lately led to."""
    out: list[Array] = []
    for place in places:
        above = None if place.parent is None else candidates[place.parent[0]]
        if place.parent is None or above is None:
            out.append(np.ones(partitions))
        else:
            out.append(out[place.parent[0]] * above.groups.worth(place.parent[1]))
    return out


def _memory_outlook(candidates: Candidates | None, worth: Array, given: Circumstances, place: OperatorSpec) -> Array:
    """Results of the join per byte of new input."""
    if candidates is None:
        return np.zeros_like(worth)
    if not given.arriving & place.inputs:
        return np.full_like(worth, NOTHING)
    groups = candidates.groups
    arrived_bytes = (groups.recent.sum(axis=2) * candidates.row_bytes).sum(axis=1)
    out: Array = worth * groups.all_results / np.maximum(arrived_bytes, 1.0)
    return out


def _disk_outlook(candidates: Candidates | None, worth: Array) -> Array:
    """Results of the join per byte of the best pass."""
    if candidates is None:
        return np.full_like(worth, NOTHING)
    best: Array = np.where(candidates.in_debt, candidates.scores * worth[:, None], NOTHING).max(axis=1)
    return best


def _with_waiting(places: Sequence[OperatorSpec], decision: Decision, arriving: bool) -> Decision:
    """A decision for an operator that goes to disk, with the inputs that wait for it."""
    if arriving and not decision.spent:
        return decision
    low = (place for place, mode in zip(places, decision.modes, strict=True) if mode is Mode.LOW_PRIORITY)
    waiting = frozenset(i for place in low for i in place.inputs)
    return replace(decision, waiting=waiting, spent=decision.spent if len(places) == 1 else 0.0)


def _limits(candidates: Candidates, bar: Array, given: Circumstances, several: bool) -> tuple[Array, Array]:
    """What work has to promise per byte to be urgent, and how many bytes of it may be.

    bar: what new input promises; several: there are other operators in the plan.
    """
    if several:  # the inputs below wait for it, for one batch
        return bar, np.full_like(bar, math.inf if given.arriving else 0.0)
    earned = given.earned if given.arriving else 0.0
    if given.has_time:
        return np.zeros_like(bar), np.full_like(bar, earned)
    # A pass opens all segments, so many small ones would cost more than they read.
    least = np.minimum(LEAST_SHARE * candidates.debt_bytes, given.fuel_bytes)
    return bar, np.where(earned < least, 0.0, earned)
