"""Plans of several joins under a memory budget: what is in memory, who works on disk, and which sources wait."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from spark_mjoin.driver import choice, decompose
from spark_mjoin.driver.choice import Newest, Planner
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import Tree
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from tests.engine.test_overflow import BATCH_BYTES, MEMORY, Run, arrivals
from tests.engine.test_plans import CHAIN as INFLATING_CHAIN
from tests.engine.test_plans import chain as inflating_chain

STAR = (
    "SELECT a.k, a.v AS av, b.v AS bv, c.v AS cv, d.v AS dv "
    "FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON a.k = d.k"
)
CHAIN = (
    "SELECT a.k, a.v AS av, b.v AS bv, c.k AS ck, d.v AS dv "
    "FROM a JOIN b ON a.k = b.k JOIN c ON b.v = c.v JOIN d ON c.k = d.k"
)
PLANS = ["((a b) (c d))", "(((a b) c) d)"]  # of three operators


@pytest.fixture(autouse=True)
def larger_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 500)


def four(batches: int = 6, size: int = 400, keys: int = 3000) -> dict[str, list[pa.Table]]:
    return {alias: arrivals(seed, batches, size, keys) for seed, alias in enumerate("abcd")}


def within_the_budget(query: str, state: Path, **options: str) -> Run:
    """A run with the right results, which is checked to keep to its memory."""
    run = Run(four(), query, state, memory=str(MEMORY), **options).to_the_end()
    run.check()
    assert all(c["memoryUsedBytes"] <= MEMORY for c in run.counts)
    assert all(c["memoryPeakBytes"] <= MEMORY + BATCH_BYTES for c in run.counts)
    return run


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("plan", PLANS)
def test_all_operators_together_stay_within_the_budget(tmp_path: Path, policy: str, plan: str) -> None:
    run = within_the_budget(STAR, tmp_path, flush=policy, plan=plan)
    assert max(c["memoryUsedBytes"] for c in run.counts) > MEMORY // 4, "the budget must be used, too"
    assert sum(c["flushes"] for c in run.counts) > 3
    assert run.counts[-1]["deferredRows"] == 0


@pytest.mark.parametrize("policy", ["adaptive", "largest", "random"])
@pytest.mark.parametrize("plan", PLANS)
def test_so_they_do_in_a_chain(tmp_path: Path, policy: str, plan: str) -> None:
    within_the_budget(CHAIN, tmp_path, flush=policy, plan=plan)


# --- trees that nobody asked for -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What the planner has seen and said when it looked at the tree."""

    overflowed: bool  # rows were on disk
    before: Tree
    after: Tree
    reason: str


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Look]:
    """Those of the runs to come."""
    seen: list[Look] = []
    choose = Planner.choice

    def looking(planner: Planner, before: Plan, committed: Newest, statistics: Statistics) -> decompose.Choice:
        found = choose(planner, before, committed, statistics)
        overflowed = any(manifest.overflowed for manifest in committed if manifest is not None)
        seen.append(Look(overflowed, before.tree, found.tree, found.reason))
        return found

    monkeypatch.setattr(Planner, "choice", looking)
    monkeypatch.setattr(choice, "PATIENCE", 0.0)  # how long a join has worked depends on the machine
    return seen


ONE_JOIN, TREE = (0, 1, 2), ((0, 1), 2)


def recorded_tree(offset: dict[str, Any]) -> Tree:
    return trees.from_json(offset["plan"].get("tree", ONE_JOIN))


def with_little_memory(given: dict[str, list[pa.Table]], state: Path) -> Run:
    """A ninth of what the state would take, and no option that says which plan."""
    return Run(given, INFLATING_CHAIN, state, memory="50k")


def test_the_planner_chooses_a_tree_and_keeps_it_while_rows_are_on_disk(tmp_path: Path, looks: list[Look]) -> None:
    """The first batch shows that a tree pays, and rows are evicted from the second on."""
    run = with_little_memory(inflating_chain(20), tmp_path)
    found = [recorded_tree(offset) for offset in offsets(run)]
    assert found[0] == ONE_JOIN and set(found[1:]) == {TREE}
    assert sum(c["rowsFlushed"] for c in run.counts[:4]) > 500, "rows have to be evicted early"
    assert run.counts[-1]["numRowsInMemory"] < sum(t.num_rows for t in run.tables.values()) / 9
    under_overflow = [look for look in looks if look.overflowed]
    assert len(under_overflow) > 2, "the planner has to look again while rows are on disk"
    assert all("is what runs, and nothing saves enough against it" in look.reason for look in under_overflow)
    run.check()


def test_the_planner_chooses_a_tree_although_rows_are_on_disk(tmp_path: Path, looks: list[Look]) -> None:
    """At first nothing of c has a partner, so that a tree saves nothing; when that changes, rows were evicted."""
    given = inflating_chain(20)
    for n, table in enumerate(given["c"][:4]):
        given["c"][n] = table.set_column(1, "y", pa.array(np.asarray(table["y"]) + 1000))
    run = with_little_memory(given, tmp_path)
    found = [recorded_tree(offset) for offset in offsets(run)]
    changed = found.index(TREE)
    assert changed > 4 and set(found[:changed]) == {ONE_JOIN} and set(found[changed:]) == {TREE}
    (look,) = [look for look in looks if look.after != look.before]
    assert look.overflowed and "s of work where (a b c) takes" in look.reason
    assert looks[-1].overflowed and looks[-1].before == TREE, "the planner has to look once more"
    run.check()


# --- sources that wait -----------------------------------------------------------------------------------------


def upper_inputs_block(batches: int = 6) -> dict[str, list[pa.Table]]:
    """All four send; then c and d have nothing, and a and b continue, by keys that nothing above joins."""
    script = four(batches, keys=1200)
    nothing = script["c"][0].slice(0, 0)
    for seed, alias in enumerate("abcd"):
        later = arrivals(10 + seed, batches, 400, 1200)
        if alias in "ab":
            script[alias] += [t.set_column(0, "k", pa.array(np.asarray(t["k"]) + 10_000)) for t in later]
        else:
            script[alias] += [nothing] * batches
    return script


def offsets(run: Run) -> Iterator[dict[str, Any]]:
    """The offset of each batch, as Spark keeps it."""
    for _ in run.steps():
        run.offset = json.loads(json.dumps(run.offset))
        yield run.offset


def waiting_of(offset: dict[str, Any]) -> list[str]:
    found: list[str] = offset["plan"]["overflow"].get("waiting", [])
    return found


def blocked_above(state: Path, plan: str = "(((a b) c) d)") -> Run:
    """However many rows arrive, disk work that promises more than they do is done."""
    options = {"memory": str(MEMORY), "blockingThreshold": "1", "diskShare": "100"}
    return Run(upper_inputs_block(), STAR, state, plan=plan, **options)


def test_sources_below_an_operator_that_works_on_disk_wait_for_one_batch(tmp_path: Path) -> None:
    run = blocked_above(tmp_path)
    before, waited = run.offset, 0
    for offset in offsets(run):
        waiting = waiting_of(offset)
        for alias in waiting:
            assert offset["positions"][alias] == before["positions"][alias]
        if waiting:
            waited += 1
            assert set(waiting) <= {"a", "b", "c"}, "d is an input of the root, which is below nothing"
            assert not (before.get("plan") and waiting_of(before)), "never in two batches in a row"
            (work,) = offset["plan"]["overflow"]["work"]
            assert any(urgent for _, _, urgent, _ in work)
            working = {operator for _, _, _, operator in work}
            assert working == ({0} if "c" in waiting else {1})
        before = offset
    assert waited > 1
    assert all(run.offset["positions"][alias]["batch"] == 12 for alias in "abcd")
    run.check()


def test_a_batch_in_which_sources_wait_is_repeated_as_it_was(tmp_path: Path) -> None:
    """The offset says who waits: a restart after it reads what they have next, and nothing twice."""
    run = blocked_above(tmp_path)
    waited = 0
    for offset in offsets(run):
        if waiting_of(offset):
            waited += 1
            run.restart()
    assert waited > 1
    run.check()


def test_a_single_operator_lets_no_source_wait(tmp_path: Path) -> None:
    run = blocked_above(tmp_path, "(a b c d)")
    assert not any(waiting_of(offset) for offset in offsets(run))
    run.check()
