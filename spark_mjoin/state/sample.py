"""A sample of the rows that have arrived, small enough to be joined as a whole: what estimates are made from.

    rows of all inputs ──hash of the key < 2^-c──> rows with these keys ──hash of the number < 2^-r──> sample

Keys are sampled, not pairs of rows: a key is in or out for all inputs alike, so that the rows of the sample find their
partners there (correlated sampling). `classes` are key classes such that every input has one of them at least; a row is
in the sample if all that it has of these are. Where few keys have most of the results, leaving out a key would leave
out too much at once, and rows are left out instead, each input for itself.

A combination of the join is in the sample with probability 2^-(sum of all halvings), the same for each. So what is
counted in the sample, times `scale`, is an estimate of the same count in the join without bias (Horvitz and Thompson).

The sample keeps rows that the join has evicted, dropped or shed in part, and so knows what they would give. It is part
of the state. Only what a join needs is kept of a row: keys, its place in a window, and columns of inputs that
conditions over several inputs are about.

Not covered: which rows are halved, and what is counted (engine.sampling).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_mjoin import kernel
from spark_mjoin.model import Array, InputSpec, JoinSpec, Window
from spark_mjoin.state.buckets import bucket_class
from spark_mjoin.state.columns import hash_array, rows_in
from spark_mjoin.state.manifest import SampleFigures, Segment
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.slots import Slots
from spark_mjoin.state.table import Table

MOST_HALVINGS = 60
EXTRA_BYTES = 20  # of a row, besides what its table has: number, weight, loss
_KEYS = np.uint64(0xA0761D6478BD642F)  # odd, so that the top bits depend on all: other bits choose partition and bucket
_STEP, _SEED = np.uint64(0x9E3779B97F4A7C15), 0xE7037ED1A0B428DB  # so that numbers are hashed as nothing else is


@dataclass
class Sample:
    spec: JoinSpec  # the whole join, over the columns that are kept
    columns: list[list[int]]  # per input, ordinals of its stored columns that are kept
    classes: tuple[int, ...]  # that are sampled
    tables: list[Table]
    numbers: list[Array]  # per input, of every row its number among all that arrived
    weights: list[Array]  # how many rows each stands for, because others were shed
    lost: list[Array]  # the event at which each was dropped though it would be needed; NEVER
    key_halvings: list[int]  # per sampled class
    row_halvings: list[int]  # per input
    offered: list[int]  # per input, rows that arrived
    clock: int = 0  # counts arrivals where the state does not
    complete_at: tuple[int, int] = (0, 0)  # results, and the clock, when nothing was pending: of trees
    lost_results: float = 0.0  # an estimate of all that will never be emitted
    file: Segment | None = None  # the state file that has the rows as they are; None: it is to be written

    @staticmethod
    def empty(spec: JoinSpec) -> Sample:
        inputs = range(len(spec.inputs))
        in_residuals = frozenset[int]().union(*(residual.inputs for residual in spec.residuals))
        columns = [_needed(spec.inputs[i], i in in_residuals) for i in inputs]
        small = replace(
            spec,
            inputs=tuple(_only(spec.inputs[i], columns[i]) for i in inputs),
            output=(),
            schema=pa.schema([]),
        )
        classes = _cover(spec)
        return Sample(
            small,
            columns,
            classes,
            tables=[Table(small.inputs[i], bucket_class(spec, i)) for i in inputs],
            numbers=[np.empty(0, np.int64) for _ in inputs],
            weights=[np.empty(0) for _ in inputs],
            lost=[np.empty(0, np.int32) for _ in inputs],
            key_halvings=[0] * len(classes),
            row_halvings=[0] * len(columns),
            offered=[0] * len(columns),
        )

    # --- rows ------------------------------------------------------------------------------------------------

    def take(self, input: int, arrays: Sequence[pa.Array], arrived: Array | int, weight: Array | float) -> None:
        """Rows of an input have arrived, given as its stored columns: those that are sampled come in."""
        first, self.offered[input] = self.offered[input], self.offered[input] + len(arrays[0])
        numbers = np.arange(first, self.offered[input], dtype=np.int64)
        kept = self._sampled(input, numbers, {c: arrays[o] for c, o in self._keys_of(input, self.columns[input])})
        if kept is not None:
            chosen = np.flatnonzero(kept)
            if not chosen.size:
                return
            numbers, rows = numbers[chosen], pa.array(chosen)
            arrays = [arrays[o].take(rows) for o in self.columns[input]]
            arrived = arrived[chosen] if isinstance(arrived, np.ndarray) else arrived
            weight = weight[chosen] if isinstance(weight, np.ndarray) else weight
        else:
            arrays = [arrays[o] for o in self.columns[input]]
        self._append(input, arrays, arrived, numbers, np.broadcast_to(weight, numbers.shape))

    def _append(self, input: int, arrays: list[pa.Array], arrived: Array | int, numbers: Array, weights: Array) -> None:
        if numbers.size:
            self.tables[input].append(arrays, arrived)
            self.numbers[input] = np.concatenate([self.numbers[input], numbers])
            self.weights[input] = np.concatenate([self.weights[input], weights])
            self.lost[input] = np.concatenate([self.lost[input], np.full(numbers.size, NEVER, np.int32)])
            self.file = None

    def _keys_of(self, input: int, ordinals: Sequence[int] | None = None) -> list[tuple[int, int]]:
        """The sampled classes of an input, each with the ordinal of its column in the sample, or in `ordinals`."""
        keys = [(c, o) for c, o in self.spec.inputs[input].keys if c in self.classes]
        return keys if ordinals is None else [(c, ordinals[o]) for c, o in keys]

    def _sampled(self, input: int, numbers: Array, keys: Mapping[int, pa.Array]) -> Array | None:
        """Of some rows, which are in the sample; None: all."""
        kept: Array | None = None
        for key_class, column in keys.items():
            if halvings := self.key_halvings[self.classes.index(key_class)]:
                mine = (hash_array(column) * _KEYS) >> np.uint64(64 - halvings) == 0
                kept = mine if kept is None else kept & mine
        if halvings := self.row_halvings[input]:
            mine = _hashed(input, numbers) >> np.uint64(64 - halvings) == 0
            kept = mine if kept is None else kept & mine
        return kept

    def halve_keys(self, key_class: int) -> None:
        """Leave out half of the keys of a sampled class."""
        self.key_halvings[self.classes.index(key_class)] += 1
        for input in self.with_class(key_class):
            self._thin(input)

    def halve_rows(self, input: int) -> None:
        """Leave out half of the rows of an input."""
        self.row_halvings[input] += 1
        self._thin(input)

    def _thin(self, input: int) -> None:
        kept = self._sampled(input, self.numbers[input], {c: self.key(input, c) for c, _ in self._keys_of(input)})
        assert kept is not None
        self.keep(input, kept)

    def keep(self, input: int, kept: Array) -> None:
        """Forget the rows for which the mask is false."""
        if not kept.all():
            self.tables[input].keep(kept)
            for of in (self.numbers, self.weights, self.lost):
                of[input] = of[input][kept]
            self.file = None

    def lose(self, input: int, rows: Array, event: Array | int) -> None:
        """Some rows, given by a mask, are dropped though others to come would have matched them."""
        new = rows & (self.lost[input] == NEVER)
        if new.any():
            self.lost[input][new] = event[new] if isinstance(event, np.ndarray) else event
            self.file = None

    def restart(self) -> None:
        """All that the rows so far have is emitted, and events are counted anew."""
        for input, table in enumerate(self.tables):
            fresh = Table(table.spec, table.bucket_class)
            fresh.append([column.arrow(0, table.rows) for column in table.columns], 0)
            self.tables[input] = fresh
            self.lost[input][self.lost[input] != NEVER] = 0
        self.clock, self.file = 0, None

    @staticmethod
    def united(spec: JoinSpec, samples: Sequence[Sample], slots: Slots) -> Sample:
        """One sample of the rows in some slots that several have; all that they have with each other is emitted.

        A combination is in it as likely as in the one that has left out the most.
        """
        out = Sample.empty(spec)
        out.key_halvings = [max(of) for of in zip(*(s.key_halvings for s in samples), strict=True)]
        out.row_halvings = [max(of) for of in zip(*(s.row_halvings for s in samples), strict=True)]
        out.offered = [max(of) for of in zip(*(s.offered for s in samples), strict=True)]
        assert spec.star_class is not None
        for sample in samples:
            sample.restart()
            for key_class, before, wanted in zip(out.classes, list(sample.key_halvings), out.key_halvings, strict=True):
                for _ in range(before, wanted):
                    sample.halve_keys(key_class)
            for input, table in enumerate(sample.tables):
                for _ in range(sample.row_halvings[input], out.row_halvings[input]):
                    sample.halve_rows(input)
                chosen = rows_in(slots, sample.key(input, spec.star_class))
                stored = [column.arrow(0, table.rows).take(pa.array(chosen)) for column in table.columns]
                out._append(input, stored, 0, sample.numbers[input][chosen], sample.weights[input][chosen])
                lost = out.lost[input]
                lost[lost.size - chosen.size :] = sample.lost[input][chosen]
        return out

    # --- what there is ---------------------------------------------------------------------------------------

    def with_class(self, key_class: int) -> list[int]:
        """The inputs that have a key class."""
        return [i for i in range(len(self.tables)) if key_class in self.spec.classes_of(i)]

    def key(self, input: int, key_class: int) -> pa.Array:
        """The keys of an input's rows."""
        table = self.tables[input]
        return table.column(key_class).arrow(0, table.rows)

    def window(self, input: int) -> Window:
        """The window of an input that has one."""
        window = self.spec.inputs[input].window
        assert window is not None
        return window

    @property
    def scale(self) -> float:
        """How many combinations one of the sample stands for."""
        return float(2.0 ** (sum(self.key_halvings) + sum(self.row_halvings)))

    @property
    def has_lost_rows(self) -> bool:
        """Whether it has rows that were dropped though others to come would have matched them."""
        return any((at != NEVER).any() for at in self.lost)

    @property
    def lossy(self) -> bool:
        """Whether rows were lost that combinations of the sample need."""
        return self.has_lost_rows or any((w != 1).any() for w in self.weights)

    def nbytes(self) -> int:
        return sum(table.nbytes() + EXTRA_BYTES * table.rows for table in self.tables)

    # --- files -----------------------------------------------------------------------------------------------

    def figures(self) -> SampleFigures:
        """What a manifest says about the sample, whose rows are in its file."""
        assert self.file is not None
        return SampleFigures(
            self.file,
            tuple(map(tuple, self.columns)),
            tuple(self.key_halvings),
            tuple(self.row_halvings),
            tuple(self.offered),
            self.clock,
            self.complete_at,
            self.lost_results,
        )

    def rows(self) -> pa.RecordBatch:
        """All rows, for a file: one record per input, with its rows as an Arrow stream."""
        streams = []
        for input, table in enumerate(self.tables):
            stored = [column.arrow(0, table.rows) for column in table.columns]
            extra = [table.arrived, self.numbers[input], self.weights[input], self.lost[input]]
            arrays = [*stored, *(pa.array(values) for values in extra)]
            batch = pa.RecordBatch.from_arrays(arrays, names=[str(n) for n in range(len(arrays))])
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            streams.append(sink.getvalue().to_pybytes())
        return pa.RecordBatch.from_arrays([pa.array(streams, pa.large_binary())], names=["rows"])

    @staticmethod
    def read(spec: JoinSpec, kept: SampleFigures, rows: pa.RecordBatch) -> Sample | None:
        """The sample of a state; None where the query needs other columns of it than are there."""
        sample = Sample.empty(spec)
        if sample.columns != list(map(list, kept.columns)):
            return None
        for input, stream in enumerate(rows.column(0)):
            with pa.ipc.open_stream(stream.as_buffer()) as reader:
                *stored, arrived, numbers, weights, lost = reader.read_all().combine_chunks().columns
            flat = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in stored]
            sample._append(input, flat, arrived.to_numpy(), numbers.to_numpy(), weights.to_numpy())
            sample.lost[input] = lost.to_numpy().copy()
        sample.key_halvings, sample.row_halvings = list(kept.key_halvings), list(kept.row_halvings)
        sample.offered, sample.clock = list(kept.offered), kept.clock
        sample.complete_at, sample.lost_results, sample.file = kept.complete_at, kept.lost_results, kept.file
        return sample


def _hashed(input: int, numbers: Array) -> Array:
    seed = np.uint64((input + 1) * _SEED % 2**64)
    hashes = np.empty(numbers.size, np.uint64)
    kernel.hash_words((numbers.astype(np.uint64) * _STEP + seed).view(np.int64), kernel.ALL_BITS, hashes)
    return hashes


def _cover(spec: JoinSpec) -> tuple[int, ...]:
    """Key classes of which every input has one: few, and those first that many inputs have."""
    members = [{i for i in range(len(spec.inputs)) if c in spec.classes_of(i)} for c in range(len(spec.classes))]
    missing, found = set(range(len(spec.inputs))), list[int]()
    while missing:
        best = max(range(len(members)), key=lambda c: (len(members[c] & missing), len(members[c]), -c))
        missing -= members[best]
        found.append(best)
    return tuple(sorted(found))


def _needed(input: InputSpec, in_residual: bool) -> list[int]:
    """Stored columns that a join needs to find combinations."""
    if in_residual:
        return list(range(len(input.stored)))
    position = None if input.window is None else input.window.position
    others = (position, input.time, input.number)
    return sorted({*(ordinal for _, ordinal in input.keys), *(ordinal for ordinal in others if ordinal is not None)})


def _only(input: InputSpec, columns: list[int]) -> InputSpec:
    """An input with some of its stored columns."""
    at = {ordinal: place for place, ordinal in enumerate(columns)}
    window = input.window
    return replace(
        input,
        stored=tuple(input.stored[o] for o in columns),
        keys=tuple((c, at[o]) for c, o in input.keys),
        payload=tuple((name, at[o]) for name, o in input.payload if o in at),
        window=None if window is None else replace(window, position=at[window.position]),
        time=None if input.time is None else at[input.time],
        number=None if input.number is None else at[input.number],
        punctuations=None,
    )
