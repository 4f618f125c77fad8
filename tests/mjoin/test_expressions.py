"""Expressions: against duckdb where it agrees with Spark, and against values taken from Spark 4.3 where it does not."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.expressions import evaluate, type_of
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import Col, Expr
from spark_mjoin.query.sql import parse_statements
from spark_mjoin.query.translate import Translator

NAN, INF = float("nan"), float("inf")
UTC = dt.UTC
TABLE = {
    "b": pa.array([1, -2, 0, None], pa.int8()),
    "i": pa.array([7, -7, 0, None], pa.int32()),
    "l": pa.array([2**40, -3, 5, None], pa.int64()),
    "f": pa.array([1.5, -2.5, 0.0, None], pa.float32()),
    "d": pa.array([2.5, NAN, -0.0, None], pa.float64()),
    "m": pa.array([Decimal("12.345"), Decimal("-0.005"), Decimal("3.000"), None], pa.decimal128(8, 3)),
    "n": pa.array([Decimal("3.10"), Decimal("7.00"), Decimal("3.00"), None], pa.decimal128(20, 2)),
    "s": pa.array([" 12 ", "abc", "a%b", None]),
    "t": pa.array(
        [dt.datetime(2024, 1, 31, 10, 20, 30, 123456, UTC), dt.datetime(1969, 12, 31, 23, 59, 59, 500000, UTC),
         dt.datetime(2023, 3, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")
    ),
    "q": pa.array([dt.datetime(2024, 2, 29, 1, 2, 3), dt.datetime(1960, 5, 5), None, None], pa.timestamp("us")),
    "a": pa.array([dt.date(2024, 1, 31), dt.date(1969, 12, 31), dt.date(2024, 2, 29), None], pa.date32()),
    "o": pa.array([True, False, None, True]),
}  # fmt: skip


def expression(sql: str) -> Expr:
    node = parse_statements(f"SELECT {sql}")[0].expressions[0]
    return Translator(lambda parts: Col(0, parts[0])).expression(node)


def run(sql: str) -> pa.Array:
    return evaluate(expression(sql), lambda c: TABLE[c.name], 4)


def first(sql: str) -> Any:
    return run(sql)[0].as_py()


def error(sql: str) -> str:
    with pytest.raises(QueryError) as e:
        run(sql)
    return str(e.value)


# --- against duckdb --------------------------------------------------------------------------------------------

SAME_IN_DUCKDB = """
i + l; i - b; i * l; -i; i / 2; l % 4; i % -2; f * 2; i + f; m + n; m - n; m * n; m + i; m * 2; abs(i); abs(m)
i = l; i <> 7; i < l; m > i; m = 3; m <= n; f >= 1.5; s = 'abc'; s < 'b'; t > '2024-01-01'; a >= '2024-01-31'
t > a; o = true; o AND i > 0; o OR i > 0; NOT o; o AND NULL; o OR NULL; i IN (7, 0); i IN (7, NULL); i NOT IN (1, NULL)
i BETWEEN 0 AND 7; i IS NULL; s IS NOT NULL; i IS NOT DISTINCT FROM NULL; i IS DISTINCT FROM 7
s LIKE 'a%'; s LIKE 'a_c'; s LIKE '%b'; s NOT LIKE '%b%'
CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'n' END; CASE i WHEN 7 THEN 1 ELSE l END; COALESCE(i, 1); NULLIF(i, 7)
CASE WHEN i <> 0 THEN 10 / i END; COALESCE(b, l); GREATEST(i, l); LEAST(i, l, 3); GREATEST(s, 'b')
CAST(i AS BIGINT); CAST(i AS STRING); CAST(o AS INT); CAST(o AS STRING); CAST(m AS DECIMAL(6, 1)); CAST(m AS STRING)
CAST(i AS DECIMAL(10, 2)); CAST(t AS DATE); CAST(a AS TIMESTAMP); TRY_CAST(s AS INT); TRY_CAST(l AS INT)
CONCAT(s, 'x'); s || 'x'; UPPER(s); LOWER(s); LENGTH(s); TRIM(s); LTRIM(s); RTRIM(s); SUBSTRING(s, 2, 2)
ROUND(m, 1); FLOOR(i); CEIL(m); FLOOR(m)
YEAR(t); MONTH(a); DAY(t); HOUR(t); MINUTE(t); SECOND(t); QUARTER(a)
DATE_TRUNC('minute', t); DATE_TRUNC('week', t); DATE_TRUNC('quarter', t); DATE_TRUNC('year', t)
t + INTERVAL 1 HOUR; t - INTERVAL 5 MINUTES; t + INTERVAL 1 MONTH; t - INTERVAL 1 YEAR; t - INTERVAL 2 DAYS
i div 2
"""


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("x", pa.table(TABLE))
    return connection


def _plain(value: Any) -> Any:
    """Numbers as floats and times without zones: the two engines give some results in other types."""
    if isinstance(value, Decimal | int) and not isinstance(value, bool):
        return round(float(value), 9)
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return dt.datetime.combine(value, dt.time()) if isinstance(value, dt.date) else value


@pytest.mark.parametrize(
    "sql", [e.strip() for line in SAME_IN_DUCKDB.splitlines() for e in line.split(";") if e.strip()]
)
def oracle_duckdb(sql: str, duck: duckdb.DuckDBPyConnection) -> None:
    translated = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
    expected = duck.sql(f"SELECT {translated} FROM x").to_arrow_table().column(0).to_pylist()
    assert [_plain(v) for v in run(sql).to_pylist()] == [_plain(v) for v in expected]


# --- as Spark has it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "dtype", "values"),
    [
        ("i / l", "double", None),
        ("b + b", "int8", [2, -4, 0, None]),
        ("f * f", "float", None),
        ("i * f", "double", None),
        ("m + n", "decimal128(22, 3)", None),
        ("m * n", "decimal128(29, 5)", None),
        ("m + 1", "decimal128(9, 3)", None),
        ("m / 3", "decimal128(11, 6)", [Decimal("4.115000"), Decimal("-0.001667"), Decimal("1.000000"), None]),
        ("m / n", "decimal128(31, 24)", None),
        ("i div 2", "int64", [3, -3, 0, None]),
        ("i % 2", "int32", [1, -1, 0, None]),
        ("d = d", "bool", [True, True, True, None]),
        ("d > 1e308", "bool", [False, True, False, None]),
        ("d = 0", "bool", [False, False, True, None]),
        ("least(d, i)", "double", [2.5, -7.0, 0.0, None]),
        ("greatest(i, null, 1)", "int32", [7, 1, 1, 1]),
        ("i = '7'", "bool", [True, False, False, None]),
        ("m = 12.345D", "bool", [True, False, False, None]),
        ("i <=> null", "bool", [False, False, False, True]),
        ("coalesce(i, '5')", "int64", [7, -7, 0, 5]),
        ("case when o then a else t end", "timestamp[us, tz=UTC]", None),
        ("substring(s, -2, 1)", "string", ["2", "b", "%", None]),
        ("substring(s, 0, 2)", "string", [" 1", "ab", "a%", None]),
        ("substring(s, -9, 8)", "string", [" 12", "ab", "a%", None]),
        (r"s like 'a\\%b'", "bool", [False, False, True, None]),
        ("s like 'a/%b' escape '/'", "bool", [False, False, True, None]),
        ("round(d, 0)", "double", None),
        ("round(m, 1)", "decimal128(7, 1)", [Decimal("12.3"), Decimal("0.0"), Decimal("3.0"), None]),
        ("ceil(m)", "decimal128(6, 0)", [Decimal(13), Decimal(0), Decimal(3), None]),
        ("floor(d)", "int64", [2, 0, 0, None]),
        ("ceil(cast(m as decimal(5, 0)))", "decimal128(5, 0)", [Decimal(12), Decimal(0), Decimal(3), None]),
        ("floor(-9223372036854775808D)", "int64", [-(2**63)] * 4),
        ("f % cast(2 as float)", "float", [1.5, -0.5, 0.0, None]),
        ("f % 2D", "double", [1.5, -0.5, 0.0, None]),
        ("-128Y", "int8", [-128] * 4),
        ("-32768S", "int16", [-32768] * 4),
        ("-9223372036854775808L", "int64", [-(2**63)] * 4),
        ("-cast(b as int)", "int32", [-1, 2, 0, None]),
        ("date_add(cast(t as string), 1)", "date32[day]", None),
        ("cast(t as bigint)", "int64", [1706696430, -1, 1677628800, None]),
        ("unix_timestamp(t)", "int64", [1706696430, 0, 1677628800, None]),
        ("cast(t as string)", "string",
         ["2024-01-31 10:20:30.123456", "1969-12-31 23:59:59.5", "2023-03-01 00:00:00", None]),
        ("date_trunc('day', q)", "timestamp[us, tz=UTC]", None),
        ("datediff(t, a)", "int32", [0, 0, -365, None]),
        ("date_sub(a, 31)", "date32[day]", [dt.date(2023, 12, 31), dt.date(1969, 11, 30), dt.date(2024, 1, 29), None]),
        ("a + interval 1 month", "date32[day]",
         [dt.date(2024, 2, 29), dt.date(1970, 1, 31), dt.date(2024, 3, 29), None]),
        ("a + interval 1 week", "date32[day]", None),
        ("a + interval 2 hours", "timestamp[us, tz=UTC]", None),
        ("t - a", "duration[us]", None),
        ("t - a < interval 1 day", "bool", [True, True, True, None]),
        ("o is true", "bool", [True, False, False, True]),
    ],
)  # fmt: skip
def test_types_and_values(sql: str, dtype: str, values: list[Any] | None) -> None:
    result = run(sql)
    assert str(result.type) == dtype
    assert type_of(expression(sql), lambda c: TABLE[c.name].type) == result.type
    if values is not None:
        assert result.to_pylist() == values


FOUND_BY_GENERATED_EXPRESSIONS = [
    # one type for all of IN, and what follows a match or a NULL is not evaluated
    ("cast(9007199254740993 as bigint) in (9007199254740992, 1.5D)", "bool", [True] * 4),
    ("i in (7, 1 / (i - 7), 5)", "bool", [True, False, False, None]),
    ("i in (7, -7, 0, 'abc')", "bool", [True, True, True, None]),
    # nothing is evaluated beside a NULL: right of it, or left where a divisor is NULL
    ("null * (1 / 0)", "double", [None] * 4),
    ("nullif(i, 7) * round(7 div (b - 1))", "int64", [None, 14, 0, None]),
    ("(5S % 0) % nullif(i, i)", "int32", [None] * 4),
    ("nullif(t, t) < s", "bool", [None] * 4),
    ("nullif(m, m) * s", "double", [None] * 4),
    ("datediff(null, s)", "int32", [None] * 4),
    # no negative zero out of ROUND
    ("signed(round(cast(-0.3 as double)))", "string", ["0.0"] * 4),
    ("signed(round(d, 2))", "string", ["2.5", "nan", "0.0", None]),
    # of the fraction of a second six digits count, however many there are
    ("cast('1827-04-16 00:06:12.629504799999999999999999999' as timestamp_ntz)", "timestamp[us]",
     [dt.datetime(1827, 4, 16, 0, 6, 12, 629504)] * 4),
    # what is behind a NULL is not concatenated
    ("concat(nullif(i, i), cast(1 / (i - i) as int))", "string", [None] * 4),
    ("concat('a', nullif(s, s), cast(s as int))", "string", [None] * 4),
    # BINARY as it is, valid UTF-8 or not
    ("cast(cast(x'61FF' as string) as binary)", "binary", [b"a\xff"] * 4),
    ("cast(try_cast(x'FF' as string) as binary)", "binary", [b"\xff"] * 4),
    ("try_cast(cast(x'FF' as string) as int)", "int32", [None] * 4),
    ("to_date(concat('2024-01-31 ', x'FF'))", "date32[day]", [dt.date(2024, 1, 31)] * 4),
    ("substring(x'00FF61', 2)", "binary", [b"\xffa"] * 4),
    # types
    ("-0.05 - 5S", "decimal128(4, 2)", [Decimal("-5.05")] * 4),
    ("-0.05 - cast(5 as smallint)", "decimal128(8, 2)", [Decimal("-5.05")] * 4),
    ("cast(1 as bigint) + 1.5", "decimal128(22, 1)", [Decimal("2.5")] * 4),
    ("1.5 + 7BD", "decimal128(3, 1)", [Decimal("8.5")] * 4),
    ("1.5F", "float", [1.5] * 4),
    ("nullif(2, m)", "int32", [2] * 4),
    ("timestamp '1970-01-01 00:00:05'::int", "int32", [5] * 4),
    ("date '2024-01-31'::string", "string", ["2024-01-31"] * 4),
    ("null / 7BD", "double", [None] * 4),
    ("null / cast(m as decimal(18,6))", "double", [None] * 4),
    ("7BD / null", "decimal128(7, 6)", [None] * 4),
    ("null + interval 13 day", "duration[us]", [None] * 4),
    ("null + interval 90 minutes", "duration[us]", [None] * 4),
    # an interval of whole days keeps a date a date, whatever it is made of
    ("(interval 1 week + interval 13 day) + date '2024-02-29'", "date32[day]", [dt.date(2024, 3, 20)] * 4),
    ("date '2024-02-29' - (date '2024-02-28' - date '2024-02-27')", "date32[day]", [dt.date(2024, 2, 28)] * 4),
    ("date '2024-02-29' + -(-(interval 1 day))", "date32[day]", [dt.date(2024, 3, 1)] * 4),
    ("date '2024-02-29' + coalesce(null, interval 1 day)", "date32[day]", [dt.date(2024, 3, 1)] * 4),
    ("date '2024-02-29' + (interval 1 day + interval 0 hours)", "timestamp[us, tz=UTC]",
     [dt.datetime(2024, 3, 1, tzinfo=dt.UTC)] * 4),
    ("date '2024-02-29' + coalesce(interval 1 day, interval 1 second)", "timestamp[us, tz=UTC]",
     [dt.datetime(2024, 3, 1, tzinfo=dt.UTC)] * 4),
    ("date '2024-02-29' - date '2024-02-28'", "duration[us]", [dt.timedelta(1)] * 4),
    ("null - interval 2 weeks", "duration[us]", [None] * 4),
    # decimals that together need more than 38 digits are compared, and meet, with less of a fraction
    ("cast(0.0000000001 as decimal(38,10)) = cast(0 as decimal(38,0))", "bool", [True] * 4),
    ("coalesce(cast(1.05 as decimal(38,10)), cast(0 as decimal(38,0)))", "decimal128(38, 0)", [Decimal(1)] * 4),
    # an integer beside a DECIMAL literal
    ("i < 99999999999999999999", "bool", [True] * 4),
    ("i >= 6.5", "bool", [True, False, False, None]),
    # 256 bits are divided rightly
    ("cast('9999999999999999999999999999.9999999999' as decimal(38,10)) / cast(-0.5 as decimal(18,6))",
     "decimal128(38, 6)", [Decimal(-20000000000000000000000000000)] * 4),
    # Java's ends of the ranges
    ("cast(9223372036854775808D as bigint)", "int64", [2**63 - 1] * 4),
    ("try_cast(1e308 as smallint)", "int16", [None] * 4),
    ("cast(cast(9223372036854775807 as timestamp) as bigint)", "int64", [9223372036854] * 4),
    ("month(date_sub(date '1900-01-01', 2147483647))", "int32", [7] * 4),
    ("unsigned(date_add(a, -2147483648))", "int32", [-2147463895, 2147483647, -2147463866, None]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "dtype", "values"), FOUND_BY_GENERATED_EXPRESSIONS)
def test_what_generated_expressions_have_found(sql: str, dtype: str, values: list[Any]) -> None:
    """All of it is what Spark 4.3 says; see tests/oracle/test_expressions.py."""
    shown, _, inner = sql.partition("(")
    if shown == "signed":  # 0.0 and -0.0 are equal
        assert [None if v is None else str(v) for v in run(inner[:-1]).to_pylist()] == values
    elif shown == "unsigned":  # Python has no date for it
        assert run(inner[:-1]).cast(pa.int32()).to_pylist() == values
    else:
        assert (str(run(sql).type), run(sql).to_pylist()) == (dtype, values)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        (
            "-cast('-99999999999999999999999999999999999999' as decimal(38,0))",
            "more than 34 digits is not supported here",
        ),
        ("abs(cast('-99999999999999999999999999999999999999' as decimal(38,0)))", "34 digits is not supported here"),
        ("upper(x'FF')", "no UTF-8 is not supported here"),
        ("trim(cast(x'FF' as string))", "no UTF-8 is not supported here"),
        ("x'61C3' like 'a%'", "no UTF-8 is not supported here"),
        ("cast(date_add(a, 2932896) as string)", "a year outside 0000 to 9999 as a STRING is not supported here"),
        ("date_trunc('year', cast(9223372036854 as timestamp))", "beyond 30000 is not supported here"),
        ("hour(i)", "INT is no TIMESTAMP"),
        ("date_trunc('week', i)", "INT is no TIMESTAMP"),
        ("greatest(s, 0.5)", "do not go together"),
        ("null in (1, date '2024-01-01')", "do not go together"),
        ("case when null then 1 end", "must be BOOLEAN"),
        ("if(o, 1)", "does not take 2 arguments"),
        ("date_add(a, 5L)", "must be an INT"),
        ("substring(s, 9223372036854775807)", "must be an INT"),
        ("round(b, 2147483647)", "ROUND to 2147483647 digits is not supported here"),
        ("128Y", "no TINYINT"),
        ("1e400", "outside the range of DOUBLE"),
    ],
)
def test_what_spark_refuses_or_only_spark_can_do(sql: str, message: str) -> None:
    assert message in error(sql)


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        (" +12 ", "INT", 12), ("-0005", "INT", -5), ("1.5", "INT", None), ("99999999999", "INT", None),
        ("0x1", "INT", None),
        ("1.5d", "DOUBLE", 1.5), (".5", "DOUBLE", 0.5), ("5.", "DOUBLE", 5.0), ("-Infinity", "DOUBLE", -INF),
        ("1e400", "DOUBLE", INF), ("0x1", "DOUBLE", None), ("T", "BOOLEAN", True), (" no", "BOOLEAN", False),
        ("maybe", "BOOLEAN", None), ("1.005", "DECIMAL(4,2)", Decimal("1.01")), ("123.4", "DECIMAL(3,1)", None),
        ("1e2", "DECIMAL(5,2)", Decimal(100)), ("nan", "DECIMAL(5,2)", None), ("2024", "DATE", dt.date(2024, 1, 1)),
        ("2024-2", "DATE", dt.date(2024, 2, 1)), ("2023-02-29", "DATE", None), ("2024-0-1", "DATE", None),
        ("2024-01-01 x", "DATE", dt.date(2024, 1, 1)), ("2024-01-01", "TIMESTAMP", dt.datetime(2024, 1, 1)),
        ("2024-1-1 1:2:3.5", "TIMESTAMP", dt.datetime(2024, 1, 1, 1, 2, 3, 500000)),
        ("2024-01-01T01:00:00+02:00", "TIMESTAMP", dt.datetime(2023, 12, 31, 23)),
        ("2024-01-01T01:00:00+02:00", "TIMESTAMP_NTZ", dt.datetime(2024, 1, 1, 1)),
        ("2024-01-01 12:30", "TIMESTAMP", dt.datetime(2024, 1, 1, 12, 30)), ("2024-01-01 25:00:00", "TIMESTAMP", None),
    ],
)  # fmt: skip
def test_casts_from_strings(text: str, dtype: str, expected: Any) -> None:
    value = first(f"TRY_CAST('{text}' AS {dtype})")
    assert (value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value) == expected
    if expected is None:
        assert "cannot be cast" in error(f"CAST('{text}' AS {dtype})")
    else:
        assert first(f"CAST('{text}' AS {dtype})") == value


@pytest.mark.parametrize("text", ["12:30:00", "2024-01-01 00:00:00 Europe/Berlin", "+12024-01-01"])
def test_forms_that_only_spark_reads_are_never_null(text: str) -> None:
    assert "is not supported here" in error(f"TRY_CAST('{text}' AS TIMESTAMP)")


@pytest.mark.parametrize("dtype", ["TIMESTAMP", "TIMESTAMP_NTZ"])
def test_dates_beyond_all_timestamps(dtype: str) -> None:
    """Spark's answers: the last day of which the microseconds are a BIGINT is day 106,751,991."""
    for days in (-106751992, 106751992, -(2**31) + 1):
        date = f"date_add(DATE'1970-01-01', {days})"
        assert first(f"TRY_CAST({date} AS {dtype})") is None
        assert f"cannot be cast to {dtype}" in error(f"CAST({date} AS {dtype})")
    assert first(f"CAST(CAST(date_add(DATE'1970-01-01', -106751991) AS {dtype}) AS DATE) < DATE'0001-01-01'") is True


def test_casts_of_doubles() -> None:
    assert first("CAST(0.1D AS DECIMAL(20,18))") == Decimal("0.1")
    assert run("CAST(d AS DECIMAL(10,2))").to_pylist() == [Decimal("2.50"), None, Decimal("0.00"), None]
    assert first("CAST(-2.9D AS INT)") == -2
    assert first("round(2.675D, 2)") == 2.68
    assert "cannot be cast to INT" in error("CAST(d AS INT)")
    assert "not supported here" in error("CAST(d AS STRING)")


def test_text_beyond_ascii() -> None:
    assert first("upper('straße')") == "STRASSE"
    assert first("length('é😀')") == 2
    assert first("substring('é😀x', 2, 1)") == "😀"


@pytest.mark.parametrize(
    "sql",
    ["CASE WHEN i <> 0 THEN 100 / i ELSE 0 END", "i <> 0 AND 100 / i > 1", "i = 0 OR 100 / i > 1",
     "IF(i = 0, 0, 7 % i)", "COALESCE(i, 1 / (i - 7), 1)", "CASE WHEN i IS NULL OR i > 8 THEN 1 / (i - 7) END"],
)  # fmt: skip
def test_what_is_not_needed_does_not_fail(sql: str) -> None:
    assert len(run(sql)) == 4


def test_what_is_needed_does_fail() -> None:
    assert "divide by zero" in error("COALESCE(NULLIF(i, i), 1 / 0)")
    assert "'abc' cannot be cast" in error("CASE WHEN i < 0 THEN s ELSE 1 END")
    assert run("CASE WHEN i > 0 THEN s ELSE 1 END").to_pylist() == [12, 1, 1, 1]


@pytest.mark.parametrize(
    ("sql", "parts"),
    [
        ("i / b", ["`(i / b)`", "divide by zero", "NULLIF"]),
        ("l * l * l", ["overflow", "wider"]),
        ("2147483647 + i", ["overflow"]),
        ("s + 1", ["'abc' cannot be cast to BIGINT", "TRY_CAST"]),
        ("CAST(n AS DECIMAL(2,2))", ["3.10", "DECIMAL(2,2)"]),
        ("s + t", ["STRING + TIMESTAMP is not defined"]),
        ("a = i", ["DATE and INT do not go together", "CAST"]),
        ("i AND o", ["must be BOOLEAN and this is INT"]),
        ("upper(i, i)", []),
        ("s LIKE upper(s)", ["the pattern of LIKE must be a literal"]),
        ("frobnicate(i)", ["frobnicate is not supported", "downstream"]),
        ("date_trunc('eon', t)", ["no unit 'eon'"]),
        ("floor(cast('inf' as double))", ["overflow", "floor of inf is no BIGINT"]),
        ("ceil(cast('-inf' as double))", ["overflow", "ceil of -inf is no BIGINT"]),
        ("ceil(cast(3.4e38 as float))", ["overflow", "ceil of 3.4e+38 is no BIGINT"]),
        ("floor(9223372036854775808D)", ["overflow"]),
        ("'2026-03-31 10:20:30' + interval 1 day", ["STRING + INTERVAL is not defined here; CAST it to TIMESTAMP"]),
        ("s - interval 1 week", ["STRING - INTERVAL is not defined here; CAST it to TIMESTAMP"]),
        ("s + interval 1 month", ["STRING + INTERVAL is not defined here; CAST it to TIMESTAMP"]),
        ("cast(s as string collate unicode)", ["COLLATE", "is not supported"]),
        ("s rlike 'x'", ["regexp_like is not supported"]),
        ("CAST(m AS DECIMAL(38,10)) * CAST(m AS DECIMAL(38,10))", ["76 digits"]),
    ],
)
def test_mistakes(sql: str, parts: list[str]) -> None:
    table = TABLE | {"b": pa.array([0, 1, 1, None], pa.int8())}
    with pytest.raises((QueryError, sqlglot.errors.ParseError)) as e:
        evaluate(expression(sql), lambda c: table[c.name], 4)
    for part in parts:
        assert part in str(e.value)


def test_literals_are_typed_as_in_spark() -> None:
    expected = {
        "1": "int32", "3000000000": "int64", "1.50": "decimal128(3, 2)", "1e3": "double", "1L": "int64",
        "-2147483648": "int32", "99999999999999999999": "decimal128(20, 0)", "null": "null", "x'0A'": "binary",
    }  # fmt: skip
    assert {sql: str(run(sql).type) for sql in expected} == expected


def test_no_rows() -> None:
    for sql in ("i + 1", "CASE WHEN o THEN 1 / 0 END", "upper('x')", "COALESCE(i, 1)", "o AND i > 1"):
        assert len(evaluate(expression(sql), lambda c: TABLE[c.name].slice(0, 0), 0)) == 0


def test_rendering() -> None:
    assert (
        render(expression("i + 1 > 2 AND s LIKE 'a' OR t IS NOT NULL"))
        == "((((i + 1) > 2) AND s LIKE 'a') OR (t IS NOT NULL))"
    )
    assert render(expression("date_trunc('hour', t)"), quoted=False) == "date_trunc(hour, t)"
