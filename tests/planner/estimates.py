"""Joins whose sizes are known exactly: keys that are evenly distributed, each class over so many values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import pyarrow as pa

from spark_mjoin.config import Options
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.planner.graph import plan_join


@dataclass(frozen=True)
class Even:
    """Estimates of a join: classes[i] are the key classes of input i, values[c] is how many values class c has."""

    classes: tuple[frozenset[int], ...]
    values: tuple[float, ...]
    rows: tuple[float, ...]
    rates: tuple[float, ...]

    def size(self, inputs: frozenset[int], rows: Sequence[float]) -> float:
        having = [sum(c in self.classes[i] for i in inputs) for c in range(len(self.values))]
        matching = prod(v ** -max(0, n - 1) for v, n in zip(self.values, having, strict=True))
        return prod(rows[i] for i in inputs) * matching

    def with_rows(self, rows: Sequence[float]) -> Even:
        return replace(self, rows=tuple(rows))

    @property
    def spec(self) -> JoinSpec:
        names = [f"s{i + 1}" for i in range(len(self.classes))]
        schemas = {
            name: pa.schema([("id", pa.int64()), *((f"k{c}", pa.int64()) for c in sorted(own))])
            for name, own in zip(names, self.classes, strict=True)
        }
        equalities = []
        for c in range(len(self.values)):
            having = [name for name, own in zip(names, self.classes, strict=True) if c in own]
            equalities += [f"{having[0]}.k{c} = {name}.k{c}" for name in having[1:]]
        query = f"SELECT s1.id FROM {', '.join(names)} WHERE {' AND '.join(equalities)}"
        options = Options.parse({"query": query, **{f"source.{name}.format": "arrow" for name in names}})
        return plan_join(options, [schemas[source.alias] for source in options.sources])


def star(count: int, values: float, rates: Sequence[float] | None = None) -> Even:
    """All inputs have one key."""
    rates = tuple(rates or [1.0] * count)
    return Even((frozenset((0,)),) * count, (values,), (0.0,) * count, rates)


def chain(values: Sequence[float], rates: Sequence[float] | None = None) -> Even:
    """Neighbours have a key; values[i] is that of input i and input i + 1."""
    count = len(values) + 1
    classes = tuple(frozenset(c for c in (i - 1, i) if 0 <= c < len(values)) for i in range(count))
    return Even(classes, tuple(values), (0.0,) * count, tuple(rates or [1.0] * count))


def every_tree(inputs: Sequence[int]) -> list[Tree]:
    """Every tree over some inputs, connected or not, by its definition: nested partitions."""
    if len(inputs) == 1:
        return [inputs[0]]
    trees: list[Tree] = []
    for parts in partitions(list(inputs)):
        if len(parts) > 1:
            members: list[tuple[Tree, ...]] = [()]
            for part in parts:
                members = [(*m, t) for m in members for t in every_tree(part)]
            trees += members
    return trees


def partitions(items: list[int]) -> list[list[list[int]]]:
    if not items:
        return [[]]
    out = []
    for parts in partitions(items[1:]):
        out.append([[items[0]], *parts])
        out += [[*parts[:n], [items[0], *part], *parts[n + 1 :]] for n, part in enumerate(parts)]
    return out
