"""Every oracle runs with all kinds of feeds: each test three times, with a third of the generated cases each time.

Tests that are `in_turn` (examples.py) run once.
"""

from collections.abc import Iterator

import pytest

from tests.harness import fed
from tests.oracle.examples import FEEDS


@pytest.fixture(autouse=True, params=FEEDS)
def feed(request: pytest.FixtureRequest) -> Iterator[None]:
    with fed(request.param):
        yield
