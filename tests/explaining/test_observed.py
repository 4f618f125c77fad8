"""`spark_mjoin.explain` of a query that runs or ran: expected against observed, from its state or its progress."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import spark_mjoin
from spark_mjoin.__main__ import main
from spark_mjoin.errors import OptionError, StateError
from spark_mjoin.explaining.explanation import explained
from spark_mjoin.mjoin.statistics import Statistics
from tests.explaining.test_explain import section
from tests.harness import reader, run, scripted

ROWS, BATCHES, VALUES = 3000, 4, 50


@pytest.fixture(autouse=True)
def default_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def shop(**options: str) -> dict[str, str]:
    """Orders of few customers, with one payment each that comes in the same batch; every batch has new keys."""
    orders, payments, customers = [], [], []
    for batch in range(BATCHES):
        ids = range(batch * ROWS, (batch + 1) * ROWS)
        orders.append(pa.table({"id": ids, "customer": [i % VALUES for i in ids]}))
        payments.append(pa.table({"order_id": ids, "amount": [float(i % 10) for i in ids]}))
        first = VALUES if batch == 0 else 0
        customers.append(pa.table({"id": range(first), "name": [f"customer {i}" for i in range(first)]},
                                  schema=pa.schema([("id", pa.int64()), ("name", pa.string())])))  # fmt: skip
    query = """SELECT o.id, p.amount, c.name FROM orders o JOIN payments p ON o.id = p.order_id
               JOIN customers c ON c.id = o.customer WHERE p.amount > 0 AND p.amount * 1000000 > o.id"""
    return scripted({"orders": orders, "payments": payments, "customers": customers}, query, **options)


EXPECTED = {"expectedSelectivity": "orders.customers: 0.1", "source.orders.expectedRowsPerSecond": "7"}
STORED = ROWS * BATCHES
PAID = STORED * 9 // 10


def results(options: dict[str, str], state: Path) -> int:
    return sum(table.num_rows for table in run(options, state))


def figures(text: object, row: str) -> list[str]:
    found = re.search(rf"^ *{re.escape(row)} {{2,}}(.*)$", section(text, "RESULTS AND STATE"), re.MULTILINE)
    assert found, f"no row {row} in\n{text}"
    return re.split(r" {2,}", found[1])


def test_expected_stands_next_to_observed(tmp_path: Path) -> None:
    options = shop() | EXPECTED
    given = results(options, tmp_path)
    made = explained(options, state=str(tmp_path))
    (query,) = tmp_path.glob("*/meaning.json")
    seen = section(made, "OBSERVED")
    assert seen.startswith(f"  version {BATCHES} of {query.parent}\n\n")
    assert re.search(rf"\n  o +{STORED:,} +7 +[\d,]+\n  p +{PAID:,} +\? +[\d,]+\n  c +{VALUES} +\? +0\n", seen)
    assert "observed rates are over the last" in seen
    statistics = Statistics.of(made.expectation.spec, [STORED, PAID, VALUES])
    assert re.search(rf"o, p by k1 +{statistics.selectivity(0, 1):.3g} +assumed +\S+ +measured: [\d,]+ recent", seen)
    learned = re.search(r"o, c by k2 +0.1 +given +(\S+) +measured: ", seen)
    assert learned and 0.9 / VALUES < float(learned[1]) < 2 / VALUES, "what was given is five times the truth"
    assert re.search(r"\(\(p.amount \* .*\) > o.id\) lets 1 of the matches pass", seen)
    assert figures(made, "results")[1] == f"{given:,}" and given == PAID
    assert figures(made, "rows in the state")[1] == f"{STORED + PAID + VALUES:,}"
    assert figures(made, "on disk alone") == ["0"] and figures(made, "completeness") == ["1"]
    plan = section(made, "PLAN")
    assert plan.startswith("  runs: (o p c)\n  would be chosen now: ") and "because: " in plan
    orders = section(made, "PROBING ORDERS of the next batch")
    assert re.search(r"  p > o > c\n      matches per row: o by k1 \S+, c by k2 \S+\n      stays p > o > c", orders)


def test_observed_selectivities_are_those_that_the_reader_plans_by(tmp_path: Path) -> None:
    options = shop()
    run(options, tmp_path)
    made = explained(options, state=str(tmp_path))
    assert made.observed is not None
    current = reader(options | {"stateLocation": str(tmp_path)})
    statistics = current.session.planner.statistics(made.observed.committed, made.observed.rates or [])
    text = section(made, "OBSERVED")
    for pair, name in (((0, 1), "o, p by k1"), ((0, 2), "o, c by k2")):
        assert re.search(rf"{name} +\S+ +assumed +{statistics.selectivity(*pair):.3g} ", text)


def test_overflow_is_shown(tmp_path: Path) -> None:
    options = shop(memory="256k", blockingThreshold="1")
    current = reader({"stateLocation": str(tmp_path), **options})
    start = current.initialOffset()
    for _ in range(BATCHES):  # and not until all disk work is done
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
    made = explained(options, state=str(tmp_path))
    on_disk, in_memory = (int(figures(made, row)[-1].replace(",", "")) for row in ("on disk alone", "in memory"))
    assert on_disk > 0 and on_disk + in_memory == STORED + PAID + VALUES
    assert float(figures(made, "completeness")[0]) < 1
    used = figures(made, "bytes in memory")[0]
    assert used.endswith(" KiB of 256 KiB") and float(used.split()[0]) <= 192
    assert "in force: adaptive, when rows take more than 192 KiB" in section(made, "FLUSH POLICIES")


def test_a_plan_of_two_operators(tmp_path: Path) -> None:
    options = shop(plan="((o p) c)") | EXPECTED
    given = results(options, tmp_path)
    made = explained(options, state=str(tmp_path))
    plan = section(made, "PLAN")
    assert plan.startswith(
        "  runs: ((o p) c)\n  because: option 'plan' says so\n\n  MJoin 0 of (o p), c\n    MJoin 1 of o, p"
    )
    assert "((o p) c) *" in plan and made.plan == "((o p) c)"
    assert figures(made, "of intermediate results")[1] == f"{PAID:,}"
    assert figures(made, "results")[1] == f"{given:,}"
    orders = section(made, "PROBING ORDERS of the next batch")
    assert re.search(
        r"  MJoin 0\n  \(o p\) > c\n(.*\n)+  c > \(o p\)\n(.*\n)+\n  MJoin 1\n  o > p\n(.*\n)+  p > o\n", orders
    )


def test_partitions_are_taken_together(tmp_path: Path) -> None:
    tables = {alias: [pa.table({"k": range(1000)})] * 2 for alias in "ab"}
    options = scripted(tables, "SELECT a.k FROM a JOIN b ON a.k = b.k", partitions="3")
    given = results(options, tmp_path)
    made = explained(options, state=str(tmp_path))
    assert figures(made, "results")[1] == f"{given:,}" and given == 4000
    # Two rows for every one of 1,000 keys: one in a thousand pairs matches, whatever the partition.
    assert re.search(r"a, b by k1 +0.0005 +assumed +0.001 +measured: ", section(made, "OBSERVED"))


# --- where the state is --------------------------------------------------------------------------------------------


def test_of_several_queries_the_newest_is_taken_and_that_is_said(tmp_path: Path) -> None:
    options = shop()
    run(options, tmp_path)
    (first,) = tmp_path.iterdir()
    for path in first.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))
    run(options, tmp_path)
    other = scripted(
        {"x": [pa.table({"k": [1]})], "y": [pa.table({"k": [1]})]}, "SELECT x.k FROM x JOIN y ON x.k = y.k"
    )
    run(other, tmp_path)
    made = explained(options, state=str(tmp_path))
    assert made.observed is not None and made.observed.location != str(first)
    assert "  the newest of 2 queries with these options there\n" in section(made, "OBSERVED")
    assert explained(options, state=str(first)).observed.location == str(first)  # type: ignore[union-attr]


def test_a_checkpoint_is_looked_into(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = shop()
    run(options, tmp_path / "checkpoint/sources/0/state")
    made = explained(options, state=str(tmp_path / "checkpoint"))
    assert f"of {tmp_path}/checkpoint/sources/0/state/" in section(made, "OBSERVED")
    arguments = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    assert main(["explain", *arguments, "--state", str(tmp_path / "checkpoint")]) == 0
    assert f"version {BATCHES} of" in capsys.readouterr().out


def test_a_state_that_is_not_there_or_means_something_else(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="there is no state of a query in"):
        explained(shop(), state=str(tmp_path / "nowhere"))
    run(shop(), tmp_path)
    with pytest.raises(StateError, match=r"option partitions was 1, is now 2|filter"):
        explained({**shop(), "query": shop()["query"].replace("p.amount > 0 AND", "")}, state=str(tmp_path))


def test_a_query_before_its_first_batch(tmp_path: Path) -> None:
    current = reader(shop() | {"stateLocation": str(tmp_path)})
    start = current.initialOffset()
    current.latestOffset(start, ReadAllAvailable())
    made = explained(shop(), state=str(tmp_path))
    assert "  version 0 of " in section(made, "OBSERVED") and figures(made, "results")[1] == "0"


# --- from a progress -----------------------------------------------------------------------------------------------


class Query:
    """As much of a StreamingQuery as is asked for."""

    def __init__(self, progress: dict[str, object] | None) -> None:
        self.lastProgress = progress


def progress_of(options: dict[str, str], state: Path) -> dict[str, object]:
    """A progress as Spark shows it after two batches, without the jar."""
    current = reader({"stateLocation": str(state), **options})
    start = current.initialOffset()
    for _ in range(2):
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            list(current.read(partition))
        start = end
    source = {
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(current.reportLatestOffset()),
        "processedRowsPerSecond": 123.0,
    }
    return {"sources": [source]}


def test_from_a_query_with_its_state(tmp_path: Path) -> None:
    options = shop() | {"stateLocation": str(tmp_path)}
    progress = progress_of(options, tmp_path)
    run(shop(), tmp_path)  # another query, which is newer
    made = spark_mjoin.explain(options, query=Query(progress), show=False)
    query = json.loads(progress["sources"][0]["endOffset"])["query"]  # type: ignore[index]
    assert section(made, "OBSERVED").startswith(f"  version 2 of {tmp_path}/{query}\n")
    assert figures(made, "results/s")[1] == "123"
    assert "observed rates are of the last progress" in section(made, "OBSERVED")
    assert "measured: " in section(made, "OBSERVED")


def test_from_a_progress_alone(tmp_path: Path) -> None:
    options = shop(plan="((o p) c)")
    progress = progress_of(options, tmp_path)
    shutil.rmtree(tmp_path)
    made = spark_mjoin.explain(options, query=progress, show=False)
    text = section(made, "OBSERVED")
    assert text.startswith("  version 2\n") and "selectivities are in the state: give its location too" in text
    assert section(made, "PLAN").startswith("  runs: ((o p) c)\n\n  MJoin 0 of (o p), c\n")
    assert "  o > p\n" in section(made, "PROBING ORDERS last used")
    assert figures(made, "results")[1] == f"{2 * ROWS * 9 // 10:,}"


def test_what_is_no_progress_of_a_join_is_refused() -> None:
    with pytest.raises(StateError, match="has no progress yet"):
        spark_mjoin.explain(shop(), query=Query(None))
    with pytest.raises(StateError, match="is not a join of this format"):
        spark_mjoin.explain(shop(), query={"sources": [{"endOffset": "{}"}]})


def test_a_state_has_to_be_somewhere() -> None:
    from spark_mjoin.driver.loading import load
    from spark_mjoin.explaining.observed import of_state

    with pytest.raises(OptionError, match="there is no option 'stateLocation'"):
        of_state(*load(shop()), None)
