"""How many cases tests try here, where each runs with every kind of feed (conftest)."""

from collections.abc import Iterable

import pytest
from hypothesis import settings

from tests import examples as once
from tests.feeds import ALL_ROWS, OWN_ROWS, PARCELS

FEEDS = (ALL_ROWS, OWN_ROWS, PARCELS)


def examples(count: int) -> settings:
    """A decorator like hypothesis' settings(max_examples=count), over all kinds of feeds together."""
    return settings(max_examples=max(1, once.examples(count).max_examples // len(FEEDS)))


def in_turn(names: Iterable[str]) -> pytest.MarkDecorator:
    """Each name, as the parameter `name`, with one kind of feed: the kinds take turns. `make fuzz` runs all with all.

    For tests that take seconds, and whose cases are the same in every run.
    """
    all_of_them = once.FACTOR >= 1
    chosen = [(n, f) for i, n in enumerate(names) for j, f in enumerate(FEEDS) if all_of_them or i % len(FEEDS) == j]
    return pytest.mark.parametrize(("name", "feed"), chosen, indirect=["feed"])
