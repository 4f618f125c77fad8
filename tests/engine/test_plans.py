"""Plans of several joins in one task: what is stored, what is shown, and how they change while a query runs."""

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.driver import choice, decompose
from spark_mjoin.engine import cache, replan
from spark_mjoin.errors import MemoryBudgetError, OptionError, StateError
from spark_mjoin.evidence import edges_of
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.routing import Routing
from tests.harness import ReadAllAvailable, Rows, newest, point, reader, rows, run, scripted

CHAIN = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.x = b.x JOIN c ON b.y = c.y"


def table(seed: int, count: int, start: int, **values: int) -> pa.Table:
    random = np.random.Generator(np.random.Philox(seed))
    columns = {name: random.integers(0, cardinality, count) for name, cardinality in values.items()}
    return pa.table({"n": np.arange(start, start + count), **columns})


def chain(batches: int = 8) -> dict[str, list[pa.Table]]:
    """a and b meet rarely, and c, which is fast, has many partners in b."""
    return {
        "a": [table(n, 100, 100 * n, x=4000) for n in range(batches)],
        "b": [table(100 + n, 100, 100 * n, x=4000, y=10) for n in range(batches)],
        "c": [table(200 + n, 400, 400 * n, y=10) for n in range(batches)],
    }


def steps(options: Mapping[str, str]) -> Iterator[tuple[dict[str, Any], list[Manifest], pa.Table]]:
    """Each batch of a query: its offset, its manifests, its results."""
    current = reader(options)
    start = current.initialOffset()
    while (end := json.loads(json.dumps(current.latestOffset(start, ReadAllAvailable())))) != start:
        found = [b for partition in current.partitions(start, end) for b in current.read(partition)]
        location = f"{options['stateLocation']}/{end['query']}"
        routing = Routing(int(options.get("partitions", "1")))
        stores = [Manifests(location, p, routing) for p in range(routing.partitions)]
        manifests = [store.manifest(end["version"]) for store in stores]
        yield end, manifests, pa.Table.from_batches(found, current.session.spec.schema)
        start = end


def results_of(options: dict[str, str], state: Path) -> Rows:
    cache.of_worker().clear()
    return rows(run(options, state))


def test_an_intermediate_result_is_stored_once_and_shown(tmp_path: Path) -> None:
    options = {**scripted(chain(2), CHAIN, plan="((a b) c)"), "stateLocation": str(tmp_path)}
    current = reader(options)
    start = current.initialOffset()
    end = current.latestOffset(start, ReadAllAvailable())
    assert end["plan"]["tree"] == ((0, 1), 2)
    for partition in current.partitions(start, end):
        list(current.read(partition))
    (manifest,) = newest(current, end)
    root, below = manifest.operators
    assert root.rows[0] == below.results and below.rows == (100, 100) and root.rows[1] == 400
    shown = current.reportLatestOffset()["metrics"]
    assert shown["plan"] == "((a b) c)"
    assert shown["intermediateRowsTotal"] == str(root.rows[0])
    assert shown["numRowsTotal"] == shown["numRowsInMemory"] == str(600 + root.rows[0])
    assert shown["aProbeOrder"] == "a > b" and shown["cProbeOrder"] == "c > (a b)"


def test_all_joins_of_a_plan_are_split_over_partitions_by_the_same_key(tmp_path: Path) -> None:
    """a and b have one key in common besides the one that all three have."""
    query = f"{CHAIN} AND a.y = b.y"
    scripts = {alias: [table(n + ord(alias), 40, 40 * n, x=4, y=5) for n in range(2)] for alias in "abc"}
    expected = results_of(scripted(scripts, query, plan="(a b c)"), tmp_path / "one")
    found = results_of(scripted(scripts, query, plan="((a b) c)", partitions="3"), tmp_path / "tree")
    assert found == expected and expected


def test_the_planner_changes_the_tree_when_that_pays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scripts = chain(12)
    expected = results_of(scripted(scripts, CHAIN, plan="(a b c)"), tmp_path / "one")
    cache.of_worker().clear()
    options = {**scripted(scripts, CHAIN), "stateLocation": str(tmp_path / "chosen")}
    with caplog.at_level(logging.INFO, "spark_mjoin.driver.session"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompose, "NEAR", 0.0)  # the work of so few rows is little, whatever the plan
        patch.setattr(choice, "HORIZON_SECONDS", 1e6)
        patch.setattr(choice, "PATIENCE", 0.0)
        found = list(steps(options))
    trees = [manifests[0].tree for _, manifests, _ in found]
    assert trees[0] == (0, 1, 2) and ((0, 1), 2) in trees
    assert rows([results for _, _, results in found]) == expected
    (said,) = [r.message for r in caplog.records if r.message.startswith("plan ((a b) c)")]
    assert "s of work where" in said


@pytest.mark.parametrize(("overflow", "changes"), [("spill", True), ("fail", False)])
def test_no_tree_is_chosen_where_more_rows_than_fit_are_an_error(
    overflow: str, changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that turns out larger than expected would end a query whose inputs fit."""
    monkeypatch.setattr(decompose, "NEAR", 0.0)
    monkeypatch.setattr(choice, "HORIZON_SECONDS", 1e6)
    monkeypatch.setattr(choice, "PATIENCE", 0.0)
    options = scripted(chain(12), CHAIN, memory="64m", overflow=overflow, stateLocation=str(tmp_path))
    trees = [manifests[0].tree for _, manifests, _ in steps(options)]
    assert (((0, 1), 2) in trees) == changes


def test_a_look_at_the_tree_is_not_spent_on_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next comes when rows have doubled.

    After a restart no rates are known at first. With a budget Spark asks for an offset when nothing is new, and does
    not run it; a choice would be lost.
    """
    monkeypatch.setattr(choice, "PATIENCE", 0.0)
    monkeypatch.setattr(decompose, "NEAR", 0.0)
    monkeypatch.setattr(choice, "HORIZON_SECONDS", 1e6)
    monkeypatch.setattr(choice, "PATIENCE", 0.0)
    options = {**scripted(chain(12), CHAIN, memory="100m"), "stateLocation": str(tmp_path)}
    *_, (end, manifests, _) = steps({**options, "plan": "(a b c)"})
    current = reader(options)
    before = point(current, end).plan
    looks = [("abc", [0.0] * 3), ("", [100.0, 100.0, 400.0]), ("abc", [100.0, 100.0, 400.0])]
    planned = [current.session.planner.next_batch(before, manifests, moving, rates, False) for moving, rates in looks]
    assert [p.plan.tree for p in planned] == [(0, 1, 2), (0, 1, 2), ((0, 1), 2)]


def test_counts_are_in_the_same_order_whether_a_state_was_loaded_or_not(tmp_path: Path) -> None:
    """Orders are found by sums over them, and every attempt at a batch must find the same."""
    *_, (_, (manifest,), _) = steps({**scripted(chain(3), CHAIN, plan="(a b c)"), "stateLocation": str(tmp_path)})
    state = cache.of_worker().states()[-1]
    assert list(state.root.probed.edges.items()) == list(edges_of(manifest.root.edges).items())


def test_what_was_learned_outlives_a_change_of_plan(tmp_path: Path) -> None:
    options = {**scripted(chain(6), CHAIN), "stateLocation": str(tmp_path)}
    current = reader(options)
    start = current.initialOffset()
    for number in range(6):
        plan = "(a b c)" if number < 3 else "((a b) c)"
        current = reader({**options, "plan": plan})
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
    known = current.session.planner.statistics(newest(current, end), [1.0, 1.0, 1.0])
    assert known.selectivity(0, 1) == pytest.approx(1 / 4000, rel=0.5)
    assert known.selectivity(1, 2) == pytest.approx(1 / 10, rel=0.2)


def test_a_worker_that_has_missed_a_change_of_plan_and_back_reads_the_state_anew(tmp_path: Path) -> None:
    """Results that were found again are in another order than those that the worker has."""
    scripts = {alias: [table(7 * n + ord(alias), 60, 60 * n, x=20, y=20) for n in range(6)] for alias in "abc"}
    expected = results_of(scripted(scripts, CHAIN, plan="(a b c)"), tmp_path / "one")
    workers = cache.StateCache(), cache.StateCache()
    start, found = None, []
    for worker, plan in [(0, "((a b) c)")] * 2 + [(1, "(a b c)"), (1, "((a b) c)")] + [(0, "((a b) c)")] * 2:
        current = reader(scripted(scripts, CHAIN, plan=plan, stateLocation=str(tmp_path / "two")))
        start = start or current.initialOffset()
        end = current.latestOffset(start, ReadAllAvailable())
        with cache.using(workers[worker]):
            found += [b for partition in current.partitions(start, end) for b in current.read(partition)]
        start = end
    assert rows(pa.Table.from_batches(found, current.session.spec.schema)) == expected


STAR = """SELECT a.n AS an, b.n AS bn, c.n AS cn, d.n AS dn
          FROM a JOIN b ON a.x = b.x JOIN c ON b.x = c.x JOIN d ON c.x = d.x
          WHERE a.n % 50 = b.n % 50 AND c.n % 50 = d.n % 50"""


def changed(plans: list[str], state: Path, **options: str) -> Rows:
    """The results of a star join whose plan is the next one in every batch, and the last one to the end."""
    cache.of_worker().clear()
    scripts = {alias: [table(7 * n + ord(alias), 400, 400 * n, x=100) for n in range(5)] for alias in "abcd"}
    start, found = None, []
    while True:
        plan = plans.pop(0) if len(plans) > 1 else plans[0]
        current = reader(scripted(scripts, STAR, plan=plan, stateLocation=str(state), **options))
        start = start or current.initialOffset()
        end = current.latestOffset(start, ReadAllAvailable())
        if end == start:
            return rows(pa.Table.from_batches(found, current.session.spec.schema))
        found += [b for partition in current.partitions(start, end) for b in current.read(partition)]
        start = end


@pytest.mark.parametrize(("before", "after"), [("((a b) c d)", "((a b c) d)"), ("(a b c d)", "((a b) (c d))")])
def test_a_plan_changes_while_rows_are_on_disk(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old plan gives and counts at its end is about its own joins, and its rows make room for the new ones."""
    held: list[int] = []
    build = replan.Change.build

    def building(change: replan.Change, operator: OperatorState) -> None:
        held.append(change.old.nbytes() + change.new.nbytes())
        build(change, operator)

    monkeypatch.setattr(replan.Change, "build", building)
    expected = changed(["(a b c d)"], tmp_path / "one")
    assert not held
    spilling = {"memory": "150k", "flush": "coordinated", "blockingThreshold": "1"}
    assert changed([before] * 3 + [after], tmp_path / "two", **spilling) == expected
    assert held and max(held) <= 150 << 10


def inflating(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[pa.Table]]:
    """Every row of a meets every row of b, all in one batch."""
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 1000)
    ones = pa.table({"n": np.arange(900), "x": np.zeros(900, np.int64)})
    few = pa.table({"n": [1], "y": [7]})
    return {"a": [ones], "b": [ones.append_column("y", ones["n"])], "c": [few, few]}


def test_a_batch_that_inflates_below_keeps_to_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = scripted(inflating(monkeypatch), CHAIN, plan="((a b) c)", memory="4m", stateLocation=str(tmp_path))
    found = list(steps(options))
    (manifest,) = found[0][1]
    assert manifest.root.rows == (900 * 900, 1)
    assert manifest.done.peak_bytes < 8 << 20
    assert rows(results for _, _, results in found) == Counter({(n, 7, 1): 2 for n in range(900)})


@pytest.mark.parametrize("before", ["((a b) c)", "(a b c)"], ids=["arriving", "built"])
def test_more_intermediate_rows_than_fit_are_an_error_at_once(
    before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = scripted(inflating(monkeypatch), CHAIN, memory="4m", overflow="fail", stateLocation=str(tmp_path))
    start = None
    with pytest.raises(MemoryBudgetError, match="its share of option 'memory' is 4,194,304") as error:
        for plan in (before, "((a b) c)"):
            current = reader({**options, "plan": plan})
            start = start or current.initialOffset()
            end = current.latestOffset(start, ReadAllAvailable())
            for partition in current.partitions(start, end):
                list(current.read(partition))
            start = end
    needed = re.search(r"needs ([\d,]+) bytes", str(error.value))
    assert needed is not None and int(needed[1].replace(",", "")) < 8 << 20


def restarted(plan: str, state: Path, crash: bool = False, **budget: str) -> Rows:
    """The results of three batches under one condition, and of the rest under another.

    With a crash the first of the rest was run under the old condition, and committed, before Spark lost it.
    """
    cache.of_worker().clear()
    scripts, start, found = chain(6), None, []
    for condition in ["a.n < b.n"] * 3 + ["a.n > b.n"] * 3:
        current = reader(scripted(scripts, f"{CHAIN} AND {condition}", plan=plan, stateLocation=str(state), **budget))
        start = start or current.initialOffset()
        end = current.latestOffset(start, ReadAllAvailable())
        found += [b for partition in current.partitions(start, end) for b in current.read(partition)]
        start = end
        if crash and start["version"] == 3:
            for partition in current.partitions(start, current.latestOffset(start, ReadAllAvailable())):
                list(current.read(partition))
            cache.of_worker().clear()
    return rows(pa.Table.from_batches(found, current.session.spec.schema))


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize("budget", [{}, {"memory": "10m"}], ids=["in memory", "budget"])
def test_other_conditions_after_a_restart_make_intermediate_results_anew(
    budget: dict[str, str], crash: bool, tmp_path: Path
) -> None:
    """As where all is in one join: what is complete stays, what comes later obeys the new query."""
    expected = restarted("(a b c)", tmp_path / "one", crash, **budget)
    assert restarted("((a b) c)", tmp_path / "tree", crash, **budget) == expected
    assert expected


def test_other_conditions_are_refused_while_results_are_pending(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="Run the query as it was until deferredRows is 0"):
        restarted("((a b) c)", tmp_path, memory="100k")


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("((a b) d)", "'d' is not an input of the query. Inputs are: a, b, c"),
        ("((a b)", r"has a '\(' without a '\)'"),
        ("(a b))", r"has a '\)' without a '\('"),
        ("(a b () c)", "empty pair of parentheses"),
        ("(a b)", "lacks c"),
        ("((a b) c a)", "has a more than once"),
        ("((a c) b)", "not connected by keys"),
    ],
)
def test_a_plan_that_does_not_fit_is_an_error(plan: str, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        reader({**scripted(chain(1), CHAIN, plan=plan), "stateLocation": "unused"})


@pytest.mark.parametrize("plan", ["((a b) c)", "((A, B), c)", "(c (b a))", "((a b)) c"])
def test_plans_may_be_written_in_several_ways(plan: str) -> None:
    current = reader({**scripted(chain(1), CHAIN, plan=plan), "stateLocation": "unused"})
    start = {"query": "q", "version": 0, "positions": dict.fromkeys("abc", 0)}
    planned = current.session.planner.next_batch(point(current, start).plan, [None], "abc", [0.0] * 3, False)
    assert planned.plan.tree == ((0, 1), 2)


def test_names_that_are_not_plain_are_in_backticks(tmp_path: Path) -> None:
    query = "SELECT `my a`.n AS an, b.n AS bn, c.n AS cn FROM a `my a` JOIN b ON `my a`.x = b.x JOIN c ON b.y = c.y"
    expected = results_of(scripted(chain(2), CHAIN), tmp_path / "plain")
    options = {**scripted(chain(2), query, plan="((`My a` b) c)"), "stateLocation": str(tmp_path)}
    current = reader(options)
    start, found = current.initialOffset(), list[pa.RecordBatch]()
    while (end := current.latestOffset(start, ReadAllAvailable())) != start:
        found += [b for partition in current.partitions(start, end) for b in current.read(partition)]
        start = end
    assert current.reportLatestOffset()["metrics"]["plan"] == "((`my a` b) c)"
    assert rows(pa.Table.from_batches(found, current.session.spec.schema)) == expected
    with pytest.raises(OptionError, match=r"'my' is not an input .* an example is \(`my a` b c\)"):
        reader({**options, "plan": "((my a b) c)"})


def test_before_the_first_row_orders_follow_what_the_user_expects(tmp_path: Path) -> None:
    star = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.x = b.x JOIN c ON a.x = c.x"
    scripts = {alias: [table(n, 10, 0, x=5)] for n, alias in enumerate("abc")}
    options = {**scripted(scripts, star), "stateLocation": str(tmp_path), "plan": "(a b c)"}
    expected = {f"source.{alias}.expectedRowsPerSecond": "100" for alias in "abc"}
    selective = {"expectedSelectivity": "a.b: 0.5, a.c: 1e-6, b.c: 1e-6"}

    def planned(given: dict[str, str]) -> Any:
        current = reader({**options, **given})
        return current.latestOffset(current.initialOffset(), ReadAllAvailable()).get("plan", {}).get("orders")

    assert planned(expected | selective) == (((2, 1), (2, 0), (0, 1)),)
    assert planned(selective) is None  # nothing is known of the rows: the task goes by what comes


def test_a_batch_read_runs_the_tree_that_the_user_expects_to_pay(tmp_path: Path) -> None:
    """There is no later batch that could change it; what tasks probe first they find out themselves."""
    rates = {
        f"source.{alias}.expectedRowsPerSecond": rate for alias, rate in {"a": "100", "b": "100", "c": "400"}.items()
    }
    options = scripted(chain(4), CHAIN, **rates, expectedSelectivity="a.b: 0.00001, b.c: 0.1")
    source = MJoinDataSource(CaseInsensitiveDict(options))
    batch = source.reader(source.schema())
    partitions = batch.partitions()
    assert [p.task.ledger.plan.tree for p in partitions] == [((0, 1), 2)] and not partitions[0].task.ledger.plan.orders
    found = pa.Table.from_batches([b for p in partitions for b in batch.read(p)])
    expected = results_of(scripted(chain(4), CHAIN, plan="(a b c)"), tmp_path)
    assert rows(found) == expected and expected
    alone = MJoinDataSource(CaseInsensitiveDict(scripted(chain(4), CHAIN)))
    assert [p.task.ledger.plan.tree for p in alone.reader(alone.schema()).partitions()] == [(0, 1, 2)]
