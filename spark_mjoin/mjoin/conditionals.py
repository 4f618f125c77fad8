"""Operators whose operands may not all be evaluated: AND, OR, CASE, COALESCE, IN and the like.

In `CASE WHEN b <> 0 THEN a / b END` or `b <> 0 AND a / b > 1` the division must not be seen where b is 0. An operand is
first evaluated over all rows, which is fast and nearly always succeeds. Only when it raises is it evaluated again, over
just the rows that need it (`Rows.where`), and an error there is a real one. Expressions have no side effects, so this
gives what Spark's row-by-row evaluation gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.arithmetic import Value, condition, equal, to
from spark_mjoin.mjoin.casts import cast, common_type_of
from spark_mjoin.model import Call, Cast, Expr, Lit


class Rows(Protocol):
    """A selection of rows that expressions are evaluated over."""

    rows: int

    def array(self, expr: Expr) -> pa.Array: ...

    def value(self, expr: Expr) -> Value:
        """An array, or a scalar for a literal."""

    def where(self, expr: Expr, needed: pa.Array) -> pa.Array:
        """The values of `expr`, of which only those where `needed` is true matter: elsewhere it does not raise."""

    def empty(self) -> Rows:
        """The same columns over no rows, which have types and no values that could fail."""


def both(rows: Rows, args: Sequence[Expr]) -> Value:
    def narrowed(left: pa.Array, arg: Expr) -> pa.Array:
        return pc.and_kleene(left, condition(rows.where(arg, pc.fill_null(left, True))))

    return reduce(narrowed, args[1:], condition(rows.array(args[0])))


def either(rows: Rows, args: Sequence[Expr]) -> Value:
    def widened(left: pa.Array, arg: Expr) -> pa.Array:
        return pc.or_kleene(left, condition(rows.where(arg, pc.invert(pc.fill_null(left, False)))))

    return reduce(widened, args[1:], condition(rows.array(args[0])))


def case(rows: Rows, args: Sequence[Expr]) -> Value:
    """Arguments: condition, value, condition, value, …, and the value of ELSE when their number is odd."""
    open_rows = pa.repeat(pa.scalar(True), rows.rows)
    branches: list[tuple[pa.Array, pa.Array]] = []
    for test, value in zip(args[0 : len(args) - 1 : 2], args[1::2], strict=True):
        tested = rows.where(test, open_rows)
        if pa.types.is_null(tested.type):
            raise TypeError("a condition must be BOOLEAN and this is only NULL")
        holds = pc.and_(open_rows, pc.fill_null(condition(tested), False))
        branches.append((holds, rows.where(value, holds)))
        open_rows = pc.and_not(open_rows, holds)
    if len(args) % 2:
        branches.append((open_rows, rows.where(args[-1], open_rows)))
    return _merge(branches, rows.rows)


def if_else(rows: Rows, args: Sequence[Expr]) -> Value:
    """As CASE, except that a condition may be nothing but NULL."""
    return case(rows, (Cast(args[0], pa.bool_()) if _is_void(rows, args[0]) else args[0], *args[1:]))


def _is_void(rows: Rows, expr: Expr) -> bool:
    return bool(pa.types.is_null(rows.empty().value(expr).type))


def coalesce(rows: Rows, args: Sequence[Expr]) -> Value:
    open_rows = pa.repeat(pa.scalar(True), rows.rows)
    branches: list[tuple[pa.Array, pa.Array]] = []
    for arg in args:
        values = rows.where(arg, open_rows)
        found = pc.and_(open_rows, pc.is_valid(values))
        branches.append((found, values))
        open_rows = pc.and_not(open_rows, found)
    return _merge(branches, rows.rows)


def _merge(branches: Sequence[tuple[pa.Array, pa.Array]], rows: int) -> pa.Array:
    """One array of the values that the masks choose, in the type that all branches widen to."""
    dtype = common_type_of(values.type for _, values in branches)
    result = pa.nulls(rows, dtype)
    for mask, values in branches:
        if pa.types.is_null(values.type):
            continue
        chosen = pc.if_else(mask, values, pa.scalar(None, values.type))  # what is not chosen must not fail to widen
        result = pc.if_else(mask, cast(chosen, dtype), result)
    return result


def among(rows: Rows, args: Sequence[Expr]) -> Value:
    """`x IN (…)`, compared in the type of all of them: NULL when nothing matches and a NULL is among the values."""
    try:
        values = [rows.value(arg) for arg in args]
        values[0] = rows.array(args[0])
        dtype = common_type_of(v.type for v in values)
        if pa.types.is_null(dtype):
            return pa.nulls(rows.rows, pa.bool_())
        subject, *candidates = (to(v, dtype) for v in values)
        return reduce(pc.or_kleene, (equal((subject, candidate)) for candidate in candidates))
    except (QueryError, ValueError):
        return _in_turn(rows, args)


def _in_turn(rows: Rows, args: Sequence[Expr]) -> pa.Array:
    """The same where a value fails: it is evaluated only for rows that found none before it."""
    subject = rows.array(args[0])
    none = rows.empty()
    dtype = common_type_of(none.value(arg).type for arg in args)
    open_rows = pc.is_valid(subject)
    subject, result = cast(subject, dtype), pa.repeat(pa.scalar(False), rows.rows)
    for arg in args[1:]:
        values = pc.if_else(open_rows, rows.where(arg, open_rows), pa.scalar(None, none.value(arg).type))
        result = pc.or_kleene(result, equal((subject, cast(values, dtype))))
        open_rows = pc.and_(open_rows, pc.invert(pc.fill_null(result, False)))
    return result


def nullif(rows: Rows, args: Sequence[Expr]) -> Value:
    """Compared as `=` compares, and of the type of the first."""
    a = rows.array(args[0])
    return pc.if_else(pc.fill_null(rows.array(Call("=", tuple(args))), False), pa.scalar(None, a.type), a)


def is_null(args: Sequence[Value]) -> Value:
    return pc.is_null(args[0])


def negated(args: Sequence[Value]) -> Value:
    return pc.invert(condition(args[0]))


def try_cast(rows: Rows, args: Sequence[Expr]) -> Value:
    """TRY_CAST(x AS type): the type is that of the second argument, a NULL."""
    assert isinstance(args[1], Lit)
    return cast(rows.array(args[0]), args[1].type, lenient=True)
