"""Queries for trees of joins, and the sizes of their results: any tree over inputs that have keys in common.

Input i is the stream `s<i+1>` with a column `id` and a key `k<c>` for each of its classes; a class is equal in all
inputs that have it. An intermediate result keeps the keys and the ids of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import pyarrow as pa

from benchmarks.paper.plans import Join
from spark_mjoin.config import Options
from spark_mjoin.model import JoinSpec, Tree
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.tree import leaves


@dataclass(frozen=True)
class Even:
    """Estimates for keys that are evenly distributed: values[c] is how many values class c has."""

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


def tree_join(classes: Sequence[frozenset[int]], tree: Tree) -> Join:
    """The tree as a plan; classes[i] are the key classes of input i."""
    assert not isinstance(tree, int)
    members = [_member(classes, member) for member in tree]
    names = [member if isinstance(member, str) else member.name for member in members]
    keys = [frozenset[int]().union(*(classes[i] for i in leaves(member))) for member in tree]
    columns, equalities = [], []
    for name, member in zip(names, tree, strict=True):
        columns += [f"{name}.{'id' if isinstance(member, int) else f'id{i}'} AS id{i}" for i in sorted(leaves(member))]
    for c in sorted(frozenset[int]().union(*keys)):
        having = [name for name, own in zip(names, keys, strict=True) if c in own]
        columns.append(f"{having[0]}.k{c} AS k{c}")
        equalities += [f"{a}.k{c} = {b}.k{c}" for a, b in pairwise(having)]
    query = f"SELECT {', '.join(columns)} FROM {', '.join(names)} WHERE {' AND '.join(equalities)}"
    name = "join" + "_".join(str(i + 1) for i in sorted(leaves(tree)))
    return Join(name, query, tuple(members), len(members))


def _member(classes: Sequence[frozenset[int]], member: Tree) -> str | Join:
    return f"s{member + 1}" if isinstance(member, int) else tree_join(classes, member)
