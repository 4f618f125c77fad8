"""A join of streams as PMJoin's planner sees it: what is shipped where each stream comes in at a host of its own.

    option `hosts`, rates, widths ──> streams at nodes ──> driver.placement ──> plans, and what each would ship

It compares what Spark does with what could be done. Spark divides all inputs among partitions at once, or stage by
stage. PMJoin's algorithm joins two streams where one of them is, and sends the results on. That it ships less is to be
expected where streams that join selectively come in at the same host. Volumes are those of `driver.staging`, so the
figures can be put next to those of stages.

Not covered: streams with several hosts, of which the paper knows nothing. Nothing here decides how a join runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from spark_mjoin.driver import placement
from spark_mjoin.driver.placement.costs import members
from spark_mjoin.driver.staging import Expected


@dataclass(frozen=True)
class Shipping:
    """What plans of a join ship, in bytes per second."""

    simple: float  # everything to the host of the fastest stream
    host: str  # that one
    greedy: float  # by algorithm 1
    steps: tuple[str, ...]  # of it
    optimal: float  # of all plans that give each join a host


def shipping(expected: Expected, hosts: Mapping[str, Sequence[str]], seconds: float) -> Shipping | None:
    """What plans ship; None where it is not known of each input at which one host it comes in.

    hosts: by the aliases of inputs. seconds: in which the rows come that are expected.
    """
    spec = expected.spec
    at = [hosts.get(input.alias, ()) for input in spec.inputs]
    if any(len(each) != 1 for each in at):
        return None

    @cache
    def volume(streams: int) -> float:
        return expected.bytes_of(frozenset(members(streams))) / seconds if streams else 0.0

    streams = tuple(
        placement.Stream(input.alias, host, rows / seconds, rows, expected.width_of(frozenset((number,))))
        for number, (input, (host,), rows) in enumerate(zip(spec.inputs, at, expected.rows, strict=True))
    )
    joined = placement.Query(streams, tuple(_attributes(expected)))
    simple, greedy = placement.simple(joined, volume), placement.greedy(joined, volume)
    fastest = max(range(len(streams)), key=lambda number: volume(1 << number))
    return Shipping(
        simple.cost,
        streams[fastest].node,
        greedy.cost,
        tuple(step.text(joined) for step in greedy.steps),
        placement.optimal(joined, volume).cost,
    )


def _attributes(expected: Expected) -> list[placement.Attribute]:
    """What joins the inputs. How their values are distributed does not matter: volumes are known without."""
    spec, found = expected.spec, []
    for key_class in range(len(spec.classes)):
        having = tuple(n for n, input in enumerate(spec.inputs) if key_class in dict(input.keys))
        if len(having) > 1:
            found.append(placement.Attribute(f"k{key_class + 1}", having, np.ones((len(having), 1))))
    return found
