"""The stages of a run over inputs that have no key in common: which inputs are reached through which key, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_mjoin.mjoin.orders import order_of
from spark_mjoin.model import JoinSpec, ProbeOrder
from spark_mjoin.state.buckets import bucket_class


@dataclass(frozen=True)
class Stage:
    """The inputs that are reached through one key, after some others are bound."""

    key_class: int
    supplier: int  # a bound input that has the key
    bound: tuple[int, ...]
    order: ProbeOrder

    @property
    def targets(self) -> list[int]:
        return [step.target for step in self.order.steps]


def stages_of(spec: JoinSpec, origin: int, planned: Sequence[int]) -> list[Stage]:
    """An order from an origin, cut where the key changes by which it is divided.

    An input comes first that is reached through the same key as the one before; then one that is clustered by the key
    through which it is reached; then as planned.
    """
    bound, targets, keys, key = [origin], list[int](), list[int](), bucket_class(spec, origin)
    while len(targets) < len(planned):
        shared = frozenset[int]().union(*(spec.classes_of(i) for i in bound))
        options = [
            (c != key, c != bucket_class(spec, target), planned.index(target), c)
            for target in planned
            if target not in bound
            for c in sorted(spec.classes_of(target) & shared)
        ]
        *_, place, key = min(options)
        bound.append(planned[place])
        targets.append(planned[place])
        keys.append(key)
    steps = order_of(spec, origin, targets).steps
    out: list[Stage] = []
    for number, (step, key) in enumerate(zip(steps, keys, strict=True)):
        if out and out[-1].key_class == key:
            out[-1] = replace(out[-1], order=ProbeOrder(origin, (*out[-1].order.steps, step)))
        else:
            before = bound[: number + 1]
            supplier = next(i for i in before if key in spec.classes_of(i))
            out.append(Stage(key, supplier, tuple(sorted(before)), ProbeOrder(origin, (step,))))
    return out
