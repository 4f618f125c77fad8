"""Generated expressions over rows full of edge values.

What an expression may consist of comes from the engine's own tables: every entry of `registry.FUNCTIONS` that a
query calls by its name is called with as many arguments as it takes; the others have their spelling in `SPELLINGS`, and
a test says when one is missing. Which types go together is found by trying: an operand is any expression made before,
and what the engine refuses is thrown away, so that a type that a function learns to take is tried at once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import sqlglot

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.casts import kind, type_name
from spark_mjoin.mjoin.expressions import type_of
from spark_mjoin.mjoin.registry import FUNCTIONS, NAMED
from spark_mjoin.model import Call, Col, Expr, Lit
from spark_mjoin.query.sql import parse_statements
from spark_mjoin.query.translate import Translator
from spark_mjoin.schema import TIMESTAMP, TIMESTAMP_NTZ

NAN, INF = float("nan"), float("inf")
_DAY = 86_400_000_000
_YEAR_1, _YEAR_9999 = -719162, 2932896  # days of 0001-01-01 and 9999-12-31

_INTEGERS = {
    f"i{bits}": (dtype, [0, 1, -1, 2, 7, 10, -3, 100, 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1, -(2 ** (bits - 1))])
    for bits, dtype in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))
}
_INTEGERS["i64"][1].extend([2**53, 2**53 + 1, 2**53 - 1, -(2**53) - 1, 2**31, 2**24 + 1, 1_700_000_000])
_DAYS = [0, -1, 1, 19782, 19723, -141428, -141427, _YEAR_1, _YEAR_9999, 11016, 59, -25567, 18321]
_MICROS = [
    0, -1, 1, 1_706_696_430_123_456, -500_000, _YEAR_1 * _DAY, (_YEAR_9999 + 1) * _DAY - 1, -141428 * _DAY + 5,
    951_782_400_000_000, 1_582_934_399_999_999, -(2**52),
]  # fmt: skip

_TEXTS = [
    "", " ", "a", "B", "abc", "A%b", "a_b\\", "xx straße x", "İ", "ΑΣ", "ﬁn", "é😀x", "e\u0301", "\t a\n", "𝒳𝒴",
    "ß" * 70, "x" * 300, "\x00", "null", "true", "T", "\u00a0nbsp\u00a0", "a\nb", "ǆ",
]  # fmt: skip
_NUMERALS = [
    "0", "7", " 12 ", "-1", "+5", "1.5", "1e3", "NaN", "inf", "-Infinity", "9223372036854775807", "1.5d", "0x1", "",
    "-9223372036854775809", "007", ".5", "5.", "1e400", "9007199254740993", "99999999999999999999.5", "1_000", "١٢",
    "2f", "\t3\n", "1e-400", "true", "no",
]  # fmt: skip
_WHENS = [
    "2024-02-29", "2023-02-29", "2024-1-5", " 2024-01-31 ", "2024-01-31 10:20:30.123456", "1582-10-10", "0001-01-01",
    "9999-12-31 23:59:59.999999", "2024", "2024-07", "", "x", "2024-01-31T10:20:30Z", "2024-01-31 10:20:30+02:00",
    "1969-12-31 23:59:59.5", "2024-01-31 24:00:00", "2024-13-01", "2024-01-31 10:20", "2024-01-31x",
    "2024-01-31 1:2:3.1234567",
]  # fmt: skip

COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "b": (pa.bool_(), [True, False]),
    **_INTEGERS,
    "f32": (pa.float32(), [0.0, -0.0, 1.5, -2.5, 0.1, NAN, INF, -INF, 3.4028234663852886e38, 1e-45, 16777216.0, 0.3]),
    "f64": (
        pa.float64(),
        [0.0, -0.0, 1.5, -2.5, 0.5, -0.3, 2.675, 0.1, NAN, INF, -INF, 1.7976931348623157e308, 5e-324, 2.0**53, 2.0**63,
         -(2.0**63), 1e22, 123456789.987654321],
    ),
    "d5": (pa.decimal128(5, 2), ["0.00", "-0.05", "1.00", "999.99", "-999.99", "2.50", "7.00", "0.01"]),
    "d18": (pa.decimal128(18, 6), ["0", "-0.5", "0.000001", "999999999999.999999", "-999999999999.999999", "2.5", "7"]),
    "d38": (pa.decimal128(38, 10), ["0", "1", "-1.5", "9" * 28 + "." + "9" * 10, "-" + "9" * 28, "0.0000000001", "7"]),
    "d0": (pa.decimal128(38, 0), ["0", "1", "-7", "9" * 38, "-" + "9" * 38, str(2**63), str(2**53 + 1)]),
    "s": (pa.string(), _TEXTS),
    "n": (pa.string(), _NUMERALS),
    "w": (pa.string(), _WHENS),
    "y": (pa.binary(), [b"", b"a", b"\x00", b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xff" * 40]),
    "d": (pa.date32(), _DAYS),
    "t": (TIMESTAMP, _MICROS),
    "u": (TIMESTAMP_NTZ, _MICROS),
    "r": (
        pa.struct([("x", pa.int32()), ("y", pa.string())]),
        [{"x": 1, "y": "a"}, {"x": None, "y": ""}, {"x": 0, "y": None}],
    ),
}  # fmt: skip
ROWS = 32
TYPES = [dtype for dtype, _ in COLUMNS.values() if not pa.types.is_struct(dtype)]

_LITERALS = """
NULL; true; false; 0; 1; -1; 2; 10; 3; 2147483647; -2147483648; 9223372036854775807; 9007199254740993; 5L; 127Y; -128Y
5S; 0.0; -0.05; 1.5; 0.1; 99999999999999999999; 12345678901234567890.123456789; 0.0000000001; 1.50; 007; 1.5D; -0.0D
1e308; 0.1D; 2e0; 1.5F; 1.5BD; 7BD; ''; 'a'; 'abc'; ' x '; '7'; '1.5'; 'NaN'; 'é😀'; '2024-02-29'; '2024-01-31 10:20:30'
'true'; r'x\\'; X''; X'FF'; X'61'; DATE '2024-02-29'; DATE '1582-10-10'; TIMESTAMP '2024-01-31 10:20:30.5'
TIMESTAMP '0001-01-01'; TIMESTAMP_NTZ '2024-01-31 10:20:30'; INTERVAL 13 DAY; INTERVAL '90' MINUTE; INTERVAL 1 HOUR
INTERVAL -5 SECONDS; INTERVAL '1.5' SECOND; INTERVAL 1 WEEK
"""
LITERALS = [literal.strip() for literal in _LITERALS.strip().replace("\n", ";").split(";")]

_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond", "eon")
_PATTERNS = ("%", "a%", "_", "%b", "a\\\\_b%", "", "A%", "%x%", "__", "a\\\\%", "%\\n%")
SPELLINGS: dict[str, list[str]] = {
    "and": ["{0} AND {1}"],
    "or": ["{0} OR {1}"],
    "not": ["NOT {0}"],
    "=": ["{0} = {1}", "{0} == {1}"],
    "<>": ["{0} <> {1}", "{0} != {1}"],
    "<": ["{0} < {1}"],
    "<=": ["{0} <= {1}"],
    ">": ["{0} > {1}"],
    ">=": ["{0} >= {1}", "{0} BETWEEN {1} AND {2}", "{0} NOT BETWEEN {1} AND {2}"],
    "<=>": [
        "{0} <=> {1}", "{0} IS DISTINCT FROM {1}", "{0} IS NOT DISTINCT FROM {1}", "{0} IS TRUE", "{0} IS NOT FALSE",
    ],
    "in": ["{0} IN ({1})", "{0} IN ({1}, {2})", "{0} NOT IN ({1}, {2}, {3})"],
    "is null": ["{0} IS NULL", "{0} IS NOT NULL"],
    "+": [
        "{0} + {1}", "{0} + INTERVAL '90' MINUTE", "{0} + INTERVAL 13 DAY", "INTERVAL 1 DAY + {0}",
        "{0} + INTERVAL '-400' DAY",
    ],
    "-": ["{0} - {1}", "{0} - INTERVAL 2 HOURS", "{0} - INTERVAL 2 WEEKS"],
    "*": ["{0} * {1}"],
    "/": ["{0} / {1}"],
    "div": ["{0} div {1}"],
    "%": ["{0} % {1}"],
    "negate": ["-({0})"],
    "case": [
        "CASE WHEN {0} THEN {1} END", "CASE WHEN {0} THEN {1} ELSE {2} END", "CASE {0} WHEN {1} THEN {2} ELSE {3} END",
        "CASE WHEN {0} THEN {1} WHEN {2} THEN {3} ELSE {4} END",
    ],
    "if": ["IF({0}, {1}, {2})"],
    "try_cast": [f"TRY_CAST({{0}} AS {type_name(t)})" for t in TYPES],
    "cast": [*(f"CAST({{0}} AS {type_name(t)})" for t in TYPES), "{0}::INT", "CAST({0} AS DECIMAL(3,1))"],
    "like": [f"{{0}} {n}LIKE '{p}'" for p in _PATTERNS for n in ("", "NOT ")] + ["{0} LIKE 'a/%%' ESCAPE '/'"],
    "field": ["t.r.x", "t.r.y"],
    "add_months": ["{0} + INTERVAL 1 MONTH", "{0} - INTERVAL 1 YEAR", "INTERVAL 5 MONTHS + {0}"],
    "concat": ["{0} || {1}"],
    "coalesce": ["nvl({0}, {1})", "ifnull({0}, {1})"],
    "date_trunc": [f"date_trunc('{unit}', {{0}})" for unit in _UNITS],
    "substring": [f"substr({{0}}, {p})" for p in ("1, 2", "0, 3", "-2, 1", "-9, 8", "2, 0", "2, -1", "3, 2147483647")]
    + ["substring({0}, 2)", "substring({0} FROM 2 FOR 3)", "substr({0}, -2147483648)"],
    "round": [f"round({{0}}, {d})" for d in (0, 1, 2, 5, 20)],
    "trim": ["trim(BOTH 'x ' FROM {0})", "trim('ax' FROM {0})"],
    "ltrim": ["trim(LEADING 'xa' FROM {0})"],
    "rtrim": ["trim(TRAILING 'x' FROM {0})"],
    "ceil": ["ceiling({0})"],
    "date_add": ["date_add({0}, 7)", "date_add({0}, -3000)", "dateadd({0}, 1)"],
    "date_sub": ["date_sub({0}, 7)", "date_sub({0}, 2147483647)"],
    "length": ["len({0})", "char_length({0})"],
    "upper": ["ucase({0})"],
    "lower": ["lcase({0})"],
    "day": ["dayofmonth({0})"],
    "datediff": ["date_diff({0}, {1})"],
}  # fmt: skip


def templates() -> dict[str, list[str]]:
    """How each function of the engine is written, with {0}, {1}, … for its operands."""
    found = defaultdict(list, {name: list(spelled) for name, spelled in SPELLINGS.items()})
    for name in NAMED:
        fewest, most = FUNCTIONS[name].fewest, min(FUNCTIONS[name].most, 4)
        for size in range(fewest, most + 1):
            found[name].append(f"{name}({', '.join(f'{{{i}}}' for i in range(size))})")
    return dict(found)


@dataclass(frozen=True)
class Generated:
    sql: str
    type: pa.DataType
    depth: int
    parts: tuple[Generated, ...] = ()

    def all_parts(self) -> list[Generated]:
        return [self, *(p for part in self.parts for p in part.all_parts())]


def table(seed: int) -> pa.Table:
    """Rows that hold every edge value of every column, in an order of their own each, and NULLs between."""
    chance = random.Random(seed)
    columns = {}
    for name, (dtype, edges) in COLUMNS.items():
        values: list[object] = [*edges, None, None, None, None]
        values += chance.choices(edges, k=ROWS - len(values))
        chance.shuffle(values)
        if pa.types.is_decimal(dtype):
            values = [None if v is None else Decimal(str(v)) for v in values]
        if pa.types.is_date(dtype) or pa.types.is_timestamp(dtype):
            ints = pa.array(values, pa.int32() if pa.types.is_date(dtype) else pa.int64())
            columns[name] = ints.cast(dtype)
        else:
            columns[name] = pa.array(values, dtype)
    return pa.table(columns)


def translated(sql: str) -> Expr:
    """As the planner translates it, without the query around it; QueryError when it is refused."""
    try:
        node = parse_statements(f"SELECT {sql}")[0].expressions[0]
    except sqlglot.errors.SqlglotError as e:
        raise QueryError(str(e)) from e
    return Translator(_resolve).expression(node)


def _resolve(parts: list[str]) -> Expr:
    column = Col(0, parts[1])
    return column if len(parts) == 2 else Call("field", (column, Lit(parts[2], pa.string())))


def _type(expr: Expr) -> pa.DataType:
    return type_of(expr, lambda c: COLUMNS[c.name][0])


class Generator:
    """Expressions of growing depth; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.templates = templates()
        self.refused: dict[str, str] = {}
        self._pools: dict[str, list[Generated]] = defaultdict(list)
        self._known: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        self._seen: set[str] = set()
        for name in COLUMNS:
            for _ in range(3):
                self._keep(Generated(f"t.{name}", COLUMNS[name][0], 0))
        for literal in LITERALS:
            self._keep(Generated(literal, _type(translated(literal)), 0))

    def _keep(self, made: Generated) -> None:
        self._pools[kind(made.type)].append(made)

    def _operand(self, of: str) -> Generated:
        pool = self._pools[of]
        leaves = [p for p in pool if p.depth == 0]
        if leaves and self.chance.random() < 0.6:
            return self.chance.choice(leaves)
        return self.chance.choice(pool)

    @property
    def refused_share(self) -> float:
        """Of all that were tried."""
        return len(self.refused) / len(self._seen)

    def never_accepted(self) -> list[str]:
        """The functions of which the engine has refused every expression."""
        return [name for name, spelled in self.templates.items() if not any(self._known[t] for t in spelled)]

    def expressions(self, size: int) -> list[Generated]:
        """So many that the engine accepts, every template in turn."""
        made: list[Generated] = []
        order = [t for _, spelled in sorted(self.templates.items()) for t in spelled]
        self.chance.shuffle(order)
        names = sorted(self.templates)
        for turn in range(len(order) + 2 * size):
            if len(made) >= size:
                return made
            # One after the other first, so that all are tried; then by function, or those of many spellings prevail.
            template = order[turn] if turn < len(order) else self._any(names)
            found = self._one(template)
            if found is not None:
                made.append(found)
        raise AssertionError(f"the engine refuses {self.refused_share:.0%} of {len(self._seen)} expressions")

    def _any(self, names: list[str]) -> str:
        return self.chance.choice(self.templates[self.chance.choice(names)])

    def _one(self, template: str) -> Generated | None:
        size = sum(f"{{{i}}}" in template for i in range(5))
        for _ in range(30):
            known = self._known[template]
            if known and self.chance.random() < 0.7:
                kinds = self.chance.choice(known)
            elif size > 1 and self.chance.random() < 0.3:
                kinds = (self.chance.choice(sorted(self._pools)),) * size
            else:
                kinds = tuple(self.chance.choices(sorted(self._pools), k=size))
            operands = tuple(map(self._operand, kinds))
            depth = 1 + max((o.depth for o in operands), default=0)
            sql = template.format(*(o.sql if o.depth == 0 and o.sql[0] != "-" else f"({o.sql})" for o in operands))
            if depth > 4 or len(sql) > 400 or sql in self._seen:
                continue
            self._seen.add(sql)
            try:
                dtype = _type(translated(sql))
            except QueryError as e:
                self.refused[sql] = str(e)
                continue
            if kinds not in known:
                known.append(kinds)
            made = Generated(sql, dtype, depth, operands)
            self._keep(made)
            return made
        return None
