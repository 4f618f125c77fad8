"""The join without Spark: what the engine itself costs, with no source, no checkpoint and no JVM in the way."""

from __future__ import annotations

from functools import cache
from itertools import zip_longest

import pyarrow as pa

from benchmarks.workloads import Tables, Workload
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival
from spark_mjoin.engine.feed import Piece
from spark_mjoin.mjoin.bound import pooled
from spark_mjoin.mjoin.operator import materialise
from spark_mjoin.model import JoinSpec
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.operator import OperatorState

BATCH_ROWS = 50_000


@cache
def _plan(query: str, schemas: tuple[tuple[str, pa.Schema], ...]) -> JoinSpec:
    options = Options.parse({"query": query, **{f"source.{alias}.format": "arrow" for alias, _ in schemas}})
    by_alias = dict(schemas)
    return plan_join(options, [by_alias[source.alias] for source in options.sources])


def run_incremental(workload: Workload, tables: Tables, batch_rows: int = BATCH_ROWS) -> list[pa.RecordBatch]:
    """Join `tables` as if they arrived `batch_rows` rows at a time, round robin over the inputs.

    Returns all results, materialised, with the columns of `workload.output_names` by name (any order). State starts
    empty with each call. The caller times the whole call; the plan is made in the first.
    """
    spec = _plan(workload.query, tuple((alias, table.schema) for alias, table in tables.items()))
    state = OperatorState.alone(spec)
    counts = BatchCounts([0] * len(spec.inputs))
    arriving = [tables[input.alias].to_batches(max_chunksize=batch_rows) for input in spec.inputs]
    results: list[pa.RecordBatch] = []
    for batches in zip_longest(*arriving):
        for number, batch in enumerate(batches):
            if batch is not None:
                for bound in pooled(arrival.arrive(state, number, Piece.whole(number, batch), counts)):
                    results += materialise(spec, state.tables, bound)
    return results
