"""Layouts that change all the time: whatever rows there are, they are divided by what was counted, and back again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import pytest

from spark_mjoin.driver import balance, cubes
from spark_mjoin.driver.balance import rules
from spark_mjoin.driver.balance.seen import Seen
from spark_mjoin.model import JoinSpec, Scheme, Settings
from spark_mjoin.state import traffic
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.routing import Routing

PLAIN_EVERY = 5  # versions: then rows are divided evenly, by slots


@contextmanager
def relaid(scheme: Scheme, seen: list[str] | None = None, split: bool = True) -> Iterator[None]:
    """While this lasts, each key is hot as soon as it is noticed, and no change is too dear.

    split: or no key ever is. seen: gets the layouts that were wanted, in words. Where ranges are refused, rows are
    divided by rates.
    """
    real, real_scheme = balance.wanted, balance.scheme

    def asked(spec: JoinSpec, settings: Settings) -> Settings:
        refused = scheme == "range" and cubes.obstacle(spec, settings) is not None
        return replace(settings, partitioning="rate" if refused else scheme, splits_hot_keys=split)

    def wanted(
        spec: JoinSpec, settings: Settings, before: Routing, version: int, manifests: Callable[[], Sequence[Manifest]]
    ) -> tuple[Routing, str]:
        found, why = real(spec, asked(spec, settings), before, version, manifests)
        if version % PLAIN_EVERY == PLAIN_EVERY - 1:
            found = Routing.wanted(settings)
        if seen is not None and found.partitions > 1:
            seen.append(str(found.layout))
        return found, why

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(balance, "wanted", wanted)
        patch.setattr(balance, "scheme", lambda spec, settings: real_scheme(spec, asked(spec, settings)))
        for name, value in {
            "LEAST_ROWS": 1,
            "STAY": 0,
            "SKEWED": 0.0,
            "CALM": 0.0,
            "BETTER": inf,
            "MORE_CELLS": inf,
            "LIGHT": inf,
            "LASTS": 0,
            "UNEVEN": inf,
            "COOLED": 0,
            "SHIPPED": -inf,
            "CHANCE": -inf,
        }.items():
            patch.setattr(rules, name, value)
        patch.setattr(Seen, "pays", lambda *_: True)
        patch.setattr(traffic, "LEAST", 1)
        yield
