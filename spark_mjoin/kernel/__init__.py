"""Hot loops over flat arrays: `fast` (numba) is what runs, `slow` is its plain-Python twin for tests.

Callers write `kernel.advance(...)`, so a test can put the twin in its place.
"""

from __future__ import annotations

import os

import numpy as np

from spark_mjoin.kernel.fast import (
    FRESH,
    PADDING,
    advance,
    append_offsets,
    bucket_words,
    combine_hashes,
    departed,
    find_bytes,
    gather,
    gather_bytes,
    gather_offsets,
    hash_bytes,
    hash_words,
    heads,
    insert,
    inside_rows,
    present,
    select_slots,
    sieve,
    slot_hashes,
    slot_words,
    small_slots,
    verify_bytes,
    verify_words,
    walk,
)

__all__ = [
    "ALL_BITS",
    "FRESH",
    "PADDING",
    "advance",
    "append_offsets",
    "bucket_words",
    "combine_hashes",
    "departed",
    "find_bytes",
    "gather",
    "gather_bytes",
    "gather_offsets",
    "hash_bytes",
    "hash_mask",
    "hash_words",
    "heads",
    "insert",
    "inside_rows",
    "present",
    "select_slots",
    "sieve",
    "slot_hashes",
    "slot_words",
    "small_slots",
    "verify_bytes",
    "verify_words",
    "walk",
]

ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)


def hash_mask() -> np.uint64:
    """Which bits of a hash count: all, unless SPARK_MJOIN_HASH_BITS=n forces collisions by keeping the top n."""
    bits = int(os.environ.get("SPARK_MJOIN_HASH_BITS", "64"))
    return np.uint64(((1 << bits) - 1) << (64 - bits))
