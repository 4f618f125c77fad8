"""Explain a join of DataFrames: in which stages it runs, what is shuffled to each by which key, and how many bytes.

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
from spark_mjoin.driver.staging import VARIABLE_BYTES, Expected
from spark_mjoin.errors import listed
from spark_mjoin.explaining import drawing, sections
from spark_mjoin.explaining.drawing import INDENT, count, size
from spark_mjoin.explaining.explanation import ahead
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import STAGE, JoinSpec, Settings
from spark_mjoin.query import tree as trees
from spark_mjoin.query.stages import Stage


@dataclass(frozen=True)
class Shuffled:
    """What one member of a stage has shuffled to it."""

    member: str
    key: str | None  # None: all rows go to one task
    rows: float
    bytes: float
    moved_bytes: float | None  # of these, between hosts; None where it is not known on which hosts executors are


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
class ExplainedJoin:
    stages: tuple[ExplainedStage, ...]  # in the order in which they run
    plan: str | None  # the stages as option `plan` has them; None where there is one
    text: str

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
    aliases = [i.alias for i in joined.spec.inputs]
    stages = tuple(
        ExplainedStage(trees.render(stage.tree, aliases), _shuffled(stage, expected, own, executors), own.memory_bytes)
        for stage, own in zip(joined.stages, joined.settings, strict=True)
    )
    plan = stages[-1].name if len(stages) > 1 else None
    moving = [*_bytes(joined, stages, expected, looking), *_places(joined, stages, executors, looking)]
    lines = [*sections.graph(joined.spec), *_stages(joined, stages), *moving]
    return ExplainedJoin(stages, plan, "\n".join(lines).rstrip())


def _shuffled(
    stage: Stage, expected: Expected, settings: Settings, executors: Mapping[str, str]
) -> tuple[Shuffled, ...]:
    found, hosts = [], dict(settings.expected.hosts)
    for member, leaves in enumerate(stage.leaves):
        rows, moved = expected.rows_of(frozenset(leaves)), expected.bytes_of(frozenset(leaves))
        alias = stage.spec.inputs[member].alias
        away = moved * places.crossing(executors, hosts.get(alias, ())) if executors else None
        found.append(Shuffled(alias, _key(stage.spec, member), rows, moved, away))
    return tuple(found)


def _key(spec: JoinSpec, member: int) -> str | None:
    """The key by which the rows of a member are divided."""
    if spec.star_class is None:
        return None
    input = spec.inputs[member]
    expr = input.stored[dict(input.keys)[spec.star_class]].expr
    if spec.sources[input.source].format == STAGE:
        return render(expr, quoted=False)  # its columns have their inputs in their names
    return render(expr, [i.alias for i in spec.inputs])


def _stages(joined: StagedJoin, stages: Sequence[ExplainedStage]) -> list[str]:
    partitions = joined.settings[0].partitions
    tasks = "one task" if partitions == 1 else f"{partitions} tasks each" if len(stages) > 1 else f"{partitions} tasks"
    title = f"STAGES: {len(stages)}, in {tasks}"
    because = [f"{INDENT}because: {joined.reason}"]
    rows = [
        [
            f"{number} {stage.name}" if not at else "",
            each.member,
            each.key or "none: to one task",
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
    head = ["stage", "shuffled to it", "by key", "rows", "bytes"]
    return drawing.titled(title, because, drawing.table(head, rows), notes)


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


def _places(
    joined: StagedJoin, stages: Sequence[ExplainedStage], executors: Mapping[str, str], seconds: float
) -> list[str]:
    if not executors:
        return []
    hosts, given = sorted(set(executors.values())), joined.settings[0].expected.hosts
    moved = sum(stage.moved_bytes or 0.0 for stage in stages)
    notes = [f"{INDENT}executors are on {listed(hosts)}, and partitions are spread evenly over them"]
    notes += [f"{INDENT}rows of {alias} are on {listed(list(at))}, as 'hosts' says" for alias, at in given]
    often = f" within {drawing.seconds(seconds)}: {size(moved / seconds)} a second" if joined.is_streaming else ""
    notes.append(f"{INDENT}{size(moved)} cross the network{often}")
    notes.append(f"{INDENT}fewer, where keys come from few hosts: in a query their partitions move there")
    return drawing.titled("PLACES", notes)


def _origin(joined: StagedJoin) -> str:
    if joined.settings[0].expected.rates:
        return "as 'expectedRowsPerSecond' says, and their mean where it says nothing"
    if not joined.is_streaming:
        return "by Spark's own statistics of the tables, where it has any"
    return "assumed: 1,000 per second of each input; set 'expectedRowsPerSecond'"
