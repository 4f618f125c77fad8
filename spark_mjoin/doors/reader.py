"""Spark's interface to a query: it returns offsets and input partitions, takes them back, and returns results and
metrics.

It decides nothing. The driver's side is `driver.session`, the executor's is `engine.batch`, and `offsets` has the JSON.

Spark's `commit` is not needed: tasks remove what is old when they publish what is new.

Metrics come from the manifests that a batch has committed. So a task that ran twice counts once, and a task that was
interrupted does not count. With the jar (jvm-shim/), Spark calls `reportLatestOffset` for them when a batch is done,
and only then. Without it Spark calls it once per trigger, before it plans the next batch, and shows the answer as
`latestOffset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_mjoin import logs
from spark_mjoin.doors import offsets, worker
from spark_mjoin.doors.offsets import Offset
from spark_mjoin.driver.clock import SYSTEM, Clock
from spark_mjoin.driver.session import Point, Session, batch_tasks
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.task import PartitionTask

logs.follow_environment()


class JoinPartition(InputPartition):
    """Spark's input partition: one join partition's work in one batch."""

    def __init__(self, task: PartitionTask) -> None:
        super().__init__(None)
        self.task = task


class MJoinBatchReader(DataSourceReader):
    """`spark.read`: joins what is there now, to completion, and keeps no state."""

    def __init__(self, spec: JoinSpec, settings: Settings) -> None:
        self._spec, self._settings = spec, settings

    def partitions(self) -> Sequence[InputPartition]:
        with worker.secrets_of(self._spec).kept():
            return [JoinPartition(task) for task in batch_tasks(self._spec, self._settings)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, JoinPartition)
        return worker.run(partition.task)


class MJoinStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: joins streams, micro-batch by micro-batch, with durable state."""

    def __init__(self, spec: JoinSpec, settings: Settings, clock: Clock = SYSTEM) -> None:
        self._secrets = worker.secrets_of(spec, settings.state_location)
        self._inputs = len(spec.inputs)
        self._reports = settings.shim
        self.session = Session(spec, settings, clock)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the executors: they read partitions, and plan nothing."""
        return {name: value for name, value in vars(self).items() if name != "session"}

    # --- on the driver -----------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        with self._secrets.kept():
            return self._offset(self.session.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that Spark passes to latestOffset, except under Trigger.Once, which takes everything."""
        return ReadMaxRows(2**62) if self.session.is_limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.session.freeze()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        with self._secrets.kept():
            begin = self._point(start)
            end = self.session.next(begin, unlimited=isinstance(limit, ReadAllAvailable))
            return start if end is begin else self._offset(end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with self._secrets.kept():
            tasks = self.session.tasks(self._point(start), self._point(end))
            return [JoinPartition(task) for task in tasks]

    def reportLatestOffset(self) -> Offset | None:
        """The metrics of the last batch, and how far it came.

        With the jar they appear in `sources[0].metrics` of the batch itself. Without it, the progress of the next batch
        shows them as `latestOffset`.
        """
        with self._secrets.kept():
            said = self.session.report()
        if said is None:
            return None
        return {"version": said.at.version, "positions": said.at.positions, "metrics": said.metrics}

    def commit(self, end: Offset) -> None:
        """Nothing to do; see the module's docstring."""

    def stop(self) -> None:
        """Nothing to do: the reader holds nothing."""

    def _point(self, offset: Offset) -> Point:
        return offsets.decode(offset, self._inputs)

    def _offset(self, point: Point) -> Offset:
        return offsets.encode(point, self._inputs)

    # --- on an executor ----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, JoinPartition)
        yield from worker.run(partition.task)
        if self._reports:
            worker.report_to_jar(partition.task)
