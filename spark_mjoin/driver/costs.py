"""The cost model: the work of a tree of MJoins, the time it takes, and its results over time.

After Viglas 2003, appendix A, whose operations are hash, move and compare. Everything follows from one estimate, the
expected size of the join of some inputs (`Estimates.size`), which is multilinear: selectivities stay as they are, so
twice the rows of one input make twice the result.

    Model(spec, estimates, start, end)      rows grow from `start` to `end`, all inputs evenly; with windows, in which
                                            rows expire as others arrive, `arriving` says how many come meanwhile
        .found(origin, inputs)              combinations of `inputs` whose youngest row is one of `origin`
        .operator(members)                  work of one MJoin: rows it stores, and probes along the best order of each
        .tree(tree)                         the sum over its operators
    forecast(...)                           results over time, with the backlog of a plan that cannot keep up

Equations 2 to 4 follow from the model (`tests/driver/test_costs.py`). It differs from the printed equations here:

- Equation 2, numerator. The results of second t are those of t seconds less those of t - 1 seconds, which is
  t^n - (t-1)^n times those of the first; the paper subtracts all earlier T(k) once more (t^n - sum of k^n), which is
  right for t = 2 and negative from some t on.
- Equation 2, denominator. The paper takes the product of selectivities for the chance that a row goes on to the last
  probe. What costs is the number of combinations at each step, which are selectivities times rows and grow with time.
- Equation 2, the quotient. Results over the time that they take is a rate only for a processor that is never idle. Work
  of less than a second per second delays nothing, so the denominator is at least one; and work of more than that is
  carried over to the next second, which is what `forecast` does and equation 2 alone does not.
- Equation 4 counts pairs (1 - selectivity) that are looked at and thrown away. With hash tables, pairs that do not
  match are never looked at. What a single MJoin does again and a split one does not are the probes that pass through
  one part on behalf of arrivals in the other. Here D is all that the split saves, and S all that it adds, so that D > S
  if and only if the split needs less time, which is what the paper uses them for.

Not covered: disk work except for its volume (`restoring`), conditions that are no equalities (the estimates may include
them), skew (it is part of the selectivities), and the start of a micro-batch. Pure: there is no clock, and the same
estimates give the same figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations
from typing import Protocol

import numpy as np

from spark_mjoin.model import Array, Expected, JoinSpec, Tree
from spark_mjoin.query import tree as trees
from spark_mjoin.query.tree import leaves

LOAD = 0.54  # rows with another key that share a slot: an index has four slots a row when it grows, one before that
WIDTH = 35  # of the search for an order: all prefixes of up to eight members, the best of them beyond
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(6)  # exact for the polynomials that ten inputs make

Inputs = frozenset[int]  # of the join: the leaves below a member of an operator


class Estimates(Protocol):
    """What the model wants to know: `statistics.Statistics` does."""

    @property
    def rows(self) -> Sequence[float]:
        """Of each input, so far."""

    @property
    def rates(self) -> Sequence[float]:
        """Rows per second of each input."""

    def size(self, inputs: Inputs, rows: Sequence[float]) -> float:
        """The expected result of joining some inputs, of which input i has rows[i] rows."""

    def with_rows(self, rows: Sequence[float]) -> Estimates:
        """The same for inputs of another size: where nothing was measured, it depends on that."""


def expected_of(spec: JoinSpec, expected: Expected) -> tuple[list[float], dict[tuple[int, int], float]]:
    """What the user expects, by inputs instead of sources: rates (0.0: not known), and selectivities of pairs."""
    source_of = [spec.sources[input.source].alias for input in spec.inputs]
    rates, of_sources = dict(expected.rates), {(a, b): s for a, b, s in expected.selectivities}
    pairs = {
        (i, j): of_sources[a, b]
        for i, j in combinations(range(len(source_of)), 2)
        for a, b in [sorted((source_of[i], source_of[j]))]
        if (a, b) in of_sources and spec.classes_of(i) & spec.classes_of(j)
    }
    return [rates.get(alias, 0.0) for alias in source_of], pairs


def inside(
    spec: JoinSpec, rows: Sequence[float], paces: Sequence[float], kept: Sequence[float] | None = None
) -> list[float]:
    """Of the rows of each input that have come, those that still count: inside its window, seen from the newest row.

    paces: rows per second of event time, 0.0 where they are not known; kept: the fraction of delivered rows that are
    stored, since windows in rows count delivered rows.
    """
    out = []
    for n, input in enumerate(spec.inputs):
        most = float("inf")
        if input.window is not None and input.window.in_rows:
            most = input.window.size * (kept[n] if kept else 1.0)
        elif input.window is not None and paces[n]:
            most = paces[n] * input.window.size / 1e6
        out.append(min(float(rows[n]), most))
    return out


@dataclass(frozen=True)
class Work:
    """Operations, counted as the engine counts them; gathers are not among its counters."""

    hashes: float = 0.0  # of a key: of stored rows, for each key, and of each probe
    moves: float = 0.0  # rows that are stored
    comparisons: float = 0.0
    gathers: float = 0.0  # rows of inputs whose columns are copied into intermediate results

    def __add__(self, other: Work) -> Work:
        return Work(
            self.hashes + other.hashes,
            self.moves + other.moves,
            self.comparisons + other.comparisons,
            self.gathers + other.gathers,
        )

    def times(self, factor: float) -> Work:
        return Work(self.hashes * factor, self.moves * factor, self.comparisons * factor, self.gathers * factor)


@dataclass(frozen=True)
class Costs:
    """Seconds per operation (the paper's table 3). `gather` is what the paper leaves out: to make an intermediate row,
    the columns of a row of each of its inputs are copied. The last three are for the choice of access (`access`): put a
    row into an index, go over a row in a scan for few rows, and what the latter takes more for a full chunk."""

    hash: float
    move: float
    compare: float
    gather: float = 0.0
    index: float = 4.5e-9
    scan: float = 1.1e-9
    scan_wide: float = 2.5e-9

    def seconds(self, work: Work) -> float:
        return (
            work.hashes * self.hash
            + work.moves * self.move
            + work.comparisons * self.compare
            + work.gathers * self.gather
        )


def operators(tree: Tree) -> list[tuple[Inputs, ...]]:
    """The members of every operator, in preorder: each as the inputs below it."""
    return [tuple(map(leaves, members)) for members in trees.operators(tree)]


class Model:
    """What happens while the rows of the inputs grow from `start` to `end`, all of them evenly.

    Then sizes are polynomials of time, and their integrals are exact.
    """

    def __init__(
        self,
        spec: JoinSpec,
        estimates: Estimates,
        start: Sequence[float],
        end: Sequence[float],
        arriving: Sequence[float] | None = None,
    ) -> None:
        self._spec = spec
        grown = [float(b - a) for a, b in zip(start, end, strict=True)]
        self._arriving = grown if arriving is None else arriving
        instants = [0.0, 1.0, *((_POINTS + 1) / 2)]
        self._rows = [[a + at * d for a, d in zip(start, grown, strict=True)] for at in instants]
        self._estimates = estimates
        self._sizes = lru_cache(maxsize=None)(self._sizes_of)
        self.found = lru_cache(maxsize=None)(self._found)
        self.operator = lru_cache(maxsize=None)(self._operator)
        self.classes = lru_cache(maxsize=None)(self._classes)

    # --- sizes ---

    def before(self, inputs: Inputs) -> float:
        """The size of the join of some inputs at the start."""
        return self._sizes(inputs)[0]

    def after(self, inputs: Inputs) -> float:
        """The size of the join of some inputs at the end."""
        return self._sizes(inputs)[1]

    def _sizes_of(self, inputs: Inputs) -> list[float]:
        return [float(self._estimates.size(inputs, rows)) for rows in self._rows]

    def _found(self, origin: Inputs, inputs: Inputs) -> float:
        """Combinations of `inputs` that arrivals of `origin`, a part of them, make with what is there by then.

        The size is multilinear, so a new row of input i makes size / rows[i] of them.
        """
        total = 0.0
        for weight, rows, size in zip(_WEIGHTS, self._rows[2:], self._sizes(inputs)[2:], strict=True):
            total += weight / 2 * size * sum(self._arriving[i] / rows[i] for i in origin if rows[i] > 0)
        return float(total)

    # --- work ---

    def tree(self, tree: Tree) -> Work:
        """The work of all operators."""
        return sum(map(self.operator, operators(tree)), Work())

    def _operator(self, members: tuple[Inputs, ...]) -> Work:
        """The work of one MJoin over these members."""
        whole = frozenset[int]().union(*members)
        work = Work()
        for member in members:
            others = [m for m in members if m is not member]
            rows = self.found(member, member)
            on_the_way = fewest(partial(self.found, member), self.classes, member, others)
            probes, matches = rows + on_the_way, on_the_way + self.found(member, whole)
            work += self.storing(member, others, rows) + Work(probes, 0, matches + LOAD * probes)
        return work

    def storing(self, member: Inputs, others: Sequence[Inputs], rows: float) -> Work:
        """Put so many rows of a member into its table; of an intermediate result, make them first."""
        keys = self.classes(member) & frozenset[int]().union(*map(self.classes, others))
        return Work(rows * len(keys), rows, 0.0, rows * len(member) if len(member) > 1 else 0.0)

    def restoring(self, tree: Tree) -> Work:
        """What it takes to put all rows that arrive meanwhile, at every operator, into tables once more."""
        work = Work()
        for members in operators(tree):
            for member in members:
                stored = self.storing(member, [m for m in members if m is not member], self.found(member, member))
                work += Work(stored.hashes, stored.moves)  # results are made once, and only read again
        return work

    def rebuilding(self, tree: Tree) -> Work:
        """What it takes to begin with a tree at `start`: read all rows again, and compute and store what it stores.

        Below the root every operator computes its result once, from the member that is best to begin with.
        """
        work = Work()
        for number, members in enumerate(operators(tree)):
            whole = frozenset[int]().union(*members)
            for member in members:
                others = [m for m in members if m is not member]
                work += self.storing(member, others, self.before(member))
            if number:
                beginnings = [
                    self.before(m) + fewest(self.before, self.classes, m, [o for o in members if o is not m])
                    for m in members
                ]
                work += Work(min(beginnings), 0, min(beginnings) * (1 + LOAD) + self.before(whole))
        return work

    def stored(self, tree: Tree) -> float:
        """Intermediate rows that a tree holds at the end, each counted as the rows of inputs that it consists of."""
        members = [m for operator in operators(tree) for m in operator if len(m) > 1]
        return sum(self.after(m) * len(m) for m in members)

    def _classes(self, inputs: Inputs) -> frozenset[int]:
        """The key classes that a result of these inputs has."""
        return frozenset[int]().union(*map(self._spec.classes_of, inputs))


def fewest(
    size: Callable[[Inputs], float],
    classes: Callable[[Inputs], frozenset[int]],
    origin: Inputs,
    others: Sequence[Inputs],
) -> float:
    """The fewest combinations on the way from `origin` over all others: without itself and without the results.

    A set of bound inputs has one size, however it was reached, so it is enough to remember the best way to each set.
    """
    reached = {origin: 0.0}
    for _ in others[1:]:
        wider: dict[Inputs, float] = {}
        for bound, spent in reached.items():
            for other in others:
                if not other <= bound and classes(bound) & classes(other):
                    more = bound | other
                    wider[more] = min(spent, wider.get(more, np.inf))
        totals = sorted(((spent + size(bound), sorted(bound)) for bound, spent in wider.items()))
        reached = {frozenset(bound): spent for spent, bound in totals[:WIDTH]}
    return min(reached.values())


# --- over time ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forecast:
    """The results that are expected of a plan over time."""

    arrived: Array  # instants, in seconds from now
    finished: Array  # when the plan has dealt with what came until then
    results: Array  # that it has given by then

    def at(self, seconds: float) -> float:
        """Results by a time."""
        return float(np.interp(seconds, self.finished, self.results))

    def rate(self, seconds: float, over: float = 1.0) -> float:
        """Results per second in the time before an instant."""
        return (self.at(seconds) - self.at(seconds - over)) / over

    @property
    def behind(self) -> float:
        """Seconds by which the plan is late in the end."""
        return float(self.finished[-1] - self.arrived[-1])


@dataclass(frozen=True)
class Period:
    """The time that a forecast is about."""

    seconds: float
    steps: int = 100
    most: Sequence[float] | None = None  # rows of each input at which it ends; None: none of them ends


def forecast(spec: JoinSpec, estimates: Estimates, tree: Tree, costs: Costs, period: Period) -> Forecast:
    """Results over time, from the rows that are there now.

    One processor deals with all arrivals in the order in which they come. If the work of some time takes longer than
    that time, what comes later waits: `finished` falls behind `arrived`.
    """
    until, most = period.seconds, period.most
    start, rates = np.array(estimates.rows, float), np.array(estimates.rates, float)
    ends = np.full(start.size, np.inf) if most is None else np.array(most, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        ending = (ends - start) / rates
    instants = np.unique([*np.linspace(0, until, period.steps + 1), *ending[(ending > 0) & (ending < until)]])
    rows = [np.minimum(start + rates * at, np.maximum(ends, start)) for at in instants]
    finished, whole = [0.0], leaves(tree)
    results = [estimates.size(whole, rows[0])]
    for at, before, after in zip(instants[1:], rows, rows[1:], strict=False):
        model = Model(spec, estimates, before, after)
        finished.append(max(float(at), finished[-1] + costs.seconds(model.tree(tree))))
        results.append(model.after(whole))
    return Forecast(instants, np.array(finished), np.array(results))
