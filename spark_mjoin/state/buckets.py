"""Buckets: hash slices of a partition's rows, the unit in which rows are evicted and disk work is done.

Every input has one key class by whose hash its rows fall into buckets. Inputs with the same one form a *star*: the
same bucket of all of them holds everything of theirs that can join with each other. The *main class* is the one that
most inputs have, and the first star has it; in a star join that is all of them. Every combination has one value of the
main class, so each belongs to one bucket of it, on any join graph.

    a.x = b.x = c.x  and  c.y = d.y = e.y      stars: a b c by x, d e by y

An input that could be in several stars is in the one that is chosen first. Its rows are in memory once and leave it
once, so it has one bucket per row; the other star goes without it.

Buckets use other bits of the hash than the slots that partitions own (`state.routing`, the low ones) and those of an
index (the top ones), so neither makes the other uneven. Which bits is part of the state's format.
"""

from __future__ import annotations

import numpy as np

from spark_mjoin.model import Array, JoinSpec

BUCKETS = 64
BUCKET_SHIFT = 32
DIGIT_SHIFT = 38  # above the bucket's bits: where a bucket that is too large is divided further
DIGIT_BITS = 3
DIGITS = 1 << DIGIT_BITS
MAX_DEPTH = (64 - DIGIT_SHIFT) // DIGIT_BITS


def main_class(spec: JoinSpec) -> int:
    """The key class that most inputs have."""
    members = [sum(c in spec.classes_of(i) for i in range(len(spec.inputs))) for c in range(len(spec.classes))]
    return members.index(max(members))


def bucket_classes(spec: JoinSpec) -> list[int]:
    """For each input the key class by which its rows fall into buckets.

    Always the class that most of the inputs without one have, so the main class comes first, and stars are large.
    """
    out: dict[int, int] = {}
    while left := [i for i in range(len(spec.inputs)) if i not in out]:
        having = [sum(c in spec.classes_of(i) for i in left) for c in range(len(spec.classes))]
        chosen = having.index(max(having))
        out |= {i: chosen for i in left if chosen in spec.classes_of(i)}
    return [out[i] for i in range(len(spec.inputs))]


def bucket_class(spec: JoinSpec, input: int) -> int:
    """The key class by which an input's rows fall into buckets: the main class where it has it."""
    return bucket_classes(spec)[input]


def main_inputs(spec: JoinSpec) -> list[int]:
    """The inputs that have the main class."""
    main = main_class(spec)
    return [i for i in range(len(spec.inputs)) if main in spec.classes_of(i)]


def of_hashes(hashes: Array) -> Array:
    """The buckets of some hashes."""
    return ((hashes >> np.uint64(BUCKET_SHIFT)) & np.uint64(BUCKETS - 1)).astype(np.uint8)


def digits_of_hashes(hashes: Array, depth: int) -> Array:
    """The digit of each hash by which rows of one bucket are divided at a depth of the division."""
    shift = DIGIT_SHIFT + DIGIT_BITS * depth
    return ((hashes >> np.uint64(shift)) & np.uint64(DIGITS - 1)).astype(np.uint8)
