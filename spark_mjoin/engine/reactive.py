"""The disk-to-memory phase: while inputs block, a disk part probes what the others have in memory (section 2.4).

    disk part of one bucket of one input ──piece by piece──> probes the others' tables ──not emitted yet?──> results

What has been seen is recorded as a visit, so that neither a later visit nor the clean-up emits it again. Other inputs'
disk parts take no part: combinations with two rows on disk are left to a pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from spark_mjoin.engine.disk import Disk, Part, emitted_late, not_emitted, take_in
from spark_mjoin.state.operator import new_table
from spark_mjoin.state.residency import NEVER
from spark_mjoin.state.table import Table


def visit(disk: Disk, input: int, bucket: int) -> Iterator[pa.RecordBatch]:
    """Join the disk part of a bucket of one input with the others' rows in memory."""
    state = disk.state
    for piece in _pieces(disk, input, bucket):
        disk.note_peak(piece.nbytes())
        disk.phase.work.moves += piece.rows
        tables = [piece if i == input else table for i, table in enumerate(state.tables)]
        flushed = [
            state.residency.flushed(i, table.buckets, table.arrived) if i == input else np.full(table.rows, NEVER)
            for i, table in enumerate(tables)
        ]
        order = disk.order(input, [table.rows for table in tables])
        found = disk.joining(tables).produce(order, 0, piece.rows)
        yield from emitted_late(state, tables, not_emitted(state, tables, flushed, found))
    state.groups.visited(input, bucket)
    state.residency.visit(input, bucket)


def _pieces(disk: Disk, input: int, bucket: int) -> Iterator[Table]:
    """The disk part as tables of at most about the work area."""
    state = disk.state
    piece = new_table(state.spec, input, tracked=True)
    for batch in Part(input, (bucket,)).read(state, disk.store):
        take_in(piece, batch, lambda b, a: state.residency.flushed(input, b, a) != NEVER)
        if piece.nbytes() > disk.area:
            yield piece
            piece = new_table(state.spec, input, tracked=True)
    if piece.rows:
        yield piece
