"""Queries into inputs, conjuncts and output; everything that is no inner join is refused with a way out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_mjoin.errors import QueryError
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.query.sql import Query, parse_predicate, parse_query, star_join

SOURCES = ["orders", "pay", "ship"]
SCHEMAS = [
    pa.schema(
        [("id", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("Name", pa.string()), ("odd col", pa.int32()),
         ("s", pa.struct([("x", pa.int32()), ("deep", pa.struct([("y", pa.string())]))])), ("d", pa.date32())]
    ),
    pa.schema([("order_id", pa.int32()), ("amount", pa.decimal128(12, 2)), ("ts", pa.timestamp("us", "UTC"))]),
    pa.schema([("id", pa.int64()), ("order_id", pa.int64()), ("carrier", pa.string())]),
]  # fmt: skip
JOIN = "FROM orders o JOIN pay p ON o.id = p.order_id"


def parse(query: str) -> Query:
    return parse_query(query, SOURCES, SCHEMAS)


def conjuncts(query: str) -> list[str]:
    parsed = parse(query)
    return [render(c, [a for a, _ in parsed.inputs]) for c in parsed.conjuncts]


def outputs(select: str, rest: str = JOIN) -> dict[str, str]:
    parsed = parse(f"SELECT {select} {rest}")
    return {c.name: render(c.expr, [a for a, _ in parsed.inputs]) for c in parsed.output}


def error(query: str) -> str:
    with pytest.raises(QueryError) as e:
        parse(query)
    return str(e.value)


@pytest.mark.parametrize(
    "joins",
    [
        "orders o JOIN pay p ON o.id = p.order_id INNER JOIN ship s ON o.id = s.order_id",
        "orders o, pay p, ship s WHERE o.id = p.order_id AND o.id = s.order_id",
        "ORDERS AS o CROSS JOIN pay AS p CROSS JOIN Ship s WHERE (o.id = p.order_id) AND o.ID = s.order_id",
    ],
)
def test_forms_of_a_join_mean_the_same(joins: str) -> None:
    query = f"SELECT o.id FROM {joins}"
    assert conjuncts(query) == ["(o.id = p.order_id)", "(o.id = s.order_id)"]
    assert parse(query).inputs == (("o", 0), ("p", 1), ("s", 2))


def test_using_shows_its_column_once_and_first() -> None:
    query = "FROM orders o JOIN ship s USING (id)"
    assert conjuncts(f"SELECT id {query}") == ["(o.id = s.id)"]
    assert list(outputs("*", query)) == ["id", "ts", "Name", "odd col", "s", "d", "order_id", "carrier"]
    assert outputs("id, s.id AS other", query) == {"id": "o.id", "other": "s.id"}


def test_self_join_has_two_inputs_on_one_source() -> None:
    assert parse("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id").inputs == (("a", 0), ("b", 0))


def test_stars_and_names() -> None:
    assert outputs("p.*, o.Name") == {
        "order_id": "p.order_id", "amount": "p.amount", "ts": "p.ts", "Name": "o.Name"
    }  # fmt: skip
    assert outputs("O.NAME, `odd col`, o.id + 1, upper(name), cast(o.id AS int)") == {
        "NAME": "o.Name", "odd col": "o.`odd col`", "(id + 1)": "(o.id + 1)", "upper(Name)": "upper(o.Name)",
        "id": "CAST(o.id AS INT)",
    }  # fmt: skip


def test_strings_are_read_as_spark_reads_them() -> None:
    assert outputs("'a''b' AS x, 'a' 'b' AS y, 'a\\tb' AS z, r'a\\tb' AS r, R\"1\" AS q") == {
        "x": "'a\\'b'",
        "y": "concat('a', 'b')",
        "z": "'a\tb'",
        "r": "'a\\\\tb'",
        "q": "'1'",
    }


@pytest.mark.parametrize("alias", ["select", "values", "on", "using", "order", "plain"])
def test_a_predicate_over_one_source_whatever_its_alias(alias: str) -> None:
    assert render(parse_predicate("name = 'end'", alias, SCHEMAS[0])) == "(Name = 'end')"
    assert render(parse_predicate(f"`{alias}`.id > 1", alias, SCHEMAS[0])) == "(id > 1)"


def test_fields_of_structs() -> None:
    assert outputs("o.s.x, s.deep.y") == {"x": "o.s.x", "y": "o.s.deep.y"}
    assert "has no field 'z'" in error(f"SELECT o.s.z {JOIN}")
    for made in (
        "coalesce(o.s, o.s)",
        "o.xs[1]",
        "(o.xs[1])",
    ):  # never the field of a column inside
        assert "a field of `" in error(f"SELECT {made}.y {JOIN}")


def test_expressions() -> None:
    def where(condition: str) -> str:
        return " & ".join(conjuncts(f"SELECT o.id {JOIN} WHERE {condition}")[1:])

    assert where("amount BETWEEN 1 AND 2.5") == "(p.amount >= 1) & (p.amount <= 2.5)"
    assert where("p.ts - o.ts < INTERVAL 90 SECONDS") == "((p.ts - o.ts) < INTERVAL '90000000' MICROSECOND)"
    assert where("o.d - INTERVAL '1' WEEK > '2024-01-01'") == "((o.d - INTERVAL '7' DAY) > '2024-01-01')"
    assert where("name NOT LIKE 'a%' OR NOT name IS NULL") == "((NOT o.Name LIKE 'a%') OR (o.Name IS NOT NULL))"
    assert where("name NOT LIKE 'a/%' ESCAPE '/'") == "(NOT o.Name LIKE 'a/%' ESCAPE '/')"
    assert where("CASE name WHEN 'a' THEN true END") == "CASE WHEN (o.Name = 'a') THEN true END"
    assert where("o.id IN (1, -2, 3000000000)") == "(o.id IN (1, -2, 3000000000))"
    assert where("TRY_CAST(name AS INT) <=> 5") == "(TRY_CAST(o.Name AS INT) <=> 5)"
    assert where("year(o.ts) = 2024 AND datediff(o.ts, d) > 1") == "(year(o.ts) = 2024) & (datediff(o.ts, o.d) > 1)"
    assert where("date_sub(d, 3) = DATE '2024-01-01'") == "(date_sub(o.d, 3) = CAST('2024-01-01' AS DATE))"


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        (
            f"SELECT p.oder_id {JOIN}",
            ["input 'p' has no column 'oder_id'", "Did you mean 'order_id'", "order_id, amount, ts"],
        ),
        (f"SELECT nme {JOIN}", ["no input has a column 'nme'", "Did you mean 'Name'", "p: order_id"]),
        (f"SELECT x.id {JOIN}", ["no input 'x'", "Inputs are: o, p"]),
        (f"SELECT orders.id {JOIN}", ["no input 'orders'"]),
        (f"SELECT q.* {JOIN}", ["no input 'q'"]),
        (f"SELECT ts {JOIN}", ["'ts' is ambiguous", "o.ts, p.ts"]),
        (f"SELECT o.ts, p.ts {JOIN}", ["two output columns are called 'ts'", "AS p_ts"]),
        ("SELECT o.id FROM ordrs o JOIN pay p ON o.id = p.order_id", ["no source 'ordrs'", "Did you mean 'orders'"]),
        ("SELECT 1 FROM orders o JOIN pay o ON 1 = 1", ["'o' is used for two inputs"]),
        ("SELECT id FROM orders", ["one input, 'orders'", "at least two"]),
        ("SELECT o.id FROM orders o JOIN pay p ON o.id = s.order_id JOIN ship s ON true", ["has no field 'order_id'"]),
        (f"SELECT uppr(name) {JOIN}", ["function uppr is not supported", "Did you mean 'upper'"]),
        (f"SELECT now() {JOIN}", ["run again must give the same rows"]),
        (f"SELECT count(*) {JOIN}", ["aggregate `COUNT(*)`", "downstream"]),
        (f"SELECT row_number() OVER (ORDER BY o.id) {JOIN}", ["window function", "downstream"]),
        (f"SELECT DISTINCT o.id {JOIN}", ["DISTINCT", "downstream"]),
        (f"SELECT o.id {JOIN} GROUP BY o.id", ["GROUP BY", "downstream"]),
        (f"SELECT o.id {JOIN} ORDER BY o.id", ["ORDER BY", "downstream"]),
        (f"SELECT o.id {JOIN} LIMIT 3", ["LIMIT", "downstream"]),
        (f"WITH c AS (SELECT 1) SELECT o.id {JOIN}", ["WITH", "downstream"]),
        (f"SELECT o.id {JOIN} UNION ALL SELECT 1", ["UNION", "downstream"]),
        (f"SELECT o.id {JOIN} WHERE o.id IN (SELECT id FROM ship)", ["subquery in IN", "downstream"]),
        (f"SELECT o.id {JOIN} WHERE EXISTS (SELECT 1)", ["a subquery", "downstream"]),
        ("SELECT 1 FROM orders o JOIN (SELECT 1) p ON true", ["a subquery", "every input is a source"]),
        ("SELECT 1 FROM db.orders o JOIN pay p ON true", ["db.orders", "alias of a source"]),
        ("SELECT 1 FROM orders o NATURAL JOIN pay p", ["NATURAL JOIN", "USING"]),
        (f"SELECT o.id + INTERVAL '1-2' YEAR TO MONTH {JOIN}", ["one unit"]),
        (f"SELECT o.ts + INTERVAL 106751992 DAYS {JOIN}", ["longer than an INTERVAL can be"]),
        (f"SELECT o.ts - INTERVAL 2147483648 MONTHS {JOIN}", ["longer than an INTERVAL can be"]),
        (f"SELECT o.name LIKE ANY ('a', 'b') {JOIN}", ["is not supported"]),
        (f"SELECT trim(o.name COLLATE unicode) {JOIN}", ["is not supported"]),
        (f"SELECT * EXCEPT (id) {JOIN}", ["* EXCEPT"]),
        (
            "SELECT o.id FROM orders o JOIN ship s ON (o.id, o.name) = (s.id, s.carrier)",
            ["the row `(o.id, o.name)`", "`o.id = s.id AND o.name = s.carrier`", "NULL equals NULL"],
        ),
        (f"SELECT o.id {JOIN} WHERE (o.id, p.amount) <> (1, 2)", ["the row `(o.id, p.amount)`", "column by column"]),
        (f"SELECT o.id {JOIN} WHERE (o.id, p.amount) IN ((1, 2))", ["the row `(o.id, p.amount)`", "column by column"]),
        (f"SELECT negate(o.id) {JOIN}", ["function negate is not supported"]),
        (f"SELECT add_months(o.d, 1) {JOIN}", ["function add_months is not supported"]),
        ("DELETE FROM orders", ["not a SELECT"]),
        ("SELECT 1; SELECT 2", ["2 statements"]),
        ("SELECT o.id FROM orders o JOIN pay p ON o.id = 'x", ["not valid SQL", "quote"]),
    ],
)
def test_mistakes(query: str, parts: list[str]) -> None:
    message = error(query)
    for part in parts:
        assert part in message
    assert "\x1b" not in message


@pytest.mark.parametrize("kind", ["LEFT", "RIGHT", "FULL OUTER", "LEFT SEMI", "ANTI"])
def test_other_joins_are_refused(kind: str) -> None:
    message = error(f"SELECT 1 FROM orders o {kind} JOIN pay p ON o.id = p.order_id")
    assert f"{kind} JOIN is not supported" in message
    assert "Spark's own join" in message


def test_a_syntax_error_shows_the_place() -> None:
    message = error("SELECT o.id\nFROM orders o JOIN pay p ON (o.id = p.order_id")
    lines = message.splitlines()
    assert "line 2" in lines[0] and "Expecting )" in lines[0]
    begin = lines[2].index("^")
    assert lines[1][begin : len(lines[2])] == "order_id"


def test_star_join_shows_keys_once_and_prefixes_clashes() -> None:
    schemas = [
        pa.schema([("v", pa.string()), ("k", pa.int64()), ("only_a", pa.string())]),
        pa.schema([("K", pa.int32()), ("v", pa.string())]),
        pa.schema([("k", pa.int32()), ("w", pa.string())]),
    ]
    query = star_join(["k"], ["a", "b", "c"], schemas)
    assert [c.name for c in query.output] == ["k", "a_v", "only_a", "b_v", "w"]
    assert [render(c, ["a", "b", "c"]) for c in query.conjuncts] == ["(a.k = b.K)", "(a.k = c.k)"]
    with pytest.raises(QueryError, match="option 'on': input 'a' has no column 'w'"):
        star_join(["w"], ["a", "b", "c"], schemas)


@pytest.mark.parametrize("call", ["concat_ws('-', o.name, 'b')", "date_format(o.at, 'yyyy')", "lpad(o.name, 3, 'x')"])
def test_a_function_that_is_not_known_is_refused_under_the_name_it_has_in_spark(call: str) -> None:
    message = error(f"SELECT {call} FROM orders o JOIN pay p ON o.id = p.order_id")
    assert call.partition("(")[0] in message
    assert "not supported" in message
