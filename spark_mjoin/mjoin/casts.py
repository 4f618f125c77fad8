"""Spark's types: which one two types widen to, and how a value is cast, over whole Arrow arrays.

Covered: the rules of Spark's ANSI mode for NULL, BOOLEAN, the integers, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE,
TIMESTAMP, TIMESTAMP_NTZ, and day-time intervals. Wherever a zone matters it is UTC.

Not covered, and refused with a TypeError: nested types, floating point to string (Java prints digits in its own way),
years outside 0000..9999, named zones and times without a day in strings. Where Spark would give an answer and this
module cannot give the same one, it raises.

Why it is right: a cast first marks the values that the target cannot hold, and then either raises for the first of
them or (`lenient`, for TRY_CAST) makes them NULL; what is left converts without loss. Decimals are rounded half up
in 256 bits and only then checked against the target's precision.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.schema import TIMESTAMP, TIMESTAMP_NTZ

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
INTERVAL = pa.duration("us")
DAY_INTERVAL = pa.duration("s")  # Arrow has no type for whole days; an expression as a whole gives INTERVAL instead
_NAMES = {
    pa.null(): "VOID", pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INT",
    pa.int64(): "BIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "STRING", pa.binary(): "BINARY",
    pa.date32(): "DATE", TIMESTAMP: "TIMESTAMP", TIMESTAMP_NTZ: "TIMESTAMP_NTZ",
    INTERVAL: "INTERVAL DAY TO SECOND", DAY_INTERVAL: "INTERVAL DAY",
}  # fmt: skip
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_MICROS_PER_DAY = 86_400_000_000
_YEAR_0, _YEAR_10000 = -719_528, 2_932_897  # days from 1970-01-01 to the first of that year


# --- types -----------------------------------------------------------------------------------------------------


def type_name(dtype: pa.DataType) -> str:
    """The type as Spark writes it."""
    if pa.types.is_decimal(dtype):
        return f"DECIMAL({dtype.precision},{dtype.scale})"
    if pa.types.is_struct(dtype):
        return "STRUCT<" + ", ".join(f"{f.name}: {type_name(f.type)}" for f in dtype.fields) + ">"
    if pa.types.is_map(dtype):
        return f"MAP<{type_name(dtype.key_type)}, {type_name(dtype.item_type)}>"
    if pa.types.is_list(dtype):
        return f"ARRAY<{type_name(dtype.value_type)}>"
    return _NAMES.get(dtype, str(dtype).upper())


def kind(dtype: pa.DataType) -> str:
    """The family of a type: null, boolean, integer, float, decimal, string, binary, date, timestamp, …, or nested."""
    if dtype in INTEGERS:
        return "integer"
    if dtype in (pa.float32(), pa.float64()):
        return "float"
    if pa.types.is_decimal(dtype):
        return "decimal"
    names = {"VOID": "null", "INTERVAL DAY TO SECOND": "duration", "INTERVAL DAY": "duration"}
    name = _NAMES.get(dtype, "nested")
    return names.get(name, name.lower())


def decimal_digits(dtype: pa.DataType) -> tuple[int, int]:
    """Precision and scale of the decimal that Spark takes for an integer or decimal type."""
    return (_DIGITS[dtype], 0) if dtype in _DIGITS else (dtype.precision, dtype.scale)


def common_type(a: pa.DataType, b: pa.DataType, strings: bool = True) -> pa.DataType:
    """The type that Spark compares `a` and `b` in and that branches of a CASE meet in; TypeError if there is none.

    A string takes the type of the other side, unless `strings` is off. Of decimals that need more than 38 digits the
    fraction gives way, and values are rounded.
    """
    if a.equals(b) or kind(b) == "null":
        return a
    if kind(a) == "null":
        return b
    kinds = {kind(a), kind(b)}
    if kinds == {"integer"}:
        return max(a, b, key=INTEGERS.index)
    if kinds <= {"integer", "float", "decimal"}:
        if "float" in kinds:
            return pa.float64()
        (p1, s1), (p2, s2) = decimal_digits(a), decimal_digits(b)
        whole, scale = max(p1 - s1, p2 - s2), max(s1, s2)
        return pa.decimal128(min(whole + scale, 38), min(scale, 38 - whole))
    if strings and "string" in kinds and "nested" not in kinds and "duration" not in kinds:
        other = a if kind(b) == "string" else b
        return {"integer": pa.int64(), "float": pa.float64(), "decimal": pa.float64()}.get(kind(other), other)
    if kinds <= {"date", "timestamp", "timestamp_ntz"}:
        return TIMESTAMP if "timestamp" in kinds else TIMESTAMP_NTZ
    if kinds == {"duration"}:
        return INTERVAL
    raise TypeError(f"{type_name(a)} and {type_name(b)} do not go together; CAST one of them")


def common_type_of(types: Iterable[pa.DataType], strings: bool = True) -> pa.DataType:
    """The type that all of `types` meet in, from the first to the last, as Spark finds it."""
    return reduce(lambda a, b: common_type(a, b, strings), types, pa.null())


# --- casts -----------------------------------------------------------------------------------------------------


def cast(array: pa.Array, dtype: pa.DataType, lenient: bool = False) -> pa.Array:
    """The array in `dtype`. A value that does not fit raises ValueError, or is NULL with `lenient`."""
    if array.type.equals(dtype):
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), dtype)
    rule = _RULES.get((kind(array.type), kind(dtype)))
    if rule is None:
        raise TypeError(
            f"a cast from {type_name(array.type)} to {type_name(dtype)} is not supported here; do it downstream on the"
            " DataFrame"
        )
    return rule(array, dtype, lenient)


def _only(array: pa.Array, ok: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    """The array, when all its values are `ok`; else an error, or NULLs in place of the others."""
    bad = pc.and_(pc.is_valid(array), pc.invert(pc.fill_null(ok, False)))
    if not pc.any(bad, min_count=0).as_py():
        return array
    if lenient:
        return pc.if_else(bad, pa.scalar(None, array.type), array)
    wrong = array.filter(bad)
    value = (wrong.cast(pa.string()) if pa.types.is_date(array.type) else wrong)[0].as_py()  # Python has fewer dates
    text = repr(value) if isinstance(value, str) else str(value)
    raise ValueError(f"the value {text} cannot be cast to {type_name(dtype)}")


def _integer_bounds(dtype: pa.DataType) -> tuple[int, int]:
    return -(1 << dtype.bit_width - 1), (1 << dtype.bit_width - 1) - 1


def _integer_to_integer(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    if dtype.bit_width < array.type.bit_width:
        low, high = (pa.scalar(bound, array.type) for bound in _integer_bounds(dtype))
        ok = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
        array = _only(array, ok, dtype, lenient)
    return array.cast(dtype)


def _float_to_integer(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    low, high = _integer_bounds(dtype)
    whole = pc.trunc(array.cast(pa.float64()))
    # Java compares in the type of the float, in which the largest BIGINT is 2^63, and makes that the largest BIGINT.
    highest = float(pa.scalar(high).cast(array.type, safe=False).as_py())
    ok = pc.and_(pc.greater_equal(whole, float(low)), pc.less_equal(whole, highest))
    _only(array, ok, dtype, lenient)
    whole = _only(whole, ok, dtype, lenient)
    beyond = pc.greater_equal(whole, float(high + 1))
    return pc.if_else(beyond, pa.scalar(high, dtype), pc.if_else(beyond, 0.0, whole).cast(dtype))


def _decimal_to_integer(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    whole = _cut(array.cast(pa.decimal256(76, array.type.scale)), 0)
    low, high = (pa.scalar(decimal.Decimal(bound), whole.type) for bound in _integer_bounds(dtype))
    ok = pc.and_(pc.greater_equal(whole, low), pc.less_equal(whole, high))
    whole = _only(whole, ok, dtype, lenient)
    return whole.cast(pa.decimal128(38, 0)).cast(dtype)


def _unsafe(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return pc.cast(array, dtype, safe=False)


def _to_boolean(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return pc.not_equal(array, pa.scalar(decimal.Decimal(0) if kind(array.type) == "decimal" else 0, array.type))


def fit_decimal(wide: pa.Array, dtype: pa.DataType, lenient: bool = False) -> pa.Array:
    """A decimal256 array rounded half up to the scale of `dtype` and checked against its precision."""
    array = _cut(wide.cast(pa.decimal256(76, wide.type.scale)), dtype.scale + 1)
    if array.type.scale > dtype.scale:
        array = pc.round(array, ndigits=dtype.scale, round_mode="half_towards_infinity")
    integer_digits = dtype.precision - dtype.scale
    if integer_digits + array.type.scale < 76:
        bound = pa.scalar(decimal.Decimal(10) ** integer_digits, array.type)
        array = _only(array, pc.less(pc.abs(array), bound), dtype, lenient)
    return array.cast(dtype)


def _cut(array: pa.Array, scale: int) -> pa.Array:
    """Without the digits beyond `scale`, nine at a time: Arrow divides 256 bits rightly by 32 bits only."""
    while array.type.scale > scale:
        shorter = pa.decimal256(76, max(scale, array.type.scale - 9))
        array = pc.cast(array, options=pc.CastOptions(target_type=shorter, allow_decimal_truncate=True))
    return array


def _exact_to_decimal(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return fit_decimal(array.cast(pa.decimal256(76, decimal_digits(array.type)[1])), dtype, lenient)


def _boolean_to_decimal(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return _exact_to_decimal(array.cast(pa.int8()), dtype, lenient)


def _text_to_decimal(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    """Value by value: a string or a double may have more digits than 256 bits hold before it is rounded."""
    quantum = decimal.Decimal(1).scaleb(-dtype.scale)
    context = decimal.Context(prec=1000, rounding=decimal.ROUND_HALF_UP)
    bound = decimal.Decimal(10) ** (dtype.precision - dtype.scale)
    from_double = kind(array.type) == "float"
    values = (array.cast(pa.float64()) if from_double else _trimmed(array)).to_pylist()
    result: list[decimal.Decimal | None] = []
    for value in values:
        number: decimal.Decimal | None = None
        if value is not None:
            try:
                number = decimal.Decimal(repr(value) if from_double else value.replace("_", "?"))
                if from_double and not number.is_finite():
                    number = None  # Spark: not a number, hence NULL, in ANSI mode too
                else:
                    number = number.quantize(quantum, context=context)
                    if number.copy_abs() >= bound:  # abs() would round to 28 digits
                        raise decimal.InvalidOperation
            except decimal.InvalidOperation:
                if not lenient:
                    raise ValueError(f"the value {value!r} cannot be cast to {type_name(dtype)}") from None
                number = None
        result.append(number)
    return pa.array(result, dtype)


def _decimal_to_float(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return array.cast(pa.string()).cast(dtype)  # through text: correctly rounded, as BigDecimal.doubleValue


def _plain(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return array.cast(dtype)


def _decimal_to_string(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    if array.type.scale <= 6:
        return array.cast(dtype)
    return pa.array([None if v is None else format(v, "f") for v in array.to_pylist()], dtype)  # never an exponent


def _binary_to_string(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return array.view(dtype)  # the same bytes, whether or not they are valid UTF-8, as in Spark


def _date_to_string(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    _refuse_other_years(pc.min_max(array.cast(pa.int32())), 1)
    return array.cast(dtype)


def _refuse_other_years(extremes: pa.Scalar, per_day: int) -> None:
    """Raise when there is a year that is not written with four digits."""
    first, last = (extremes[end].as_py() for end in ("min", "max"))
    if first is not None and not _YEAR_0 * per_day <= first <= last < _YEAR_10000 * per_day:
        raise ValueError("a year outside 0000 to 9999 as a STRING is not supported here")


def _timestamp_to_string(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    _refuse_other_years(pc.min_max(array.cast(pa.int64())), _MICROS_PER_DAY)
    text = _to_zone(array, TIMESTAMP_NTZ, False).cast(dtype)
    text = pc.replace_substring_regex(text, r"(\.\d*[1-9])0+$", r"\1")
    return pc.replace_substring_regex(text, r"\.0+$", "")


# --- from strings ----------------------------------------------------------------------------------------------

_BLANKS = "".join(map(chr, range(33))) + "\x7f"
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")
_DATE = r"^(?P<y>\d{4})(?:-(?P<mo>\d{1,2})(?:-(?P<d>\d{1,2})(?:[ T]\C*)?)?)?$"  # any bytes
_INSTANT = (
    r"^(?P<y>\d{4})(?:-(?P<mo>\d{1,2})(?:-(?P<d>\d{1,2})(?:[ T](?P<h>\d{1,2})(?::(?P<mi>\d{1,2})(?::(?P<s>\d{1,2})"
    r"(?:\.(?P<f>\d*))?)?)? *(?:Z|UTC|GMT|(?P<sign>[+-])(?P<zh>\d{1,2}):(?P<zm>\d{1,2}))?)?)?)?$"
)
# Spark reads these, or may: a time without a day (today's), five-digit years, signs, other forms of zones.
_OTHER_FORMS = r"^T?\d{1,2}:|^[+-]?\d{5,}|^[+-]\d|:\d.*[A-Za-z+-]"


def _trimmed(array: pa.Array) -> pa.Array:
    return pc.ascii_trim(array, characters=_BLANKS)  # byte by byte: what a BINARY was cast to may be no UTF-8


def _string_to_integer(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    text = _trimmed(array)
    text = _only(text, pc.match_substring_regex(text, r"^[+-]?0*\d{1,19}$"), dtype, lenient)
    text = pc.replace_substring_regex(text, r"^\+", "")
    whole = pc.replace_substring_regex(text, r"^(-?)0*(\d)", r"\1\2").cast(pa.decimal128(38, 0))
    return _decimal_to_integer(whole, dtype, lenient)


def _string_to_float(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    text = _trimmed(array)
    number = r"^(?i:[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?[df]?|nan|[+-]?(?:inf|infinity))$"
    text = _only(text, pc.match_substring_regex(text, number), dtype, lenient)
    text = pc.replace_substring_regex(text, r"^\+", "")
    return pc.replace_substring_regex(text, r"^([^nN]*\d\.?)[dDfF]$", r"\1").cast(dtype)


def _string_to_boolean(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    text = pc.ascii_lower(_trimmed(array))
    known = pc.is_in(text, value_set=pa.array(_TRUE + _FALSE))
    text = _only(text, known, dtype, lenient)
    return pc.if_else(pc.is_null(text), pa.scalar(None, pa.bool_()), pc.is_in(text, value_set=pa.array(_TRUE)))


def _fields(text: pa.Array, pattern: str) -> tuple[pa.Array, dict[str, np.ndarray[Any, Any]]]:
    """Whether each string matches, and the numbers of its groups; 0 where a group is absent."""
    found = pc.extract_regex(text, pattern)
    groups = {}
    for i, field in enumerate(found.type.fields):
        group = pc.fill_null(pc.struct_field(found, [i]), "")
        if field.name == "f":  # the fraction: microseconds, what is finer is cut
            group = pc.utf8_slice_codeunits(pc.utf8_rpad(group, 6, "0"), 0, 6)
        elif field.name == "sign":
            group = pc.if_else(pc.equal(group, "-"), "-1", "1")
        group = pc.if_else(pc.equal(group, ""), "0", group)
        groups[field.name] = group.cast(pa.int64()).to_numpy()
    return pc.is_valid(found), groups


def _days(groups: dict[str, np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Days since 1970 of year, month and day, and which of them exist; an absent month or day is the first."""
    month = np.where(groups["mo"] == 0, 1, groups["mo"])
    day = np.where(groups["d"] == 0, 1, groups["d"])
    months = ((groups["y"] - 1970) * 12 + month - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[D]").astype(np.int64) - first
    return first + day - 1, (month <= 12) & (day <= length)


def _no_zeros(text: pa.Array) -> pa.Array:
    """Month and day 0 do not exist; an absent one does, and `_fields` reports it as 0 too."""
    return pc.invert(pc.match_substring_regex(text, r"^\d{4}(?:-00?(?:-|$)|-\d{1,2}-00?(?:[ T]|$))"))


def _refuse_other_forms(text: pa.Array, matches: pa.Array, dtype: pa.DataType) -> None:
    """Raise, even for TRY_CAST, where NULL would be wrong because Spark may well read the string."""
    other = text.filter(pc.and_(pc.match_substring_regex(text, _OTHER_FORMS), pc.invert(matches)))
    if len(other):
        raise ValueError(f"the form of {other[0].as_py()!r} is not supported here for {type_name(dtype)}")


def _string_to_date(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    text = _trimmed(array)
    matches, groups = _fields(text, _DATE)
    days, exist = _days(groups)
    ok = pc.and_(pc.and_(matches, _no_zeros(text)), pa.array(exist))
    _refuse_other_forms(text, matches, dtype)
    text = _only(text, ok, dtype, lenient)
    return pa.array(days, mask=text.is_null().to_numpy(zero_copy_only=False)).cast(pa.int32()).cast(dtype)


def _string_to_timestamp(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    text = _trimmed(array)
    matches, g = _fields(text, _INSTANT)
    days, exist = _days(g)
    exist &= (g["h"] < 24) & (g["mi"] < 60) & (g["s"] < 60) & (g["zh"] * 60 + g["zm"] <= 18 * 60) & (g["zm"] < 60)
    ok = pc.and_(pc.and_(matches, _no_zeros(text)), pa.array(exist))
    _refuse_other_forms(text, matches, dtype)
    text = _only(text, ok, dtype, lenient)
    seconds = g["h"] * 3600 + g["mi"] * 60 + g["s"]
    if dtype.tz is not None:  # TIMESTAMP_NTZ takes the wall clock and drops the zone
        seconds = seconds - g["sign"] * (g["zh"] * 3600 + g["zm"] * 60)
    micros = days * _MICROS_PER_DAY + seconds * 1_000_000 + g["f"]
    return pa.array(micros, mask=text.is_null().to_numpy(zero_copy_only=False)).cast(dtype)


# --- dates and times -------------------------------------------------------------------------------------------


def _to_zone(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return array.cast(pa.int64()).cast(dtype)  # both count microseconds of UTC


def _date_to_timestamp(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    days = pc.abs(array.cast(pa.int32()).cast(pa.int64()))
    array = _only(array, pc.less_equal(days, (2**63 - 1) // _MICROS_PER_DAY), dtype, lenient)
    return _to_zone(array.cast(TIMESTAMP_NTZ), dtype, lenient)


def _timestamp_to_date(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    return pc.floor_temporal(_to_zone(array, TIMESTAMP_NTZ, lenient), unit="day").cast(dtype)


def _timestamp_to_integer(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    seconds = pc.floor_temporal(array, unit="second").cast(pa.int64())
    return _integer_to_integer(pc.divide(seconds, 1_000_000), dtype, lenient)


def _integer_to_timestamp(array: pa.Array, dtype: pa.DataType, lenient: bool) -> pa.Array:
    """Seconds; what is more microseconds than a BIGINT holds becomes the first or the last instant, as in Java."""
    most = (2**63 - 1) // 1_000_000
    wide = array.cast(pa.int64())
    micros = pc.multiply(
        pc.min_element_wise(pc.max_element_wise(wide, -most, skip_nulls=False), most, skip_nulls=False), 1_000_000
    )
    micros = pc.if_else(pc.greater(wide, most), 2**63 - 1, micros)
    return pc.if_else(pc.less(wide, -most), -(2**63), micros).cast(dtype)


_Rule = Callable[[pa.Array, pa.DataType, bool], pa.Array]
_RULES: dict[tuple[str, str], _Rule] = {
    ("boolean", "integer"): _plain,
    ("boolean", "float"): _plain,
    ("boolean", "decimal"): _boolean_to_decimal,
    ("boolean", "string"): _plain,
    ("integer", "boolean"): _to_boolean,
    ("integer", "integer"): _integer_to_integer,
    ("integer", "float"): _unsafe,
    ("integer", "decimal"): _exact_to_decimal,
    ("integer", "string"): _plain,
    ("integer", "timestamp"): _integer_to_timestamp,
    ("float", "boolean"): _to_boolean,
    ("float", "integer"): _float_to_integer,
    ("float", "float"): _unsafe,
    ("float", "decimal"): _text_to_decimal,
    ("decimal", "boolean"): _to_boolean,
    ("decimal", "integer"): _decimal_to_integer,
    ("decimal", "float"): _decimal_to_float,
    ("decimal", "decimal"): _exact_to_decimal,
    ("decimal", "string"): _decimal_to_string,
    ("string", "boolean"): _string_to_boolean,
    ("string", "integer"): _string_to_integer,
    ("string", "float"): _string_to_float,
    ("string", "decimal"): _text_to_decimal,
    ("string", "binary"): _plain,
    ("string", "date"): _string_to_date,
    ("string", "timestamp"): _string_to_timestamp,
    ("string", "timestamp_ntz"): _string_to_timestamp,
    ("binary", "string"): _binary_to_string,
    ("date", "string"): _date_to_string,
    ("date", "timestamp"): _date_to_timestamp,
    ("date", "timestamp_ntz"): _date_to_timestamp,
    ("timestamp", "date"): _timestamp_to_date,
    ("timestamp", "integer"): _timestamp_to_integer,
    ("timestamp", "string"): _timestamp_to_string,
    ("timestamp", "timestamp_ntz"): _to_zone,
    ("timestamp_ntz", "date"): _timestamp_to_date,
    ("timestamp_ntz", "string"): _timestamp_to_string,
    ("timestamp_ntz", "timestamp"): _to_zone,
    ("duration", "duration"): _plain,
}
