"""Promises as they arrive with the rows of an input, and punctuations of the output.

    arriving     punctuations are taken out of a piece; what it promises is read, and checked against earlier promises
    announced    rows of the output that are punctuations

A row that breaks a promise is joined as any other, with what is still there: results with rows that have gone are
missing. `verifyConstraints` counts such rows, or makes the first an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.counts import BatchCounts, Promised
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention import purge
from spark_mjoin.engine.retention.protocol import KeepAll, Report
from spark_mjoin.errors import PromiseError
from spark_mjoin.mjoin.bound import EMIT_FIRST, EmitFirst, Found
from spark_mjoin.mjoin.completion import View
from spark_mjoin.mjoin.keys import decode
from spark_mjoin.mjoin.punctuations import Delivered, Said, read
from spark_mjoin.model import HIGH, LOW, MARK, Array, JoinSpec, Purging
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import valid_rows
from spark_mjoin.state.keysets import FIRST, LAST, ByteSet, Keys, KeySet, WordSet, apart, ordered
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.promises import Classes
from spark_mjoin.state.slots import ALL_SLOTS, Slots, of_numbers
from spark_mjoin.state.store import Draft

_NO_MORE = {
    "punctuation": "its key was promised not to come any more",
    "unique": "its key has come before, and option 'unique' promises that none comes twice",
    "clustered": "its key came before another one, and option 'clustered' promises that rows with a key come together",
    "ordered": "a key that is further on came before it, and option 'ordered' promises an order",
}


@dataclass
class Promising(KeepAll):
    """Rows leave that the inputs' promises have made useless (`purge` says how)."""

    state: OperatorState
    draft: Draft
    plan: Purging
    counts: BatchCounts
    _said: Said | None = None  # by the piece that is arriving
    _delivered: Delivered | None = None

    @property
    def keeps_all(self) -> bool:
        return False

    # --- while rows arrive -----------------------------------------------------------------------------------

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        """Read what a piece promises. Every task gets all punctuations, so the owner of a slot counts each."""
        spec, input, marked, data = self.state.spec, self.state.spec.inputs[member], piece.marked, piece.data()
        self._said = self._delivered = None
        if marked is not None:
            self._said = read(spec, member, piece.rows, marked, slots)
            own = slots.have(of_numbers(piece.all_numbers()[marked]))
            self.counts.promised += Promised(punctuations=int(own.sum()))
        if input.promises_by_order(self.plan.verify):
            assert not piece.own, "such an input comes whole (engine.feed)"
            self._delivered = Delivered(spec, member, data, slots)
            if self.plan.verify != "off":
                self._verify(member, piece, self._delivered)
        return data

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        self.state.promises.arrived += len(arrays[0])
        return arrays

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        """What a piece has promised holds for what comes after it: so it is taken in when its rows have met the others.

        Then those of its rows leave that nothing to come can match, and others when enough was promised.
        """
        start = operator.tables[member].rows
        yield from found
        self._take_in(member)
        gone = purge.drops(operator, member, start)
        if gone is not None:
            yield EMIT_FIRST
            purge.drop_last(operator, member, start, gone)
        if purge.is_due(operator, self.plan):
            yield EMIT_FIRST
            self._sweep(all_of_them=False)

    def _take_in(self, member: int) -> None:
        if self._said is not None:
            self._said.add_to(self.state.promises, member)
        if self._delivered is not None:
            self._delivered.note(self.state.promises)

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        if purge.is_crowded(self.state, self.plan) or (full and purge.is_pending(self.state)):
            yield EMIT_FIRST
            self._sweep()

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        if idle and purge.is_pending(self.state):
            yield EMIT_FIRST
            self._sweep()

    def awaited(self, piece: Piece) -> Array | None:
        """Which rows of a piece another input waits for: it has promised their keys, and is not done with them.

        None where none waits, or where the order of the rows is what their input promises. Punctuations are not
        awaited.
        """
        spec, number, promises = self.state.spec, piece.input, self.state.promises
        waiting = [n for n, promise in enumerate(promises.of) if n != number and promise.sets]
        if not waiting or spec.inputs[number].clustered or spec.inputs[number].ordered:
            return None
        found = Delivered(spec, number, piece.data(), ALL_SLOTS).awaited(promises, waiting)
        if piece.marked is None:
            return found
        out = np.zeros(piece.rows.num_rows, np.bool_)
        out[~piece.marked] = found
        return out

    def _sweep(self, all_of_them: bool = True) -> None:
        purge.sweep(self.state, self.plan, self.counts, all_of_them)

    def _verify(self, member: int, piece: Piece, delivered: Delivered) -> None:
        """Count rows that break a promise; or let the first be an error."""
        state, spec, data = self.state, self.state.spec, piece.data()
        at = np.arange(data.num_rows) if piece.marked is None else np.flatnonzero(~piece.marked)

        def present(classes: Classes, keys: Keys) -> Array:
            there = View.of_table(spec, state.tables[member], np.zeros(BUCKETS, np.bool_))
            known = state.promises.of[member].sets.get(classes)
            found = there.has(spec, classes, keys)
            return found if known is None else found | known.contains(keys)

        broken = delivered.broken(state.promises, self._said, at, piece.data_numbers(), present)
        self.counts.promised += Promised(broken=len({int(row) for rows in broken.values() for row in rows}))
        if broken and self.plan.verify == "fail":
            name, rows = min(broken.items(), key=lambda entry: int(entry[1][0]))
            raise PromiseError(
                f"source '{spec.sources[spec.inputs[member].source].alias}' broke a promise: {_NO_MORE[name]}. The row "
                f"is {data.slice(int(rows[0]), 1).to_pylist()[0]}. Set verifyConstraints to 'count' to go on "
                "regardless, or mend the source; results with rows that were dropped would be missing"
            )

    # --- disk work -------------------------------------------------------------------------------------------

    def after_pass(self, buckets: Iterable[int]) -> None:
        purge.after_pass(self.state, self.draft.store, buckets, self.plan, self.counts)

    def waits_for_pass(self) -> bool:
        return purge.is_held_up(self.state)

    def tidy(self, has_time: bool) -> None:
        if self.waits_for_pass():
            self.state.promises.held = 0  # nothing is pending any more
        if has_time and (buckets := purge.to_look_at(self.state)):
            self.draft.save(self.state)
            self.after_pass(buckets)

    # --- the end of a batch ----------------------------------------------------------------------------------

    def punctuations(self, slots: Slots, last: bool) -> Iterator[pa.RecordBatch]:
        """What has become known about results that do not come any more, since punctuations were last emitted."""
        if not self.state.spec.gives_punctuations:
            return
        if last and purge.is_pending(self.state):
            self._sweep()
        known, self.state.promises.to_emit = self.state.promises.to_emit, []
        yield from announced(self.state.spec, known, slots)

    def report(self) -> Report:
        return Report(purge_pending=purge.is_pending(self.state))


def announced(spec: JoinSpec, what: Sequence[tuple[Classes, KeySet]], slots: Slots) -> Iterator[pa.RecordBatch]:
    """Punctuations of the output. Of several partitions, each announces keys that only its own rows can have."""
    for classes, keys in what:
        if not slots.is_all and spec.star_class not in classes:
            continue  # no partition knows it of the others
        columns = {MARK: pa.array([True])}
        if not classes:
            yield _rows(spec, columns, 1)
        elif len(classes) == 1:
            yield from _of_class(spec, classes[0], keys)
        else:
            assert isinstance(keys, ByteSet)
            parts = apart([spec.classes[c] for c in classes], keys.values)
            named = {spec.key_column(c): _decoded(spec, c, part) for c, part in zip(classes, parts, strict=True)}
            yield from _known(spec, named)


def _of_class(spec: JoinSpec, key_class: int, keys: KeySet) -> Iterator[pa.RecordBatch]:
    column = spec.key_column(key_class)
    if isinstance(keys, WordSet):
        if key_class not in spec.ranged:
            yield from _known(spec, {column: _decoded(spec, key_class, keys.each())})
            return
        single = keys.single()
        yield from _known(spec, {column: _decoded(spec, key_class, keys.lows[single])})
        lows, highs = keys.lows[~single], keys.highs[~single]
        if spec.classes[key_class].kind == "integer":
            lows, highs = _within(lows, highs, spec.schema.field(column).type)
        low = _decoded(spec, key_class, lows, lows != FIRST)
        high = _decoded(spec, key_class, highs, highs != LAST)
        # NULL is an open end, so a range with an end that the output column cannot hold says nothing
        fits = pa.array((valid_rows(low) | (lows == FIRST)) & (valid_rows(high) | (highs == LAST)))
        if pc.any(fits).as_py():
            yield _rows(spec, {LOW: low.filter(fits), HIGH: high.filter(fits)}, pc.sum(fits).as_py())
        return
    yield from _known(spec, {column: _decoded(spec, key_class, keys.values)})
    if keys.ranges:
        dtype = spec.schema.field(column).type
        ends = [pa.array(list(of), pa.binary()).cast(dtype) for of in zip(*keys.ranges, strict=True)]
        yield _rows(spec, dict(zip((LOW, HIGH), ends, strict=True)), len(keys.ranges))


def _within(lows: Array, highs: Array, dtype: pa.DataType) -> tuple[Array, Array]:
    """Ranges of integers without what a column cannot hold: open where they reach beyond it."""
    limits = np.iinfo(dtype.to_pandas_dtype())
    there = (lows <= limits.max) & (highs >= limits.min)
    lows, highs = lows[there], highs[there]
    return np.where(lows <= limits.min, FIRST, lows), np.where(highs >= limits.max, LAST, highs)


def _known(spec: JoinSpec, columns: dict[str | None, pa.Array]) -> Iterator[pa.RecordBatch]:
    """Rows with these keys; without those that the output column cannot even hold."""
    fits = np.ones(len(next(iter(columns.values()))), np.bool_)
    for array in columns.values():
        fits &= valid_rows(array)
    if fits.any():
        named = {str(name): array.filter(pa.array(fits)) for name, array in columns.items() if name is not None}
        yield _rows(spec, named, int(fits.sum()))


def _decoded(spec: JoinSpec, key_class: int, keys: Keys, valid: Array | None = None) -> pa.Array:
    """Keys as values of the output column of their class; NULL where it cannot hold them."""
    column = spec.key_column(key_class)
    assert column is not None
    domain = spec.classes[key_class]
    if isinstance(keys, np.ndarray):
        keys = pa.array(ordered(keys, domain), mask=None if valid is None else ~valid)
    return decode(keys, domain, spec.schema.field(column).type)


def _rows(spec: JoinSpec, columns: dict[str, pa.Array], rows: int) -> pa.RecordBatch:
    columns = {**columns, MARK: pa.array(np.ones(rows, np.bool_))}
    arrays = [columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in spec.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=spec.schema)
