"""Joins whose sizes are known exactly, and every tree that there is."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.trees import Even
from spark_mjoin.model import Tree


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
