"""Probing orders: in which sequence an arriving row visits the other inputs (Viglas 2003, section 2.1 and 2.2).

Each input has its own order. An input can be visited once it shares a key class with one that is bound; among those
that can, the one with the fewest rows comes first, so an empty input ends the sequence at once. All key classes that a
target shares with the bound inputs are used in its probe: where a join graph has a cycle, the closing edge narrows the
probe rather than being checked afterwards.

Pure: the same specification and sizes give the same order. Selectivities are counted in the state but not used yet.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_mjoin.model import JoinSpec, ProbeOrder, ProbeStep


def probe_order(spec: JoinSpec, origin: int, sizes: Sequence[int]) -> ProbeOrder:
    """The order for arrivals of `origin`, where sizes[i] is the number of rows of input i."""
    bound = [origin]
    waiting = [i for i in range(len(spec.inputs)) if i != origin]
    undecided = list(range(len(spec.residuals)))
    steps = []
    while waiting:
        supplier = {c: i for i in reversed(bound) for c in spec.classes_of(i)}
        reachable = [i for i in waiting if spec.classes_of(i) & supplier.keys()]
        target = min(reachable, key=lambda i: (sizes[i], i))
        bound.append(target)
        waiting.remove(target)
        classes = tuple(sorted(spec.classes_of(target) & supplier.keys()))
        decided = [r for r in undecided if spec.residuals[r].inputs <= set(bound)]
        undecided = [r for r in undecided if r not in decided]
        steps.append(ProbeStep(target, classes, tuple(supplier[c] for c in classes), tuple(decided)))
    return ProbeOrder(origin, tuple(steps))
