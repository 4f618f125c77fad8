"""What is shipped where each input comes in at a host of its own."""

import pyarrow as pa
import pytest

from spark_mjoin.driver.loading import load
from spark_mjoin.driver.shipping import Shipping, shipping
from spark_mjoin.driver.staging import Expected
from tests.harness import scripted

STAR = "SELECT a.v, b.v AS w, c.v AS x FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
HOSTS = {"a": ("n0",), "b": ("n0",), "c": ("n1",)}


def planned(hosts: dict[str, tuple[str, ...]], selectivity: str = "0.00001", query: str = STAR) -> Shipping | None:
    table = pa.table({"k": pa.array([1], pa.int64()), "m": pa.array([1], pa.int64()), "v": pa.array([1], pa.int64())})
    rates = {"a": 1000, "b": 500, "c": 100}
    given = {f"source.{alias}.expectedRowsPerSecond": str(rate) for alias, rate in rates.items()}
    given["expectedSelectivity"] = f"a.b: {selectivity}"
    spec, settings = load(scripted({alias: [table] for alias in "abc"}, query, **given))
    return shipping(Expected.of(spec, settings, seconds=100), hosts, 100)


def test_streams_that_meet_where_they_are_ship_only_their_results() -> None:
    """100,000 rows of a and 50,000 of b have 50,000 results, and c has 10,000 rows: c goes to them."""
    found = planned(HOSTS)
    assert found is not None
    assert found.host == "n0"
    assert found.simple == found.greedy == found.optimal == 100 * 16, "c has 16 bytes a row"
    assert found.steps[0].startswith("send c to n0 to join ")


def test_the_results_of_a_selective_join_are_sent_on() -> None:
    found = planned({"a": ("n0",), "b": ("n1",), "c": ("n1",)}, "0.0000001")
    assert found is not None
    assert found.optimal <= found.greedy <= found.simple
    assert found.simple == (500 + 100) * 16, "b and c go to a"
    assert found.greedy < found.simple


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_nothing_is_planned_unless_all_hosts_are_known(missing: str) -> None:
    assert planned({alias: host for alias, host in HOSTS.items() if alias != missing}) is None
    assert planned({**HOSTS, missing: ("n0", "n1")}) is None


def test_a_chain_is_planned_like_a_star() -> None:
    found = planned(HOSTS, query="SELECT a.v, c.v AS x FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m")
    assert found is not None
    assert found.optimal <= found.greedy <= found.simple
