"""Parsed SQL expressions into `model.Expr`: the only module that knows sqlglot's classes of expressions.

Covered: the operators and functions that `mjoin.expressions` evaluates, under the names that Spark's SQL has for them.
Whatever is not in the tables below is refused by name; nothing is passed through unseen, so a construct whose meaning
was never considered cannot slip into a join. BETWEEN, CASE with an operand and negated forms are written in terms of
simpler calls, as Spark itself defines them. Rows, `(a, b)`, are refused: to Spark they are structs, and in the equality
of two structs a NULL equals a NULL, which no join key does.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from sqlglot import exp

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.casts import DAY_INTERVAL, INTERVAL, type_name
from spark_mjoin.mjoin.registry import NAMED, unknown_function
from spark_mjoin.model import Call, Cast, Expr, Lit
from spark_mjoin.schema import arrow_type

BINARY: dict[type, str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>",
    exp.Mul: "*", exp.Div: "/", exp.IntDiv: "div", exp.Mod: "%", exp.DPipe: "concat",
    exp.And: "and", exp.Or: "or", exp.Nullif: "nullif",
}  # fmt: skip
UNARY: dict[type, str] = {
    exp.Upper: "upper", exp.Lower: "lower", exp.Length: "length", exp.Abs: "abs", exp.Hour: "hour",
    exp.Minute: "minute", exp.Second: "second", exp.Not: "not",
}  # fmt: skip
DATE_PARTS: dict[type, str] = {
    exp.Year: "year", exp.Quarter: "quarter", exp.Month: "month", exp.Day: "day", exp.DayOfMonth: "day",
}  # fmt: skip
VARIADIC: dict[type, str] = {exp.Coalesce: "coalesce", exp.Greatest: "greatest", exp.Least: "least"}
_PARTS = ("this", "expression", "expressions", "is_string")
_MORE_PARTS: dict[type, str] = {
    exp.Like: "negate", exp.In: "query unnest field", exp.Interval: "unit",
    exp.Between: "low high symmetric", exp.Case: "ifs default",
    exp.If: "true false", exp.Trim: "position", exp.Round: "decimals truncate",
    exp.Substring: "start length", exp.Floor: "decimals to",
    exp.Ceil: "decimals to", exp.TimestampTrunc: "unit", exp.TsOrDsAdd: "unit",
    exp.DateDiff: "unit", exp.StrToUnix: "format",
    exp.TsOrDsToDate: "format safe", exp.Cast: "to", exp.TryCast: "to safe",
    # How other dialects treat NULL and zero; set by the parser for Spark, whose meaning is what is implemented.
    exp.Div: "safe typed", exp.DPipe: "safe", exp.Concat: "safe",
    exp.Greatest: "ignore_nulls", exp.Least: "ignore_nulls",
}  # fmt: skip
_MICROS = {
    "MICROSECOND": 1, "MILLISECOND": 1_000, "SECOND": 1_000_000, "MINUTE": 60_000_000, "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000, "WEEK": 7 * 86_400_000_000,
}  # fmt: skip
_MONTHS = {"MONTH": 1, "YEAR": 12}
_IMPURE = {"current_timestamp", "current_date", "now", "rand", "randn", "random", "uuid", "shuffle", "localtimestamp"}


def refuse(what: str, instead: str = "do it downstream on the DataFrame that the join gives") -> QueryError:
    return QueryError(f"query: {what} is not supported in the join; {instead}")


class Translator:
    """Turns expressions over named columns into `Expr`; `resolve` finds the column for the parts of a name."""

    def __init__(self, resolve: Callable[[Sequence[str]], Expr]) -> None:
        self._resolve = resolve

    def expression(self, node: Any) -> Expr:
        if isinstance(node, exp.Paren):
            return self.expression(node.this)
        if isinstance(node, exp.Column):
            return self._resolve([str(p.name) for p in node.parts])
        if isinstance(node, exp.Dot):
            return self._resolve(_names(node))
        _check_parts(node)
        # By exact type: sqlglot derives CONCAT_WS from CONCAT, and the like, with another meaning.
        translate = self.RULES.get(type(node))
        return self._by_table(node) if translate is None else translate(self, node)

    def _by_table(self, node: Any) -> Expr:
        kind = type(node)
        if kind in BINARY:
            return Call(BINARY[kind], (self.expression(node.this), self.expression(node.expression)))
        if kind in UNARY:
            return Call(UNARY[kind], (self.expression(node.this),))
        if kind in DATE_PARTS:
            return Call(DATE_PARTS[kind], (self._undated(node.this),))
        if kind in VARIADIC:
            return Call(VARIADIC[kind], tuple(map(self.expression, (node.this, *node.expressions))))
        raise refusal(node)

    # --- literals ---

    def _literal(self, node: Any) -> Expr:
        return self._text(node) if node.is_string else _number(str(node.this))

    def _text(self, node: Any) -> Expr:
        return Lit(str(node.this), pa.string())

    def _boolean(self, node: Any) -> Expr:
        return Lit(bool(node.this), pa.bool_())

    def _null(self, node: Any) -> Expr:
        return Lit(None, pa.null())

    def _hex(self, node: Any) -> Expr:
        text = str(node.this)
        return Lit(bytes.fromhex(text if len(text) % 2 == 0 else "0" + text), pa.binary())

    def _negation(self, node: Any) -> Expr:
        if _is_number(node.this):  # with its sign: -128Y is a TINYINT, and 128Y is none
            return _number("-" + str(node.this.this))
        return Call("negate", (self.expression(node.this),))

    def _interval(self, node: Any) -> Expr:
        months, micros = _interval_parts(node)
        if months:
            raise refuse("an interval of months or years by itself", "add it to a date or a timestamp")
        return Lit(micros // 1_000_000, DAY_INTERVAL) if _unit(node) in ("DAY", "WEEK") else Lit(micros, INTERVAL)

    # --- operators ---

    def _sum(self, node: Any) -> Expr:
        """`+` and `-`; intervals of months are no values, and part of the operation."""
        left, right, sign = node.this, node.expression, 1 if isinstance(node, exp.Add) else -1
        if isinstance(left, exp.Interval) and sign == 1 and not isinstance(right, exp.Interval):
            left, right = right, left
        if isinstance(right, exp.Interval) and not isinstance(left, exp.Interval):
            months, _ = _interval_parts(right)
            if months:
                return Call("add_months", (self.expression(left), Lit(sign * months, pa.int32())))
        symbol = "+" if sign == 1 else "-"
        return Call(symbol, (self.expression(left), self.expression(right)))

    def _is(self, node: Any) -> Expr:
        subject = self.expression(node.this)
        if isinstance(node.expression, exp.Null):
            return Call("is null", (subject,))
        if isinstance(node.expression, exp.Boolean):  # IS TRUE is never NULL
            return Call("<=>", (subject, self._boolean(node.expression)))
        raise refusal(node)

    def _in(self, node: Any) -> Expr:
        if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
            raise refuse("a subquery in IN", "make it an input of the join, or do it downstream on the DataFrame")
        return Call("in", tuple(map(self.expression, (node.this, *node.expressions))))

    def _between(self, node: Any) -> Expr:
        if node.args.get("symmetric"):
            raise refusal(node)
        subject = self.expression(node.this)
        low, high = self.expression(node.args["low"]), self.expression(node.args["high"])
        return Call("and", (Call(">=", (subject, low)), Call("<=", (subject, high))))

    def _like(self, node: Any, *escape: Expr) -> Expr:
        like = Call("like", (self.expression(node.this), self.expression(node.expression), *escape))
        return Call("not", (like,)) if node.args.get("negate") else like

    def _escape(self, node: Any) -> Expr:
        if not isinstance(node.this, exp.Like):
            raise refusal(node)
        _check_parts(node.this)
        return self._like(node.this, self.expression(node.expression))

    def _distinct_from(self, node: Any) -> Expr:
        return Call("not", (Call("<=>", (self.expression(node.this), self.expression(node.expression))),))

    # --- functions ---

    def _cast(self, node: Any) -> Expr:
        try:
            dtype = arrow_type(node.args["to"])
        except (TypeError, ValueError) as e:
            raise QueryError(f"query: in `{_sql(node)}`: {e}") from None
        subject = self.expression(node.this)
        if isinstance(node, exp.TryCast) and node.args.get("safe"):
            return Call("try_cast", (subject, Lit(None, dtype)))
        return Cast(subject, dtype)

    def _case(self, node: Any) -> Expr:
        args: list[Expr] = []
        for branch in node.args["ifs"]:
            test = self.expression(branch.this)
            args.append(Call("=", (self.expression(node.this), test)) if node.this else test)
            args.append(self.expression(branch.args["true"]))
        if node.args.get("default") is not None:
            args.append(self.expression(node.args["default"]))
        return Call("case", tuple(args))

    def _if(self, node: Any) -> Expr:
        parts = (node.this, node.args["true"], node.args.get("false"))
        return Call("if", tuple(self.expression(p) for p in parts if p is not None))

    def _concat(self, node: Any) -> Expr:
        return Call("concat", tuple(map(self.expression, node.expressions)))

    def _trim(self, node: Any) -> Expr:
        names = {"LEADING": "ltrim", "TRAILING": "rtrim"}
        parts = [node.this, *([node.expression] if node.args.get("expression") else [])]
        return Call(names.get(str(node.args.get("position")), "trim"), tuple(map(self.expression, parts)))

    def _substring(self, node: Any) -> Expr:
        parts = (node.this, node.args.get("start"), node.args.get("length"))
        return Call("substring", tuple(self.expression(p) for p in parts if p is not None))

    def _round(self, node: Any) -> Expr:
        if node.args.get("truncate"):
            raise refusal(node)
        digits = [node.args["decimals"]] if node.args.get("decimals") else []
        return Call("round", tuple(map(self.expression, (node.this, *digits))))

    def _whole(self, node: Any) -> Expr:
        if node.args.get("decimals") or node.args.get("to"):
            raise refuse(f"`{_sql(node)}`: a number of digits")
        return Call("floor" if isinstance(node, exp.Floor) else "ceil", (self.expression(node.this),))

    def _date_trunc(self, node: Any) -> Expr:
        unit = node.args["unit"]
        if not isinstance(unit, exp.Var | exp.Literal):
            raise QueryError(f"query: in `{_sql(node)}`: the unit must be a literal")
        return Call("date_trunc", (Lit(str(unit.name).lower(), pa.string()), self.expression(node.this)))

    def _to_date(self, node: Any) -> Expr:
        if node.args.get("format"):
            raise refuse("TO_DATE with a format")
        return Call("to_date", (self.expression(node.this),))

    def _date_add(self, node: Any) -> Expr:
        if str(node.args.get("unit") or "DAY").upper() != "DAY":
            raise refusal(node)
        days = node.expression
        if isinstance(days, exp.Mul) and _sql(days.expression) == "-1":  # how sqlglot writes DATE_SUB
            return Call("date_sub", (self._undated(node.this), self.expression(days.this)))
        return Call("date_add", (self._undated(node.this), self.expression(days)))

    def _undated(self, node: Any) -> Expr:
        """Without the conversion to a date that sqlglot puts around arguments; these functions have it built in."""
        return self.expression(node.this if isinstance(node, exp.TsOrDsToDate) else node)

    def _date_difference(self, node: Any) -> Expr:
        if node.args.get("unit"):
            raise refusal(node)
        return Call("datediff", (self._undated(node.this), self._undated(node.expression)))

    def _unix(self, node: Any) -> Expr:
        if "unix_timestamp(" not in _sql(node).lower() or "," in _sql(node):
            raise refuse("UNIX_TIMESTAMP with a format", "CAST to TIMESTAMP first")
        return Call("unix_timestamp", (self.expression(node.this),))

    def _named(self, node: Any) -> Expr:
        name = str(node.this).lower()
        if name not in NAMED:
            raise refusal(node)
        return Call(name, tuple(map(self.expression, node.expressions)))

    RULES: ClassVar[dict[type, Callable[[Translator, Any], Expr]]] = {
        exp.Literal: _literal, exp.Boolean: _boolean, exp.Null: _null, exp.HexString: _hex, exp.RawString: _text,
        exp.Neg: _negation, exp.Interval: _interval, exp.Add: _sum, exp.Sub: _sum, exp.Is: _is, exp.In: _in,
        exp.Between: _between, exp.Like: _like, exp.Escape: _escape, exp.NullSafeNEQ: _distinct_from, exp.Cast: _cast,
        exp.TryCast: _cast,
        exp.Case: _case, exp.If: _if, exp.Concat: _concat, exp.Trim: _trim, exp.Substring: _substring,
        exp.Round: _round, exp.Floor: _whole, exp.Ceil: _whole, exp.TimestampTrunc: _date_trunc,
        exp.TsOrDsToDate: _to_date, exp.TsOrDsAdd: _date_add, exp.DateDiff: _date_difference, exp.StrToUnix: _unix,
        exp.Anonymous: _named,
    }  # fmt: skip


def _check_parts(node: Any) -> None:
    """Refuse a node with a part that no rule below looks at: a flag that is overlooked changes the meaning silently."""
    known = {*_PARTS, *_MORE_PARTS.get(type(node), "").split()}
    unknown = [part for part, value in node.args.items() if value and part not in known]
    if unknown and type(node) in {*BINARY, *UNARY, *DATE_PARTS, *VARIADIC, *Translator.RULES}:
        raise refuse(f"`{_sql(node)}` ({', '.join(unknown)})")


def _is_number(node: Any) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string


_SUFFIXES = {"Y": pa.int8(), "S": pa.int16(), "L": pa.int64(), "F": pa.float32(), "D": pa.float64()}
_NUMBER = re.compile(r"(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(BD|[YSLFD])?", re.IGNORECASE)


def _number(text: str) -> Lit:
    """A number as Spark types it: by its suffix, else INT or BIGINT as it fits, DECIMAL with a point, DOUBLE with e."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise QueryError(f"query: {text} is no number")
    digits, suffix = found[1], (found[2] or "").upper()
    value = decimal.Decimal(digits)
    dtype = _SUFFIXES.get(suffix)
    if dtype is None and not suffix and "e" in digits.lower():
        dtype = pa.float64()
    if dtype is None and not suffix and "." not in digits and -(2**63) <= int(value) < 2**63:
        dtype = pa.int32() if -(2**31) <= int(value) < 2**31 else pa.int64()
    if dtype is None:
        return _decimal(text, value)
    if pa.types.is_floating(dtype):
        number = float(np.float32(digits)) if dtype == pa.float32() else float(digits)
        if math.isinf(number):
            raise QueryError(f"query: the number {text} is outside the range of {type_name(dtype)}")
        return Lit(number, dtype)
    bound = 1 << (dtype.bit_width - 1)
    if value != int(value) or "." in digits or not -bound <= int(value) < bound:
        raise QueryError(f"query: the number {text} is no {type_name(dtype)}")
    return Lit(int(value), dtype)


def _decimal(text: str, value: decimal.Decimal) -> Lit:
    _, digits, exponent = value.as_tuple()
    scale = max(-int(exponent), 0)
    precision = max(len(digits) + max(int(exponent), 0), scale)
    if precision > 38:
        raise QueryError(f"query: the number {text} has more than 38 digits")
    return Lit(value, pa.decimal128(precision, scale))


def _unit(interval: Any) -> str:
    unit = interval.args.get("unit")
    if not isinstance(unit, exp.Var):
        raise refuse(f"`{_sql(interval)}`", "write it with one unit, such as INTERVAL 90 MINUTES")
    return str(unit.name).upper().removesuffix("S")


def _interval_parts(interval: Any) -> tuple[int, int]:
    """Months and microseconds of INTERVAL '<number>' <unit>."""
    unit, number = _unit(interval), interval.this
    sign = 1
    if isinstance(number, exp.Neg):
        sign, number = -1, number.this
    try:
        amount = sign * decimal.Decimal(str(number.name)) if isinstance(number, exp.Literal) else None
    except decimal.InvalidOperation:
        amount = None
    if amount is None:
        raise refuse(f"`{_sql(interval)}`", "an interval is a literal number of one unit, such as INTERVAL 90 MINUTES")
    micros, months = amount * _MICROS.get(unit, 0), amount * _MONTHS.get(unit, 0)
    if not -(2**63) <= micros < 2**63 or not -(2**31) <= months < 2**31:
        raise QueryError(f"query: `{_sql(interval)}` is longer than an INTERVAL can be")
    if unit in _MICROS and micros % 1 == 0 and (unit == "SECOND" or amount % 1 == 0):
        return 0, int(micros)
    if unit in _MONTHS and amount % 1 == 0:
        return int(months), 0
    raise refuse(f"`{_sql(interval)}`", f"units are {', '.join([*_MICROS, *_MONTHS])}, in whole numbers")


def _column_by_column(row: Any) -> str:
    """What to write instead of a comparison of rows."""
    other = row.parent.expression if isinstance(row.parent, exp.EQ) else None
    pairs = zip(row.expressions, other.expressions if isinstance(other, exp.Tuple) else (), strict=False)
    written = " AND ".join(f"{_sql(a)} = {_sql(b)}" for a, b in pairs) or "a.k = b.k AND a.v = b.v"
    return f"compare column by column, `{written}`: Spark takes a row for a struct, in which NULL equals NULL"


def _sql(node: Any) -> str:
    return str(node.sql(dialect="spark"))


def _names(node: Any) -> list[str]:
    """The parts of a name that ends in fields of a struct: `o.address.street`, `(o.address).street`."""
    if isinstance(node, exp.Paren):
        return _names(node.this)
    if isinstance(node, exp.Column):
        return [str(part.name) for part in node.parts]
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
        return [*_names(node.this), str(node.expression.name)]
    raise refuse(f"a field of `{node.sql(dialect='spark')}`, which is no column,")


def refusal(node: Any) -> QueryError:
    """Why an expression cannot be part of the join."""
    if isinstance(node, exp.Window):
        return refuse(f"the window function `{_sql(node)}`")
    if isinstance(node, exp.AggFunc):
        return refuse(f"the aggregate `{_sql(node)}`", "aggregate downstream: .groupBy(…).agg(…) on the DataFrame")
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists | exp.SetOperation):
        return refuse("a subquery", "make it an input of the join, or do it downstream on the DataFrame")
    if isinstance(node, exp.Func):
        spelled = _sql(node)
        name = spelled.partition("(")[0] if re.match(r"\w+\(", spelled) else str(node.sql_name())
        if name.lower() in _IMPURE:
            return QueryError(
                f"query: {name.lower()}() is not supported in the join, since a batch that is run again must give the"
                " same rows; add it downstream with withColumn"
            )
        return QueryError(f"query: {unknown_function(name)}")
    if isinstance(node, exp.Tuple):
        return refuse(f"the row `{_sql(node)}`", _column_by_column(node))
    if isinstance(node, exp.Star):
        return refuse("* inside an expression")
    return refuse(f"`{_sql(node)}`")
