"""Plans of several joins under a memory budget: what is in memory, who works on disk, and which sources wait."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from tests.engine.test_overflow import BATCH_BYTES, MEMORY, Run, arrivals

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


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("plan", PLANS)
def test_all_operators_together_stay_within_the_budget(tmp_path: Path, policy: str, plan: str) -> None:
    run = Run(four(), STAR, tmp_path, memory=str(MEMORY), flush=policy, plan=plan).to_the_end()
    run.check()
    assert all(c["memoryUsedBytes"] <= MEMORY for c in run.counts)
    assert all(c["memoryPeakBytes"] <= MEMORY + BATCH_BYTES for c in run.counts)
    assert max(c["memoryUsedBytes"] for c in run.counts) > MEMORY // 4, "the budget must be used, too"
    assert sum(c["flushes"] for c in run.counts) > 3
    assert run.counts[-1]["deferredRows"] == 0


@pytest.mark.parametrize("policy", ["adaptive", "largest", "random"])
@pytest.mark.parametrize("plan", PLANS)
def test_so_they_do_in_a_chain(tmp_path: Path, policy: str, plan: str) -> None:
    run = Run(four(), CHAIN, tmp_path, memory=str(MEMORY), flush=policy, plan=plan).to_the_end()
    run.check()
    assert all(c["memoryUsedBytes"] <= MEMORY for c in run.counts)
    assert all(c["memoryPeakBytes"] <= MEMORY + BATCH_BYTES for c in run.counts)


# --- sources that wait -----------------------------------------------------------------------------------------


def upper_inputs_block(batches: int = 6) -> dict[str, list[pa.Table]]:
    """All four send; then c and d have nothing, and a and b go on with keys that nothing above joins."""
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


# However many rows arrive, disk work that promises more than they do is done.
AT_ONCE = {"blockingThreshold": "1", "diskShare": "100"}


def test_sources_below_an_operator_that_works_on_disk_wait_for_one_batch(tmp_path: Path) -> None:
    run = Run(
        upper_inputs_block(),
        STAR,
        tmp_path,
        memory=str(MEMORY),
        plan="(((a b) c) d)",
        blockingThreshold="1",
        diskShare="100",
    )
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
    run = Run(
        upper_inputs_block(),
        STAR,
        tmp_path,
        memory=str(MEMORY),
        plan="(((a b) c) d)",
        blockingThreshold="1",
        diskShare="100",
    )
    waited = 0
    for offset in offsets(run):
        if waiting_of(offset):
            waited += 1
            run.restart()
    assert waited > 1
    run.check()


def test_a_single_operator_lets_no_source_wait(tmp_path: Path) -> None:
    run = Run(upper_inputs_block(), STAR, tmp_path, memory=str(MEMORY), plan="(a b c d)", **AT_ONCE)
    assert not any(waiting_of(offset) for offset in offsets(run))
    run.check()
