"""The `query` option read into inputs, conjuncts and a select list, and `on` into the same.

    SELECT o.id, p.amount FROM orders o JOIN payments p ON o.id = p.order_id WHERE p.amount > 0
           └ output ────┘      └ inputs ─────────────┘      └ conjuncts ─────────┘     └──────┘

Covered: inner joins (JOIN … ON, USING, CROSS JOIN, commas), WHERE, self-joins, `*` and `t.*`, struct fields, and the
expressions of `mjoin.expressions`. ON and WHERE mean the same in an inner join, so both end up in `conjuncts`.

Not covered, and refused by name with the place where it can be done: outer, semi and anti joins, aggregation, window
functions, DISTINCT, ORDER BY, LIMIT, subqueries, CTEs, set operations, functions of clock or randomness. What a clause
means here is exactly what it means in Spark, so a refused query can be split into the join and the rest downstream.

Names are resolved in this module: exactly as spelt first, without regard to case second.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp

from spark_mjoin.errors import QueryError, listed, nearest
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import Call, Col, Expr, Lit, OutputColumn
from spark_mjoin.query.translate import Translator, refuse

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_CLAUSES = {
    "with": "WITH", "with_": "WITH", "distinct": "DISTINCT", "group": "GROUP BY", "having": "HAVING",
    "order": "ORDER BY", "sort": "SORT BY", "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY", "limit": "LIMIT",
    "offset": "OFFSET", "qualify": "QUALIFY", "windows": "WINDOW", "laterals": "LATERAL VIEW", "pivots": "PIVOT",
    "hint": "a hint", "sample": "TABLESAMPLE", "into": "INTO", "locks": "FOR UPDATE",
}  # fmt: skip
_TYPED = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")  # before a string, a literal of that type
_SELECT_PARTS = {"expressions", "from", "from_", "joins", "where", "kind", "operation_modifiers"}


@dataclass(frozen=True)
class Query:
    """What a query says, with names resolved. How equalities connect the inputs is not known yet."""

    inputs: tuple[tuple[str, int], ...]  # alias in the query, index of the source
    conjuncts: tuple[Expr, ...]
    output: tuple[OutputColumn, ...]


@dataclass(frozen=True)
class _Visible:
    """A column that an unqualified name or `*` sees; USING merges two columns into one of these."""

    name: str
    expr: Col


class Scope:
    """The inputs of a query and the columns that they have."""

    remedy = "another one is added with option 'source.{}.format'"  # where there is no such source

    def __init__(self, sources: Sequence[str], schemas: Sequence[pa.Schema]) -> None:
        self.sources = list(sources)
        self.schemas = list(schemas)
        self.inputs: list[tuple[str, int]] = []
        self.visible: list[_Visible] = []

    def add(self, alias: str, source_name: str) -> int:
        matches = [i for i, s in enumerate(self.sources) if s.lower() == source_name.lower()]
        if not matches:
            raise QueryError(
                f"query: there is no source '{source_name}'.{nearest(source_name, self.sources)}"
                f" Sources are: {listed(self.sources)}; {self.remedy.format(source_name)}"
            )
        if any(a.lower() == alias.lower() for a, _ in self.inputs):
            raise QueryError(f"query: the name '{alias}' is used for two inputs; give one another alias: {alias} AS …")
        self.inputs.append((alias, matches[0]))
        return len(self.inputs) - 1

    def columns(self, input: int) -> list[str]:
        return list(self.schemas[self.inputs[input][1]].names)

    def type_of(self, column: Col) -> pa.DataType:
        return self.schemas[self.inputs[column.input][1]].field(column.name).type

    def input_named(self, alias: str) -> int | None:
        return next((i for i, (a, _) in enumerate(self.inputs) if a.lower() == alias.lower()), None)

    def column_of(self, input: int, name: str) -> Col:
        found = _matches(name, self.columns(input))
        alias = self.inputs[input][0]
        if not found:
            raise QueryError(
                f"query: input '{alias}' has no column '{name}'.{nearest(name, self.columns(input))}"
                f" Columns of '{alias}': {listed(self.columns(input))}"
            )
        if len(found) > 1:
            raise QueryError(f"query: column '{name}' of input '{alias}' could be {listed(found)}; spell it exactly")
        return Col(input, found[0])

    def unqualified(self, name: str) -> Col:
        names = [v.name for v in self.visible]
        found = set(_matches(name, names))
        hits = [v.expr for v in self.visible if v.name in found]
        if not hits:
            available = "; ".join(f"{a}: {listed(self.columns(i))}" for i, (a, _) in enumerate(self.inputs))
            raise QueryError(f"query: no input has a column '{name}'.{nearest(name, names)} Columns are: {available}")
        if len(hits) > 1:
            choices = [f"{self.inputs[c.input][0]}.{c.name}" for c in hits]
            raise QueryError(f"query: column '{name}' is ambiguous: it could be {listed(choices)}; write which")
        return hits[0]

    def resolve(self, parts: Sequence[str]) -> Expr:
        """A column from `c`, `t.c`, or with struct fields behind it `t.c.f`, `c.f`."""
        input = self.input_named(parts[0]) if len(parts) > 1 else None
        if input is not None:
            return self.fields(self.column_of(input, parts[1]), parts[2:])
        if len(parts) > 1 and not _matches(parts[0], [v.name for v in self.visible]):
            aliases = [a for a, _ in self.inputs]
            raise QueryError(
                f"query: there is no input '{parts[0]}' in `{'.'.join(parts)}`.{nearest(parts[0], aliases)}"
                f" Inputs are: {listed(aliases)}"
            )
        return self.fields(self.unqualified(parts[0]), parts[1:])

    def fields(self, column: Col, names: Sequence[str]) -> Expr:
        expr: Expr = column
        dtype = self.type_of(column)
        for name in names:
            owner = render(expr, [a for a, _ in self.inputs])
            fields = [f.name for f in dtype.fields] if pa.types.is_struct(dtype) else []
            found = _matches(name, fields)
            if len(found) != 1:
                raise QueryError(
                    f"query: `{owner}` has no field '{name}'.{nearest(name, fields)} Fields: {listed(fields)}"
                )
            expr, dtype = Call("field", (expr, Lit(found[0], pa.string()))), dtype.field(found[0]).type
        return expr


def _matches(name: str, candidates: Sequence[str]) -> list[str]:
    exact = [c for c in candidates if c == name]
    return exact[:1] or list(dict.fromkeys(c for c in candidates if c.lower() == name.lower()))


# --- query -----------------------------------------------------------------------------------------------------


def parse_query(query: str, sources: Sequence[str], schemas: Sequence[pa.Schema]) -> Query:
    """What `query` says over the sources with these aliases and schemas; QueryError when it is not one inner join."""
    select = parse_select(query)
    check_select(select)
    scope = Scope(sources, schemas)
    translator = Translator(scope.resolve)
    conjuncts: list[Expr] = []
    source = select.args.get("from") or select.args.get("from_")
    if source is None:
        raise QueryError("query: there is no FROM; a join needs at least two inputs")
    add_table(scope, source.this, using=())
    for join in select.args.get("joins") or ():
        check_join(join)
        conjuncts += add_table(scope, join.this, using=[_identifier(u) for u in join.args.get("using") or ()])
        if join.args.get("on") is not None:
            # Spark resolves ON against the inputs so far; later ones are not visible yet.
            conjuncts += split(translator.expression(join.args["on"]))
    if len(scope.inputs) < 2:
        raise QueryError(f"query: there is one input, '{scope.inputs[0][0]}'; a join needs at least two")
    if select.args.get("where") is not None:
        conjuncts += split(translator.expression(select.args["where"].this))
    return Query(tuple(scope.inputs), tuple(conjuncts), _select_list(select, scope, translator))


def parse_predicate(text: str, alias: str, schema: pa.Schema) -> Expr:
    """A condition over the rows of one source, whose columns are those of input 0."""
    select = parse_select(f"SELECT * FROM `{alias}` WHERE {text}")  # an alias may be a keyword
    check_select(select)
    scope = Scope([alias], [schema])
    scope.add(alias, alias)
    scope.visible = [_Visible(name, Col(0, name)) for name in schema.names]
    return Translator(scope.resolve).expression(select.args["where"].this)


def split(expr: Expr) -> list[Expr]:
    """The conjuncts of a condition."""
    if isinstance(expr, Call) and expr.function == "and":
        return [part for arg in expr.args for part in split(arg)]
    return [expr]


def parse_select(query: str) -> Any:
    try:
        statements = parse_statements(query)
    except sqlglot.errors.ParseError as e:
        raise QueryError(_syntax_message(query, e)) from None
    except sqlglot.errors.SqlglotError as e:
        reason = _ESCAPES.sub("", str(e))
        raise QueryError(f"query: not valid SQL: {reason}; is a quote left open?\n{query}") from None
    if len(statements) != 1:
        raise QueryError(f"query: exactly one SELECT is needed and there are {len(statements)} statements")
    if isinstance(statements[0], exp.SetOperation):
        raise refuse(type(statements[0]).__name__.upper(), "union the DataFrames downstream")
    if not isinstance(statements[0], exp.Select):
        raise QueryError(f"query: it must be one SELECT … FROM … JOIN …; this is not a SELECT: {query.strip()[:80]}")
    return statements[0]


def parse_statements(query: str) -> list[Any]:
    """sqlglot's trees for the statements of a text."""
    text = _doubled_quotes(query)
    dialect = sqlglot.Dialect.get_or_raise("spark")
    parsed = dialect.parser().parse(_as_spark_reads(text, dialect.tokenize(text)), text)
    return [statement for statement in parsed if statement is not None]


def _as_spark_reads(text: str, tokens: Sequence[Any]) -> list[Any]:
    """Tokens of literals: sqlglot makes `5::SMALLINT` of `5S`, and reads `DATE '2024-01-31'::INT` from the right."""
    kinds, read = sqlglot.TokenType, list[Any]()
    for token in tokens:
        if read and read[-1].token_type == kinds.NUMBER and token.start == read[-1].start:
            continue
        if token.token_type == kinds.NUMBER:
            token = _token_like(token, kinds.NUMBER, text[token.start : token.end + 1])
        if token.token_type == kinds.DCOLON and len(read) > 1:
            type_name, value = read[-2:]
            if value.token_type == kinds.STRING and type_name.token_type.name in _TYPED:
                parens = _token_like(type_name, kinds.L_PAREN, "("), _token_like(value, kinds.R_PAREN, ")")
                read[-2:] = [parens[0], type_name, value, parens[1]]
        read.append(token)
    return read


def _token_like(token: Any, kind: Any, text: str) -> Any:
    return sqlglot.tokens.Token(kind, text, token.line, token.col, token.start, token.end, token.comments)


def _doubled_quotes(query: str) -> str:
    """`'it''s'` is one string to Spark 4 and two to sqlglot: `''` becomes an escaped quote of the same length."""
    tokens = sqlglot.tokenize(query, dialect="spark")
    string = sqlglot.TokenType.STRING
    for a, b in itertools.pairwise(tokens):
        if a.token_type == b.token_type == string and b.start == a.end + 1 and query[a.end] == query[b.start]:
            query = query[: a.end] + "\\" + query[b.start :]
    return query


def _syntax_message(query: str, error: sqlglot.errors.ParseError) -> str:
    """The first syntax error with its line and a mark under the place."""
    first = error.errors[0] if error.errors else {}
    description = str(first.get("description") or _ESCAPES.sub("", str(error)))
    description = re.sub(r"<Token .*?text: (.*?), line.*?>", r"'\1'", description).replace("'SENTINEL'", "the end")
    line, column = first.get("line"), first.get("col")
    lines = query.splitlines()
    if not isinstance(line, int) or not isinstance(column, int) or not 0 < line <= len(lines):
        return f"query: syntax error: {description}"
    width = len(str(first.get("highlight") or " "))
    begin = max(column - width, 0)
    mark = " " * begin + "^" * min(width, max(len(lines[line - 1]) - begin, 1))
    return f"query: syntax error at line {line}, column {begin + 1}: {description}\n  {lines[line - 1]}\n  {mark}"


def check_select(select: Any) -> None:
    for part, value in select.args.items():
        if part not in _SELECT_PARTS and value:
            raise refuse(_CLAUSES.get(part, part.upper()))
    if select.args.get("kind"):
        raise refuse(f"SELECT AS {select.args['kind']}")


def check_join(join: Any) -> None:
    side, kind_, method = (str(join.args.get(a) or "").upper() for a in ("side", "kind", "method"))
    if side or kind_ not in ("", "INNER", "CROSS"):
        name = " ".join(p for p in (side, kind_) if p)
        raise QueryError(
            f"query: {name} JOIN is not supported: this source gives the inner join only. For an outer, semi or anti"
            " join use Spark's own join of two streams, with a watermark on each"
        )
    if method:
        raise QueryError(f"query: {method} JOIN is not supported; name the columns with JOIN … USING (…)")


def add_table(scope: Scope, table: Any, using: Sequence[str]) -> list[Expr]:
    """Add an input; with USING, the equalities it means. Columns of USING are seen once, first, as in Spark."""
    if isinstance(table, exp.Subquery | exp.Select):
        raise refuse("a subquery or a parenthesis in FROM", "filters belong in WHERE, and every input is a source")
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        raise refuse(f"`{table.sql(dialect='spark')}` in FROM", "every input is the alias of a source")
    extra = [k for k, v in table.args.items() if v and k not in ("this", "alias")]
    alias_node = table.args.get("alias")
    if extra or (alias_node is not None and alias_node.args.get("columns")):
        raise refuse(f"`{table.sql(dialect='spark')}` in FROM", "write the alias of a source, and AS with a new alias")
    input = scope.add(table.alias or table.name, table.name)
    merged = [(scope.unqualified(name), scope.column_of(input, name)) for name in using]
    left_keys, right_keys = {left for left, _ in merged}, {right for _, right in merged}
    keys = [_Visible(left.name, left) for left, _ in merged]
    left = [v for v in scope.visible if v.expr not in left_keys]
    right = [_Visible(c, Col(input, c)) for c in scope.columns(input) if Col(input, c) not in right_keys]
    scope.visible = keys + left + right
    return [Call("=", (a, b)) for a, b in merged]


def _identifier(node: Any) -> str:
    return str(node.name)


# --- select list -----------------------------------------------------------------------------------------------


def _select_list(select: Any, scope: Scope, translator: Translator) -> tuple[OutputColumn, ...]:
    output: list[OutputColumn] = []
    for item in select.expressions:
        if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
            output += star_columns(item, scope)
        elif isinstance(item, exp.Alias):
            output.append(OutputColumn(str(item.alias), translator.expression(item.this)))
        else:
            expr = translator.expression(item)
            output.append(OutputColumn(own_name(item, expr), expr))
    check_unique(_named(output, scope))
    return tuple(output)


def star_columns(item: Any, scope: Scope) -> list[OutputColumn]:
    star = item if isinstance(item, exp.Star) else item.this
    if any(star.args.values()):
        raise refuse("* EXCEPT", "list the columns, or drop them downstream")
    if star is item:
        return [OutputColumn(v.name, v.expr) for v in scope.visible]
    parts = [str(p.name) for p in item.parts[:-1]]
    input = scope.input_named(parts[0]) if len(parts) == 1 else None
    if input is None:
        aliases = [a for a, _ in scope.inputs]
        raise QueryError(
            f"query: there is no input '{'.'.join(parts)}' in `{item.sql(dialect='spark')}`."
            f"{nearest('.'.join(parts), aliases)} Inputs are: {listed(aliases)}"
        )
    return [OutputColumn(c, Col(input, c)) for c in scope.columns(input)]


def own_name(item: Any, expr: Expr) -> str:
    """As Spark names it: a column as the query spells it, cast or not, a struct field by the field, else the SQL."""
    if isinstance(item, exp.Cast) and isinstance(item.this, exp.Column):
        item = item.this
    if isinstance(item, exp.Column | exp.Dot):
        return str(item.name)
    return render(expr, quoted=False)


def _named(output: Sequence[OutputColumn], scope: Scope) -> list[tuple[str, str]]:
    """Names of output columns, with their SQL."""
    aliases = [a for a, _ in scope.inputs]
    return [(column.name, render(column.expr, aliases)) for column in output]


def check_unique(named: Sequence[tuple[str, str]]) -> None:
    """QueryError when two output columns have one name; named: with the SQL of each."""
    seen: dict[str, str] = {}
    for name, text in named:
        if name.lower() in seen:
            texts = [seen[name.lower()], text]
            raise QueryError(
                f"query: two output columns are called '{name}': {listed(texts)}. Name one of them with AS, such"
                f" as `{text} AS {re.sub(r'[^A-Za-z0-9]+', '_', text).strip('_')}`; with *, list the columns"
            )
        seen[name.lower()] = text


# --- on --------------------------------------------------------------------------------------------------------


def star_join(on: Sequence[str], sources: Sequence[str], schemas: Sequence[pa.Schema]) -> Query:
    """The join of all sources over the columns `on`: these once, then what else each source has, in order.

    A name that more than one source has is prefixed with `<alias>_`.
    """
    scope = Scope(sources, schemas)
    for source in sources:
        scope.add(source, source)
    keys = [[_on_column(scope, i, name) for name in on] for i in range(len(sources))]
    conjuncts = [Call("=", (first, other)) for others in keys[1:] for first, other in zip(keys[0], others, strict=True)]
    rest = [Col(i, name) for i in range(len(sources)) for name in scope.columns(i) if Col(i, name) not in set(keys[i])]
    names = [c.name.lower() for c in (*keys[0], *rest)]
    output = [OutputColumn(c.name, c) for c in keys[0]]
    for column in rest:
        clash = names.count(column.name.lower()) > 1
        output.append(OutputColumn(f"{sources[column.input]}_{column.name}" if clash else column.name, column))
    check_unique(_named(output, scope))
    return Query(tuple(scope.inputs), tuple(conjuncts), tuple(output))


def _on_column(scope: Scope, input: int, name: str) -> Col:
    try:
        return scope.column_of(input, name)
    except QueryError as e:
        raise QueryError(f"option 'on': {str(e).removeprefix('query: ')}") from None
