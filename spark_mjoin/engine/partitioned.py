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

    stages.py        which inputs are reached through which key       fitting.py    what fits into memory
    combinations.py  what a stage finds, for the next                 temporary.py  files of batches, by group
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.combinations import (
    Combinations,
    Sink,
    as_combinations,
    column_names,
    combined_schema,
    places_in,
)
from spark_mjoin.engine.disk import Disk, Part, Passed, Wanted, key_name, needed_bytes, stored_rows
from spark_mjoin.engine.fitting import Division, filled_tables, portions, table_bytes
from spark_mjoin.engine.overflow import give_back
from spark_mjoin.engine.stages import Stage, stages_of
from spark_mjoin.engine.temporary import Spill
from spark_mjoin.mjoin.bound import Bound
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.buckets import BUCKETS, bucket_class, main_class
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.operator import new_table
from spark_mjoin.state.segments import arrived_of
from spark_mjoin.state.stored import buckets_of
from spark_mjoin.state.table import ARRIVED, Table

FULL = 0.9  # of the room for the rows of a group, where they are only estimated

Tables = dict[int, Table]  # by input
Finish = Callable[[Sequence[Table], Iterator[Bound]], Iterator[pa.RecordBatch]]


class Rows(Enum):
    """Which rows of an input a run is about, by whether they have been in a pass before."""

    ALL = "all"
    OLD = "old"
    NEW = "new"


@dataclass
class Pass:
    """All combinations of some buckets of the main class that have a row which is new to them."""

    disk: Disk
    buckets: tuple[int, ...]
    passed: Passed
    finish: Finish  # makes results of combinations: of tables, and numbers of their rows
    _empty: list[Table] = field(init=False)

    def __post_init__(self) -> None:
        self._empty = [new_table(self.spec, i, tracked=True) for i in range(len(self.spec.inputs))]
        self.state, self.area, self.phase = self.disk.state, self.disk.area, self.disk.phase

    @property
    def spec(self) -> JoinSpec:
        return self.disk.spec

    def results(self) -> Iterator[pa.RecordBatch]:
        for origin, rows in self.runs():
            yield from self._run(origin, rows)

    def runs(self) -> Iterator[tuple[int, list[Rows]]]:
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
        sizes = [self._stored_rows(i) for i in range(len(self.spec.inputs))]
        order = self.disk.order(origin, sizes)
        return stages_of(self.spec, origin, [step.target for step in order.steps])

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
        for batch in self._part(origin, None).read(self.state, self.disk.store):
            sink.put(self._chosen(origin, batch, rows))
        return sink.end()

    def _are_few(self, origin: int, rows: Rows) -> bool:
        groups = self.state.groups
        count = self._stored_rows(origin)
        if rows is Rows.NEW and self.passed.any:
            waiting = groups.waiting[origin, list(self.buckets)]
            count = int(min(count, waiting.sum() if origin in groups.main else waiting.max()))
        return needed_bytes(self.state, origin, count) <= self.area // 4

    def _sink(self, stage: Stage, division: Division) -> Sink:
        return Sink(self.spec, stage, division, self.area)

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
            for table in filled_tables(self.spec, target, batches, rooms[at]):
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
            arrays = [passing.column(name) for name in column_names(self.spec, i)]
            out[i] = new_table(self.spec, i, tracked=True)
            out[i].append(arrays[:-1], arrays[-1].to_numpy())
        return out

    def _found(self, stage: Stage, passing: pa.RecordBatch, tables: Sequence[Table]) -> Iterator[Bound]:
        numbers = np.arange(passing.num_rows, dtype=np.int32)
        bound = dict.fromkeys(stage.bound, numbers)
        return self.disk.joining(tables).extend(stage.order, bound)

    def _read(
        self, input: int, key_class: int, division: Division, group: int | None, sieve: Array | None, rows: Rows
    ) -> Iterator[pa.RecordBatch]:
        """The rows of an input in a group, as far as they may have a partner."""
        clustered = bucket_class(self.spec, input) == key_class
        buckets = division.buckets[group] if group is not None and clustered else None
        for batch in self._part(input, buckets).read(self.state, self.disk.store):
            keep = None
            if sieve is not None or (group is not None and (division.depth or not clustered)):
                hashes = hash_array(batch.column(key_name(self.spec, input, key_class)))
                keep = np.ones(batch.num_rows, np.bool_) if sieve is None else sieve[places_in(sieve, hashes)]
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
        self.disk.note_peak(used + self.area // 4)  # and what a sink holds


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
        schema = combined_schema(self.of.spec, (self.input,))
        for batch in batches:
            yield from portions(as_combinations(schema, batch), self.of.area)
