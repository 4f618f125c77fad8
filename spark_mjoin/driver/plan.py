"""What the offset says about how a batch runs, for all partitions: the plan is data (DESIGN, invariant 3).

It is in the offset because a replay must do the same, with whatever options the query is started then: flush at the
same points, store the same intermediate results, do the same disk work. Without a plan in the offset all inputs are in
one MJoin and everything stays in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spark_mjoin.model import (
    Access,
    BatchPlan,
    DiskWork,
    Expiry,
    OverflowPlan,
    Purging,
    Room,
    Schedule,
    Settings,
    Tree,
)
from spark_mjoin.query import tree as trees

Orders = tuple[tuple[tuple[int, ...] | None, ...], ...]  # per operator and member, the members that it probes


@dataclass(frozen=True)
class Overflow:
    """How all partitions together keep to their memory, and the disk work of each."""

    memory_bytes: int | None
    flush: str
    blocking_rows: int
    fuel_bytes: int
    work: tuple[tuple[DiskWork, ...], ...] = ()
    waiting: tuple[str, ...] = ()  # sources that were not read on, for the sake of disk work
    earned: int = 0  # bytes of urgent disk work that arrivals have earned in a partition and that are left

    @staticmethod
    def of(settings: Settings, work: Sequence[tuple[DiskWork, ...]] = (), waiting: Sequence[str] = ()) -> Overflow:
        return Overflow(
            settings.memory_bytes,
            settings.flush,
            settings.blocking_rows,
            settings.fuel_bytes,
            tuple(work),
            tuple(waiting),
        )

    def of_partition(self, partition: int, partitions: int) -> OverflowPlan:
        share = None if self.memory_bytes is None else self.memory_bytes // partitions
        work = self.work[partition] if self.work else ()
        return OverflowPlan(share, self.flush, self.blocking_rows, self.fuel_bytes, work)

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
    overflow: Overflow | None = None
    expiry: Expiry | None = None
    purging: Purging | None = None
    access: tuple[Access, ...] = ()
    admission: tuple[int, ...] | None = None  # per input, how much of WHOLE is let in
    room: Room | None = None  # of all partitions
    schedule: Schedule = Schedule()
    alike_since: int = 0  # the first version whose batch, and all since, had these watermarks and this admission

    def after(self, before: Plan, version: int) -> Plan:
        """This plan as that of the batch that makes `version`, next to one with the plan `before`."""
        marks, marks_before = (None if p.expiry is None else p.expiry.watermarks for p in (self, before))
        same = marks == marks_before and self.admission == before.admission
        return replace(self, alike_since=before.alike_since if same else version)

    def of_partition(self, partition: int, partitions: int) -> BatchPlan:
        overflow = None if self.overflow is None else self.overflow.of_partition(partition, partitions)
        room = None if self.room is None else Room(self.room.memory_bytes // partitions, self.room.parts)
        return BatchPlan(
            self.tree,
            self.orders,
            overflow,
            self.expiry,
            self.purging,
            self.access,
            self.admission,
            room,
            self.schedule,
            self.alike_since,
        )

    def to_json(self, inputs: int) -> dict[str, Any]:
        """For the offset of a join of so many inputs; empty where nothing is out of the ordinary."""
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
            out["schedule"] = vars(self.schedule)
        if self.alike_since:
            out["alikeSince"] = self.alike_since
        return out

    @staticmethod
    def from_json(body: Mapping[str, Any], inputs: int) -> Plan:
        if "memory" in body:  # an offset from before plans were trees
            body = {"overflow": body}
        orders = tuple(tuple(None if o is None else tuple(o) for o in of) for of in body.get("orders", ()))
        overflow = Overflow.from_json(body["overflow"]) if "overflow" in body else None
        expiry = None
        if "windows" in body:
            expiry = Expiry(tuple(body["windows"]["watermarks"]), body["windows"]["active"])
        tree = trees.from_json(body["tree"]) if "tree" in body else trees.single(inputs)
        purging = Purging(**body["purging"]) if "purging" in body else None
        access = tuple(tuple((origin, target) for origin, target in of) for of in body.get("access", ()))
        admission = tuple(body["admission"]) if "admission" in body else None
        room = None
        if "room" in body:
            parts = body["room"]["parts"]
            room = Room(body["room"]["memory"], None if parts is None else tuple(parts))
        schedule = Schedule()
        if "schedule" in body:
            taken = body["schedule"]
            schedule = Schedule(taken["streams"], tuple(taken["order"]), tuple(taken["quotas"]), taken["tuples"])
        since = body.get("alikeSince", 0)  # not in offsets from before it was kept: then nothing is known to differ
        return Plan(tree, orders, overflow, expiry, purging, access, admission, room, schedule, since)
