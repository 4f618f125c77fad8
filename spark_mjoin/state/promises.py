"""What the inputs of a join have promised so far: which keys do not come any more (Ding 2003, section 5.1).

    sets      per input, and per set of key classes that punctuations speak about, the keys that were punctuated, that
              are closed clusters, or that lie behind an ordered input: the paper's punctuated range
    ended     inputs of which nothing comes any more
    waiting   punctuations that have arrived since rows were last looked through
    given     what was announced downstream

A promise holds for what its input delivers after it. It is taken in once all rows that came with it are in their table,
so nothing that came before it can be missed. A constraint `unique` is not in here as long as its rows are: a key that
is in the table does not come again. When such a row leaves, its key goes into a set.

Kept as small as it can be: what all inputs have promised is forgotten once no row with it is left (`forget`), since no
row will come that would ask; and so is that it was announced. What only some have promised may be asked for as long as
the query runs; under a budget the oldest of it is forgotten (`forget_oldest`). That is always right: fewer rows are
known to be useless, and a key that nobody remembers to have promised is not announced. Which rows can go is decided by
`mjoin.completion`, when by `engine.retention.purge`.

Files have a log: keys that were put into a set, with their number, and keys that were taken out. A commit writes what
has changed since the one before, `(what was there - taken out) + put in`, and a state that is loaded goes through all
of it. When most of the log is about keys that are not there any more, it begins anew with those that are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state import remembered
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.keysets import ByteSet, Keys, KeySet, WordSet, chosen, empty_set, size, together
from spark_mjoin.state.manifest import PromiseFigures, PromisesFigures
from spark_mjoin.state.records import Packed
from spark_mjoin.state.remembered import Remembered

Classes = tuple[int, ...]
OUTPUT = -1  # in the place of an input: what was announced downstream
FORGET_TO = 0.8  # of the room for promises
STALE, STALE_RUNS = 1024, 1024  # records that are not needed, and times that keys were taken out, before a log is anew
LOG = pa.schema([("set", pa.int16()), ("kind", pa.int8()), ("number", pa.int64()), ("key", pa.large_binary())])
_TAKEN_OUT = 2  # added to the kind of a record


@dataclass
class Promise:
    """Of one input."""

    ended: bool = False
    sets: dict[Classes, Remembered] = field(default_factory=dict)
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
    held: int = 0  # rows in segments that were useless then, about, and stay because results are pending
    changes: int = 0  # how often something was promised
    looked: Array = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))  # per bucket, at the last look on disk
    given: dict[Classes, Remembered] = field(default_factory=dict)
    end_given: bool = False
    to_emit: list[tuple[Classes, KeySet]] = field(default_factory=list)  # as punctuations of this batch; not kept
    clock: int = 0  # how often anything was put into a set: the number of what was put in last
    saved: int = 0  # the same when the state was last committed
    names: list[tuple[int, Classes]] = field(default_factory=list)  # of sets, as the log numbers them
    taken_out: list[tuple[int, KeySet]] = field(default_factory=list)  # since the last commit, and from which set
    runs: int = 0  # commits in the log by which keys were taken out
    logs: int = 0  # how often the log began anew

    def __post_init__(self) -> None:
        self.of = self.of or [Promise() for _ in self.spec.inputs]

    # --- what arrives ----------------------------------------------------------------------------------------

    def add(self, input: int, classes: Classes, keys: Keys) -> None:
        """An input delivers no more rows that have one of these keys in some classes."""
        if size(keys):
            self.add_known(input, classes, keys)
            self._changed()

    def add_known(self, input: int, classes: Classes, keys: Keys) -> None:
        """The same for what was known already, from rows that leave now."""
        if size(keys):
            self.clock += 1
            self._set(input, classes).add(keys, self.clock)

    def add_given(self, classes: Classes, keys: KeySet) -> None:
        """Keys have been announced downstream; some at the least."""
        self.clock += 1
        self._set(OUTPUT, classes).unite(keys, self.clock)

    def add_set(self, input: int, classes: Classes, keys: KeySet) -> None:
        """Add what another partition knows of an input, or of the OUTPUT."""
        if keys and (input == OUTPUT or not self.of[input].ended):
            self.clock += 1
            self._set(input, classes).unite(keys, self.clock)

    def _changed(self) -> None:
        self.news = True
        self.changes += 1

    def add_range(self, input: int, key_class: int, low: Any, high: Any) -> None:
        """The same for all keys of a range, whose ends belong to it; None is open."""
        of = self._set(input, (key_class,))
        self.clock += 1
        of.add_range(low, high, self.clock)
        self._changed()
        if not of:
            del self.of[input].sets[key_class,]
        if of.is_all:  # a row without a key joins nothing
            self.end(input)

    def end(self, input: int) -> None:
        self.of[input].ended = True
        for classes in self.of[input].sets:
            everything = self.empty(classes)
            everything.add_range(None, None)
            self.taken_out.append((self.names.index((input, classes)), everything))
        self.of[input].sets = {}
        self._changed()

    def _sets(self, input: int) -> dict[Classes, Remembered]:
        return self.given if input == OUTPUT else self.of[input].sets

    def _set(self, input: int, classes: Classes) -> Remembered:
        sets = self._sets(input)
        if classes not in sets:
            sets[classes] = remembered.nothing([self.spec.classes[c] for c in classes])
        if (input, classes) not in self.names:
            self.names.append((input, classes))
        return sets[classes]

    def _take_out(self, input: int, classes: Classes, keys: KeySet) -> None:
        sets = self._sets(input)
        if classes in sets:
            self._taken(input, classes, sets[classes].discard(keys, self.saved + 1))

    def _taken(self, input: int, classes: Classes, gone: KeySet) -> None:
        """Keys have gone from a set: let the log know."""
        sets = self._sets(input)
        if gone:
            self.taken_out.append((self.names.index((input, classes)), gone))
        if not sets[classes]:
            del sets[classes]

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

    def forget(self, input: int, classes: Classes, keys: KeySet) -> None:
        """No row that has one of these keys is left or will come, on any input."""
        self._take_out(input, classes, keys)

    def forget_given(self, classes: Classes, keys: KeySet) -> None:
        """All inputs have forgotten these keys: nothing asks any more whether they were announced.

        Ranges of strings are not cut, so an input may still have some of the keys; these stay, and so do ranges.
        """
        if isinstance(keys, ByteSet):
            left = keys.values
            for promise in self.of:
                if classes in promise.sets:
                    left = chosen(left, ~promise.sets[classes].contains(left))
            keys = ByteSet(left)
        self._take_out(OUTPUT, classes, keys)

    def forget_oldest(self, room_bytes: int) -> int:
        """Forget the oldest promises until the others are well inside their room; returns how many keys and ranges.

        The oldest by the order in which they came, of whichever input; a range is as old as its youngest part. What was
        announced goes with the promises that it rests on.
        """
        forgotten = 0
        while (used := self.nbytes()) > room_bytes:
            of_inputs = sum(of.nbytes() for promise in self.of for of in promise.sets.values())
            forgotten += self._forget_some((used - FORGET_TO * room_bytes) * of_inputs / used)
            self._forget_what_was_announced()
        return forgotten

    def _forget_some(self, enough_bytes: float) -> int:
        names = sorted((i, c) for i, promise in enumerate(self.of) for c in promise.sets)
        if not names:
            return 0
        ages = [self.of[i].sets[c].ages() for i, c in names]
        numbers, sizes = (np.concatenate(of) for of in zip(*ages, strict=True))
        order = np.argsort(numbers, kind="stable")
        oldest = np.zeros(numbers.size, np.bool_)
        oldest[order[: np.searchsorted(np.cumsum(sizes[order]), enough_bytes) + 1]] = True
        ends = np.cumsum([0, *(of.size for of, _ in ages)])
        for (input, classes), low, high in zip(names, ends[:-1], ends[1:], strict=True):
            self._taken(input, classes, self.of[input].sets[classes].drop(oldest[low:high], self.saved + 1))
        return int(oldest.sum())

    def _forget_what_was_announced(self) -> None:
        """Nothing asks whether a key was announced that nobody is known to have promised."""
        for classes in list(self.given):
            alone: KeySet = self.given[classes]
            for promise in self.of:
                if classes in promise.sets:
                    alone = minus(alone, promise.sets[classes])
            self._take_out(OUTPUT, classes, alone)

    def nbytes(self) -> int:
        """Accounted bytes: a function of what was promised, not of how it came."""
        sets = [*(of for promise in self.of for of in promise.sets.values()), *self.given.values()]
        return sum(of.nbytes() for of in sets)

    # --- files -----------------------------------------------------------------------------------------------

    def is_stale(self, records: int) -> bool:
        """Whether a log of so many records is to be written anew: most are not needed, or it takes long to read."""
        living = sum(self._sets(i)[c].entries for i, c in self.names if c in self._sets(i))
        return records > 2 * living + STALE or self.runs > STALE_RUNS

    def changes_since_commit(self) -> list[pa.RecordBatch]:
        """Records of what has changed since the last commit."""
        taken = [
            _records(of, _TAKEN_OUT + kind, keys, 0)
            for of, gone in self.taken_out
            for kind, keys in remembered.written(gone)
        ]
        return [batch for batch in (*taken, *self._put_in(self.saved + 1)) if batch.num_rows]

    def everything(self) -> list[pa.RecordBatch]:
        """Records of all that is there, for a log that begins anew."""
        self.logs, self.runs, self.taken_out = self.logs + 1, 0, []
        return [batch for batch in self._put_in(0) if batch.num_rows]

    def _put_in(self, since: int) -> Iterator[pa.RecordBatch]:
        for number, (input, classes) in enumerate(self.names):
            if classes in self._sets(input):
                for written in self._sets(input)[classes].entries_since(since):
                    yield _records(number, *written)

    def committed(self) -> None:
        """The log has everything."""
        self.runs += bool(self.taken_out)
        self.saved, self.taken_out = self.clock, []

    def read(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Go through records of the log, in their order."""
        found: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            numbers = batch.column("set").to_numpy()
            for number in np.unique(numbers).tolist():
                found.setdefault(number, []).append(batch.filter(pa.array(numbers == number)))
        for number, parts in sorted(found.items()):
            input, classes = self.names[number]
            table = pa.Table.from_batches(parts).combine_chunks()
            (records,) = table.to_batches()
            kinds, ages, keys = records.column("kind").to_numpy(), records.column("number").to_numpy(), records["key"]
            of = self._set(input, classes)
            for low, high in remembered.runs(kinds):
                kind, some = int(kinds[low]), keys.slice(low, high - low)
                if kind < _TAKEN_OUT:
                    of.take(kind, some, ages[low:high])
                else:
                    of.discard(remembered.read(of, kind - _TAKEN_OUT, some))
            if not of:
                del self._sets(input)[classes]

    def figures(self) -> PromisesFigures:
        """All but the sets, which are in the log."""
        return PromisesFigures(
            tuple(PromiseFigures(p.ended, p.cluster, p.cluster_mine, p.edge) for p in self.of),
            self.waiting,
            self.news,
            self.arrived,
            self.held,
            self.changes,
            Packed.of(self.looked, "q"),
            self.end_given,
            self.clock,
            tuple(self.names),
            self.runs,
            self.logs,
        )

    def take(self, kept: PromisesFigures) -> None:
        """Become what was written, but for the sets."""
        for promise, found in zip(self.of, kept.of, strict=True):
            promise.ended, promise.edge = found.ended, found.edge
            promise.cluster, promise.cluster_mine = found.cluster, found.cluster_mine
        self.waiting, self.news, self.arrived = kept.waiting, kept.news, kept.arrived
        self.held, self.changes, self.end_given = kept.held, kept.changes, kept.end_given
        self.looked = kept.looked.array()
        self.clock = self.saved = kept.clock
        self.names = list(kept.names)
        self.runs, self.logs, self.taken_out = kept.runs, kept.logs, []


def _records(of: int, kind: int, keys: pa.Array, numbers: Array | int) -> pa.RecordBatch:
    count = len(keys)
    columns = (np.full(count, of, np.int16), np.full(count, kind, np.int8), np.full(count, numbers, np.int64))
    return pa.RecordBatch.from_arrays([*map(pa.array, columns), keys], schema=LOG)


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
