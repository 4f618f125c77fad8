"""Queries divided into filters, keys, conditions and output, each in the words of the query."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.errors import QueryError
from spark_mjoin.query.division import DividedInput, Division, Key, divide, divide_star
from tests.examples import examples

SOURCES = ["orders", "payments", "ship"]
COLUMNS = [
    ["id", "mail", "at", "addr", "xs", "odd col", "Name", "end", "a`b", "from", "case"],
    ["order_id", "amount", "at", "mail", "name", "unit"],
    ["id", "order_id", "carrier"],
]
FROM = "FROM orders o JOIN payments p ON o.id = p.order_id"


def over(query: str) -> Division:
    return divide(query, SOURCES, COLUMNS)


def where(condition: str, joins: str = FROM) -> Division:
    return over(f"SELECT 1 AS one {joins} WHERE {condition}")


def filters(division: Division) -> list[list[str]]:
    return [list(each.filters) for each in division.inputs]


def keys(division: Division) -> list[tuple[str, str]]:
    """The two texts of every equality."""
    texts = [[key.text for key in each.keys] for each in division.inputs]
    return [(texts[a][i], texts[b][j]) for (a, i), (b, j) in division.equalities]


def output(items: str, joins: str = FROM) -> dict[str, str]:
    return dict(over(f"SELECT {items} {joins}").output)


def payload(items: str, joins: str = FROM) -> list[tuple[str, ...]]:
    return [each.payload for each in over(f"SELECT {items} {joins}").inputs]


def error(query: str) -> str:
    with pytest.raises(QueryError) as e:
        over(query)
    return str(e.value)


def test_a_query_in_all_its_parts() -> None:
    assert over(
        "SELECT o.id, upper(p.name) AS n FROM orders o JOIN payments p ON o.id = p.order_id AND p.amount > 0"
        " AND o.at < p.at WHERE lower(o.mail) = p.mail"
    ) == Division(
        inputs=(
            DividedInput("o", 0, (), (Key("o.id", "id"), Key("lower(o.mail)")), ("id", "at")),
            DividedInput(
                "p", 1, ("p.amount > 0",), (Key("p.order_id", "order_id"), Key("p.mail", "mail")), ("at", "name")
            ),
        ),
        equalities=(((0, 0), (1, 0)), ((0, 1), (1, 1))),
        conditions=("o.at < p.at",),
        output=(("id", "o.id"), ("n", "upper(p.name)")),
    )


@pytest.mark.parametrize(
    "joins",
    [
        "orders o JOIN payments p ON o.id = p.order_id INNER JOIN ship s ON o.id = s.order_id",
        "orders o, payments p, ship s WHERE o.id = p.order_id AND o.id = s.order_id",
        "orders o JOIN payments p ON o.id = p.order_id, ship s WHERE o.id = s.order_id",
        "orders AS o CROSS JOIN payments AS p CROSS JOIN Ship s WHERE ((o.id = p.order_id) AND (o.id) = s.order_id)",
        "orders o JOIN payments p ON o.id = p.order_id INNER JOIN ship s ON o.id == s.order_id;",
        "orders o JOIN payments p ON o.id = p.order_id CROSS JOIN ship s WHERE o.id = s.order_id",
        "orders o JOIN payments p INNER JOIN ship s ON (o.id = p.order_id AND o.id = s.order_id)",
    ],
)
def test_forms_of_a_join_mean_the_same(joins: str) -> None:
    division = over(f"SELECT o.id FROM {joins}")
    assert keys(division) == [("o.id", "p.order_id"), ("o.id", "s.order_id")]
    assert [(i.alias, i.source, len(i.keys)) for i in division.inputs] == [("o", 0, 1), ("p", 1, 1), ("s", 2, 1)]
    assert division.conditions == ()


@pytest.mark.parametrize(
    ("condition", "parts"),
    [
        ("o.at BETWEEN 1 AND 2 AND o.xs[0] = 3", ["o.at BETWEEN 1 AND 2", "o.xs[0] = 3"]),
        ("o.at NOT BETWEEN (1 AND 2) AND 3 AND o.id = 4", ["o.at NOT BETWEEN (1 AND 2) AND 3", "o.id = 4"]),
        (
            "CASE WHEN o.id = 1 AND o.at = 2 THEN true END AND o.id > 3",
            ["CASE WHEN o.id = 1 AND o.at = 2 THEN true END", "o.id > 3"],
        ),
        ("CASE o.end WHEN 1 THEN o.end END AND o.id > 3", ["CASE o.end WHEN 1 THEN o.end END", "o.id > 3"]),
        ("o.case > 1 AND o.from = 2", ["o.case > 1", "o.from = 2"]),
        ("o.id = 1 OR o.id = 2 AND o.at = 3", ["o.id = 1 OR o.id = 2 AND o.at = 3"]),
        ("(o.id = 1 OR o.id = 2) AND o.at = 3", ["o.id = 1 OR o.id = 2", "o.at = 3"]),
        ("((o.id = 1 AND (o.id = 2))) AND (o.at = 3)", ["o.id = 1", "o.id = 2", "o.at = 3"]),
        ("(o.id = 1) AND (o.at = 3)", ["o.id = 1", "o.at = 3"]),
        ("NOT o.id = 1 AND o.at = 3", ["NOT o.id = 1", "o.at = 3"]),
        ("NOT (o.id = 1 AND o.at = 3)", ["NOT (o.id = 1 AND o.at = 3)"]),
        ("o.mail = ' AND ' AND o.`odd col` = 'it''s -- AND'", ["o.mail = ' AND '", "o.`odd col` = 'it''s -- AND'"]),
        ("o.id -- AND\n = 1 /* AND ( */ AND o.at = 3 -- x", ["o.id -- AND\n = 1", "o.at = 3"]),
        ("exists(o.xs, x -> x > 1 AND x < 2) AND o.id = 5S", ["exists(o.xs, x -> x > 1 AND x < 2)", "o.id = 5S"]),
        ("o.id IS DISTINCT FROM o.at AND o.mail LIKE 'é😀'", ["o.id IS DISTINCT FROM o.at", "o.mail LIKE 'é😀'"]),
        ("o.at = DATE '2024-01-31'::INT\r\nAND\to.id\n=\n1", ["o.at = DATE '2024-01-31'::INT", "o.id\n=\n1"]),
        ("a_udf(o.id, left(o.mail, 2)) AND db.f(o.id)", ["a_udf(o.id, left(o.mail, 2))", "db.f(o.id)"]),
        ("o.id::map<int,array<int>> = map(1, array(2)) AND O.ID > 1", ["o.id::map<int,array<int>> = map(1, array(2))",
                                                                       "O.ID > 1"]),
    ],
)  # fmt: skip
def test_conjuncts_over_one_input_are_its_filters(condition: str, parts: list[str]) -> None:
    for division in (
        where(condition, "FROM payments p, orders o"),
        over(f"SELECT 1 FROM payments p JOIN orders o ON {condition}\nINNER JOIN ship s ON true"),
        over(f"SELECT 1 FROM payments p JOIN orders o ON ({condition}\n), ship s"),
    ):
        assert filters(division)[:2] == [[], parts]
        assert division.conditions in ((), ("true",))
        assert division.equalities == ()
        assert not any(each.payload for each in division.inputs)


@pytest.mark.parametrize(
    ("condition", "sides"),
    [
        ("lower(o.mail) = p.mail", ("lower(o.mail)", "p.mail")),
        ("p.mail==o.mail", ("p.mail", "o.mail")),
        ("(o.addr.city) = (p.name || ' = ')", ("o.addr.city", "p.name || ' = '")),
        ("o.at + INTERVAL 1 DAY = date_trunc('day', p.at)", ("o.at + INTERVAL 1 DAY", "date_trunc('day', p.at)")),
        ("CASE WHEN o.id = 1 THEN 2 END = p.amount", ("CASE WHEN o.id = 1 THEN 2 END", "p.amount")),
        ("(o.id IS NULL) = (p.amount > 1)", ("o.id IS NULL", "p.amount > 1")),
        ("xs[0] = amount", ("`o`.xs[0]", "`p`.amount")),
        ("my_udf(xs, x -> x = 1) = amount", ("my_udf(`o`.xs, x -> x = 1)", "`p`.amount")),
    ],
)
def test_an_equality_of_two_inputs_gives_keys(condition: str, sides: tuple[str, str]) -> None:
    division = where(condition)
    assert keys(division) == [("o.id", "p.order_id"), sides]
    assert filters(division) == [[], []] and division.conditions == ()
    assert [each.payload for each in division.inputs] == [(), ()]


@pytest.mark.parametrize(
    "condition",
    [
        "o.at < p.at", "o.mail <=> p.mail", "o.mail <> p.mail", "NOT o.mail = p.mail", "! o.mail = p.mail",
        "o.mail = p.mail OR o.at = p.at", "o.id + p.amount = 1", "o.id + p.amount = o.at", "o.id = o.at + p.amount",
        "1 = 1", "true", "rand() < 0.5", "o.at > p.at BETWEEN o.at AND p.at", "coalesce(o.mail = p.mail, true)",
        # Spark reads these from the left, and sqlglot otherwise.
        "o.at = p.at IS NULL", "o.at = p.at < p.amount", "o.at = p.at IN (true)", "o.at = o.id = p.at",
        "o.mail = p.mail LIKE 't%'", "o.at = p.at BETWEEN true AND true",
        # Another value each time: it matters for which rows it is evaluated.
        "o.at > rand()", "o.mail = p.mail || uuid()",
    ],
)  # fmt: skip
def test_all_else_is_a_condition_after_the_join(condition: str) -> None:
    division = where(f"o.id > 5 AND ({condition})")
    assert division.conditions == (condition,)
    assert keys(division) == [("o.id", "p.order_id")]
    assert filters(division) == [["o.id > 5"], []]
    for each in division.inputs:
        assert each.payload == tuple(c for c in COLUMNS[each.source] if re.search(rf"\b{each.alias}\.{c}\b", condition))


def test_the_same_key_is_one_key() -> None:
    division = where("lower( o.mail ) = p.mail AND lower(o.mail) = p.name AND LOWER(o.mail) = p.unit AND (id)=amount")
    assert division.inputs[0].keys == (Key("o.id", "id"), Key("lower( o.mail )"), Key("LOWER(o.mail)"))
    assert division.equalities == (((0, 0), (1, 0)), ((0, 1), (1, 1)), ((0, 1), (1, 2)), ((0, 2), (1, 3)),
                                   ((0, 0), (1, 4)))  # fmt: skip
    division = where("lower(mail) = carrier AND lower(/* of */ o.mail) = s.id", "FROM orders o, ship s")
    assert division.inputs[0].keys == (Key("lower(`o`.mail)"),)
    division = where("ID = carrier AND `id` = s.id", "FROM orders o JOIN ship s USING (id)")
    assert division.inputs[0].keys == (Key("`o`.`id`", "id"),)


def test_columns_get_the_names_of_their_inputs() -> None:
    items = "upper(carrier)||name, `odd col` AS x, addr.city, addr.zip.a.b.c.d AS z"
    assert output(items, "FROM orders o, ship s") == {
        "concat(upper(carrier), Name)": "upper(`s`.carrier)||`o`.name", "x": "`o`.`odd col`",
        "city": "`o`.addr.city", "z": "`o`.addr.zip.a.b.c.d",
    }  # fmt: skip
    assert output("carrier, S.id, ship.carrier AS c", "FROM orders s, ship") == {
        "carrier": "`ship`.carrier", "id": "S.id", "c": "ship.carrier"
    }  # fmt: skip
    assert output("carrier, `x``y`.id", "FROM ship `a b`, orders `x``y`") == {
        "carrier": "`a b`.carrier", "id": "`x``y`.id"
    }  # fmt: skip
    assert output("xs", "FROM ship, orders `x``y`") == {"xs": "`x``y`.xs"}
    assert output("o.`a``b`, `a``b` + 1 AS `c``d`") == {"a`b": "o.`a``b`", "c`d": "`o`.`a``b` + 1"}


def test_variables_of_lambdas_are_no_columns() -> None:
    text = "transform(xs, x -> transform(x.ys, (id, I) -> id.a.b + i + X + amount))"
    assert output(f"{text} AS t") == {
        "t": "transform(`o`.xs, x -> transform(x.ys, (id, I) -> id.a.b + i + X + `p`.amount))"
    }
    assert payload(f"{text} AS t") == [("xs",), ("amount",)]
    assert output("filter(o.xs, o -> o.id > p.amount) AS t") == {"t": "filter(o.xs, o -> o.id > p.amount)"}
    assert payload("filter(o.xs, o -> o.id > p.amount) AS t") == [("xs",), ("amount",)]
    assert "the variable 'p' hides the input 'p'" in error(f"SELECT filter(xs, P -> P > amount) AS t {FROM}")


def test_arguments_that_the_parser_drops_are_seen() -> None:
    assert payload("date_trunc(p.unit, o.at) AS t") == [("at",), ("unit",)]
    assert where("date_trunc(p.unit, o.at) = 1").conditions == ("date_trunc(p.unit, o.at) = 1",)


def test_functions_that_only_spark_knows() -> None:
    assert output(
        "my_udf( o.id,\n name ), db.f(o.id), cat.db.g(mail).h, upper(o.xs[0].f), k(x => 5S)", "FROM orders o, ship"
    ) == {
        "my_udf( id, name )": "my_udf( o.id,\n `o`.name )", "db.f(id)": "db.f(o.id)", "h": "cat.db.g(`o`.mail).h",
        "upper(xs[0].f)": "upper(o.xs[0].f)", "k(x => 5S)": "k(x => 5S)",
    }  # fmt: skip


def test_names_of_the_output() -> None:
    assert output("O.NAME AS n, o.id + 1, upper(o.Name), cast(o.id AS int), p.amount::string, o.xs[0].f, now()") == {
        "n": "O.NAME", "(id + 1)": "o.id + 1", "upper(Name)": "upper(o.Name)", "id": "cast(o.id AS int)",
        "amount": "p.amount::string", "f": "o.xs[0].f", "now()": "now()",
    }  # fmt: skip
    assert output("o.id AS from, o.at on_, 'a, b FROM c' AS `select`, o.end, CASE WHEN true THEN o.id END AS case") == {
        "from": "o.id", "on_": "o.at", "select": "'a, b FROM c'", "end": "o.end",
        "case": "CASE WHEN true THEN o.id END",
    }  # fmt: skip
    assert output("ALL o.id IS DISTINCT FROM p.at AS x, o.id::map<array<int>,int> m") == {
        "x": "o.id IS DISTINCT FROM p.at", "m": "o.id::map<array<int>,int>"
    }  # fmt: skip


def test_stars_become_columns() -> None:
    assert output("s.*, o.at", "FROM orders o JOIN ship s ON o.id = s.id") == {
        "id": "`s`.`id`", "order_id": "`s`.`order_id`", "carrier": "`s`.`carrier`", "at": "o.at"
    }  # fmt: skip
    using = "FROM orders o JOIN ship s USING (id)"
    assert list(output("*", using)) == [*COLUMNS[0], "order_id", "carrier"]
    assert output("*", using)["a`b"] == "`o`.`a``b`"
    assert payload("*", using) == [tuple(COLUMNS[0]), ("order_id", "carrier")]
    assert "two output columns are called 'at': o.at, p.at" in error(f"SELECT * {FROM}")


def test_using_means_the_column_of_the_first_input() -> None:
    division = over("SELECT id, s.id AS other FROM orders o JOIN ship s USING (ID) JOIN ship t USING (id)")
    assert keys(division) == [("`o`.`id`", "`s`.`id`"), ("`o`.`id`", "`t`.`id`")]
    assert division.output == (("id", "`o`.id"), ("other", "s.id"))
    assert [each.payload for each in division.inputs] == [("id",), ("id",), ()]


def test_self_join_has_two_inputs_on_one_source() -> None:
    division = over("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id AND a.at = 1 AND b.at = 2")
    assert [(each.alias, each.source) for each in division.inputs] == [("a", 0), ("b", 0)]
    assert filters(division) == [["a.at = 1"], ["b.at = 2"]]


def test_payload_is_in_the_order_of_the_schema() -> None:
    assert payload("p.name, o.at, o.addr.city, o.id, upper(p.mail) AS m") == [("id", "at", "addr"), ("mail", "name")]


def test_columns_that_spark_cannot_tell_apart() -> None:
    columns = [["id", "x", "X", "y", "y"], ["id", "z"]]
    join = "FROM a JOIN b ON a.id = b.id"
    assert divide(f"SELECT a.id {join}", ["a", "b"], columns).inputs[0].payload == ("id",)
    for item in ("a.x", "X", "a.y", "y", "a.*", "*", "f(a.y)"):
        with pytest.raises(QueryError, match=r"of input 'a' is ambiguous: the DataFrame has (x, X|y, y),"):
            divide(f"SELECT {item} {join}", ["a", "b"], columns)
    with pytest.raises(QueryError, match="column 'y' of input 'a' is ambiguous: the DataFrame has y, y"):
        divide("SELECT 1 FROM a JOIN b ON a.y = b.z", ["a", "b"], columns)
    with pytest.raises(QueryError, match="ambiguous"):
        divide_star(["id"], ["a", "b"], columns)


@pytest.mark.parametrize(
    ("query", "parts"),
    [
        (f"SELECT p.oder_id {FROM}", ["input 'p' has no column 'oder_id'", "Did you mean 'order_id'"]),
        (f"SELECT f(amout) {FROM}", ["no input has a column 'amout'", "Did you mean 'amount'"]),
        (f"SELECT x.id {FROM}", ["no input 'x'", "Inputs are: o, p"]),
        (f"SELECT q.* {FROM}", ["no input 'q'"]),
        (f"SELECT f(at) {FROM}", ["'at' is ambiguous", "o.at, p.at"]),
        (f"SELECT o.at, p.at {FROM}", ["two output columns are called 'at'", "`p.at AS p_at`"]),
        (f"SELECT f(o.at) AS t, o.id AS T {FROM}", ["two output columns are called 'T': f(o.at), o.id"]),
        ("SELECT o.id FROM ordrs o JOIN payments p ON o.id = p.order_id", ["no source 'ordrs'", "'orders'"]),
        ("SELECT 1 FROM orders o JOIN payments o ON 1 = 1", ["'o' is used for two inputs"]),
        ("SELECT id FROM orders WHERE id = 1", ["one input, 'orders'", "at least two"]),
        ("SELECT 1", ["no FROM"]),
        ("SELECT 1 FROM orders o JOIN payments p ON o.id = t.id JOIN ship t ON true", ["no input 't'"]),
        ("FROM orders o JOIN payments p ON o.id = p.order_id SELECT o.id", ["in FROM is not supported"]),
        (f"SELECT count(*) {FROM}", ["aggregate `COUNT(*)`", "downstream"]),
        (f"SELECT o.id {FROM} WHERE max(o.id) = 1", ["aggregate `MAX(o.id)`"]),
        (f"SELECT 1 + row_number() OVER (ORDER BY o.id) {FROM}", ["window function", "downstream"]),
        (f"SELECT f(*) {FROM}", ["* inside an expression"]),
        (f"SELECT struct(o.*) {FROM}", ["* inside an expression"]),
        (f"SELECT * EXCEPT (id) {FROM}", ["* EXCEPT"]),
        (f"SELECT explode(o.xs) AS (k, v) {FROM}", ["more than one name"]),
        (f"SELECT DISTINCT o.id {FROM}", ["DISTINCT", "downstream"]),
        (f"SELECT o.id {FROM} GROUP BY o.id", ["GROUP BY", "downstream"]),
        (f"SELECT o.id {FROM} LIMIT 3", ["LIMIT", "downstream"]),
        (f"WITH c AS (SELECT 1) SELECT o.id {FROM}", ["WITH", "downstream"]),
        (f"SELECT o.id {FROM} UNION ALL SELECT 1", ["UNION", "downstream"]),
        (f"SELECT o.id {FROM} WHERE o.id IN (SELECT id FROM ship)", ["subquery", "downstream"]),
        (f"SELECT o.id {FROM} WHERE EXISTS (SELECT 1)", ["a subquery", "downstream"]),
        (f"SELECT (SELECT 1) AS x {FROM}", ["a subquery", "downstream"]),
        ("SELECT 1 FROM orders o JOIN (SELECT 1) p ON true", ["a subquery", "every input is a source"]),
        ("SELECT 1 FROM orders o LEFT JOIN payments p ON true", ["LEFT JOIN is not supported"]),
        ("SELECT 1 FROM orders o NATURAL JOIN payments p", ["NATURAL JOIN", "USING"]),
        (
            "SELECT 1 FROM orders o JOIN ship s ON (o.id, o.mail) = (s.id, s.carrier)",
            ["the row `(o.id, o.mail)`", "`o.id = s.id AND o.mail = s.carrier`"],
        ),
        ("SELECT 1; SELECT 2", ["2 statements"]),
        ("SELECT o.id FROM orders o JOIN payments p ON o.id = 'x", ["not valid SQL", "quote"]),
        ("SELECT o.id FROM orders o JOIN payments p ON (o.id = 1", ["syntax error at line 1"]),
    ],
)
def test_mistakes(query: str, parts: list[str]) -> None:
    message = error(query)
    for part in parts:
        assert part in message


# --- on ---


def test_on_joins_all_sources() -> None:
    columns = [["v", "k", "only_a"], ["K", "v"], ["k", "w"]]
    division = divide_star(["k"], ["a", "b", "c"], columns)
    assert division == Division(
        inputs=(
            DividedInput("a", 0, (), (Key("`a`.`k`", "k"),), ("v", "k", "only_a")),
            DividedInput("b", 1, (), (Key("`b`.`K`", "K"),), ("v",)),
            DividedInput("c", 2, (), (Key("`c`.`k`", "k"),), ("w",)),
        ),
        equalities=(((0, 0), (1, 0)), ((0, 0), (2, 0))),
        conditions=(),
        output=(
            ("k", "`a`.`k`"), ("a_v", "`a`.`v`"), ("only_a", "`a`.`only_a`"), ("b_v", "`b`.`v`"), ("w", "`c`.`w`"),
        ),
    )  # fmt: skip
    with pytest.raises(QueryError, match="option 'on': input 'a' has no column 'w'"):
        divide_star(["w"], ["a", "b", "c"], columns)
    with pytest.raises(QueryError, match="at least two"):
        divide_star(["k"], ["a"], columns[:1])


# --- generated queries ---

NAMES = ["a", "B", "o p", "select", "x`y", "ünï"]  # of inputs
OWN = ["k", "v", "and", "odd col", "from"]  # of columns that every input has
SPACES = st.sampled_from([" ", "\n", "\t ", " /* AND ) */ ", " -- FROM '\n"])


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


@dataclass(frozen=True)
class Term:
    """An expression over one input: as the query has it, and as it is with all columns qualified."""

    written: str
    text: str
    columns: frozenset[tuple[int, str]]
    is_column: bool = False


@st.composite
def terms(draw: st.DrawFn, names: list[str], input: int) -> Term:
    shape = draw(
        st.sampled_from(
            ["{}", "lower({})", "my_udf({}, 'a AND b, (')", "CASE WHEN {} = 1 AND true THEN 2 ELSE 3 END", "{}.f.g",
             "coalesce({}, {}['FROM'])", "transform({}, x -> x + 1)", "date_trunc('day', {})", "({} + 1)", "-{}",
             "{}::array<int>", "db.f({}, k => {})", "CAST({} AS STRUCT<a: INT, b: MAP<INT, INT>>)"]
        )
    )  # fmt: skip
    written, texts, used = [], [], set()
    for _ in range(shape.count("{}")):
        name, own = draw(st.sampled_from(OWN)), draw(st.booleans())
        column = f"only{input}" if own else name
        used.add((input, column))
        texts.append(f"{quoted(names[input])}.{quoted(column)}")
        written.append(quoted(column) if own and draw(st.booleans()) else f"{quoted(names[input])}.{quoted(column)}")
    return Term(shape.format(*written), shape.format(*texts), frozenset(used), shape == "{}")


@dataclass
class Expected:
    """What a generated query divides into."""

    filters: dict[int, list[str]]
    sides: list[tuple[Term, Term]]
    conditions: list[str]
    output: list[tuple[str, str]]
    needed: set[tuple[int, str]]


@st.composite
def conjuncts(draw: st.DrawFn, names: list[str], up_to: int, expected: Expected) -> str:
    """A conjunct over the first inputs, noted in what is expected."""
    input = draw(st.integers(0, up_to))
    other = draw(st.integers(0, up_to).filter(lambda i: i != input))
    one, two, space = draw(terms(names, input)), draw(terms(names, other)), draw(SPACES)
    kind = draw(st.sampled_from(["filter", "equality", "condition", "constant"]))
    if kind == "filter":
        shape = draw(st.sampled_from(["{} > 1", "{} BETWEEN 1 AND 2", "NOT {} = 1", "{} = 1 OR false", "{} = 1 IS NULL",
                                      "{} IN (1, 2)", "1 == {}", "{} IS DISTINCT FROM 3", "a_udf({})"]))  # fmt: skip
        expected.filters.setdefault(input, []).append(shape.format(one.text))
        written = shape.format(one.written)
    elif kind == "equality":
        expected.sides.append((one, two))
        shape = draw(st.sampled_from(["{}{}={}", "{}{}= ({})", "({}){}== {}"]))
        written = shape.format(one.written, space, two.written)
    elif kind == "condition":
        shape = draw(st.sampled_from(["{} < {}", "{} <=> {}", "{} + {} = 1", "NOT {} = {}", "{} = 1 OR {} = 2",
                                      "f({}, {})", "{} BETWEEN 1 AND {}", "{} = {} IS NOT NULL",
                                      "{} = {} AND 1 OR true", "{} LIKE 'a = b' || {}"]))  # fmt: skip
        expected.conditions.append(shape.format(one.text, two.text))
        expected.needed |= one.columns | two.columns
        written = shape.format(one.written, two.written)
    else:
        written = draw(st.sampled_from(["true", "1 = 1", "'x' = 'AND' || 'OR'", "rand() < 2"]))
        expected.conditions.append(written)
    brackets = draw(st.integers(0, 2)) or (1 if " OR " in written else 0)
    return "(" * brackets + written + ")" * brackets


@st.composite
def queries(draw: st.DrawFn) -> tuple[str, list[str], Expected]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    expected = Expected({}, [], [], [], set())

    def condition(up_to: int, least: int) -> str:
        parts = [draw(conjuncts(names, up_to, expected)) for _ in range(draw(st.integers(least, 3)))]
        text = parts[0] if parts else ""
        for part in parts[1:]:
            text = draw(st.sampled_from(["{}{}AND {}", "({}){}and ({})"])).format(text, draw(SPACES), part)
        return text

    joins = f"t0 {quoted(names[0])}"
    for i in range(1, len(names)):
        kind = draw(st.sampled_from([",", " JOIN", " INNER JOIN", " CROSS JOIN"]))
        joins += f"{kind}{draw(SPACES)}t{i} AS {quoted(names[i])}"
        if kind in (" JOIN", " INNER JOIN") and draw(st.integers(0, 3)):
            joins += f"{draw(SPACES)}ON {condition(i, 1)}"
    filter_ = condition(len(names) - 1, 0)
    items = []
    for i in range(draw(st.integers(1, 4))):
        term = draw(terms(names, draw(st.integers(0, len(names) - 1))))
        expected.output.append((f"out{i}", term.text))
        expected.needed |= term.columns
        items.append(term.written + draw(st.sampled_from([" AS ", " ", "\nas "])) + f"out{i}")
    query = f"SELECT{draw(SPACES)}{', '.join(items)}{draw(SPACES)}FROM {joins}"
    return query + (f"{draw(SPACES)}WHERE {filter_}" if filter_ else ""), names, expected


@examples(400)
@given(queries())
def test_generated_queries_divide_as_they_were_made(case: tuple[str, list[str], Expected]) -> None:
    query, names, expected = case
    columns = [[*OWN, f"only{i}"] for i in range(len(names))]
    division = divide(query, [f"t{i}" for i in range(len(names))], columns)
    assert [(each.alias, each.source) for each in division.inputs] == [(name, i) for i, name in enumerate(names)]
    assert filters(division) == [expected.filters.get(i, []) for i in range(len(names))]
    assert list(division.conditions) == expected.conditions
    assert list(division.output) == expected.output
    used = [each.payload for each in division.inputs]
    assert used == [tuple(c for c in columns[i] if (i, c) in expected.needed) for i in range(len(names))]
    assert len(division.equalities) == len(expected.sides)
    for places, sides in zip(division.equalities, expected.sides, strict=True):
        for (input, index), term in zip(places, sides, strict=True):
            key = division.inputs[input].keys[index]
            assert {i for i, _ in term.columns} == {input}
            assert key.text == term.text.removeprefix("(").removesuffix(")") or key.text == term.text
            assert (key.column is not None) == term.is_column
    for each in division.inputs:
        assert len(set(each.keys)) == len(each.keys)
