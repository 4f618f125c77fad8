"""Promises as they arrive with the rows of an input, and as they are given out.

    arriving   punctuations are taken out of a batch; what it promises is read, and checked against what it has promised
    told       rows of the output that are punctuations

A row that breaks a promise is joined as any other, with what is still there: results with rows that have gone are
missing. `verifyConstraints` counts such rows, or makes the first an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_mjoin.counts import BatchCounts, Promised
from spark_mjoin.engine.feed import Piece
from spark_mjoin.errors import PromiseError
from spark_mjoin.join.completion import View
from spark_mjoin.join.keys import decode
from spark_mjoin.join.punctuations import Delivered, Said, read
from spark_mjoin.model import HIGH, LOW, MARK, Array, InputSpec, JoinSpec
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.columns import valid_rows
from spark_mjoin.state.keysets import FIRST, LAST, ByteSet, Keys, KeySet, WordSet, ordered
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.promises import Classes, Promises
from spark_mjoin.state.routing import ALL_SLOTS, Slots, of_numbers

_NO_MORE = {
    "punctuation": "its key was promised not to come any more",
    "unique": "its key has come before, and option 'unique' promises that none comes twice",
    "clustered": "its key came before another one, and option 'clustered' promises that rows with a key come together",
    "ordered": "a key that is further on came before it, and option 'ordered' promises an order",
}


@dataclass
class Arriving:
    """A batch of an input, without its punctuations, and what it promises."""

    number: int
    data: pa.RecordBatch
    said: Said | None
    delivered: Delivered | None

    def take_in(self, promises: Promises) -> None:
        if self.said is not None:
            self.said.add_to(promises, self.number)
        if self.delivered is not None:
            self.delivered.note(promises)


def arriving(
    state: OperatorState,
    number: int,
    piece: Piece,
    slots: Slots,
    counts: BatchCounts,
    verify: str,
) -> Arriving:
    """Split a piece into data and promises. Every task gets all punctuations, so the owner of a slot counts each."""
    spec, input, marked, data = state.spec, state.spec.inputs[number], piece.marked, piece.data()
    said = None
    if marked is not None:
        said = read(spec, number, piece.rows, marked, slots)
        own = slots.have(of_numbers(piece.all_numbers()[marked]))
        counts.promised += Promised(punctuations=int(own.sum()))
    delivered = None
    if by_order(input, verify):
        assert not piece.own, "such an input comes whole (engine.feed)"
        delivered = Delivered(spec, number, data, slots)
    if delivered is not None and verify != "off":
        at = np.arange(data.num_rows) if marked is None else np.flatnonzero(~marked)

        def present(classes: Classes, keys: Keys) -> Array:
            there = View.of_table(spec, state.tables[number], np.zeros(BUCKETS, np.bool_))
            known = state.promises.of[number].sets.get(classes)
            found = there.has(spec, classes, keys)
            return found if known is None else found | known.contains(keys)

        broken = delivered.broken(state.promises, said, at, piece.data_numbers(), present)
        counts.promised += Promised(broken=len({int(row) for rows in broken.values() for row in rows}))
        if broken and verify == "fail":
            name, rows = min(broken.items(), key=lambda entry: int(entry[1][0]))
            raise PromiseError(
                f"source '{spec.sources[input.source].alias}' broke a promise: {_NO_MORE[name]}. The row is "
                f"{data.slice(int(rows[0]), 1).to_pylist()[0]}. Set verifyConstraints to 'count' to go on regardless, "
                "or mend the source; results with rows that have left the state would be missing"
            )
    return Arriving(number, data, said, delivered)


def by_order(input: InputSpec, verify: str) -> bool:
    """Whether what an input promises shows only in all its rows, one after the other: not in those of one task."""
    return bool(input.clustered) or input.ordered is not None or (input.promising and verify != "off")


def awaited(state: OperatorState, piece: Piece) -> Array | None:
    """Which rows of a piece another input waits for: it has promised their keys, and is not done with them.

    None where none waits, or where the order of the rows is what their input promises. Punctuations are not awaited.
    """
    number, promises = piece.input, state.promises
    input = state.spec.inputs[number]
    waiting = [n for n, promise in enumerate(promises.of) if n != number and promise.sets]
    if not waiting or input.clustered or input.ordered:
        return None
    found = Delivered(state.spec, number, piece.data(), ALL_SLOTS).awaited(promises, waiting)
    if piece.marked is None:
        return found
    out = np.zeros(piece.rows.num_rows, np.bool_)
    out[~piece.marked] = found
    return out


def told(spec: JoinSpec, what: Sequence[tuple[Classes, KeySet]], slots: Slots) -> Iterator[pa.RecordBatch]:
    """Punctuations of the output. Of several partitions, each tells the keys that only its own rows can have."""
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
            parts = split_joint(spec, classes, keys.values)
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


def split_joint(spec: JoinSpec, classes: Classes, keys: pa.Array) -> list[Keys]:
    """The keys of each class, from keys of several taken together (see keysets.together)."""
    out: list[list[int | bytes]] = [[] for _ in classes]
    for key in keys.to_pylist():
        at = 0
        for number, c in enumerate(classes):
            word = int.from_bytes(key[at : at + 8], "little", signed=True)
            at += 8
            if spec.classes[c].is_word:
                out[number].append(word)
            else:
                out[number].append(key[at : at + word])
                at += word
    return [
        np.array(of, np.int64) if spec.classes[c].is_word else pa.array(of, pa.large_binary())
        for c, of in zip(classes, out, strict=True)
    ]
