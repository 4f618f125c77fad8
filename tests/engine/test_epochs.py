"""Passes over stars whose buckets are evicted as a whole: epochs decide, and nothing is looked up per combination."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_mjoin.engine import cleanup
from spark_mjoin.state import segments
from spark_mjoin.state.residency import Residency
from tests.engine.test_overflow import CHAIN, STAR, Run, scripts

BY_STRINGS = STAR.replace("a.k = b.k", "a.s = b.s").replace("a.k = c.k", "a.s = c.s")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many times each rule was asked."""
    counts = {"across_epochs": 0, "not_emitted": 0}

    def counted(name: str, rule: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def wrapped(*args: Any) -> Iterator[Any]:
            counts[name] += 1
            return rule(*args)

        return wrapped

    for name in counts:
        monkeypatch.setattr(cleanup, name, counted(name, getattr(cleanup, name)))
    monkeypatch.setattr(segments, "RUN_ROWS", 1)
    return counts


def overflowing(query: str, state: Path, policy: str, **options: str) -> Run:
    given = scripts(batches=12, keys=1500)
    chosen = {"memory": "200k", "diskFuel": "40k", "blockingThreshold": "1", "partitions": "1", "diskShare": "0.5"}
    return Run(given, query, state, flush=policy, **chosen | options)


@pytest.mark.parametrize("query", [STAR, BY_STRINGS], ids=["integers", "strings"])
@pytest.mark.parametrize("hash_bits", ["64", "1"])
def test_a_star_flushed_by_whole_buckets_goes_by_epochs(
    query: str, hash_bits: str, tmp_path: Path, asked: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With passes between arrivals, and a restart after every fifth batch."""
    monkeypatch.setenv("SPARK_MJOIN_HASH_BITS", hash_bits)
    run = overflowing(query, tmp_path, "coordinated")
    for number, _ in enumerate(run.steps()):
        if number % 5 == 4:
            run.restart()
    run.check()
    assert asked["across_epochs"] > 20 and not asked["not_emitted"]
    assert sum(c["diskToDiskRows"] for c in run.counts) > 1000
    assert sum(c["flushes"] for c in run.counts) > 5


def test_the_general_rule_gives_the_same(
    tmp_path: Path, asked: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_epochs = overflowing(STAR, tmp_path / "epochs", "coordinated").to_the_end()
    assert not asked["not_emitted"]
    monkeypatch.setattr(Residency, "in_epochs", lambda self, buckets: False)
    one_by_one = overflowing(STAR, tmp_path / "general", "coordinated").to_the_end()
    assert asked["not_emitted"]
    assert [r.to_pylist() for r in by_epochs.results] == [r.to_pylist() for r in one_by_one.results]


def test_adaptive_goes_by_epochs_as_long_as_it_takes_whole_buckets(tmp_path: Path, asked: dict[str, int]) -> None:
    run = overflowing(STAR, tmp_path, "adaptive").to_the_end()
    run.check()
    assert asked["across_epochs"] > 0


@pytest.mark.parametrize(("query", "policy"), [(STAR, "random"), (STAR, "largest"), (CHAIN, "coordinated")])
def test_where_inputs_leave_one_by_one_the_general_rule_decides(
    query: str, policy: str, tmp_path: Path, asked: dict[str, int]
) -> None:
    run = overflowing(query, tmp_path, policy).to_the_end()
    run.check()
    assert asked["not_emitted"] > 0
    if query is CHAIN:
        assert not asked["across_epochs"], "its inputs have no key in common"
