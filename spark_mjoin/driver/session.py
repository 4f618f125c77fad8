"""One query on the driver: whether there is a next batch, its whole plan, and its tasks.

    sources ──> what is new ──┐
    manifests of the last ────┼──> is there a batch? ──> all fields of its plan ──> Point, recorded by the door
    the clock (Pace) ─────────┘
    two points ──> tasks, one per partition        a pure function: after a crash it is asked for without the above

There is a batch when sources have new rows, when disk work is left, or when there are useless rows to drop and there is
time. In the last two cases only the version advances.

Watermarks and admission change only after a batch that every partition has committed. So all batches that a partition
may have to catch up on (engine.batch) were decided alike. The plan says since which version. Where records and state
are from different times, this version shows it.

It knows nothing of Spark: a door translates a `Point` to what Spark records, and back.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa

from spark_mjoin import filesystem, metrics
from spark_mjoin.driver import access, balance, rescaling, scheduling, watermarks
from spark_mjoin.driver import intake as intakes
from spark_mjoin.driver.admission import DelayLimit, Parts, least_fractions
from spark_mjoin.driver.allocation import Flexible, decide
from spark_mjoin.driver.calibrate import calibrated
from spark_mjoin.driver.choice import Planned, Planner, room_of
from spark_mjoin.driver.clock import SYSTEM, Clock, Pace, Worked
from spark_mjoin.driver.committed import Committed
from spark_mjoin.driver.intake import Intake, Positions
from spark_mjoin.errors import OptionError, StateError
from spark_mjoin.evidence import rows_in
from spark_mjoin.model import PROMISES_SHARE, WHOLE, Expiry, JoinSpec, Position, Purging, Range, Room, Settings
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.redaction import Secrets, public, public_value
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.state import meaning
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.source_log import DurableLog
from spark_mjoin.task import PartitionTask, Step

log = logging.getLogger(__name__)

Reading = Callable[[], Committed]  # of what tasks have committed: read at the first call, and kept


@dataclass(frozen=True)
class Point:
    """How far a query has come. It is recorded before the batch that leads there runs (DESIGN, invariant 3)."""

    query: str  # names the directory of its state
    version: int  # of that state; 0: there is none yet
    positions: dict[str, Position]  # how far each source was read, by alias
    plan: Plan  # by which the version is made


@dataclass(frozen=True)
class Report:
    """How far the newest batch came, and its metrics."""

    at: Point
    metrics: dict[str, str]


# --- what all plans of a join have ---------------------------------------------------------------------------------


def purging(spec: JoinSpec, settings: Settings) -> Purging | None:
    return Purging(settings.purge_every, settings.verify, room_for_promises(settings)) if spec.promising else None


def room_for_promises(settings: Settings) -> int | None:
    """Bytes of a partition."""
    return None if settings.share_bytes is None else settings.share_bytes // PROMISES_SHARE


@dataclass(frozen=True)
class _Work:
    """What the tasks of a batch have in common."""

    start: Positions
    end: Positions
    ranges: dict[str, list[Range]]
    location: str | None = None


def _tasks(spec: JoinSpec, settings: Settings, work: _Work, steps: Sequence[Step]) -> list[PartitionTask]:
    """One for every partition."""
    hard_limit = settings.share_bytes if settings.overflow == "fail" else None
    return [
        PartitionTask(
            spec,
            partition,
            step,
            work.start,
            work.end,
            work.ranges,
            work.location,
            memory_bytes=hard_limit,
            compression=settings.compression,
        )
        for partition, step in enumerate(steps)
    ]


def batch_tasks(spec: JoinSpec, settings: Settings, intake: Intake | None = None) -> list[PartitionTask]:
    """The tasks of a batch read, which joins what is there now, to completion, and keeps no state."""
    if room_of(settings) is not None:  # all input is there: shed nothing
        settings = replace(settings, overflow="spill")
    intake, logs, inputs = intake or intakes.Reading(spec), [MemoryLog() for _ in spec.sources], len(spec.inputs)
    intake.freeze(logs)
    start = intake.initial()
    end = intake.latest(start, logs, unlimited=True)
    planner, nothing = Planner(spec, settings, calibrated()), [None] * settings.partitions
    chosen = planner.next_batch(Plan(trees.single(inputs)), nothing, list(start), [0.0] * inputs, ended=True).plan
    plan = replace(
        chosen,
        orders=(),  # no later batch could correct them: tasks choose
        expiry=Expiry((None,) * inputs) if spec.windowed else None,
        purging=purging(spec, settings),
        schedule=scheduling.choose(spec, settings).schedule,
        routing=Routing.wanted(settings),
    )
    steps = [Step(0, 1, plan.for_partition(p)) for p in range(settings.partitions)]
    return _tasks(spec, settings, _Work(start, end, intake.ranges(start, end, logs)), steps)


# --- a query -------------------------------------------------------------------------------------------------------


class Session:
    def __init__(self, spec: JoinSpec, settings: Settings, clock: Clock = SYSTEM, intake: Intake | None = None) -> None:
        """intake: of another kind than sources that tasks read."""
        if settings.state_location is None:
            raise OptionError(
                "option 'stateLocation' is missing: a streaming join keeps its state in a directory that survives "
                "restarts and that all executors reach, for example next to the query's checkpoint. Set it, or call "
                "spark_mjoin.enable(spark) before load(): with the jar the state is inside the checkpoint"
            )
        self.spec, self.settings = spec, settings
        self.planner = Planner(spec, settings, calibrated())
        self.pace = Pace(len(spec.inputs), [s.alias for s in spec.sources], clock)
        self._root = _reachable(settings.state_location)
        self._intake = intake or intakes.Reading(spec)
        self._logs: dict[str, list[DurableLog]] = {}  # of the sources, by query
        self._freezes = False
        self._ended = False  # what is there now is all that will come
        self._purged: int | None = None  # a version of the state in which nothing is to be purged
        self._spilled: bool | None = None  # whether there may be disk work; None: not known yet
        self._asked: Point | None = None  # the newest that the next was asked for
        self._newest: Point | None = None  # the end of the newest batch whose tasks were asked for
        self._reported = True  # that batch
        self._complete: tuple[str, Committed] | None = None  # by query, the newest that every partition has committed
        self._tidied: Routing | None = None  # before which nothing is left

    @property
    def is_limited(self) -> bool:
        """Whether a batch may take less than there is."""
        return self._intake.is_limited

    def initial(self) -> Point:
        """Where a new query begins. Every query has a directory of its own."""
        return Point(uuid.uuid4().hex, 0, self._intake.initial(), Plan(trees.single(len(self.spec.inputs))))

    def freeze(self) -> None:
        """Take what is there when the next batch is planned as the end of every source."""
        self._freezes = True  # carried out with the first point, which says where the sources' logs are

    # --- the next batch --------------------------------------------------------------------------------------

    def next(self, start: Point, unlimited: bool = False) -> Point:
        """Where the next batch leads, and by which plan; `start` itself where there is no next batch."""
        with self.pace.looking():
            logs = self._open(start)
            if self._freezes:
                self._intake.freeze(logs)
                self._freezes, self._ended = False, True
            positions = self._intake.latest(start.positions, logs, unlimited)
            self._asked = start
            return self._following(start, positions)

    def has_work(self, start: Point) -> bool:
        """Whether there is a next batch though nothing arrives. This is no look at the sources."""
        self._open(start)
        self._asked = start
        return self._following(start, start.positions) is not start

    def accept(self, start: Point, positions: dict[str, Position], is_quiet: bool = False) -> Point:
        """Where the next batch leads, which takes sources to some positions, and by which plan. There is one anyway.

        is_quiet: nothing is new, so that there is time for disk work, though an earlier stage may send what it had on
        disk.
        """
        with self.pace.looking():
            self._open(start)
            self._asked = start
            return self._following(start, positions, True, is_quiet)

    def _following(
        self, start: Point, positions: dict[str, Position], brought: bool = False, is_quiet: bool = False
    ) -> Point:
        """Where a batch leads that may take sources up to some positions, or must: rows were brought, or none were."""
        moving = [] if is_quiet else _moved(start.positions, positions)
        if moving:
            self.pace.news()
        committed = cache(lambda: self.committed(start))
        purges = not moving and self._has_time_to_purge(start, committed)
        if not (brought or moving or purges or self._may_have_disk_work(committed)):
            return start
        before, all_of = start.plan.routing, lambda: committed().of_all
        wanted, why = balance.wanted(self.spec, self.settings, before, start.version, all_of)
        division = rescaling.divide(self.spec, wanted, start.version, before, committed, can_wait=not brought)
        if division.emits_pending:
            moving, positions = [], start.positions
        settings = self._settings(division.routing)
        self.planner.settings = settings
        planned = self._plan(start, committed, moving, brought or bool(moving) or purges or division.emits_pending)
        overflow = planned.plan.overflow
        if brought and overflow is not None:
            overflow = replace(overflow, waiting=())  # what was brought cannot be left for later
        for waiting in overflow.waiting if overflow else ():
            positions = {**positions, waiting: start.positions[waiting]}
        moved = _moved(start.positions, positions)
        if not (brought or moved or planned.has_disk_work or purges or division.emits_pending):
            return start
        for reason in (*planned.reasons, *filter(None, [why, division.reason])):
            log.info("%s", reason)
        self._remove_older(start, committed)
        if overflow is not None and (division.emits_pending or division.routing != start.plan.routing):
            overflow = replace(overflow, work=())  # all of it is done, or none is left
        admission, room = self._admission(start, committed, settings)
        plan = replace(
            planned.plan,
            overflow=overflow,
            expiry=self._expiry(start.plan, committed(), moved) if self.spec.windowed else None,
            purging=purging(self.spec, settings),
            admission=admission,
            room=room,
            routing=division.routing,
            emits_pending=division.emits_pending,
            counts_keys=balance.scheme(self.spec, self.settings),
        )
        return Point(start.query, start.version + 1, positions, plan.after(start.plan, start.version + 1))

    def _settings(self, routing: Routing) -> Settings:
        """The settings of a batch: what a partition may have depends on how many there are."""
        return replace(self.settings, partitions=routing.partitions)

    def _remove_older(self, at: Point, committed: Reading) -> None:
        """Remove what was there before the number of partitions last changed, if nobody needs it any more."""
        routing = at.plan.routing
        if routing != self._tidied and rescaling.is_past(routing, committed()):
            rescaling.remove_older(self.location(at), routing)
            self._tidied = routing

    def _may_have_disk_work(self, committed: Reading) -> bool:
        """Whether there may be disk work left: with a budget, or where a query resumes that had one before."""
        if self._spilled is None:
            self._spilled = bool(self.settings.memory_bytes) or any(m.spilled for m in committed().found)
        return self._spilled

    def _has_time_to_purge(self, start: Point, committed: Reading) -> bool:
        """Whether nothing arrives, and there may be rows that key promises have made useless."""
        if not (self.spec.promising and start.version) or start.version == self._purged:
            return False
        if not self.pace.is_quiet() and not self._ended:
            return False
        if any(m.held.purge_pending for m in committed().of_all):
            return True
        self._purged = start.version
        return False

    def _plan(self, start: Point, committed: Reading, moving: Sequence[str], certain: bool) -> Planned:
        """The part of the plan that follows from counts. `certain`: there will be a batch."""
        if start == self._newest and certain:
            self.pace.learn_rates(rows_in(m.taken for m in committed().found))
            if self._may_have_disk_work(committed) and committed().is_complete:
                self.pace.learn_spare(worked(committed()))
        newest, pace = committed().partitions, self.pace
        return self.planner.next_batch(start.plan, newest, moving, pace.rates, self._ended, pace.spare)

    def _expiry(self, before: Plan, committed: Committed, moved: Sequence[str]) -> Expiry:
        """What is late in the next batch."""
        spec, settings = self.spec, self.settings
        rows = rows_in(m.taken for m in committed.found) or [0] * len(spec.inputs)
        last = {spec.sources[i.source].alias: n for i, n in zip(spec.inputs, rows, strict=True)}
        self.pace.delivers(self._intake.delivering(moved, last))
        marks = before.expiry.watermarks if before.expiry is not None else (None,) * len(spec.inputs)
        if committed.of_all:
            silent = self.pace.silent(settings.idle_seconds)
            idle = [
                n for n, i in enumerate(spec.inputs) if spec.sources[i.source].alias in silent and not spec.is_stage(n)
            ]
            seen = [m.root.progress.seen for m in committed.of_all if m.root.progress is not None]
            marks = watermarks.advance(spec, marks, watermarks.newest(seen), idle)
        return Expiry(marks, settings.expiry == "active" or settings.overflow == "fail")

    def _admission(self, start: Point, committed: Reading, settings: Settings) -> tuple[Parts | None, Room | None]:
        """How much of each input the next batch admits, and how it keeps within its memory without evicting rows."""
        before, everything = start.plan, (WHOLE,) * len(self.spec.inputs)
        memory, sheds = room_of(settings), settings.overflow == "shed" or settings.max_delay is not None
        if before.admission is None and before.room is None and memory is None and not sheds:
            return None, None
        whole = committed().of_all
        if start.version and not whole:
            return before.admission, before.room
        if memory is not None and any(m.overflowed for m in whole):
            raise StateError(
                f"option 'overflow': '{settings.overflow}' cannot resume from a state with rows on disk. Run the query "
                "with 'spill', or with a new checkpoint"
            )
        if start == self._newest:
            self.pace.learn_load(worked(committed()), before.admission or everything)
        seconds, held = self.pace.plans_load(), [m.held for m in whole]
        parts, of_memory = decide(
            self.pace.load,
            (before.admission, None if before.room is None else before.room.parts),
            None if self._ended else seconds,
            DelayLimit(settings.max_delay, settings.min_recall) if sheds else None,
            least_fractions(held, len(self.spec.inputs)),
            None if memory is None else Flexible.of(self.spec, memory, held),
        )
        if parts != (before.admission or everything):
            aliases = (i.alias for i in self.spec.inputs)
            let_in = ", ".join(f"{part / WHOLE:.1%} of {alias}" for part, alias in zip(parts, aliases, strict=True))
            log.info("admits %s", let_in)
        room = None if memory is None else Room(memory // settings.partitions, of_memory)
        return None if parts == everything else parts, room

    # --- its tasks -------------------------------------------------------------------------------------------

    def tasks(self, start: Point, end: Point) -> list[PartitionTask]:
        """One task per partition; none where the two points are the same, as before the first batch."""
        if start.version == end.version:
            return []
        logs, location = self._open(end), self.location(end)
        if end != self._newest:
            self.pace.begins()
        self._newest, self._reported = end, False
        # After a crash in the first batch Spark makes up a new initial offset; the state knows the true one.
        begin = start.positions if start.version else meaning.initial_positions(location)
        ranges = self._intake.ranges(begin, end.positions, logs)
        routing, before = end.plan.routing, None if start.plan.routing != end.plan.routing else start.plan
        steps = [
            Step(start.version, end.version, end.plan.for_partition(p), before and before.for_partition(p))
            for p in range(routing.partitions)
        ]
        work = _Work(begin, end.positions, ranges, location)
        return _tasks(self.spec, self._settings(routing), work, steps)

    # --- what it has done ------------------------------------------------------------------------------------

    def report(self) -> Report | None:
        """The metrics of the newest batch; None before there is one.

        The jar asks once per trigger. Then the batch's own counters are zero if it was reported before.
        """
        at = self._newest or self._asked
        if at is None:
            return None
        is_new, self._reported = not self._reported or not self.settings.shim, True
        return Report(at, self._metrics(at, is_new))

    def _metrics(self, at: Point, is_new: bool) -> dict[str, str]:
        aliases, committed = [i.alias for i in self.spec.inputs], self.committed(at)
        # Where a task was interrupted, as by a downstream LIMIT, its partition is as it was before.
        manifests = [m if is_new and m.version == at.version else metrics.idle(m) for m in committed.found]
        plan = trees.render(at.plan.tree, aliases) if manifests else None
        used = access.describe(self.spec, at.plan)
        turns = scheduling.render(at.plan.schedule, aliases), at.plan.schedule.tuples
        shown = metrics.Shown(
            self.settings.memory_bytes, self.pace.between_batches, plan, used, turns, at.plan.routing.layout
        )
        behind = self._intake.behind(at.positions, self._open(at))
        return metrics.report(manifests, aliases, shown) | metrics.lag(behind)

    def committed(self, at: Point) -> Committed:
        """What the tasks have committed up to a point. Once all have, it never changes and is not read again."""
        if self._complete is not None:
            query, known = self._complete
            if (query, known.version) == (at.query, at.version):
                return known
        found = Committed.read(self.location(at), at.plan.routing, at.version)
        if found.is_complete:
            self._complete = at.query, found
        return found

    # --- the query's directory -------------------------------------------------------------------------------

    def location(self, at: Point) -> str:
        return f"{self._root.rstrip('/')}/{at.query}"

    def _open(self, at: Point) -> list[DurableLog]:
        """The sources' logs of the query that a point belongs to, after checking that its state means the same."""
        if at.query not in self._logs:
            location = self.location(at)
            description = describe(self.spec)
            if at.version == 0:
                meaning.record(location, description, at.positions, uuid.uuid4().hex)
            meaning.refuse(differences(meaning.description(location), description))
            self._logs[at.query] = [DurableLog(location, n, s.alias) for n, s in enumerate(self.spec.sources)]
        return self._logs[at.query]


def worked(committed: Committed) -> Worked:
    """How the batch went that every partition has committed."""
    taken = [m.taken for m in committed.of_all]
    began, disk_ms = min(each.began for each in taken), max(each.disk_ms for each in taken)
    return Worked(tuple(rows_in(taken)), began, committed.written, disk_ms / 1000)


def _moved(start: Positions, end: Positions) -> list[str]:
    """The sources that have new rows."""
    return [alias for alias, position in end.items() if position != start[alias]]


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
