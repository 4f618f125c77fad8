"""`spark_mjoin.join` on clusters of two executors that lose executors, a worker, the driver; state on an object store.

Spark's checkpoint is on a file system that all share: this machine's.
"""

import shutil
from pathlib import Path

import pytest

from spark_mjoin.doors import shim
from tests.object_store import ObjectStore
from tests.spark.joins import FileJoin
from tests.spark.processes import Driver
from tests.spark.standalone import EXECUTORS, Standalone

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not shim.JAR.exists(), reason="no cluster here: there is no Java, or no jar"
)

SPECULATION = {
    "spark.locality.wait": "0s",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.4",
    "spark.task.maxFailures": "1",
}
OPTIONS = {"maxFilesPerTrigger": "1", "partitions": "4", "stateLocation": ""}


@pytest.mark.timeout(600)
def oracle_a_cluster_loses_an_executor_a_worker_and_the_driver(tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options=OPTIONS).fill(files=12)
    with (
        Standalone(tmp_path / "cluster") as cluster,
        Driver(join, streams=True, master=cluster.url, conf=EXECUTORS) as driver,
    ):
        assert driver.wait_for_batches(2), driver.errors()[-3000:]
        assert [len(cluster.executors(worker)) for worker in (0, 1)] == [1, 1]
        cluster.kill_executor(0)
        assert driver.wait_for_batches(driver.batches() + 2), driver.errors()[-3000:]
        cluster.lose_worker(1)
        assert driver.wait_for_batches(driver.batches() + 2), driver.errors()[-3000:]
        assert [len(cluster.executors(worker)) for worker in (0, 1)] == [1, 0]
        assert driver.kill("jvm") == 1
        assert driver.wait() != 0
        driver.start()
        assert driver.wait(400) == 0, driver.errors()[-3000:]
        assert driver.results() == join.expected()


@pytest.mark.timeout(600)
def oracle_a_slow_attempt_is_overtaken_by_a_speculative_one(tmp_path: Path) -> None:
    """Two attempts at a task at the same time, on different hosts: Spark never starts the second one on the same.

    The first stops before it publishes its version, until another attempt has published it. If none does, it fails, and
    with it the query.
    """
    faults = [
        {"when": "unlinked", "file": "version-0*2[.]", "what": "wait"},
        {"when": "before", "file": "version-0*4[.]", "what": "wait"},
    ]
    join = FileJoin(tmp_path, options={**OPTIONS, "memory": "40k"}).fill(files=6)
    with (
        Standalone(tmp_path / "cluster", hosts=("127.0.0.1", "127.0.0.2")) as cluster,
        Driver(join, faults, streams=True, master=cluster.url, conf=EXECUTORS | SPECULATION) as driver,
    ):
        assert driver.wait(400) == 0, driver.errors()[-3000:]
        assert driver.missed() == []
        assert driver.results() == join.expected()


@pytest.mark.timeout(900)
def oracle_state_is_on_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two executors; the checkpoint is on this machine. Workers die in the middle of puts, and once everything does."""
    faults = [
        {"when": "torn", "file": "rows-0*2-0-", "what": "worker"},
        {"when": "after", "file": "rows-0*2-2-", "what": "worker"},  # all segments, no manifest
        {"when": "torn", "file": "version-0*3[.]", "what": "worker"},
        {"when": "after", "file": "version-0*3[.]", "what": "worker"},  # committed, and Spark does not know it
        {"when": "before", "file": "version-0*4[.]", "what": "jvm"},
    ]
    with ObjectStore(tmp_path) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SPARK_MJOIN_CACHE", str(tmp_path / "copies"))
        join = FileJoin(tmp_path, options={**OPTIONS, "memory": "40k", "stateLocation": store.location("state")})
        join.fill(files=5)
        with Driver(join, faults, streams=True, master="local-cluster[2,2,1024]", conf=EXECUTORS) as driver:
            driver.run_until_it_ends(most_starts=2, seconds=400)
            assert driver.starts == 2
            assert driver.missed() == []
            assert driver.results() == join.expected()
        assert store.count("PUT", "state/.*version-") > 0
        assert store.count("PUT", "tmp-") == 0
