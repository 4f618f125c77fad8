"""Plans as trees of MJoins, and what each operator of one joins (Viglas 2003, sections 2.3 and 3.6).

    ((a b c) (d e f))        the results of MJoin(d, e, f) are an input of the root
     └──┬──┘ └──┬──┘         rows go up:  arrivals of a ──> MJoin(a, b, c) ──results──> the root ──results──> out
      0+1+2   3+4+5

Every operator gets a `JoinSpec` of its own, whose inputs are its members. A member that is a result has one stored key
for each class by which it meets the rest, and the columns that are needed above: for the output, or for predicates that
are not decided below. Both depend on the inputs below it alone, not on how they are joined there.

Why it is right: equality of keys is transitive within a class (query.graph), so one key stands for all inputs below.
The lowest operator that has all inputs of a predicate decides it. Every operator passes each combination on once, by
its own rule. So the root emits each result of the whole join once.

Not covered: which tree is best (driver.decompose), and changing from one to another (engine.replan).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.mjoin.expressions import columns_of
from spark_mjoin.mjoin.rendering import identifier, qualified
from spark_mjoin.mjoin.rendering import render as render_expr
from spark_mjoin.model import (
    NO_SOURCE,
    Call,
    Cast,
    Col,
    Expr,
    InputSpec,
    Joined,
    JoinSpec,
    OperatorSpec,
    OutputColumn,
    Residual,
    SourceSpec,
    StoredColumn,
    Tree,
)
from spark_mjoin.query.cubes import is_cube

_TOKEN = re.compile(r"`(?:[^`]|``)+`|[(),]|[^\s(),]+")  # names that are not plain are in backticks, as in SQL


def single(inputs: int) -> Tree:
    """All inputs in one MJoin."""
    return tuple(range(inputs))


def chosen(plan: str | None, spec: JoinSpec) -> Tree:
    """The tree that option `plan` asks for; all inputs in one MJoin where it is not given."""
    tree = single(len(spec.inputs)) if plan is None else parse(plan, spec)
    if spec.forgetful and tree != single(len(spec.inputs)):
        what = "windows" if spec.windowed else "punctuations or constraints"
        raise OptionError(
            f"option 'plan': '{plan}' stores intermediate results, which a join with {what} does not: remove "
            f"the option, or the {what}"
        )
    return tree


def inputs_below(tree: Tree) -> tuple[int, ...]:
    """The inputs in a tree, ascending; one that is there twice is here twice."""
    if isinstance(tree, int):
        return (tree,)
    return tuple(sorted(i for member in tree for i in inputs_below(member)))


def leaves(tree: Tree) -> frozenset[int]:
    """The inputs in a tree."""
    return frozenset(inputs_below(tree))


def normal(tree: Tree) -> Tree:
    """The same plan with members in the order of their first inputs, so that equal plans are equal."""
    if isinstance(tree, int):
        return tree
    return tuple(sorted((normal(member) for member in tree), key=lambda member: inputs_below(member)[0]))


def from_json(body: Sequence[object] | int) -> Tree:
    """A tree from nested lists."""
    return body if isinstance(body, int) else tuple(from_json(member) for member in body)  # type: ignore[arg-type]


# --- in words ----------------------------------------------------------------------------------------------------


def render(tree: Tree, aliases: Sequence[str]) -> str:
    """The tree as the option `plan` has it: `((a b c) d)`."""
    if isinstance(tree, int):
        return identifier(aliases[tree])
    return "(" + " ".join(render(member, aliases) for member in tree) + ")"


def parse(text: str, spec: JoinSpec) -> Tree:
    """The tree that option `plan` describes; OptionError where it is not one over the inputs of the join."""
    aliases = [i.alias for i in spec.inputs]
    if is_cube(text):
        raise OptionError(
            f"option 'plan': '{text}' is for spark_mjoin.join, and for inputs without a key that all of them have. An "
            f"example of another plan is {render(single(len(aliases)), aliases)}"
        )
    tokens = [t for t in _TOKEN.findall(text) if t != ","]
    stack: list[list[Tree]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise OptionError(f"option 'plan': '{text}' has a ')' without a '('")
            closed = stack.pop()
            if not closed:
                raise OptionError(f"option 'plan': '{text}' has an empty pair of parentheses")
            stack[-1].append(tuple(closed) if len(closed) > 1 else closed[0])
        else:
            stack[-1].append(_input(token, aliases))
    if len(stack) > 1:
        raise OptionError(f"option 'plan': '{text}' has a '(' without a ')'")
    top = stack[0]
    tree: Tree = normal(tuple(top) if len(top) != 1 else top[0])
    _check(spec, tree, text)
    return tree


def _input(token: str, aliases: Sequence[str]) -> int:
    name = token[1:-1].replace("``", "`") if token.startswith("`") else token
    found = [i for i, alias in enumerate(aliases) if alias.lower() == name.lower()]
    if not found:
        raise OptionError(
            f"option 'plan': '{name}' is not an input of the query.{nearest(name, aliases)} Inputs are: "
            f"{listed(aliases)}; an example is {render(single(len(aliases)), aliases)}"
        )
    return found[0]


def _check(spec: JoinSpec, tree: Tree, text: str) -> None:
    aliases = [i.alias for i in spec.inputs]
    named = inputs_below(tree)
    twice = sorted({i for i in named if named.count(i) > 1})
    if twice:
        raise OptionError(f"option 'plan': '{text}' has {listed(aliases[i] for i in twice)} more than once")
    missing = [alias for i, alias in enumerate(aliases) if i not in named]
    if missing:
        raise OptionError(f"option 'plan': '{text}' lacks {listed(missing)}; a plan has every input once")
    for operator in operators(tree):
        if not is_connected(spec, operator):
            raise OptionError(
                f"option 'plan': the members of {render(operator, aliases)} are not connected by keys, so every row "
                "would meet every other; put inputs together that have an equality between them"
            )


def operators(tree: Tree) -> list[tuple[Tree, ...]]:
    """The MJoins of a tree, in preorder: the root first."""
    if isinstance(tree, int):
        return []
    return [tree, *(operator for member in tree for operator in operators(member))]


def is_connected(spec: JoinSpec, members: Iterable[Tree]) -> bool:
    """Whether keys connect some inputs or results of joins."""
    waiting = [frozenset[int]().union(*(spec.classes_of(i) for i in inputs_below(m))) for m in members]
    reached = waiting.pop()
    while near := [classes for classes in waiting if classes & reached]:
        waiting = [classes for classes in waiting if not classes & reached]
        reached = reached.union(*near)
    return not waiting


# --- what each operator joins ------------------------------------------------------------------------------------


def layout(spec: JoinSpec, tree: Tree) -> tuple[OperatorSpec, ...]:
    """The operators of a plan, in preorder."""
    placed: dict[int, OperatorSpec] = {}

    def place(members: tuple[Tree, ...], parent: tuple[int, int] | None, number: int) -> int:
        """Places an operator and those below it; returns the next free number."""
        leaves = tuple(inputs_below(member) for member in members)
        placed[number] = OperatorSpec(number, _spec(spec, leaves, parent is None), leaves, parent)
        free = number + 1
        for at, member in enumerate(members):
            if not isinstance(member, int):
                free = place(member, (number, at), free)
        return free

    assert not isinstance(tree, int)
    place(tree, None, 0)
    return tuple(placed[number] for number in sorted(placed))


@dataclass(frozen=True)
class _Result:
    """What the result of a join over some inputs has: stored columns, and where each comes from."""

    stored: tuple[StoredColumn, ...]
    keys: tuple[tuple[int, int], ...]
    payload: tuple[tuple[str, int], ...]
    schema: pa.Schema  # of the payload
    sources: tuple[tuple[int, int], ...]  # per stored column: input of the whole join, its stored column
    at: dict[tuple[int, int], int]  # where a stored column of an input is found here


def _result(spec: JoinSpec, leaves: Sequence[int]) -> _Result:
    inside = frozenset(leaves)
    outer = frozenset[int]().union(*(spec.classes_of(i) for i in range(len(spec.inputs)) if i not in inside))
    later = [o.expr for o in spec.output] + [r.expr for r in spec.residuals if not r.inputs <= inside]
    needed = frozenset[Col]().union(*map(columns_of, later))
    stored: list[StoredColumn] = []
    sources: list[tuple[int, int]] = []
    at: dict[tuple[int, int], int] = {}

    def store(leaf: int, ordinal: int, name: str) -> int:
        column = spec.inputs[leaf].stored[ordinal]
        at[leaf, ordinal] = len(stored)
        stored.append(replace(column, name=qualified(spec.inputs[leaf].alias, name), expr=Col(leaf, name)))
        sources.append((leaf, ordinal))
        return len(stored) - 1

    keys = []
    for key_class in sorted(outer.intersection(*[frozenset[int]().union(*(spec.classes_of(i) for i in leaves))])):
        members = [(i, dict(spec.inputs[i].keys)[key_class]) for i in leaves if key_class in spec.classes_of(i)]
        first, ordinal = members[0]
        keys.append((key_class, store(first, ordinal, spec.inputs[first].stored[ordinal].name)))
        for member in members:  # all are equal, so one stands for all
            at[member] = keys[-1][1]
    payload, fields = [], []
    for i in leaves:
        for name, ordinal in spec.inputs[i].payload:
            if Col(i, name) in needed:
                place = at[i, ordinal] if (i, ordinal) in at else store(i, ordinal, name)
                payload.append((qualified(spec.inputs[i].alias, name), place))
                fields.append(pa.field(payload[-1][0], spec.column_type(Col(i, name))))
    return _Result(tuple(stored), tuple(keys), tuple(payload), pa.schema(fields), tuple(sources), at)


def _spec(spec: JoinSpec, members: tuple[tuple[int, ...], ...], is_root: bool) -> JoinSpec:
    """The join of some members: inputs of the whole join, or results over several of them."""
    if is_root and all(len(leaves) == 1 for leaves in members):
        return spec
    sources, inputs = list[SourceSpec](), list[InputSpec]()
    results: dict[int, _Result] = {}
    names = [i.alias for i in spec.inputs]
    for number, leaves in enumerate(members):
        if len(leaves) == 1:
            input = spec.inputs[leaves[0]]
            inputs.append(replace(input, source=len(sources)))
            sources.append(spec.sources[input.source])
            continue
        found = results[number] = _result(spec, leaves)
        alias = f"({' '.join(identifier(names[i]) for i in leaves)})"
        below = tuple(render_expr(r.expr, names) for r in spec.residuals if r.inputs <= frozenset(leaves))
        joined = Joined(found.schema, below)
        inputs.append(InputSpec(alias, NO_SOURCE, (), None, found.stored, found.keys, found.payload, joined))
    member_of = {i: number for number, leaves in enumerate(members) for i in leaves}
    inside = frozenset(member_of)

    def here(expr: Expr) -> Expr:
        """An expression over the whole join as one over the members."""
        if isinstance(expr, Col):
            number = member_of[expr.input]
            name = qualified(spec.inputs[expr.input].alias, expr.name) if number in results else expr.name
            return Col(number, name)
        if isinstance(expr, Cast):
            return replace(expr, arg=here(expr.arg))
        return replace(expr, args=tuple(map(here, expr.args))) if isinstance(expr, Call) else expr

    residuals = tuple(
        Residual(here(r.expr), frozenset(member_of[i] for i in r.inputs))
        for r in spec.residuals
        if r.inputs <= inside and not any(r.inputs <= frozenset(leaves) for leaves in members)
    )
    part = JoinSpec(tuple(sources), tuple(inputs), spec.classes, residuals, (), pa.schema([]), split_by=spec.star_class)
    if is_root:
        return replace(part, output=tuple(OutputColumn(o.name, here(o.expr)) for o in spec.output), schema=spec.schema)
    result = _result(spec, sorted(inside))
    passes_on = []
    for leaf, ordinal in result.sources:
        number = member_of[leaf]
        passes_on.append((number, results[number].at[leaf, ordinal] if number in results else ordinal))
    schema = pa.schema([pa.field(column.field, column.type) for column in result.stored])
    return replace(part, schema=schema, passes_on=tuple(passes_on))
