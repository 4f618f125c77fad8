"""What must hold of `spark_mjoin.join` where it runs as a cube: see scenarios.py. duckdb has the answers."""

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

import spark_mjoin
from spark_mjoin import Stream
from tests.harness import Rows, duckdb_join, rows
from tests.jar.scenarios import BOTH, CLASSIC, Scenario, scenario
from tests.jar.stage_scenarios import CHAIN_OF_5, CYCLE, SELF, TREE, filled, inputs_of, written
from tests.jar.stream_scenarios import LIMITED, StreamJoin, failure_of, operators
from tests.spark.joins import CHAIN

CUBES: dict[str, Scenario] = {}
on_classic, on_both = scenario(*CLASSIC, of=CUBES), scenario(*BOTH, of=CUBES)


@on_both
def cube_of_a_chain(spark: Any, root: Path) -> None:
    """One operator with a task for each cell, and each row of an input counted once."""
    join = StreamJoin(root, query=CHAIN, options={**LIMITED, "partitions": "7", "plan": "cube"}).fill(files=3)
    writer = join.load(spark).writeStream.format("parquet").option("path", str(root / "sink"))
    query = join.start_with(writer)
    query.awaitTermination()
    assert rows(spark.read.parquet(str(root / "sink")).toArrow()) == join.expected()
    found = operators(query)
    assert all(o["numShufflePartitions"] == 6 for o in found), "two shares of a key, and three of the other"
    said = [o["customMetrics"] for o in found]
    assert int(said[-1]["resultsTotal"]) == join.expected().total()
    for alias, keys in (("a", ["k"]), ("b", ["k", "y"]), ("c", ["z"])):  # rows with a NULL among them are not sent
        matching = pa.concat_tables(join.tables[alias]).select(keys).drop_null().num_rows
        assert sum(int(m[f"{alias}NumInputRows"]) for m in said) == matching, alias
    whole = sum(t.num_rows for tables in join.tables.values() for t in tables)
    assert found[-1]["numRowsTotal"] > whole, "copies are in the state"


@on_classic
def cubes_of_other_graphs(spark: Any, root: Path) -> None:
    """Streams in small batches, and the same as tables."""
    for number, (query, aliases) in enumerate([(CHAIN_OF_5, "abcde"), (TREE, "abcd"), (CYCLE, "abc"), (SELF, "ab")]):
        join = filled(StreamJoin(root / str(number), query), aliases, files=2, size=14)
        found = join.collect(spark, spark_mjoin.join(join.inputs(spark), query, partitions=6, plan="cube"))
        assert found == join.expected() and found, query
        tables = {alias: spark.read.parquet(join.path(alias)) for alias in aliases}
        assert rows(spark_mjoin.join(tables, query, partitions=4, plan="cube").toArrow()) == join.expected(), query


@on_classic
def cubes_keep_to_a_budget_and_change_at_restarts(spark: Any, root: Path) -> None:
    """A batch fails on the way. Then the query resumes, with other shares, and in one task, with rows on disk."""
    options = {**LIMITED, "partitions": "4", "memory": "24k", "blockingThreshold": "1", "plan": "cube(k1=2, k2=2)"}
    join = filled(StreamJoin(root, CYCLE, options), "abc", files=3, size=200, values=40)
    batches: dict[int, Rows] = {}
    failing = [1]

    def keep(batch: Any, number: int) -> None:
        batches[number] = rows(batch.toArrow())
        if number in failing:
            failing.remove(number)
            raise RuntimeError("the batch is done, and is not recorded")

    def run(join: StreamJoin) -> Any:
        query = join.start_with(join.load(spark).writeStream.foreachBatch(keep))
        return query, failure_of(query.awaitTermination)

    _, said = run(join)
    assert "the batch is done" in said
    _, said = run(join.changed(plan="cube(k1=3)", partitions="3"))
    assert "was planned with partitions = 4 and plan = cube(k1=2, k2=2) and was not finished" in said, said
    query, said = run(join)
    assert said == "" and sum(batches.values(), Rows()) == join.expected(), said
    own = [o["customMetrics"] for o in operators(query)]
    assert sum(int(m["rowsFlushed"]) for m in own) > 0 and int(own[-1]["deferredRows"]) == 0
    for changed in ({"plan": "cube(k1=2, k3=3)", "partitions": "6"}, {"plan": "(a b c)"}, {"plan": "cube"}):
        filled(join, "abc", files=1, size=60, values=40)
        join = join.changed(**changed)
        query, said = run(join)
        assert said == "" and sum(batches.values(), Rows()) == join.expected(), (changed, said)
        assert sum(int(o["customMetrics"]["rowsTakenOver"]) for o in operators(query)) > 0, changed


def divisions(join: StreamJoin, operator: int = 0) -> dict[int, list[list[int]]]:
    """The shares by which batches were planned, by their number: of the last ones."""
    plans = {int(path.stem[5:]): path.read_text() for path in join.checkpoint.glob(f"state/{operator}/mjoin/plan-*")}
    bodies = {version - 1: json.loads(text[9:]) for version, text in plans.items()}
    return {number: body["plan"]["routing"]["layout"]["shares"] for number, body in bodies.items()}


SHARES = [[0, 4], [1, 2]], [[0, 2], [1, 4]]  # of eight cells


def divided(spark: Any, join: StreamJoin) -> tuple[Any, Any, Path]:
    """A chain in either shares. The second batch fails in front of the join as long as a file is there."""
    broken = join.root / "broken"
    broken.touch()

    def checked(n: int) -> int:
        if n >= 1000 and os.path.exists(str(broken)):
            raise OSError("a fault that the test wants")
        return n

    inputs = join.inputs(spark)
    inputs["a"] = inputs["a"].withColumn("x", F.udf(checked, "bigint")("x"))
    plans = [f"cube(k1={one}, k2={two})" for (_, one), (_, two) in SHARES]
    four, two = (spark_mjoin.join(inputs, CHAIN, plan=plan, partitions=8) for plan in plans)
    return four, two, broken


@on_both
def cubes_have_other_shares_from_the_batch_on_that_is_planned_with_them(spark: Any, root: Path) -> None:
    """The last batch of a run was planned and is not finished. The next run has other shares, and as many tasks."""
    join = StreamJoin(root, CHAIN).fill(files=4)
    four, two, broken = divided(spark, join)
    assert "a fault that the test wants" in failure_of(lambda: join.collect(spark, four))
    assert divisions(join) == {0: SHARES[0], 1: SHARES[0]}
    broken.unlink()
    assert join.collect(spark, two) == join.expected()
    assert divisions(join) == {0: SHARES[0], 1: SHARES[0], 2: SHARES[1], 3: SHARES[1]}


@on_classic
def cubes_do_not_share_an_exchange_that_each_divides_otherwise(spark: Any, root: Path) -> None:
    """A query with one join twice: two operators, to which Spark sends the same rows once."""
    join = StreamJoin(root, CHAIN).fill(files=2)
    four, two, broken = divided(spark, join)
    assert "a fault that the test wants" in failure_of(lambda: join.collect(spark, four.unionAll(four)))
    broken.unlink()
    (join.checkpoint / "state/1/mjoin/plan-000000000002.json").unlink()  # so that this operator plans anew
    said = failure_of(lambda: join.collect(spark, two.unionAll(two)))
    assert "the rows of one exchange" in said and "set spark.sql.exchange.reuse to false" in said, said
    spark.conf.set("spark.sql.exchange.reuse", "false")
    try:
        found = join.collect(spark, two.unionAll(two))
    finally:
        spark.conf.unset("spark.sql.exchange.reuse")
    assert found == join.expected() + join.expected()
    assert [divisions(join, operator)[1] for operator in (0, 1)] == list(SHARES)


@on_both
def cubes_with_windows_let_rows_go(spark: Any, root: Path) -> None:
    """Windows of some inputs alone, which stages do not have. A late row is counted once."""
    join = StreamJoin(root, CHAIN)
    start = dt.datetime(2026, 1, 1)
    for number in range(6):
        for place, alias in enumerate("abc"):
            at = [start + dt.timedelta(seconds=600 * number + (37 * i + 5 * place) % 600) for i in range(60)]
            if number == 5 and alias == "c":
                at[0] = start
            keys = {"k": [i % 6 for i in range(60)], "m": [i % 5 for i in range(60)], "n": range(60)}
            columns = {name: pa.array([60 * number + v if name == "n" else v for v in of]) for name, of in keys.items()}
            join.add(alias, pa.table(columns | {"at": pa.array(at, pa.timestamp("us", "UTC"))}))
    text = "SELECT a.n, b.n AS n1, c.n AS n2 FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    given = {"timestamp": "at", "watermark": "10 minutes"}
    windows = {"a": {"window": "5 minutes"}, "b": {}, "c": {"window": "5 minutes"}}
    inputs = {a: Stream(df, **given, **windows[a]) for a, df in join.inputs(spark).items()}  # type: ignore[arg-type]
    sink = root / "sink"
    writer = spark_mjoin.join(inputs, text, partitions=4, plan="cube(k1=2, k2=2)", expiry="active").writeStream
    query = join.start_with(writer.format("parquet").option("path", str(sink)))
    query.awaitTermination()
    youngest = "greatest(a.at, b.at, c.at)"
    inside = " AND ".join(f"{youngest} - {alias}.at < INTERVAL 5 MINUTES" for alias in "ac")
    late = f"NOT (c.at = TIMESTAMP '{start}' AND c.n = 300)"
    expected = rows(duckdb_join(f"{text} WHERE {inside} AND {late}", join.whole()))
    assert rows(spark.read.parquet(str(sink)).toArrow()) == expected and expected
    own = operators(query)
    assert sum(o["numRowsRemoved"] for o in own) > 0
    assert sum(int(o["customMetrics"]["rowsLate"]) for o in own) == 1


@on_classic
def cubes_are_explained(spark: Any, root: Path) -> None:
    """With their shares and copies, and what was rejected; what copies would break runs in one task."""
    join = filled(StreamJoin(root, CYCLE), "abc", files=1, size=14)
    known = {"expectedSelectivity": "a.b: 0.5, b.c: 0.5, a.c: 0.5", "show": False}
    found = spark_mjoin.explain(join.inputs(spark), query=CYCLE, partitions=8, **known)
    assert found.plan == "cube(k1=2, k2=2, k3=2)", found
    assert "STAGES: 1, in 8 tasks of a cube: cube(k1=2, k2=2, k3=2)" in str(found), found
    (stage,) = found.stages
    assert [each.copies for each in stage.shuffled] == [2, 2, 2]
    (stages, one) = found.rejected
    assert stages.plan.startswith("((") and stages.why == "one task has less to do than each of several"
    assert one.plan == "(a b c)" and one.bytes == one.busiest == stage.bytes / 2
    asked = spark_mjoin.explain(join.inputs(spark), query=CYCLE, partitions=8, plan="(a b c)", **known)
    assert [each.why for each in asked.rejected][1:] == ["option 'plan' says otherwise"], asked
    unique = {a: Stream(df, unique="i") if a == "a" else df for a, df in join.inputs(spark).items()}
    said = str(spark_mjoin.explain(unique, query=CYCLE, partitions=8, plan="cube", **known))
    assert "because: inputs make key promises" in said and "none: to one task" in said, said


@on_classic
def cubes_move_the_bytes_that_were_expected(spark: Any, root: Path) -> None:
    """Within 20 %."""
    size = 100_000
    rated = {a: Stream(df, expectedRowsPerSecond=size) for a, df in inputs_of(spark, root, size)}
    text = "SELECT a.x, b.x AS y, c.x AS z FROM a JOIN b ON a.k = b.k JOIN c ON c.m = b.m"
    known = {"partitions": 4, "plan": "cube(k1=2, k2=2)"}
    expected = spark_mjoin.explain(rated, query=text, seconds=1, show=False, **known)
    join, before = StreamJoin(root / "cube"), written(spark)
    assert join.collect(spark, spark_mjoin.join(rated, text, **known)).total() == size  # type: ignore[arg-type]
    wanted, moved = sum(stage.bytes for stage in expected.stages), written(spark) - before
    print(f"shuffled bytes: {wanted:,.0f} expected, {moved:,} written, {moved / wanted:.3f}", flush=True)
    assert 0.8 < moved / wanted < 1.2, (moved, wanted)
