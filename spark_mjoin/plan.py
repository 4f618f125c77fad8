"""The plan of one batch: everything that was decided about how it runs, as frozen data, and its JSON.

The driver decides it and records it with the batch (DESIGN, invariant 3). A replay must do the same, even if the query
has other options by then: flush at the same points, store the same intermediate results, and do the same disk work. A
record without a plan means that all inputs are in one MJoin and everything stays in memory.

One plan is for all partitions. Its budget is that of each partition, and the same for all. Its disk work is listed by
partition, and a partition asks for its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_mjoin.model import Access, DiskWork, Expiry, Purging, Room, Schedule, Scheme, Settings, Tree
from spark_mjoin.query import tree as trees
from spark_mjoin.state.routing import ALONE, Routing

Orders = tuple[tuple[tuple[int, ...] | None, ...], ...]  # per operator and member, the members that it probes


@dataclass(frozen=True)
class Overflow:
    """How a batch keeps within its memory by evicting rows to disk."""

    memory_bytes: int | None  # of each partition; None: no limit any more, but results are pending
    flush: str
    blocking_rows: int
    fuel_bytes: int
    work: tuple[tuple[DiskWork, ...], ...] = ()  # of each partition; empty: there is no disk work
    waiting: tuple[str, ...] = ()  # sources that wait for disk work in this batch
    earned: int = 0  # bytes of urgent disk work that arrivals have earned in a partition and that were not used

    @staticmethod
    def of(settings: Settings) -> Overflow:
        """What the options say, before there is disk work."""
        return Overflow(settings.share_bytes, settings.flush, settings.blocking_rows, settings.fuel_bytes)

    def work_of(self, partition: int) -> tuple[DiskWork, ...]:
        return self.work[partition] if self.work else ()

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "memory": self.memory_bytes,
            "flush": self.flush,
            "blocking": self.blocking_rows,
            "fuel": self.fuel_bytes,
            "work": [[[list(w.buckets), w.visited, w.urgent, w.operator] for w in of] for of in self.work],
        }
        out |= {"earned": self.earned} if self.earned else {}
        return out | ({"waiting": list(self.waiting)} if self.waiting else {})

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Overflow:
        work = tuple(tuple(DiskWork(tuple(buckets), *rest) for buckets, *rest in of) for of in body["work"])
        waiting, earned = tuple(body.get("waiting", ())), body.get("earned", 0)
        return Overflow(body["memory"], body["flush"], body["blocking"], body["fuel"], work, waiting, earned)


@dataclass(frozen=True)
class Plan:
    tree: Tree
    orders: Orders = ()
    overflow: Overflow | None = None  # how to keep to a budget; None: everything stays in memory
    expiry: Expiry | None = None  # None: no input has a window
    purging: Purging | None = None  # None: no input makes key promises
    access: tuple[Access, ...] = ()  # per operator; empty: no direction scans
    admission: tuple[int, ...] | None = None  # per input, how much of WHOLE is admitted; None: everything
    room: Room | None = None  # None: no limit, or that of `overflow`
    schedule: Schedule = Schedule()
    alike_since: int = 0  # the first version whose batch, and all since, had these watermarks and this admission
    routing: Routing = ALONE  # how rows are divided among partitions
    emits_pending: bool = False  # the batch emits all that is pending, however long it takes
    counts_keys: Scheme | None = None  # tasks count rows by their keys, as it takes to divide them like this

    def after(self, before: Plan, version: int) -> Plan:
        """This plan, as the plan of the batch that makes `version` and follows one with the plan `before`."""
        marks, marks_before = (None if p.expiry is None else p.expiry.watermarks for p in (self, before))
        same = marks == marks_before and self.admission == before.admission
        return replace(self, alike_since=before.alike_since if same else version)

    def for_partition(self, partition: int) -> Plan:
        """The same plan without the disk work of other partitions: each of perhaps hundreds of tasks carries a plan."""
        if self.overflow is None or not any(self.overflow.work):
            return self
        work = self.overflow.work
        own = ((),) * partition + (work[partition],) + ((),) * (len(work) - partition - 1)
        return replace(self, overflow=replace(self.overflow, work=own))

    # --- JSON ------------------------------------------------------------------------------------------------

    def to_json(self, inputs: int) -> dict[str, Any]:
        """The JSON of the plan of a join with this many inputs; empty where all is as by default."""
        out: dict[str, Any] = {}
        if self.tree != trees.single(inputs):
            out["tree"] = self.tree
        if any(order is not None for of in self.orders for order in of):
            out["orders"] = self.orders
        if any(self.access):
            out["access"] = self.access
        if self.overflow is not None:
            out["overflow"] = self.overflow.to_json()
        if self.expiry is not None:
            out["windows"] = {"watermarks": list(self.expiry.watermarks), "active": self.expiry.active}
        if self.purging is not None:
            out["purging"] = dict(vars(self.purging))
        if self.admission is not None:
            out["admission"] = list(self.admission)
        if self.room is not None:
            out["room"] = {"memory": self.room.memory_bytes, "parts": self.room.parts}
        if self.schedule != Schedule():
            out["schedule"] = dict(vars(self.schedule))
        if self.alike_since:
            out["alikeSince"] = self.alike_since
        if self.routing != ALONE:
            out["routing"] = self.routing.to_json()
        if self.emits_pending:
            out["emitsPending"] = True
        if self.counts_keys is not None:
            out["countsKeys"] = self.counts_keys
        return out

    @staticmethod
    def from_json(body: Mapping[str, Any], inputs: int) -> Plan:
        return Plan(
            trees.from_json(body["tree"]) if "tree" in body else trees.single(inputs),
            tuple(tuple(None if o is None else tuple(o) for o in of) for of in body.get("orders", ())),
            Overflow.from_json(body["overflow"]) if "overflow" in body else None,
            _expiry(body["windows"]) if "windows" in body else None,
            Purging(**body["purging"]) if "purging" in body else None,
            tuple(tuple((origin, target) for origin, target in of) for of in body.get("access", ())),
            tuple(body["admission"]) if "admission" in body else None,
            _room(body["room"]) if "room" in body else None,
            _schedule(body["schedule"]) if "schedule" in body else Schedule(),
            body.get("alikeSince", 0),
            Routing.from_json(body["routing"]) if "routing" in body else ALONE,
            body.get("emitsPending", False),
            body.get("countsKeys"),
        )


def _expiry(body: Mapping[str, Any]) -> Expiry:
    return Expiry(tuple(body["watermarks"]), body["active"])


def _room(body: Mapping[str, Any]) -> Room:
    parts: Sequence[float] | None = body["parts"]
    return Room(body["memory"], None if parts is None else tuple(parts))


def _schedule(body: Mapping[str, Any]) -> Schedule:
    return Schedule(body["streams"], tuple(body["order"]), tuple(body["quotas"]), body["tuples"])
