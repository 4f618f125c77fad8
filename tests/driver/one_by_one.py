"""The decisions of the state manager for one partition, written one piece of disk work after the other.

The driver decides for all partitions at once (driver.manager, driver.disk_work). This is the same, to be obviously
right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_mjoin.driver.disk_work import MOST_VISITS
from spark_mjoin.driver.manager import LEAST_SHARE, LEAST_WORTH, Circumstances, Decision, Mode
from spark_mjoin.model import DiskWork, OperatorSpec
from spark_mjoin.state.groups import MOST_HELD, MOST_RECORDS, Groups
from spark_mjoin.state.manifest import OperatorFigures

Scored = tuple[float, float, int, int | None]  # results per byte, bytes, a bucket, the member that is visited


@dataclass(frozen=True)
class Committed:
    """An operator of the plan in one partition: what it joins, and what its last task has committed."""

    place: OperatorSpec
    figures: OperatorFigures


def decide(operators: Sequence[Committed], given: Circumstances) -> Decision:
    worths, modes = list[float](), [Mode.IN_MEMORY] * len(operators)
    passes = [passes_of(o) for o in operators]
    outlooks = list[tuple[float, float]]()
    for operator, of_operator in zip(operators, passes, strict=True):
        worths.append(worth_of(operators, operator, worths))
        disk = max((score * worths[-1] for score, _, _, _ in of_operator), default=-1.0)
        outlooks.append((memory_outlook(operator, worths[-1], given), disk))
    for number in sorted(range(len(operators)), key=lambda n: (depth(operators, n), n)):
        memory, disk = outlooks[number]
        if disk > memory:
            modes[number] = Mode.ON_DISK
            for below in range(len(operators)):
                if number in ancestors(operators, below):
                    modes[below] = Mode.LOW_PRIORITY
            break
    busy = [n for n, of_operator in enumerate(passes) if of_operator]
    if not busy:
        return Decision(tuple(modes))
    earned = given.earned if given.arriving else 0.0
    if given.ended or Mode.ON_DISK not in modes:
        worker = busy[-1] if given.ended else busy[0]
        work, spent = work_of(operators[worker], given, 0.0, earned if given.has_time else 0.0)
        return Decision(tuple(modes), work, spent=spent)
    worker = modes.index(Mode.ON_DISK)
    bar = outlooks[worker][0] / max(worths[worker], LEAST_WORTH)
    if len(operators) > 1:
        earned = math.inf if given.arriving else 0.0
    elif given.has_time:
        bar = 0.0
    elif earned < min(LEAST_SHARE * sum(cost for _, cost, _, _ in passes[worker]), given.fuel_bytes):
        earned = 0.0
    work, spent = work_of(operators[worker], given, bar, earned)
    if given.arriving and not spent:
        return Decision(tuple(modes), work)
    waiting = {i for o, m in zip(operators, modes, strict=True) if m is Mode.LOW_PRIORITY for i in o.place.inputs}
    return Decision(tuple(modes), work, frozenset(waiting), spent if len(operators) == 1 else 0.0)


def ancestors(operators: Sequence[Committed], number: int) -> list[int]:
    parent = operators[number].place.parent
    return [] if parent is None else [parent[0], *ancestors(operators, parent[0])]


def depth(operators: Sequence[Committed], number: int) -> int:
    return len(ancestors(operators, number))


def groups_of(operator: Committed) -> Groups | None:
    kept = operator.figures.groups
    return None if kept is None else Groups.of(operator.place.spec, kept)


def worth_of(operators: Sequence[Committed], operator: Committed, worths: Sequence[float]) -> float:
    parent = operator.place.parent
    above = None if parent is None else groups_of(operators[parent[0]])
    return 1.0 if parent is None or above is None else worths[parent[0]] * float(above.worth(parent[1]))


def memory_outlook(operator: Committed, worth: float, given: Circumstances) -> float:
    groups = groups_of(operator)
    if groups is None:
        return 0.0
    arrived = sum(float(of.sum()) * size for of, size in zip(groups.recent, operator.figures.row_bytes, strict=True))
    return worth * groups.all_results / max(arrived, 1.0) if given.arriving & operator.place.inputs else -1.0


def passes_of(operator: Committed) -> list[Scored]:
    """A pass for every bucket in debt."""
    groups, sizes = groups_of(operator), operator.figures.row_bytes
    if groups is None:
        return []
    rows = groups.resident + groups.disk
    in_debt, missing = groups.pending()
    debt = np.flatnonzero(in_debt).tolist()
    whole = sum(float(rows[j].sum()) * sizes[j] for j in range(len(rows)) if j not in groups.main)
    out = list[Scored]()
    for bucket in debt:
        cost = whole / len(debt)
        for i in groups.main:
            cost += sizes[i] * float(rows[i, bucket])
        out.append((float(missing[bucket]) / max(cost, 1.0), cost, bucket, None))
    return out


def visits_of(operator: Committed) -> list[Scored]:
    """A visit for every disk part whose partners in memory have grown since they last met."""
    groups, out = groups_of(operator), list[Scored]()
    for i in groups.main if groups is not None else ():
        gained = groups.unseen(i) * groups.selectivity()
        for bucket in np.flatnonzero(gained > 0).tolist():
            cost = float(groups.disk[i, bucket]) * operator.figures.row_bytes[i]
            out.append((float(gained[bucket]) / max(cost, 1.0), cost, bucket, i))
    return out


def work_of(operator: Committed, given: Circumstances, bar: float, earned: float) -> tuple[tuple[DiskWork, ...], float]:
    figures = operator.figures
    held = 0 if figures.progress is None else figures.progress.held
    stored = sum(segment.rows for segment in figures.segments)
    assert figures.residency is not None
    due = figures.residency.records > MOST_RECORDS or held / max(1, stored) > MOST_HELD
    fuel, spent = float(given.fuel_bytes), 0.0
    passes: dict[bool, list[int]] = {True: [], False: []}  # the buckets, by whether that is urgent
    visited: list[DiskWork] = []
    options = [*passes_of(operator), *([] if given.ended or due else visits_of(operator))]
    for score, cost, bucket, member in sorted(options, key=lambda c: (-c[0], c[3] is not None, c[2])):
        if fuel <= 0:
            break
        urgent = score > bar and spent < earned
        if member is None:
            passes[urgent or due].append(bucket)
        elif len(visited) < MOST_VISITS and bucket not in passes[True] and bucket not in passes[False]:
            visited.append(DiskWork((bucket,), visited=member, urgent=urgent))
        else:
            continue
        fuel -= cost
        spent += cost if urgent else 0.0
    planned = [
        *(DiskWork(tuple(sorted(passes[True])), urgent=True) for _ in range(bool(passes[True]))),
        *visited,
        *(DiskWork(tuple(sorted(passes[False]))) for _ in range(bool(passes[False]))),
    ]
    return tuple(replace(work, operator=operator.place.number) for work in planned), spent
