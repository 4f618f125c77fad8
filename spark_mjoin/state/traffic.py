"""How many rows have come lately, of which keys: what the driver goes by when it divides rows (driver.balance).

    rows that arrive ──slots──> a histogram ──its fullest slots──> frequent keys, each counted
                     └──a few─> a sample of the keys, in order

Every partition counts its own rows. How much is kept depends on what the query wants to divide rows by:

    hash     frequent keys            one key may be more than a partition can take
    rate     and rows by slot         slots where other inputs are fast go to other partitions
    range    and the sample           where to cut the order of the keys

A frequent key has at least one in SHARE of the rows of an input in some stretch of it. Then its cell has as many, in a
histogram of other bits of the hash than those that choose a partition. So one pass over the hashes of a stretch leaves
few cells to look at, and their keys are counted one by one. That is exact for a stretch: no key is missed and none is
taken for another one, which the sketches of libraries do not say, and only rows of full cells cost anything. A key that
was noticed is counted from then on, until it is forgotten. Of too many keys those with the fewest rows are.

Figures fade by version, if anything comes in it, in all partitions alike. So they are rows of the last few batches, and
those of different partitions can be added.

A stretch is a piece of a feed. Two attempts at a batch may divide it into other pieces, and count other keys: it
changes no results, and what the driver has decided by it is in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from spark_mjoin.model import SLOTS, Array, Scheme
from spark_mjoin.state.layouts import Keys
from spark_mjoin.state.manifest import TrafficFigures
from spark_mjoin.state.records import Packed
from spark_mjoin.state.slots import of_hashes

SHARE = 16  # a key with one in so many of an input's rows is frequent
LEAST = 16  # rows of a stretch that a key must have besides
CELLS = 1 << 12  # of the histogram
MOST = 64  # frequent keys of a partition
KEPT = 0.75  # of all figures, after each version
FORGOTTEN = 0.5  # rows: a key with fewer left is dropped
SAMPLED = 1024  # keys of each input
TAKEN = 1024  # of a stretch


@dataclass
class Frequent:
    """A key with many rows."""

    order: int  # of the key: see `layouts.Keys.orders`
    rows: Array  # of each input


@dataclass
class Traffic:
    scheme: Scheme
    rows: Array  # of each input
    frequent: dict[int, Frequent] = field(default_factory=dict)  # by the hash of the key
    histogram: Array | None = None  # inputs x slots
    sampled: list[Array] = field(
        default_factory=list
    )  # of each input, orders of keys, which stand for equally many rows
    _fresh: list[list[tuple[Array, float]]] = field(default_factory=list)  # of this batch: keys, and rows for each
    _counted: tuple[tuple[int, tuple[int, ...]], Array] | None = None  # the keys that are counted, while they are these

    @staticmethod
    def empty(inputs: int, scheme: Scheme) -> Traffic:
        of_range = scheme == "range"
        return Traffic(
            scheme,
            np.zeros(inputs),
            histogram=np.zeros((inputs, SLOTS), np.float32) if scheme == "rate" else None,
            sampled=[np.zeros(0, np.uint64) for _ in range(inputs)] if of_range else [],
            _fresh=[[] for _ in range(inputs)] if of_range else [],
        )

    def take(self, keys: Keys, watched: tuple[int, ...] = ()) -> None:
        """Rows have arrived. watched: hashes of keys that are counted, frequent or not."""
        hashes, input = keys.hashes(), keys.input
        if hashes is None or not hashes.size:
            return
        self.rows[input] += hashes.size
        if self.histogram is not None:
            self.histogram[input] += np.bincount(of_hashes(hashes), minlength=SLOTS)
        cells = _cells(hashes)
        counts, known = np.bincount(cells, minlength=CELLS), self._known(watched)
        full = (counts >= LEAST) & (counts * SHARE >= hashes.size)
        full[_cells(known)] = True
        self._count(keys, hashes, full[cells], known)
        if self._fresh:
            step = -(-hashes.size // TAKEN)
            orders = keys.orders()[::step]
            self._fresh[input].append((orders, hashes.size / orders.size))

    def _known(self, watched: tuple[int, ...]) -> Array:
        """The hashes of the keys that are counted."""
        if self._counted is None or self._counted[0] != (len(self.frequent), watched):
            known = np.array(sorted({*self.frequent, *watched}), np.uint64)
            self._counted = (len(self.frequent), watched), known
        return self._counted[1]

    def _count(self, keys: Keys, hashes: Array, chosen: Array, known: Array) -> None:
        """Count the frequent keys among some rows, and those that are known."""
        numbers = np.flatnonzero(chosen)
        if not numbers.size:
            return
        found, first, counts = np.unique(hashes[numbers], return_index=True, return_counts=True)
        many = (counts >= LEAST) & (counts * SHARE >= hashes.size) | np.isin(found, known)
        orders: Array | None = None
        for key, at, count in zip(found[many].tolist(), first[many], counts[many].tolist(), strict=True):
            if key not in self.frequent:
                orders = keys.orders() if orders is None else orders
                self.frequent[key] = Frequent(int(orders[numbers[at]]), np.zeros(self.rows.size))
            self.frequent[key].rows[keys.input] += count
        if len(self.frequent) > 2 * MOST:
            self._forget()

    def _forget(self) -> None:
        """Keep the keys with the most rows."""
        most = sorted(self.frequent, key=lambda k: (-float(self.frequent[k].rows.sum()), k))[:MOST]
        self.frequent = {k: self.frequent[k] for k in sorted(most) if self.frequent[k].rows.sum() >= FORGOTTEN}
        self._counted = None

    def fade(self) -> None:
        """A version is complete: what has come before it counts for less."""
        self.rows *= KEPT
        if self.histogram is not None:
            self.histogram *= np.float32(KEPT)
        for key in self.frequent.values():
            key.rows *= KEPT
        self._forget()
        for input, fresh in enumerate(self._fresh):
            self.sampled[input] = self._thinned(input, fresh)
            self._fresh[input] = []

    def _thinned(self, input: int, fresh: list[tuple[Array, float]]) -> Array:
        """The sample with what is new: keys that divide all of it into equal parts."""
        if not fresh:
            return self.sampled[input]
        before = self.sampled[input]
        came = sum(orders.size * each for orders, each in fresh)
        left = max(0.0, float(self.rows[input]) / KEPT - came)
        parts = [(before, left / max(1, before.size)), *fresh]
        orders = np.concatenate([part for part, _ in parts])
        weights = np.concatenate([np.full(part.size, each) for part, each in parts])
        return quantiles(orders, weights, SAMPLED)

    # --- in manifests ----------------------------------------------------------------------------------------

    def figures(self) -> TrafficFigures:
        keys = sorted(self.frequent)
        counts = np.zeros((self.rows.size, 0)) if self.histogram is None else self.histogram
        slots = np.flatnonzero(counts.any(axis=0))
        return TrafficFigures(
            self.scheme,
            Packed.of(self.rows, "d"),
            Packed.of(np.array(keys, np.uint64).view(np.int64), "q"),
            Packed.of(np.array([self.frequent[k].order for k in keys], np.uint64).view(np.int64), "q"),
            Packed.of(np.array([self.frequent[k].rows for k in keys]), "d"),
            Packed.of(slots, "i"),
            Packed.of(counts[:, slots], "f"),
            tuple(Packed.of(of.view(np.int64), "q") for of in self.sampled),
        )

    @staticmethod
    def of(figures: TrafficFigures) -> Traffic:
        rows = figures.rows.array()
        traffic = Traffic.empty(rows.size, cast(Scheme, figures.scheme))
        traffic.rows = rows
        hashes, orders = (of.array().view(np.uint64).tolist() for of in (figures.keys, figures.orders))
        of_keys = figures.rows_of_keys.array().reshape(len(hashes), rows.size)
        traffic.frequent = {h: Frequent(o, r) for h, o, r in zip(hashes, orders, of_keys, strict=True)}
        if traffic.histogram is not None:
            traffic.histogram[:, figures.slots.view()] = figures.rows_of_slots.view().reshape(rows.size, -1)
        traffic.sampled = [of.array().view(np.uint64) for of in figures.sampled]
        return traffic


def quantiles(orders: Array, weights: Array, count: int) -> Array:
    """So many of some keys, each of which stands for an equal part of their weight."""
    if orders.size <= count and np.ptp(weights) == 0:
        return np.sort(orders)
    by_order = np.argsort(orders, kind="stable")
    reached = np.cumsum(weights[by_order])
    wanted = (np.arange(min(count, orders.size)) + 0.5) / min(count, orders.size) * reached[-1]
    found: Array = orders[by_order][np.minimum(np.searchsorted(reached, wanted), orders.size - 1)]
    return found


def _cells(hashes: Array) -> Array:
    """Of the histogram; not the bits by which a partition has its rows."""
    out: Array = ((hashes >> np.uint64(12)) & np.uint64(CELLS - 1)).astype(np.int32)
    return out
