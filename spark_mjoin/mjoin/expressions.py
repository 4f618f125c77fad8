"""Evaluation of `model.Expr` over Arrow arrays, with the meaning that Spark's ANSI mode gives it.

    Expr ── evaluate, holds ──> Array
      Col   the caller's array
      Lit   a scalar, widened to an array only where nothing else is one
      Call  by registry.py: eager, arguments first, then arithmetic.py and functions.py; or lazy, in conditionals.py
      Cast  casts.py

Covered: three-valued logic, conditionals, everything in `arithmetic`, `functions` and `casts`. Time zone: UTC.
Not covered: aggregates, window functions, lambdas, and functions of clock or randomness (invariant 2 of the design).

An operand behind one that is NULL is not needed: `NULL * (1 / 0)` is NULL. So it is evaluated over all rows first, and
where that raises, over those without a NULL before it. Errors are QueryErrors that show the smallest part of the query
that failed. Types depend on types alone, so evaluating over no rows gives the type of an expression and finds every
type error before anything runs.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.arithmetic import Value, to
from spark_mjoin.mjoin.casts import DAY_INTERVAL, INTERVAL, cast, kind
from spark_mjoin.mjoin.registry import FUNCTIONS, Function, unknown_function
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import Call, Cast, Col, Expr, Lit

Column = Callable[[Col], pa.Array]


def evaluate(expr: Expr, column: Column, rows: int) -> pa.Array:
    """The values of `expr` over `rows` rows, of which `column` gives the columns; QueryError when it fails."""
    return _shown(_Rows(column, rows).array(expr))


def holds(condition: Expr, column: Column, rows: int) -> pa.Array:
    """Which rows a filter keeps; QueryError when it fails.

    Each conjunct is looked at only where those before it hold: a NULL ends it as a false does, as in Spark's filters.
    """
    conjuncts = condition.args if isinstance(condition, Call) and condition.function == "and" else (condition,)
    selection, kept = _Rows(column, rows), pa.repeat(pa.scalar(True), rows)
    for conjunct in conjuncts:
        kept = pc.and_(kept, pc.fill_null(to(selection.where(conjunct, kept), pa.bool_()), False))
    return kept


def type_of(expr: Expr, column_type: Callable[[Col], pa.DataType]) -> pa.DataType:
    """The type of `expr`; QueryError when its operands do not go together."""
    return _shown(_Rows(lambda c: pa.nulls(0, column_type(c)), 0, planning=True).array(expr)).type


def _shown(values: pa.Array) -> pa.Array:
    """As the rest of the engine has them: it knows one type of intervals."""
    return cast(values, INTERVAL) if values.type == DAY_INTERVAL else values


def columns_of(expr: Expr) -> frozenset[Col]:
    """The columns that an expression uses."""
    if isinstance(expr, Col):
        return frozenset((expr,))
    if isinstance(expr, Cast):
        return columns_of(expr.arg)
    return frozenset[Col]().union(*map(columns_of, expr.args)) if isinstance(expr, Call) else frozenset()


class _Rows:
    """A selection of rows that expressions are evaluated over."""

    def __init__(self, column: Column, rows: int, planning: bool = False) -> None:
        self.column = column
        self.rows = rows
        self.planning = planning  # a literal that cannot be cast is a mistake, though there is no row for it

    def array(self, expr: Expr) -> pa.Array:
        value = self.value(expr)
        return pa.repeat(value, self.rows) if isinstance(value, pa.Scalar) else value

    def value(self, expr: Expr) -> Value:
        """An array, or a scalar for a literal."""
        if isinstance(expr, Col):
            return self.column(expr)
        if isinstance(expr, Lit):
            return pa.scalar(expr.value, expr.type)
        try:
            if isinstance(expr, Cast):
                return cast(self.array(expr.arg), expr.type)
            return self._call(expr)
        except (ValueError, TypeError, NotImplementedError, OverflowError) as e:
            what = "text that is no UTF-8 is not supported here" if _about_utf8(e) else str(e)
            hint = "" if isinstance(e, TypeError) else _remedy(what)
            raise QueryError(f"in `{render(expr)}`: {what}{hint}") from e

    def _call(self, expr: Call) -> Value:
        function = FUNCTIONS.get(expr.function)
        if function is None:
            raise unknown_function(expr.function)
        if not function.fewest <= len(expr.args) <= function.most:
            raise TypeError(f"{expr.function} does not take {len(expr.args)} arguments")
        if function.lazy is not None:
            return function.lazy(self, expr.args)
        assert function.eager is not None
        if function.compares and (certain := self._certain(expr)) is not None:
            return pa.repeat(pa.scalar(certain), self.rows)
        values = self._operands(function, expr.args)
        if function.is_operator:
            values = _in_their_digits(expr, values)
        if all(isinstance(v, pa.Scalar) for v in values):
            values[function.subject] = pa.repeat(values[function.subject], self.rows)
        try:
            return function.eager(values)
        except ValueError:  # an operand that fails to be cast, perhaps beside a NULL
            if self.planning:
                raise
            return function.eager(self._behind_no_null(function, values))

    def _behind_no_null(self, function: Function, values: list[Value]) -> list[Value]:
        """The operands of a strict function, with NULL where one before them is NULL."""
        order = range(len(values))[:: -1 if function.backwards else 1]
        masked = list(values)
        for before, at in pairwise(order if function.strict else ()):
            if isinstance(values[at], pa.Array) or function.is_operator:
                valid = pc.and_(pa.repeat(pa.scalar(True), self.rows), pc.is_valid(masked[before]))
                masked[at] = pc.if_else(valid, values[at], pa.scalar(None, values[at].type))
        return masked

    def _operands(self, function: Function, args: Sequence[Expr]) -> list[Value]:
        """The values of the arguments; what follows a NULL is not evaluated, where the function is strict."""
        found: dict[int, Value] = {}
        for at in reversed(range(len(args))) if function.backwards else range(len(args)):
            try:
                found[at] = self.value(args[at])
            except QueryError:
                if not function.strict or not found:
                    raise
                valid = reduce(pc.and_, map(pc.is_valid, found.values()))
                found[at] = self._restricted(args[at], pc.and_(pa.repeat(pa.scalar(True), self.rows), valid))
        return [found[at] for at in range(len(args))]

    def _certain(self, expr: Call) -> bool | None:
        """How an integer compares with a DECIMAL literal that no BIGINT reaches: Spark does not look at the integer."""
        for at, literal in enumerate(expr.args):
            if not isinstance(literal, Lit) or kind(literal.type) != "decimal" or -(2**63) <= literal.value < 2**63:
                continue
            other = self.empty().value(expr.args[1 - at])
            if kind(other.type) == "integer":
                return bool((literal.value > 0) == ((expr.function[0] == "<") == (at == 1)))
        return None

    def empty(self) -> _Rows:
        """The same columns over no rows, which have types and no values that could fail."""
        return _Rows(lambda c: self.column(c).slice(0, 0), 0)

    def where(self, expr: Expr, needed: pa.Array) -> pa.Array:
        """The values of `expr`, of which only those where `needed` is true matter: elsewhere it does not raise."""
        try:
            return self.array(expr)
        except QueryError:
            return self._restricted(expr, needed)

    def _restricted(self, expr: Expr, needed: pa.Array) -> pa.Array:
        """The values of `expr` where `needed` is true, and NULL elsewhere."""
        count = pc.sum(needed.cast(pa.int64()), min_count=0).as_py()
        values = _Rows(lambda c: self.column(c).filter(needed), count).array(expr)
        ordinals = pc.subtract(pc.cumulative_sum(needed.cast(pa.int64())), 1)
        return values.take(pc.if_else(needed, ordinals, pa.scalar(None, pa.int64())))


def _in_their_digits(expr: Call, values: list[Value]) -> list[Value]:
    """Literals beside a number of another kind, as Spark takes them: an integer has only the digits that it is written
    with, and not those of its type; what is compared with an integer is the nearest one."""
    for at, literal in enumerate(expr.args if len(values) == 2 else ()):
        if not isinstance(literal, Lit) or literal.value is None:
            continue
        kinds = kind(literal.type), kind(values[1 - at].type)
        if kinds == ("integer", "decimal") and literal.type != pa.int8():
            dtype = pa.decimal128(len(str(abs(literal.value))), 0)
            values[at] = pa.scalar(decimal.Decimal(literal.value), dtype)
        elif kinds == ("decimal", "integer") and expr.function in ("<", "<=", ">", ">="):
            up = expr.function in (("<", ">=") if at == 1 else (">", "<="))
            values[at] = pa.scalar(math.ceil(literal.value) if up else math.floor(literal.value), pa.int64())
    return values


def _about_utf8(error: Exception) -> bool:
    return isinstance(error, UnicodeDecodeError) or "invalid utf8" in str(error).lower()


def _remedy(message: str) -> str:
    if "overflow" in message:
        return "; CAST an operand to a wider type"
    if "divide by zero" in message:
        return "; guard it with NULLIF(divisor, 0)"
    if "cannot be cast" in message:
        return "; TRY_CAST gives NULL instead"
    return ""
