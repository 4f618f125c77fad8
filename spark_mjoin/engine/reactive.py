"""The disk-to-memory phase: while inputs block, a disk part probes what the others have in memory (section 2.4).

    disk part of one bucket of one input ──piece by piece──> probes the others' tables ──not out yet?──> results

What has been seen is recorded as a visit, so that neither a later visit nor the clean-up gives it out again. Other
inputs' disk parts take no part: combinations with two rows on disk are left to a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_mjoin.counts import PhaseCounts
from spark_mjoin.engine.disk import Part, not_out_yet, take_in
from spark_mjoin.join.bound import pooled
from spark_mjoin.join.operator import materialise, produce
from spark_mjoin.join.orders import Probing
from spark_mjoin.join.windows import Windows
from spark_mjoin.state.operator import OperatorState, new_table
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.table import Table


def visit(
    state: OperatorState,
    store: StateStore,
    input: int,
    bucket: int,
    area: int,
    phase: PhaseCounts,
    probing: Probing | None = None,
) -> Iterator[pa.RecordBatch]:
    """Join the disk part of a bucket of one input with the others' rows in memory."""
    spec, main = state.spec, state.groups.main[0]
    probing = probing or Probing.unplanned(spec)
    for piece in _pieces(state, store, input, bucket, area):
        phase.peak_bytes = max(phase.peak_bytes, piece.nbytes())
        phase.work.moves += piece.rows
        tables = [piece if i == input else table for i, table in enumerate(state.tables)]
        order = probing.order(input, [table.rows for table in tables], state.edges, {})
        flushed = [
            state.residency.flushed(i, table.buckets, table.arrived) if i == input else np.full(table.rows, NEVER)
            for i, table in enumerate(tables)
        ]
        found = produce(spec, tables, 0, piece.rows, order, phase.work, Windows.of(spec, state.progress))
        for bound in pooled(not_out_yet(state, tables, flushed, found)):
            state.give_out_late(tables[main].buckets_of(bound[main]))
            yield from materialise(spec, tables, bound)
    state.groups.visited(input, bucket)
    state.residency.visit(input, bucket)


def _pieces(state: OperatorState, store: StateStore, input: int, bucket: int, area: int) -> Iterator[Table]:
    """The disk part as tables of at most about `area` bytes."""
    piece = new_table(state.spec, input, tracked=True)
    for batch in Part(input, (bucket,)).read(state, store):
        take_in(piece, batch, lambda b, a: state.residency.flushed(input, b, a) != NEVER)
        if piece.nbytes() > area:
            yield piece
            piece = new_table(state.spec, input, tracked=True)
    if piece.rows:
        yield piece
