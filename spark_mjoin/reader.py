"""Spark's side of the source: offsets, input partitions, and handing them to `task.run`.

The offset is the plan (DESIGN, invariant 3): it holds the query's id, the version of the state and how far each source
was read. Spark keeps it in the checkpoint, and gives it back after a crash without asking for a new one first.

    {"query": "5f0c...", "version": 7, "positions": {"orders": {...}, "payments": {...}}}

The id is drawn when a query begins and names the directory of its state: a new checkpoint never meets the state of an
older run, and several queries may share one `stateLocation`.

Spark's `commit` is not needed: tasks remove what is old when they publish what is new.
"""

from __future__ import annotations

import uuid
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

from spark_mjoin import filesystem, metrics, sources
from spark_mjoin.errors import OptionError
from spark_mjoin.model import JoinSpec, PartitionTask, Position, Settings, SourceSpec
from spark_mjoin.planner.fingerprint import describe, differences
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source
from spark_mjoin.state import meaning
from spark_mjoin.state.manifests import Manifests
from spark_mjoin.state.source_log import DurableLog

Offset = dict[str, Any]


class JoinPartition(InputPartition):
    """Spark's input partition: one join partition's work in one batch."""

    def __init__(self, task: PartitionTask) -> None:
        super().__init__(None)
        self.task = task


class MJoinBatchReader(DataSourceReader):
    """`spark.read`: the join of what is there now, to completion, with no state kept."""

    def __init__(self, spec: JoinSpec, settings: Settings) -> None:
        self._spec, self._settings = spec, settings

    def partitions(self) -> Sequence[InputPartition]:
        start, end, ranges = {}, {}, {}
        for described in self._spec.sources:
            alias, source, found = described.alias, sources.open_source(described), MemoryLog()
            source.freeze(found)
            start[alias] = source.initial()
            end[alias] = source.latest(start[alias], Limits(), found)
            ranges[alias] = source.plan(start[alias], end[alias], found)
        return [
            JoinPartition(PartitionTask(self._spec, p, partitions, 0, start, end, ranges, None, memory))
            for p, partitions, memory in _shares(self._settings)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _run(partition)


class MJoinStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: the join of streams, micro-batch by micro-batch, with durable state."""

    def __init__(self, spec: JoinSpec, settings: Settings) -> None:
        if settings.state_location is None:
            raise OptionError(
                "option 'stateLocation' is missing: a streaming join keeps its state in a directory that survives "
                "restarts and that all executors reach, for example next to the query's checkpoint"
            )
        self._spec, self._settings = spec, settings
        self._root = filesystem.absolute(settings.state_location)
        self._sources = [sources.open_source(described) for described in spec.sources]
        self._limits = [sources.limits(s.alias, dict(s.options)) for s in spec.sources]
        self._logs: dict[str, list[DurableLog]] = {}
        self._freeze = False
        self._newest: Offset | None = None

    # --- offsets ---------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        positions = {s.alias: source.initial() for s, source in self._with_specs()}
        return {"query": uuid.uuid4().hex, "version": 0, "positions": positions}

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark passes to latestOffset except under Trigger.Once, which asks for all and means it."""
        limited = any(limits != Limits() for limits in self._limits)
        return ReadMaxRows(2**62) if limited else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._freeze = True  # carried out with the first offset, which says where the sources' logs are

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        logs = self._open(start)
        if self._freeze:
            for source, found in zip(self._sources, logs, strict=True):
                source.freeze(found)
            self._freeze = False
        positions: dict[str, Position] = {}
        for (described, source), limits, found in zip(self._with_specs(), self._limits, logs, strict=True):
            limits = Limits() if isinstance(limit, ReadAllAvailable) else limits
            positions[described.alias] = source.latest(start["positions"][described.alias], limits, found)
        if positions == start["positions"]:
            self._newest = start
        else:
            self._newest = {"query": start["query"], "version": start["version"] + 1, "positions": positions}
        return self._newest

    def reportLatestOffset(self) -> Offset | None:
        """Shown in the query's progress as `latestOffset`: the metrics of the newest version that is committed."""
        newest = self._newest
        if newest is None:
            return None
        stores = [Manifests(self._location(newest), p) for p in range(self._settings.partitions)]
        for version in range(newest["version"], max(newest["version"] - 2, 0), -1):
            if all(store.has(version) for store in stores):
                manifests = [store.manifest(version) for store in stores]
                aliases = [i.alias for i in self._spec.inputs]
                return {
                    "version": version,
                    "positions": manifests[0]["positions"],
                    "metrics": metrics.report(manifests, aliases, self._settings.memory_bytes),
                }
        return {"version": 0, "positions": newest["positions"], "metrics": {}}

    # --- partitions ------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start["version"] == end["version"]:
            return []  # Spark runs the first batch of a query even when nothing has arrived yet
        logs = self._open(end)
        location = self._location(end)
        # After a crash in the first batch Spark makes up a new initial offset; the state knows the true one.
        begin = start["positions"] if start["version"] else meaning.initial_positions(location)
        ranges = {
            described.alias: source.plan(begin[described.alias], end["positions"][described.alias], found)
            for (described, source), found in zip(self._with_specs(), logs, strict=True)
        }
        return [
            JoinPartition(
                PartitionTask(
                    self._spec, p, partitions, start["version"], begin, end["positions"], ranges, location, memory
                )
            )
            for p, partitions, memory in _shares(self._settings)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _run(partition)

    def commit(self, end: Offset) -> None:
        """Nothing to do; see the module's docstring."""

    def stop(self) -> None:
        """Nothing is held."""

    # --- the query's directory ---------------------------------------------------------------------------------

    def _open(self, offset: Offset) -> list[DurableLog]:
        """The sources' logs of the query that an offset belongs to, after checking that its state means the same."""
        query = offset["query"]
        if query not in self._logs:
            location = self._location(offset)
            description = describe(self._spec, self._settings.partitions)
            if offset["version"] == 0:
                meaning.record(location, description, offset["positions"], uuid.uuid4().hex)
            meaning.check(location, description, differences)
            self._logs[query] = [DurableLog(location, s.alias) for s in self._spec.sources]
        return self._logs[query]

    def _location(self, offset: Offset) -> str:
        return f"{self._root.rstrip('/')}/{offset['query']}"

    def _with_specs(self) -> list[tuple[SourceSpec, Source]]:
        return list(zip(self._spec.sources, self._sources, strict=True))


def _run(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """On the executor. Imports the engine here: the driver's processes do without it, and start the sooner."""
    from spark_mjoin import task

    assert isinstance(partition, JoinPartition)
    return task.run(partition.task, uuid.uuid4().hex)


def _shares(settings: Settings) -> list[tuple[int, int, int | None]]:
    """(partition, partitions, bytes of the memory budget) for every join partition."""
    count = settings.partitions
    share = None if settings.memory_bytes is None else settings.memory_bytes // count
    return [(p, count, share) for p in range(count)]
