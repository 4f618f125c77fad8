"""Did every engine give the same rows? An order-independent checksum of a result, computed by duckdb.

The checksum is the row count and the sum of a 64-bit hash over all columns of each row (as text, in the order of the
query's projection): equal multisets give equal checksums, and a lost, doubled or altered row changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.workloads import Dataset


@dataclass(frozen=True)
class Checksum:
    rows: int
    hashes: str
    """A 128-bit sum; text, because JSON readers elsewhere round large numbers."""


def connect(threads: int) -> Any:
    connection = duckdb.connect(config={"threads": threads})
    connection.sql("SET preserve_insertion_order = false")  # the order is nobody's business here, and this is faster
    connection.sql("SET enable_progress_bar = false")
    return connection


def attach_files(connection: Any, dataset: Dataset) -> None:
    for alias in dataset.workload.aliases:
        connection.sql(f"CREATE OR REPLACE VIEW {alias} AS SELECT * FROM read_parquet('{dataset.glob(alias)}')")


def reference(dataset: Dataset) -> Checksum:
    """duckdb's own answer, over the input files."""
    connection = connect(threads=2)
    attach_files(connection, dataset)
    found = _checksum(connection, f"({dataset.workload.query})", dataset.workload.output_names)
    exact = dataset.workload.exact_rows
    if exact is not None and found.rows != exact(dataset.scale):
        raise AssertionError(f"the reference has {found.rows} rows, {exact(dataset.scale)} by construction")
    return found


def of_files(directory: Path, columns: Sequence[str]) -> Checksum:
    """Over all files that a Spark parquet sink wrote: a batch that was written twice is found out."""
    if not any(directory.glob("*.parquet")):
        return Checksum(0, "0")
    return _checksum(connect(threads=2), f"read_parquet('{directory}/*.parquet')", columns)


def of_arrow(result: pa.Table, columns: Sequence[str]) -> Checksum:
    connection = connect(threads=2)
    connection.register("result", result)
    return _checksum(connection, "result", columns)


def _checksum(connection: Any, relation: str, columns: Sequence[str]) -> Checksum:
    texts = ", ".join(f'"{column}"::VARCHAR' for column in columns)
    [(rows, hashes)] = connection.sql(f"SELECT count(*), coalesce(sum(hash({texts})), 0) FROM {relation}").fetchall()
    return Checksum(int(rows), str(hashes))
