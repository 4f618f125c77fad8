"""What must hold of `spark_mjoin.join` where rows are divided otherwise while a query runs: see scenarios.py.

duckdb has the answers.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_mjoin
from tests.harness import rows
from tests.jar.scenarios import CLASSIC, Scenario, scenario
from tests.jar.stream_scenarios import StreamJoin, failure_of, operators
from tests.spark.joins import CHAIN, STAR

LAYOUTS: dict[str, Scenario] = {}
on_classic = scenario(*CLASSIC, of=LAYOUTS)

PARTITIONS, ROWS, KEYS, HOT = 4, 6000, 4000, 1


def add(join: StreamJoin, alias: str, keys: Any, **more: Any) -> None:
    before = sum(table.num_rows for table in join.tables.get(alias, []))
    payload = {"a": "x", "b": "y", "c": "z"}[alias]
    columns = {"k": keys, payload: np.arange(before, before + len(keys)), **more}
    join.add(alias, pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))


def skewed(join: StreamJoin, batches: int, part: float) -> StreamJoin:
    """Batches of a star of which one input has a key with a part of all its rows."""
    for _ in range(batches):
        dice = np.random.Generator(np.random.Philox(len(join.tables.get("a", []))))
        keys = dice.integers(0, KEYS, ROWS)
        keys[dice.random(ROWS) < part] = HOT
        add(join, "a", keys)
        for alias in "bc":
            add(join, alias, np.append(dice.integers(2, KEYS, 300), HOT if "c" not in join.tables else 2))
    return join


def layouts(join: StreamJoin, operator: int = 0) -> list[str]:
    """The kinds of layouts by which the last batches were planned."""
    plans = sorted(join.checkpoint.glob(f"state/{operator}/mjoin/plan-*"))
    routings = [json.loads(path.read_text()[9:])["plan"]["routing"] for path in plans]
    return [routing.get("layout", {"kind": "even"})["kind"] for routing in routings]


@on_classic
def layouts_split_a_hot_key_and_take_it_back(spark: Any, root: Path) -> None:
    """With a restart while it is split, and rows on disk."""
    join = skewed(StreamJoin(root, STAR), 8, 0.5)

    def run() -> list[dict[str, Any]]:
        frame = spark_mjoin.join(join.inputs(spark), STAR, partitions=PARTITIONS, memory="2m")
        writer = frame.writeStream.format("parquet").option("path", str(root / "sink"))
        query = join.start_with(writer)
        query.awaitTermination()
        assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == join.expected()
        return [o["customMetrics"] for o in operators(query)]

    said = run()
    assert layouts(join)[-1] == "split"
    assert int(said[0]["hotKeys"]) == 0 and int(said[-1]["hotKeys"]) == 1
    assert int(said[0]["partitionSkewMillionths"]) > 1_800_000
    assert int(said[-1]["partitionSkewMillionths"]) < 1_300_000, said[-1]
    assert sum(int(of["rowsTakenOver"]) for of in said) > 0 and sum(int(of["rowsFlushed"]) for of in said) > 0
    arrived = sum(int(of["aNumInputRows"]) for of in said)
    assert arrived == 8 * ROWS, "a row is counted once"
    skewed(join, 2, 0.5)
    assert {int(of["hotKeys"]) for of in run()} == {1}, "it stays as it was over a restart"
    skewed(join, 22, 0.0)
    said = run()
    assert int(said[-1]["hotKeys"]) == 0 and layouts(join)[-1] == "even", said[-1]
    assert int(said[-1]["resultsTotal"]) == join.expected().total()


@on_classic
def layouts_of_a_later_stage_reach_the_earlier_one(spark: Any, root: Path) -> None:
    """Results of a stage are divided by the layout of the next one: here many of them have one key."""
    join = StreamJoin(root, CHAIN)
    for number in range(9):
        dice = np.random.Generator(np.random.Philox(number))
        keys = np.arange(number * ROWS, (number + 1) * ROWS)
        add(join, "a", keys)
        links = dice.integers(2, KEYS, ROWS)
        links[dice.random(ROWS) < 0.6] = HOT
        join.add("b", pa.table({"k": pa.array(keys), "y": pa.array(links)}))
        join.add("c", pa.table({"z": pa.array(np.append(dice.integers(2, KEYS, 300), HOT if number == 0 else 2))}))
    frame = spark_mjoin.join(join.inputs(spark), CHAIN, partitions=PARTITIONS, plan="((a b) c)")
    assert join.collect(spark, frame) == join.expected()
    assert layouts(join, 0)[-1] == "split", "of the last stage, which Spark numbers first"
    assert layouts(join, 1)[-1] == "even", "keys of the first stage are unique"


@on_classic
def layouts_by_range_and_by_rate(spark: Any, root: Path) -> None:
    """From the fifth batch on. A batch that has failed runs again as it was planned."""
    for scheme, kind in (("range", "ranges"), ("rate", "assigned")):
        join = StreamJoin(root / scheme, STAR)
        for number in range(8):
            dice = np.random.Generator(np.random.Philox(number))
            keys = dice.integers(0, KEYS, 3 * ROWS)
            for part, alias in enumerate("abc"):  # each input has nearly all rows of a third of the keys
                add(join, alias, keys[(keys % 3 == part) | (dice.random(keys.size) < 0.02)])
        failing = [5]

        def keep(batch: Any, number: int, failing: list[int] = failing, root: Path = root / scheme) -> None:
            batch.write.mode("overwrite").parquet(str(root / f"out/{number}"))
            if number in failing:
                failing.remove(number)
                raise RuntimeError("the batch is done, and is not recorded")

        frame = spark_mjoin.join(join.inputs(spark), STAR, partitions=PARTITIONS, partitioning=scheme)
        query = join.start_with(frame.writeStream.foreachBatch(keep))
        assert "the batch is done" in failure_of(query.awaitTermination)
        join.start_with(frame.writeStream.foreachBatch(keep)).awaitTermination()
        assert layouts(join)[-1] == kind, layouts(join)
        assert rows(spark.read.parquet(str(root / scheme / "out" / "*")).toArrow()) == join.expected()


@on_classic
def layouts_are_explained(spark: Any, root: Path) -> None:
    join = skewed(StreamJoin(root, STAR), 1, 0.0)
    said = str(spark_mjoin.explain(join.inputs(spark), query=STAR, partitions=16, show=False))
    assert "one with more than 3.3% of all rows is split" in said, said
    said = str(spark_mjoin.explain(join.inputs(spark), query=STAR, partitions=16, splitHotKeys=False, show=False))
    assert "no key is split, however frequent, since option 'splitHotKeys' is false" in said, said
