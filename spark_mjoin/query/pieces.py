"""The text of a query cut into pieces, so that each can be evaluated as the user wrote it.

    SELECT o.id, upper(p.name) AS n FROM orders o JOIN pay p ON o.id = p.order_id AND p.amount > 0 WHERE o.at < p.at
           └──┘  └───────────┘                                  └───────────────┘     └──────────┘       └─────────┘
           items                                                conditions, each cut into conjuncts

Covered: the items of SELECT without their aliases, the conditions of ON and WHERE, their conjuncts, the two sides of an
equality, and the names of columns in a piece. Not covered: what names mean, and what happens to a piece (`division`).
Nothing is written anew from the syntax tree: sqlglot knows fewer functions than Spark, and other ones.

Why it is right: the cuts are made at tokens outside of all brackets, and every piece is read again by itself. It must
then be the very tree that the whole query has in its place, or the query is refused. A comparison is cut into sides
only where sqlglot and Spark bind alike: `a = b IS NULL` is `(a = b) IS NULL` in Spark and not in sqlglot. Both bind AND
weaker than any comparison and tighter than OR, so the conjuncts are the same in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sqlglot
from sqlglot import exp

from spark_mjoin.errors import QueryError
from spark_mjoin.query.sql import parse_statements

_KIND = sqlglot.TokenType
_CLOSING = {_KIND.L_PAREN: _KIND.R_PAREN, _KIND.L_BRACKET: _KIND.R_BRACKET, _KIND.L_BRACE: _KIND.R_BRACE,
            _KIND.CASE: _KIND.END, _KIND.LT: _KIND.GT}  # fmt: skip
_NESTED = (_KIND.MAP, _KIND.ARRAY, _KIND.STRUCT)  # types with others in angle brackets
# What binds as weakly as `=` does, or weaker, in one of the two grammars.
_WEAK = {_KIND.EQ, _KIND.NEQ, _KIND.LT, _KIND.LTE, _KIND.GT, _KIND.GTE, _KIND.NULLSAFE_EQ, _KIND.NOT, _KIND.IS,
         _KIND.ISNULL, _KIND.NOTNULL, _KIND.IN, _KIND.BETWEEN, _KIND.LIKE, _KIND.ILIKE, _KIND.RLIKE, _KIND.EXISTS,
         _KIND.AND, _KIND.OR}  # fmt: skip
_RANDOM = {"rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
           "spark_partition_id"}  # fmt: skip


@dataclass(frozen=True)
class Reference:
    """A name in a piece that is a column: its parts, as in `o.addr.city`, and where the first two of them are."""

    parts: tuple[str, ...]
    places: tuple[int, ...]
    hidden: frozenset[str]  # variables of lambdas around it, in lower case


@dataclass(frozen=True)
class Piece:
    """Tokens of a query in a row, and the tree that sqlglot has for them."""

    query: str
    tokens: tuple[Any, ...]
    node: Any

    @property
    def text(self) -> str:
        return self.query[self.tokens[0].start : self.tokens[-1].end + 1]

    def with_insertions(self, insertions: dict[int, str]) -> str:
        """The text with something put in before the tokens that start at these places."""
        text, begin = self.text, self.tokens[0].start
        for place in sorted(insertions, reverse=True):
            text = text[: place - begin] + insertions[place] + text[place - begin :]
        return text

    def words(self, dropped: Collection[int]) -> list[tuple[str, str]]:
        """The tokens, each with the space before it, if any; without qualifiers at these places and their dots."""
        found: list[tuple[str, str]] = []
        gap, end, is_first, is_dropped = "", self.tokens[0].start, False, False
        for token in self.tokens:
            was_dropped, is_dropped = is_dropped, token.start in dropped or is_first
            is_first = token.start in dropped
            if not was_dropped:
                gap = " " if token.start > end else ""
            if not is_dropped:
                found.append((gap, self.query[token.start : token.end + 1]))
            end = token.end + 1
        return found

    def is_star(self) -> bool:
        node = self.node
        return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))

    def bare(self) -> Piece:
        """Without brackets around the whole."""
        piece = self
        while isinstance(piece.node, exp.Paren) and piece.tokens[0].token_type == _KIND.L_PAREN:
            piece = Piece(piece.query, piece.tokens[1:-1], piece.node.this)
        return piece

    def conjuncts(self) -> list[Piece]:
        piece = self.bare()
        if not isinstance(piece.node, exp.And):
            return [piece._checked()]
        ands, ranges = [], 0
        for i, kind in _top_level(piece.tokens):
            if kind == _KIND.BETWEEN:
                ranges += 1
            elif kind == _KIND.AND and ranges:
                ranges -= 1
            elif kind == _KIND.AND:
                ands.append(i)
        parts = _between(piece.tokens, ands)
        nodes = list(piece.node.flatten(unnest=False))
        if len(parts) != len(nodes):
            raise _indivisible(piece.text)
        pairs = zip(parts, nodes, strict=True)
        return [each for part, node in pairs for each in Piece(piece.query, part, node).conjuncts()]

    def sides(self) -> tuple[Piece, Piece] | None:
        """The two sides of `a = b`; None when it is anything else, or not sure to be one in Spark."""
        weak = [(i, kind) for i, kind in _top_level(self.tokens) if kind in _WEAK]
        if not isinstance(self.node, exp.EQ) or [kind for _, kind in weak] != [_KIND.EQ]:
            return None
        parts = _between(self.tokens, [weak[0][0]])
        nodes = (self.node.this, self.node.expression)
        left, right = (Piece(self.query, p, n).bare()._checked() for p, n in zip(parts, nodes, strict=True))
        return left, right

    def is_random(self) -> bool:
        """Whether it has a function that gives another value each time, so that it matters where it is evaluated."""
        called = zip(self.tokens, self.tokens[1:], strict=False)
        return any(a.text.lower() in _RANDOM and b.token_type == _KIND.L_PAREN for a, b in called)

    def references(self, aliases: Collection[str]) -> list[Reference]:
        """The columns, in the order of the text. Variables of lambdas and names of functions are none."""
        found = {}
        for column in self.node.find_all(exp.Column):
            lambdas = _ancestors(column, exp.Lambda)
            hidden = frozenset(str(v.name).lower() for each in lambdas for v in each.expressions)
            names = [str(part.name) for part in column.parts]
            if names[0].lower() in hidden:
                continue
            places = [part.meta.get("start") for part in column.parts[:2]]
            if None in places:
                raise _indivisible(self.text)
            found[places[0]] = Reference(tuple(names), tuple(places), hidden)
        found.update(self._overlooked({a.lower() for a in aliases}))
        return [found[place] for place in sorted(found)]

    def _overlooked(self, aliases: Collection[str]) -> dict[int, Reference]:
        """Columns of inputs that the tree does not have: sqlglot drops arguments that it does not expect."""
        known = {node.meta.get("start") for node in self.node.find_all(exp.Identifier)}
        found = {}
        for i in range(len(self.tokens) - 2):
            first, dot, second = self.tokens[i : i + 3]
            is_start = i == 0 or self.tokens[i - 1].token_type != _KIND.DOT
            is_name = dot.token_type == _KIND.DOT and first.token_type != _KIND.STRING
            if is_start and is_name and first.text.lower() in aliases and first.start not in known:
                parts, places = (first.text, second.text), (first.start, second.start)
                found[first.start] = Reference(parts, places, frozenset())
        return found

    def _checked(self) -> Piece:
        """Itself, if it reads by itself as it does in the query."""
        try:
            read = parse_statements(f"SELECT 1 WHERE {self.text}")
        except sqlglot.errors.SqlglotError:
            raise _indivisible(self.text) from None
        if len(read) != 1 or "where" not in read[0].args or read[0].args["where"].this != self.node:
            raise _indivisible(self.text)
        return self


@dataclass(frozen=True)
class Cut:
    """The pieces of a SELECT."""

    items: tuple[Piece, ...]  # without aliases; a star is an item too
    on: tuple[Piece | None, ...]  # for every join
    where: Piece | None


def cut(query: str, select: Any) -> Cut:
    """The pieces of a query for which sqlglot has this tree."""
    tokens = _tokens(query)
    tops = _top_level(tokens)
    source = next((i for i, k in tops if k == _KIND.FROM and tokens[i - 1].token_type != _KIND.DISTINCT), None)
    if source is None or tokens[0].token_type != _KIND.SELECT:
        raise QueryError("query: it must be SELECT … FROM … JOIN …, in this order")
    where = next((i for i, k in tops if i > source and k == _KIND.WHERE), len(tokens))
    begin = 2 if tokens[1].token_type == _KIND.ALL else 1
    commas = [i - begin for i, k in tops if i < source and k == _KIND.COMMA]
    items = _between(tokens[begin:source], commas)
    joins = select.args.get("joins") or ()
    conditions = _conditions(tokens, [(i, k) for i, k in tops if source < i < where], where)
    if len(items) != len(select.expressions) or len(conditions) != len(joins):
        raise _indivisible(query)
    filter_ = select.args.get("where")
    return Cut(
        items=tuple(_item(query, part, node) for part, node in zip(items, select.expressions, strict=True)),
        on=tuple(
            Piece(query, part, join.args["on"]) if part else None for part, join in zip(conditions, joins, strict=True)
        ),
        where=Piece(query, tokens[where + 1 :], filter_.this) if filter_ is not None else None,
    )


def _item(query: str, tokens: tuple[Any, ...], node: Any) -> Piece:
    if isinstance(node, exp.Alias):
        has_as = tokens[-2].token_type == _KIND.ALIAS
        return Piece(query, tokens[: -2 if has_as else -1], node.this)._checked()
    piece = Piece(query, tokens, node)
    return piece if piece.is_star() or isinstance(node, exp.Aliases) else piece._checked()


def _conditions(tokens: Sequence[Any], tops: list[tuple[int, Any]], end: int) -> list[tuple[Any, ...]]:
    """What is behind the ON of every input but the first; nothing if it has none, where sqlglot makes up `ON true`."""
    begins = [i for i, kind in tops if kind in (_KIND.JOIN, _KIND.COMMA)]
    found = []
    for begin, next_ in zip(begins, [*begins[1:], end], strict=True):
        on = next((i for i, kind in tops if begin < i < next_ and kind == _KIND.ON), next_)
        part = tuple(tokens[on + 1 : next_])
        while part and part[-1].token_type in (_KIND.INNER, _KIND.CROSS):
            part = part[:-1]
        found.append(part)
    return found


def _tokens(query: str) -> tuple[Any, ...]:
    """Each at its place in the text, without ends of statements. `5S`, of which sqlglot makes three, is one."""
    found: list[Any] = []
    for token in sqlglot.tokenize(query, dialect="spark"):
        if token.token_type != _KIND.SEMICOLON and not (found and token.start <= found[-1].end):
            found.append(token)
    return tuple(found)


def _top_level(tokens: Sequence[Any]) -> list[tuple[int, Any]]:
    """The tokens outside of all brackets and what they are; a keyword that is somebody's name counts as a name."""
    found: list[tuple[int, Any]] = []
    open_: list[Any] = []
    for i, token in enumerate(tokens):
        kind, before = token.token_type, [t.token_type for t in tokens[max(i - 2, 0) : i]]
        if before and before[-1] in (_KIND.DOT, _KIND.ALIAS) and kind != _KIND.L_PAREN:
            kind = _KIND.VAR
        opens = kind in _CLOSING and kind != _KIND.LT
        if kind == _KIND.LT and len(before) == 2 and before[1] in _NESTED:  # the brackets of a type, not a comparison
            opens = before[0] == _KIND.DCOLON or (bool(open_) and open_[-1] == _KIND.LT)
        if opens:
            open_.append(kind)
        elif open_ and kind == _CLOSING[open_[-1]]:
            open_.pop()
        elif not open_:
            found.append((i, kind))
    return found


def _between(tokens: Sequence[Any], cuts: Sequence[int]) -> list[tuple[Any, ...]]:
    """The tokens before, between and after those at the cuts."""
    begins, ends = [0, *(i + 1 for i in cuts)], [*cuts, len(tokens)]
    return [tuple(tokens[a:b]) for a, b in zip(begins, ends, strict=True)]


def _ancestors(node: Any, kind: type) -> Iterator[Any]:
    while node is not None:
        node = node.parent
        if isinstance(node, kind):
            yield node


def _indivisible(text: str) -> QueryError:
    return QueryError(
        f"query: `{text}` cannot be cut into pieces for Spark; write brackets around its parts, or compute it as a"
        " column of a DataFrame before the join"
    )
