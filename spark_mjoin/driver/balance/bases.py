"""By what rows are divided that are of no hot key: slots, slots by the rates of inputs, or ranges. See the package."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spark_mjoin.driver import placement
from spark_mjoin.driver.balance import rules
from spark_mjoin.driver.balance.seen import Known, Seen, even_targets
from spark_mjoin.driver.widths import sent_width
from spark_mjoin.model import SLOTS, Array, JoinSpec, Settings
from spark_mjoin.state.layouts import EVEN, Assigned, Even, Layout, Ranges


def base_of(
    spec: JoinSpec, settings: Settings, now: Layout, seen: Seen, partitions: int, age: int
) -> tuple[Layout, str]:
    """By what rows are divided that are of no hot key, and why if otherwise than now.

    age: for how many versions rows were divided as they are now.
    """
    if settings.partitioning == "hash":
        return EVEN, "" if now == EVEN else "option 'partitioning' is 'hash'"
    skewed = seen.others.size == partitions and seen.others.max() > rules.SKEWED * seen.others.mean()
    skewed = skewed and seen.pays(seen.others.max() - seen.others.mean(), partitions)
    if settings.partitioning == "range":
        return _ranges(now, seen, partitions, skewed, age)
    before = now if isinstance(now, Assigned) else EVEN
    assigned, saved = _assigned(spec, settings, before, seen, partitions)
    if saved >= rules.SHIPPED and seen.pays(saved * seen.total / partitions, partitions):
        return assigned, f"slots are divided by the rates of inputs: {saved:.0%} of all bytes need not move"
    loads = loads_of(assigned, seen, partitions)
    if skewed and isinstance(before, Assigned) and loads.max() <= rules.BETTER * seen.others.max():
        return assigned, "slots are divided anew, so that partitions have equally many rows"
    return before, "" if before == now else "option 'partitioning' is 'rate'"


def _ranges(now: Layout, seen: Seen, partitions: int, skewed: bool, age: int) -> tuple[Layout, str]:
    """Ranges, if there are any with equally many rows."""
    if (isinstance(now, Ranges) and not skewed) or (isinstance(now, Even) and now.gave_up):
        return now, ""
    if isinstance(now, Ranges) and age < rules.LASTS:
        return Even(gave_up=True), f"ranges have become uneven within {age} versions, and are not tried again"
    sampled = [*seen.sampled, seen.light_keys(partitions)]
    orders, rows = (np.concatenate(of) for of in zip(*sampled, strict=True))
    if not orders.size:
        return now, ""
    ranges = cut(sampled, partitions)
    there = np.bincount(ranges.divide(Known(orders, orders), partitions).targets, rows, partitions)
    fullest = float(there.max() / there.mean())
    if fullest > rules.UNEVEN:
        return (now, "") if isinstance(now, Even) else (Even(gave_up=True), "no ranges have equally many rows")
    return ranges, f"ranges with equally many rows: the fullest has {fullest:.2f} times the mean"


def _assigned(spec: JoinSpec, settings: Settings, now: Layout, seen: Seen, partitions: int) -> tuple[Assigned, float]:
    """Slots divided by rates, and the part of all bytes that need not move then."""
    assert seen.histogram is not None
    weights = seen.histogram * np.array([sent_width(spec, input) for input in spec.inputs])[:, None]
    known, hosts = telling(seen.histogram), _hosts(spec, settings)
    rates = typical(weights, ~known)
    assigned = by_rates(rates, known, hosts, seen.histogram.sum(axis=0), partitions)
    at = now.partition_of if isinstance(now, Assigned) else even_targets(partitions)
    saved = shipped(rates, hosts, at) - shipped(rates, hosts, assigned.partition_of)
    return assigned, saved / max(1.0, float(rates.sum()))


def saved_by_rates(spec: JoinSpec, settings: Settings, seen: Seen) -> float:
    """The part of all bytes that need not move if rows are divided by rates instead of evenly."""
    return _assigned(spec, settings, EVEN, seen, settings.partitions)[1]


def loads_of(layout: Layout, seen: Seen, partitions: int) -> Array:
    """How many rows each partition of a layout gets, without those of frequent keys."""
    if isinstance(layout, Ranges):
        orders, rows = (np.concatenate(of) for of in zip(*seen.sampled, strict=True))
        at = layout.divide(Known(orders, orders), partitions).targets
    elif seen.histogram is not None:
        at = layout.partition_of if isinstance(layout, Assigned) else even_targets(partitions)
        rows = seen.histogram.sum(axis=0)
    else:  # evenly, as all that is known of slots is that they are alike
        return np.full(partitions, float(seen.others.sum()) / partitions)
    return np.bincount(at, rows, partitions).astype(np.float64)


def cut(sampled: Sequence[tuple[Array, Array]], partitions: int) -> Ranges:
    """Ranges of keys with equally many rows, all inputs together."""
    orders, rows = (np.concatenate(of) for of in zip(*sampled, strict=True))
    by_order = np.argsort(orders, kind="stable")
    reached = np.cumsum(rows[by_order])
    parts = np.arange(1, partitions) / partitions * (reached[-1] if reached.size else 0.0)
    at = np.minimum(np.searchsorted(reached, parts), max(0, orders.size - 1))
    ends = orders[by_order][at] if orders.size else np.zeros(partitions - 1, np.uint64)
    return Ranges(tuple(ends.tolist()))


def _hosts(spec: JoinSpec, settings: Settings) -> list[str]:
    """Where each input comes from: as option 'hosts' says, or at a host of its own."""
    known = dict(settings.expected.hosts)
    return [known[i.alias][0] if len(known.get(i.alias, ())) == 1 else f"{i.alias} alone" for i in spec.inputs]


def telling(rows: Array) -> Array:
    """In which slots the rows of inputs are to each other as they would hardly be by chance, if keys were alike."""
    parts = rows.sum(axis=1, keepdims=True) / max(1.0, float(rows.sum()))
    expected = parts * rows.sum(axis=0)
    difference = ((rows - expected) ** 2 / np.maximum(expected, 1e-9)).sum(axis=0)
    out: Array = difference > 2 * (len(rows) - 1) + rules.CHANCE
    return out


def typical(rates: Array, slots: Array) -> Array:
    """The same bytes by input and slot, but in some slots as inputs are to each other in all."""
    out = rates.copy()
    out[:, slots] = (rates.sum(axis=1, keepdims=True) / max(1e-9, float(rates.sum())) * rates.sum(axis=0))[:, slots]
    return out


def by_rates(rates: Array, known: Array, hosts: Sequence[str], rows: Array, partitions: int) -> Assigned:
    """Slots in groups where inputs rank alike, those of a host together, in partitions with equally many rows.

    known: the slots that tell. The others fill up partitions, so that few have slots of two hosts.
    """
    groups = placement.by_rates(rates, partitions)
    node = np.argmax(np.stack([np.bincount(groups, of) for of in of_hosts(rates, hosts)]), axis=0)[groups]
    filling, order = np.flatnonzero(~known), list[Array]()
    full, reached = float(rows.sum()) / partitions, 0.0
    for each in np.unique(node[known]):
        own = np.flatnonzero(known & (node == each))
        order.append(own[np.argsort(groups[own], kind="stable")])
        reached += float(rows[own].sum())
        more = np.cumsum(rows[filling])
        some = int(np.searchsorted(more, -reached % full if full else 0.0, side="right"))
        order.append(filling[:some])
        reached += float(rows[filling[:some]].sum())
        filling = filling[some:]
    return _cut(np.concatenate([*order, filling]), rows, partitions)


def _cut(order: Array, rows: Array, partitions: int) -> Assigned:
    """Slots in some order, cut into parts with equally many rows, in none of which there are none."""
    reached, each = np.cumsum(rows[order]), np.arange(1, partitions)
    starts = np.searchsorted(reached, each / partitions * reached[-1], side="right")
    starts = np.minimum(np.maximum.accumulate(np.maximum(starts, each) - each) + each, SLOTS - partitions + each)
    targets = np.zeros(SLOTS, np.int64)
    targets[order] = np.searchsorted(starts, np.arange(SLOTS), side="right")
    return Assigned.of(targets)


def of_hosts(rates: Array, hosts: Sequence[str]) -> Array:
    """Bytes by host and slot."""
    return np.stack([rates[[h == host for h in hosts]].sum(axis=0) for host in sorted(set(hosts))])


def shipped(rates: Array, hosts: Sequence[str], at: Array) -> float:
    """What moves if each partition is where most of its bytes come from. at: the partition of each slot."""
    each = np.stack([np.bincount(at, of, int(at.max()) + 1) for of in of_hosts(rates, hosts)])
    return float((each.sum(axis=0) - each.max(axis=0)).sum())
