"""The state manager: which operator works on disk, and on what."""

from pathlib import Path
from typing import Any

import pytest

from spark_mjoin.planner import manager
from spark_mjoin.planner.manager import Operator, OperatorState, Outlook, assign, decide
from tests.phases.test_overflow import MEMORY, STAR, Run, scripts

IN_MEMORY, ON_DISK, LOW = OperatorState.IN_MEMORY, OperatorState.ON_DISK, OperatorState.LOW_PRIORITY


@pytest.mark.parametrize(
    ("outlooks", "states"),
    [
        ([], []),
        ([(1, 0)], [IN_MEMORY]),
        ([(1, 2)], [ON_DISK]),
        ([(1, 0), (1, 2), (0, 9)], [IN_MEMORY, ON_DISK, LOW]),  # the one nearest to the root, not the best
        ([(3, 5), (1, 2), (4, 0)], [ON_DISK, LOW, LOW]),
        ([(1, 1), (1, 1)], [IN_MEMORY, IN_MEMORY]),
    ],
)
def test_states_go_from_the_root_down(outlooks: list[tuple[float, float]], states: list[OperatorState]) -> None:
    assert assign([Outlook(*o) for o in outlooks]) == states


def overflowed(state: Path, **options: str) -> tuple[Run, dict[str, Any]]:
    """A query that has overflowed and done no disk work yet."""
    run = Run(scripts(keys=1500), STAR, state, memory=str(MEMORY), blockingThreshold="1", **options)
    steps = run.steps()
    for _ in range(8):
        next(steps)
    (manifest,) = run.manifests()
    return run, manifest


def test_disk_work_is_planned_most_promising_first_within_the_fuel(tmp_path: Path) -> None:
    run, manifest = overflowed(tmp_path)
    operator = Operator(run.current._spec, manifest)
    everything = decide([operator], 1 << 30, arriving=False, ended=True)[1][0]
    assert [w.visited for w in everything] == [None]
    little = decide([operator], 10_000, arriving=False, ended=True)[1][0]
    assert 0 < len(little[0].buckets) < len(everything[0].buckets)
    missing = manager.Groups.from_json(operator.spec, manifest["groups"]).missing()
    chosen, rest = set(little[0].buckets), set(everything[0].buckets) - set(little[0].buckets)
    assert min(missing[list(chosen)]) > sum(missing[list(rest)]) / len(rest)


def test_one_operator_of_a_pipeline_works_on_disk(tmp_path: Path) -> None:
    run, manifest = overflowed(tmp_path / "a")
    spec = run.current._spec
    untouched = Operator(spec, {**manifest, "residency": None})
    states, work = decide([untouched, Operator(spec, manifest), Operator(spec, manifest)], 1 << 30, False, True)
    assert states == [IN_MEMORY, ON_DISK, LOW]
    assert [bool(w) for w in work] == [False, True, False]


def test_without_disk_parts_there_is_nothing_to_do(tmp_path: Path) -> None:
    run, manifest = overflowed(tmp_path)
    states, work = decide([Operator(run.current._spec, {**manifest, "residency": None})], 1 << 30, True, False)
    assert (states, work) == ([IN_MEMORY], [()])
