"""The scalar functions of the query language, beside operators and conditionals.

Each takes evaluated arguments (see `arithmetic.Value`) and gives Spark's answer or raises. What cannot be done with
exactly Spark's result is left out: regular expressions (Java's and Arrow's differ), formatting, named time zones,
everything that depends on a clock or on randomness. Wherever a zone matters it is UTC.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.mjoin import arithmetic
from spark_mjoin.mjoin.arithmetic import Value, to
from spark_mjoin.mjoin.casts import fit_decimal, kind, type_name
from spark_mjoin.schema import TIMESTAMP

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Days = np.ndarray[Any, Any]  # of days, as datetime64 or as numbers

# --- arguments -------------------------------------------------------------------------------------------------


def _literal(value: Value, what: str) -> object:
    """The constant of an argument that has to be one."""
    if not isinstance(value, pa.Scalar):
        raise TypeError(f"{what} must be a literal")
    return value.as_py()


def _integer_literal(value: Value, what: str) -> int:
    number = _literal(value, what)
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{what} must be an integer literal")
    if not -(2**31) <= number < 2**31:
        raise TypeError(f"{what} must be an INT")
    return number


def _text(value: Value) -> Value:
    """A string; other atomic types are cast to one, as Spark does implicitly."""
    return to(value, pa.string())


_TIMES = ("string", "date", "timestamp", "timestamp_ntz", "null")


def _time(value: Value, dtype: pa.DataType) -> Value:
    """A date or a timestamp of what Spark casts to one implicitly."""
    if kind(value.type) not in _TIMES:
        raise TypeError(f"{type_name(value.type)} is no {type_name(dtype)}; CAST it")
    return to(value, dtype)


def _number(value: Value, name: str) -> Value:
    if kind(value.type) not in ("integer", "float", "decimal"):
        raise TypeError(f"{name} takes a number and this is {type_name(value.type)}")
    return value


# --- strings ---------------------------------------------------------------------------------------------------


def concat(args: Sequence[Value]) -> Value:
    if all(kind(a.type) == "binary" for a in args):
        return pc.binary_join_element_wise(*args, pa.scalar(b"", pa.binary()), null_handling="emit_null")
    return pc.binary_join_element_wise(*map(_text, args), "", null_handling="emit_null")


def _cased(ascii_kernel: Callable[[pa.Array], pa.Array], method: Callable[[str], str]) -> Callable[..., Value]:
    """Arrow maps character to character; beyond ASCII one character may become several, as in Java and Python."""

    def run(args: Sequence[Value]) -> Value:
        text = _text(args[0])
        if pc.all(pc.string_is_ascii(text), min_count=0).as_py():
            return ascii_kernel(text)
        return pa.array([None if v is None else method(v) for v in text.to_pylist()], pa.string())

    return run


def length(args: Sequence[Value]) -> Value:
    if kind(args[0].type) == "binary":
        return pc.binary_length(args[0])
    return pc.utf8_length(_text(args[0]))


def _trimmer(kernel: Callable[..., pa.Array]) -> Callable[..., Value]:
    """TRIM(s) takes away spaces and nothing else; TRIM(s, 'xy') the characters x and y."""

    def run(args: Sequence[Value]) -> Value:
        characters = _literal(args[1], "the characters to trim") if len(args) > 1 else " "
        if not isinstance(characters, str) or not characters:
            raise TypeError("the characters to trim must be a string literal that is not empty")
        return kernel(_text(args[0]), characters=characters)

    return run


def substring(args: Sequence[Value]) -> Value:
    """Positions count from 1, from the end when negative, and 0 means 1."""
    start = _integer_literal(args[1], "the position of SUBSTRING")
    count = _integer_literal(args[2], "the length of SUBSTRING") if len(args) > 2 else 2**31 - 1
    start = start - 1 if start > 0 else start
    binary = kind(args[0].type) == "binary"
    subject, cut = (args[0], pc.binary_slice) if binary else (_text(args[0]), pc.utf8_slice_codeunits)
    if count <= 0:
        return cut(subject, 0, 0)
    if start < 0 <= start + count:
        return cut(subject, start)
    return cut(subject, start, min(start + count, 2**31 - 1))


def like(args: Sequence[Value]) -> Value:
    """`%` is any text, `_` one character; the escape is a backslash unless the third argument says otherwise."""
    pattern = _literal(args[1], "the pattern of LIKE")
    escape = _literal(args[2], "the escape of LIKE") if len(args) > 2 else "\\"
    if not isinstance(pattern, str) or not isinstance(escape, str) or len(escape) != 1:
        raise TypeError("LIKE takes a string literal, and one character as its escape")
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ValueError(f"the LIKE pattern '{pattern}' has an escape before something that needs none")
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or _quoted(character))
    text = _text(args[0])
    text.cast(pa.binary()).cast(pa.string())  # raises for what is no UTF-8, which would match otherwise
    return pc.match_substring_regex(text, r"(?s)\A" + "".join(parts) + r"\z")


def _quoted(character: str) -> str:
    return character if character.isalnum() else rf"\x{{{ord(character):x}}}"


# --- numbers ---------------------------------------------------------------------------------------------------


def round_half_up(args: Sequence[Value]) -> Value:
    """ROUND(x, d): half away from zero, on the decimal digits that a double is written with."""
    x = _number(args[0], "round")
    digits = _integer_literal(args[1], "the number of digits of ROUND") if len(args) > 1 else 0
    if not 0 <= digits <= 38:
        raise TypeError(f"ROUND to {digits} digits is not supported here; do it downstream")
    if kind(x.type) == "integer":
        return x
    if kind(x.type) == "decimal":
        scale = min(x.type.scale, digits)
        precision = min(x.type.precision - x.type.scale + 1 + scale, 38)
        return fit_decimal(x.cast(pa.decimal256(76, x.type.scale)), pa.decimal128(precision, scale))
    if x.type == pa.float32():
        raise TypeError("ROUND of FLOAT is not supported here; CAST to DOUBLE")
    values = x.fill_null(0.0).to_numpy()
    rounded, sure = _rounded(values, digits)
    rounded[~sure] = [_rounded_as_written(v, digits) for v in values[~sure].tolist()]
    return pa.array(rounded + 0.0, mask=x.is_null().to_numpy(zero_copy_only=False))  # there is no -0.0 in BigDecimal


def _rounded(values: Floats, digits: int) -> tuple[Floats, Bools]:
    """The values rounded, and which of them are certain: not those in whose error of calculation is a half."""
    if digits > 22:  # powers of ten are exact up to here
        return values.copy(), ~np.isfinite(values)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.abs(values) * 10.0**digits
        whole = np.floor(scaled + 0.5)
        close = np.abs(scaled - np.floor(scaled) - 0.5) <= scaled * 2.0**-50
        rounded = np.where(np.isfinite(values), np.copysign(whole / 10.0**digits, values), values)
    return rounded, ((scaled < 2.0**50) & ~close) | ~np.isfinite(values)


def _rounded_as_written(value: float, digits: int) -> float:
    """By the decimal digits that a double is written with, as Java does it."""
    context = decimal.Context(prec=1500, rounding=decimal.ROUND_HALF_UP)
    return float(decimal.Decimal(repr(value)).quantize(decimal.Decimal(1).scaleb(-digits), context=context))


def _whole(mode: str, rounding: Callable[[pa.Array], pa.Array]) -> Callable[..., Value]:
    """FLOOR and CEIL: BIGINT, and DECIMAL without a fraction for decimals."""

    def run(args: Sequence[Value]) -> Value:
        x = _number(args[0], mode)
        if kind(x.type) == "integer":
            return x.cast(pa.int64())
        if kind(x.type) == "decimal":
            precision = min(x.type.precision - x.type.scale + 1, 38) if x.type.scale else x.type.precision
            wide = x.cast(pa.decimal256(76, x.type.scale))
            return fit_decimal(rounding(wide), pa.decimal128(precision, 0))
        values = np.nan_to_num(rounding(x.cast(pa.float64())).fill_null(0.0).to_numpy(), posinf=np.inf, neginf=-np.inf)
        outside = values[(values < -(2.0**63)) | (values >= 2.0**63)]  # NaN is 0, as in Spark
        if len(outside):
            raise OverflowError(f"overflow: {mode} of {outside[0]:g} is no BIGINT")
        return pa.array(values.astype(np.int64), mask=x.is_null().to_numpy(zero_copy_only=False))

    return run


# --- dates and times -------------------------------------------------------------------------------------------


def _time_part(kernel: Callable[[pa.Array], pa.Array]) -> Callable[..., Value]:
    def run(args: Sequence[Value]) -> Value:
        x = args[0] if kind(args[0].type) == "timestamp_ntz" else _time(args[0], TIMESTAMP)
        return kernel(x).cast(pa.int32())

    return run


def _date_part(part: Callable[[Days], Days]) -> Callable[..., Value]:
    """Of all dates that an INT counts; Arrow's calendar ends at the year 32767."""

    def run(args: Sequence[Value]) -> Value:
        date = _time(args[0], pa.date32()).cast(pa.int32())
        days = date.fill_null(0).to_numpy().astype("datetime64[D]")
        return pa.array(part(days).astype(np.int32), mask=date.is_null().to_numpy(zero_copy_only=False))

    return run


def _months(days: Days) -> Days:
    """Months since 1970-01."""
    return days.astype("datetime64[M]").astype(np.int64)


def _day(days: Days) -> Days:
    first: Days = days.astype("datetime64[M]").astype("datetime64[D]")
    return np.asarray((days - first).astype(np.int64) + 1)


_UNITS = {
    "year": "year", "yyyy": "year", "yy": "year", "quarter": "quarter", "month": "month", "mon": "month",
    "mm": "month", "week": "week", "day": "day", "dd": "day", "hour": "hour", "minute": "minute", "second": "second",
    "millisecond": "millisecond", "microsecond": "microsecond",
}  # fmt: skip


_ARROWS_CALENDAR = 28_000 * 365 * 86_400_000_000  # microseconds from 1970 that it reaches at least, both ways


def date_trunc(args: Sequence[Value]) -> Value:
    """DATE_TRUNC(unit, t): always TIMESTAMP; weeks begin on Monday."""
    unit = str(_literal(args[0], "the unit of DATE_TRUNC")).lower()
    if unit not in _UNITS:
        raise TypeError(f"DATE_TRUNC knows no unit '{unit}'; it knows {', '.join(_UNITS)}")
    instants = _time(args[1], TIMESTAMP)
    ends = pc.min_max(instants.cast(pa.int64()))
    if max(abs(ends[end].as_py() or 0) for end in ("min", "max")) > _ARROWS_CALENDAR:
        raise ValueError("DATE_TRUNC of a year beyond 30000 is not supported here")
    return pc.floor_temporal(instants, unit=_UNITS[unit], week_starts_monday=True)


def date_difference(args: Sequence[Value]) -> Value:
    """DATEDIFF(end, start): days."""
    end, start = (_time(a, pa.date32()).cast(pa.int32()) for a in args)
    return pc.subtract(end, start)  # which begins again at the other end, as in Java


def _moved(date: Value, move: Callable[[pa.Array, pa.Scalar], pa.Array], days: int) -> Value:
    """Days that no INT holds begin again at the other end, as in Java."""
    return move(date.cast(pa.int32()), pa.scalar(days, pa.int32())).cast(pa.date32())


def _date_mover(move: Callable[[pa.Array, pa.Scalar], pa.Array]) -> Callable[..., Value]:
    def run(args: Sequence[Value]) -> Value:
        if args[1].type == pa.int64():
            raise TypeError("the number of days must be an INT and this is BIGINT")
        return _moved(_time(args[0], pa.date32()), move, _integer_literal(args[1], "the number of days"))

    return run


def add_months(args: Sequence[Value]) -> Value:
    """The same day of another month, or that month's last day when it is shorter; the time of day stays."""
    months = _integer_literal(args[1], "the number of months")
    x = args[0]
    if kind(x.type) not in ("date", "timestamp", "timestamp_ntz"):
        raise TypeError(f"{type_name(x.type)} + INTERVAL is not defined here; CAST it to TIMESTAMP or DATE")
    date = to(x, pa.date32())
    days = date.cast(pa.int32()).fill_null(0).to_numpy().astype("datetime64[D]")
    month = days.astype("datetime64[M]")
    target = month + months
    last = (target + 1).astype("datetime64[D]") - np.timedelta64(1, "D")
    moved = np.minimum(target.astype("datetime64[D]") + (days - month.astype("datetime64[D]")), last)
    missing = date.is_null().to_numpy(zero_copy_only=False)
    numbers = pa.array(moved.astype(np.int64), mask=missing)
    if pc.any(pc.not_equal(numbers.cast(pa.int32(), safe=False).cast(pa.int64()), numbers), min_count=0).as_py():
        raise OverflowError(f"overflow: {months} months more are no DATE")
    result = numbers.cast(pa.int32()).cast(pa.date32())
    if kind(x.type) == "date":
        return result
    time_of_day = pc.subtract(x, to(date, x.type))
    return pc.add_checked(to(result, x.type), time_of_day)


def to_date(args: Sequence[Value]) -> Value:
    return _time(args[0], pa.date32())


def unix_timestamp(args: Sequence[Value]) -> Value:
    if kind(args[0].type) not in ("date", "timestamp", "timestamp_ntz"):
        raise TypeError("UNIX_TIMESTAMP takes a date or a timestamp here; CAST a string to TIMESTAMP first")
    return pc.divide(to(args[0], TIMESTAMP).cast(pa.int64()), 1_000_000)  # towards zero, unlike CAST


def field(args: Sequence[Value]) -> Value:
    """A field of a struct; NULL where the struct is."""
    name = _literal(args[1], "the field")
    if not pa.types.is_struct(args[0].type):
        raise TypeError(f"{type_name(args[0].type)} has no field '{name}': it is no STRUCT")
    return pc.struct_field(args[0], name)


# name -> implementation, fewest and most arguments
SCALAR: dict[str, tuple[Callable[[Sequence[Value]], Value], int, int]] = {
    "concat": (concat, 1, 1000),
    "upper": (_cased(pc.ascii_upper, str.upper), 1, 1),
    "lower": (_cased(pc.ascii_lower, str.lower), 1, 1),
    "length": (length, 1, 1),
    "trim": (_trimmer(pc.utf8_trim), 1, 2),
    "ltrim": (_trimmer(pc.utf8_ltrim), 1, 2),
    "rtrim": (_trimmer(pc.utf8_rtrim), 1, 2),
    "substring": (substring, 2, 3),
    "like": (like, 2, 3),
    "abs": (arithmetic.absolute, 1, 1),
    "round": (round_half_up, 1, 2),
    "floor": (_whole("floor", pc.floor), 1, 1),
    "ceil": (_whole("ceil", pc.ceil), 1, 1),
    "year": (_date_part(lambda days: 1970 + _months(days) // 12), 1, 1),
    "quarter": (_date_part(lambda days: _months(days) % 12 // 3 + 1), 1, 1),
    "month": (_date_part(lambda days: _months(days) % 12 + 1), 1, 1),
    "day": (_date_part(_day), 1, 1),
    "hour": (_time_part(pc.hour), 1, 1),
    "minute": (_time_part(pc.minute), 1, 1),
    "second": (_time_part(pc.second), 1, 1),
    "date_trunc": (date_trunc, 2, 2),
    "datediff": (date_difference, 2, 2),
    "date_add": (_date_mover(pc.add), 2, 2),
    "date_sub": (_date_mover(pc.subtract), 2, 2),
    "to_date": (to_date, 1, 1),
    "add_months": (add_months, 2, 2),
    "unix_timestamp": (unix_timestamp, 1, 1),
    "field": (field, 2, 2),
}
