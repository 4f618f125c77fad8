"""The generated joins of tests/oracle through `spark_mjoin.join`, on Spark: as tables, as streams, and mixed.

A case comes in micro-batches, one file of each input for each. Some end the query in between, and resume it with other
partitions. duckdb has the answers, or the definition of windows and promises.

Windows in rows count arrivals, and a shuffle mixes those of a micro-batch; so their cases have one row of each input in
a micro-batch. Cases of key promises are without `clustered`, which this door refuses.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

import spark_mjoin
from spark_mjoin.errors import QueryError
from tests.doors.test_stages import spec_of
from tests.examples import FACTOR
from tests.harness import Rows, duckdb_join, rows
from tests.jar.scenarios import CLASSIC, Scenario, scenario
from tests.jar.stream_scenarios import StreamJoin
from tests.oracle.cases import Case, cases
from tests.oracle.promises import PromiseCase, promise_cases
from tests.oracle.windows import CHAIN, Given, WindowCase, window_cases

ORACLES: dict[str, Scenario] = {}
on_classic = scenario(*CLASSIC, of=ORACLES)

MEMORY = st.sampled_from(["", "", "1", "20k"])
HOW = st.fixed_dictionaries(  # what results do not depend on
    {
        "access": st.sampled_from(["auto", "hash", "scan"]),
        "streamScheduling": st.sampled_from(["auto", "random", "priority"]),
        "flush": st.sampled_from(["adaptive", "random", "largest"]),
    }
)
IN_A_CUBE: Any = {"partitions": 4, "plan": "cube"}
IN_TIME = st.tuples(st.just("time"), st.sampled_from([1, 2, 3, 5, 10, 30]))
IN_ROWS = st.tuples(st.just("rows"), st.sampled_from([1, 2, 3]))


def tried(count: int, check: Callable[..., None], *strategies: st.SearchStrategy[Any]) -> None:
    """Let `check` see so many generated cases, more or fewer as `tests.examples` says. They take seconds each.

    There are few in `make test`, and always the same. `make fuzz` draws others.
    """
    few = settings(
        max_examples=max(2, round(count * FACTOR)),
        deadline=None,
        database=None,
        derandomize=FACTOR <= 1,
        phases=[Phase.generate],  # to make a case small takes minutes; the failure shows it, and how to repeat it
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    few(given(*strategies)(check))()


@dataclass
class Running:
    """Where cases run. Each gets a directory of its own."""

    spark: Any
    root: Path
    numbers: Any

    def collected(
        self,
        scripts: Mapping[str, Sequence[pa.Table]],
        query: str,
        options: Mapping[str, str],
        restarts: Mapping[int, str],
        tables: Sequence[str] = (),
    ) -> Rows:
        """All results of a join of streams, and of tables besides; restarts: partitions, by batches after which."""
        root = self.root / str(next(self.numbers))
        join = StreamJoin(root, query, {**options, "maxFilesPerTrigger": "1", "stateLocation": ""})
        for alias in tables:
            join.formats[alias] = {"format": "parquet", "static": "true"}
            join.add(alias, pa.concat_tables(scripts[alias]))
        for batch in range(max(len(script) for script in scripts.values())):
            for alias, script in scripts.items():
                if alias not in tables:
                    join.add(alias, script[batch] if batch < len(script) else script[0].slice(0, 0))
            if batch in restarts:
                join.run(self.spark)
                join = join.changed(partitions=restarts[batch])
        join.run(self.spark)
        return join.collected


@st.composite
def restarts(draw: st.DrawFn, splits: bool) -> dict[int, str]:
    number = draw(st.sampled_from([0, 1, 1, 2]))
    return {draw(st.integers(0, 3)): draw(st.sampled_from("123")) if splits else "1" for _ in range(number)}


def is_for_cubes(case: Case) -> bool:
    return spec_of(case).star_class is None


def answer(case: Case) -> Rows:
    return rows(duckdb_join(case.query, {alias: case.table(alias) for alias in case.scripts}))


@on_classic
def streams_oracle_of_tables(spark: Any, root: Path) -> None:
    def check(case: Case) -> None:
        # In one piece: of a table of several, Spark takes no rows behind an empty piece.
        inputs = {alias: spark.createDataFrame(case.table(alias).combine_chunks()) for alias in case.scripts}
        joined = spark_mjoin.join(
            inputs, case.query, **(IN_A_CUBE if is_for_cubes(case) else {"partitions": case.partitions})
        )
        assert rows(joined.toArrow()) == answer(case)

    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")  # what timestamps without a zone are, in Arrow's tables
    try:
        tried(20, check, cases())
    finally:
        spark.conf.unset("spark.sql.timestampType")


@on_classic
def streams_oracle(spark: Any, root: Path) -> None:
    running = Running(spark, root, itertools.count())

    def check(case: Case, memory: str, more: dict[str, str], data: Any) -> None:
        options = {"partitions": str(case.partitions), "memory": memory, **more}
        cube = is_for_cubes(case) and data.draw(st.booleans())
        if cube:
            options |= {"plan": "cube", "partitions": data.draw(st.sampled_from("2346"))}
        event("cube" if cube else "star" if case.star else "one task")
        again = {} if memory and not cube else data.draw(restarts(case.star or cube))
        assert running.collected(case.scripts, case.query, options, again) == answer(case)

    tried(20, check, cases(most_inputs=4), MEMORY, HOW, st.data())


@on_classic
def streams_oracle_with_tables(spark: Any, root: Path) -> None:
    running = Running(spark, root, itertools.count())

    def check(case: Case, data: Any) -> None:
        aliases = sorted(case.scripts)
        tables = data.draw(st.lists(st.sampled_from(aliases), unique=True, min_size=1, max_size=len(aliases) - 1))
        is_alone = len(aliases) - len(tables) == 1
        options = {} if is_alone else {"partitions": str(case.partitions)}
        again = {} if is_alone else data.draw(restarts(case.star))
        try:
            found = running.collected(case.scripts, case.query, options, again, tables)
        except QueryError as e:
            assume("connected by tables only" not in str(e))
            raise
        event("one stream" if is_alone else "streams")
        assert found == answer(case)

    tried(25, check, cases(most_inputs=4), st.data())


@on_classic
def streams_oracle_of_windows(spark: Any, root: Path) -> None:
    running = Running(spark, root, itertools.count())

    def check(case: WindowCase, memory: str) -> None:
        given = {**case.options(), "memory": memory}
        if case.shape == CHAIN and len(case.inputs) > 2:
            given |= {name: str(value) for name, value in IN_A_CUBE.items()}
        found = running.collected(case.scripts(), case.query(), given, {})
        assert numbers(found, len(case.inputs)) == case.results()

    tried(15, check, window_cases(windows=IN_TIME), MEMORY)


@on_classic
def streams_oracle_of_windows_in_rows(spark: Any, root: Path) -> None:
    running = Running(spark, root, itertools.count())

    def check(case: WindowCase) -> None:
        # Spark filters rows before the join, so they do not count here; in the format they do.
        case = replace(case, inputs=tuple(map(one_by_one, case.inputs)), partitions=1, filtered=False)
        found = running.collected(case.scripts(), case.query(), case.options(), {})
        assert numbers(found, len(case.inputs)) == case.results()

    tried(8, check, window_cases(most_inputs=2, windows=IN_ROWS))


def one_by_one(input: Given) -> Given:
    """Its first rows, one in each batch."""
    return replace(input, batches=tuple((row,) for batch in input.batches for row in batch)[:6] or ((),))


@on_classic
def streams_oracle_of_promises(spark: Any, root: Path) -> None:
    running = Running(spark, root, itertools.count())

    def check(case: PromiseCase, memory: str) -> None:
        case = replace(case, inputs=tuple(replace(input, clustered=False) for input in case.inputs))
        assume(any(input.punctuated or input.unique or input.ordered for input in case.inputs))
        found = running.collected(case.scripts(), case.query(), {**case.options(), "memory": memory}, {})
        assert numbers(found, len(case.inputs)) == case.results()

    tried(15, check, promise_cases(emit=False), MEMORY)


def numbers(found: Rows, inputs: int) -> Rows:
    """The numbers of the rows in results, which are in the first columns."""
    return sum((Rows({result[:inputs]: count}) for result, count in found.items()), Rows())
