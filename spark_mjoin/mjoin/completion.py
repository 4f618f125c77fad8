"""Which rows can be in no result that is still to come, by what the inputs have promised (Ding 2003, section 4.3).

A result that is still to come has a row that is still to come. So a row r of an input is useless if every combination
with it is of rows that are here already, or if there is none. Seen from r, each neighbour j offers rows with r's key:

    FUTURE     one may still come; or one is here that can itself be completed by a row that comes
    PRESENT    only rows that are here
    NONE       j has promised that none comes, and none is here

    r stays  iff  no neighbour offers NONE, and at least one FUTURE

In a star all inputs are neighbours: a row goes once all others have promised its key, or one has and has no row with
it. In a chain or tree the same is asked of the rows of j and the neighbours behind j, from the leaves up, where a row
that comes may have any key in the classes behind it. An input that has ended without a row left makes all others
useless, wherever it is.

`unique` is a promise by presence: an input that has a row with the key delivers no other.

Why it is right: every relaxation keeps more rows. Rows on disk that are not looked at may be there with any key; a
cycle in the graph is cut open, which lets more rows match; residual predicates and windows are not asked. A useless
row stays useless: promises hold, and an input that has promised a key gets no row with it. It follows from the keys of
a row alone, so rows of one input with equal keys are useless together.

Not covered: whether the results with r that are possible already were emitted. Where rows were evicted some may be
pending, and r waits for the pass that emits them (`engine.retention.purge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from spark_mjoin import kernel
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import main_class, main_inputs
from spark_mjoin.state.columns import FixedColumn
from spark_mjoin.state.keysets import Keys, among, chosen, keys_of, ordered, together
from spark_mjoin.state.promises import Classes, Promises
from spark_mjoin.state.table import Table

Neighbours = Mapping[int, Sequence[tuple[int, Classes]]]  # of each input, those behind it, and the classes between


class _TableKeys(Mapping[int, Keys]):
    """The keys of a table's rows from a number on, each class when it is first asked for."""

    def __init__(self, spec: JoinSpec, table: Table, start: int) -> None:
        self._spec, self._table, self._start = spec, table, start
        self._found: dict[int, Keys] = {}

    def __getitem__(self, key_class: int) -> Keys:
        if key_class not in self._found:
            domain, column, table = self._spec.classes[key_class], self._table.column(key_class), self._table
            if isinstance(column, FixedColumn):
                self._found[key_class] = ordered(column.values.array[self._start : table.rows], domain)
            else:
                self._found[key_class] = keys_of(column.arrow(self._start, table.rows), domain)
        return self._found[key_class]

    def __iter__(self) -> Iterator[int]:
        return (key_class for key_class, _ in self._table.spec.keys)

    def __len__(self) -> int:
        return len(self._table.spec.keys)


@dataclass
class View:
    """The keys of some rows of an input, by class, and where others are that are not among them."""

    keys: Mapping[int, Keys]
    rows: int
    unseen: Array  # per bucket of the input's own, whether there are rows on disk that are not in here
    find_buckets: Callable[[], Array]  # of every row: they are seldom needed, and have to be computed
    table: Table | None = None  # that has these rows, and no others
    _joint: dict[Classes, Keys] = field(default_factory=dict)

    @staticmethod
    def of_table(spec: JoinSpec, table: Table, unseen: Array, start: int = 0) -> View:
        """The rows of a table from number `start` on."""
        rows, keys = table.rows - start, _TableKeys(spec, table, start)
        return View(keys, rows, unseen, lambda: table.buckets_between(start, start + rows), None if start else table)

    @cached_property
    def buckets(self) -> Array:
        """Of every row."""
        return self.find_buckets()

    def joint(self, classes: Classes) -> Keys:
        if classes not in self._joint:
            self._joint[classes] = together([self.keys[c] for c in classes])
        return self._joint[classes]

    def has(self, spec: JoinSpec, classes: Classes, keys: Keys) -> Array:
        """For some keys whether a row has them."""
        if self.table is not None and len(classes) == 1 and isinstance(keys, np.ndarray):
            index, out = self.table.index(classes), np.empty(keys.size, np.bool_)
            words = ordered(keys, spec.classes[classes[0]])
            values = index.key.values(self.table.rows)
            kernel.present(words, index.slots(words), index.head, index.link.array, values, out)
            return out
        return among(keys, self.joint(classes))


def links(spec: JoinSpec) -> tuple[tuple[Classes, tuple[int, ...]], ...]:
    """Key classes that connect the same inputs, taken together, and these inputs."""
    by_members: dict[tuple[int, ...], list[int]] = {}
    for c in range(len(spec.classes)):
        by_members.setdefault(tuple(i for i in range(len(spec.inputs)) if c in spec.classes_of(i)), []).append(c)
    return tuple((tuple(classes), members) for members, classes in by_members.items() if len(members) > 1)


def neighbours(spec: JoinSpec, root: int) -> Neighbours:
    """The join graph as a tree from an input on: for each input those behind it, and the classes between them."""
    tree: dict[int, tuple[tuple[int, Classes], ...]] = {}
    reached, queue = {root}, [root]
    while queue:
        here, *queue = queue
        behind = []
        for classes, members in links(spec):
            if here in members:
                new = [m for m in members if m not in reached]
                reached.update(new)
                queue += new
                behind += [(m, classes) for m in new]
        tree[here] = tuple(behind)
    return tree


@dataclass
class Completion:
    """What can still be completed, given the rows of all inputs and their promises."""

    spec: JoinSpec
    promises: Promises
    views: Sequence[View]

    def useless(self, input: int, view: View | None = None) -> Array:
        """Of all rows of an input, or of some, which can be in no result that is still to come."""
        view = self.views[input] if view is None else view
        if any(self._is_over(other) for other in range(len(self.views)) if other != input):
            return np.ones(view.rows, np.bool_)
        possible, future = self._below(input, view, neighbours(self.spec, input))
        out: Array = ~(possible & future)
        return out

    def _is_over(self, input: int) -> bool:
        """Whether an input has ended and has no row: no result comes then, however far it is from the others."""
        view = self.views[input]
        return self.promises.of[input].ended and not view.rows and not view.unseen.any()

    def excluded(self, input: int, classes: Classes, view: View) -> Array:
        """Which keys that rows have in some classes an input does not deliver any more."""
        out = self.promises.excluded(input, {c: view.keys[c] for c in classes}, view.rows)
        unique = self.spec.inputs[input].unique
        if unique and set(unique) <= set(classes) and not out.all():
            out |= self.views[input].has(self.spec, unique, view.joint(unique))
        return out

    def _below(self, input: int, view: View, tree: Neighbours) -> tuple[Array, Array]:
        """For some rows of an input whether what lies behind it can be there, and whether some of it may come."""
        possible, future = np.ones(view.rows, np.bool_), np.zeros(view.rows, np.bool_)
        for neighbour, classes in tree[input]:
            offered, coming = self._offer(input, view, neighbour, classes, tree)
            possible &= offered
            future |= coming
        return possible, future

    def _offer(self, input: int, view: View, neighbour: int, classes: Classes, tree: Neighbours) -> tuple[Array, Array]:
        """For some rows whether a neighbour has, or may get, rows for them, and whether it is such that come."""
        future = ~self.excluded(neighbour, classes, view)
        if future.all():
            return future, future
        theirs, keys = self.views[neighbour], view.joint(classes)
        unseen = self._unseen(input, view, neighbour, classes)
        if not tree[neighbour]:
            return future | unseen | theirs.has(self.spec, classes, keys), future
        possible, coming = self._below(neighbour, theirs, tree)
        own = theirs.joint(classes)
        future = future | unseen | among(keys, chosen(own, possible & coming))
        return future | among(keys, chosen(own, possible)), future

    def _unseen(self, input: int, view: View, neighbour: int, classes: Classes) -> Array:
        """For some rows whether a neighbour may have rows for them that are on disk and not looked at."""
        unseen, main = self.views[neighbour].unseen, main_inputs(self.spec)
        if not unseen.any():
            return np.zeros(view.rows, np.bool_)
        if main_class(self.spec) in classes and input in main and neighbour in main:
            out: Array = unseen[view.buckets]
            return out
        return np.ones(view.rows, np.bool_)
