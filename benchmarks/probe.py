"""Two ways to follow the chains of a hash index: one chain after the other, and all of them in rounds.

    python -m benchmarks.probe

Nanoseconds per probing row, one thread, best of several rounds, batches of 50,000 probing rows with unique keys. The
rounds are the engine's own kernels (`kernel.heads`, `advance`); the other way is below, with the same prefetches.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np

from spark_mjoin import kernel
from spark_mjoin.kernel.fast import prefetch

BATCH_ROWS = 50_000
PROBES = 500_000
ROUNDS = 15
_ONE, _HEAD_AHEAD, _CHAIN_AHEAD = np.uint64(1), np.uint64(24), np.uint64(12)


@nb.njit(nogil=True, boundscheck=False, error_model="numpy")  # type: ignore[untyped-decorator]
def one_after_the_other(probing: Any, slots: Any, head: Any, link: Any, values: Any, out_at: Any, out_row: Any) -> int:
    n = np.uint64(probing.size)
    k = i = np.uint64(0)
    while i < n:
        if i + _HEAD_AHEAD < n:
            prefetch(head, np.uint64(slots[i + _HEAD_AHEAD]))
        if i + _CHAIN_AHEAD < n:
            soon = head[np.uint64(slots[i + _CHAIN_AHEAD])]
            if soon >= 0:
                prefetch(values, np.uint64(soon))
                prefetch(link, np.uint64(soon))
        row = head[np.uint64(slots[i])]
        while row >= 0:
            u = np.uint64(row)
            if values[u] == probing[i]:
                out_at[k] = np.int32(i)
                out_row[k] = row
                k += _ONE
            row = link[u]
        i += _ONE
    return np.int64(k)


def in_rounds(probing: Any, slots: Any, head: Any, link: Any, values: Any, out_at: Any, out_row: Any) -> int:
    at, row = np.empty(slots.size, np.int32), np.empty(slots.size, np.int32)
    left, found = kernel.heads(slots, head, at, row), 0
    while left:
        more, left = kernel.advance(probing, at, row, left, values, link, out_at[found:], out_row[found:])
        found += more
    return int(found)


def nanoseconds(way: Callable[..., int], rows: int, hits: float) -> float:
    """Per probing row, on a table of `rows` rows of which a share `hits` of the probes finds one."""
    random = np.random.default_rng(1)
    words = random.permutation(rows).astype(np.int64)
    probing = random.permutation(int(rows / hits))[:PROBES].astype(np.int64)
    bits = (rows - 1).bit_length() + 1
    head, link = np.full(1 << bits, -1, np.int32), np.empty(rows, np.int32)
    kernel.insert(slots_of(words, bits), 0, head, link)
    out = np.empty(2 * BATCH_ROWS, np.int32), np.empty(2 * BATCH_ROWS, np.int32)
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for low in range(0, probing.size, BATCH_ROWS):
            batch = probing[low : low + BATCH_ROWS]
            way(batch, slots_of(batch, bits), head, link, words, *out)
        best = min(best, time.perf_counter() - started)
    return best * 1e9 / probing.size


def slots_of(words: Any, bits: int) -> Any:
    slots = np.empty(words.size, np.uint32)
    kernel.slot_words(words, kernel.ALL_BITS, 64 - bits, slots)
    return slots


def main() -> None:
    print("| rows in the table | probes that hit | one chain after the other | in rounds |\n|---|---|---|---|")
    for rows in (300_000, 500_000, 1_000_000):
        for hits in (1.0, 0.5, 0.1):
            times = [nanoseconds(way, rows, hits) for way in (one_after_the_other, in_rounds)]
            print(f"| {rows:,} | {hits:.0%} | {times[0]:.1f} ns | {times[1]:.1f} ns |")


if __name__ == "__main__":
    main()
