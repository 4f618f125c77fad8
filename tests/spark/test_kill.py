"""kill -9 of everything that runs a query, at random moments and at exact places: the sink is what duckdb says."""

import random
import time
from pathlib import Path

import pytest

from spark_mjoin.doors import shim
from tests.spark.joins import FileJoin
from tests.spark.processes import Driver

LIMITED = {"maxFilesPerTrigger": "1", "partitions": "2"}
CRAMPED = {**LIMITED, "memory": "40k", "diskFuel": "10k", "blockingThreshold": "60"}  # overflows, visits and passes


@pytest.mark.parametrize("seed", [1])
def oracle_the_driver_and_the_jvm_are_killed_at_random_moments(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    join = FileJoin(tmp_path, options=CRAMPED).fill(files=10)
    kinds = ["driver", "jvm", "planner"]
    dice.shuffle(kinds)
    with Driver(join, restarts=1) as driver:
        committed, died = 0, []
        for kind in kinds:
            committed += dice.randint(1, 3)
            if not driver.wait_for_batches(committed):
                break
            time.sleep(dice.uniform(0, 0.4))
            if driver.kill(kind) and kind != "planner":  # the driver starts the query again by itself
                assert driver.wait() != 0
                driver.start()
            died.append(kind)
        assert sorted(died) == sorted(kinds), "the query ended before it was killed often enough: make it longer"
        driver.run_until_it_ends(most_starts=10)
        assert driver.results() == join.expected()


@pytest.mark.parametrize("options", [LIMITED, CRAMPED], ids=["in memory", "overflowing"])
def oracle_tasks_die_or_fail_at_exact_places_and_random_moments(tmp_path: Path, options: dict[str, str]) -> None:
    """Every place of a commit, spread over the versions, and any moment of later ones; Spark runs the task again, in
    another worker or the same."""
    faults = [
        {"when": "torn", "file": "rows-0*1-0-", "what": "worker"},
        {"when": "before", "file": "rows-0*1-1-", "what": "worker"},  # between two segments
        {"when": "unlinked", "file": "rows-0*2-2-", "what": "worker"},
        {"when": "after", "file": "rows-0*2-2-", "what": "worker"},  # all segments, no manifest
        {"when": "torn", "file": "version-0*3[.]", "what": "worker"},
        {"when": "unlinked", "file": "version-0*4[.]", "what": "worker"},
        {"when": "after", "file": "version-0*4[.]", "what": "worker"},  # committed, and Spark does not know it
        {"when": "deleting", "file": "version-0*1[.]", "what": "worker"},
        {"when": "deleting", "file": "rows-", "what": "worker"},
        {"when": "before", "file": "rows-0*5-1-", "what": "raise"},
        {"when": "unlinked", "file": "rows-0*5-2-", "what": "raise"},
        {"when": "before", "file": "version-0*6[.]", "what": "raise"},
        {"when": "after", "file": "version-0*6[.]", "what": "raise"},
    ]
    join = FileJoin(tmp_path, options=options).fill(files=13, rows=15, keys=15)
    dice = random.Random(2)
    with Driver(join, faults, master="local[2,20]") as driver:
        killed = 0
        for committed in (6, 7, 8, 9):
            if driver.wait_for_batches(committed):
                time.sleep(dice.uniform(0, 0.3))
                killed += driver.kill("workers")
        driver.run_until_it_ends(most_starts=1)
        assert killed > 2
        assert driver.missed() == []
        assert driver.results() == join.expected()
    leftovers = [p.name for p in join.state_files("partition-*/.tmp-*")]
    assert leftovers == []


def oracle_everything_dies_at_exact_places(tmp_path: Path) -> None:
    """The planner between its notes and Spark's; a worker on either side of its commit, with the JVM and the driver."""
    faults = [
        {"when": "unlinked", "file": "meaning[.]", "what": "worker"},
        {"when": "after", "file": "meaning[.]", "what": "worker"},
        {"when": "after", "file": "entries-", "what": "worker"},
        {"when": "before", "file": "version-0*2[.]", "what": "jvm"},
        {"when": "after", "file": "version-0*3[.]", "what": "jvm"},
    ]
    join = FileJoin(tmp_path, options={**CRAMPED, "plan": "((a b) c)"}).fill(files=4)
    with Driver(join, faults, log="info", restarts=4, stock=True) as driver:
        driver.run_until_it_ends(most_starts=3)
        assert driver.starts == 3
        assert "INFO spark_mjoin.driver.session: plan ((a b) c): option 'plan' says so" in driver.errors()
        assert driver.missed() == []
        assert driver.results() == join.expected()


# --- spark_mjoin.join: Spark reads and shuffles, and the state is in the checkpoint ---------------------------------

needs_jar = pytest.mark.skipif(not shim.JAR.exists(), reason="the jar is not built: there is no JDK")
IN_CHECKPOINT = {**CRAMPED, "stateLocation": ""}


@needs_jar
def oracle_streams_are_killed_at_random_moments(tmp_path: Path) -> None:
    dice = random.Random(3)
    join = FileJoin(tmp_path, options=IN_CHECKPOINT).fill(files=8)
    with Driver(join, restarts=1, streams=True, master="local[2,20]") as driver:
        died = []
        for committed, kind in ((2, "workers"), (3, "jvm"), (5, "planner"), (6, "driver")):
            if not driver.wait_for_batches(committed):
                break
            time.sleep(dice.uniform(0, 0.4))
            if driver.kill(kind) and kind in ("jvm", "driver"):
                assert driver.wait() != 0
                driver.start()
            died.append(kind)
        assert len(died) == 4, "the query ended before it was killed often enough: make it longer"
        driver.run_until_it_ends(most_starts=10)
        assert driver.results() == join.expected()


@needs_jar
def oracle_streams_die_or_fail_at_exact_places(tmp_path: Path) -> None:
    """The planner around its record of a plan; tasks around their commit, alone, or with the JVM and the driver."""
    faults = [
        {"when": "unlinked", "file": "meaning[.]", "what": "worker"},
        {"when": "before", "file": "plan-0*1[.]", "what": "worker"},
        {"when": "after", "file": "plan-0*2[.]", "what": "worker"},
        {"when": "torn", "file": "rows-0*2-0-", "what": "worker"},
        {"when": "after", "file": "rows-0*2-2-", "what": "worker"},  # all segments, no manifest
        {"when": "unlinked", "file": "version-0*3[.]", "what": "worker"},
        {"when": "after", "file": "version-0*3[.]", "what": "worker"},  # committed, and Spark does not know it
        {"when": "after", "file": "version-0*4[.]", "what": "raise"},
        {"when": "before", "file": "version-0*5[.]", "what": "jvm"},
        {"when": "after", "file": "version-0*6[.]", "what": "jvm"},
    ]
    join = FileJoin(tmp_path, options=IN_CHECKPOINT).fill(files=7, rows=15, keys=15)
    with Driver(join, faults, streams=True, restarts=4, master="local[2,20]") as driver:
        driver.run_until_it_ends(most_starts=3)
        assert driver.starts == 3
        assert driver.missed() == []
        assert driver.results() == join.expected()
