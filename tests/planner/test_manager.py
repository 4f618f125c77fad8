"""The state manager: which operator works on disk, and on what."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_mjoin.model import OperatorSpec, Tree
from spark_mjoin.planner import manager
from spark_mjoin.planner.manager import Committed, Mode, Outlook, assign, decide
from spark_mjoin.planner.tree import layout
from tests.harness import reader, scripted
from tests.phases.test_overflow import MEMORY, STAR, Run, scripts

IN_MEMORY, ON_DISK, LOW = Mode.IN_MEMORY, Mode.ON_DISK, Mode.LOW_PRIORITY
PIPELINE = (0, (1, (2, 3)))
BUSHY = ((0, 1), (2, 3))


def places(tree: Tree) -> list[OperatorSpec]:
    sources = {alias: scripts(keys=1)["a"] for alias in "abcd"}
    star = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON a.k = d.k"
    return list(layout(reader({**scripted(sources, star), "stateLocation": "unused"})._spec, tree))


@pytest.mark.parametrize(
    ("tree", "outlooks", "modes"),
    [
        ((0, 1, 2, 3), [(1, 0)], (IN_MEMORY,)),
        ((0, 1, 2, 3), [(1, 2)], (ON_DISK,)),
        (PIPELINE, [(1, 0), (1, 2), (0, 9)], (IN_MEMORY, ON_DISK, LOW)),  # the one nearest to the root, not the best
        (PIPELINE, [(3, 5), (1, 2), (4, 0)], (ON_DISK, LOW, LOW)),
        (PIPELINE, [(1, 1), (1, 1), (1, 1)], (IN_MEMORY, IN_MEMORY, IN_MEMORY)),
        (BUSHY, [(1, 0), (1, 2), (1, 2)], (IN_MEMORY, ON_DISK, IN_MEMORY)),  # the other branch is not below it
        (BUSHY, [(1, 0), (1, 0), (1, 2)], (IN_MEMORY, IN_MEMORY, ON_DISK)),
    ],
)
def test_modes_go_from_the_root_down(tree: Tree, outlooks: list[tuple[float, float]], modes: tuple[Mode, ...]) -> None:
    assert assign(places(tree), [Outlook(*o) for o in outlooks]) == modes


def overflowed(state: Path, **options: str) -> Committed:
    """The operator of a query that has overflowed and done no disk work yet."""
    run = Run(scripts(keys=1500), STAR, state, memory=str(MEMORY), blockingThreshold="1", **options)
    steps = run.steps()
    for _ in range(8):
        next(steps)
    (manifest,) = run.manifests()
    (place,) = layout(run.current._spec, (0, 1, 2))
    return Committed(place, manifest["operators"][0])


def test_disk_work_is_planned_most_promising_first_within_the_fuel(tmp_path: Path) -> None:
    operator = overflowed(tmp_path)
    everything = decide([operator], 1 << 30, frozenset(), ended=True).work
    assert [w.visited for w in everything] == [None]
    little = decide([operator], 10_000, frozenset(), ended=True).work
    assert 0 < len(little[0].buckets) < len(everything[0].buckets)
    missing = manager.Groups.from_json(operator.place.spec, operator.figures["groups"]).missing()
    chosen, rest = set(little[0].buckets), set(everything[0].buckets) - set(little[0].buckets)
    assert min(missing[list(chosen)]) > sum(missing[list(rest)]) / len(rest)


def pipeline(tmp_path: Path) -> list[Committed]:
    """A plan of three operators, of which the root has nothing on disk; one star's figures serve for all."""
    operator = overflowed(tmp_path)
    inputs = len(operator.place.spec.inputs)
    leaves = tuple((i,) for i in range(inputs - 1))
    above = [
        Committed(replace(operator.place, number=n, parent=None if n == 0 else (n - 1, inputs - 1)), operator.figures)
        for n in range(3)
    ]
    root, middle, lowest = above
    root = replace(root, figures={**root.figures, "residency": None})
    middle = replace(middle, place=replace(middle.place, leaves=(*leaves, (7, 8, 9))))
    return [root, middle, replace(lowest, place=replace(lowest.place, leaves=((7,), (8,), (9,))))]


def test_one_operator_of_a_pipeline_works_on_disk(tmp_path: Path) -> None:
    decision = decide(pipeline(tmp_path), 1 << 30, frozenset(), ended=False)
    assert decision.modes == (IN_MEMORY, ON_DISK, LOW)
    assert {w.operator for w in decision.work} == {1}
    assert decision.waiting == {7, 8, 9}


def test_when_inputs_have_ended_disk_work_begins_at_the_leaves(tmp_path: Path) -> None:
    decision = decide(pipeline(tmp_path), 1 << 30, frozenset(), ended=True)
    assert {w.operator for w in decision.work} == {2}
    assert not decision.waiting


def test_without_disk_parts_there_is_nothing_to_do(tmp_path: Path) -> None:
    operator = overflowed(tmp_path)
    untouched = replace(operator, figures={**operator.figures, "residency": None})
    decision = decide([untouched], 1 << 30, frozenset({0}), ended=False)
    assert decision == manager.Decision((IN_MEMORY,))
