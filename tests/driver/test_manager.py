"""The state manager: which operator works on disk, and on what."""

from dataclasses import replace
from pathlib import Path

import pytest

from spark_mjoin.driver import manager
from spark_mjoin.driver.manager import Committed, Mode, Outlook, assign, decide
from spark_mjoin.evidence import Taken
from spark_mjoin.model import OperatorSpec, Tree
from spark_mjoin.query.tree import layout
from spark_mjoin.state.groups import Groups
from tests.engine.test_overflow import MEMORY, STAR, Run, scripts
from tests.harness import reader, scripted

IN_MEMORY, ON_DISK, LOW = Mode.IN_MEMORY, Mode.ON_DISK, Mode.LOW_PRIORITY
PIPELINE = (0, (1, (2, 3)))
BUSHY = ((0, 1), (2, 3))


def places(tree: Tree) -> list[OperatorSpec]:
    sources = {alias: scripts(keys=1)["a"] for alias in "abcd"}
    star = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON a.k = d.k"
    return list(layout(reader({**scripted(sources, star), "stateLocation": "unused"}).session.spec, tree))


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
    (place,) = layout(run.current.session.spec, (0, 1, 2))
    return Committed(place, manifest.root)


def test_disk_work_is_planned_most_promising_first_within_the_fuel(tmp_path: Path) -> None:
    operator = overflowed(tmp_path)
    everything = decide([operator], 1 << 30, frozenset(), ended=True).work
    assert [w.visited for w in everything] == [None]
    little = decide([operator], 10_000, frozenset(), ended=True).work
    assert 0 < len(little[0].buckets) < len(everything[0].buckets)
    missing = Groups.of(operator.place.spec, operator.figures.groups).pending()[1]
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
    root = replace(root, figures=replace(root.figures, residency=None))
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
    untouched = replace(operator, figures=replace(operator.figures, residency=None))
    decision = decide([untouched], 1 << 30, frozenset({0}), ended=False)
    assert decision == manager.Decision((IN_MEMORY,))


# --- disk work while rows arrive ---------------------------------------------------------------------------------


def urgent(decision: manager.Decision) -> set[int]:
    """The buckets whose pass does not wait until few rows arrive."""
    return {b for work in decision.work if work.urgent and work.visited is None for b in work.buckets}


def with_results(operator: Committed, results: float) -> Committed:
    """The same as if recent arrivals had completed so many results."""
    groups = replace(operator.figures.groups, all_results=results)
    return replace(operator, figures=replace(operator.figures, groups=groups))


def test_one_operator_works_on_disk_while_rows_arrive_where_that_promises_more(tmp_path: Path) -> None:
    operator, arriving = overflowed(tmp_path), frozenset({0, 1, 2})
    poor, rich = with_results(operator, 0.0), with_results(operator, 1e12)
    decision = decide([poor], 1 << 30, arriving, ended=False)
    assert decision.modes == (ON_DISK,) and urgent(decision) and decision.spent > 0 and not decision.waiting
    decision = decide([rich], 1 << 30, arriving, ended=False)
    assert decision.modes == (IN_MEMORY,) and not urgent(decision) and decision.work and not decision.spent


def test_where_batches_leave_time_disk_work_need_not_promise_more(tmp_path: Path) -> None:
    rich = with_results(overflowed(tmp_path), 1e12)
    decision = decide([rich], 1 << 30, frozenset({0}), ended=False, has_time=True)
    assert urgent(decision) and decision.spent > 0


def test_urgent_work_is_no_more_than_was_earned(tmp_path: Path) -> None:
    poor, arriving = with_results(overflowed(tmp_path), 0.0), frozenset({0, 1, 2})
    everything = decide([poor], 1 << 30, arriving, ended=False)
    some = decide([poor], 1 << 30, arriving, ended=False, earned=everything.spent / 3)
    assert 0 < len(urgent(some)) < len(urgent(everything)) / 2
    assert some.spent < everything.spent / 2, "a third, and the rest of one piece"
    for earned in (0.0, -1e6):
        assert not decide([poor], 1 << 30, arriving, ended=False, earned=earned).spent


def early(state: Path, **options: str) -> tuple[Run, int]:
    """A query whose batches always bring many rows, and how many results come from disk in them."""
    run = Run(scripts(keys=1500, batches=12), STAR, state, memory=str(MEMORY), blockingThreshold="1", **options)
    run.to_the_end()
    run.check()
    return run, sum(c["diskToDiskRows"] + c["diskToMemoryRows"] for c in run.counts[:12])


def test_a_join_of_one_operator_gives_results_from_disk_while_rows_arrive(tmp_path: Path) -> None:
    _, never = early(tmp_path / "never", diskShare="0")
    _, little = early(tmp_path / "little", diskShare="0.2")
    _, much = early(tmp_path / "much", diskShare="2")
    assert never == 0 < little < much


def test_earnings_follow_the_bytes_that_arrive(tmp_path: Path) -> None:
    run, _ = early(tmp_path, diskShare="0")
    (manifest,) = run.manifests()
    segments = manifest.root.segments
    mean = sum(s.bytes for s in segments) / sum(s.rows for s in segments)
    batch = replace(manifest, taken=Taken((10, 20, 30)))
    assert manager.earnings(batch, 0.5) == pytest.approx(0.5 * 60 * mean)
