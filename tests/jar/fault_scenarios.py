"""What Spark does to the tasks of `spark_mjoin.join` when things fail, on executors of their own: see child.py.

Faults are data (tests/spark/faults), and Spark's own API says afterwards that they had the effect they are for.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import spark_mjoin
from tests.jar.layout_scenarios import layouts, skewed
from tests.jar.scenarios import Scenario, rest, scenario, wait_for_executors
from tests.jar.stream_scenarios import StreamJoin, failure_of
from tests.spark.joins import CHAIN, STAR

FAULTS: dict[str, Scenario] = {}
on_a_cluster = scenario("one-slot", of=FAULTS)

CRAMPED = {"memory": "40k", "diskFuel": "10k", "blockingThreshold": "60"}  # overflows, visits and passes


@contextmanager
def struck(faults: list[dict[str, Any]]) -> Iterator[None]:
    """Let faults happen, and see that each has."""
    plan = Path(os.environ["MJOIN_FAULTS"])
    for old in plan.parent.glob(f"{plan.name}.*"):
        old.unlink()
    plan.write_text(json.dumps(faults))
    try:
        yield
    finally:
        plan.write_text("[]")
    assert [f for n, f in enumerate(faults) if not Path(f"{plan}.{n}").exists()] == []


def since(stages: int) -> list[Any]:
    """The attempts at stages that came after the first so many, with their tasks."""
    return [stage for stage in rest("stages?details=true") if stage["stageId"] >= stages]


@on_a_cluster
def oracle_tasks_workers_and_executors_die(spark: Any, root: Path) -> None:
    """A task is retried, a worker dies, and executors do, with the shuffle files that waiting tasks need."""
    wait_for_executors(2)
    join = StreamJoin(root, options={"maxFilesPerTrigger": "1", "stateLocation": "", "partitions": "3"} | CRAMPED)
    join.fill(files=4, rows=30)
    first = 1 + max((stage["stageId"] for stage in rest("stages")), default=-1)
    faults = [
        {"when": "before", "file": "rows-0*1-1-", "what": "raise"},
        {"when": "after", "file": "version-0*2[.]", "what": "worker"},
        {"when": "before", "file": "version-0*3[.]", "what": "executor"},
        {"when": "after", "file": "version-0*4[.]", "what": "executor"},
    ]
    with struck(faults):
        assert join.collect(spark, join.load(spark)) == join.expected()
    again = {stage["stageId"] for stage in since(first) if stage["attemptId"] > 0}
    assert len(again) >= 2, "stages were run again, those that made the shuffle files too"


@on_a_cluster
def oracle_cells_of_a_cube_die(spark: Any, root: Path) -> None:
    """Copies of a row are sent again, and meet those that have been joined before."""
    wait_for_executors(2)
    options = {"maxFilesPerTrigger": "1", "stateLocation": "", "partitions": "4", "plan": "cube(k1=2, k2=2)"}
    join = StreamJoin(root, CHAIN, options=options | CRAMPED)
    join.fill(files=4, rows=30)
    faults = [
        {"when": "before", "file": "rows-0*1-1-", "what": "raise"},
        {"when": "after", "file": "version-0*2[.]", "what": "worker"},
        {"when": "before", "file": "version-0*3[.]", "what": "executor"},
    ]
    with struck(faults):
        assert join.collect(spark, join.load(spark)) == join.expected()


@on_a_cluster
def oracle_tasks_die_while_a_hot_key_is_split(spark: Any, root: Path) -> None:
    """In the batch whose tasks take over the state, with rows on disk."""
    wait_for_executors(2)
    join = skewed(StreamJoin(root, STAR), 7, 0.5)
    faults = [
        {"when": "before", "file": "rows-0*6-1-", "what": "raise"},
        {"when": "after", "file": "version-0*6[.]", "what": "worker"},
        {"when": "before", "file": "version-0*6[.]", "what": "executor"},
    ]
    with struck(faults):
        frame = spark_mjoin.join(join.inputs(spark), STAR, partitions=4, memory="2m")
        assert join.collect(spark, frame) == join.expected()
    assert layouts(join)[-1] == "split"
    plans = sorted(join.checkpoint.glob("state/0/mjoin/plan-*"))
    assert json.loads(plans[-1].read_text()[9:])["plan"]["routing"]["since"] == 6, "the batch that the faults are in"


class Once:
    """A sink that fails as long as a file is there, after it was given a row."""

    def __init__(self, broken: Path) -> None:
        self.broken = str(broken)

    def process(self, row: Any) -> None:
        if os.path.exists(self.broken):
            raise OSError("a fault that the test wants")


@on_a_cluster
def oracle_input_that_is_not_the_same_again_is_noticed(spark: Any, root: Path) -> None:
    """The first run gives results to its sink, and dies before its batch is committed."""
    join = StreamJoin(root, "SELECT a.k, a.x, b.y FROM a JOIN b ON a.k = b.k")
    join.fill(files=1, rows=1500, keys=2)
    broken, other = root / "broken", root / "other"
    broken.touch()
    shift = F.udf(lambda n: n + os.path.exists(str(other)), "bigint")
    inputs = {alias: frame for alias, frame in join.inputs(spark).items() if alias in "ab"}
    inputs["b"] = inputs["b"].withColumn("y", shift("y"))
    joined = spark_mjoin.join(inputs, join.query, partitions=1)

    def said() -> str:
        return failure_of(join.start_with(joined.writeStream.foreach(Once(broken))).awaitTermination)

    assert "a fault that the test wants" in said()
    broken.unlink()
    other.touch()
    again = said()
    assert "other rows of 'b'" in again and "rand()" in again, again
    other.unlink()
    assert said() == ""
