"""Shuffled bytes of each plan of a join without a common key, and what the planner chooses.

    chain        a.x = b.x, b.y = c.y, c.z = d.z
    snowflake    f.d = d.d, d.e = e.e, f.g = g.g, g.h = h.h, f.i = i.i
    cycle        a.x = b.x, b.y = c.y, c.z = a.z

Each with several shapes of data, on `local-cluster[2,1,...]`, through `spark_mjoin.join`. For each of them it runs the
plans of stages (all, or the MOST_TREES that are expected to move the least, and the one that moves the most), the best
cube, and all in one task. For each plan it prints the bytes that the planner expects to be shuffled, those that Spark
counts as written for shuffles, and seconds. The planner knows rows and selectivities (`expectedRowsPerSecond`,
`expectedSelectivity`), as a user may. Spark does not compress what it shuffles, unless `--compress` says so: a copy has
as many bytes as its row then. All plans give the same number of results.

The bar: of the plans with several tasks, no other one moves fewer bytes than what the planner chooses, within 10 %. One
task moves each byte once, and so the fewest: it is shown, and is chosen where the tasks of other plans would have more
to do than it.

Inputs are tables, joined at once; `--streams` has them as streams of one micro-batch. Senders and shuffles are the
same.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_mjoin
from benchmarks.child import session
from benchmarks.engines import Engine
from spark_mjoin import Stream
from spark_mjoin.doors.streams import planned
from spark_mjoin.driver.cubes import best
from spark_mjoin.driver.staging import HORIZON_SECONDS, Expected
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.query import cubes, stages
from spark_mjoin.query import tree as trees

MOST_TREES = 5
WITHIN = 1.1
PAYLOAD = "v"


@dataclass(frozen=True)
class Shape:
    """A join and its data. Each key is drawn from the values of its name."""

    name: str
    rows: Mapping[str, int]
    keys: Mapping[str, str]  # the names of the columns of each input that are keys, one letter each
    values: Mapping[str, int]
    serial: str = ""  # inputs in which the first key is there once: 0, 1, 2 …
    classes: Mapping[str, Sequence[str]] = field(init=False)

    def __post_init__(self) -> None:
        having = {key: [alias for alias, keys in self.keys.items() if key in keys] for key in self.values}
        object.__setattr__(self, "classes", having)

    def scaled(self, scale: float) -> Shape:
        rows, values = ({name: max(1, round(scale * n)) for name, n in of.items()} for of in (self.rows, self.values))
        return replace(self, rows=rows, values=values)

    @property
    def query(self) -> str:
        equal = [f"{a}.{key} = {b}.{key}" for key, of in self.classes.items() for a, b in pairwise(of)]
        shown = ", ".join(f"{alias}.{PAYLOAD} AS {PAYLOAD}{alias}" for alias in self.rows)
        return f"SELECT {shown} FROM {', '.join(self.rows)} WHERE {' AND '.join(equal)}"

    @property
    def selectivities(self) -> str:
        pairs = {
            (a, b): 1 / self.values[key] for key, of in self.classes.items() for a, b in combinations(sorted(of), 2)
        }
        return ", ".join(f"{a}.{b}: {share:.9g}" for (a, b), share in pairs.items())

    def write(self, directory: Path) -> None:
        """Keys and payload are random words."""
        dice = np.random.default_rng(7)
        words = {key: dice.integers(-(2**63), 2**63, size, dtype=np.int64) for key, size in self.values.items()}
        for alias, rows in self.rows.items():
            columns = {PAYLOAD: dice.integers(-(2**63), 2**63, rows, dtype=np.int64)}
            for key in self.keys[alias]:
                own = alias in self.serial and key == self.keys[alias][0]
                columns[key] = words[key][dice.permutation(self.values[key])[:rows] if own else
                                          dice.integers(0, self.values[key], rows)]  # fmt: skip
            (directory / alias).mkdir(parents=True)
            pq.write_table(pa.table(columns), directory / alias / "0.parquet")


CHAIN = {"a": "x", "b": "xy", "c": "yz", "d": "z"}
CYCLE = {"a": "xz", "b": "xy", "c": "yz"}
SNOWFLAKE = {"f": "dgi", "d": "de", "e": "e", "g": "gh", "h": "h", "i": "i"}


def alike(rows: int, keys: Mapping[str, str], values: int) -> Mapping[str, Mapping[str, int]]:
    return {"rows": dict.fromkeys(keys, rows), "values": dict.fromkeys(sorted(set("".join(keys.values()))), values)}


def star_of(rows: Mapping[str, int], values: Mapping[str, int], name: str) -> Shape:
    return Shape(name, rows, SNOWFLAKE, values, serial="deghi")


SHAPES = (
    Shape("chain of 4, uniform", keys=CHAIN, **alike(40_000, CHAIN, 40_000)),
    Shape("chain of 4, one small input", {"a": 400, "b": 60_000, "c": 60_000, "d": 60_000}, CHAIN,
          {"x": 60_000, "y": 60_000, "z": 60_000}),
    Shape("chain of 4, results that grow", keys=CHAIN, **alike(12_000, CHAIN, 2_000)),
    Shape("cycle of 3, few pairs", keys=CYCLE, **alike(60_000, CYCLE, 240_000)),
    Shape("cycle of 3, many pairs", keys=CYCLE, **alike(20_000, CYCLE, 1_000)),
    star_of({"f": 60_000, "d": 3000, "e": 300, "g": 3000, "h": 300, "i": 3000},
            {"d": 3000, "e": 300, "g": 3000, "h": 300, "i": 3000}, "snowflake of 6, a large fact table"),
    star_of({"f": 30_000, "d": 300, "e": 300, "g": 30_000, "h": 30_000, "i": 30_000},
            {"d": 30_000, "e": 300, "g": 30_000, "h": 30_000, "i": 30_000},
            "snowflake of 6, large dimensions and a filter"),
)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    plan: str
    expected: float
    written: int
    seconds: float
    results: int
    parallel: bool


class Bench:
    def __init__(self, spark: Any, root: Path, partitions: int, streams: bool) -> None:
        self._spark, self._root, self._partitions, self._streams = spark, root, partitions, streams

    def inputs(self, shape: Shape, directory: Path) -> dict[str, Stream]:
        out = {}
        for alias, rows in shape.rows.items():
            path = str(directory / alias)
            table = self._spark.read.parquet(path)
            frame = self._spark.readStream.schema(table.schema).parquet(path) if self._streams else table
            out[alias] = Stream(frame, expectedRowsPerSecond=rows / HORIZON_SECONDS)
        return out

    def run(self, shape: Shape) -> tuple[list[Measured], str]:
        """The figures of each plan, and the one that is chosen."""
        directory = Path(tempfile.mkdtemp(dir=self._root))
        shape.write(directory)
        inputs = self.inputs(shape, directory)
        known = {"partitions": self._partitions, "expectedSelectivity": shape.selectivities}
        made = planned(inputs, shape.query, None, known).engine  # type: ignore[arg-type]
        assert made is not None
        aliases, expected = [i.alias for i in made.spec.inputs], made.expected(HORIZON_SECONDS)
        own = made.settings[0].shares
        chosen = cubes.render(own) if own else trees.render(made.stages[-1].tree, aliases)
        plans = dict(self._plans(expected, aliases))
        assert chosen in plans, f"{chosen} is among {sorted(plans)}"
        found = [self._measured(shape, inputs, plan, bytes, known) for plan, bytes in plans.items()]
        shutil.rmtree(directory)
        return found, chosen

    def _plans(self, expected: Expected, aliases: Sequence[str]) -> Iterator[tuple[str, float]]:
        able = [(sum(expected.moved(tree)), trees.render(tree, aliases)) for tree in every_tree(expected.spec)]
        able.sort()
        for moved, plan in able if len(able) <= MOST_TREES + 1 else [*able[:MOST_TREES], able[-1]]:
            yield plan, moved
        shares = best(expected.cube, self._partitions)
        yield cubes.render(shares), expected.cube.moved(dict(shares))
        yield trees.render(trees.single(len(aliases)), aliases), expected.whole_bytes

    def _measured(
        self, shape: Shape, inputs: Mapping[str, Stream], plan: str, expected: float, known: Mapping[str, Any]
    ) -> Measured:
        joined = spark_mjoin.join(inputs, shape.query, plan=plan, **known)
        before, started = written(self._spark), time.perf_counter()
        results = self._stream(joined) if self._streams else joined.count()
        seconds = time.perf_counter() - started
        moved = written(self._spark) - before
        return Measured(plan, expected, moved, seconds, results, plan.count("(") > 1 or "=" in plan)

    def _stream(self, joined: Any) -> int:
        directory = tempfile.mkdtemp(dir=self._root)
        writer = joined.writeStream.format("noop").option("checkpointLocation", directory)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.sink.numOutputRows for progress in query.recentProgress)


def every_tree(spec: JoinSpec) -> list[Tree]:
    """All plans whose joins have a key in common each: from parts to larger parts, in every way."""
    found, waiting = set[Tree](), {frozenset[Tree](range(len(spec.inputs)))}
    while waiting:
        following: set[frozenset[Tree]] = set()
        for parts in waiting:
            if len(parts) == 1:
                found |= parts
                continue
            for key_class in range(len(spec.classes)):
                able = [part for part in parts if key_class in stages.classes_of(spec, trees.inputs_below(part))]
                for size in range(2, len(able) + 1):
                    for group in combinations(sorted(able, key=str), size):
                        following.add(parts - set(group) | {trees.normal(group)})
        waiting = following
    return list(found)


def written(spark: Any) -> int:
    """The bytes that tasks have written for shuffles so far."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(number).totalShuffleWrite() for number in range(executors.size()))


def shown(shape: Shape, found: Sequence[Measured], chosen: str) -> bool:
    """Prints what was measured; whether the planner's choice meets the bar."""
    print(f"\n{shape.name}: {found[0].results:,} results\n")
    print("| plan | expected MB | shuffled MB | of the expected | s | |")
    print("|---|---|---|---|---|---|")
    for each in found:
        figures = f"{each.expected / 1e6:.2f} | {each.written / 1e6:.2f} | {each.written / each.expected:.3f}"
        mark = "chosen" if each.plan == chosen else "" if each.parallel else "one task"
        print(f"| `{each.plan}` | {figures} | {each.seconds:.1f} | {mark} |")
    assert len({each.results for each in found}) == 1, "all plans give the same results"
    mine = next(each for each in found if each.plan == chosen)
    least = min((each for each in found if each.parallel), key=lambda each: each.written)
    ratio = mine.written / least.written
    met = verdict(ratio <= WITHIN)
    print(f"\nThe choice moves {ratio:.3f} times the bytes of `{least.plan}`: {met} the bar of {WITHIN}", flush=True)
    return ratio <= WITHIN


def verdict(met: bool) -> str:
    return "meets" if met else "MISSES"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.candidates", description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--only", default="", help="shapes with this in their names")
    parser.add_argument("--scale", type=float, default=1.0, help="of rows, and of values of keys")
    parser.add_argument("--compress", action="store_true", help="what is shuffled, as Spark does by default")
    parser.add_argument("--streams", action="store_true", help="inputs are streams")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="mjoin-candidates-"))
    conf = {"spark.executor.memory": "1g", "spark.shuffle.compress": str(options.compress).lower()}
    engine = Engine("candidates", "streams", "", 1, driver_memory="1g", jar=True, conf=conf)
    spark = session(engine, str(root), master="local-cluster[2,1,1024]")
    try:
        bench = Bench(spark, root, options.partitions, options.streams)
        shapes = [shape.scaled(options.scale) for shape in SHAPES if options.only in shape.name]
        bench.run(SHAPES[0].scaled(0.01))  # so that workers are there
        met = [shown(shape, *bench.run(shape)) for shape in shapes]
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    sys.exit(0 if all(met) else 1)


if __name__ == "__main__":
    main()
