"""Every oracle runs with both kinds of feeds: each test twice, with half of the generated cases each time."""

from collections.abc import Iterator

import pytest

from tests.feeds import ALL_ROWS, OWN_ROWS
from tests.harness import fed


@pytest.fixture(autouse=True, params=[ALL_ROWS, OWN_ROWS])
def feed(request: pytest.FixtureRequest) -> Iterator[None]:
    with fed(request.param):
        yield
