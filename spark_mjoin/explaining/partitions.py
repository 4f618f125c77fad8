"""Explain how rows are divided among partitions: by what, how unevenly, which keys are split, and why.

`driver.balance` decides it. Here is what follows before a query runs, from a sample, or from what a query has counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_mjoin import metrics
from spark_mjoin.driver import balance, cubes
from spark_mjoin.driver.balance import rules
from spark_mjoin.driver.balance.bases import saved_by_rates
from spark_mjoin.driver.balance.seen import Known, Seen
from spark_mjoin.explaining.drawing import INDENT
from spark_mjoin.explaining.sampling import Sample
from spark_mjoin.model import Array, JoinSpec, Settings
from spark_mjoin.state.layouts import Split
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.traffic import Traffic


def foreseen(spec: JoinSpec, settings: Settings) -> list[str]:
    """What is known before anything has been counted."""
    count = settings.partitions
    if count == 1 or spec.star_class is None:
        return []
    lines = []
    if settings.partitioning != "hash":
        lines.append(
            f"{INDENT}by hash until {rules.LEAST_ROWS:,} rows have come; then as the keys are that were counted"
        )
    obstacle = _obstacle(spec, settings)
    if obstacle is not None:
        lines.append(f"{INDENT}no key is split, however frequent, since {obstacle}")
    else:
        lines.append(
            f"{INDENT}all partitions get equally many rows, but for frequent keys: one with more than"
            f" {hot_share(count):.1%} of all rows is split"
        )
    return lines


def _obstacle(spec: JoinSpec, settings: Settings) -> str | None:
    """Why no key is split; None where keys are."""
    return cubes.obstacle(spec, settings) if settings.splits_hot_keys else "option 'splitHotKeys' is false"


def hot_share(partitions: int) -> float:
    """The part of all rows with which a key makes its partition too slow, if the others are spread evenly."""
    return (rules.SKEWED - 1) / (partitions - 1)


@dataclass(frozen=True)
class Foreseen:
    """What a sample says about partitions."""

    even: float  # the rows of the fullest partition over the mean of all, by hash
    hot: Mapping[int, int]  # by the hash of a key that would be split, into how many parts
    hot_share: float  # of all rows, those of these keys
    then: float  # the rows of the fullest partition over the mean then
    saved: float  # of all rows, those that need not move if slots are divided by rates


def of_samples(spec: JoinSpec, settings: Settings, samples: Sequence[Sample]) -> Foreseen | None:
    """What would be decided if all rows were as those that were sampled; None where there is nothing to decide."""
    star, count = spec.star_class, settings.partitions
    if star is None or count == 1 or settings.shares or any(not of.kept_rows for of in samples):
        return None
    weights = np.array([of.population / of.kept_rows for of in samples])
    routing, found = Routing(count), [Traffic.empty(len(samples), "rate") for _ in range(count)]
    for input, of in enumerate(samples):
        keys = of.keys[star]
        at = routing.divide(_known(input, keys)).targets
        for partition, traffic in enumerate(found):
            traffic.take(_known(input, keys[at == partition]))
    seen = Seen.counted(found, routing.layout, 0).weighted(weights)
    by_hash = replace(settings, partitioning="hash")
    chosen = balance.choose(spec, by_hash, routing, seen, rules.STAY).layout
    hot = {each.key: len(each.cells) for each in chosen.hot} if isinstance(chosen, Split) else {}
    mean = seen.total / count
    rows = np.zeros(count)
    for input, (of, weight) in enumerate(zip(samples, weights.tolist(), strict=True)):
        targets = chosen.divide(_known(input, of.keys[star]), count).targets
        rows += weight * np.bincount(targets, minlength=count)
    share = sum(float(seen.keys[key].sum()) for key in hot) / seen.total
    return Foreseen(seen.slowest / mean, hot, share, float(rows.max()) / mean, saved_by_rates(spec, settings, seen))


def _known(input: int, hashes: Array) -> Known:
    """Rows of a sample by the hashes of their keys. It has nothing else of them, so nothing is said of ranges."""
    return Known(hashes, hashes, input)


def sampled(spec: JoinSpec, settings: Settings, samples: Sequence[Sample]) -> list[str]:
    """What is expected of partitions by a sample."""
    found = of_samples(spec, settings, samples)
    if found is None:
        return []
    lines = [f"{INDENT}by hash, the fullest of {settings.partitions} partitions has {found.even:.2f} times the mean"]
    obstacle = _obstacle(spec, settings)
    if found.hot:
        several = len(found.hot) > 1
        keys, split = f"{len(found.hot)} hot key{'s' * several}", "They are split" if several else "It is split"
        parts = ", ".join(map(str, sorted(found.hot.values(), reverse=True)[:5]))
        lines.append(
            f"{INDENT}because of {keys} with {found.hot_share:.1%} of all rows. {split}, into"
            f" {parts} parts: then it has {found.then:.2f} times the mean"
        )
    elif found.even > rules.SKEWED and obstacle is not None:
        lines.append(f"{INDENT}no key is split, since {obstacle}")
    if found.saved >= rules.SHIPPED:
        lines.append(
            f"{INDENT}if inputs come from hosts of their own, partitioning = 'rate' saves {found.saved:.0%} of all"
            " bytes from being moved"
        )
    return lines


def observed(manifests: Sequence[Manifest], aliases: Sequence[str]) -> list[str]:
    """How evenly rows came to partitions, as a query has counted them."""
    if len(manifests) < 2:
        return []
    lines = [
        f"{INDENT}in the last batch the fullest of {len(manifests)} partitions had {metrics.skew(manifests):.2f} times"
        " the mean of rows"
    ]
    counted = [Traffic.of(m.traffic) for m in manifests if m.traffic is not None]
    by_key: dict[int, Array] = {}
    for of in counted:
        for key, frequent in of.frequent.items():
            by_key[key] = by_key.get(key, np.zeros(len(aliases))) + frequent.rows
    if by_key:  # of the input that has the most rows of it: if the key is split, these are no copies
        parts = np.stack(list(by_key.values())) / np.maximum(1.0, sum(of.rows for of in counted))
        input = int(np.argmax(np.stack(list(by_key.values())).max(axis=0)))
        lines.append(
            f"{INDENT}the most frequent key of {aliases[input]} had {parts[:, input].max():.1%} of its rows lately"
        )
    return lines
