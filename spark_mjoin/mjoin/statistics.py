"""What is known about the inputs of one join: rows, rates, and how many matches a probe finds.

    measured in this context ──> pairs of inputs ──> key class ──> given by the user, or as if keys were unique
         (most particular)                                                        (most general)

Evidence is what probes have counted, by context: the arriving input, what was bound, what was probed. A fan-out that
was measured in just this context stands as measured. Every other is estimated from the selectivities of pairs
of inputs, which are symmetric: what rows of B saw in A is what rows of A will see in B. Each level leans on
the next more general one as far as its own evidence is thin, and old evidence is, since counts fade (`evidence.faded`).

Pairs are combined as if keys were contained in each other: the inputs of a key class are connected by their largest
selectivities, a spanning tree, and classes and residuals are independent. So `size` is a function of the set of
inputs, and what is estimated does not depend on the path on which a combination is found.

The unit of evidence is a pair of rows that was tested. With several partitions a row is tested against those of its own
partition only, and all others would not have matched: their counts are summed as if all had been tested.

Pure, and plain Python: joins have few inputs. Not covered: correlations between classes, other than those measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spark_mjoin.evidence import Context, EdgeCounts, Edges, edges_of
from spark_mjoin.model import JoinSpec, OperatorSpec
from spark_mjoin.state.manifest import Manifest, OperatorFigures

PRIOR_PROBES = 4.0  # as many probes are believed to have seen what the next more general level says
SHARE_ELSEWHERE = 0.1  # the weight of a test in another context against one in the context that is asked about
NEAREST = 0.7  # of the largest selectivity is about as large
LATER_PROBES = 32.0  # at most as many more, where rows of a pair have met after others only

_LEAST_WEIGHT = 1e-3  # probes; of a way to a set of inputs that nothing was counted on
_NOTHING = EdgeCounts()

Pair = tuple[int, int]  # two inputs, the smaller number first


@dataclass(frozen=True)
class Statistics:
    spec: JoinSpec
    rows: tuple[float, ...]  # of each input
    rates: tuple[float, ...]  # rows per second of each input; 0.0: not known
    edges: Mapping[Context, EdgeCounts] = field(default_factory=dict)
    given: Mapping[Pair, float] = field(default_factory=dict)  # selectivities that somebody expects
    _joints: dict[frozenset[int], float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _expected: dict[int, dict[frozenset[int], float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def of(
        spec: JoinSpec,
        rows: Sequence[float],
        edges: Mapping[Context, EdgeCounts] | None = None,
        rates: Sequence[float] | None = None,
        given: Mapping[Pair, float] | None = None,
    ) -> Statistics:
        """Statistics from counts, from what is given (`given` may name a pair in either order), or from both."""
        pairs = {_pair(a, b): selectivity for (a, b), selectivity in (given or {}).items()}
        return Statistics(spec, tuple(rows), tuple(rates or [0.0] * len(rows)), edges or {}, pairs)

    @staticmethod
    def of_manifests(
        spec: JoinSpec,
        operators: Sequence[OperatorFigures | None],
        rates: Sequence[float] | None = None,
        given: Mapping[Pair, float] | None = None,
        in_memory: bool = False,
    ) -> Statistics:
        """Statistics of one operator from the newest manifests of all partitions, None where there is none yet.

        Rows are all that have come, or those that are in memory, which arriving rows can meet.
        """
        found = [operator for operator in operators if operator is not None]
        parts = [(edges_of(o.edges), o.resident if in_memory else o.rows) for o in found]
        rows = [float(sum(of)) for of in zip(*(rows for _, rows in parts), strict=True)]
        return Statistics.of(spec, rows or [0.0] * len(spec.inputs), merged(parts), rates, given)

    def expecting(self, given: Mapping[Pair, float]) -> Statistics:
        """The same, with selectivities that somebody expects."""
        return Statistics.of(self.spec, self.rows, self.edges, self.rates, given)

    def with_rows(self, rows: Sequence[float]) -> Statistics:
        """The same selectivities as far as they are known, for inputs of another size."""
        return Statistics(self.spec, tuple(rows), self.rates, self.edges, self.given)

    # --- what planners ask -------------------------------------------------------------------------------------

    def selectivity(self, a: int, b: int) -> float:
        """The probability that a row of each of two inputs match on the key classes that they share; 1 if none."""
        return self._selectivities.get(_pair(a, b), 1.0)

    def evidence(self, a: int, b: int) -> float:
        """How many probes of rows of one of two inputs into the other have been counted."""
        return self._tested[_pair(a, b)].probes if _pair(a, b) in self._tested else 0.0

    def is_known(self, origin: int, probes: float) -> bool:
        """Whether there is evidence, or an expectation, of how many matches rows of an input find."""
        others = [i for i in range(len(self.rows)) if i != origin]
        return any(self.evidence(origin, i) >= probes or _pair(origin, i) in self.given for i in others)

    def fan_out(self, origin: int, bound: frozenset[int], target: int) -> float:
        """The expected combinations with rows of `target` for each one over `bound`, to which `origin` belongs."""
        rows = self.rows[target]
        if not rows:
            return 0.0
        counts = self.edges.get((origin, bound, target), _NOTHING)
        before = self._joint(bound)
        estimate = rows * self._joint(bound | {target}) / before if before else 0.0
        elsewhere = sum(self._tested[_pair(i, target)].candidates for i in bound if self._shared(i, target))
        if len(bound) == 1:
            elsewhere -= counts.candidates
        strength = PRIOR_PROBES * rows + SHARE_ELSEWHERE * max(0.0, elsewhere)
        return (counts.kept * rows + strength * estimate) / (counts.candidates + strength)

    def passing(self, bound: frozenset[int], target: int) -> float:
        """The share of combinations that pass the residuals which are decided when `target` is bound too."""
        return math.prod((self._passing[r] for r in _decided(self.spec, bound, target)), start=1.0)

    def size(self, inputs: frozenset[int], rows: Sequence[float] | None = None) -> float:
        """The expected number of combinations of a connected set of inputs that have so many rows."""
        rows = self.rows if rows is None else rows
        return math.prod(rows[i] for i in sorted(inputs)) * self._joint(inputs)

    def expected(self, origin: int) -> Mapping[frozenset[int], float]:
        """The combinations that a row of `origin` is in, for all sets of inputs that probes from there can have bound.

        A function of the set: where the ways to it that were measured disagree, their mean, weighted by evidence.
        """
        if origin in self._expected:
            return self._expected[origin]
        layer = {frozenset((origin,)): 1.0}
        out = dict(layer)
        while layer:
            sums: dict[frozenset[int], tuple[float, float]] = {}
            for bound, combinations in layer.items():
                classes = frozenset[int]().union(*(self._classes[i] for i in bound))
                for target in range(len(self.rows)):
                    if target not in bound and classes & self._classes[target]:
                        weight = self.edges.get((origin, bound, target), _NOTHING).probes + _LEAST_WEIGHT
                        weights, values = sums.get(bound | {target}, (0.0, 0.0))
                        value = combinations * self.fan_out(origin, bound, target)
                        sums[bound | {target}] = weights + weight, values + weight * value
            layer = {wider: values / weights for wider, (weights, values) in sums.items()}
            out |= layer
        self._expected[origin] = out
        return out

    # --- estimates ---------------------------------------------------------------------------------------------

    def _joint(self, inputs: frozenset[int]) -> float:
        """The probability that one row of each of some inputs match."""
        if inputs not in self._joints:
            classes = {c for i in inputs for c in self._classes[i]}
            members = [[i for i in sorted(inputs) if c in self._classes[i]] for c in sorted(classes)]
            passing = [self._passing[n] for n, r in enumerate(self.spec.residuals) if r.inputs <= inputs]
            self._joints[inputs] = math.prod(map(self._spanned, members)) * math.prod(passing)
        return self._joints[inputs]

    def _spanned(self, members: Sequence[int]) -> float:
        """The product of the largest selectivities that connect the members of a class.

        A pair that shares several classes has one selectivity, of which each class has its part.
        """
        product, rest = 1.0, list(members[1:])
        nearest = {i: self._of_one_class(members[0], i) for i in rest}
        while rest:
            chosen = max(rest, key=lambda i: (nearest[i], -i))
            product *= nearest[chosen]
            rest.remove(chosen)
            for i in rest:
                nearest[i] = max(nearest[i], self._of_one_class(chosen, i))
        return product

    def _of_one_class(self, a: int, b: int) -> float:
        return float(self.selectivity(a, b) ** (1 / len(self._shared(a, b))))

    def _shared(self, a: int, b: int) -> frozenset[int]:
        return self._classes[a] & self._classes[b]

    @cached_property
    def _classes(self) -> list[frozenset[int]]:
        return [self.spec.classes_of(i) for i in range(len(self.spec.inputs))]

    # --- evidence ----------------------------------------------------------------------------------------------

    @cached_property
    def _pairs(self) -> list[Pair]:
        """All pairs of inputs that share a key class."""
        n = len(self.spec.inputs)
        return [(a, b) for a in range(n) for b in range(a + 1, n) if self._shared(a, b)]

    @cached_property
    def _tested(self) -> dict[Pair, EdgeCounts]:
        """Tests of each pair that nothing preceded, from both sides."""
        tested = {pair: EdgeCounts() for pair in self._pairs}
        for (origin, bound, target), counts in self.edges.items():
            if len(bound) == 1:
                tested[_pair(origin, target)].add(counts)
        return tested

    @cached_property
    def _tested_later(self) -> dict[Pair, EdgeCounts]:
        """Tests of each pair with rows that had passed others: right only if those have no influence.

        Bound inputs that have one class in common have met before. What they find tells about the nearest of them, as
        in `_spanned`, and of several about that which was tested least. A test by several classes at once tells about
        one of them as far as the others' selectivities are known from elsewhere.
        """
        tested = {pair: EdgeCounts() for pair in self._pairs}
        known = self._leaning_on_others(tested)
        closing = []
        for (_, bound, target), counts in self.edges.items():
            suppliers = [i for i in sorted(bound) if self._shared(i, target)]
            if len({self._shared(i, target) for i in suppliers}) > 1:
                closing.append((suppliers, target, counts))
            elif len(bound) > 1:
                most = max(known[_pair(i, target)] for i in suppliers)
                nearest = [_pair(i, target) for i in suppliers if known[_pair(i, target)] >= NEAREST * most]
                parts = [
                    1 / (self._tested[pair].candidates + PRIOR_PROBES * max(self.rows[target], 1.0)) for pair in nearest
                ]
                for pair, part in zip(nearest, parts, strict=True):
                    tested[pair].add(counts, part / sum(parts))
        known = self._leaning_on_others(tested) if closing else {}
        for suppliers, target, counts in closing:
            for i in suppliers:
                mine = self._shared(i, target)
                others = {self._shared(j, target): known[_pair(j, target)] for j in suppliers}
                passed = math.prod(s for classes, s in others.items() if not classes & mine)
                tests = EdgeCounts(counts.probes, counts.matches, counts.candidates * passed, counts.kept)
                tested[_pair(i, target)].add(tests, 1 / len(suppliers))
        return tested

    @cached_property
    def _selectivities(self) -> dict[Pair, float]:
        return self._leaning_on_others(self._tested_later)

    def _leaning_on_others(self, later: Mapping[Pair, EdgeCounts]) -> dict[Pair, float]:
        """The selectivity of each pair, from the most general level to the most particular."""
        of_classes: dict[frozenset[int], EdgeCounts] = {}
        for a, b in self._pairs:
            of_classes.setdefault(self._shared(a, b), EdgeCounts()).add(self._tested[a, b])
        out = {}
        for a, b in self._pairs:
            largest = max(self.rows[a], self.rows[b], 1.0)
            selectivity, strength = self.given.get((a, b), 1 / largest), PRIOR_PROBES * largest
            levels = [later[a, b], self._tested[a, b]]
            if (a, b) not in self.given:
                levels = [of_classes[self._shared(a, b)], self._through_a_third(a, b), *levels]
            for counts in levels:
                selectivity = (counts.matches + strength * selectivity) / (counts.candidates + strength)
                if counts is later[a, b]:
                    strength += min(SHARE_ELSEWHERE * counts.candidates, LATER_PROBES * largest)
            out[a, b] = min(1.0, selectivity)
        return out

    def _through_a_third(self, a: int, b: int) -> EdgeCounts:
        """What tests of two inputs with a third of the same class tell about the two.

        Keys that are contained in each other match with one over the larger number of values: of the three pairs among
        three inputs, the two most selective ones are equally so. The largest that a third input allows is taken.
        """
        shared, most = self._shared(a, b), EdgeCounts()
        for third in range(len(self.rows)):
            if third not in (a, b) and self._shared(a, third) == shared == self._shared(third, b):
                ways = [self._tested[_pair(a, third)], self._tested[_pair(third, b)]]
                if all(way.candidates for way in ways):
                    least = min(ways, key=lambda way: way.matches / way.candidates)
                    if not most.candidates or least.matches / least.candidates > most.matches / most.candidates:
                        most = least
        return most

    @cached_property
    def _passing(self) -> list[float]:
        """For each residual the share of combinations that it lets pass; 1 where nothing is known."""
        passed = [PRIOR_PROBES] * len(self.spec.residuals)
        seen = list(passed)
        for (_, bound, target), counts in self.edges.items():
            decided = _decided(self.spec, bound, target)
            for r in decided if counts.matches else ():  # several at once have equal parts
                passed[r] += counts.matches * (counts.kept / counts.matches) ** (1 / len(decided))
                seen[r] += counts.matches
        return [p / s for p, s in zip(passed, seen, strict=True)]


@dataclass(frozen=True)
class Counted:
    """An operator of a plan, and what the partitions that have it have committed."""

    place: OperatorSpec
    figures: Sequence[OperatorFigures]

    @cached_property
    def statistics(self) -> Statistics:
        """Of the rows in memory, which arriving rows can meet."""
        return Statistics.of_manifests(self.place.spec, self.figures, in_memory=True)


def of_plan(
    spec: JoinSpec,
    manifests: Sequence[tuple[Manifest, Sequence[OperatorSpec]] | None],
    rates: Sequence[float] | None = None,
    given: Mapping[Pair, float] | None = None,
) -> Statistics:
    """Statistics over the inputs of a whole join from the newest manifests, each with the operators of its plan."""
    found = [entry for entry in manifests if entry is not None]
    rows = [float(sum(of)) for of in zip(*(manifest.rows for manifest, _ in found), strict=True)]
    parts = []
    for manifest, places in found:
        edges = edges_of(manifest.learned)
        for place, figures in zip(places, manifest.operators, strict=True):
            add_to(edges, over_inputs(spec, place, edges_of(figures.edges)))
        parts.append((edges, manifest.rows))
    return Statistics.of(spec, rows or [0.0] * len(spec.inputs), merged(parts), rates, given)


def over_inputs(spec: JoinSpec, place: OperatorSpec, edges: Edges) -> Edges:
    """What an operator of a plan has counted, as if rows of the join's inputs had been probed one by one.

    A result stands for the input in it that has the keys of the probe: as far as matches are independent, one of its
    rows matches as often as one of the input's. Where the keys are spread over several inputs nothing is concluded.
    """
    out: Edges = {}
    for (origin, bound, target), counts in edges.items():
        classes = frozenset[int]().union(*(place.spec.classes_of(m) for m in bound)) & place.spec.classes_of(target)
        probed = [i for i in place.leaves[target] if classes <= spec.classes_of(i)]
        if probed:
            below = frozenset(i for m in bound for i in place.leaves[m])
            add_to(out, {(place.leaves[origin][0], below, probed[0]): counts})
    return out


def add_to(edges: Edges, more: Mapping[Context, EdgeCounts]) -> None:
    for context, counts in more.items():
        edges.setdefault(context, EdgeCounts()).add(counts)


def merged(parts: Sequence[tuple[Edges, Sequence[float]]]) -> Edges:
    """The counts of the partitions of a join, each with its rows, as if every row had met those of all."""
    whole = [sum(rows) for rows in zip(*(rows for _, rows in parts), strict=True)]
    out: Edges = {}
    for edges, rows in parts:
        for context, c in edges.items():
            target = context[2]
            candidates = c.candidates * whole[target] / rows[target] if rows[target] else c.candidates
            out.setdefault(context, EdgeCounts()).add(EdgeCounts(c.probes, c.matches, candidates, c.kept, c.chunks))
    return out


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def _decided(spec: JoinSpec, bound: frozenset[int], target: int) -> list[int]:
    """The residuals that are applied at a step."""
    wider = bound | {target}
    return [n for n, r in enumerate(spec.residuals) if r.inputs <= wider and not r.inputs <= bound]
