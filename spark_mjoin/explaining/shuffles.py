"""Explain a join of DataFrames: in which stages it runs, or as which cube; what is shuffled by which key, in bytes.

It shows what `spark_mjoin.join` decides with the same arguments, and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_mjoin.doors import shim
from spark_mjoin.doors.stages import StagedJoin
from spark_mjoin.doors.streams import planned
from spark_mjoin.driver import places
from spark_mjoin.driver.staging import Expected
from spark_mjoin.driver.widths import VARIABLE_BYTES
from spark_mjoin.explaining import drawing, partitions, sections, shipping
from spark_mjoin.explaining.drawing import INDENT, count, size
from spark_mjoin.explaining.explanation import ahead
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import STAGE, JoinSpec, Settings
from spark_mjoin.query import cubes
from spark_mjoin.query import tree as trees
from spark_mjoin.query.cubes import cells
from spark_mjoin.query.stages import Stage


@dataclass(frozen=True)
class Shuffled:
    """What one member of a stage has shuffled to it."""

    member: str
    key: str | None  # None: all rows go to all tasks, or to the only one
    rows: float
    bytes: float  # of all copies
    moved_bytes: float | None  # of these, between hosts; None where it is not known on which hosts executors are
    copies: int = 1  # of each row: in a cube, the cells that it goes to


@dataclass(frozen=True)
class ExplainedStage:
    name: str  # as behind `mjoin` in the progress of a query, where there are several
    shuffled: tuple[Shuffled, ...]
    memory_bytes: int | None  # its part of the budget

    @property
    def bytes(self) -> float:
        return sum(each.bytes for each in self.shuffled)

    @property
    def moved_bytes(self) -> float | None:
        moved = [each.moved_bytes for each in self.shuffled if each.moved_bytes is not None]
        return sum(moved) if moved else None


@dataclass(frozen=True)
class Rejected:
    """Another way in which the join could run."""

    plan: str  # as option `plan` has it
    bytes: float | None  # that would be shuffled; None: it cannot run so
    busiest: float | None  # of these, what a task would take in
    why: str


@dataclass(frozen=True)
class ExplainedJoin:
    stages: tuple[ExplainedStage, ...]  # in the order in which they run
    plan: str | None  # the stages, or the cube, as option `plan` has them; None where it is neither
    text: str
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<ExplainedJoin in {self.plan or 'one stage'}>"


def explained(
    inputs: Mapping[str, Any],
    query: str | None,
    on: str | Sequence[str] | None,
    seconds: float | None,
    options: Mapping[str, Any],
) -> ExplainedJoin:
    """How a join with the arguments of `join` runs."""
    joined, looking = planned(inputs, query, on, options).engine, ahead(seconds)  # type: ignore[arg-type]
    if joined is None:
        return ExplainedJoin((), None, "STAGES: none. There is one stream, and Spark joins it with the tables")
    expected, executors = joined.expected(looking), shim.executors(joined.inputs[0].sparkSession)
    aliases, shares = [i.alias for i in joined.spec.inputs], joined.settings[0].shares
    stages = tuple(
        ExplainedStage(trees.render(stage.tree, aliases), _shuffled(stage, expected, own, executors), own.memory_bytes)
        for stage, own in zip(joined.stages, joined.settings, strict=True)
    )
    rejected = _rejected(joined, expected)
    plan = cubes.render(shares) if shares else stages[-1].name if len(stages) > 1 else None
    moved = sum(stage.moved_bytes or 0.0 for stage in stages) if executors else None
    parts = [
        _stages(joined, stages),
        _bytes(joined, stages, expected, looking),
        _others(rejected),
    ]
    if joined.is_streaming:
        parts.append(shipping.sections(expected, executors, joined.settings[0].expected.hosts, looking, moved))
    lines = [*sections.graph(joined.spec), *(line for part in parts for line in part)]
    return ExplainedJoin(stages, plan, "\n".join(lines).rstrip(), rejected)


def _shuffled(
    stage: Stage, expected: Expected, settings: Settings, executors: Mapping[str, str]
) -> tuple[Shuffled, ...]:
    found, hosts, shares = [], dict(settings.expected.hosts), dict(settings.shares)
    for member, leaves in enumerate(stage.leaves):
        rows, alias = expected.rows_of(frozenset(leaves)), stage.spec.inputs[member].alias
        copies = expected.cube.copies(shares)[leaves[0]] if shares else 1
        moved = copies * expected.bytes_of(frozenset(leaves))
        away = moved * places.crossing(executors, hosts.get(alias, ())) if executors else None
        keys = [key for key_class in shares if (key := _key(stage.spec, member, key_class)) is not None]
        key = ", ".join(keys) or None if shares else _key(stage.spec, member, stage.spec.star_class)
        found.append(Shuffled(alias, key, rows, moved, away, copies))
    return tuple(found)


def _key(spec: JoinSpec, member: int, key_class: int | None) -> str | None:
    """The key of a class by which the rows of a member are divided."""
    input = spec.inputs[member]
    if key_class is None or key_class not in spec.classes_of(member):
        return None
    expr = input.stored[dict(input.keys)[key_class]].expr
    if spec.sources[input.source].format == STAGE:
        return render(expr, quoted=False)  # its columns have their inputs in their names
    return render(expr, [i.alias for i in spec.inputs])


def _rejected(joined: StagedJoin, expected: Expected) -> tuple[Rejected, ...]:
    """The plans that were not chosen, the best of each kind."""
    if joined.spec.star_class is not None:
        return ()
    said, settings, whole = joined.asked.plan is not None, joined.settings[0], expected.whole_bytes
    found = []
    for other in joined.rejected():
        if other.tree is None and not other.shares:
            found.append(Rejected(other.plan, None, None, other.rejected or ""))
            continue
        bytes, tasks = other.moved(expected), cells(other.shares) if other.shares else joined.asked.partitions
        more = "option 'plan' says otherwise" if said else "it moves more bytes to a task"
        found.append(Rejected(other.plan, bytes, bytes / tasks, other.rejected or more))
    if len(joined.stages) > 1 or settings.shares:
        one = trees.render(trees.single(len(joined.spec.inputs)), [i.alias for i in joined.spec.inputs])
        why = "option 'plan' says otherwise" if said else "its task has more to do"
        found.append(Rejected(one, whole, whole, why))
    return tuple(found)


def _others(rejected: Sequence[Rejected]) -> list[str]:
    rows = [
        [each.plan, *("" if bytes is None else size(bytes) for bytes in (each.bytes, each.busiest)), each.why]
        for each in rejected
    ]
    head = ["plan", "bytes", "to a task", "why not"]
    return drawing.titled("OTHER PLANS", drawing.table(head, rows)) if rows else []


def _stages(joined: StagedJoin, stages: Sequence[ExplainedStage]) -> list[str]:
    partitions, shares = joined.settings[0].partitions, joined.settings[0].shares
    tasks = "one task" if partitions == 1 else f"{partitions} tasks each" if len(stages) > 1 else f"{partitions} tasks"
    title = f"STAGES: {len(stages)}, in {tasks}{f' of a cube: {cubes.render(shares)}' if shares else ''}"
    because = [f"{INDENT}because: {joined.reason}"]
    if shares and partitions < joined.asked.partitions:
        because.append(
            f"{INDENT}of the {joined.asked.partitions} that 'partitions' allows, it has a use for {partitions}"
        )
    nowhere = "none: to all tasks" if shares else "none: to one task"
    rows = [
        [
            f"{number} {stage.name}" if not at else "",
            each.member,
            each.key or nowhere,
            *([str(each.copies)] if shares else []),
            count(each.rows),
            size(each.bytes),
        ]
        for number, stage in enumerate(stages, 1)
        for at, each in enumerate(stage.shuffled)
    ]
    notes = [
        f"{INDENT}stage {number} may take {size(stage.memory_bytes)} of 'memory'"
        for number, stage in enumerate(stages, 1)
        if stage.memory_bytes is not None
    ]
    head = ["stage", "shuffled to it", "by key", *(["copies"] if shares else []), "rows", "bytes"]
    return drawing.titled(title, because, drawing.table(head, rows), notes, _divided(joined))


def _divided(joined: StagedJoin) -> list[str]:
    """How the rows of each stage are divided, where they are divided by a key."""
    if joined.settings[0].shares or not joined.is_streaming:
        return []
    found = [partitions.foreseen(stage.spec, own) for stage, own in zip(joined.stages, joined.settings, strict=True)]
    return found[0] if all(lines == found[0] for lines in found) else [line for lines in found for line in lines]


def _bytes(joined: StagedJoin, stages: Sequence[ExplainedStage], expected: Expected, seconds: float) -> list[str]:
    moved, whole, partitions = sum(stage.bytes for stage in stages), expected.whole_bytes, joined.settings[0].partitions
    when = f"within {drawing.seconds(seconds)}" if joined.is_streaming else "of all rows"
    notes = [
        f"{INDENT}{size(moved)} are shuffled {when}, {moved / whole if whole else 0:.2f} for each byte of the inputs",
        f"{INDENT}a task takes in {size(moved / partitions)}; one task for the whole join would take in {size(whole)}",
        f"{INDENT}rows are {_origin(joined)}",
        f"{INDENT}a value without a fixed width counts as {VARIABLE_BYTES:.0f} bytes",
    ]
    return drawing.titled("EXPECTED BYTES", notes)


def _origin(joined: StagedJoin) -> str:
    if joined.settings[0].expected.rates:
        return "as 'expectedRowsPerSecond' says, and their mean where it says nothing"
    if not joined.is_streaming:
        return "by Spark's own statistics of the tables, where it has any"
    return "assumed: 1,000 per second of each input; set 'expectedRowsPerSecond'"
