"""Comparisons and arithmetic as Spark's ANSI mode does them, over Arrow arrays.

A value is an array, or a scalar when it stands for a literal of the query; at least one argument is an array.

Covered: numbers with Spark's widening and decimal precision rules, overflow and division by zero as errors, NaN equal
to NaN and greater than all, dates and times with intervals. What is compared is first brought into one type, as in
Spark. Not covered: comparisons of nested types, arithmetic of decimals whose exact result needs more than 76
digits, and year-month intervals as values (`add_months` adds them to dates and timestamps).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.mjoin.casts import (
    DAY_INTERVAL,
    INTERVAL,
    cast,
    common_type,
    common_type_of,
    decimal_digits,
    fit_decimal,
    kind,
    type_name,
)
from spark_mjoin.schema import TIMESTAMP

Value = Any  # pa.Array | pa.Scalar; pyarrow has no stubs

_NUMBERS = ("integer", "float", "decimal")
_SECONDS_PER_DAY = 86_400


def to(value: Value, dtype: pa.DataType) -> Value:
    """`value` cast to `dtype`, a scalar staying a scalar."""
    if isinstance(value, pa.Scalar):
        return cast(pa.repeat(value, 1), dtype)[0]
    return cast(value, dtype)


def condition(value: Value) -> Value:
    """`value` as a truth value; TypeError when it is none."""
    if kind(value.type) not in ("boolean", "null"):
        raise TypeError(f"a condition must be BOOLEAN and this is {type_name(value.type)}")
    return to(value, pa.bool_())


# --- comparison ------------------------------------------------------------------------------------------------


def aligned(a: Value, b: Value) -> tuple[Value, Value]:
    """Both values in the type that they are compared in."""
    kinds = {kind(a.type), kind(b.type)}
    if "nested" in kinds:
        nested = a.type if kind(a.type) == "nested" else b.type
        raise TypeError(f"values of type {type_name(nested)} cannot be compared here; compare their fields")
    dtype = common_type(a.type, b.type)
    if pa.types.is_null(dtype):
        dtype = pa.bool_()
    return to(a, dtype), to(b, dtype)


def equal(args: Sequence[Value]) -> Value:
    a, b = aligned(*args)
    same = pc.equal(a, b)
    if kind(a.type) == "float":
        return pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return same


def less(args: Sequence[Value]) -> Value:
    a, b = aligned(*args)
    below = pc.less(a, b)
    if kind(a.type) == "float":
        return pc.or_(below, pc.and_(pc.invert(pc.is_nan(a)), pc.is_nan(b)))
    return below


def not_equal(args: Sequence[Value]) -> Value:
    return pc.invert(equal(args))


def greater(args: Sequence[Value]) -> Value:
    return less((args[1], args[0]))


def less_equal(args: Sequence[Value]) -> Value:
    return pc.invert(greater(args))


def greater_equal(args: Sequence[Value]) -> Value:
    return pc.invert(less(args))


def null_safe_equal(args: Sequence[Value]) -> Value:
    a, b = args
    both = pc.and_(pc.is_null(a), pc.is_null(b))
    return pc.or_(pc.fill_null(equal(args), False), both)


def extreme(better: Callable[[Sequence[Value]], Value]) -> Callable[[Sequence[Value]], Value]:
    """GREATEST and LEAST: NULLs are skipped, NaN is the greatest."""

    def run(args: Sequence[Value]) -> Value:
        dtype = common_type_of((a.type for a in args), strings=False)

        def pick(a: Value, b: Value) -> Value:
            take_b = pc.or_(pc.is_null(a), pc.fill_null(better((b, a)), False))
            return pc.if_else(take_b, b, a)

        return reduce(pick, (to(a, dtype) for a in args))

    return run


def later_by(args: Sequence[Value]) -> Value:
    """An event time and some microseconds, at the most the last time that there is. No query can write it."""
    time, by = args[0].cast(pa.int64()), args[1].cast(pa.int64())
    last = pa.scalar(2**63 - 1, pa.int64())
    room = pc.subtract(last, pc.max_element_wise(time, pa.scalar(0, pa.int64())))  # of times before 1970 there is more
    return pc.add(time, pc.min_element_wise(by, room)).cast(args[0].type)


# --- arithmetic ------------------------------------------------------------------------------------------------


def _plus_type(p1: int, s1: int, p2: int, s2: int) -> tuple[int, int]:
    scale = max(s1, s2)
    return max(p1 - s1, p2 - s2) + scale + 1, scale


def _times_type(p1: int, s1: int, p2: int, s2: int) -> tuple[int, int]:
    return p1 + p2 + 1, s1 + s2


def _over_type(p1: int, s1: int, p2: int, s2: int) -> tuple[int, int]:
    scale = max(6, s1 + p2 + 1)
    return p1 - s1 + s2 + scale, scale


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Spark's DecimalType.adjustPrecisionScale: over 38 digits the fraction gives way, down to 6 digits."""
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.decimal128(38, max(38 - (precision - scale), min(scale, 6)))


def _operand(value: Value) -> tuple[Value, int, int]:
    """An exact number as decimal256, with the precision and scale that Spark gives it."""
    precision, scale = decimal_digits(value.type)
    return pc.cast(value, pa.decimal256(max(precision, 20 if scale == 0 else precision), scale)), precision, scale


def _numbers(args: Sequence[Value], symbol: str) -> tuple[Value, Value]:
    """Both operands; strings and NULLs take the type of the other side, as in Spark."""
    a, b = args
    kinds = (kind(a.type), kind(b.type))
    if all(k in _NUMBERS for k in kinds):
        return a, b
    if any(k in _NUMBERS for k in kinds) and all(k in (*_NUMBERS, "string", "null") for k in kinds):
        dtype = common_type(a.type, b.type)
        return (a if kinds[0] in _NUMBERS else to(a, dtype)), (b if kinds[1] in _NUMBERS else to(b, dtype))
    raise TypeError(f"{type_name(a.type)} {symbol} {type_name(b.type)} is not defined")


_ResultType = Callable[[int, int, int, int], tuple[int, int]]


def _arithmetic(symbol: str, compute: Callable[[Value, Value], Value], result: _ResultType) -> Callable[..., Value]:
    def run(args: Sequence[Value]) -> Value:
        a, b = _numbers(args, symbol)
        if "decimal" in (kind(a.type), kind(b.type)) and "float" not in (kind(a.type), kind(b.type)):
            (left, p1, s1), (right, p2, s2) = _operand(a), _operand(b)
            _check_digits(result(left.type.precision, s1, right.type.precision, s2)[0], a, b, symbol)
            return fit_decimal(compute(left, right), bounded_decimal(*result(p1, s1, p2, s2)))
        dtype = common_type(a.type, b.type)
        return compute(to(a, dtype), to(b, dtype))

    return run


def _check_digits(digits: int, a: Value, b: Value, symbol: str) -> None:
    if digits > 76:
        operation = f"{type_name(a.type)} {symbol} {type_name(b.type)}"
        raise TypeError(f"{operation} needs more than 76 digits; CAST to fewer, or to DOUBLE")


_add_numbers = _arithmetic("+", pc.add_checked, _plus_type)
_subtract_numbers = _arithmetic("-", pc.subtract_checked, _plus_type)
multiply = _arithmetic("*", pc.multiply_checked, _times_type)


def add(args: Sequence[Value]) -> Value:
    a, b = args
    if kind(a.type) == "duration" and kind(b.type) != "duration":
        a, b = b, a
    if kind(b.type) != "duration":
        return _add_numbers(args)
    return _moved(a, b, "+")


def subtract(args: Sequence[Value]) -> Value:
    a, b = args
    if kind(b.type) == "duration":
        return _moved(a, b, "-")
    times = ("date", "timestamp", "timestamp_ntz")
    if kind(a.type) in times and (kind(b.type) in times or kind(b.type) == "string"):
        dtype = common_type(a.type, b.type)
        if kind(dtype) == "date":
            days = pc.subtract(*(to(v, dtype).cast(pa.int32()).cast(pa.int64()) for v in args))
            seconds = pc.multiply(days, _SECONDS_PER_DAY)
            return to(to(seconds.cast(DAY_INTERVAL), INTERVAL), DAY_INTERVAL)  # more than fit are an error
        return pc.subtract_checked(to(a, dtype), to(b, dtype))
    return _subtract_numbers(args)


def _moved(start: Value, by: Value, symbol: str) -> Value:
    """A date, a timestamp or an interval, moved by an interval; of whole days, a date and an interval of days stay so.

    Any other interval makes a date its midnight, as in Spark.
    """
    of = kind(start.type)
    if of == "date" and by.type == DAY_INTERVAL:
        days = pc.divide(by.cast(pa.int64()), _SECONDS_PER_DAY).cast(pa.int32())
        move = pc.add if symbol == "+" else pc.subtract  # which begin again at the other end, as in Java
        return move(start.cast(pa.int32()), days).cast(pa.date32())
    if of not in ("date", "timestamp", "timestamp_ntz", "duration", "null"):  # of a string Spark makes a string again
        raise TypeError(f"{type_name(start.type)} {symbol} INTERVAL is not defined here; CAST it to TIMESTAMP or DATE")
    dtype = by.type if of == "null" else start.type
    instants = to(start, {"date": TIMESTAMP, "duration": INTERVAL, "null": INTERVAL}.get(of, start.type))
    move = pc.add_checked if symbol == "+" else pc.subtract_checked
    moved = move(instants, to(by, INTERVAL))
    return to(moved, DAY_INTERVAL) if dtype == by.type == DAY_INTERVAL else moved


def divide(args: Sequence[Value]) -> Value:
    """`/`: exact for decimals, in floating point for all else, integers too, and nothing but NULL over a decimal."""
    a, b = _numbers(args, "/")
    kinds = {kind(a.type), kind(b.type)}
    if kind(args[0].type) == "null":
        kinds = {"float"}
    if "decimal" not in kinds or "float" in kinds:
        return pc.divide_checked(to(a, pa.float64()), to(b, pa.float64()))
    (left, p1, s1), (right, p2, s2) = _operand(a), _operand(b)
    dtype = bounded_decimal(*_over_type(p1, s1, p2, s2))
    # Arrow cuts the quotient at scale s1 + p2 - s2 + 1. One digit more than the result has is enough to round half up.
    arrow_p2 = right.type.precision
    scale = max(s1, dtype.scale + s2 - arrow_p2)
    _check_digits(p1 - s1 + scale + arrow_p2 + 1, a, b, "/")
    return fit_decimal(pc.divide_checked(pc.cast(left, pa.decimal256(p1 - s1 + scale, scale)), right), dtype)


def integer_divide(args: Sequence[Value]) -> Value:
    """`div`: the quotient without its fraction, BIGINT."""
    a, b = _integers(args, "div")
    return pc.divide_checked(a, b)


def remainder(args: Sequence[Value]) -> Value:
    """`%`: has the sign of the dividend."""
    a, b = _numbers(args, "%")
    if {kind(a.type), kind(b.type)} == {"integer"}:
        dtype = common_type(a.type, b.type)
        a, b = to(a, dtype), to(b, dtype)
        # x % -1 is 0, and the only quotient that overflows is a smallest integer over -1.
        b = pc.if_else(pc.equal(b, pa.scalar(-1, dtype)), pa.scalar(1, dtype), b)
        return pc.subtract(a, pc.multiply(pc.divide_checked(a, b), b))
    if "decimal" in (kind(a.type), kind(b.type)):
        raise TypeError("% of DECIMAL is not supported here; CAST to BIGINT or DOUBLE, or do it downstream")
    dtype = common_type(a.type, b.type)
    a, b = to(a, dtype), to(b, dtype)
    pc.divide_checked(a, b)  # raises on a zero divisor
    length = len(a) if isinstance(a, pa.Array) else len(b)
    x, y = (np.asarray(_filled(v, length)) for v in (a, b))
    with np.errstate(invalid="ignore"):
        result = np.fmod(x, y)
    missing = pc.or_(pc.is_null(a), pc.is_null(b))
    return pa.array(result, mask=np.asarray(_broadcast(missing, length)))


def negate(args: Sequence[Value]) -> Value:
    if kind(args[0].type) not in (*_NUMBERS, "duration"):
        raise TypeError(f"- {type_name(args[0].type)} is not defined")
    if kind(args[0].type) == "duration":
        return pc.negate_checked(args[0].cast(pa.int64())).cast(args[0].type)
    return pc.negate_checked(_of_34_digits(args[0]))


def absolute(args: Sequence[Value]) -> Value:
    if kind(args[0].type) not in _NUMBERS:
        raise TypeError(f"abs takes a number and this is {type_name(args[0].type)}")
    return pc.abs_checked(_of_34_digits(args[0]))


def _of_34_digits(value: Value) -> Value:
    """Raise for decimals of more digits: Spark rounds them to 34 when it changes their sign."""
    if kind(value.type) == "decimal" and value.type.precision > 34:
        wide = pc.cast(value, pa.decimal256(76, value.type.scale))
        bound = pa.scalar(decimal.Decimal(10) ** (34 - value.type.scale), wide.type)
        if pc.any(pc.greater_equal(pc.abs(wide), bound)).as_py():
            raise ValueError("the sign of a DECIMAL of more than 34 digits is not supported here")
    return value


def _integers(args: Sequence[Value], symbol: str) -> tuple[Value, Value]:
    a, b = _numbers(args, symbol)
    if {kind(a.type), kind(b.type)} != {"integer"}:
        raise TypeError(f"{type_name(a.type)} {symbol} {type_name(b.type)} is not supported here; CAST to BIGINT")
    return to(a, pa.int64()), to(b, pa.int64())


def _broadcast(value: Value, rows: int) -> pa.Array:
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _filled(value: Value, rows: int) -> pa.Array:
    return _broadcast(value, rows).fill_null(1.0)
