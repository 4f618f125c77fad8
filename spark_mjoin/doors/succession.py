"""One planner's process (`planner_process`) for one query after the other.

The jar (jvm-shim/src/sparkmjoin/Planner.java) says that a query has ended, and which one comes next. It sends a
`commit` with an offset that no query has: among the messages that Spark's runner understands, only `commit` has no
other use here.
"""

from __future__ import annotations

import json
import pickle
from base64 import b64decode
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_mjoin.doors.node import NodePlanner
from spark_mjoin.doors.offsets import Offset
from spark_mjoin.doors.reader import MJoinStreamReader

CHANGE = "__mjoinPlanner"  # as in jvm-shim/src/sparkmjoin/Planner.java


def prepare() -> None:
    """Give PySpark's runner, which is imported after this, readers that can be exchanged."""
    datasource_internal._streamReader = lambda datasource, schema: Succession(datasource, schema)


class Succession(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the query that this process serves now."""

    def __init__(self, source: DataSource, schema: StructType) -> None:
        self._reader: DataSourceStreamReader | None = source.streamReader(schema)

    def commit(self, end: Offset) -> None:
        """The jar calls this: the process serves another query now, or none. Spark's own commits are not passed on."""
        self.stop()
        query = end[CHANGE]
        if "function" in query:  # of a node of a plan: it carries its join
            function, _ = pickle.loads(b64decode(query["function"]))
            self._reader = NodePlanner(function.joining)
        elif query:
            source: DataSource = pickle.loads(b64decode(query["source"]))
            self._reader = source.streamReader(StructType.fromJson(json.loads(query["schema"])))

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()
        self._reader = None

    # --- passed on -------------------------------------------------------------------------------------------

    @property
    def _serving(self) -> MJoinStreamReader | NodePlanner:
        assert isinstance(self._reader, MJoinStreamReader | NodePlanner)
        return self._reader

    def initialOffset(self) -> Offset:
        return self._serving.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._serving.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        self._serving.prepareForTriggerAvailableNow()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._serving.latestOffset(start, limit)

    def reportLatestOffset(self) -> Offset | None:
        return self._serving.reportLatestOffset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self._serving.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._serving.read(partition)
