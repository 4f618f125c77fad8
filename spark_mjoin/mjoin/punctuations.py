"""From what arrives to promises: punctuation rows are read, and constraints noted, as an input delivers its rows.

    arriving rows ──predicate──> data ──────────> the join
                            └──> punctuations ──> keys, lists, ranges, or the end of the input

A punctuation speaks about the key columns of its input: a value is that key, NULL any key. Further columns may hold a
list of values or the ends of a range. One that fixes several keys excludes the rows that have all of them. A range of
one key together with a value of another, and a value in a column that does not tell keys apart, say nothing here:
ignoring a punctuation is always right. So is one without any key that has a value elsewhere: it may speak about a
column that this join does not compare. Only a row with nothing but its mark ends the input.

What is read holds for rows that come later, so it is added to the promises when the rows of its batch are in their
table. `Delivered` is about rows as the source gives them, before filters and of all partitions: promises are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.mjoin.expressions import columns_of, evaluate
from spark_mjoin.mjoin.keys import encode
from spark_mjoin.model import Array, Col, InputSpec, JoinSpec, Pattern, Punctuations
from spark_mjoin.state.columns import hash_array, valid_rows
from spark_mjoin.state.keysets import Keys, among, chosen, distinct, keys_of, size, together
from spark_mjoin.state.promises import Classes, Promises
from spark_mjoin.state.slots import Slots, of_hashes, of_numbers

_ANY, _VALUE, _LIST, _RANGE = range(4)


@dataclass
class Said:
    """What some punctuations say, each with the row of the batch that said it."""

    rows: int = 0
    points: list[tuple[Classes, Keys, Array]] = field(default_factory=list)
    ranges: list[tuple[int, Any, Any, int]] = field(default_factory=list)  # (key class, low, high, row)
    end: int | None = None  # the row

    def add_to(self, promises: Promises, input: int) -> None:
        promises.waiting += self.rows
        for classes, keys, _ in self.points:
            promises.add(input, classes, keys)
        for key_class, low, high, _ in self.ranges:
            promises.add_range(input, key_class, low, high)
        if self.end is not None:
            promises.end(input)


def marks(input: InputSpec, batch: pa.RecordBatch) -> Array | None:
    """Which rows of an arriving batch are punctuations; None where there are none."""
    if input.punctuations is None:
        return None
    verdict = evaluate(input.punctuations.predicate, lambda c: batch.column(c.name), batch.num_rows)
    marked: Array = pc.fill_null(verdict, False).to_numpy(zero_copy_only=False)
    return marked if marked.any() else None


def read(spec: JoinSpec, number: int, batch: pa.RecordBatch, marked: Array, slots: Slots) -> Said:
    """What the marked rows of a batch say; of single keys, those of this partition."""
    input = spec.inputs[number]
    assert input.punctuations is not None
    at = np.flatnonzero(marked)
    rows = batch.take(pa.array(at))
    said = Said(at.size)
    usable = np.ones(at.size, np.bool_)
    for name in input.punctuations.others:
        usable &= rows.column(name).is_null().to_numpy(zero_copy_only=False)
    readings = [_Reading(input, pattern, rows) for pattern in input.punctuations.patterns]
    kinds = np.stack([r.kinds for r in readings], axis=1) if readings else np.zeros((at.size, 0), np.int8)
    for combination in np.unique(kinds[usable], axis=0) if usable.any() else ():
        mine = np.flatnonzero(usable & (kinds == combination).all(axis=1))
        about = [r for r, kind in zip(readings, combination, strict=True) if kind != _ANY]
        if not about:
            mine = mine[_empty(rows, input.punctuations)[mine]]
            said.end = int(at[mine].min()) if mine.size else None
        elif _RANGE not in combination:
            classes, keys, mine = _points(about, combination[combination != _ANY], mine)
            found = together([keys_of(of, spec.classes[c]) for c, of in zip(classes, keys, strict=True)])
            of_partition = _own(spec, classes, keys, slots)
            said.points.append((classes, chosen(found, of_partition), at[mine][of_partition]))
        elif len(about) == 1:
            said.ranges += [(about[0].pattern.key_class, *about[0].ends(int(row)), int(at[row])) for row in mine]
    return said


def _points(about: Sequence[_Reading], kinds: Array, rows: Array) -> tuple[Classes, list[pa.Array], Array]:
    """Values and lists, one key for each value of a list: key classes, the keys of each, and the rows they are of."""
    keys: list[pa.Array] = []
    for reading, kind in zip(about, kinds, strict=True):
        if kind == _VALUE:
            keys.append(reading.values.take(pa.array(rows)))
            continue
        parents, values = reading.lists(rows)
        keys = [k.take(pa.array(parents)) for k in keys] + [values]
        rows = rows[parents]
    order = np.argsort([r.pattern.key_class for r in about])
    return tuple(about[i].pattern.key_class for i in order), [keys[i] for i in order], rows


def _own(spec: JoinSpec, classes: Classes, keys: Sequence[pa.Array], slots: Slots) -> Array:
    """Which keys, given by class, only rows of this partition can have; all where no key decides it."""
    if slots.is_all or spec.star_class not in classes:
        return np.ones(len(keys[0]), np.bool_)
    return slots.have(of_hashes(hash_array(keys[classes.index(spec.star_class)])))


class _Reading:
    """What some punctuations say about one key class."""

    def __init__(self, input: InputSpec, pattern: Pattern, rows: pa.RecordBatch) -> None:
        self.pattern, self._rows = pattern, rows
        stored = input.stored[pattern.ordinal]
        assert stored.domain is not None
        self._domain = stored.domain
        self.values = encode(evaluate(stored.expr, lambda c: rows.column(c.name), rows.num_rows), stored.domain)
        self.kinds = np.where(valid_rows(self.values), _VALUE, _ANY).astype(np.int8)
        for end in (pattern.low, pattern.high):
            if end is not None:
                self.kinds[valid_rows(rows.column(end))] = _RANGE
        if pattern.values is not None:
            self.kinds[valid_rows(rows.column(pattern.values))] = _LIST

    def lists(self, rows: Array) -> tuple[Array, pa.Array]:
        """The values of the lists in some rows, without NULLs, and to which of the rows each belongs."""
        column = self._rows.column(self.pattern.values).take(pa.array(rows))
        parents = pc.list_parent_indices(column).to_numpy()
        values = encode(pc.list_flatten(column), self._domain)
        there = valid_rows(values)
        return parents[there], values.filter(pa.array(there))

    def ends(self, row: int) -> tuple[Any, Any]:
        found = []
        for name in (self.pattern.low, self.pattern.high):
            end = encode(self._rows.column(name).slice(row, 1), self._domain)
            found.append(_item(keys_of(end, self._domain), 0) if end.null_count == 0 else None)
        return found[0], found[1]


def _empty(rows: pa.RecordBatch, punctuations: Punctuations) -> Array:
    """Which rows have nothing but what marks them: one that speaks about another column does not say that all ends."""
    marks = {column.name for column in columns_of(punctuations.predicate)}
    out = np.ones(rows.num_rows, np.bool_)
    for name in rows.schema.names:
        if name not in marks:
            out &= ~valid_rows(rows.column(name))
    return out


def _item(keys: Keys, at: int) -> int | bytes:
    return int(keys[at]) if isinstance(keys, np.ndarray) else keys[at].as_py()


# --- constraints ---------------------------------------------------------------------------------------------------


class Delivered:
    """The data rows of a batch as their source delivers them, and what follows from them about later ones."""

    def __init__(self, spec: JoinSpec, number: int, batch: pa.RecordBatch, slots: Slots) -> None:
        self._spec, self._number, self._batch, self._slots = spec, number, batch, slots
        self._encoded: dict[int, pa.Array] = {}

    def _keys(self, classes: Classes) -> tuple[Array, list[pa.Array]]:
        """The rows that have a key in each of some classes, and these keys."""
        input = self._spec.inputs[self._number]
        for c in classes:
            if c not in self._encoded:
                stored = input.stored[dict(input.keys)[c]]
                assert stored.domain is not None
                values = evaluate(stored.expr, self._column, self._batch.num_rows)
                self._encoded[c] = encode(values, stored.domain)
        there = np.ones(self._batch.num_rows, np.bool_)
        for c in classes:
            there &= valid_rows(self._encoded[c])
        return np.flatnonzero(there), [self._encoded[c].filter(pa.array(there)) for c in classes]

    def _column(self, column: Col) -> pa.Array:
        return self._batch.column(column.name)

    def _plain(self) -> Classes:
        """The classes of keys that are columns, which promises are about.

        Not of those that are computed: rows that a filter lets not pass must not fail in them.
        """
        input = self._spec.inputs[self._number]
        return tuple(c for c, ordinal in input.keys if isinstance(input.stored[ordinal].expr, Col))

    def _joint(self, classes: Classes) -> tuple[Array, Keys]:
        rows, keys = self._keys(classes)
        return rows, together([keys_of(k, self._spec.classes[c]) for c, k in zip(classes, keys, strict=True)])

    def awaited(self, promises: Promises, inputs: Sequence[int]) -> Array:
        """Which rows have a key that one of some inputs has promised not to deliver any more."""
        classes = self._plain()
        rows, keys = self._keys(classes)
        by_class = {c: keys_of(k, self._spec.classes[c]) for c, k in zip(classes, keys, strict=True)}
        out = np.zeros(self._batch.num_rows, np.bool_)
        for input in inputs:
            out[rows] |= promises.excluded(input, by_class, rows.size)
        return out

    def note(self, promises: Promises) -> None:
        """Add what the constraints of the input mean, now that these rows have come."""
        input, promise = self._spec.inputs[self._number], promises.of[self._number]
        if input.clustered:
            rows, keys = self._joint(input.clustered)
            if rows.size:
                first, last = _item(keys, 0), _item(keys, rows.size - 1)
                ended = _ends_of_runs(keys)[:-1]
                mine = _own(self._spec, input.clustered, self._keys(input.clustered)[1], self._slots)
                closed = distinct(chosen(keys, _at(rows.size, ended[mine[ended]])))
                closed = chosen(closed, ~among(closed, _like(keys, last)))
                promises.add(self._number, input.clustered, closed)
                if promise.cluster is not None and promise.cluster not in (first, last) and promise.cluster_mine:
                    promises.add(self._number, input.clustered, _like(keys, promise.cluster))
                promise.cluster, promise.cluster_mine = last, bool(mine[-1])
        if input.ordered is not None:
            self._move_edge(promises, *input.ordered)

    def _move_edge(self, promises: Promises, key_class: int, descending: bool) -> None:
        """Everything before the furthest key does not come any more. Of bytes, up to the one that came before it."""
        promise = promises.of[self._number]
        rows, keys = self._joint((key_class,))
        if not rows.size:
            return
        if isinstance(keys, np.ndarray):
            seen: list[Any] = [int(keys.min() if descending else keys.max())]
        else:
            known = distinct(keys)
            order = range(size(known)) if descending else range(size(known) - 1, -1, -1)
            seen = [_item(known, at) for at in order[:2]]
        old = promise.edge
        if old is not None:
            seen.append(old)
        furthest = min(seen) if descending else max(seen)
        if old is not None and furthest == old:
            return
        if isinstance(furthest, int):
            behind: Any = furthest + 1 if descending else furthest - 1
        else:
            passed = [k for k in seen if k != furthest]
            behind = (min(passed) if descending else max(passed)) if passed else None
        promise.edge = furthest
        if behind is not None:
            promises.add_range(self._number, key_class, *((behind, old) if descending else (old, behind)))

    # --- checks ----------------------------------------------------------------------------------------------

    def broken(
        self, promises: Promises, said: Said | None, data_at: Array, numbers: Array, present: Any
    ) -> dict[str, Array]:
        """Rows of this partition that break a promise of their input, by its name: one made before, or in this batch.

        data_at says at which row of the batch each data row came, and numbers, which of its input it is;
        present(classes, keys) says which keys are in the state.
        """
        input, number = self._spec.inputs[self._number], self._number
        classes = self._plain()
        rows, keys = self._keys(classes)
        by_class = {c: keys_of(k, self._spec.classes[c]) for c, k in zip(classes, keys, strict=True)}
        broken = promises.excluded(number, by_class, rows.size)
        if said is not None:
            broken |= self._after(said, by_class, data_at[rows])
        out = {}
        if input.ordered is not None:
            out["ordered"] = _out_of_order(by_class[input.ordered[0]], input.ordered[1], promises.of[number].edge)
            broken &= ~out["ordered"]
        if input.clustered:
            out["clustered"] = _scattered(together([by_class[c] for c in input.clustered]))
            if input.punctuations is None:  # then closed clusters are all that was promised
                out["clustered"] |= broken
                broken = np.zeros(rows.size, np.bool_)
        out["punctuation"] = broken
        if input.unique:
            joint = together([by_class[c] for c in input.unique])
            out["unique"] = present(input.unique, joint) | _repeated(joint)
        if not self._slots.is_all and self._spec.star_class not in classes:  # it is computed
            mine = self._slots.have(of_numbers(numbers[rows]))
        else:
            mine = _own(self._spec, classes, keys, self._slots)
        found = {name: rows[mask & mine] for name, mask in out.items()}
        return {name: at for name, at in found.items() if at.size}

    def _after(self, said: Said, keys: dict[int, Keys], at: Array) -> Array:
        """Which rows came after a punctuation of this batch that excludes them."""
        out = np.zeros(at.size, np.bool_)
        for classes, points, rows in said.points:
            joint = together([keys[c] for c in classes])
            order = np.argsort(rows, kind="stable")
            first = pc.index_in(_arrow(joint), value_set=_arrow(points).take(pa.array(order)))
            first = pc.fill_null(first, -1).to_numpy(zero_copy_only=False)
            out |= (first >= 0) & (rows[order][np.maximum(first, 0)] < at) if rows.size else False
        for key_class, low, high, row in said.ranges:
            promise = Promises(self._spec)
            promise.add_range(self._number, key_class, low, high)
            out |= (at > row) & promise.excluded(self._number, {key_class: keys[key_class]}, at.size)
        if said.end is not None:
            out |= at > said.end
        return out


def _arrow(keys: Keys) -> pa.Array:
    return pa.array(keys) if isinstance(keys, np.ndarray) else keys


def _like(keys: Keys, item: int | bytes) -> Keys:
    return np.array([item], np.int64) if isinstance(keys, np.ndarray) else pa.array([item], keys.type)


def _at(count: int, rows: Array) -> Array:
    out = np.zeros(count, np.bool_)
    out[rows] = True
    return out


def _ends_of_runs(keys: Keys) -> Array:
    """The last row of every run of equal keys."""
    if isinstance(keys, np.ndarray):
        changes = keys[1:] != keys[:-1]
    else:
        changes = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
    return np.append(np.flatnonzero(changes), size(keys) - 1)


def _scattered(keys: Keys) -> Array:
    """Rows of runs whose key had a run before, in the same batch."""
    count = size(keys)
    if not count:
        return np.zeros(0, np.bool_)
    ends = _ends_of_runs(keys)
    again = _repeated(chosen(keys, _at(count, ends)))
    return np.repeat(again, np.diff(np.append(-1, ends)))


def _repeated(keys: Keys) -> Array:
    """Rows whose key another row had before."""
    first = pc.index_in(_arrow(keys), value_set=_arrow(keys)).to_numpy(zero_copy_only=False)
    out: Array = first != np.arange(size(keys))
    return out


def _out_of_order(keys: Keys, descending: bool, edge: Any) -> Array:
    """Rows that come behind one that was further on."""
    if not size(keys):
        return np.zeros(0, np.bool_)
    if not isinstance(keys, np.ndarray):  # ranks stand for the strings
        values = distinct(keys if edge is None else pa.concat_arrays([keys, _like(keys, edge)]))
        ranks = pc.index_in(keys, value_set=values).to_numpy(zero_copy_only=False).astype(np.int64)
        limit = None if edge is None else int(pc.index_in(_like(keys, edge), value_set=values)[0].as_py())
        return _out_of_order(ranks, descending, limit)
    words = ~keys if descending else keys  # which turns the order round, and cannot overflow
    reach = np.maximum.accumulate(words if edge is None else np.maximum(words, ~edge if descending else edge))
    out: Array = words < reach
    return out
