"""How many cases generated tests try here, where each runs twice (conftest): together as many as it asks for."""

from hypothesis import settings

from tests import examples as once


def examples(count: int) -> settings:
    """A decorator like hypothesis' settings(max_examples=count), over all kinds of feeds."""
    return settings(max_examples=max(1, once.examples(count).max_examples // 3))
