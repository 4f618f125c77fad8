"""The driver's side of a join that Spark runs as a stateful operator: `spark_mjoin.join`.

    the jar's node ──partitions(v, v + 1)──> the plan of the batch, recorded once ──> one task per partition
                   ──latestOffset(places)──> the executor of each task, and how rows are divided among them
                   ──latestOffset(v + 1)───> whether there is something to do without new rows
                   ──reportLatestOffset────> metrics

The jar (jvm-shim/) runs this in a planner's process (`planner_process`), with the messages that Spark has for the
readers of streaming sources. A version of the state is the number of a batch: Spark's own operators have it so, too.

There is no offset that could have the plan, so it is a file next to the state, and written before the batch runs. A
batch that is run again finds it there, and runs as it was planned.

The input of a batch cannot be asked for again. The jar sees to it that every task has run when Spark records a batch as
done. Where a partition has not committed the version before all the same, the query ends with an error that says so: a
gap would be worse.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_mjoin import logs
from spark_mjoin.doors import offsets, worker
from spark_mjoin.doors.offsets import Offset
from spark_mjoin.doors.reader import JoinPartition
from spark_mjoin.driver import places
from spark_mjoin.driver.clock import SYSTEM, Clock
from spark_mjoin.driver.intake import Brought
from spark_mjoin.driver.session import Point, Session
from spark_mjoin.errors import StateError, not_read
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.layouts import Cube
from spark_mjoin.state.routing import ALONE, Routing

KEPT_PLANS = 4  # of the newest versions: no batch before them is run again
_PLAN = re.compile(r"plan-(\d{12})\.json")

logs.follow_environment()


@dataclass(frozen=True)
class Joining:
    """A join that Spark runs as a node: it travels inside the node's Python function."""

    spec: JoinSpec
    settings: Settings


class _PlansAlone(DataSourceStreamReader):
    """A reader that reads nothing: Spark reads what a node joins."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise NotImplementedError("the rows of a node come from Spark")


class NodePlanner(_PlansAlone, SupportsTriggerAvailableNow):
    """Plans the batches of one node of one query."""

    def __init__(self, joining: Joining, clock: Clock = SYSTEM) -> None:
        self._joining, self._clock = joining, clock
        self._inputs = len(joining.spec.inputs)
        self._secrets = worker.secrets_of(joining.spec, joining.settings.state_location)
        self._brought = Brought(joining.spec)
        self._session: Session | None = None  # from the first batch on, which says where the state is
        self._name = "mjoin"  # of the query's directory
        self._places = places.Places()
        self._at: list[str] = []  # the executors of the tasks that were planned last
        self._routing = ALONE  # of these

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch. start, end: where the node's state is, and the versions before and after."""
        with self._secrets.kept():
            session = self._serving(start)
            begin = self._point(session, start["version"])
            after = self._recorded(session, end["version"])
            if after is not None and _is_void(session, after):
                Directory(session.location(after)).delete(_plan_name(after.version))
                after = None
            if after is None:
                after = self._planned(session, begin, end.get("arriving", True))
            self._routing, wanted = after.plan.routing, Routing.wanted(session.settings)
            if self._routing.partitions != wanted.partitions:  # Spark has made as many tasks as are wanted
                raise StateError(
                    f"batch {start['version']} was planned with {_asked_for(self._routing)} and was not finished. "
                    f"Start the query with that once, and change it to {_asked_for(wanted)} then"
                )
            tasks = session.tasks(begin, after)
            self._place(session, begin, end, len(tasks))
            return [JoinPartition(task) for task in tasks]

    def _place(self, session: Session, begin: Point, end: Offset, partitions: int) -> None:
        """Decide where the tasks of a batch run."""
        before = session.committed(begin).partitions if begin.version else ()
        last = before if len(before) == partitions else (None,) * partitions
        self._places.measure(end.get("cameFrom", ()))
        if not self._places.is_informed:
            self._places.measure(places.expected(self._joining.spec, self._joining.settings.expected.hosts, last))
        sizes = [0 if manifest is None else manifest.standing.disk_bytes for manifest in last]
        self._at = self._places.assign(end.get("executors", {}), sizes)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Whether there is something to do at a version, though nothing arrives; or where the tasks run, and how the
        rows of their batch are divided.
        """
        if "places" in start:
            return {"places": self._at, "routing": worker.text_of(self._routing)}
        with self._secrets.kept():
            session = self._serving(start)
            at = self._recorded(session, start["version"])
            return {"more": at is not None and session.has_work(at)}

    def reportLatestOffset(self) -> Offset | None:
        with self._secrets.kept():
            said = None if self._session is None else self._session.report()
            return {"metrics": {} if said is None else said.metrics}

    def _serving(self, at: Mapping[str, Any]) -> Session:
        """The session of the query. The node's state is in the query's checkpoint, or below 'stateLocation'."""
        if self._session is None:
            settings, root = self._joining.settings, at["state"]
            if settings.state_location is not None:
                root, self._name = settings.state_location, f"{at['queryId']}-{root.rpartition('/')[2]}"
            given = replace(settings, state_location=root, shim=True)
            self._session = Session(self._joining.spec, given, self._clock, self._brought)
        return self._session

    # --- points ----------------------------------------------------------------------------------------------

    def _planned(self, session: Session, begin: Point, arriving: bool) -> Point:
        """The end of a batch that was not planned before. It is recorded before anything runs."""
        if begin.version and not session.committed(begin).is_complete:
            raise not_read(begin.version)
        after = session.accept(begin, self._brought.after(begin.positions, arriving), is_quiet=not arriving)
        directory = Directory(session.location(after))
        text = checked_json.text_of(offsets.encode(after, self._inputs))
        checked_json.publish(directory, _plan_name(after.version), uuid.uuid4().hex, text)
        for name in directory.names():
            plan = _PLAN.fullmatch(name)
            if plan is not None and int(plan[1]) <= after.version - KEPT_PLANS:
                directory.delete(name)
        found = self._recorded(session, after.version)
        assert found is not None
        return found

    def _point(self, session: Session, version: int) -> Point:
        """Where the query was at a version."""
        if not version:
            return self._begin(session)
        found = self._recorded(session, version)
        if found is None:
            raise not_read(version)
        return found

    def _begin(self, session: Session) -> Point:
        return replace(session.initial(), query=self._name)

    def _recorded(self, session: Session, version: int) -> Point | None:
        """The point with a version, if it was planned."""
        directory = Directory(session.location(self._begin(session)))
        try:
            return offsets.decode(checked_json.read(directory, _plan_name(version)), self._inputs)
        except FileNotFoundError:
            return None

    # --- of Spark's interface, and not used ------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        return {"version": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """Nothing to do: Spark knows when its sources end."""

    def commit(self, end: Offset) -> None:
        """Nothing to do: tasks remove what is old when they publish what is new."""

    def stop(self) -> None:
        """Nothing to do: the planner holds nothing."""


def _is_void(session: Session, after: Point) -> bool:
    """Whether a plan has another number of partitions than is wanted, and no task has committed what it leads to.

    Then nothing was emitted. An earlier stage is planned after this one: where it has refused that number, this one
    must not insist on it. With the number that is wanted any plan can run, however it divides the rows.
    """
    if after.plan.routing.partitions == session.settings.partitions:
        return False
    return all(manifest.version < after.version for manifest in session.committed(after).found)


def _asked_for(routing: Routing) -> str:
    """The options that ask for a routing."""
    plan = f" and plan = {routing.layout}" if isinstance(routing.layout, Cube) else ""
    return f"partitions = {routing.partitions}{plan}"


def _plan_name(version: int) -> str:
    return f"plan-{version:012d}.json"


class NodeSource(DataSource):
    """A planner's process needs a source to begin with. The jar then says which join it serves."""

    def __init__(self) -> None:
        super().__init__({})

    def schema(self) -> StructType:
        return StructType()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _PlansAlone()
