"""Joins as cubes against duckdb and the definition of windows: any graph, any shares, budgets, faults, other cubes."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.committed import Committed
from spark_mjoin.errors import StateError
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.tree import parse
from spark_mjoin.state.routing import Routing
from tests.doors.test_staged_windows import IN_TIME, at, described, settings_of
from tests.doors.test_stages import CHAIN, FAULTS, batches_of, spec_of, spec_over, spilled
from tests.examples import examples
from tests.harness import CRASH, Rows, duckdb_join, rows, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.test_join import duckdb_rows
from tests.oracle.windows import WindowCase, window_cases
from tests.staged import StagedJoin, any_cube

SEEDS = st.integers(0, 999)
WINDOWS = window_cases(most_inputs=4, windows=st.one_of(st.none(), IN_TIME, IN_TIME))  # of all inputs, or of some


def as_cube(spec: JoinSpec, seed: int, settings: Settings) -> Settings:
    """Some settings, in some cube."""
    cube = any_cube(spec, seed)
    return replace(settings, partitions=cube.partitions, shares=cube.shares)


@given(cases(), SEEDS, st.sampled_from([None, 1, 3000]), FAULTS)
@examples(150)
def oracle_any_cube_gives_the_join(case: Case, seed: int, memory: int | None, faults: list[tuple[str, int]]) -> None:
    spec = spec_of(case)
    settings = as_cube(spec, seed, Settings(memory_bytes=memory, blocking_rows=1))
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, None, settings)
        assert join.whole(batches_of(case.scripts), faults) == duckdb_rows(case)


@given(cases(), st.lists(SEEDS, min_size=2, max_size=4), st.sampled_from([None, 1, 3000]), FAULTS)
@examples(150)
def oracle_other_cubes_at_every_restart(
    case: Case, seeds: list[int], memory: int | None, faults: list[tuple[str, int]]
) -> None:
    """One task is among them. With a budget, results are pending on disk when it changes."""
    spec, found = spec_of(case), Rows()
    batches = batches_of(case.scripts)
    each = [as_cube(spec, seed, Settings(memory_bytes=memory, blocking_rows=1)) for seed in seeds]
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, None, each[0])
        for number, arriving in enumerate(batches):
            join.settings = [each[number % len(each)]]
            join.restart()
            found += join.batch(arriving, *(faults[number] if number < len(faults) else ()))
        assert found + join.whole([]) == duckdb_rows(case)


@given(WINDOWS, SEEDS, settings_of(), FAULTS)
@examples(200)
def oracle_windows_in_any_cube(case: WindowCase, seed: int, settings: Settings, faults: list[tuple[str, int]]) -> None:
    spec, options = described(scripted(case.scripts(), case.query(), **case.options()))
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, None, as_cube(spec, seed, settings), options)
        assert only_numbers(join.whole(batches_of(case.scripts()), faults), case) == case.results()


@given(WINDOWS, SEEDS, SEEDS, settings_of())
@examples(100)
def oracle_windows_in_another_cube(case: WindowCase, seed: int, then: int, settings: Settings) -> None:
    spec, options = described(scripted(case.scripts(), case.query(), **case.options()))
    batches = batches_of(case.scripts())
    half = len(batches) // 2
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, None, as_cube(spec, seed, settings), options)
        found = sum((join.batch(arriving) for arriving in batches[:half]), Rows())
        join.settings = [as_cube(spec, then, settings)]
        join.restart()
        assert only_numbers(found + join.whole(batches[half:]), case) == case.results()


def only_numbers(found: Rows, case: WindowCase) -> Rows:
    """Results by the numbers of their rows, which come first."""
    out = Rows()
    for row, times in found.items():
        out[row[: len(case.inputs)]] += times
    return out


# --- what is counted -----------------------------------------------------------------------------------------------


CUBE = Settings(6, shares=((0, 2), (1, 3)))  # of a chain: a row of a has three copies, one of c two


def cube_of(root: Path, scripts: dict[str, list[pa.Table]], settings: Settings = CUBE) -> StagedJoin:
    return StagedJoin(root, spec_over({alias: tables[0] for alias, tables in scripts.items()}, CHAIN), None, settings)


def metrics(join: StagedJoin) -> dict[str, int]:
    """Of the last batch, which says them once."""
    said = join.planners[0].reportLatestOffset()
    assert said is not None
    return {name: int(value) for name, value in said["metrics"].items() if value.isdigit()}


def test_rows_are_counted_once_where_people_look_and_by_copies_where_they_are_kept(tmp_path: Path) -> None:
    scripts = spilled(40)
    join = cube_of(tmp_path, scripts)
    arriving = batches_of(scripts)
    found = join.batch(arriving[0]) + join.batch(arriving[1])
    said, copies = metrics(join), {"a": 3, "b": 1, "c": 2}
    for alias in "abc":
        assert said[f"{alias}NumInputRows"] == 40
        assert said[f"{alias}NumRowsTotal"] == 80 * copies[alias]
    assert said["numRowsTotal"] == 80 * 6
    assert said["resultsTotal"] == found.total() > 0


def test_the_planner_learns_from_all_that_tasks_have_to_do(tmp_path: Path) -> None:
    """Rates, to it, are those of copies: each is stored and probes. A task counts what came to it."""
    scripts = spilled(40)
    join = cube_of(tmp_path, scripts)
    join.batch(batches_of(scripts)[0])
    manifests = Committed.read(str(tmp_path / "state" / "0" / "mjoin"), Routing.wanted(CUBE), 1).of_all
    assert len(manifests) == 6
    assert [sum(m.taken.rows_in[i] for m in manifests) for i in range(3)] == [120, 40, 80]
    assert [sum(m.taken.arrived[i] for m in manifests) for i in range(3)] == [40, 40, 40]


def test_late_rows_are_counted_once(tmp_path: Path) -> None:
    query = "SELECT a.k, c.m FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    some = list(range(12))
    early = {"a": at(1000, k=some), "b": at(1000, k=some, m=some), "c": at(1000, m=some)}
    late = {"a": at(10, k=some), "b": at(10, k=some, m=some), "c": at(10, m=some)}
    given_ = scripted({alias: [early[alias]] for alias in "abc"}, query, window="10 seconds")
    timed = {"timestamp": "t", "watermark": "0 seconds"}
    given_ |= {f"source.{alias}.{name}": value for alias in "abc" for name, value in timed.items()}
    spec, options = described(given_)
    join = StagedJoin(tmp_path, spec, None, CUBE, options)
    assert join.batch(early).total() == 12
    assert join.batch({}) == Rows() and join.batch(late) == Rows()
    said = metrics(join)
    assert said["rowsLate"] == 36
    assert [said[f"{alias}NumInputRows"] for alias in "abc"] == [0, 0, 0]


# --- restarts ------------------------------------------------------------------------------------------------------


def test_another_cube_takes_over_what_is_pending_on_disk(tmp_path: Path) -> None:
    scripts = spilled(40)
    small = replace(CUBE, memory_bytes=3000)
    join = cube_of(tmp_path, scripts, small)
    arriving = batches_of(scripts)
    found = join.batch(arriving[0]) + join.batch(arriving[1])
    assert join.has_more() and join.metric(0, "deferredRows") > 0, "results are pending"
    for shares, faults in ((((0, 3),), [(CRASH, 0)]), ((), []), (((0, 2), (1, 2)), [])):
        cells = 1
        for _, share in shares:
            cells *= share
        join.settings = [replace(small, partitions=cells, shares=shares)]
        join.restart()
        found += join.batch(arriving[2] if shares == ((0, 3),) else {}, *(faults[0] if faults else ()))
    found += join.whole([])
    assert found == rows(duckdb_join(CHAIN, {alias: pa.concat_tables(tables) for alias, tables in scripts.items()}))


def test_a_batch_that_was_planned_for_other_cells_runs_as_planned_if_there_are_as_many(tmp_path: Path) -> None:
    scripts = spilled(10)
    join = cube_of(tmp_path, scripts)
    arriving = batches_of(scripts)
    found = join.batch(arriving[0])
    join.run(arriving[1], until=0)  # and Spark is killed
    join.settings = [Settings(5, shares=((1, 5),))]
    join.restart()
    with pytest.raises(StateError, match=r"planned with partitions = 6 and plan = cube\(k1=2, k2=3\) and was not"):
        join.batch(arriving[1])
    other = replace(CUBE, shares=((0, 3), (1, 2)))
    join.settings = [other]
    join.restart()
    for batch, settings in ((arriving[1], CUBE), (arriving[2], other)):
        found += join.batch(batch)
        assert join.routing(0) == Routing.wanted(settings)
    assert found == rows(duckdb_join(CHAIN, {alias: pa.concat_tables(tables) for alias, tables in scripts.items()}))


def test_stages_are_no_cube_and_the_error_says_how_to_stay(tmp_path: Path) -> None:
    scripts = spilled(10)
    spec = spec_over({alias: tables[0] for alias, tables in scripts.items()}, CHAIN)
    StagedJoin(tmp_path, spec, None, CUBE).batch(batches_of(scripts)[0])
    other = StagedJoin(tmp_path, spec, parse("(a (b c))", spec), Settings(2))
    other.version = 1
    with pytest.raises(StateError, match=r"set option 'plan' to '\(a b c\)' for one task, or to 'cube'"):
        other.batch(batches_of(scripts)[1])
