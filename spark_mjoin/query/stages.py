"""A join whose inputs have no key in common as stages: joins that have one each, over inputs and earlier results.

    a.k = b.k, b.m = c.m        ((a b) c)        a, b ──by k──> stage (a b) ──its results by m──┐
                                                                       c ──────────by m─────────┴──> stage ((a b) c)

A stage is a join like any other, with a `JoinSpec` of its own. So it can be divided among tasks by its key, and keeps
its own state. The results of an earlier stage are one of its sources: their columns are what is needed later, for the
output, for conditions that are not decided yet, and one key for each class by which they meet the rest.

Covered: which trees of joins can run in stages, and what each stage joins. Not covered: which tree is best, and joins
that do not run in stages (driver.staging).

Why it is right: all inputs of a class are equal in every result, so one of them stands for the others, and a stage
checks every class that two of its members have, not only the one that it is divided by. So cycles and keys of several
columns are complete. A class compares in one family: where that is floating point, both sides are cast to it, or the
two integers of `a.int = b.double = c.int` would be compared exactly. The first stage that has all inputs of a condition
decides it. Each stage emits each of its combinations once, by the engine's rule, and each is a row of the next stage:
so each result of the last one comes once.

Windows in time: all rows of a combination are inside their windows, seen from the youngest of all. Results of a stage
have the time of their youngest row, and the last time from which all their rows are inside. So a stage asks of results
that the others are not younger than that. Besides, they have the longest window of their rows, which leaves nothing out
that the first question does not, and lets rows expire. They are never late: a row is late or not where it arrives. How
far results have come, the earlier stage says (`engine.exchange.Floor`).

Key promises hold in the stage that their input comes to, as far as they are about its keys. A stage is a join like any
other, so they let rows go there as in any other. Results make no promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_mjoin.config import Promised, SourceOptions, WindowOption
from spark_mjoin.mjoin.casts import kind
from spark_mjoin.mjoin.expressions import columns_of, type_of
from spark_mjoin.mjoin.rendering import qualified, render
from spark_mjoin.model import (
    STAGE,
    Call,
    Cast,
    Col,
    Expr,
    InputSpec,
    JoinSpec,
    Lit,
    OutputColumn,
    Pattern,
    Tree,
)
from spark_mjoin.query import tree as trees
from spark_mjoin.query.graph import spec_of
from spark_mjoin.query.sql import Query

TIME = "event time"  # of results with windows: that of the youngest row
UNTIL = "inside until"  # the last event time from which all rows are inside their windows


@dataclass(frozen=True)
class Stage:
    """One join of a plan of stages."""

    tree: Tree  # what it joins, in terms of the whole
    spec: JoinSpec  # over its members: inputs of the whole join, or results of earlier stages
    leaves: tuple[tuple[int, ...], ...]  # per member, the inputs of the whole join below it
    onward: tuple[int, int] | None = None  # the stage that takes its results, and as which member; None: the last one


def only(spec: JoinSpec) -> tuple[Stage, ...]:
    """A join that needs no stages, as the only one."""
    inputs = range(len(spec.inputs))
    return (Stage(trees.single(len(spec.inputs)), spec, tuple((i,) for i in inputs)),)


def classes_of(spec: JoinSpec, inputs: Sequence[int]) -> frozenset[int]:
    """The key classes that a result over some inputs has."""
    return frozenset[int]().union(*(spec.classes_of(i) for i in inputs))


def can_run(spec: JoinSpec, tree: Tree) -> bool:
    """Whether a tree can run in stages: the members of each of its joins have a key in common."""
    return all(
        frozenset.intersection(*(classes_of(spec, trees.inputs_below(member)) for member in members))
        for members in trees.operators(tree)
    )


def results(spec: JoinSpec, inputs: Sequence[int]) -> dict[str, Expr]:
    """The columns of the results over some inputs, and not all: what is needed later. Expressions are of the whole."""
    inside, rest = frozenset(inputs), [i for i in range(len(spec.inputs)) if i not in inputs]
    found: dict[str, Expr] = {}
    for key_class in sorted(classes_of(spec, inputs) & classes_of(spec, rest)):
        expr = _key(spec, inputs, key_class)
        found[_name(spec, expr)] = expr
    later = [o.expr for o in spec.output] + [r.expr for r in spec.residuals if not r.inputs <= inside]
    needed = frozenset[Col]().union(*map(columns_of, later))
    for input in sorted(inputs):
        for name in spec.sources[spec.inputs[input].source].schema.names:
            if Col(input, name) in needed:
                found[_name(spec, Col(input, name))] = Col(input, name)
    return found


def staged(spec: JoinSpec, tree: Tree, options: Sequence[SourceOptions]) -> tuple[Stage, ...]:
    """The stages of a tree that can run in stages, in the order in which they run. options: of each source."""
    made: list[Stage] = []
    text = trees.render(tree, [i.alias for i in spec.inputs])

    def make(members: tuple[Tree, ...]) -> int:
        """Makes a stage after those that it needs; returns its number."""
        earlier = {at: make(member) for at, member in enumerate(members) if not isinstance(member, int)}
        schemas = {at: made[number].spec.schema for at, number in earlier.items()}
        leaves = tuple(trees.inputs_below(member) for member in members)
        is_last = len(frozenset(i for below in leaves for i in below)) == len(spec.inputs)
        joined = replace(_Members(spec, options, members, schemas).spec(is_last), stages=text)
        made.append(Stage(members, joined, leaves))
        for at, number in earlier.items():
            made[number] = replace(made[number], onward=(len(made) - 1, at))
        return len(made) - 1

    assert not isinstance(tree, int)
    make(tree)
    return tuple(made)


class _Members:
    """The members of one stage, and expressions over the whole join in terms of them."""

    def __init__(
        self,
        whole: JoinSpec,
        options: Sequence[SourceOptions],
        members: Sequence[Tree],
        schemas: dict[int, pa.Schema],
    ) -> None:
        """options: of each source; schemas: of the results of earlier stages, by the number of the member."""
        self.whole, self.options, self.members, self.schemas = whole, options, members, schemas
        self.leaves = [trees.inputs_below(member) for member in members]
        self.member_of = {i: number for number, below in enumerate(self.leaves) for i in below}
        self.aliases = [i.alias for i in whole.inputs]

    def spec(self, is_last: bool) -> JoinSpec:
        whole, inside = self.whole, frozenset(self.member_of)
        output = {o.name: o.expr for o in whole.output} if is_last else results(whole, sorted(inside))
        names = [trees.render(member, self.aliases) for member in self.members]
        names = [n if m in self.schemas else self.aliases[self.leaves[m][0]] for m, n in enumerate(names)]
        here = [OutputColumn(name, self._here(expr)) for name, expr in output.items()]
        query = Query(
            tuple((name, number) for number, name in enumerate(names)),
            (*self._equalities(), *self._conditions(inside), *self._inside_windows()),
            (*here, *([] if is_last else self._times())),
        )
        options, schemas = list[SourceOptions](), list[pa.Schema]()
        for number, name in enumerate(names):
            if number in self.schemas:
                options.append(self._of_results(number, name))
                schemas.append(self.schemas[number])
            else:
                leaf = self.leaves[number][0]
                source = whole.inputs[leaf].source
                promised = self._promised(leaf, self.options[source].promised)
                options.append(replace(self.options[source], alias=name, promised=promised))
                schemas.append(whole.sources[source].schema)
        found = spec_of(query, options, schemas)
        inputs = [
            input if number in self.schemas else self._with_others(input, self.leaves[number][0])
            for number, input in enumerate(found.inputs)
        ]
        return replace(found, inputs=tuple(inputs))

    # --- windows ---------------------------------------------------------------------------------------------

    def _of_results(self, member: int, name: str) -> SourceOptions:
        """The results of an earlier stage as a source."""
        windows = [window for i in self.leaves[member] if (window := self.whole.inputs[i].window) is not None]
        if not windows:
            return SourceOptions(name, STAGE, ())
        return SourceOptions(name, STAGE, (), WindowOption(max(w.size for w in windows), False, "window"), TIME, 0)

    def _time(self, member: int) -> Expr:
        """The event time of a member: of results that of their youngest row."""
        if member in self.schemas:
            return Col(member, TIME)
        input = self.whole.inputs[self.leaves[member][0]]
        assert input.time is not None
        return Col(member, input.stored[input.time].name)

    def _until(self, member: int) -> Expr:
        """The last event time from which all rows of a member are inside their windows."""
        if member in self.schemas:
            return Col(member, UNTIL)
        window = self.whole.inputs[self.leaves[member][0]].window
        assert window is not None and not window.in_rows
        return Call("later by", (self._time(member), Lit(window.size - 1, pa.int64())))

    def _times(self) -> list[OutputColumn]:
        """What later stages have to know of the event times of results."""
        if not self.whole.windowed:
            return []
        members = range(len(self.members))
        return [
            OutputColumn(TIME, Call("greatest", tuple(map(self._time, members)))),
            OutputColumn(UNTIL, Call("least", tuple(map(self._until, members)))),
        ]

    def _inside_windows(self) -> list[Expr]:
        """That no member is too young for the rows in results of an earlier stage. The engine sees to the others."""
        if not self.whole.windowed:
            return []
        others = range(len(self.members))
        return [Call("<=", (self._time(o), self._until(m))) for m in self.schemas for o in others if o != m]

    # --- promises and conditions -----------------------------------------------------------------------------

    def _shared(self, leaf: int) -> set[int]:
        """The key classes by which an input meets other members, and compares as it is."""
        return {
            key_class
            for key_class in self.whole.classes_of(leaf)
            if sum(key_class in classes_of(self.whole, below) for below in self.leaves) > 1
            and isinstance(self._comparable(self.member_of[leaf], (leaf,), key_class), Col)
        }

    def _promised(self, leaf: int, promised: Promised) -> Promised:
        """Of what an input promises, what is about its keys in this stage."""
        input, shared = self.whole.inputs[leaf], self._shared(leaf)
        if not shared.issuperset(input.unique):
            promised = replace(promised, unique=())
        if input.ordered is not None and input.ordered[0] not in shared:
            promised = replace(promised, ordered=None)
        for pattern in self._elsewhere(leaf):
            promised = replace(promised, values=None) if pattern.values is not None else promised
            promised = replace(promised, range=None) if pattern.low is not None else promised
        return promised

    def _elsewhere(self, leaf: int) -> list[Pattern]:
        """What punctuations of an input may say about keys by which it meets nothing here."""
        said, shared = self.whole.inputs[leaf].punctuations, self._shared(leaf)
        return [] if said is None else [pattern for pattern in said.patterns if pattern.key_class not in shared]

    def _with_others(self, input: InputSpec, leaf: int) -> InputSpec:
        """The same, but a punctuation about such a key says nothing: it is about fewer rows than its other keys."""
        if input.punctuations is None:
            return input
        stored, others = self.whole.inputs[leaf].stored, set(input.punctuations.others)
        for pattern in self._elsewhere(leaf):
            others |= {c.name for c in columns_of(stored[pattern.ordinal].expr)}
            others |= {name for name in (pattern.values, pattern.low, pattern.high) if name is not None}
        return replace(input, punctuations=replace(input.punctuations, others=tuple(sorted(others))))

    def _equalities(self) -> list[Expr]:
        """Of every class that two members have."""
        found: list[Expr] = []
        for key_class in range(len(self.whole.classes)):
            sides = [
                self._comparable(number, below, key_class)
                for number, below in enumerate(self.leaves)
                if key_class in classes_of(self.whole, below)
            ]
            found += [Call("=", (sides[0], side)) for side in sides[1:]]
        return found

    def _comparable(self, member: int, below: Sequence[int], key_class: int) -> Expr:
        """The key of a member, in the family in which the class compares."""
        expr = _key(self.whole, below, key_class)
        side = Col(member, _name(self.whole, expr)) if member in self.schemas else self._here(expr)
        is_float = kind(type_of(expr, self.whole.column_type)) == "float"
        exact = self.whole.classes[key_class].kind == "double" and not is_float
        return Cast(side, pa.float64()) if exact else side

    def _conditions(self, inside: frozenset[int]) -> list[Expr]:
        """Filters of inputs, and conditions that are decided here."""
        own = [self.whole.inputs[below[0]].filter for n, below in enumerate(self.leaves) if n not in self.schemas]
        decided = [
            r.expr
            for r in self.whole.residuals
            if r.inputs <= inside and not any(r.inputs <= frozenset(below) for below in self.leaves)
        ]
        return [self._here(expr) for expr in [*own, *decided] if expr is not None]

    def _here(self, expr: Expr) -> Expr:
        """An expression over the whole join as one over the members."""
        if isinstance(expr, Col):
            member = self.member_of[expr.input]
            return Col(member, _name(self.whole, expr) if member in self.schemas else expr.name)
        for member, schema in ((m, s) for m, s in self.schemas.items() if columns_of(expr)):
            if _name(self.whole, expr) in schema.names:  # a key that is an expression
                return Col(member, _name(self.whole, expr))
        if isinstance(expr, Cast):
            return replace(expr, arg=self._here(expr.arg))
        return replace(expr, args=tuple(map(self._here, expr.args))) if isinstance(expr, Call) else expr


def _key(spec: JoinSpec, inputs: Sequence[int], key_class: int) -> Expr:
    """The key that stands for a class among some inputs: that of the first which has it."""
    of = spec.inputs[min(i for i in inputs if key_class in spec.classes_of(i))]
    return of.stored[dict(of.keys)[key_class]].expr


def _name(spec: JoinSpec, expr: Expr) -> str:
    """The name of a column of results: no other expression has it."""
    aliases = [i.alias for i in spec.inputs]
    if isinstance(expr, Col):
        return qualified(aliases[expr.input], expr.name)
    return f"key {render(expr, aliases)}"
