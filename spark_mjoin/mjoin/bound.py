"""Combinations of rows on their way to be emitted.

A combination travels as row numbers. They are looked up when its output is made, which is later than when it is found:
combinations are pooled, so that the price of a batch is paid for many of them. Row numbers change when rows leave a
table. So whoever is about to take rows out of a table puts a mark between what was found before and what comes then:

    bound, bound, EMIT_FIRST, bound ...
                  │
                  └─ when the next is asked for, all before it are emitted; only then do rows leave
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, Literal

import numpy as np

from spark_mjoin.model import CHUNK_ROWS, Array

Bound = dict[int, Array]  # input -> row numbers; all vectors are equally long


class Mark(Enum):
    """What may be among combinations besides them."""

    EMIT_FIRST = "emit first"  # row numbers are about to change: what was found before must be emitted first


EMIT_FIRST: Final = Mark.EMIT_FIRST
EmitFirst = Literal[Mark.EMIT_FIRST]
Found = Bound | EmitFirst


def size_of(bound: Bound) -> int:
    """How many combinations there are."""
    return int(next(iter(bound.values())).size)


def pooled(found: Iterable[Bound] | Iterable[Found]) -> Iterator[Bound]:
    """The same combinations in fewer, larger pieces: Spark and the gathers have a price per batch."""
    pool: list[Bound] = []
    size = 0
    for bound in found:
        if bound is not EMIT_FIRST:
            pool.append(bound)
            size += size_of(bound)
        if pool and (bound is EMIT_FIRST or size >= CHUNK_ROWS // 2):
            yield _concatenated(pool)
            pool, size = [], 0
    if pool:
        yield _concatenated(pool)


def _concatenated(pool: list[Bound]) -> Bound:
    if len(pool) == 1:
        return pool[0]
    return {i: np.concatenate([bound[i] for bound in pool]) for i in pool[0]}
