"""A point of a query (driver.session) as Spark's offset.

    {"query": "5f0c...", "version": 7, "positions": {"orders": {...}, "payments": {...}}, "plan": {...}}

Spark writes it to the checkpoint before it runs the batch that leads there. After a crash Spark passes it back without
asking for a new one first. So the offset is the plan (DESIGN, invariant 3): `plan` has everything that was decided for
the batch (spark_mjoin.plan), as far as it differs from the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_mjoin.driver.session import Point
from spark_mjoin.plan import Plan

Offset = dict[str, Any]


def encode(point: Point, inputs: int) -> Offset:
    """The offset of a query with this many inputs."""
    plan = point.plan.to_json(inputs)
    return {
        "query": point.query,
        "version": point.version,
        "positions": point.positions,
        **({"plan": plan} if plan else {}),
    }


def decode(offset: Mapping[str, Any], inputs: int) -> Point:
    plan = Plan.from_json(offset.get("plan", {}), inputs)
    return Point(offset["query"], offset["version"], offset["positions"], plan)
