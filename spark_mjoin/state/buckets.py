"""Buckets: hash slices of a partition's rows, the unit in which rows leave memory and disk work is done.

Every input has one key class by whose hash its rows fall into buckets. The *main class* is the one that most inputs
have; in a star join all do, and the same bucket of all inputs holds everything that can join with each other. Every
combination has one value of the main class, so each belongs to one bucket, on any join graph.

Buckets use other bits of the hash than partitions (the low ones) and slots of an index (the top ones), so neither makes
the other uneven. Which bits is part of the state's format.
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


def bucket_class(spec: JoinSpec, input: int) -> int:
    """The key class by which an input's rows fall into buckets: the main class where it has it."""
    main, own = main_class(spec), spec.classes_of(input)
    return main if main in own else min(own)


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
