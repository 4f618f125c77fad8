"""The state manager: which operator works on disk, and on what."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver import manager
from spark_mjoin.driver.manager import Circumstances, Decision, Mode, decide, modes_of, on_disk_first
from spark_mjoin.evidence import Taken
from spark_mjoin.model import OperatorSpec, Tree
from spark_mjoin.query.tree import layout
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.groups import Groups
from spark_mjoin.state.manifest import GroupsFigures, OperatorFigures, ProgressFigures, ResidencyFigures, Segment
from spark_mjoin.state.records import Packed
from tests.driver import one_by_one
from tests.driver.one_by_one import Committed
from tests.engine.test_overflow import MEMORY, STAR, Run, scripts
from tests.examples import examples
from tests.harness import reader, scripted
from tests.manifests import operator as figures_of

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
    memory, disk = np.array(outlooks, float).T[:, :, None]
    (on_disk,) = on_disk_first(places(tree), memory, disk).tolist()
    assert modes_of(places(tree), on_disk) == modes


def decided(operators: list[Committed], fuel: int, arriving: frozenset[int] = frozenset(), **more: float) -> Decision:
    """What one partition does."""
    given = Circumstances(fuel, arriving, **{"ended": False, **more})
    (decision,) = decide([o.place for o in operators], [[o.figures for o in operators]], given)
    return decision


def untracked(operator: Committed) -> Committed:
    return replace(operator, figures=replace(operator.figures, residency=None, groups=None))


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
    everything = decided([operator], 1 << 30, ended=True).work
    assert [w.visited for w in everything] == [None]
    little = decided([operator], 10_000, ended=True).work
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
    root = untracked(root)
    middle = replace(middle, place=replace(middle.place, leaves=(*leaves, (7, 8, 9))))
    return [root, middle, replace(lowest, place=replace(lowest.place, leaves=((7,), (8,), (9,))))]


def test_one_operator_of_a_pipeline_works_on_disk(tmp_path: Path) -> None:
    decision = decided(pipeline(tmp_path), 1 << 30)
    assert decision.modes == (IN_MEMORY, ON_DISK, LOW)
    assert {w.operator for w in decision.work} == {1}
    assert decision.waiting == {7, 8, 9}


def test_when_inputs_have_ended_disk_work_begins_at_the_leaves(tmp_path: Path) -> None:
    decision = decided(pipeline(tmp_path), 1 << 30, ended=True)
    assert {w.operator for w in decision.work} == {2}
    assert not decision.waiting


def test_without_disk_parts_there_is_nothing_to_do(tmp_path: Path) -> None:
    decision = decided([untracked(overflowed(tmp_path))], 1 << 30, frozenset({0}))
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
    decision = decided([poor], 1 << 30, arriving)
    assert decision.modes == (ON_DISK,) and urgent(decision) and decision.spent > 0 and not decision.waiting
    decision = decided([rich], 1 << 30, arriving)
    assert decision.modes == (IN_MEMORY,) and not urgent(decision) and decision.work and not decision.spent


def test_where_batches_leave_time_disk_work_need_not_promise_more(tmp_path: Path) -> None:
    rich = with_results(overflowed(tmp_path), 1e12)
    decision = decided([rich], 1 << 30, frozenset({0}), has_time=True)
    assert urgent(decision) and decision.spent > 0


def test_urgent_work_is_no_more_than_was_earned(tmp_path: Path) -> None:
    poor, arriving = with_results(overflowed(tmp_path), 0.0), frozenset({0, 1, 2})
    everything = decided([poor], 1 << 30, arriving)
    some = decided([poor], 1 << 30, arriving, earned=everything.spent / 3)
    assert 0 < len(urgent(some)) < len(urgent(everything)) / 2
    assert some.spent < everything.spent / 2, "a third, and the rest of one piece"
    for earned in (0.0, -1e6):
        assert not decided([poor], 1 << 30, arriving, earned=earned).spent


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


# --- many partitions at once ------------------------------------------------------------------------------------


ROWS = {alias: [pa.table({"k": [1], "l": [1], "m": [1]})] for alias in "abcd"}
GRAPHS = {
    "star": "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON a.k = d.k",
    "chain": "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.l = c.l JOIN d ON c.m = d.m",  # no class is in all
}
SPECS = {
    graph: reader({**scripted(ROWS, query), "stateLocation": "unused"}).session.spec for graph, query in GRAPHS.items()
}
PLANS = [(0, 1, 2, 3), PIPELINE, BUSHY, ((0, 1, 2), 3)]


def some_figures(random: np.random.Generator, members: int) -> OperatorFigures:
    """What a partition could have committed of an operator; now and then it is not tracked."""

    def grid(most: int) -> Packed:
        present = random.random((members, BUCKETS)) < density
        return Packed.of(random.integers(0, most, (members, BUCKETS)) * present * random.choice([0, 0.5, 1, 1]), "d")

    def row(most: int, size: int = BUCKETS) -> Packed:
        return Packed.of(random.integers(0, most, size), "d")

    density = random.random()
    results = float(random.choice([0, 5, 10_000, 10**9]))
    groups = GroupsFigures(
        grid(20),
        grid(30),
        grid(10),
        grid(20),
        row(60),
        row(40**members // 4),
        grid(10),
        row(200, members),
        0,
        0.0,
        results,
    )
    segments = tuple(
        Segment("", int(random.integers(members)), 0, int(random.integers(500)), 0, int(random.integers(90_000)), 0)
        for _ in range(random.integers(8))
    )
    if random.random() < 0.15:
        return figures_of((1,) * members, segments=segments)
    nothing, unknown = Packed.of([], "i"), (None,) * members
    departures = Packed.of(np.zeros(3 * random.choice([0, 10, 5000])), "i")  # more than there may be without a pass
    residency = ResidencyFigures(9, (departures, *[nothing] * (members - 1)), (nothing,) * members, nothing)
    held, none = int(random.integers(900)), (0,) * members
    progress = ProgressFigures(none, unknown, (), (), nothing, nothing, none, 0, unknown, unknown, held)
    some = progress if random.random() < 0.3 else None
    return figures_of((1,) * members, segments=segments, groups=groups, residency=residency, progress=some)


@pytest.mark.parametrize("graph", GRAPHS)
@given(
    seed=st.integers(0, 2**32),
    tree=st.sampled_from(PLANS),
    partitions=st.integers(1, 5),
    arriving=st.frozensets(st.integers(0, 3)),
    ended=st.booleans(),
    fuel=st.sampled_from([1000, 50_000, 10**6, 1 << 30]),
    earned=st.sampled_from([-100.0, 0.0, 1e3, 1e5, 1e6, math.inf]),
    has_time=st.booleans(),
)
@examples(400)
def oracle_many_partitions_decide_as_each_alone(
    graph: str,
    seed: int,
    tree: Tree,
    partitions: int,
    arriving: frozenset[int],
    ended: bool,
    fuel: int,
    earned: float,
    has_time: bool,
) -> None:
    random = np.random.default_rng(seed)
    plan = layout(SPECS[graph], tree)
    committed = [[some_figures(random, len(p.spec.inputs)) for p in plan] for _ in range(partitions)]
    circumstances = Circumstances(fuel, arriving, ended and not arriving, earned, has_time)
    together = decide(plan, committed, circumstances)
    for operators, decision in zip(committed, together, strict=True):
        alone = one_by_one.decide([Committed(p, f) for p, f in zip(plan, operators, strict=True)], circumstances)
        assert decision == replace(alone, spent=pytest.approx(alone.spent))
