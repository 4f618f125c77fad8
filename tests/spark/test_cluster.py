"""`spark_mjoin.join` on a cluster of two workers, each with an executor, which lose executors, a worker, the driver.

Spark's checkpoint, and with it the state, is on a file system that all share: this machine's.
"""

import shutil
from pathlib import Path

import pytest

from spark_mjoin.doors import shim
from tests.spark.joins import FileJoin
from tests.spark.processes import Driver
from tests.spark.standalone import EXECUTORS, Standalone

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not shim.JAR.exists(), reason="no cluster here: there is no Java, or no jar"
)

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
