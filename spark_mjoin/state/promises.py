"""What the inputs of a join have promised so far: which keys do not come any more (Ding 2003, section 5.1).

    sets      per input, and per set of key classes that punctuations speak about, the keys that were punctuated, that
              are closed clusters, or that lie behind an ordered input: the paper's punctuated range
    ended     inputs of which nothing comes any more
    waiting   punctuations that have arrived since rows were last looked through
    given     what was told downstream

A promise holds for what its input delivers after it. It is taken in once all rows that came with it are in their table,
so nothing that came before it can be missed. A constraint `unique` is not in here as long as its rows are: a key that
is in the table does not come again. When such a row leaves, its key goes into a set.

Kept as small as it can be: what all inputs have promised is forgotten once no row with it is left (`forget`), since no
row will come that would ask; and so is that it was told. Which rows can go is decided by `join.completion`, when by
`phases.purge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.keysets import ByteSet, Keys, KeySet, WordSet, chosen, empty_set, size, together

Classes = tuple[int, ...]
WORD_BYTES = 16  # of an entry of a set in memory


@dataclass
class Promise:
    """Of one input."""

    ended: bool = False
    sets: dict[Classes, KeySet] = field(default_factory=dict)
    cluster: int | bytes | None = None  # the key whose rows are coming, where they come clustered
    cluster_mine: bool = False  # whether it is this partition's
    edge: int | bytes | None = None  # the furthest key, where they come in order


@dataclass
class Promises:
    spec: JoinSpec
    of: list[Promise] = field(default_factory=list)
    waiting: int = 0
    news: bool = False  # some key is promised that was not when rows were last looked through
    arrived: int = 0  # rows, since then
    held: int = 0  # rows in segments that were useless then, about, and stay because disk work is owed
    changes: int = 0  # how often something was promised
    looked: Array = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))  # per bucket, at the last look on disk
    given: dict[Classes, KeySet] = field(default_factory=dict)
    end_given: bool = False

    def __post_init__(self) -> None:
        self.of = self.of or [Promise() for _ in self.spec.inputs]

    # --- what arrives ----------------------------------------------------------------------------------------

    def add(self, input: int, classes: Classes, keys: Keys) -> None:
        """An input delivers no more rows that have one of these keys in some classes."""
        if size(keys):
            self._set(input, classes).add(keys)
            self._changed()

    def add_known(self, input: int, classes: Classes, keys: Keys) -> None:
        """The same for what was known already, from rows that leave now."""
        if size(keys):
            self._set(input, classes).add(keys)

    def _changed(self) -> None:
        self.news = True
        self.changes += 1

    def add_range(self, input: int, key_class: int, low: Any, high: Any) -> None:
        """The same for all keys of a range, whose ends belong to it; None is open."""
        of = self._set(input, (key_class,))
        of.add_range(low, high)
        self._changed()
        if of.is_all:  # a row without a key joins nothing
            self.end(input)

    def end(self, input: int) -> None:
        self.of[input].ended = True
        self.of[input].sets = {}
        self._changed()

    def _set(self, input: int, classes: Classes) -> KeySet:
        sets = self.of[input].sets
        if classes not in sets:
            sets[classes] = self.empty(classes)
        return sets[classes]

    def empty(self, classes: Classes) -> KeySet:
        return empty_set([self.spec.classes[c] for c in classes])

    # --- what follows ----------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return any(p.ended or p.sets for p in self.of)

    def excluded(self, input: int, keys: Mapping[int, Keys], rows: int) -> Array:
        """Which of some keys, given by class, an input has promised not to deliver any more."""
        promise = self.of[input]
        if promise.ended:
            return np.ones(rows, np.bool_)
        out = np.zeros(rows, np.bool_)
        for classes, of in promise.sets.items():
            if all(c in keys for c in classes):
                out |= of.contains(together([keys[c] for c in classes]))
        return out

    def pending(self, input: int) -> dict[Classes, KeySet]:
        """What an input has promised and the output has not been told, by the key classes that it is about."""
        out = {}
        for classes, of in self.of[input].sets.items():
            told = self.given.get(classes)
            left = of if told is None else minus(of, told)
            if left:
                out[classes] = left
        return out

    def forget(self, input: int, classes: Classes, keys: KeySet) -> None:
        """No row that has one of these keys is left or will come, on any input."""
        sets = self.of[input].sets
        if classes in sets:
            sets[classes] = minus(sets[classes], keys)
            if not sets[classes]:
                del sets[classes]

    def forget_given(self, classes: Classes, keys: KeySet) -> None:
        """All inputs have forgotten these keys: nothing asks any more whether they were told.

        Ranges of strings are not cut, so an input may still have some of the keys; these stay, and so do ranges.
        """
        if classes not in self.given:
            return
        if isinstance(keys, ByteSet):
            left = keys.values
            for promise in self.of:
                if classes in promise.sets:
                    left = chosen(left, ~promise.sets[classes].contains(left))
            keys = ByteSet(left)
        self.given[classes] = minus(self.given[classes], keys)
        if not self.given[classes]:
            del self.given[classes]

    def nbytes(self) -> int:
        """Accounted bytes: a function of what was promised, not of how it came."""
        return sum(WORD_BYTES * of.entries for promise in self.of for of in promise.sets.values())

    # --- files -----------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "of": [
                {
                    "ended": p.ended,
                    "sets": _sets_to_json(p.sets),
                    "cluster": [_end_to_json(p.cluster), p.cluster_mine],
                    "edge": _end_to_json(p.edge),
                }
                for p in self.of
            ],
            "waiting": self.waiting,
            "news": self.news,
            "arrived": self.arrived,
            "held": self.held,
            "changes": self.changes,
            "looked": self.looked.tolist(),
            "given": _sets_to_json(self.given),
            "endGiven": self.end_given,
        }

    @staticmethod
    def from_json(spec: JoinSpec, body: Mapping[str, Any]) -> Promises:
        def sets(found: Sequence[Any]) -> dict[Classes, KeySet]:
            empty = Promises(spec).empty
            return {tuple(classes): type(empty(tuple(classes))).from_json(of) for classes, of in found}

        of = [
            Promise(
                p["ended"],
                sets(p["sets"]),
                _end_from_json(p["cluster"][0]),
                p["cluster"][1],
                _end_from_json(p["edge"]),
            )
            for p in body["of"]
        ]
        return Promises(
            spec,
            of,
            body["waiting"],
            body["news"],
            body["arrived"],
            body["held"],
            body["changes"],
            np.array(body["looked"], np.int64),
            sets(body["given"]),
            body["endGiven"],
        )


def minus(one: KeySet, other: KeySet) -> KeySet:
    if isinstance(one, WordSet):
        assert isinstance(other, WordSet)
        return one.minus(other)
    assert isinstance(other, ByteSet)
    return one.minus(other)


def common(one: KeySet, other: KeySet) -> KeySet:
    if isinstance(one, WordSet):
        assert isinstance(other, WordSet)
        return one.common(other)
    assert isinstance(other, ByteSet)
    return one.common(other)


def _sets_to_json(sets: Mapping[Classes, KeySet]) -> list[Any]:
    return [[list(classes), sets[classes].to_json()] for classes in sorted(sets)]


def _end_to_json(end: int | bytes | None) -> Any:
    return {"bytes": end.hex()} if isinstance(end, bytes) else end


def _end_from_json(body: Any) -> int | bytes | None:
    return bytes.fromhex(body["bytes"]) if isinstance(body, dict) else body
