"""Generated expressions against Spark's own answer: types, values, and for which rows they fail."""

from __future__ import annotations

import logging
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from spark_mjoin.config import Options
from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.casts import type_name
from spark_mjoin.mjoin.expressions import columns_of, evaluate, holds
from spark_mjoin.mjoin.registry import FUNCTIONS
from spark_mjoin.model import Expr, JoinSpec
from spark_mjoin.query import translate
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.sql import parse_statements
from spark_mjoin.query.translate import Translator
from tests.examples import FACTOR
from tests.feeds import ALL_ROWS, OWN_ROWS
from tests.harness import fed, run, scripted
from tests.harness import rows as rows_of
from tests.oracle.expressions import COLUMNS, LITERALS, ROWS, Generated, Generator, table, templates
from tests.oracle.spark_answers import Answer, answers, row_by_row

EXPRESSIONS = 1000
PART = 500  # that one run of Spark evaluates
# Types of operands are found by trying, so most of what is tried is refused, and should be: 59 to 75 % in 150 parts of
# 300 expressions, 52 to 69 % in 150 of 500. A function may get nothing that it takes: `div` in 11 of 150 small parts.
ENOUGH, MOST_REFUSED, MOST_UNTRIED = 300, 0.8, 3
NOT_HERE = (
    "not supported here"  # a value, seen only when it comes, for which Spark has an answer and the engine has none
)
KEPT = Path(os.environ.get("TMPDIR", "/tmp")) / "spark-mjoin-expressions"


@pytest.fixture(autouse=True)
def feed() -> None:
    """Expressions are evaluated here without any; where keys are joined, the test goes through both kinds itself."""


# --- the engine ------------------------------------------------------------------------------------------------


def plan(query: str, schema: pa.Schema, sources: str = "tu") -> JoinSpec:
    options = {"query": query} | {f"source.{alias}.format": "parquet" for alias in sources}
    return plan_join(Options.parse(options), [schema, schema])


def planned(sqls: Sequence[str]) -> list[Expr]:
    """The expressions as a query of the product has them in its select list."""
    schema = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
    listed = ", ".join(f"{sql} AS c{i}" for i, sql in enumerate(sqls))
    return [column.expr for column in plan(f"SELECT {listed} FROM t JOIN u ON t.i64 = u.i64", schema).output]


def ours(expr: Expr, rows: pa.Table) -> Answer:
    """The engine's answer; `failed` is NULL for rows of which it says that it cannot give Spark's."""
    columns = {name: rows.column(name).chunk(0) for name in rows.column_names}

    def over(start: int, size: int) -> tuple[pa.Array, list[bool | None]]:
        """Over some of the rows, halved until those that fail are found."""
        try:
            return evaluate(expr, lambda c: columns[c.name].slice(start, size), size), [False] * size
        except QueryError as e:
            if size == 1:
                return over(0, 0)[0].take(pa.array([None], pa.int64())), [None if NOT_HERE in str(e) else True]
        halves = over(start, size // 2), over(start + size // 2, size - size // 2)
        return pa.concat_arrays([values for values, _ in halves]), halves[0][1] + halves[1][1]

    size = rows.num_rows if columns_of(expr) else 1
    values, failed = over(0, size)
    if size < rows.num_rows:  # a constant
        values, failed = values.take(pa.array([0] * rows.num_rows)), failed * rows.num_rows
    return Answer(values, pa.array(failed, pa.bool_()))


# --- comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    made: Generated
    what: str

    def __str__(self) -> str:
        return f"{self.made.sql}\n    {self.what}"


def words(values: pa.Array) -> pa.Array:
    """Values that are equal only if nothing tells them apart: -0.0 is not 0.0, all NaN are one."""
    if pa.types.is_floating(values.type):
        width = pa.int32() if values.type == pa.float32() else pa.int64()
        numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
        numbers[np.isnan(numbers)] = np.nan
        return pa.array(numbers.view(width.to_pandas_dtype()), mask=values.is_null().to_numpy(zero_copy_only=False))
    if pa.types.is_temporal(values.type):
        return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    if pa.types.is_string(values.type):
        return values.view(pa.binary())
    return values


def difference(made: Generated, mine: Answer, spark: Answer, rows: pa.Table) -> str | None:
    if spark.refused:
        return f"Spark refuses it: {spark.refused[:200]}"
    if spark.values is None:
        return None if pc.all(pc.fill_null(mine.failed, True)).as_py() else "in Spark it fails whatever the row"
    if not mine.values.type.equals(spark.values.type):
        return f"the type is {mine.values.type}, and {spark.values.type} in Spark"
    a, b = words(mine.values).to_pylist(), words(spark.values).to_pylist()
    for row in range(rows.num_rows):
        mine_fails, spark_fails = mine.failed[row].as_py(), spark.failed[row].as_py()
        if mine_fails is None or (mine_fails and spark_fails):
            continue
        if spark_fails and _CONCATENATES.search(made.sql):
            continue  # generated code, as queries run, does not evaluate what is behind a NULL, and this mode does
        if mine_fails != spark_fails or a[row] != b[row]:
            used = {n: _shown(rows.column(n)[row]) for n in COLUMNS if re.search(rf"\bt\.{n}\b", made.sql)}
            answer = [
                "an error" if f else _shown(v)
                for f, v in ((mine_fails, mine.values[row]), (spark_fails, spark.values[row]))
            ]
            return f"{answer[0]}, and in Spark {answer[1]}, for {used}"
    return None


_CONCATENATES = re.compile(r"\bconcat\(|\|\|")


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # beyond what Python has a date for
        return repr(words(pa.repeat(value, 1))[0].as_py())


def differences(spark: SparkSession, view: DataFrame, rows: pa.Table, batch: Sequence[Generated]) -> list[Difference]:
    found = []
    said = answers(spark, view, [made.sql for made in batch])
    for made, expr, answer in zip(batch, planned([m.sql for m in batch]), said, strict=True):
        what = difference(made, ours(expr, rows), answer, rows)
        if what:
            found.append(Difference(made, what))
    return found


def view_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    schema = ", ".join(f"{field.name} {type_name(field.type)}" for field in rows.schema)
    return spark.createDataFrame(rows, schema).alias("t")


def smallest(spark: SparkSession, view: DataFrame, rows: pa.Table, found: Sequence[Difference]) -> list[Difference]:
    """The parts that differ by themselves, instead of what contains them."""
    parts = {part.sql: part for d in found for part in d.made.all_parts()}
    every = {d.made.sql: d for d in differences(spark, view, rows, list(parts.values()))}
    return [d for d in every.values() if not any(p.sql in every for p in d.made.all_parts()[1:])]


# --- tests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(spark_session: SparkSession) -> Iterator[SparkSession]:
    logging.getLogger("SQLQueryContextLogger").disabled = True  # of what Spark refuses
    with row_by_row(spark_session):
        yield spark_session


@pytest.fixture
def compiled(evaluated: SparkSession) -> Iterator[SparkSession]:
    """With whole stages of generated code, as queries run."""
    mode = "spark.sql.codegen.wholeStage"
    before = evaluated.conf.get(mode)
    evaluated.conf.set(mode, "true")
    evaluated.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")  # `evaluated` puts it back
    yield evaluated
    evaluated.conf.set(mode, before)


def test_every_function_of_the_engine_has_a_spelling() -> None:
    assert set(FUNCTIONS) - set(templates()) == {"later by"}, "that one is for windows over stages alone"


def test_every_construct_that_is_translated_is_generated() -> None:
    """The templates reach every entry of the translator's tables, whatever sqlglot calls it."""
    tables = (translate.BINARY, translate.UNARY, translate.DATE_PARTS, translate.VARIADIC, Translator.RULES)
    met = set()
    for sql in [*LITERALS, *(t for spelled in templates().values() for t in spelled), "-t.i8"]:
        tree = parse_statements(f"SELECT {sql.format(*('t.i8',) * 5)}")[0]
        met |= {type(node) for node in tree.walk()}
    # Anonymous is whatever sqlglot has no class for.
    assert {kind.__name__ for table in tables for kind in table} - {kind.__name__ for kind in met} == {"Anonymous"}


def a_seed() -> int:
    return int(os.environ.get("SPARK_MJOIN_SEED") or random.randrange(2**32))


def fail(seed: int, report: str) -> None:
    """Fail with the report, and keep it."""
    KEPT.mkdir(exist_ok=True)
    kept = KEPT / f"{seed}.txt"
    kept.write_text(report)
    pytest.fail(f"{report}\n(kept in {kept}; SPARK_MJOIN_SEED={seed} runs it again)", pytrace=False)


@pytest.mark.parametrize("part", range(max(1, round(FACTOR * EXPRESSIONS / PART))))
def oracle_generated_expressions(part: int, evaluated: SparkSession) -> None:
    seed = a_seed() + part
    generator = Generator(seed)
    made = generator.expressions(min(PART, round(FACTOR * EXPRESSIONS)))
    if len(made) >= ENOUGH:
        assert generator.refused_share < MOST_REFUSED
        assert len(generator.never_accepted()) <= MOST_UNTRIED
    rows = table(seed)
    view = view_of(evaluated, rows)
    said = answers(evaluated, view, [m.sql for m in made])
    mine = [ours(expr, rows) for expr in planned([m.sql for m in made])]
    whats = [difference(*each, rows) for each in zip(made, mine, said, strict=True)]
    found = [Difference(m, what) for m, what in zip(made, whats, strict=True) if what]
    if found:
        least = sorted(smallest(evaluated, view, rows, found), key=lambda d: len(d.made.sql)) or found
        fail(seed, f"seed {seed}: {len(found)} of {len(made)} expressions differ\n" + "\n".join(map(str, least)))
    # What is compared has to be worth it: most expressions have values, and few values are the engine's not to give.
    cells = len(made) * rows.num_rows
    assert sum(a.values.null_count < rows.num_rows for a in mine) > 0.6 * len(made)
    assert sum(a.failed.null_count for a in mine) < 0.05 * cells
    assert 0 < sum(a.failed.true_count for a in mine) < 0.4 * cells


def conditions(generator: Generator, size: int) -> list[str]:
    made = [m for m in generator.expressions(8 * size) if pa.types.is_boolean(m.type) and "t." in m.sql]
    return [m.sql for m in made]


def oracle_filters_of_two_conjuncts(compiled: SparkSession) -> None:
    """A conjunct is not evaluated where one before it is false or NULL."""
    seed = a_seed()
    chance, generator = random.Random(seed), Generator(seed)
    found = conditions(generator, max(10, round(FACTOR * 40)))
    rows = numbered(seed)
    view = view_of(compiled, rows)
    compared, differing = 0, []
    while compared < max(5, round(FACTOR * 20)):
        condition = " AND ".join(f"({sql})" for sql in chance.sample(found, 2))
        try:
            planned = plan(f"SELECT t.id FROM t JOIN u ON t.i64 = u.i64 WHERE {condition}", rows.schema)
        except QueryError:  # a constant that lets nothing through is refused
            continue
        compared += 1
        try:
            there = sorted(row.id for row in view.where(condition).select("id").collect())
        except PySparkException:
            there = "an error"
        try:
            kept = holds(planned.inputs[0].filter, lambda c: rows.column(c.name).chunk(0), rows.num_rows)
            here = rows.column("id").filter(kept).to_pylist()
        except QueryError as e:
            here = there if NOT_HERE in str(e) else "an error"
        if here != there:
            differing.append(f"{condition}\n    {here}, and in Spark {there}")
    if differing:
        fail(seed, "\n".join(differing))


def oracle_generated_keys(evaluated: SparkSession, tmp_path: Path) -> None:
    """`ON f(a.x) = g(b.y)`: the pairs that the join gives are those that are equal to Spark."""
    seed = a_seed()
    chance = random.Random(seed)
    tables = {"a": numbered(seed), "b": numbered(seed + 1)}
    made = [m for m in Generator(seed).expressions(max(200, round(FACTOR * 300))) if "t." in m.sql and m.depth < 3]
    good = [m for m in made if all(not fails(m.sql, rows) for rows in tables.values())]
    queries: dict[str, str] = {}
    for _ in range(4000):
        left, right = (re.sub(r"\bt\.", f"{alias}.", chance.choice(good).sql) for alias in "ab")
        condition = f"({left}) = ({right})"
        query = f"SELECT a.id AS x, b.id AS y FROM a JOIN b ON {condition}"
        try:
            plan(query, tables["a"].schema, "ab")
        except QueryError:
            continue  # types that do not match, or that are no keys
        queries[condition] = query
        if len(queries) == max(8, round(FACTOR * 40)):
            break
    pairs = view_of(evaluated, tables["a"]).alias("a").crossJoin(view_of(evaluated, tables["b"]).alias("b"))
    said = answers(evaluated, pairs, [*queries, "a.id", "b.id"])
    ids = list(zip(*(said[i].values.to_pylist() for i in (-2, -1)), strict=True))
    differing = []
    for number, (condition, query) in enumerate(queries.items()):
        there = Counter(pair for pair, equal in zip(ids, said[number].values.to_pylist(), strict=True) if equal)
        options = scripted({alias: [rows] for alias, rows in tables.items()}, query, partitions="2")
        for kind in (ALL_ROWS, OWN_ROWS):
            with fed(kind):
                here = rows_of(run(options, tmp_path / f"{number}-{kind}"))
            if here != there:
                wrong = f"too many {list(here - there)[:3]}, missing {list(there - here)[:3]}"
                differing.append(f"{condition}, {kind}\n    {wrong}")
    assert sum(bool(s.values.true_count) for s in said[:-2]) > len(queries) / 8  # or nothing is shown
    if differing:
        fail(seed, "\n".join(differing))


def numbered(seed: int) -> pa.Table:
    return table(seed).append_column("id", pa.array(range(ROWS), pa.int64()))


def fails(sql: str, rows: pa.Table) -> bool:
    return pc.any(pc.fill_null(ours(planned([sql])[0], rows).failed, True)).as_py()
