"""Spark's side of the source: offsets, input partitions, and handing them to `engine.batch.run`.

The offset is the plan (DESIGN, invariant 3): it holds the query's id, the version of the state and how far each source
was read. Spark keeps it in the checkpoint, and gives it back after a crash without asking for a new one first.

    {"query": "5f0c...", "version": 7, "positions": {"orders": {...}, "payments": {...}}, "plan": {...}}

`plan` holds what was decided for the batch (driver.plan): the tree of joins, the probing orders, with a memory budget
that budget, the flush policy and the disk work (driver.manager), and where rows are given up, how much of each input
is let in and which part of the memory it gets (driver.allocation).

The id is drawn when a query begins and names the directory of its state: a new checkpoint never meets the state of an
older run, and several queries may share one `stateLocation`.

Spark's `commit` is not needed: tasks remove what is old when they publish what is new.

Metrics are made of the manifests that a batch has committed, so a task that ran twice counts once, and one that was cut
off does not count. With the jar (jvm-shim/) `reportLatestOffset` is asked for them when a batch is done, and only then;
without it Spark asks once per trigger, before the next batch is planned, and shows the answer as `latestOffset`.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import socket
import stat
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam, _deserialize_accumulator
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_mjoin import filesystem, logs, metrics, sources
from spark_mjoin.driver import access, scheduling
from spark_mjoin.driver.admission import Load, Parts, Promise, least_fractions
from spark_mjoin.driver.allocation import Flexible, MemoryParts, decide
from spark_mjoin.driver.calibrate import calibrated
from spark_mjoin.driver.choice import Planned, Planner, has_overflowed, has_spilled, room_of, tree_of
from spark_mjoin.driver.plan import Plan
from spark_mjoin.driver.watermarks import advance, newest
from spark_mjoin.errors import OptionError, StateError
from spark_mjoin.model import (
    PROMISES_SHARE,
    WHOLE,
    Expiry,
    JoinSpec,
    PartitionTask,
    Position,
    Purging,
    Room,
    Settings,
    SourceSpec,
)
from spark_mjoin.query import tree as trees
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.redaction import Secrets, public, public_value
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.protocol import Limits, Source
from spark_mjoin.state import meaning
from spark_mjoin.state.manifests import Manifests
from spark_mjoin.state.source_log import DurableLog

Offset = dict[str, Any]

log = logging.getLogger(__name__)
logs.follow_environment()

IDLE_SECONDS = 1.0  # in which nothing arrives, until there is a batch to let useless rows go

_SENT_AHEAD_BYTES = 4 << 20  # of results that Spark has not read yet

_TASK_REPORT = -77001  # the number of the accumulator that jvm-shim/src/sparkmjoin/TaskReport.java listens to


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
        with _secrets(self._spec).kept():
            return self._partitions()

    def _partitions(self) -> Sequence[InputPartition]:
        start, end, ranges = {}, {}, {}
        for described in self._spec.sources:
            alias, source, found = described.alias, sources.open_source(described), MemoryLog()
            source.freeze(found)
            start[alias] = source.initial()
            end[alias] = source.latest(start[alias], Limits(), found)
            ranges[alias] = source.plan(start[alias], end[alias], found)
        settings, inputs = self._settings, len(self._spec.inputs)
        if room_of(settings) is not None:  # all is there: no hurry, so no loss
            settings = replace(settings, overflow="spill")
        planner, nothing = Planner(self._spec, settings, calibrated()), [None] * settings.partitions
        before, expiry = Plan(trees.single(inputs)), Expiry((None,) * inputs) if self._spec.windowed else None
        plan = planner.next_batch(before, nothing, list(start), [0.0] * inputs, ended=True).plan
        plan = replace(
            plan,
            orders=(),  # no batch corrects them: tasks choose
            expiry=expiry,
            purging=_purging(self._spec, settings),
            schedule=scheduling.choose(self._spec, settings).schedule,
        )
        return [
            JoinPartition(
                PartitionTask(
                    self._spec,
                    p,
                    settings.partitions,
                    0,
                    start,
                    end,
                    ranges,
                    plan.of_partition(p, settings.partitions),
                    memory_bytes=_hard_limit(settings),
                    compression=settings.compression,
                )
            )
            for p in range(settings.partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _run(partition)


class MJoinStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: the join of streams, micro-batch by micro-batch, with durable state."""

    def __init__(self, spec: JoinSpec, settings: Settings) -> None:
        if settings.state_location is None:
            raise OptionError(
                "option 'stateLocation' is missing: a streaming join keeps its state in a directory that survives "
                "restarts and that all executors reach, for example next to the query's checkpoint. Set it, or call "
                "spark_mjoin.enable(spark) before load(): with the jar the state is inside the checkpoint"
            )
        self._spec, self._settings = spec, settings
        self._secrets = _secrets(spec, settings.state_location)
        self._root = _reachable(settings.state_location)
        self._sources = [sources.open_source(described) for described in spec.sources]
        self._limits = [sources.limits(s.alias, dict(s.options)) for s in spec.sources]
        self._logs: dict[str, list[DurableLog]] = {}
        self._freeze = False
        self._ended = False  # what is there now is all that will come
        self._idle_since: float | None = None  # when nothing was new for the first time
        self._purged: int | None = None  # a version of the state in which nothing is to be purged
        self._spilled: bool | None = None  # whether there may be disk work; None: not looked yet
        self._planner = Planner(spec, settings, calibrated())
        self._rates = _Rates([0.0] * len(spec.inputs))
        self._spare = _Spare()
        self._overload = _Overload(Load(len(spec.inputs)))
        self._everything = (WHOLE,) * len(spec.inputs)
        self._start: Offset | None = None  # of the newest batch that was asked for
        self._batch: Offset | None = None  # the end of the newest batch that was planned
        self._planned = False  # since metrics were last reported
        self._delivered = {s.alias: time.monotonic() for s in spec.sources}  # when each last had something new
        self._times = (time.monotonic(),) * 2  # of the last two batches; before them, of the beginning, twice the same

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
        with self._secrets.kept(), self._overload.looking():
            return self._latest(start, limit)

    def _latest(self, start: Offset, limit: ReadLimit) -> Offset:
        logs = self._open(start)
        if self._freeze:
            for source, found in zip(self._sources, logs, strict=True):
                source.freeze(found)
            self._freeze, self._ended = False, True
        positions: dict[str, Position] = {}
        for (described, source), limits, found in zip(self._with_specs(), self._limits, logs, strict=True):
            limits = Limits() if isinstance(limit, ReadAllAvailable) else limits
            positions[described.alias] = source.latest(start["positions"][described.alias], limits, found)
        self._start = start
        moving = [alias for alias, position in positions.items() if position != start["positions"][alias]]
        if moving:
            self._idle_since = None
        purges = not moving and self._has_time_to_purge(start)
        if not (moving or purges or self._may_have_debt(start)):
            return start
        planned = self._plan(start, moving, bool(moving) or purges)
        overflow = planned.plan.overflow
        for waiting in overflow.waiting if overflow else ():
            positions[waiting] = start["positions"][waiting]
        if positions == start["positions"] and not (planned.has_debt or purges):
            return start  # with disk work or rows to purge only the version advances: a tick
        for reason in planned.reasons:
            log.info("%s", reason)
        next_plan = planned.plan
        if self._spec.windowed:
            next_plan = replace(next_plan, expiry=self._expiry(start, positions))
        next_plan = replace(next_plan, purging=_purging(self._spec, self._settings))
        admission, room = self._admission(start)
        next_plan = replace(next_plan, admission=admission, room=room)
        next_plan = next_plan.after(self._planned_at(start), start["version"] + 1)
        body = next_plan.to_json(len(self._spec.inputs))
        plan = {"plan": body} if body else {}
        return {"query": start["query"], "version": start["version"] + 1, "positions": positions, **plan}

    def _may_have_debt(self, start: Offset) -> bool:
        """Whether there may be disk work left: with a budget, or where a query goes on that had one before."""
        if self._spilled is None:
            self._spilled = bool(self._settings.memory_bytes) or any(map(has_spilled, self._manifests(start)))
        return self._spilled

    def _has_time_to_purge(self, start: Offset) -> bool:
        """Whether nothing arrives, and rows are to be looked through that promises may have made useless."""
        if not (self._spec.promising and start["version"]) or start["version"] == self._purged:
            return False
        since, self._idle_since = self._idle_since, self._idle_since or time.monotonic()
        if not self._ended and (since is None or time.monotonic() - since < IDLE_SECONDS):
            return False
        if any(m["batch"].get("purgePending", False) for m in self._committed(start)):
            return True
        self._purged = start["version"]
        return False

    def _plan(self, start: Offset, moving: Sequence[str], certain: bool) -> Planned:
        """How the next batch runs, in which some sources have new rows; it is certain if there will be one."""
        manifests = self._manifests(start)
        if start == self._batch and certain:
            seconds, found = time.monotonic() - self._times[1], [m for m in manifests if m is not None]
            self._rates.note(found, seconds)
            all_committed = len(found) == len(manifests) and all(m["version"] == start["version"] for m in found)
            if self._may_have_debt(start) and all_committed:
                self._spare.note(found, self._written(start), seconds)
        before, rates = self._planned_at(start), self._rates.smoothed
        return self._planner.next_batch(before, manifests, moving, rates, self._ended, self._spare.of_last_batch)

    def _expiry(self, start: Offset, positions: Mapping[str, Position]) -> Expiry:
        """What is late in the next batch. Watermarks move past a batch that every partition has committed.

        So all batches that a partition may have to make up for (engine.batch) have the same ones. The plan says since
        which version, so that it shows where that is not so, because checkpoint and state are of different times.
        """
        spec, settings, now = self._spec, self._settings, time.monotonic()
        for alias, position in positions.items():
            if position != start["positions"][alias]:
                self._delivered[alias] = now
        before = self._planned_at(start).expiry
        marks = before.watermarks if before is not None else (None,) * len(spec.inputs)
        if committed := self._committed(start):
            waits = [now - self._delivered[spec.sources[i.source].alias] for i in spec.inputs]
            limit = settings.idle_seconds
            idle = [i for i, seconds in enumerate(waits) if limit is not None and seconds > limit]
            seen = newest(m["operators"][0]["progress"]["seen"] for m in committed)
            marks = advance(spec, marks, seen, idle)
        return Expiry(marks, settings.expiry == "active" or settings.overflow == "fail")

    def _admission(self, start: Offset) -> tuple[Parts | None, Room | None]:
        """How much of each input the next batch lets in, and how it keeps to its memory without a disk.

        As with watermarks, it changes only past a batch that every partition has committed.
        """
        before, settings = self._planned_at(start), self._settings
        memory, sheds = room_of(settings), settings.overflow == "shed" or settings.max_delay is not None
        if before.admission is None and before.room is None and memory is None and not sheds:
            return None, None
        committed = self._committed(start)
        if start["version"] and not committed:
            return before.admission, before.room
        if memory is not None and any(map(has_overflowed, committed)):
            raise StateError(
                f"option 'overflow': '{settings.overflow}' cannot go on from a state with rows on disk. Run the query "
                "with 'spill', or with a new checkpoint"
            )
        if start == self._batch:
            self._overload.note(committed, before.admission, self._written(start))
        flexible = None if memory is None else Flexible.of(self._spec, memory, committed)
        parts, of_memory = self._overload.decide(
            (before.admission, None if before.room is None else before.room.parts),
            Promise(settings.max_delay, settings.min_recall) if sheds else None,
            least_fractions(committed, len(self._spec.inputs)),
            flexible,
            self._ended,
        )
        if parts != (before.admission or self._everything):
            aliases = (i.alias for i in self._spec.inputs)
            let_in = ", ".join(f"{part / WHOLE:.1%} of {alias}" for part, alias in zip(parts, aliases, strict=True))
            log.info("lets in %s", let_in)
        room = None if memory is None else Room(memory, of_memory)
        return None if parts == self._everything else parts, room

    def _committed(self, start: Offset) -> list[dict[str, Any]]:
        """The manifests of all partitions at an offset; none where one of them is missing."""
        found = [m for m in self._manifests(start) if m is not None and m["version"] == start["version"]]
        return found if len(found) == self._settings.partitions else []

    def _written(self, offset: Offset) -> float:
        """When the last partition committed the version of an offset, in seconds since 1970."""
        stores = [Manifests(self._location(offset), p) for p in range(self._settings.partitions)]
        return max(store.written(offset["version"]) for store in stores)

    def _planned_at(self, offset: Offset) -> Plan:
        return Plan.from_json(offset.get("plan", {}), len(self._spec.inputs))

    def _manifests(self, offset: Offset) -> list[dict[str, Any] | None]:
        """The newest manifest of every partition that is not past an offset."""
        found: list[dict[str, Any] | None] = []
        for p in range(self._settings.partitions):
            store = Manifests(self._location(offset), p)
            version = offset["version"]
            if version and not store.has(version):
                version = max((v for v in store.versions() if v <= version), default=0)
            found.append(store.manifest(version) if version else None)
        return found

    def reportLatestOffset(self) -> Offset | None:
        """The metrics of the last batch, and how far it came.

        With the jar they go to `sources[0].metrics` of the batch itself. Without, this is what the progress of the next
        batch shows as `latestOffset`.
        """
        batch = self._batch or self._start
        if batch is None:
            return None
        worked = self._planned or not self._settings.shim
        self._planned = False
        with self._secrets.kept():
            counted = self._metrics(batch, worked)
        return {"version": batch["version"], "positions": batch["positions"], "metrics": counted}

    def _metrics(self, batch: Offset, worked: bool) -> dict[str, str]:
        """The metrics after a batch; with its own counters at zero if it has been reported before or was not run."""
        manifests = []
        for partition in range(self._settings.partitions):
            store = Manifests(self._location(batch), partition)
            if store.has(batch["version"]):
                manifest = store.manifest(batch["version"])
                manifests.append(manifest if worked else metrics.idle(manifest))
            else:  # the task was cut off, as by a downstream LIMIT: what it had before is still so
                older = [v for v in store.versions() if v < batch["version"]]
                manifests += [metrics.idle(store.manifest(v)) for v in older[-1:]]
        aliases = [i.alias for i in self._spec.inputs]
        before, now = self._times
        logs = self._open(batch)
        behind = [
            source.behind(batch["positions"][described.alias], found)
            for (described, source), found in zip(self._with_specs(), logs, strict=True)
        ]
        plan = trees.render(tree_of(manifests[0]), aliases) if manifests else None
        planned = self._planned_at(batch)
        used = access.describe(self._spec, planned.of_partition(0, 1))
        turns = scheduling.render(planned.schedule, aliases), planned.schedule.tuples
        counted = metrics.report(manifests, aliases, self._settings.memory_bytes, now - before, plan, used, turns)
        return counted | metrics.lag(behind)

    # --- partitions ------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with self._secrets.kept():
            return self._partitions(start, end)

    def _partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if start["version"] == end["version"]:
            return []  # Spark runs the first batch of a query even when nothing has arrived yet
        logs = self._open(end)
        location = self._location(end)
        if end != self._batch:
            self._times = self._times[1], time.monotonic()
        self._batch, self._planned = end, True
        # After a crash in the first batch Spark makes up a new initial offset; the state knows the true one.
        begin = start["positions"] if start["version"] else meaning.initial_positions(location)
        ranges = {
            described.alias: source.plan(begin[described.alias], end["positions"][described.alias], found)
            for (described, source), found in zip(self._with_specs(), logs, strict=True)
        }
        partitions = self._settings.partitions
        plan, earlier = self._planned_at(end), self._planned_at(start)
        return [
            JoinPartition(
                PartitionTask(
                    self._spec,
                    p,
                    partitions,
                    start["version"],
                    begin,
                    end["positions"],
                    ranges,
                    plan.of_partition(p, partitions),
                    earlier.of_partition(p, partitions),
                    location,
                    memory_bytes=_hard_limit(self._settings),
                    compression=self._settings.compression,
                )
            )
            for p in range(partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from _run(partition)
        if self._settings.shim:
            _tell_the_jar(partition)

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
            self._logs[query] = [DurableLog(location, n, s.alias) for n, s in enumerate(self._spec.sources)]
        return self._logs[query]

    def _location(self, offset: Offset) -> str:
        return f"{self._root.rstrip('/')}/{offset['query']}"

    def _with_specs(self) -> list[tuple[SourceSpec, Source]]:
        return list(zip(self._spec.sources, self._sources, strict=True))


def _run(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """On the executor. Imports the engine here: the driver's processes do without it, and start the sooner."""
    from spark_mjoin.engine import batch, cache
    from spark_mjoin.engine.feed import AllRows

    assert isinstance(partition, JoinPartition)
    _tune_connections()
    with _secrets(partition.task.spec, partition.task.location).kept():
        feed, attempt = AllRows.of(partition.task), uuid.uuid4().hex
        yield from batch.run(partition.task, feed, attempt, cache.of_worker())
    _settle()


def _secrets(spec: JoinSpec, location: str | None = None) -> Secrets:
    """What no error may show."""
    given = [option for source in spec.sources for option in source.options]
    return Secrets.of([*given, ("stateLocation", location)])


@cache
def _tune_connections() -> None:
    """Let this worker's connections to Spark send small messages at once, and large ones without waiting for Spark.

    A task begins and ends with several small messages; by default each waits for more to go with it, which costs a
    micro-batch some milliseconds. Results are large; where the connection has room for a few batches of them, the next
    one is joined while Spark still reads the last. The system may give less room: Linux, what net.core.wmem_max says.
    """
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():  # not Linux: it is a little slower there
        return
    for descriptor in [int(path.name) for path in descriptors.iterdir()]:
        with suppress(OSError):  # the descriptor of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT_AHEAD_BYTES)
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@cache
def _settle() -> None:
    """At the end of this worker's first task: what is there now need not be looked through for garbage again.

    Spark's workers collect garbage after every task. With all that the engine imports and compiles, that takes a core
    while Spark plans the next batch, and holds up that batch's task.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # what is left at the end goes in good order


@dataclass
class _Rates:
    """Rows per second of each input, as this process has seen them, smoothed over batches."""

    smoothed: list[float]

    def note(self, manifests: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """A batch is over, for whose input so many seconds were taken; one without any says nothing."""
        rows = [sum(of) for of in zip(*(m["batch"]["rowsIn"] for m in manifests), strict=True)]
        if any(rows) and seconds > 0:
            share = 0.3 if any(self.smoothed) else 1.0
            pairs = zip(self.smoothed, rows, strict=True)
            self.smoothed = [(1 - share) * old + share * new / seconds for old, new in pairs]


_SPARK_SECONDS = 0.2  # from the end of a batch's tasks to the next look at the sources, when Spark does not wait


@dataclass
class _Spare:
    """The seconds that the last batch left free, for each that its arrivals took: what disk work may use.

    That includes what disk work takes now, if there is free time besides: without any, it delays input already.
    """

    of_last_batch: float = 0.0

    def note(self, committed: Sequence[Mapping[str, Any]], written: float, seconds: float) -> None:
        """A batch is over, was written at some time, and was planned so many seconds ago; one of ticks says nothing."""
        counts = [manifest["batch"] for manifest in committed]
        if not any(sum(batch["rowsIn"]) for batch in counts):
            return
        on_disk = max(batch["diskToMemoryTimeMs"] + batch["diskToDiskTimeMs"] for batch in counts) / 1000
        worked = written - min(batch["began"] for batch in counts)
        idle, arrivals = seconds - _SPARK_SECONDS - worked, max(worked - on_disk, _CLOCKS_DIFFER)
        self.of_last_batch = (idle + on_disk if idle > 0 else 0.0) / arrivals


_CLOCKS_DIFFER = 0.004  # seconds by which the time of a file may be behind that of a process on the same machine


@dataclass
class _Overload:
    """The clock behind driver.admission: when sources were looked at, and how long batches took."""

    load: Load
    _looked: float | None = None  # when the sources were last looked at: what is new has arrived since
    _looking: float = 0.0
    _planned: float = 0.0  # the last batch, in seconds since 1970
    _arrived: float | None = None  # the seconds in which its input arrived

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While the sources are asked what is new."""
        self._looking = time.monotonic()
        yield
        self._looked = self._looking

    def note(self, committed: Sequence[Mapping[str, Any]], parts: Parts | None, written: float) -> None:
        """The last batch is over, and was written at some time."""
        began = min(manifest["batch"]["began"] for manifest in committed)
        taken = [sum(of) for of in zip(*(m["batch"]["rowsIn"] for m in committed), strict=True)]
        everything = (WHOLE,) * len(taken)
        overhead = max(0.0, began - self._planned)
        worked = max(written - began, _CLOCKS_DIFFER)
        self.load.note(taken, parts or everything, self._arrived, worked, overhead)

    def decide(
        self,
        before: tuple[Parts | None, MemoryParts | None],
        promise: Promise | None,
        least: Sequence[float],
        flexible: Flexible | None,
        ended: bool,
    ) -> tuple[Parts, MemoryParts | None]:
        """What the next batch lets in and which memory its windows get; it is planned now."""
        self._arrived = None if self._looked is None else self._looking - self._looked
        self._planned = time.time()
        seconds = None if ended else self._arrived or 0.0
        return decide(self.load, before, seconds, promise, least, flexible)


class _Replaced(AccumulatorParam[dict[str, int]]):
    """A value that is said once."""

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:
        return value2


def _tell_the_jar(partition: InputPartition) -> None:
    """On the executor, at the end of a task: what its partition has committed, for the scan node in the Spark UI."""
    assert isinstance(partition, JoinPartition)
    task = partition.task
    assert task.location is not None
    manifest = Manifests(task.location, task.partition).manifest(task.version + 1)
    counted = metrics.summable(metrics.report([manifest], [i.alias for i in task.spec.inputs]))
    _deserialize_accumulator(_TASK_REPORT, {}, _Replaced()).add(counted)


def _reachable(location: str) -> str:
    """The location, absolute; OptionError when Python has no file system for it."""
    try:
        filesystem.resolve(location)
    except (ValueError, OSError, ImportError, pa.ArrowException) as e:
        raise OptionError(
            f"the state cannot be kept in '{public_value(location)}': Python does not reach it ({public(str(e))}). Set "
            "option 'stateLocation' to a local path, or to a URI that pyarrow or fsspec can open, such as "
            "s3://bucket/path"
        ) from Secrets.of([("stateLocation", location)]).cause(e)
    return filesystem.absolute(location)


def _purging(spec: JoinSpec, settings: Settings) -> Purging | None:
    room = _room_for_promises(settings)
    return Purging(settings.purge_every, settings.verify, room) if spec.promising else None


def _room_for_promises(settings: Settings) -> int | None:
    """Bytes of a partition."""
    return None if settings.memory_bytes is None else settings.memory_bytes // settings.partitions // PROMISES_SHARE


def _hard_limit(settings: Settings) -> int | None:
    """The bytes that a partition may have where more is an error."""
    if settings.memory_bytes is None or settings.overflow != "fail":
        return None
    return settings.memory_bytes // settings.partitions
