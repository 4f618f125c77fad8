"""The join graph: conjuncts become filters, key classes and residuals, and all of it one `JoinSpec`.

    conjunct over one input                        -> that input's filter
    f(one input) = g(another input)                -> edge of the graph; connected expressions form a key class
    anything else over two or more inputs          -> residual, checked on joined rows

A class is a connected component over (input, expression, family): all its members are equal in every result row, so a
row needs one key per class and any input that has the class can be probed with it. The family is how an edge compares:
exactly (integers, decimals), in floating point (one side is a float), or within one other type.

Why classes are right: equality is transitive within a family, and only within one: 2^53 = 2^53 + 1 holds as doubles and
not as integers, so a column that is compared in both ways is a member of two classes. Two expressions of one input in
one class must be equal in every result; that becomes part of the input's filter, and one of them is the key.

Not covered: products of unconnected inputs (refused), join keys of nested types or of types that Spark would compare
only after an implicit cast (refused, with the CAST that makes the meaning plain), and cost: the order of probing is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_mjoin.config import Options, SourceOptions
from spark_mjoin.errors import OptionError, QueryError, listed, nearest
from spark_mjoin.mjoin.casts import INTEGERS, decimal_digits, kind, type_name
from spark_mjoin.mjoin.expressions import columns_of, evaluate, type_of
from spark_mjoin.mjoin.keys import SHAREABLE, key_type
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import (
    Call,
    Cast,
    Col,
    Expr,
    InputSpec,
    JoinSpec,
    KeyDomain,
    Residual,
    SourceSpec,
    StoredColumn,
    Window,
)
from spark_mjoin.query.promises import check, with_promises, with_punctuations
from spark_mjoin.query.sql import Query, parse_query, star_join
from spark_mjoin.schema import canonical_type

_FAMILIES = {"integer": "exact", "decimal": "exact", "float": "double"}
_PLAIN_FAMILIES = ("boolean", "date", "timestamp", "timestamp_ntz", "string", "binary")
_INTEGER_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}


def plan_join(options: Options, schemas: Sequence[pa.Schema]) -> JoinSpec:
    """The meaning of the join over sources with these schemas, in the order of `options.sources`."""
    aliases = [s.alias for s in options.sources]
    if options.query is not None:
        query = parse_query(options.query, aliases, schemas)
    else:
        query = star_join(options.on, aliases, schemas)
    spec = spec_of(query, options.sources, schemas)
    return with_punctuations(spec, options.settings.partitions) if options.emit_punctuations else spec


def spec_of(query: Query, options: Sequence[SourceOptions], schemas: Sequence[pa.Schema]) -> JoinSpec:
    """The meaning of a query over sources with these options and schemas."""
    sources = tuple(
        SourceSpec(s.alias, s.format, s.options, schema) for s, schema in zip(options, schemas, strict=True)
    )
    spec = _Graph(query, sources, options).spec()
    check(spec, options)
    return spec


def event_times(options: Sequence[SourceOptions], sources: Sequence[SourceSpec]) -> list[str | None]:
    """The event-time column of each source, as the source spells it; OptionError when it cannot be one."""
    found: list[str | None] = []
    kinds: dict[str, str] = {}
    for given, source in zip(options, sources, strict=True):
        if given.timestamp is None:
            found.append(None)
            continue
        option, names = f"source.{source.alias}.timestamp", source.schema.names
        same = [n for n in names if n == given.timestamp] or [n for n in names if n.lower() == given.timestamp.lower()]
        if len(same) != 1:
            raise OptionError(
                f"option '{option}': source '{source.alias}' has {'no' if not same else 'more than one'} column "
                f"'{given.timestamp}'.{nearest(given.timestamp, names)} Its columns are: {listed(names)}"
            )
        dtype = source.schema.field(same[0]).type
        if kind(dtype) not in ("timestamp", "timestamp_ntz"):
            raise OptionError(
                f"option '{option}': column '{same[0]}' is {type_name(dtype)}; an event time is TIMESTAMP or "
                "TIMESTAMP_NTZ: declare it so in the source's schema"
            )
        kinds.setdefault(kind(dtype), option)
        found.append(same[0])
    if len(kinds) > 1:
        raise OptionError(
            f"options '{kinds['timestamp']}' and '{kinds['timestamp_ntz']}': one column is TIMESTAMP and the other "
            "TIMESTAMP_NTZ, and only times of one kind can be compared"
        )
    return found


def inputs_of(expr: Expr) -> frozenset[int]:
    """The inputs whose columns an expression uses."""
    return frozenset(c.input for c in columns_of(expr))


@dataclass(frozen=True)
class _Node:
    """An expression over one input, compared in one family."""

    input: int
    expr: Expr
    family: str


class _Graph:
    """Sorts the conjuncts of a query and builds the spec from them."""

    def __init__(self, query: Query, sources: tuple[SourceSpec, ...], options: Sequence[SourceOptions]) -> None:
        self.query = query
        self.options = options
        self.event_times = event_times(options, sources)
        self.sources = sources
        self.aliases = [alias for alias, _ in query.inputs]
        self.filters: list[list[Expr]] = [[] for _ in query.inputs]
        self.edges: list[tuple[_Node, _Node]] = []
        self.residuals: list[Residual] = []
        for conjunct in query.conjuncts:
            self._sort(conjunct)
        self.classes = _components(self.edges)
        self._check_connected()
        self.domains = tuple(self._domain(members) for members in self.classes)
        self._imply_equalities()

    def spec(self) -> JoinSpec:
        fields = [pa.field(c.name, canonical_type(self._type(c.expr))) for c in self.query.output]
        later = [c.expr for c in self.query.output] + [r.expr for r in self.residuals]
        needed = frozenset[Col]().union(*map(columns_of, later))
        return JoinSpec(
            sources=self.sources,
            inputs=tuple(self._input(i, needed) for i in range(len(self.aliases))),
            classes=self.domains,
            residuals=tuple(self.residuals),
            output=self.query.output,
            schema=pa.schema(fields),
        )

    # --- conjuncts ---

    def _sort(self, conjunct: Expr) -> None:
        inputs = inputs_of(conjunct)
        dtype = self._type(conjunct)
        if kind(dtype) == "null" and inputs:
            raise QueryError(f"query: the condition `{self._sql(conjunct)}` is always NULL: the join gives no rows")
        if kind(dtype) not in ("boolean", "null"):
            raise QueryError(f"query: the condition `{self._sql(conjunct)}` is {type_name(dtype)}, not BOOLEAN")
        if not inputs:
            self._check_constant(conjunct)
        elif len(inputs) == 1:
            self.filters[min(inputs)].append(conjunct)
        elif (edge := self._edge(conjunct)) is not None:
            self.edges.append(edge)
        else:
            self.residuals.append(Residual(conjunct, inputs))

    def _check_constant(self, conjunct: Expr) -> None:
        value = evaluate(conjunct, _no_column, 1)[0].as_py()
        if value is not True:
            shown = "NULL" if value is None else "false"
            raise QueryError(f"query: the condition `{self._sql(conjunct)}` is always {shown}: the join gives no rows")

    def _edge(self, conjunct: Expr) -> tuple[_Node, _Node] | None:
        if not isinstance(conjunct, Call) or conjunct.function != "=":
            return None
        sides = [(inputs_of(side), side) for side in conjunct.args]
        if any(len(inputs) != 1 for inputs, _ in sides):
            return None
        family = self._family(conjunct)
        left, right = (_Node(min(inputs), side, family) for inputs, side in sides)
        return left, right

    def _family(self, equality: Call) -> str:
        types = [self._type(side) for side in equality.args]
        families = {_FAMILIES.get(kind(t), kind(t)) for t in types}
        if families <= {"exact", "double"}:
            return "double" if "double" in families else "exact"
        if len(families) == 1 and families <= set(_PLAIN_FAMILIES):
            return families.pop()
        shown = [f"{self._sql(side)} is {type_name(t)}" for side, t in zip(equality.args, types, strict=True)]
        if len(families) == 1:
            raise QueryError(
                f"query: `{self._sql(equality)}` cannot be a join key: {listed(shown)}, and keys are numbers, strings,"
                " booleans, dates, timestamps or binary; join on a field, or CAST to one of these types"
            )
        raise QueryError(
            f"query: the two sides of `{self._sql(equality)}` have types that do not match: {listed(shown)}. CAST one"
            f" of them, such as CAST({self._sql(equality.args[1])} AS {type_name(types[0])})"
        )

    # --- classes ---

    def _check_connected(self) -> None:
        groups = [{i} for i in range(len(self.aliases))]
        for left, right in self.edges:
            a, b = (next(g for g in groups if n.input in g) for n in (left, right))
            if a is not b:
                a |= b
                groups.remove(b)
        if len(groups) > 1:
            shown = " and ".join("{" + listed(self.aliases[i] for i in sorted(g)) + "}" for g in groups)
            raise QueryError(
                f"query: the inputs are not connected by equalities: {shown} have no `a.x = b.y` between them, which"
                " would make every row meet every other; add one to ON or WHERE"
            )

    def _domain(self, members: Sequence[_Node]) -> KeyDomain:
        family = members[0].family
        if family != "exact":
            return KeyDomain(family)
        types = [self._type(m.expr) for m in members]
        if all(t in INTEGERS for t in types):
            return KeyDomain("integer")
        sizes = [(_INTEGER_DIGITS[t], 0) if t in INTEGERS else decimal_digits(t) for t in types]
        scale = max(s for _, s in sizes)
        precision = max(p - s for p, s in sizes) + scale
        if precision > 38:
            shown = [f"{self._sql(m.expr)} is {type_name(t)}" for m, t in zip(members, types, strict=True)]
            raise QueryError(
                f"query: the join key of {listed(shown)} needs {precision} decimal digits to be compared exactly, and"
                " there are 38; CAST the columns to one narrower DECIMAL"
            )
        return KeyDomain("decimal", scale, precision)

    def _imply_equalities(self) -> None:
        for members in self.classes:
            for node in members:
                key = next(m for m in members if m.input == node.input)
                if key is not node:
                    sides = tuple(self._comparable(n) for n in (key, node))
                    self.filters[node.input].append(Call("=", sides))

    def _comparable(self, node: _Node) -> Expr:
        """The expression in its family: `=` of two integers is exact, and a class of doubles compares as doubles."""
        exact = node.family == "double" and kind(self._type(node.expr)) != "float"
        return Cast(node.expr, pa.float64()) if exact else node.expr

    # --- state ---

    def _input(self, input: int, needed: frozenset[Col]) -> InputSpec:
        schema = self.sources[self.query.inputs[input][1]].schema
        stored: list[StoredColumn] = []
        keys: list[tuple[int, int]] = []
        shared: dict[str, int] = {}
        made_up = set[str]()
        for c, members in enumerate(self.classes):
            expr = next((m.expr for m in members if m.input == input), None)
            if expr is None:
                continue
            keys.append((c, len(stored)))
            domain = self.domains[c]
            if isinstance(expr, Col) and domain.kind in SHAREABLE:
                shared[expr.name] = len(stored)
                stored.append(StoredColumn(expr.name, expr, key_type(domain), domain))
            else:
                name = _fresh(f"key {render(expr)}", made_up)
                made_up.add(name)
                stored.append(StoredColumn(name, expr, key_type(domain), domain, made_up=True))
        payload: list[tuple[str, int]] = []
        for name in schema.names:
            if Col(input, name) not in needed:
                continue
            if name not in shared:
                shared[name] = len(stored)
                stored.append(StoredColumn(name, Col(input, name), schema.field(name).type))
            payload.append((name, shared[name]))
        window, time, number = self._window(input, stored, shared)
        filters = self.filters[input]
        condition = Call("and", tuple(filters)) if len(filters) > 1 else filters[0] if filters else None
        read = frozenset[Col]().union(*map(columns_of, [s.expr for s in stored] + filters))
        source = self.query.inputs[input][1]
        described = InputSpec(
            alias=self.aliases[input],
            source=source,
            columns=tuple(name for name in schema.names if Col(input, name) in read),
            filter=condition,
            stored=tuple(stored),
            keys=tuple(keys),
            payload=tuple(payload),
            window=window,
            time=time,
            number=number,
            lateness=self.options[source].lateness or 0,
        )
        return with_promises(described, self.sources[source], self.options[source].promised)

    def _window(
        self, input: int, stored: list[StoredColumn], shared: Mapping[str, int]
    ) -> tuple[Window | None, int | None, int | None]:
        """The window of an input and where its event time and its row number are; stores what they need."""
        source = self.query.inputs[input][1]
        time, name = None, self.event_times[source]
        if name is not None:
            if name not in shared:
                stored.append(StoredColumn(name, Col(input, name), self.sources[source].schema.field(name).type))
            time = shared.get(name, len(stored) - 1)
        number = None
        if any(each.window is not None and each.window.in_rows for each in self.options):
            arriving = Col(input, _fresh("row number", set(self.sources[source].schema.names)))
            number = len(stored)
            stored.append(StoredColumn("row number", arriving, pa.int64(), made_up=True))
        window = self.options[source].window
        if window is None:
            return None, time, number
        position = number if window.in_rows else time
        assert position is not None
        return Window(window.size, window.in_rows, position), time, number

    # --- helpers ---

    def _type(self, expr: Expr) -> pa.DataType:
        try:
            return type_of(expr, lambda c: self.sources[self.query.inputs[c.input][1]].schema.field(c.name).type)
        except QueryError as e:
            raise QueryError(f"query: {str(e).removeprefix('query: ')}") from e

    def _sql(self, expr: Expr) -> str:
        return render(expr, self.aliases)


def _no_column(column: Col) -> pa.Array:
    raise AssertionError(f"a constant has no column {column}")


def _fresh(name: str, taken: set[str]) -> str:
    """`name`, changed until it is none of those that are taken."""
    while name in taken:
        name += "'"
    return name


def _components(edges: Iterable[tuple[_Node, _Node]]) -> list[list[_Node]]:
    """The connected components, in the order of their first edge; members by input, then by appearance."""
    components: list[list[_Node]] = []
    for left, right in edges:
        a = next((c for c in components if left in c), None)
        b = next((c for c in components if right in c), None)
        if a is None and b is None:
            components.append([left, right] if left != right else [left])
        elif a is None and b is not None:
            b.append(left)
        elif b is None and a is not None:
            a.append(right)
        elif a is not None and b is not None and a is not b:
            first, second = sorted((a, b), key=components.index)
            first.extend(second)
            components.remove(second)
    return [sorted(c, key=lambda n: n.input) for c in components]
