"""Every oracle runs with all kinds of feeds: each test three times, with a third of the generated cases each time."""

from collections.abc import Iterator

import pytest

from tests.feeds import ALL_ROWS, OWN_ROWS, PARCELS
from tests.harness import fed


@pytest.fixture(autouse=True, params=[ALL_ROWS, OWN_ROWS, PARCELS])
def feed(request: pytest.FixtureRequest) -> Iterator[None]:
    with fed(request.param):
        yield
