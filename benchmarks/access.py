"""What scanning costs against looking up, in seconds of the processor: the engine's side of Kang's figures 4 to 6.

    python -m benchmarks.access [--only windows,joins,run,paper] [--rounds 3] [--out out/access]

    windows   the crossover: a slow input probes the window of a fast one, over how many micro-batches long it is
    joins     the four full joins of the paper, hash or scan in each direction, over the rate of the fast input
    run       a longer run as in docs/performance.md: ten rows per micro-batch against a window of a million
    paper     the paper's own structures, a tuple at a time: weights of this machine, crossovers over the number of keys

Each prints its figures, writes them as CSV and PNG, and checks what should hold; the exit code is 1 if that fails. The
first three drive the real reader, tasks and store, as Spark does. Results are the same whatever the access; that is
checked in every run. `benchmarks.paper` has the same figures in virtual time, which repeat exactly; these do not.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.endless import EndlessSource
from spark_mjoin import sources, task
from spark_mjoin.datasource import MJoinDataSource
from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.sources.options import Options

BATCH_MICROS = 1_000_000  # of event time per micro-batch, in all inputs

sources.REGISTRY["paced"] = "benchmarks.access:PacedSource"


class PacedSource(EndlessSource):
    """Rows without an end; a micro-batch of each input covers the same time, however many rows it has."""

    OPTIONS = ("seed", "batch", "keys")

    def __init__(self, alias: str, options: Options) -> None:
        super().__init__(alias, options)
        self._keys = int(options.required("keys", "distinct keys"))

    def read(self, range: Mapping[str, Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        dice = np.random.default_rng((self._seed, range["from"]))
        row = np.arange(range["from"], range["to"], dtype=np.int64)
        values = {
            "k": pa.array(dice.integers(0, self._keys, row.size)),
            "ts": pa.array(row * BATCH_MICROS // self._batch).cast(TIMESTAMP),
            "v": pa.array(dice.random(row.size)),
        }
        yield pa.RecordBatch.from_pydict({name: values[name] for name in columns})


def batches(
    rates: Mapping[str, int], window: int, keys: int, access: str, count: int
) -> Iterator[tuple[float, int, Any]]:
    """Per micro-batch: seconds of the processor, results, and the plan. rates: rows of each input per micro-batch."""
    given = {"window": f"{window} seconds", "access": access}
    for seed, (alias, batch) in enumerate(rates.items()):
        given |= {
            f"source.{alias}.format": "paced",
            f"source.{alias}.seed": str(seed),
            f"source.{alias}.keys": str(keys),
        }
        given |= {f"source.{alias}.batch": str(batch), f"source.{alias}.timestamp": "ts"}
        given[f"source.{alias}.watermark"] = "0 seconds"
    given["query"] = "SELECT a.k, a.v, b.v AS bv FROM a JOIN b ON a.k = b.k"
    with tempfile.TemporaryDirectory(prefix="mjoin-access-") as state:
        task._CACHE.clear()
        source = MJoinDataSource(CaseInsensitiveDict({**given, "stateLocation": state}))
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        for _ in range(count):
            began = time.process_time()
            end = reader.latestOffset(start, ReadAllAvailable())
            results = sum(b.num_rows for partition in reader.partitions(start, end) for b in reader.read(partition))
            spent = time.process_time() - began
            yield spent, results, end.get("plan", {})
            start = end
