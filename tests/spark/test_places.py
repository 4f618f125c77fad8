"""Partitions run where most of their rows are: a cluster of two hosts, and the bytes that cross the network between."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_mjoin.doors import shim
from tests.spark.standalone import EXECUTORS, Standalone
from tests.spark.two_hosts import BATCHES, KEYS, PARTITIONS

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not shim.JAR.exists(), reason="no cluster here: there is no Java, or no jar"
)

HOSTS = ("127.0.0.2", "127.0.0.3")
LAST = 3  # batches that are looked at, when partitions are where they will be


def run(root: Path, cluster: Standalone, rates: bool = False) -> Any:
    root.mkdir()
    more = {"spark.executor.cores": "1", "spark.locality.wait": "1s"} if rates else {}  # a task that waits is alone
    request = {"root": str(root), "master": cluster.url, "conf": EXECUTORS | more, "rates": rates}
    (root / "request.json").write_text(json.dumps(request))
    with (root / "log").open("w") as log:
        command = [sys.executable, "-m", "tests.spark.two_hosts", str(root / "request.json")]
        code = subprocess.run(command, stdout=log, stderr=log, timeout=280, check=False).returncode
    assert code == 0, (root / "log").read_text()[-5000:]
    return json.loads((root / "said.json").read_text())


def least_moved(sent: list[dict[str, Any]]) -> int:
    """The fewest bytes that have to move, if each task's are for a partition of their own, evenly spread over hosts."""
    by_host = [sorted((t["bytes"] for t in sent if t["host"] == host), reverse=True) for host in HOSTS]
    return sum(sum(of[PARTITIONS // 2 :]) for of in by_host)


@pytest.mark.timeout(600)
def test_partitions_go_where_their_rows_are(tmp_path: Path) -> None:
    with Standalone(tmp_path / "cluster", hosts=HOSTS) as cluster:
        both = run(tmp_path / "joins", cluster)
    together, anywhere = both["together"], both["anywhere"]
    for said in (together, anywhere):
        assert said["results"] == PARTITIONS * BATCHES * KEYS
        assert len(said["metrics"]) == BATCHES
        assert sum(of["shuffledBytes"] for of in said["metrics"]) == said["read"], "as Spark has counted it"
        assert sum(of["bytesMoved"] for of in said["metrics"]) == said["away"]
        assert all(of["bytesMovedPerSecond"] > 0 for of in said["metrics"] if of["bytesMoved"])
        assert "executors are on 127.0.0.2, 127.0.0.3" in said["explained"]
        assert "rows of l are on 127.0.0.2, as 'hosts' says" in said["explained"]
        moved, shuffled = said["expected"]
        assert moved == pytest.approx(shuffled / 2), "a row is at home on one of two hosts"
    parts = []
    for name, said in (("from one host each", together), ("from everywhere", anywhere)):
        by_batch = [of["bytesMoved"] / of["shuffledBytes"] for of in said["metrics"]]
        print(f"keys {name}: moved of what was shuffled, by batch:", *(f"{part:.2f}" for part in by_batch))
        last = said["metrics"][-LAST:]
        parts.append(sum(of["bytesMoved"] for of in last) / sum(of["shuffledBytes"] for of in last))
    unavoidable = least_moved(together["sent"]) / sum(task["bytes"] for task in together["sent"])
    assert parts[0] < unavoidable + 0.1, "what is left is the small stream, and what is spread unevenly before"
    assert 0.4 < parts[1] < 0.6, "half of all rows are at home by chance"


@pytest.mark.timeout(600)
def test_slots_divided_by_rates_go_where_their_fastest_input_is(tmp_path: Path) -> None:
    with Standalone(tmp_path / "cluster", hosts=HOSTS) as cluster:
        both = run(tmp_path / "rates", cluster, rates=True)
    parts = {}
    for scheme, said in both.items():
        assert said["results"] == said["expected"]
        by_batch = [of["bytesMoved"] / of["shuffledBytes"] for of in said["metrics"]]
        print(f"by {scheme}: the streams come from", *sorted(set(said["from"])))
        print(f"by {scheme}: moved of what was shuffled, by batch:", *(f"{part:.2f}" for part in by_batch))
        last = said["metrics"][-LAST:]
        parts[scheme] = sum(of["bytesMoved"] for of in last) / sum(of["shuffledBytes"] for of in last)
    assert [both[scheme]["kind"] for scheme in ("hash", "rate")] == ["even", "assigned"]
    assert 0.4 < parts["hash"] < 0.6, "half of all rows are at home by chance"
    if len(set(both["rate"]["from"])) == 2:  # Spark decides where deduplication runs
        assert parts["rate"] < 0.2, "each input has a tenth of its rows where the other one is fast"
    else:
        assert 0.4 < parts["rate"] < 0.6, "both come from one host, and half of the partitions are on the other one"
