"""Spark's daemon of Python workers with the engine loaded before it forks them, as tests start many workers.

Spark forks a worker for every one that was killed, that failed, or whose rows a LIMIT did not read to their end; each
imports all that it needs anew and loads the compiled kernels, which takes longer than its task. Set with
`spark.python.daemon.module`. PySpark's own daemon leaves imports to the workers, since some libraries start threads,
which a fork does not take along; those here that do know how to go on without them.
"""

import gc
import importlib
import sys

from pyspark import daemon


def load() -> None:
    """Join something, which leaves nothing behind but modules and kernels."""
    for module in ("pyspark.worker", "pyarrow.parquet"):
        importlib.import_module(module)
    from pyspark.sql.datasource import CaseInsensitiveDict

    from spark_mjoin.doors.datasource import MJoinDataSource
    from spark_mjoin.engine import batch
    from spark_mjoin.engine.cache import StateCache
    from spark_mjoin.engine.feed import AllRows

    options = {"query": "SELECT a.stringu1, b.unique2 FROM a JOIN b ON a.unique1 = b.unique1"}
    for alias in "ab":
        options |= {f"source.{alias}.format": "wisconsin", f"source.{alias}.rows": "100"}
    source = MJoinDataSource(CaseInsensitiveDict(options))
    (partition,) = source.reader(source.schema()).partitions()
    found = batch.run(partition.task, AllRows.of(partition.task), "warm", StateCache())
    assert sum(rows.num_rows for rows in found) == 100


if sys.argv[1:] == ["pyspark.worker"]:  # Spark has a daemon for each kind of its processes; this kind has the engine
    load()
    gc.collect()
    gc.freeze()  # or workers would copy what they look through for garbage

daemon.manager()
