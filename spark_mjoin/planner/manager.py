"""The state manager (PermJoin, section III): what the next micro-batch does besides taking in what has arrived.

Runs on the driver, over the statistics that tasks have committed. Its decisions travel in the offset, so a replay makes
no new ones. Three things can happen to an operator in a batch:

    IN_MEMORY      new input joins what is in memory
    ON_DISK        disk parts are visited or passed over, in the order of expected results per byte read
    LOW_PRIORITY   nothing: what it would give waits for an operator above it that promises more

`decide` takes the operators of a plan from the root down, as the paper does: the first whose disk work promises more
per byte than its memory work goes to disk, those below it wait, those above it go on. Today a join is one operator, so
the list has one entry. Whatever is decided, new input goes first in a batch, and disk work is done if it leaves time
(`blockingThreshold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from spark_mjoin.model import DiskWork, JoinSpec
from spark_mjoin.state.groups import Groups

MOST_RECORDS = 4096  # departures and visits that a partition keeps before a pass is due, whatever arrives
NOTHING = -1.0  # the outlook of new input where there is none, and of a disk with nothing to do
MOST_VISITS = 16  # pieces of disk work in one batch, apart from passes


class OperatorState(Enum):
    IN_MEMORY = "in-memory"
    ON_DISK = "on-disk"
    LOW_PRIORITY = "low-priority"


@dataclass(frozen=True)
class Outlook:
    """What an operator promises: results per byte of new input, and per byte read from its disk parts."""

    memory: float
    disk: float


def assign(root_first: Sequence[Outlook]) -> list[OperatorState]:
    """A state for every operator of a pipeline, given from the root down."""
    for at, outlook in enumerate(root_first):
        if outlook.disk > outlook.memory:
            below = len(root_first) - at - 1
            return [
                *[OperatorState.IN_MEMORY] * at,
                OperatorState.ON_DISK,
                *[OperatorState.LOW_PRIORITY] * below,
            ]
    return [OperatorState.IN_MEMORY] * len(root_first)


@dataclass(frozen=True)
class Operator:
    """An operator of the plan in one partition: what it joins, and what its last task has committed."""

    spec: JoinSpec
    manifest: Mapping[str, Any]


def decide(
    root_first: Sequence[Operator], fuel_bytes: int, arriving: bool, ended: bool
) -> tuple[list[OperatorState], list[tuple[DiskWork, ...]]]:
    """A state for every operator, and the disk work of each; only one of them works on disk in a batch.

    Where none promises more from disk, the first that has anything left there may use what time new input leaves.
    """
    candidates = [_Candidates.of(o.spec, o.manifest) for o in root_first]
    states = assign([_outlook(c, arriving) for c in candidates])
    planned = [_work(c, fuel_bytes, ended) for c in candidates]
    if OperatorState.ON_DISK in states:
        worker = states.index(OperatorState.ON_DISK)
    else:
        worker = next((n for n, work in enumerate(planned) if work), 0)
    return states, [work if n == worker else () for n, work in enumerate(planned)]


def plan_work(spec: JoinSpec, manifest: Mapping[str, Any], fuel_bytes: int, ended: bool) -> tuple[DiskWork, ...]:
    """The disk work of one partition for one batch, most promising first, as far as the fuel goes.

    ended: no input will come any more, so parts of the answer are of no use, and passes give all of it.
    """
    return _work(_Candidates.of(spec, manifest), fuel_bytes, ended)


def _outlook(candidates: _Candidates | None, arriving: bool) -> Outlook:
    if candidates is None:
        return Outlook(0.0, NOTHING)
    groups = candidates.groups
    disk = max((score for score, _, _ in candidates.passes), default=NOTHING)
    arrived_bytes = float((groups.recent.sum(axis=1) * np.array(candidates.row_bytes)).sum())
    return Outlook(groups.all_results / max(arrived_bytes, 1.0) if arriving else NOTHING, disk)


def _work(candidates: _Candidates | None, fuel_bytes: int, ended: bool) -> tuple[DiskWork, ...]:
    if candidates is None or not candidates.passes:
        return ()
    passes, urgent = candidates.passes, candidates.records > MOST_RECORDS
    visits = [] if ended or urgent else candidates.visits()
    work, fuel, chosen = list[DiskWork](), float(fuel_bytes), list[int]()
    for _, cost, option in sorted([*passes, *visits], key=lambda c: (-c[0], c[2].visited is not None, c[2].buckets)):
        if fuel <= 0:
            break
        if option.visited is None:
            chosen += option.buckets
            fuel -= cost
        elif option.buckets[0] not in chosen and len(work) < MOST_VISITS:
            work.append(option)
            fuel -= cost
    if chosen:
        work.append(DiskWork(tuple(sorted(chosen)), urgent=urgent))
    return tuple(work)


Scored = tuple[float, float, DiskWork]  # results per byte, bytes, the work


@dataclass(frozen=True)
class _Candidates:
    """What an operator could do on disk."""

    groups: Groups
    row_bytes: list[float]
    records: int  # departures and visits that are kept

    @staticmethod
    def of(spec: JoinSpec, manifest: Mapping[str, Any]) -> _Candidates | None:
        """None where nothing ever left memory."""
        if not manifest.get("residency"):
            return None
        groups = Groups.from_json(spec, manifest["groups"])
        return _Candidates(groups, _row_bytes(manifest, len(spec.inputs)), _records(manifest))

    @cached_property
    def passes(self) -> list[Scored]:
        """A pass for every bucket in debt."""
        groups = self.groups
        rows = groups.resident + groups.disk
        debt = np.flatnonzero(groups.in_debt())
        missing = groups.missing()
        others = [j for j in range(len(rows)) if j not in groups.main]
        shared = sum(float(rows[j].sum()) * self.row_bytes[j] for j in others) / max(len(debt), 1)
        out = []
        for b in debt:
            cost = shared + sum(float(rows[i, b]) * self.row_bytes[i] for i in groups.main)
            out.append((float(missing[b]) / max(cost, 1.0), cost, DiskWork((int(b),))))
        return out

    def visits(self) -> list[Scored]:
        """A visit for every disk part whose partners in memory have grown since they last met."""
        groups = self.groups
        selectivity = groups.selectivity()
        out = []
        for i in groups.main:
            gained = groups.unseen(i) * selectivity
            for b in np.flatnonzero(gained > 0):
                cost = float(groups.disk[i, b]) * self.row_bytes[i]
                out.append((float(gained[b]) / max(cost, 1.0), cost, DiskWork((int(b),), visited=i)))
        return out


def _row_bytes(manifest: Mapping[str, Any], inputs: int) -> list[float]:
    """The mean size of a row of each input, judged by its segments."""
    out = []
    for i in range(inputs):
        mine = [s for s in manifest["segments"] if s["input"] == i]
        out.append(sum(s["bytes"] for s in mine) / max(1, sum(s["end"] - s["start"] for s in mine)))
    return out


def _records(manifest: Mapping[str, Any]) -> int:
    residency = manifest["residency"]
    return sum(map(len, residency["departures"])) + sum(map(len, residency["visits"]))
