"""Inputs of the experiments: relations whose rows arrive at given times. A seed decides both.

Attributes are permutations, round after round, as in the Wisconsin relation: an attribute of cardinality c takes every
value below c once in every c rows. Delays are exponentially distributed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_mjoin.model import Array
from spark_mjoin.sources.wisconsin import permute

MS = 1e-3  # delays are given in milliseconds


@dataclass(frozen=True)
class Stream:
    """A finite input: its rows and when each arrives, in seconds, ascending."""

    rows: pa.RecordBatch
    seconds: Array


def attribute(rows: int, cardinality: int, seed: int) -> Array:
    """Values of an attribute with so many distinct ones, each as frequent as any other."""
    rounds, index = np.divmod(np.arange(rows, dtype=np.int64), cardinality)
    values: Array = permute(seed, cardinality, rounds, index)
    return values


def relation(rows: int, seed: int, **cardinalities: int) -> pa.RecordBatch:
    """Attributes of the given cardinalities, and `id`, the number of the row."""
    columns = {name: attribute(rows, c, seed * 1000 + k) for k, (name, c) in enumerate(cardinalities.items())}
    return batch({"id": np.arange(rows, dtype=np.int64), **columns})


def batch(columns: Mapping[str, Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(values) for name, values in columns.items()})


def poisson(rows: int, delay: float, seed: int) -> Array:
    """Arrival times with a mean delay in seconds."""
    times: Array = np.cumsum(np.random.Generator(np.random.Philox(seed)).exponential(delay, rows))
    return times


def changing(phases: Sequence[tuple[int, float]], seed: int) -> Array:
    """Arrival times of a rate that changes: so many rows at such a mean delay, phase after phase."""
    delays = np.concatenate([np.full(rows, delay) for rows, delay in phases])
    unit = np.random.Generator(np.random.Philox(seed)).exponential(1.0, delays.size)
    times: Array = np.cumsum(unit * delays)
    return times
