"""A pass over inputs that have no key in common: one after the other, divided by the key that leads to it.

    a ──> by x: b ──combinations of a, b──> by y: c ──combinations of a, b, c──> by z: d ──> results
                      temporary file, by y              temporary file, by z

A *stage* has the inputs that are reached through one key. They and the combinations so far are divided by the hash of
that key into groups, so that the inputs' rows of a group fit half of the work area. Group by group, these are put into
tables, and the combinations pass by in portions and probe them. What they find is written to a temporary file, divided
by the key of the next stage. So every input is read once, however small the memory is: classic hash joins on disk, one
for every stage, with the combinations as the side that passes by. A group that is too large all the same, as one with a
frequent key, is taken block by block, and its combinations pass by once for every block.

Segments are clustered by a key of their input already. Where that is the key of the stage, which it is on chains from
the main class outwards, groups are some buckets, and are read where they lie. Other inputs are written to a temporary
file first, by group.

Few combinations are not written anywhere: they stay in memory and the inputs of the stage go past them. So a pass in
which little is new writes little. A sieve of the combinations' keys, one bit of a hash each, keeps rows without a
partner out of the tables.

Where buckets have been passed over before, combinations of old rows alone are not looked for. As with arrivals, the
new rows of one input meet the old ones of some inputs and all of the others, input by input:

    new a, old b, old c        all a, new b, old c        all a, all b, new c

Temporary files have no names, so nothing is left of them when a task ends, however it ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import IO, Protocol

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import PhaseCounts
from spark_mjoin.engine.disk import Part, Passed, Wanted, key_name, needed_bytes, stored_rows, take_in
from spark_mjoin.engine.overflow import give_back
from spark_mjoin.errors import StateError
from spark_mjoin.join.operator import Bound, extend
from spark_mjoin.join.orders import Probing, order_of
from spark_mjoin.join.windows import Windows
from spark_mjoin.model import Array, JoinSpec, ProbeOrder
from spark_mjoin.state.buckets import BUCKETS, DIGIT_BITS, DIGIT_SHIFT, bucket_class, main_class, of_hashes
from spark_mjoin.state.columns import GatherTooLarge, hash_array
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.stored import buckets_of
from spark_mjoin.state.table import ARRIVED, Table, index_bytes

MOST_DEPTH = 2  # digits below the bucket by which groups may be divided: more would be too many for a temporary file
PORTION = 4  # of the work area, the part that passes by together
LEAST_PORTION = 256  # rows of it at the least, and of a table
MOST_PORTION = 1 << 14
FULL = 0.9  # of the room for the rows of a group, where they are only estimated

Tables = dict[int, Table]  # by input
Finish = Callable[[Sequence[Table], Iterator[Bound]], Iterator[pa.RecordBatch]]


class Rows(Enum):
    """Which rows of an input a run is about, by whether they have been in a pass before."""

    ALL = "all"
    OLD = "old"
    NEW = "new"


@dataclass(frozen=True)
class Stage:
    """The inputs that are reached through one key, after some others are bound."""

    key_class: int
    supplier: int  # a bound input that has the key
    bound: tuple[int, ...]
    order: ProbeOrder

    @property
    def targets(self) -> list[int]:
        return [step.target for step in self.order.steps]


@dataclass
class Pass:
    """All combinations of some buckets of the main class that have a row which is new to them."""

    state: OperatorState
    store: StateStore
    buckets: tuple[int, ...]
    area: int
    phase: PhaseCounts
    probing: Probing
    passed: Passed
    finish: Finish  # gives out combinations: of tables, and numbers of their rows
    _windows: Windows | None = field(init=False)
    _empty: list[Table] = field(init=False)

    def __post_init__(self) -> None:
        self._empty = [new_table(self.spec, i, tracked=True) for i in range(len(self.spec.inputs))]
        self._windows = Windows.of(self.spec, self.state.progress)

    @property
    def spec(self) -> JoinSpec:
        return self.state.spec

    def results(self) -> Iterator[pa.RecordBatch]:
        for origin, rows in self._runs():
            yield from self._run(origin, rows)

    def _runs(self) -> Iterator[tuple[int, list[Rows]]]:
        """Origins, and which rows of every input: together, each combination with a new row exactly once.

        The last is an input with the main class, the largest, which needs no table: where nothing is old, its is the
        only run, and it begins where segments are clustered as the first stage needs them.
        """
        inputs, main = range(len(self.spec.inputs)), self.state.groups.main
        sequence = sorted(inputs, key=lambda i: (i in main, self._stored_rows(i), i))
        for at, origin in enumerate(sequence):
            later = sequence[at + 1 :]
            if all(self.passed.has_old(i) for i in later):
                rows = [Rows.OLD if i in later else Rows.ALL for i in inputs]
                rows[origin] = Rows.NEW
                yield origin, rows

    def _run(self, origin: int, rows: list[Rows]) -> Iterator[pa.RecordBatch]:
        stages = self._stages(origin)
        division = self._division(stages[0])
        found = self._begin(origin, stages[0], division, rows[origin])
        for stage, following in zip(stages, [*stages[1:], None], strict=True):
            if following is None:
                for passing, held in self._together(stage, division, found, rows):
                    tables = self._tables(stage.bound, passing, held)
                    yield from self.finish(tables, self._found(stage, passing, tables))
            else:
                next_division = self._division(following)
                sink = self._sink(following, next_division)
                for passing, held in self._together(stage, division, found, rows):
                    tables = self._tables(self._looked_at(stage), passing, held)
                    for bound in self._found(stage, passing, tables):
                        sink.add(passing, bound[stage.bound[0]], tables, bound)
                found, division = sink.end(), next_division
            give_back()

    # --- stages ----------------------------------------------------------------------------------------------

    def _stages(self, origin: int) -> list[Stage]:
        """An order from an origin, cut where the key changes by which it is divided.

        An input comes first that is reached through the same key as the one before; then one that is clustered by the
        key through which it is reached; then as the probing order says.
        """
        spec = self.spec
        sizes = [self._stored_rows(i) for i in range(len(spec.inputs))]
        planned = [step.target for step in self.probing.order(origin, sizes, self.state.edges, {}).steps]
        bound, targets, keys, key = [origin], list[int](), list[int](), bucket_class(spec, origin)
        while len(targets) < len(planned):
            shared = frozenset[int]().union(*(spec.classes_of(i) for i in bound))
            options = [
                (c != key, c != bucket_class(spec, target), planned.index(target), c)
                for target in planned
                if target not in bound
                for c in sorted(spec.classes_of(target) & shared)
            ]
            *_, place, key = min(options)
            bound.append(planned[place])
            targets.append(planned[place])
            keys.append(key)
        steps = order_of(spec, origin, targets).steps
        out: list[Stage] = []
        for number, (step, key) in enumerate(zip(steps, keys, strict=True)):
            if out and out[-1].key_class == key:
                out[-1] = replace(out[-1], order=ProbeOrder(origin, (*out[-1].order.steps, step)))
            else:
                before = bound[: number + 1]
                supplier = next(i for i in before if key in spec.classes_of(i))
                out.append(Stage(key, supplier, tuple(sorted(before)), ProbeOrder(origin, (step,))))
        return out

    def _division(self, stage: Stage) -> Division:
        """Groups of a stage's key whose rows are expected to fit, all inputs of the stage together."""
        buckets = self.buckets if stage.key_class == main_class(self.spec) else tuple(range(BUCKETS))
        sizes = sum(self._bytes_by_bucket(target, stage.key_class) for target in stage.targets)
        assert isinstance(sizes, np.ndarray)
        return Division.packed(buckets, sizes[list(buckets)], FULL * self._room)

    def _bytes_by_bucket(self, input: int, key_class: int) -> Array:
        """About how many bytes of memory the rows of an input need in each bucket of a key."""
        rows = self.state.groups.resident[input] + self.state.groups.disk[input]
        if bucket_class(self.spec, input) != key_class:
            some = rows[list(self.buckets)] if input in self.state.groups.main else rows
            rows = np.full(BUCKETS, some.sum() / BUCKETS)
        return np.array([needed_bytes(self.state, input, int(n)) for n in rows], np.float64)

    @property
    def _room(self) -> float:
        """Bytes for the rows of a group."""
        return self.area / 2

    def _stored_rows(self, input: int) -> int:
        return stored_rows(self.state, self._part(input, None))

    # --- combinations ----------------------------------------------------------------------------------------

    def _begin(self, origin: int, stage: Stage, division: Division, rows: Rows) -> Combinations:
        """The rows that a run begins with: where they lie, if that is how the first stage needs them."""
        if bucket_class(self.spec, origin) == stage.key_class and not self._are_few(origin, rows):
            return _Stored(self, origin, stage.key_class, division, rows)
        sink = self._sink(stage, division)
        for batch in self._part(origin, None).read(self.state, self.store):
            sink.put(self._chosen(origin, batch, rows))
        return sink.end()

    def _are_few(self, origin: int, rows: Rows) -> bool:
        groups = self.state.groups
        count = self._stored_rows(origin)
        if rows is Rows.NEW and self.passed.any:
            waiting = groups.waiting[origin, list(self.buckets)]
            count = int(min(count, waiting.sum() if origin in groups.main else waiting.max()))
        return needed_bytes(self.state, origin, count) <= self.area // 4

    def _sink(self, stage: Stage, division: Division) -> _Sink:
        return _Sink(self.spec, stage, division, self.area)

    def _part(self, input: int, buckets: tuple[int, ...] | None) -> Part:
        """The rows of some buckets of an input's own, or all that the pass is about."""
        return Part(input, self.buckets if buckets is None and input in self.state.groups.main else buckets)

    def _wanted(self, input: int, rows: Rows) -> Wanted | None:
        if rows is Rows.ALL or not self.passed.any:
            return None
        return lambda own, arrived: self.passed.is_old(input, own, arrived) == (rows is Rows.OLD)

    def _chosen(self, input: int, batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
        wanted = self._wanted(input, rows)
        if wanted is None:
            return batch
        own = buckets_of(self.state, input, batch)
        return batch.filter(pa.array(wanted(own, arrived_of(batch))))

    # --- joining ---------------------------------------------------------------------------------------------

    def _together(
        self, stage: Stage, division: Division, found: Combinations, rows: list[Rows]
    ) -> Iterator[tuple[pa.RecordBatch, Tables]]:
        """Combinations so far, and tables with rows of a stage's inputs: whatever joins is together once."""
        if not found.rows:
            return
        spilled: dict[int, Spill] = {}
        if any(group is not None for group in found.groups()):
            for target in stage.targets:
                if bucket_class(self.spec, target) != stage.key_class:
                    spilled[target] = self._spill(target, stage, division, found.sieve, rows[target])
        shares = [float(self._bytes_by_bucket(target, stage.key_class).sum()) for target in stage.targets]
        rooms = [self._room * max(share / max(sum(shares), 1.0), 1 / 8) for share in shares]

        def blocks(at: int, group: int | None, held: Tables) -> Iterator[Tables]:
            if at == len(stage.targets):
                yield held
                return
            target = stage.targets[at]
            if target in spilled and group is not None:
                batches = spilled[target].read(group, int(rooms[at]))
            else:
                batches = self._read(target, stage.key_class, division, group, found.sieve, rows[target])
            for table in _filled(self.spec, target, batches, rooms[at]):
                self.phase.work.moves += table.rows
                yield from blocks(at + 1, group, held | {target: table})

        for group in found.groups():
            for held in blocks(0, group, {}):
                for passing in found.read(group):
                    self._note_peak(held, passing)
                    yield passing, held

    def _looked_at(self, stage: Stage) -> list[int]:
        """The inputs of which a stage needs more than that their rows go on as they are."""
        if self.spec.windowed:
            return list(stage.bound)
        suppliers = {i for step in stage.order.steps for i in step.suppliers}
        residuals = [self.spec.residuals[r].inputs for step in stage.order.steps for r in step.residuals]
        return [i for i in stage.bound if i in suppliers.union(*residuals)]

    def _tables(self, inputs: Sequence[int], passing: pa.RecordBatch, held: Tables) -> list[Table]:
        """Tables of all inputs: those of some that pass by, of those that are held, and empty ones."""
        out = [held[i] if i in held else self._empty[i] for i in range(len(self.spec.inputs))]
        for i in inputs:
            arrays = [passing.column(name) for name in _columns(self.spec, i)]
            out[i] = new_table(self.spec, i, tracked=True)
            out[i].append(arrays[:-1], arrays[-1].to_numpy())
        return out

    def _found(self, stage: Stage, passing: pa.RecordBatch, tables: Sequence[Table]) -> Iterator[Bound]:
        numbers = np.arange(passing.num_rows, dtype=np.int32)
        bound = dict.fromkeys(stage.bound, numbers)
        return extend(self.spec, tables, bound, stage.order, self.phase.work, self._windows)

    def _read(
        self, input: int, key_class: int, division: Division, group: int | None, sieve: Array | None, rows: Rows
    ) -> Iterator[pa.RecordBatch]:
        """The rows of an input in a group, as far as they may have a partner."""
        clustered = bucket_class(self.spec, input) == key_class
        buckets = division.buckets[group] if group is not None and clustered else None
        for batch in self._part(input, buckets).read(self.state, self.store):
            keep = None
            if sieve is not None or (group is not None and (division.depth or not clustered)):
                hashes = hash_array(batch.column(key_name(self.spec, input, key_class)))
                keep = np.ones(batch.num_rows, np.bool_) if sieve is None else sieve[_holes(sieve, hashes)]
                if group is not None and (division.depth or not clustered):
                    keep &= division.groups(hashes) == group
            batch = batch if keep is None or keep.all() else batch.filter(pa.array(keep))
            yield self._chosen(input, batch, rows)

    def _spill(self, input: int, stage: Stage, division: Division, sieve: Array | None, rows: Rows) -> Spill:
        """The rows of an input in a temporary file, by group of a key that its segments are not clustered by."""
        alone = Stage(stage.key_class, input, (input,), stage.order)
        sink = self._sink(alone, division)
        for batch in self._read(input, stage.key_class, division, None, sieve, rows):
            sink.put(batch)
        return sink.spill(names=[*(s.field for s in self.spec.inputs[input].stored), ARRIVED])

    def _note_peak(self, held: Tables, passing: pa.RecordBatch) -> None:
        used = int(sum(map(table_bytes, held.values()))) + passing.nbytes
        self.phase.peak_bytes = max(self.phase.peak_bytes, used + self.area // 4)  # and what a sink holds


def table_bytes(table: Table) -> float:
    """What a table with one index needs."""
    return table.rows * table.row_bytes() + index_bytes(table.rows, hashed=True)


def _filled(spec: JoinSpec, input: int, batches: Iterable[pa.RecordBatch], room: float) -> Iterator[Table]:
    """Rows in tables, each of which fits, or has few rows."""
    table = new_table(spec, input, tracked=True)
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            each = table.row_bytes() or batch.nbytes / batch.num_rows
            fitting = int((room - table_bytes(table)) / (each + 20))  # what an index needs for a row, or less
            fitting = max(fitting, LEAST_PORTION - table.rows, 1)
            take_in(table, batch.slice(at, fitting))
            at += fitting
            if table_bytes(table) >= room and table.rows >= LEAST_PORTION:
                yield table
                table = new_table(spec, input, tracked=True)
    if table.rows:
        yield table


# --- groups ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Division:
    """Groups of the values of a key: some buckets, or where buckets are too large, parts of one."""

    depth: int  # digits of the hash below the bucket
    buckets: list[tuple[int, ...]]  # of each group
    _group_of: Array  # by bucket and digits

    @staticmethod
    def packed(buckets: Sequence[int], sizes: Array, room: float) -> Division:
        """Neighbours are in one group as long as they fit."""
        depth = 0
        while depth < MOST_DEPTH and sizes.max(initial=0) / (1 << DIGIT_BITS * depth) > room:
            depth += 1
        cells = 1 << DIGIT_BITS * depth
        group_of = np.full(BUCKETS * cells, -1, np.int32)
        of, held = list[dict[int, None]](), 0.0
        for bucket, size in zip(buckets, sizes, strict=True):
            for cell in range(cells):
                held += size / cells
                if not of or held > room:
                    of.append({})
                    held = size / cells
                of[-1][bucket] = None
                group_of[bucket * cells + cell] = len(of) - 1
        return Division(depth, [tuple(each) for each in of], group_of)

    def groups(self, hashes: Array) -> Array:
        """The group of each hash."""
        cells = of_hashes(hashes).astype(np.int32)
        if self.depth:
            bits = DIGIT_BITS * self.depth
            digits = (hashes >> np.uint64(DIGIT_SHIFT)) & np.uint64((1 << bits) - 1)
            cells = (cells << bits) | digits.astype(np.int32)
        out: Array = self._group_of[cells]
        return out


class Combinations(Protocol):
    """Rows of some inputs that are found together, for the next stage."""

    rows: int
    sieve: Array | None  # of their keys; None where all may be there

    def groups(self) -> Sequence[int | None]:
        """The groups that have any; only None where they are not divided."""

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        """Those of a group, in portions: a row has the stored columns and the arrivals of all inputs side by side."""


@dataclass
class _Stored:
    """Rows of one input, where they lie."""

    of: Pass
    input: int
    key_class: int
    division: Division
    chosen: Rows
    sieve: Array | None = None

    def __post_init__(self) -> None:
        self.rows = self.of._stored_rows(self.input)

    def groups(self) -> Sequence[int | None]:
        return range(len(self.division.buckets))

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        batches = self.of._read(self.input, self.key_class, self.division, group, None, self.chosen)
        schema = _schema(self.of.spec, (self.input,))
        for batch in batches:
            yield from _portions(_as(schema, batch), self.of.area)


@dataclass
class _Few:
    """Combinations that are in memory."""

    batches: list[pa.RecordBatch]
    sieve: Array | None

    def __post_init__(self) -> None:
        self.rows = sum(batch.num_rows for batch in self.batches)

    def groups(self) -> Sequence[int | None]:
        return [None] if self.rows else []

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        yield from self.batches


@dataclass
class _Spilled:
    """Combinations in a temporary file."""

    spill: Spill
    area: int
    rows: int
    sieve: Array | None

    def groups(self) -> Sequence[int | None]:
        return sorted(self.spill.places)

    def read(self, group: int | None) -> Iterator[pa.RecordBatch]:
        assert group is not None
        yield from self.spill.read(group, self.area // PORTION)


class _Sink:
    """Takes the combinations that a stage finds: few stay in memory, many go to a temporary file by group of the next.

    A quarter of the work area is for those that are not written yet.
    """

    def __init__(self, spec: JoinSpec, stage: Stage, division: Division, area: int) -> None:
        self._spec, self._stage, self._division, self._area = spec, stage, division, area
        self._schema = _schema(spec, stage.bound)
        self._key = _columns(spec, stage.supplier)[dict(spec.inputs[stage.supplier].keys)[stage.key_class]]
        self._pool: list[pa.RecordBatch] = []
        self._size = self._rows = 0
        self._spill: Spill | None = None
        self._sieve = np.zeros(1 << max(12, (area // 16).bit_length()), np.bool_)

    def add(self, passing: pa.RecordBatch, numbers: Array, tables: Sequence[Table], bound: Bound) -> None:
        """Take combinations: numbers of rows that pass by, and of tables' rows for the inputs that do not."""
        held = [i for i in self._stage.bound if _columns(self._spec, i)[0] not in passing.schema.names]
        each = passing.nbytes / max(1, passing.num_rows) + sum(tables[i].row_bytes() for i in held)
        portion = _portion(each, self._area)
        for at in range(0, numbers.size, portion):
            some = slice(at, at + portion)
            self._gather(passing, numbers[some], tables, {i: bound[i][some] for i in held})

    def _gather(self, passing: pa.RecordBatch, numbers: Array, tables: Sequence[Table], bound: Bound) -> None:
        try:
            found = passing.take(pa.array(numbers))
            named = dict(zip(found.schema.names, found.columns, strict=True))
            for i, rows in bound.items():
                stored = self._spec.inputs[i].stored
                arrays = [c.gather(rows, s.type) for c, s in zip(tables[i].columns, stored, strict=True)]
                arrays.append(pa.array(tables[i].arrivals.of(rows)))
                named |= zip(_columns(self._spec, i), arrays, strict=True)
        except (GatherTooLarge, pa.ArrowInvalid, pa.ArrowCapacityError):  # Arrow's ways to say the same
            if numbers.size == 1:
                raise
            middle = numbers.size // 2
            for half in (slice(None, middle), slice(middle, None)):
                self._gather(passing, numbers[half], tables, {i: rows[half] for i, rows in bound.items()})
            return
        batch = pa.RecordBatch.from_arrays([named[name] for name in self._schema.names], schema=self._schema)
        self._put(batch, batch.get_total_buffer_size())

    def put(self, batch: pa.RecordBatch) -> None:
        """Take rows of one input, as they are stored in segments."""
        for portion in _portions(_as(self._schema, batch), self._area):
            self._put(portion, portion.nbytes)

    def _put(self, batch: pa.RecordBatch, size: int) -> None:
        hashes = hash_array(batch.column(self._key))
        self._sieve[_holes(self._sieve, hashes)] = True
        self._pool.append(batch)
        self._rows += batch.num_rows
        self._size += size
        if self._size > self._area // 4:
            self._write()

    def _write(self) -> None:
        """Put what is in memory into the temporary file."""
        if self._spill is None:
            self._spill = Spill(self._schema)
        for batch in _one(self._pool):
            groups = self._division.groups(hash_array(batch.column(self._key)))
            order = np.argsort(groups, kind="stable")
            sorted_ = batch.take(pa.array(order))
            numbers, first = np.unique(groups[order], return_index=True)
            for group, low, high in zip(numbers, first, [*first[1:], batch.num_rows], strict=True):
                self._spill.write(int(group), sorted_.slice(low, high - low))
        self._pool, self._size = [], 0

    def end(self) -> Combinations:
        """All that was taken."""
        if self._spill is None:
            return _Few(_one(self._pool), self._sieve)
        return _Spilled(self.spill(), self._area, self._rows, self._sieve)

    def spill(self, names: list[str] | None = None) -> Spill:
        """All that was taken, in the temporary file; columns may be called otherwise when they are read."""
        self._write()
        assert self._spill is not None
        self._spill.names = names
        return self._spill


class Spill:
    """Batches in a temporary file, by group."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="mjoin-")  # noqa: SIM115 it lives as long as this
        self._end = 0
        self.places: dict[int, list[tuple[int, int]]] = {}  # of each group: offsets and sizes
        self.names: list[str] | None = None

    def write(self, group: int, batch: pa.RecordBatch) -> None:
        message = batch.serialize()
        try:
            self._file.write(message)
        except OSError as e:
            raise StateError(
                f"cannot write to a temporary file in {tempfile.gettempdir()}: {e}; the state's last version is intact"
            ) from e
        self.places.setdefault(group, []).append((self._end, message.size))
        self._end += message.size

    def read(self, group: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
        """The rows of a group, in batches of at most so many bytes, or as they were written."""
        self._file.flush()
        pool, held = list[pa.RecordBatch](), 0
        for offset, size in self.places.get(group, ()):
            if pool and held + size > most_bytes:
                yield from _one(pool)
                pool, held = [], 0
            pool.append(self._message(offset, size))
            held += size
        yield from _one(pool)

    def _message(self, offset: int, size: int) -> pa.RecordBatch:
        message = np.empty(size, np.uint8)
        if os.preadv(self._file.fileno(), [message.data], offset) != size:
            raise StateError(f"a temporary file in {tempfile.gettempdir()} has become shorter")
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)
        return batch if self.names is None else batch.rename_columns(self.names)


def _columns(spec: JoinSpec, input: int) -> list[str]:
    """The names that the stored columns of an input have in combinations, and its arrivals."""
    return [*(f"{input}.{ordinal}" for ordinal in range(len(spec.inputs[input].stored))), f"{input}"]


def _schema(spec: JoinSpec, inputs: Sequence[int]) -> pa.Schema:
    """Of combinations of rows of some inputs."""
    types = [[*(stored.type for stored in spec.inputs[i].stored), pa.int32()] for i in inputs]
    return pa.schema([f for i, of in zip(inputs, types, strict=True) for f in zip(_columns(spec, i), of, strict=True)])


def _as(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of one input as combinations."""
    arrays = [column.cast(to.type) for column, to in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The same rows in one batch, if there are any."""
    if len(batches) <= 1:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _holes(sieve: Array, hashes: Array) -> Array:
    """Where in a sieve some hashes are: by their top bits, since partitions have low ones in common."""
    out: Array = (hashes >> np.uint64(65 - sieve.size.bit_length())).astype(np.int64)
    return out


def _portion(each: float, area: int) -> int:
    """How many rows of a size pass by together."""
    return int(min(max(area / PORTION / max(each, 1.0), LEAST_PORTION), MOST_PORTION))


def _portions(batch: pa.RecordBatch, area: int) -> Iterator[pa.RecordBatch]:
    """Rows in batches that may pass by."""
    portion = _portion(batch.nbytes / max(1, batch.num_rows), area)
    for at in range(0, batch.num_rows, portion):
        yield batch.slice(at, portion)
