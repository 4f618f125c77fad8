"""Probing orders change the work, never the results: every order, planned ones in the offset, and faults on the way."""

import json
import logging
import tempfile
from itertools import permutations
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival
from spark_mjoin.engine.feed import Piece
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.orders import Probing, Targets
from spark_mjoin.model import JoinSpec
from spark_mjoin.query.graph import plan_join
from spark_mjoin.schema import canonical_schema
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import Manifests
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.routing import Routing
from tests.harness import CRASH, OK, TORN, TWICE, ReadAllAvailable, Rows, duckdb_join, reader, rows, run, scripted
from tests.oracle.cases import Case, cases
from tests.oracle.examples import examples


def valid_orders(spec: JoinSpec, origin: int) -> list[Targets]:
    others = [i for i in range(len(spec.inputs)) if i != origin]

    def is_valid(bound: list[int]) -> bool:
        return all(any(spec.classes_of(t) & spec.classes_of(i) for i in bound[:n]) for n, t in enumerate(bound) if n)

    return [order for order in permutations(others) if is_valid([origin, *order])]


def joined(case: Case, spec: JoinSpec, probing: Probing) -> Rows:
    """The results of the case's arrivals, in one partition."""
    state, counts, found = OperatorState.alone(spec), BatchCounts([0] * len(spec.inputs)), []
    for n in range(max(map(len, case.scripts.values()))):
        for number, input in enumerate(spec.inputs):
            script = case.scripts[spec.sources[input.source].alias]
            for batch in script[n].to_batches() if n < len(script) else []:
                bounds = arrival.arrive(state, number, Piece.whole(number, batch), counts, probing=probing)
                found += arrival.results(state, bounds)
    return rows(pa.Table.from_batches(found, spec.schema))


@given(cases())
@examples(100)
def differential_every_order_gives_the_same_results(case: Case) -> None:
    options = Options.parse({"query": case.query, **{f"source.{a}.format": "arrow" for a in case.scripts}})
    spec = plan_join(options, [canonical_schema(case.scripts[s.alias][0].schema) for s in options.sources])
    expected = joined(case, spec, Probing(spec, [valid_orders(spec, i)[0] for i in range(len(spec.inputs))]))
    possible = [valid_orders(spec, i) for i in range(len(spec.inputs))]
    for n in range(1, max(map(len, possible))):
        assert joined(case, spec, Probing(spec, [of[n % len(of)] for of in possible])) == expected
    with patch.object(orders, "LEAST_PROBES", 1):
        assert joined(case, spec, Probing.unplanned(spec)) == expected


@given(cases(faults=True))
@examples(100)
def differential_orders_that_follow_every_probe_give_the_same_results(case: Case) -> None:
    """Changed on no evidence to speak of, over partitions, restarts and repetitions."""
    schedule = [fault if fault in (CRASH, TORN, TWICE) else OK for fault in case.schedule]
    options = scripted(case.scripts, case.query, partitions=str(case.partitions))
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory() as other:
        expected = rows(run(options, Path(state), schedule))
        with patch.object(orders, "LEAST_PROBES", 1), patch.object(orders, "LEAST_GAIN", -1):
            assert rows(run(options, Path(other), schedule)) == expected


# --- the offset ----------------------------------------------------------------------------------------------------

STAR = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a, b, c WHERE a.k = b.k AND a.k = c.k"
VALUES = {"a": 50, "b": 50, "c": 2000}  # keys of c are mostly not in the others


def arrivals(alias: str, batches: int) -> list[pa.Table]:
    random = np.random.Generator(np.random.Philox(ord(alias)))
    return [
        pa.table({"n": np.arange(200 * n, 200 * (n + 1)), "k": random.integers(0, VALUES[alias], 200)})
        for n in range(batches)
    ]


@pytest.mark.parametrize("budget", [{}, {"memory": "120k"}], ids=["in memory", "overflow"])
def test_orders_are_planned_with_the_offset(
    budget: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scripts = {alias: arrivals(alias, 6) for alias in VALUES}
    options = {**scripted(scripts, STAR, partitions="2"), **budget, "stateLocation": str(tmp_path)}
    current = reader(options)
    start = current.initialOffset()
    planned, results, words, flushed = [], [], [], 0
    with caplog.at_level(logging.INFO, "spark_mjoin.driver.session"):
        while (end := json.loads(json.dumps(current.latestOffset(start, ReadAllAvailable())))) != start:
            planned.append(end.get("plan", {}).get("orders"))
            for partition in current.partitions(start, end):
                results.append(pa.Table.from_batches(list(current.read(partition)), current.session.spec.schema))
            stores = [Manifests(f"{tmp_path}/{end['query']}", p, Routing(2)) for p in (0, 1)]
            manifests = [store.manifest(end["version"]) for store in stores]
            words.append({manifest.orders[0] for manifest in manifests})
            flushed += sum(manifest.done.evicted.rows for manifest in manifests)
            start = end
    assert rows(results) == rows(duckdb_join(STAR, {a: pa.concat_tables(script) for a, script in scripts.items()}))
    assert bool(budget) == bool(flushed)
    assert planned[0] is None  # nothing is known yet
    assert planned[5][0][0] == [2, 1] and planned[5][0][1] == [2, 0]
    assert words[5] == {"a > c > b"}  # a task keeps to the plan
    assert [record.message for record in caplog.records if "c before b" in record.message]
    assert all("matches per row" in record.message for record in caplog.records if "before" in record.message)


def test_manifests_are_read_once_for_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {alias: arrivals(alias, 3) for alias in VALUES}
    current = reader({**scripted(scripts, STAR), "memory": "40k", "stateLocation": str(tmp_path)})
    start = current.initialOffset()
    for _ in range(2):
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
    read = []
    original = Directory.map
    monkeypatch.setattr(Directory, "map", lambda self, name: (read.append(name), original(self, name))[1])
    current.reportLatestOffset()
    current.latestOffset(start, ReadAllAvailable())
    assert [name for name in read if name.startswith("version")] == ["version-000000000002.json"]
