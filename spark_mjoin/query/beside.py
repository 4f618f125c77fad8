"""Tables beside streams: which equalities join the streams with each other, and which join each table with the result.

    FROM orders o JOIN payments p ON p.order_id = o.id
                  JOIN customers c ON c.id = o.customer JOIN regions r ON r.id = c.region

    the join of the streams: p.order_id = o.id       then c: c.id = o.customer       then r: r.id = c.region

Covered: inner joins, in which the order of joins does not matter. So the streams come first, and the tables one after
the other, each when something is there that it is equal to. An equality is transitive within its key class (`graph`):
streams that are equal to the same column of a table are equal to each other, and joined on that.

Not covered: streams that only a table connects, on two different columns of it. They are refused, because the table
would have to be joined before the streams are, and a part of it kept in their state. The caller of the join can do so.

Why it is right: every equality of the query is checked once, by the join of streams or when its table is joined. What
is implied besides holds for all results.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from spark_mjoin.errors import QueryError, listed
from spark_mjoin.mjoin.casts import kind
from spark_mjoin.model import Call, Cast, Col, Expr, JoinSpec
from spark_mjoin.query.division import Division

Side = tuple[int, int]  # an input and the index of its key, as in `Division`


@dataclass(frozen=True)
class Attached:
    """A table, and the equalities with what is there before it. The second side of each is the table's."""

    input: int
    equalities: tuple[tuple[Side, Side], ...]


@dataclass(frozen=True)
class Parted:
    """A query over streams and tables. Inputs have the numbers that they have in the whole query."""

    streams: tuple[int, ...]
    implied: tuple[Expr, ...]  # equalities of streams that follow from those with tables; inputs as in `of_streams`
    tables: tuple[Attached, ...]  # in the order in which they are joined

    def of_streams(self, division: Division) -> Division:
        """The join of the streams alone."""
        number = {stream: n for n, stream in enumerate(self.streams)}
        equalities = tuple(
            ((number[a], k), (number[b], m)) for (a, k), (b, m) in division.equalities if {a, b} <= set(number)
        )
        inputs = tuple(division.inputs[stream] for stream in self.streams)
        return replace(division, inputs=inputs, equalities=equalities, conditions=(), output=())

    def keys_with_tables(self, input: int) -> list[int]:
        """The keys of an input that tables are joined by."""
        sides = [side for table in self.tables for equality in table.equalities for side in equality]
        return sorted({key for i, key in sides if i == input})


def part(division: Division, spec: JoinSpec, tables: Collection[int]) -> Parted:
    """The parts of a query whose inputs with these numbers are tables. spec: what the equalities of all inputs mean."""
    streams = tuple(i for i in range(len(division.inputs)) if i not in tables)
    implied = [pair for of_class in range(len(spec.classes)) for pair in _implied(spec, of_class, streams, tables)]
    edges = [(a, b) for (a, _), (b, _) in division.equalities] + [(a.input, b.input) for a, b in implied]
    groups = _connected(streams, edges)
    if len(groups) > 1:
        shown = [listed(division.inputs[i].alias for i in group) for group in groups]
        between = listed(division.inputs[i].alias for i in sorted(tables))
        raise QueryError(
            f"query: the streams {{{'} and {'.join(shown)}}} are connected by tables only ({between}), and the join "
            "joins streams first. Join such a table with one of the streams before: `stream.join(table, …)` is a "
            "stream too"
        )
    number = {stream: n for n, stream in enumerate(streams)}
    conjuncts = tuple(Call("=", tuple(_renumbered(spec, side, number) for side in pair)) for pair in implied)
    return Parted(streams, conjuncts, tuple(_in_order(division, streams, tables)))


def _implied(
    spec: JoinSpec, of_class: int, streams: Sequence[int], tables: Collection[int]
) -> list[tuple[_Member, _Member]]:
    """Pairs of streams that are equal because a table is equal to both."""
    members = [
        _Member(i, input.stored[stored].expr, spec.classes[of_class].kind == "double")
        for i, input in enumerate(spec.inputs)
        for key, stored in input.keys
        if key == of_class
    ]
    if not any(member.input in tables for member in members):
        return []
    return list(pairwise(member for member in members if member.input in streams))


@dataclass(frozen=True)
class _Member:
    """A key of an input in a class."""

    input: int
    expr: Expr
    is_double: bool  # the class compares as doubles


def _renumbered(spec: JoinSpec, member: _Member, number: dict[int, int]) -> Expr:
    assert isinstance(member.expr, Col)
    column = Col(number[member.input], member.expr.name)
    dtype = spec.sources[spec.inputs[member.input].source].schema.field(column.name).type
    return Cast(column, pa.float64()) if member.is_double and kind(dtype) != "float" else column


def _in_order(division: Division, streams: Sequence[int], tables: Collection[int]) -> list[Attached]:
    """Tables, each with at least one equality with what comes before it. There is one: the whole is connected."""
    there, left, found = set(streams), sorted(tables), list[Attached]()
    while left:
        for table in left:
            sides = [(a, b) if b[0] == table else (b, a) for a, b in division.equalities if table in (a[0], b[0])]
            joined = tuple((other, own) for other, own in sides if other[0] in there)
            if joined:
                break
        else:
            raise AssertionError("the inputs are not connected")
        found.append(Attached(table, joined))
        there.add(table)
        left.remove(table)
    return found


def _connected(nodes: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Groups of nodes with a way of edges between them, through nodes only."""
    groups = [{node} for node in nodes]
    for a, b in edges:
        ends = [group for group in groups if a in group or b in group]
        if a in nodes and b in nodes and len(ends) == 2:
            ends[0].update(ends[1])
            groups.remove(ends[1])
    return [sorted(group) for group in groups]
