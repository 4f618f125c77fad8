"""Evaluation of `model.Expr` over Arrow arrays, with the meaning that Spark's ANSI mode gives it.

    Expr ── evaluate, holds ──> Array   FUNCTIONS: name -> Function; the only way from a `Call` to code
      Col   the caller's array
      Lit   a scalar, widened to an array only where nothing else is one
      Call  eager: arguments first, then arithmetic.py and functions.py; lazy: the conditionals below
      Cast  casts.py

Covered: three-valued logic, conditionals, everything in `arithmetic`, `functions` and `casts`. Time zone: UTC.
Not covered: aggregates, window functions, lambdas, and functions of clock or randomness (invariant 2 of the design).

Why conditionals are right: in `CASE WHEN b <> 0 THEN a / b END` or `b <> 0 AND a / b > 1` the division must not be seen
where b is 0. All operands are first evaluated over all rows, which is fast and nearly always succeeds; only when an
operand raises is it evaluated again over just the rows that need it, and an error there is a real one. Expressions have
no side effects, so this cannot be told from Spark's row-by-row evaluation. An operand behind one that is NULL is not
needed either: `NULL * (1 / 0)` is NULL.

Errors are QueryErrors that show the smallest part of the query that failed. Types depend on types alone, so evaluating
over no rows gives the type of an expression and finds every type error before anything runs.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.errors import QueryError, nearest
from spark_mjoin.join import arithmetic
from spark_mjoin.join.arithmetic import Value, condition, equal, to
from spark_mjoin.join.casts import DAY_INTERVAL, INTERVAL, cast, common_type_of, kind, type_name
from spark_mjoin.join.functions import SCALAR
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
    return _shown(_Rows(lambda c: pa.array([], column_type(c)), 0, planning=True).array(expr)).type


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
            other = _Rows(lambda c: self.column(c).slice(0, 0), 0).value(expr.args[1 - at])
            if kind(other.type) == "integer":
                return bool((literal.value > 0) == ((expr.function[0] == "<") == (at == 1)))
        return None

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


# --- conditionals ----------------------------------------------------------------------------------------------


def _and(rows: _Rows, args: Sequence[Expr]) -> Value:
    def both(left: pa.Array, arg: Expr) -> pa.Array:
        return pc.and_kleene(left, condition(rows.where(arg, pc.fill_null(left, True))))

    return reduce(both, args[1:], condition(rows.array(args[0])))


def _or(rows: _Rows, args: Sequence[Expr]) -> Value:
    def either(left: pa.Array, arg: Expr) -> pa.Array:
        return pc.or_kleene(left, condition(rows.where(arg, pc.invert(pc.fill_null(left, False)))))

    return reduce(either, args[1:], condition(rows.array(args[0])))


def _case(rows: _Rows, args: Sequence[Expr]) -> Value:
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


def _if(rows: _Rows, args: Sequence[Expr]) -> Value:
    """As CASE, except that a condition may be nothing but NULL."""
    return _case(rows, (Cast(args[0], pa.bool_()) if _is_void(rows, args[0]) else args[0], *args[1:]))


def _is_void(rows: _Rows, expr: Expr) -> bool:
    return bool(pa.types.is_null(_Rows(lambda c: rows.column(c).slice(0, 0), 0).value(expr).type))


def _coalesce(rows: _Rows, args: Sequence[Expr]) -> Value:
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


def _in(rows: _Rows, args: Sequence[Expr]) -> Value:
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


def _in_turn(rows: _Rows, args: Sequence[Expr]) -> pa.Array:
    """The same where a value fails: it is evaluated only for rows that found none before it."""
    subject = rows.array(args[0])
    none = _Rows(lambda c: rows.column(c).slice(0, 0), 0)
    dtype = common_type_of(none.value(arg).type for arg in args)
    open_rows = pc.is_valid(subject)
    subject, result = cast(subject, dtype), pa.repeat(pa.scalar(False), rows.rows)
    for arg in args[1:]:
        values = pc.if_else(open_rows, rows.where(arg, open_rows), pa.scalar(None, none.value(arg).type))
        result = pc.or_kleene(result, equal((subject, cast(values, dtype))))
        open_rows = pc.and_(open_rows, pc.invert(pc.fill_null(result, False)))
    return result


def _nullif(rows: _Rows, args: Sequence[Expr]) -> Value:
    """Compared as `=` compares, and of the type of the first."""
    a = rows.array(args[0])
    return pc.if_else(pc.fill_null(rows.array(Call("=", tuple(args))), False), pa.scalar(None, a.type), a)


def _is_null(args: Sequence[Value]) -> Value:
    return pc.is_null(args[0])


def _not(args: Sequence[Value]) -> Value:
    return pc.invert(condition(args[0]))


def _try_cast(rows: _Rows, args: Sequence[Expr]) -> Value:
    """TRY_CAST(x AS type): the type is that of the second argument, a NULL."""
    assert isinstance(args[1], Lit)
    return cast(rows.array(args[0]), args[1].type, lenient=True)


# --- registry --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Function:
    """How a call runs: `eager` over evaluated arguments, or `lazy` over the expressions themselves.

    When all arguments are literals, the one at `subject` becomes an array; others may have to stay literals.
    """

    fewest: int
    most: int
    eager: Callable[[Sequence[Value]], Value] | None = None
    lazy: Callable[[_Rows, Sequence[Expr]], Value] | None = None
    subject: int = 0
    strict: bool = True  # NULL where an argument is; those after it are not evaluated there
    backwards: bool = False  # evaluated from the last argument to the first: a divisor before its dividend
    is_operator: bool = False  # of two values, neither of which has to be a literal
    compares: bool = False  # by size


def _operator(
    run: Callable[[Sequence[Value]], Value], strict: bool = True, backwards: bool = False, compares: bool = False
) -> Function:
    return Function(2, 2, run, strict=strict, backwards=backwards, is_operator=True, compares=compares)


FUNCTIONS: dict[str, Function] = {
    "and": Function(1, 10_000, lazy=_and),
    "or": Function(1, 10_000, lazy=_or),
    "not": Function(1, 1, _not),
    "=": _operator(arithmetic.equal),
    "<>": _operator(arithmetic.not_equal),
    "<": _operator(arithmetic.less, compares=True),
    "<=": _operator(arithmetic.less_equal, compares=True),
    ">": _operator(arithmetic.greater, compares=True),
    ">=": _operator(arithmetic.greater_equal, compares=True),
    "<=>": _operator(arithmetic.null_safe_equal, strict=False),
    "in": Function(2, 10_000, lazy=_in),
    "is null": Function(1, 1, _is_null),
    "+": _operator(arithmetic.add),
    "-": _operator(arithmetic.subtract),
    "*": _operator(arithmetic.multiply),
    "/": _operator(arithmetic.divide, backwards=True),
    "div": _operator(arithmetic.integer_divide, backwards=True),
    "%": _operator(arithmetic.remainder, backwards=True),
    "negate": Function(1, 1, arithmetic.negate),
    "case": Function(2, 10_000, lazy=_case),
    "if": Function(3, 3, lazy=_if),
    "coalesce": Function(1, 1000, lazy=_coalesce),
    "nullif": Function(2, 2, lazy=_nullif),
    "try_cast": Function(2, 2, lazy=_try_cast),
    "greatest": Function(2, 1000, arithmetic.extreme(arithmetic.greater), strict=False),
    "least": Function(2, 1000, arithmetic.extreme(arithmetic.less), strict=False),
    **{
        name: Function(
            fewest,
            most,
            run,
            subject=1 if name == "date_trunc" else 0,
            is_operator=name == "datediff",
        )
        for name, (run, fewest, most) in SCALAR.items()
    },
}


# What a query may call by these names; the rest it writes as operators, or has other names for.
NAMED = frozenset(f for f in FUNCTIONS if f.replace("_", "").isalpha()) - {
    "and", "or", "not", "in", "div", "like", "case", "if", "negate", "field", "try_cast", "add_months",
}  # fmt: skip


def unknown_function(name: str) -> QueryError:
    known = sorted(NAMED - {name.lower()})
    return QueryError(
        f"the function {name.lower()} is not supported in the join.{nearest(name, known)} Apply it downstream, on the"
        " DataFrame that the join gives"
    )


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


# --- as text ---------------------------------------------------------------------------------------------------

_INFIX = {"=", "<>", "<", "<=", ">", ">=", "<=>", "+", "-", "*", "/", "div", "%"}


def identifier(name: str) -> str:
    """A name as SQL has it: in backticks where it is not plain, so that nothing else is written in the same way."""
    plain = re.fullmatch(r"[^\W\d]\w*", name) and name.lower() not in ("null", "true", "false")
    return name if plain else "`" + name.replace("`", "``") + "`"


def qualified(alias: str, column: str) -> str:
    """A column of an input: no other column, of this or another one, is written in the same way."""
    return f"{identifier(alias)}.{identifier(column)}"


def render(expr: Expr, aliases: Sequence[str] | None = None, quoted: bool = True) -> str:
    """The expression as SQL, columns qualified when `aliases` are given.

    With `quoted` off, names and string literals are bare: so Spark names a column that has no alias.
    """

    def sub(e: Expr) -> str:
        return render(e, aliases, quoted)

    if isinstance(expr, Col):
        if not quoted:
            return expr.name if aliases is None else f"{aliases[expr.input]}.{expr.name}"
        return identifier(expr.name) if aliases is None else qualified(aliases[expr.input], expr.name)
    if isinstance(expr, Lit):
        return _literal_text(expr, quoted)
    if isinstance(expr, Cast):
        return f"CAST({sub(expr.arg)} AS {type_name(expr.type)})"
    name, args = expr.function, expr.args
    if name == "<>" and not quoted:
        return f"(NOT ({sub(args[0])} = {sub(args[1])}))"
    if name in _INFIX:
        return f"({sub(args[0])} {name} {sub(args[1])})"
    if name in ("and", "or"):
        return "(" + f" {name.upper()} ".join(map(sub, args)) + ")"
    if name == "not" and isinstance(args[0], Call) and args[0].function == "is null":
        return f"({sub(args[0].args[0])} IS NOT NULL)"
    if name in ("not", "negate"):
        return f"({'NOT' if name == 'not' else '-'} {sub(args[0])})"
    if name == "is null":
        return f"({sub(args[0])} IS NULL)"
    if name == "in":
        return f"({sub(args[0])} IN ({', '.join(map(sub, args[1:]))}))"
    if name == "like":
        escape = f" ESCAPE {sub(args[2])}" if len(args) == 3 else ""
        return f"{sub(args[0])} LIKE {sub(args[1])}{escape}"
    if name == "field" and isinstance(args[1], Lit):
        return f"{sub(args[0])}.{identifier(args[1].value) if quoted else args[1].value}"
    if name == "try_cast":
        return f"TRY_CAST({sub(args[0])} AS {type_name(args[1].type)})"  # type: ignore[union-attr]
    if name == "add_months" and isinstance(args[1], Lit):
        return f"{sub(args[0])} + INTERVAL '{args[1].value}' MONTH"
    if name == "case":
        whens = [f"WHEN {sub(c)} THEN {sub(v)}" for c, v in zip(args[0 : len(args) - 1 : 2], args[1::2], strict=True)]
        last = [f"ELSE {sub(args[-1])}"] if len(args) % 2 else []
        return " ".join(["CASE", *whens, *last, "END"])
    return f"{name}({', '.join(map(sub, args))})"


def _literal_text(literal: Lit, quoted: bool) -> str:
    if literal.value is None:
        return "NULL"
    if literal.type == DAY_INTERVAL:
        return f"INTERVAL '{literal.value // 86_400}' DAY"
    if kind(literal.type) == "duration":
        return f"INTERVAL '{literal.value}' MICROSECOND"
    if isinstance(literal.value, bytes):
        return f"X'{literal.value.hex().upper()}'"
    if isinstance(literal.value, bool):
        return str(literal.value).lower()
    if isinstance(literal.value, float) and quoted:
        return f"{literal.value!r}D"  # as Spark tells a DOUBLE from a DECIMAL
    if isinstance(literal.value, str) and quoted:
        return "'" + literal.value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(literal.value)
