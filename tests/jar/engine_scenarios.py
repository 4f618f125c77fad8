"""What the engine and the session do for `spark_mjoin.join`, in a session with the jar: see stream_scenarios.py.

Shedding, orders that adapt, idle inputs; the session's ANSI mode; what is refused.
"""

import datetime as dt
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_mjoin
from spark_mjoin import Stream
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory
from tests.harness import Rows, rows
from tests.jar.scenarios import BOTH, CLASSIC, Scenario, scenario
from tests.jar.stream_scenarios import LIMITED, StreamJoin, failure_of, operators, refused

ENGINE: dict[str, Scenario] = {}
on_classic, on_both = scenario(*CLASSIC, of=ENGINE), scenario(*BOTH, of=ENGINE)

PAIR = "SELECT a.k, a.x, b.y FROM a JOIN b ON a.k = b.k"
ANSI, CASE = "spark.sql.ansi.enabled", "spark.sql.caseSensitive"


# --- the session's settings ------------------------------------------------------------------------------------------

ZERO = {  # what divides by zero, or casts what is no number, for every other row of `a`
    "filter": "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k WHERE 100 / (a.x % 2) > 0",
    "key": "SELECT a.x, b.y FROM a JOIN b ON CAST(concat(a.k, if(a.x % 2 = 0, 'x', '')) AS BIGINT) = b.k",
    "output": "SELECT a.x, b.y, 100 / (a.x % 2) AS q FROM a JOIN b ON a.k = b.k WHERE 1 / (b.y - b.y) IS NULL",
}


@on_both
def streams_follow_the_ansi_mode(spark: Any, root: Path) -> None:
    """An error with it, NULL without, and so across restarts."""
    before = spark.conf.get(ANSI)
    try:
        for name, query in ZERO.items():
            join = StreamJoin(root / name, query).fill(files=2)
            del join.tables["c"]

            def run(is_ansi: bool, join: StreamJoin = join) -> Rows:
                spark.conf.set(ANSI, str(is_ansi).lower())
                return join.collect(spark, spark_mjoin.join(join.inputs(spark), join.query, partitions=2))

            run(False)
            join.add("a", join.tables["a"][0])
            join.add("b", join.tables["b"][0])
            said = failure_of(lambda run=run: run(True))
            assert "DIVIDE_BY_ZERO" in said or "CAST_INVALID_INPUT" in said, (name, said)
            found = run(False)
            for alias in "ab":
                spark.read.parquet(join.path(alias)).createOrReplaceTempView(alias)
            assert found == rows(spark.sql(query).toArrow()) and found, name
    finally:
        spark.conf.set(ANSI, before)


@on_both
def streams_refuse_what_they_cannot_get_right(spark: Any, root: Path) -> None:
    join = StreamJoin(root, PAIR).fill(files=1)
    a, b = (join.inputs(spark)[alias] for alias in "ab")

    def said(inputs: dict[str, Any], query: str, **options: Any) -> str:
        return refused(lambda: spark_mjoin.join(inputs, query, **options))

    assert "'emitPunctuations' is refused: " in said({"a": a, "b": b}, PAIR, emitPunctuations="true")
    options = {**join.all_options(), "emitPunctuations": "true"}
    assert "'emitPunctuations' is refused: " in refused(lambda: spark_mjoin.load(spark, options))
    clustered = said({"a": Stream(a, clustered="k"), "b": b}, PAIR)
    assert "'clustered' of input 'a' is about the order of rows, and Spark's shuffle does not keep it" in clustered

    types = {"INTERVAL '2' MONTH": "interval month", "parse_json('1')": "variant", "'s' COLLATE UTF8_LCASE": "collate"}
    for value, shown in types.items():
        odd = spark.sql(f"SELECT 1L AS k, {value} AS v, array({value}) AS vs")
        for column in ("v", "vs"):
            why = said({"a": a, "b": odd}, f"SELECT a.x, b.{column} FROM a JOIN b ON a.k = b.{column}")
            assert f"column '{column}' of input 'b' is" in why and shown in why.lower() and "CAST it" in why, why
        both = {"a": spark.sql("SELECT 1L AS k"), "b": odd}
        assert "column 'v' of input 'b' is" in said(both, "SELECT b.v FROM a JOIN b ON a.k = b.k")

    spark.conf.set(CASE, "true")
    try:
        assert f"'{CASE}' is true, and the join does not tell names apart by case" in said({"a": a, "b": b}, PAIR)
    finally:
        spark.conf.set(CASE, "false")


# --- the engine ------------------------------------------------------------------------------------------------------


@on_classic
def streams_shed_and_do_so_again_after_a_restart(spark: Any, root: Path) -> None:
    """Every result is one of the whole join. A batch that is run again, for an action or a restart, is the same."""
    shedding = {"overflow": "shed", "maxDelay": "1 millisecond", "stateLocation": ""}
    join = StreamJoin(root, PAIR, options={**LIMITED, **shedding})
    join.fill(files=6, rows=2000, keys=1000)
    del join.formats["c"]
    seen: dict[int, list[Rows]] = {}

    def read(batch: Any, number: int) -> None:
        seen.setdefault(number, []).extend(rows(batch.toArrow()) for _ in range(2))
        if number == 4 and len(seen[4]) == 2:
            raise RuntimeError("after batch 4 was read, before Spark has recorded it")

    first = join.start_with(join.load(spark).writeStream.foreachBatch(read))
    assert "after batch 4 was read" in failure_of(first.awaitTermination)
    query = join.start_with(join.load(spark).writeStream.foreachBatch(read))
    query.awaitTermination()
    assert [len(of) for _, of in sorted(seen.items())] == [2, 2, 2, 2, 4, 2]
    assert all(one == of[0] for of in seen.values() for one in of)
    found, all_of_them = sum((of[0] for of in seen.values()), Rows()), join.expected()
    assert found < all_of_them and found
    shown = [o["customMetrics"] for q in (first, query) for o in operators(q)]
    assert sum(int(each["rowsShed"]) for each in shown) > 0
    assert int(shown[-1]["resultsTotal"]) == found.total()
    assert min(int(each["estimatedRecallMillionths"]) for each in shown) < 10**6
    assert min(int(each["aAdmittedFractionMillionths"]) for each in shown) < 10**6


@on_classic
def streams_probe_in_orders_that_adapt(spark: Any, root: Path) -> None:
    """First most rows of `a` have no match in `b`, then in `c`. The plans that are recorded show it."""
    join = StreamJoin(root, options={**LIMITED, "partitions": "2"})
    for number in range(8):
        for alias, column in {"a": "x", "b": "y", "c": "z"}.items():
            sparse = alias == ("b" if number < 4 else "c")
            keys = [(7 * i + 1000 * number) % 4000 * (50 if sparse else 1) for i in range(600)]
            join.add(alias, pa.table({"k": pa.array(keys, pa.int64()), column: pa.array(range(600), pa.int64())}))
    orders = set()

    def read(batch: Any, number: int) -> None:
        join.batches[number] = rows(batch.toArrow())
        newest = max((join.checkpoint / "state" / "0").rglob("plan-*.json"))
        planned = checked_json.read(Directory(str(newest.parent)), newest.name)["plan"]
        orders.add(str(planned.get("orders")))

    join.start_with(join.load(spark).writeStream.foreachBatch(read)).awaitTermination()
    assert join.collected == join.expected() and len(orders - {"None"}) > 1, orders


@on_classic
def streams_do_not_wait_for_an_idle_input(spark: Any, root: Path) -> None:
    """Rows of `a` go when the others have passed them, though `b` has said nothing for a while."""
    join, start = StreamJoin(root, PAIR), dt.datetime(2026, 1, 1)

    def add(alias: str, column: str, second: int) -> None:
        at = pa.array([start + dt.timedelta(seconds=second)] * 10, pa.timestamp("us", "UTC"))
        numbers = pa.array(range(10), pa.int64())
        join.add(alias, pa.table({"k": numbers, column: numbers, "at": at}))

    add("a", "x", 0)
    add("b", "y", 0)
    inputs = {
        alias: Stream(frame, timestamp="at", watermark="0 seconds", window="10 seconds")
        for alias, frame in join.inputs(spark).items()
    }
    for idle, is_kept in (("1 hour", True), ("500 milliseconds", False)):
        frame = spark_mjoin.join(inputs, PAIR, idleTimeout=idle, expiry="active")
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(root / idle.replace(" ", "-")))
        query = writer.trigger(processingTime="0 seconds").start()
        query.processAllAvailable()
        for second in (100, 200, 300, 400):
            time.sleep(0.7)
            add("a", "x", second)
            query.processAllAvailable()
        found = operators(query)[-1]["numRowsTotal"]
        query.stop()
        assert (found > 20) == is_kept, (idle, found)
