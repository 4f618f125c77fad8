"""A query divided into what Spark evaluates before the join, what the engine joins, and what Spark evaluates after it.

    SELECT o.id, upper(p.name) AS n FROM orders o JOIN payments p ON o.id = p.order_id AND p.amount > 0 AND o.at < p.at

    orders ──> Spark: keys o.id ──────────────────────┐
                                                      ├─> engine: o.id = p.order_id ─> Spark: o.at < p.at,
    payments ─> Spark: p.amount > 0, keys p.order_id ─┘   one struct per input         then o.id, upper(p.name) AS n

Covered: inner joins as in `sql`, with expressions of any kind, among them functions that only Spark knows. Their texts
stay as the user wrote them; a column without the name of its input gets that name, so that one text means the same over
`df.alias(o)` and over a struct column `o`. A conjunct over one input is its filter. `f(one input) = g(another)` gives a
key to both. All else is a condition on joined rows.

Not covered: types, whether equalities connect all inputs, and fields of structs, all of which are checked elsewhere.
Refused as in `sql`: whatever is no inner join, aggregates, window functions, subqueries. Spark does not tell columns
apart by case, so a column whose name another one of its input has in any case cannot be used.

Why it is right: in an inner join, ON and WHERE are one conjunction, whose parts can be checked in any order, each as
soon as its columns are there. A part is taken before the join only when all its columns are of one input; a column that
was overlooked is an error in Spark, never another result. Functions that give another value each time are evaluated
after the join, once for each joined row, as in Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from spark_mjoin.errors import QueryError, listed
from spark_mjoin.mjoin.expressions import columns_of
from spark_mjoin.mjoin.rendering import qualified
from spark_mjoin.model import Call, Col, Expr, Lit
from spark_mjoin.query.pieces import Piece, cut
from spark_mjoin.query.sql import (
    Scope,
    add_table,
    check_join,
    check_select,
    check_unique,
    own_name,
    parse_select,
    star_columns,
    star_join,
)
from spark_mjoin.query.translate import Translator, refusal, refuse

_REFUSED = (exp.Window, exp.AggFunc, exp.Subquery, exp.Select, exp.SetOperation, exp.Star)


@dataclass(frozen=True)
class Key:
    """An expression over one input that is equal to one of another input in every joined row."""

    text: str  # SQL over `df.alias(alias)`
    column: str | None = None  # as the schema spells it, when the expression is just that column


@dataclass(frozen=True)
class DividedInput:
    """What Spark evaluates on an input before the join, as SQL over `df.alias(alias)`.

    Here and below, a text is a whole expression: whoever puts it into a longer one writes brackets around it.
    """

    alias: str
    source: int  # its index
    filters: tuple[str, ...]
    keys: tuple[Key, ...]  # distinct, in the order of the query
    payload: tuple[str, ...]  # columns that are used after the join, as the schema spells them and in its order


@dataclass(frozen=True)
class Division:
    """A query in parts. Texts of conditions and output are SQL over one struct column per input, named by its alias."""

    inputs: tuple[DividedInput, ...]
    equalities: tuple[tuple[tuple[int, int], tuple[int, int]], ...]  # of (input, index of its key) each
    conditions: tuple[str, ...]
    output: tuple[tuple[str, str], ...]  # name, text


def divide(query: str, sources: Sequence[str], columns: Sequence[Sequence[str]]) -> Division:
    """The parts of `query` over sources with these aliases and columns; QueryError when it is not one inner join."""
    select = parse_select(query)
    check_select(select)
    first = select.args.get("from") or select.args.get("from_")
    if first is None:
        raise QueryError("query: there is no FROM; a join needs at least two inputs")
    scope = _Names(sources, columns)
    parts = _Parts(scope)
    pieces = None
    add_table(scope, first.this, using=())
    for i, join in enumerate(select.args.get("joins") or ()):
        check_join(join)
        for equality in add_table(scope, join.this, using=[str(u.name) for u in join.args.get("using") or ()]):
            parts.equate(equality)
        pieces = pieces or cut(query, select)
        parts.add_condition(pieces.on[i])
    if pieces is None:
        raise QueryError(f"query: there is one input, '{scope.inputs[0][0]}'; a join needs at least two")
    parts.add_condition(pieces.where)
    for piece, item in zip(pieces.items, select.expressions, strict=True):
        parts.add_output(piece, item)
    return parts.division()


def divide_star(on: Sequence[str], sources: Sequence[str], columns: Sequence[Sequence[str]]) -> Division:
    """The parts of the join of all sources over the columns `on`: these once, then what else each source has."""
    if len(sources) < 2:
        raise QueryError(f"option 'on': sources are: {listed(sources)}; a join needs at least two")
    scope = _Names(sources, columns)
    for source in sources:
        input = scope.add(source, source)
        for name in scope.columns(input):
            scope.column_of(input, name)  # all are used
    query = star_join(on, sources, scope.schemas)
    parts = _Parts(scope)
    for equality in query.conjuncts:
        parts.equate(equality)
    for column in query.output:
        parts.add_column(column.name, column.expr)
    return parts.division()


class _Names(Scope):
    """The columns of inputs by their names alone: Spark knows the types, and checks the fields of structs."""

    remedy = "join takes others by their aliases"

    def __init__(self, sources: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
        super().__init__(sources, [pa.schema([(name, pa.null()) for name in names]) for names in columns])

    def columns(self, input: int) -> list[str]:
        return list(dict.fromkeys(super().columns(input)))

    def column_of(self, input: int, name: str) -> Col:
        return self._unambiguous(super().column_of(input, name))

    def unqualified(self, name: str) -> Col:
        return self._unambiguous(super().unqualified(name))

    def _unambiguous(self, column: Col) -> Col:
        same = [n for n in super().columns(column.input) if n.lower() == column.name.lower()]
        if len(same) > 1:
            alias = self.inputs[column.input][0]
            raise QueryError(
                f"query: column '{column.name}' of input '{alias}' is ambiguous: the DataFrame has {listed(same)},"
                " which are one name to Spark; rename or drop one of them before the join"
            )
        return column

    def fields(self, column: Col, names: Sequence[str]) -> Expr:
        expr: Expr = column
        for name in names:
            expr = Call("field", (expr, Lit(name, pa.string())))
        return expr

    def text_of(self, column: Col) -> str:
        return f"{_quoted(self.inputs[column.input][0])}.{_quoted(column.name)}"


@dataclass(frozen=True)
class _Resolved:
    """A piece whose columns are known."""

    piece: Piece
    text: str  # with all columns qualified
    columns: frozenset[Col]
    words: list[tuple[str, str]]  # with no column qualified; each with the space before it
    is_column: bool

    @property
    def inputs(self) -> frozenset[int]:
        return frozenset(c.input for c in self.columns)

    @property
    def as_name(self) -> str:
        return "".join(gap + word for gap, word in self.words)


class _Parts:
    """Collects the parts of a query, piece by piece."""

    def __init__(self, scope: _Names) -> None:
        self.scope = scope
        self.filters: dict[int, list[str]] = {}
        self.keys: dict[int, dict[tuple[str, ...], Key]] = {}
        self.equalities: list[tuple[tuple[int, int], tuple[int, int]]] = []
        self.conditions: list[str] = []
        self.output: list[tuple[str, str]] = []
        self.shown: list[str] = []  # the texts of the output for messages
        self.needed: set[Col] = set()

    def division(self) -> Division:
        check_unique([(name, text) for (name, _), text in zip(self.output, self.shown, strict=True)])
        inputs = tuple(
            DividedInput(
                alias=alias,
                source=source,
                filters=tuple(self.filters.get(i, ())),
                keys=tuple(self.keys.get(i, {}).values()),
                payload=tuple(name for name in self.scope.columns(i) if Col(i, name) in self.needed),
            )
            for i, (alias, source) in enumerate(self.scope.inputs)
        )
        return Division(inputs, tuple(self.equalities), tuple(self.conditions), tuple(self.output))

    # --- conditions ---

    def add_condition(self, condition: Piece | None) -> None:
        for conjunct in condition.conjuncts() if condition is not None else ():
            self._sort(conjunct)

    def equate(self, equality: Expr) -> None:
        """An equality of two columns that the query does not spell out."""
        assert isinstance(equality, Call)
        sides = [c for c in equality.args if isinstance(c, Col)]
        left, right = (self._key(c.input, (), Key(self.scope.text_of(c), c.name)) for c in sides)
        self.equalities.append((left, right))

    def _sort(self, conjunct: Piece) -> None:
        whole = self._resolve(conjunct)
        is_random = conjunct.is_random()
        if len(whole.inputs) == 1 and not is_random:
            self.filters.setdefault(min(whole.inputs), []).append(whole.text)
        elif is_random or not self._is_equality(conjunct):
            self.conditions.append(whole.text)
            self.needed |= whole.columns

    def _is_equality(self, conjunct: Piece) -> bool:
        """Whether the conjunct, over two inputs or more, is an equality of keys, which is then noted."""
        sides = [self._resolve(side) for side in conjunct.sides() or ()]
        if [len(side.inputs) for side in sides] != [1, 1]:
            return False
        for side in sides:
            if isinstance(side.piece.node, exp.Tuple):
                raise refusal(side.piece.node)
        left, right = map(self._side, sides)
        self.equalities.append((left, right))
        return True

    def _side(self, side: _Resolved) -> tuple[int, int]:
        input = min(side.inputs)
        if not side.is_column:
            return self._key(input, tuple(word for _, word in side.words), Key(side.text))
        (column,) = side.columns
        return self._key(input, (), Key(side.text, column.name))

    def _key(self, input: int, words: tuple[str, ...], key: Key) -> tuple[int, int]:
        """The input and the index of a key; columns are the same by name, other expressions by their words."""
        keys = self.keys.setdefault(input, {})
        identity = words if key.column is None else ("column", key.column)
        keys.setdefault(identity, key)
        return input, list(keys).index(identity)

    def _resolve(self, piece: Piece) -> _Resolved:
        """The piece with its columns; QueryError when it cannot be evaluated row by row."""
        for node in piece.node.walk():
            if isinstance(node, _REFUSED):
                raise refusal(node)
        columns, insertions, dropped = set[Col](), dict[int, str](), set[int]()
        is_column = False
        for reference in piece.references([a for a, _ in self.scope.inputs]):
            expr = self.scope.resolve(reference.parts)
            (column,) = columns_of(expr)
            columns.add(column)
            is_column = isinstance(piece.node, exp.Column) and isinstance(expr, Col)
            if len(reference.parts) > 1 and self.scope.input_named(reference.parts[0]) is not None:
                dropped.add(reference.places[0])
                continue
            alias = self.scope.inputs[column.input][0]
            if alias.lower() in reference.hidden:
                raise QueryError(
                    f"query: in `{piece.text}` the variable '{alias}' hides the input '{alias}', which has the column"
                    f" '{column.name}'; give the variable another name"
                )
            insertions[reference.places[0]] = _quoted(alias) + "."
        text = piece.with_insertions(insertions)
        return _Resolved(piece, text, frozenset(columns), piece.words(dropped), is_column)

    # --- output ---

    def add_output(self, piece: Piece, item: Any) -> None:
        """An item of the select list; the piece is the item without its alias."""
        if piece.is_star():
            for column in star_columns(item, self.scope):
                self.add_column(column.name, column.expr)
            return
        if isinstance(item, exp.Aliases):
            raise refuse(f"`{piece.text}`: more than one name", "name it with AS, and take it apart downstream")
        resolved = self._resolve(piece)
        self.needed |= resolved.columns
        self.output.append((str(item.alias) if isinstance(item, exp.Alias) else self._name(resolved), resolved.text))
        self.shown.append(self._show(*resolved.columns) if resolved.is_column else resolved.text)

    def add_column(self, name: str, column: Expr) -> None:
        assert isinstance(column, Col)
        self.needed.add(self.scope.column_of(column.input, column.name))
        self.output.append((name, self.scope.text_of(column)))
        self.shown.append(self._show(column))

    def _show(self, column: Col) -> str:
        return qualified(self.scope.inputs[column.input][0], column.name)

    def _name(self, resolved: _Resolved) -> str:
        """As `sql` names it; what that does not know is named by its text."""
        node = resolved.piece.node
        if isinstance(node, exp.Column) or (isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier)):
            return str(node.name)
        if not all(map(_is_field, node.find_all(exp.Dot))):
            return resolved.as_name
        try:
            return own_name(node, Translator(self.scope.resolve).expression(node))
        except QueryError:  # a function that only Spark knows
            return resolved.as_name


def _is_field(dot: Any) -> bool:
    """Whether it is a field of a column, and not of an array's element, or a function in a database."""
    return isinstance(dot.this, exp.Column | exp.Dot) and isinstance(dot.expression, exp.Identifier)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
