"""What Spark itself says to many expressions at once, row by row, errors included.

One error ends a query, so each expression is put into Spark's TryEval, which gives NULL instead, and once more into
TryEval around IS NULL, which tells an error (NULL) from a NULL (true). That is one job for hundreds of expressions.

The answer is that of evaluating each row. The optimizer is kept from removing parts of an expression: `1 / 0 + NULL` is
an error, whether or not a rule finds out in time that it need not be evaluated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession

_RULES = (
    "ConstantFolding ConstantPropagation NullPropagation NullDownPropagation FoldablePropagation OptimizeIn"
    " ReorderAssociativeOperator BooleanSimplification SimplifyConditionals PushFoldableIntoBranches"
    " SimplifyBinaryComparison ReplaceNullWithFalseInPredicate SimplifyCasts SimplifyCaseConversionExpressions"
    " LikeSimplification UnwrapCastInBinaryComparison ConvertToLocalRelation RemoveDispensableExpressions"
    " CombineConcats SimplifyExtractValueOps InferFiltersFromConstraints"
)
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.alwaysInlineCommonExpr": "true",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.catalyst.optimizer.{r}" for r in _RULES.split()
    ),
}


@dataclass(frozen=True)
class Answer:
    """The values of an expression; `failed` marks the rows for which it raises; None where it raises whatever the row.

    refused: why it is not accepted at all.
    """

    values: pa.Array | None
    failed: pa.Array | None
    refused: str = ""


@contextmanager
def row_by_row(spark: SparkSession) -> Iterator[None]:
    """Settings under which Spark evaluates an expression as it is written; the old ones come back."""
    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def answers(spark: SparkSession, view: DataFrame, sqls: Sequence[str]) -> list[Answer]:
    """Spark's answer to each expression over the rows of `view`."""
    resolved = _resolved(view, sqls)
    given = iter(_evaluated(spark, view, [e for e in resolved if not isinstance(e, str)]))
    return [Answer(None, None, e) if isinstance(e, str) else next(given) for e in resolved]


def _evaluated(spark: SparkSession, view: DataFrame, expressions: Sequence[Any]) -> list[Answer]:
    if not expressions:
        return []
    jvm = spark._jvm
    to_column = jvm.org.apache.spark.sql.classic.ExpressionUtils.column
    catalyst = jvm.org.apache.spark.sql.catalyst.expressions
    columns = []
    for i, e in enumerate(expressions):
        columns.append(to_column(catalyst.TryEval(e)).alias(f"v{i}"))
        columns.append(to_column(catalyst.TryEval(catalyst.IsNull(e))).alias(f"e{i}"))
    chosen = view._jdf.select(jvm.org.apache.spark.api.python.PythonUtils.toSeq(columns))
    try:
        result = DataFrame(chosen, spark).toArrow()
    except PySparkException:  # before any row: `round(x, 9223372036854775807)`
        if len(expressions) == 1:
            return [Answer(None, None)]
        middle = len(expressions) // 2
        return _evaluated(spark, view, expressions[:middle]) + _evaluated(spark, view, expressions[middle:])
    pairs = ((_whole(result.column(f"{c}{i}")) for c in "ve") for i in range(len(expressions)))
    return [Answer(values, pc.is_null(nulls)) for values, nulls in pairs]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def _resolved(view: DataFrame, sqls: Sequence[str]) -> list[Any]:
    """Catalyst's expressions, or why there is none; halved until the ones that Spark refuses are found."""
    if not sqls:
        return []
    try:
        plan = view.selectExpr(*(f"({sql}) AS c{i}" for i, sql in enumerate(sqls)))._jdf.queryExecution().analyzed()
    except (AnalysisException, ParseException) as e:
        if len(sqls) == 1:
            return [str(e)]
        middle = len(sqls) // 2
        return _resolved(view, sqls[:middle]) + _resolved(view, sqls[middle:])
    projected = plan.projectList()
    return [projected.apply(i).child() for i in range(len(sqls))]
