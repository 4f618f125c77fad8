"""What the partitions of a layout have counted lately, put together.

Each partition counts its own rows, copies too (state.traffic). A row of a hot key is in as many partitions as its input
has copies there, so its count is divided by that. Frequent keys are apart from all else: they may go elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from spark_mjoin.driver.balance import rules
from spark_mjoin.model import SLOTS, Array, Scheme
from spark_mjoin.state.layouts import Layout, Split
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.slots import of_hashes
from spark_mjoin.state.traffic import Traffic


@dataclass(frozen=True)
class Known:
    """Keys of some rows of an input, of which no more is known than their hashes, and orders (`layouts.Keys`)."""

    found: Array
    of_orders: Array
    input: int = 0

    @property
    def count(self) -> int:
        return int(self.found.size)

    def has(self, key_class: int) -> bool:
        return True

    def hashes(self, key_class: int | None = None) -> Array:
        return self.found

    def orders(self) -> Array:
        return self.of_orders

    def row_hashes(self, rows: Array) -> Array:
        return rows.astype(np.uint64)  # as if no two rows were alike


@dataclass(frozen=True)
class Seen:
    """What the partitions of a layout have counted lately."""

    rows: Array  # inputs x partitions; copies too
    keys: dict[int, Array]  # by hash, the rows of each input, without copies: of frequent keys
    there: dict[int, Array]  # of the same keys, the rows in each partition, copies too
    orders: dict[int, int]  # of the same keys
    others: Array  # of each partition, its rows without those of these keys
    state_rows: int
    histogram: Array | None  # inputs x slots, without these keys
    sampled: tuple[tuple[Array, Array], ...]  # of each input, orders and the rows that each stands for

    @property
    def total(self) -> float:
        """Without copies."""
        return float(self.others.sum() + sum(rows.sum() for rows in self.keys.values()))

    @property
    def slowest(self) -> float:
        return float(self.rows.sum(axis=0).max())

    def light_keys(self, partitions: int) -> tuple[Array, Array]:
        """The orders and rows of frequent keys that need not be split: ranges are cut with them."""
        light = [key for key, rows in self.keys.items() if rows.sum() < rules.LIGHT * self.total / partitions]
        orders = np.array([self.orders[key] for key in light], np.uint64)
        return orders, np.array([self.keys[key].sum() for key in light])

    def pays(self, saved: float, partitions: int) -> bool:
        """Whether rows that a partition saves, of those that are counted, pay for a change."""
        return saved / rules.LATELY * rules.AHEAD > self.state_rows / partitions

    @staticmethod
    def of(manifests: Sequence[Manifest], layout: Layout, scheme: Scheme) -> Seen | None:
        """None where partitions count nothing, or something else."""
        figures = [m.traffic for m in manifests if m.traffic is not None and m.traffic.scheme == scheme]
        if not figures or len(figures) < len(manifests):
            return None
        held = sum(sum(manifest.rows_held) for manifest in manifests)
        return Seen.counted([Traffic.of(each) for each in figures], layout, held)

    @staticmethod
    def counted(counted: Sequence[Traffic], layout: Layout, state_rows: int) -> Seen:
        """By partition, what each has counted."""
        rows = np.stack([of.rows for of in counted], axis=1)
        hot = {each.key: each for each in layout.hot} if isinstance(layout, Split) else {}
        keys, there = dict[int, Array](), dict[int, Array]()
        others, orders = rows.sum(axis=0), dict[int, int]()
        histograms = [of.histogram for of in counted if of.histogram is not None]
        histogram: Array | None = np.stack(histograms).sum(axis=0, dtype=np.float64) if histograms else None
        for partition, of in enumerate(counted):
            for key, frequent in of.frequent.items():
                copies = [hot[key].copies(input) if key in hot else 1 for input in range(len(rows))]
                keys[key] = keys.get(key, np.zeros(len(rows))) + frequent.rows / copies
                there.setdefault(key, np.zeros(len(counted)))[partition] = frequent.rows.sum()
                orders[key] = frequent.order
                others[partition] -= frequent.rows.sum()
                if histogram is not None:
                    histogram[:, of_hashes(np.array([key], np.uint64))] -= frequent.rows[:, None]
        sampled = [_sampled(counted, input, orders) for input in range(len(rows)) if counted[0].sampled]
        histogram = None if histogram is None else np.maximum(histogram, 0.0)
        return Seen(rows, keys, there, orders, np.maximum(others, 0.0), state_rows, histogram, tuple(sampled))

    def weighted(self, weights: Array) -> Seen:
        """As if each row of an input were as many; of a layout without copies, where slots are counted."""
        assert self.histogram is not None
        keys = {key: rows * weights for key, rows in self.keys.items()}
        rows = self.rows * weights[:, None]
        histogram = self.histogram * weights[:, None]
        others = np.bincount(even_targets(self.others.size), histogram.sum(axis=0), self.others.size)
        return replace(self, rows=rows, keys=keys, others=others.astype(np.float64), histogram=histogram)


def _sampled(counted: Sequence[Traffic], input: int, orders: Mapping[int, int]) -> tuple[Array, Array]:
    """The sampled keys of an input in all partitions, without those that are counted on their own."""
    found = [of.sampled[input] for of in counted]
    each = [np.full(of.size, t.rows[input] / max(1, of.size)) for of, t in zip(found, counted, strict=True)]
    all_orders, rows = np.concatenate(found), np.concatenate(each)
    kept = ~np.isin(all_orders, np.array(sorted(orders.values()), np.uint64))
    return all_orders[kept], rows[kept]


def even_targets(partitions: int) -> Array:
    """Of each slot, the partition that has it in an even layout."""
    return np.arange(SLOTS) * partitions // SLOTS
