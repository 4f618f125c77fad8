"""Queries for trees of joins: any tree over inputs that have keys in common.

Input i is the stream `s<i+1>` with a column `id` and a key `k<c>` for each of its classes; a class is equal in all
inputs that have it. An intermediate result keeps the keys and the ids of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from benchmarks.paper.plans import Join
from spark_mjoin.model import Tree
from spark_mjoin.planner.costs import leaves


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
