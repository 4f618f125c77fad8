"""Which tree of MJoins to run: one for all inputs, or several with stored intermediate results (Viglas 2003, 3.6, A.2).

Storing the result of some inputs costs a hash and a move for each of its rows, and saves finding it again for every
arrival elsewhere. `choose` weighs that over a horizon with the cost model (`costs.py`).

Every set of inputs that an operator joins must be connected by shared key classes. The work of an operator depends on
the inputs below each of its members and not on how these are joined, so the best trees of a set follow from the best
trees of its parts: `_Search` looks at every division of a set once. "Best" means two things, seconds and stored rows,
so for every set it keeps the trees to which no other is superior in both. That is exact for up to EXACT inputs. With
more inputs a climb changes one thing at a time for as long as that helps: it groups two members, puts a member into a
group, or dissolves a group. It may end in a local optimum.

A tree is only preferred to the single MJoin where it saves more than NEAR of the work: estimates are not that good, and
the single MJoin has no intermediate rows to store, to flush or to restore. For the same reason a running plan is
changed only if that saves more than NEAR of its future cost, and more than the change itself costs. A tree with more
than MOST_STORED times the inputs' rows as expected intermediate rows is never chosen.

With a memory budget intermediate results cost disk work. They take room, so more rows of all kinds are evicted, and
rows on disk have to be put into tables again, PASSES times each. The work of every tree includes that, in proportion to
its rows that do not fit (`Room`). A change of plan first emits everything that is pending. So where rows are on disk,
it also costs a pass over all that the current plan stores.

The horizon is how long a choice is expected to hold. While rows arrive, selectivities may stay as they are (keys of a
fixed domain: twice the rows have twice the partners) or shrink (keys that are unique in each input: twice the rows
still have one partner). It is not known which. So once there are rows, the model assumes that the work of the near
future, in which they grow by GROWTH, continues until the horizon. That is right for the second kind and careful about
the first, whose larger gains show as they come. Before the first row there is only the expectation.

Pure: the same statistics give the same choice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from spark_mjoin.driver.costs import Costs, Estimates, Inputs, Model, Work
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.query.tree import leaves, normal, render

EXACT = 7  # inputs up to which every tree is considered
NEAR = 0.1  # share of the work that a change has to save
MOST_STORED = 3.0  # intermediate rows over rows of inputs; one of n inputs counts n times, as it has their columns
GROWTH = 0.05  # of the rows, until when the model is trusted
PASSES = 2.0  # over rows on disk: at the end of the input, and about as much before
MOST_SHOWN = 8  # candidates in a choice


@dataclass(frozen=True)
class Room:
    """The memory that there is, in rows of inputs; infinite without a budget."""

    rows: float = math.inf
    overflowed: bool = False  # whether rows are on disk now

    def share_on_disk(self, stored_rows: float) -> float:
        """Of so many rows, how many do not fit."""
        return max(0.0, 1 - self.rows / stored_rows) if stored_rows else 0.0


@dataclass(frozen=True)
class Candidate:
    """A tree and what it is expected to cost over the horizon."""

    tree: Tree
    seconds: float  # of work
    work: Work
    stored_rows: float  # intermediate rows of the near future, each counted as the rows of inputs that it consists of
    change_seconds: float  # to begin with it now; nothing for the current tree, or where nothing runs yet


@dataclass(frozen=True)
class Choice:
    tree: Tree
    reason: str
    candidates: tuple[Candidate, ...]  # the cheapest first; the single MJoin and the current tree are among them


@dataclass(frozen=True)
class Circumstances:
    """What a choice takes into account besides the inputs."""

    horizon: float  # seconds that it is for
    current: Tree | None = None  # what runs; None before the first batch
    wanted: Tree | None = None  # a tree that is to be among the candidates
    most_stored: float = MOST_STORED  # 0.0 where nothing but the inputs may be stored
    room: Room = Room()  # what a memory budget has for rows


def choose(spec: JoinSpec, estimates: Estimates, costs: Costs, given: Circumstances) -> Choice:
    """The tree to run next."""
    count = len(spec.inputs)
    single: Tree = tuple(range(count))
    running = None if given.current is None else normal(given.current)
    stay = single if running is None else running
    if count < 3:
        return Choice(stay, "a join of two inputs has one plan", ())
    if spec.forgetful:
        what = "windows" if spec.windowed else "punctuations or constraints"
        return Choice(single, f"a join with {what} stores no intermediate results", ())
    rows = estimates.rows
    if not any(rate > 0 for rate in estimates.rates):
        return Choice(stay, "no rates of arrival are known", ())
    end, times = near_future(estimates, given.horizon)
    model = Model(spec, estimates if any(rows) else estimates.with_rows(end), rows, end)
    search = _Search(model, costs, given.most_stored * sum(end))
    found = search.exact(count, math.isfinite(given.room.rows)) if count <= EXACT else search.climb(single)
    named = (single, stay) if given.wanted is None else (single, stay, given.wanted)
    trees = list(dict.fromkeys([*found, *named]))
    fresh = running is None or not any(rows)
    emptying = costs.seconds(model.rebuilding(stay)) if given.room.overflowed else 0.0
    weighing = _Weighing(model, costs, times, given.room, sum(end), emptying)
    every = sorted((weighing.candidate(t, free=fresh or t == running) for t in trees), key=_rank)
    allowed = [c for c in every if c.stored_rows <= search.most_stored]
    best, alone = allowed[0], next(c for c in every if c.tree == single)
    if best.seconds > (1 - NEAR) * alone.seconds:
        best = alone
    at_present = next(c for c in every if c.tree == stay)
    tree, reason = _verdict(spec, best, alone, at_present, fresh, search.most_stored)
    shown = [c for n, c in enumerate(every) if n < MOST_SHOWN or c.tree in named]
    return Choice(tree, reason, tuple(shown))


def near_future(estimates: Estimates, horizon: float) -> tuple[list[float], float]:
    """The rows of each input up to which the model is trusted, and how often that time fits into the horizon."""
    seconds, rows = horizon, sum(estimates.rows)
    if rows:
        seconds = min(horizon, GROWTH * rows / sum(estimates.rates))
    return [r + rate * seconds for r, rate in zip(estimates.rows, estimates.rates, strict=True)], horizon / seconds


def _named(spec: JoinSpec, tree: Tree) -> str:
    return render(tree, [i.alias for i in spec.inputs])


def _rank(candidate: Candidate) -> tuple[float, float, str]:
    return candidate.seconds, candidate.stored_rows, str(candidate.tree)


@dataclass(frozen=True)
class _Weighing:
    """What the cost of every candidate follows from."""

    model: Model
    costs: Costs
    times: float  # that the time of the model fits into the horizon
    room: Room
    input_rows: float  # at the end of that time
    emptying_seconds: float  # to emit what is pending on disk under the current plan, before another can begin

    def candidate(self, tree: Tree, free: bool) -> Candidate:
        """What a tree costs; free: to begin with it takes no time."""
        stored = self.model.stored(tree)
        on_disk = self.model.restoring(tree).times(PASSES * self.room.share_on_disk(self.input_rows + stored))
        work = (self.model.tree(tree) + on_disk).times(self.times)
        change = 0.0 if free else self.emptying_seconds + self.costs.seconds(self.model.rebuilding(tree))
        return Candidate(tree, self.costs.seconds(work), work, stored, change)


def _verdict(
    spec: JoinSpec, best: Candidate, alone: Candidate, current: Candidate, fresh: bool, most_stored: float
) -> tuple[Tree, str]:
    name = "one MJoin" if best is alone else _named(spec, best.tree)
    if not most_stored and (fresh or current is alone):
        return alone.tree, "one MJoin: there is no room for intermediate results"
    if fresh:
        if best is alone:
            return best.tree, "one MJoin: no tree saves enough of its work"
        return best.tree, f"{name} takes {best.seconds:.3g} s of work where one MJoin takes {alone.seconds:.3g} s"
    if current.tree != alone.tree and current.stored_rows > most_stored:
        return best.tree, f"the intermediate results of {_named(spec, current.tree)} have become too large"
    running, saved = _named(spec, current.tree), current.seconds - best.seconds
    if saved <= NEAR * current.seconds:
        return current.tree, f"{running} is what runs, and nothing saves enough against it"
    if saved <= best.change_seconds:
        return current.tree, (
            f"{name} would save {saved:.3g} s of {current.seconds:.3g} s, but the change would take"
            f" {best.change_seconds:.3g} s"
        )
    return best.tree, (
        f"{name} takes {best.seconds:.3g} s of work where {running} takes {current.seconds:.3g} s, and the change"
        f" {best.change_seconds:.3g} s"
    )


@dataclass(frozen=True)
class _Entry:
    """A tree of some inputs below the root of another."""

    seconds: float
    stored: float
    tree: Tree


class _Search:
    def __init__(self, model: Model, costs: Costs, most_stored: float) -> None:
        self._model, self._costs, self.most_stored = model, costs, most_stored
        self._seconds = lru_cache(maxsize=None)(lambda members: costs.seconds(model.operator(members)))
        self._entries = lru_cache(maxsize=None)(self._entries_of)

    # --- every tree ---

    def exact(self, count: int, all_superior: bool) -> list[Tree]:
        """For every way to part all inputs at the root, the cheapest tree that does not store too much.

        all_superior: those too that take longer and store less, which matters where memory is short.
        """
        found = [
            (entry.seconds, entry.stored, str(entry.tree), entry.tree)
            for parts in self._parts(frozenset(range(count)))
            for entry in self._joined(parts)[: None if all_superior else 1]
        ]
        return [tree for *_, tree in sorted(found)]

    def _entries_of(self, inputs: Inputs) -> list[_Entry]:
        """The trees over some inputs to which no other is superior, as members of an operator; the cheapest first."""
        if len(inputs) == 1:
            return [_Entry(0.0, 0.0, min(inputs))]
        own = self._model.after(inputs) * len(inputs)
        every = [
            _Entry(entry.seconds, entry.stored + own, entry.tree)
            for parts in self._parts(inputs)
            for entry in self._joined(parts)
        ]
        return self._superior(every)

    def _joined(self, parts: tuple[Inputs, ...]) -> list[_Entry]:
        """The trees whose root has these parts as its members."""
        entries = [_Entry(self._seconds(parts), 0.0, ())]
        for part in parts:
            entries = self._superior(
                [
                    _Entry(a.seconds + b.seconds, a.stored + b.stored, (*_members(a.tree), b.tree))
                    for a in entries
                    for b in self._entries(part)
                ]
            )
        return entries

    def _superior(self, entries: Sequence[_Entry]) -> list[_Entry]:
        kept: list[_Entry] = []
        for entry in sorted(entries, key=lambda e: (e.seconds, e.stored, str(e.tree))):
            if entry.stored <= self.most_stored and (not kept or entry.stored < kept[-1].stored):
                kept.append(entry)
        return kept

    def _parts(self, inputs: Inputs) -> Iterator[tuple[Inputs, ...]]:
        """Every way to part a connected set into two or more connected ones."""
        first, *rest = sorted(inputs)
        for size in range(len(rest)):
            for more in combinations(rest, size):
                part = frozenset((first, *more))
                if self.connected(part):
                    for others in self._covers(inputs - part):
                        yield part, *others

    def _covers(self, inputs: Inputs) -> Iterator[tuple[Inputs, ...]]:
        """Every way to part a set into connected ones."""
        if not inputs:
            yield ()
            return
        first, *rest = sorted(inputs)
        for size in range(len(rest) + 1):
            for more in combinations(rest, size):
                part = frozenset((first, *more))
                if self.connected(part):
                    for others in self._covers(inputs - part):
                        yield part, *others

    def connected(self, inputs: Inputs) -> bool:
        return _connected(self._model, [frozenset((i,)) for i in inputs])

    # --- one change at a time ---

    def climb(self, tree: Tree) -> list[Tree]:
        """The trees on the way from one to a tree that no single change makes cheaper, the last first."""
        way = [tree]
        cost = self._cost(tree)
        while True:
            options = [(self._cost(t), str(t), t) for t in self._neighbours(way[0])]
            within = [o for o in options if self._model.stored(o[2]) <= self.most_stored]
            if not within or min(within)[0] >= cost:
                return way
            cost, _, better = min(within)
            way.insert(0, better)

    def _cost(self, tree: Tree) -> float:
        if isinstance(tree, int):
            return 0.0
        return float(self._seconds(tuple(map(leaves, tree)))) + sum(map(self._cost, tree))

    def _neighbours(self, tree: Tree) -> Iterator[Tree]:
        if isinstance(tree, int):
            return
        for n, member in enumerate(tree):  # a change below
            rest = (*tree[:n], *tree[n + 1 :])
            for changed in self._neighbours(member):
                yield normal((*rest, changed))
            if not isinstance(member, int):
                yield normal((*rest, *member))
        if len(tree) < 3:
            return
        for a, b in combinations(tree, 2):
            if not _connected(self._model, [leaves(a), leaves(b)]):
                continue
            rest = tuple(t for t in tree if t not in (a, b))
            yield normal((*rest, (a, b)))
            for group, member in ((a, b), (b, a)):
                if not isinstance(group, int):
                    yield normal((*rest, (*group, member)))


def _members(tree: Tree) -> tuple[Tree, ...]:
    assert not isinstance(tree, int)
    return tree


def _connected(model: Model, parts: Sequence[Inputs]) -> bool:
    """Whether shared key classes connect some parts, each of which is connected."""
    bound, rest = parts[0], list(parts[1:])
    while rest:
        near = [p for p in rest if model.classes(p) & model.classes(bound)]
        if not near:
            return False
        bound = bound.union(*near)
        rest = [p for p in rest if p not in near]
    return True
