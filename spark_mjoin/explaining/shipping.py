"""Explain what crosses the network: between partitions on the executors, and by PMJoin's plans if hosts are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spark_mjoin.driver.shipping import Shipping, shipping
from spark_mjoin.driver.staging import Expected
from spark_mjoin.errors import listed
from spark_mjoin.explaining import drawing
from spark_mjoin.explaining.drawing import INDENT, size


def sections(
    expected: Expected,
    executors: Mapping[str, str],
    hosts: Sequence[tuple[str, tuple[str, ...]]],
    seconds: float,
    moved: float | None,
) -> list[str]:
    """executors: their hosts, by name. hosts: of inputs, by alias. moved: bytes, where executors are known."""
    found = shipping(expected, dict(hosts), seconds)
    lines = [] if moved is None else _places(executors, hosts, seconds, moved)
    return lines if found is None else [*lines, *_plans(found, None if moved is None else moved / seconds)]


def _places(
    executors: Mapping[str, str], hosts: Sequence[tuple[str, tuple[str, ...]]], seconds: float, moved: float
) -> list[str]:
    all_hosts = listed(sorted(set(executors.values())))
    notes = [
        f"{INDENT}executors are on {all_hosts}, and partitions are spread evenly over them",
        *(f"{INDENT}rows of {alias} are on {listed(at)}, as 'hosts' says" for alias, at in hosts),
        f"{INDENT}{size(moved)} cross the network within {drawing.seconds(seconds)}: {size(moved / seconds)} a second",
        f"{INDENT}fewer, where keys come from few hosts: in a query their partitions move there",
    ]
    return drawing.titled("PLACES", notes)


def _plans(found: Shipping, partitions_ship: float | None) -> list[str]:
    """partitions_ship: bytes per second."""
    rows = [
        [f"all inputs at {found.host}, where the fastest is", size(found.simple)],
        ["PMJoin's algorithm 1, each join at a host", size(found.greedy)],
        ["the best plan that gives each join a host", size(found.optimal)],
    ]
    if partitions_ship is not None:
        rows.append(["partitions on all executors: this runs", size(partitions_ship)])
    steps = [f"{INDENT}algorithm 1: {step}" for step in found.steps]
    notes = [
        f"{INDENT}one host for a join is one task. Partitions divide it among all executors, and ship more for that",
        f"{INDENT}where keys are at all hosts alike",
    ]
    return drawing.titled("SHIPPED A SECOND", drawing.table(["plan", "bytes"], rows), steps, notes)
