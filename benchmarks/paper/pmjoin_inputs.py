"""Streams for the experiments of PMJoin (Zhou, Yan, Yu and Zhou, 2006), section 4: rates, windows, and distributions.

Rows all have one size, so volumes are rows per second. Values are the integers up to a data range. A distribution is an
array of their shares:

    uniform          all alike
    normal           mean in the middle, a standard deviation of 5 % to 50 % of the range (the paper: varied)
    zipf             skew 0.1 to 1.5; value 1 is the most frequent
    self-similar     skew h 0.1 to 0.9: the first h N values have 1 - h of the weight, and so on within them

"Similar" streams are zipfian with a skew of 0.1 to 0.3, "different" ones are any of the four. That is the paper's. A
hot spot is contiguous as the distributions are; where it is random, similar streams have their values in one random
order, and different streams each in one of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_mjoin.driver.placement import Query, Stream, attribute_of
from spark_mjoin.model import Array

Chance = np.random.Generator


def chance(*seed: int) -> Chance:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def draws(full: int, scale: float) -> int:
    """How many drawings of the streams are averaged."""
    return max(1, round(full * scale))


def uniform(values: int) -> Array:
    return np.full(values, 1 / values)


def normal(values: int, deviation: float) -> Array:
    """deviation: as a part of the range."""
    at = (np.arange(1, values + 1) - (values + 1) / 2) / (deviation * values)
    return _scaled(np.exp(-(at**2) / 2))


def zipf(values: int, skew: float) -> Array:
    return _scaled(np.arange(1, values + 1) ** -skew)


def self_similar(values: int, skew: float) -> Array:
    """The share of the first x N values is x to the power of log(1 - h) / log(h)."""
    cumulated = (np.arange(values + 1) / values) ** (np.log(1 - skew) / np.log(skew))
    found: Array = np.diff(cumulated)
    return found


def _scaled(weights: Array) -> Array:
    found: Array = weights / weights.sum()
    return found


def similar(drawn: Chance, values: int) -> Array:
    return zipf(values, drawn.uniform(0.1, 0.3))


def different(drawn: Chance, values: int) -> Array:
    kind = drawn.integers(4)
    if kind == 0:
        return uniform(values)
    if kind == 1:
        return normal(values, drawn.uniform(0.05, 0.5))
    return zipf(values, drawn.uniform(0.1, 1.5)) if kind == 2 else self_similar(values, drawn.uniform(0.1, 0.9))


@dataclass(frozen=True)
class Spread:
    """How the values of streams are distributed."""

    values: int
    is_similar: bool = False
    is_contiguous: bool = True

    def shares(self, drawn: Chance, count: int) -> Array:
        """Streams x values."""
        of = similar if self.is_similar else different
        found = np.array([of(drawn, self.values) for _ in range(count)])
        if self.is_contiguous:
            return found
        if self.is_similar:
            return found[:, drawn.permutation(self.values)]
        return np.array([drawn.permutation(each) for each in found])


def streams(rates: Sequence[float], seconds: Sequence[float], nodes: Sequence[int]) -> tuple[Stream, ...]:
    return tuple(
        Stream(f"S{i}", f"n{node}", float(rate), 0.0).during(float(window))
        for i, (rate, window, node) in enumerate(zip(rates, seconds, nodes, strict=True))
    )


def on_one_attribute(parts: tuple[Stream, ...], shares: Array) -> Query:
    rates = np.array([stream.rate for stream in parts])
    return Query(parts, (attribute_of("value", shares * rates[:, None]),), widens=False)
