"""Every oracle test over files runs twice: with all rows in memory, and with none staying there."""

import pytest

from tests.spark.joins import FileJoin

ROOMY, CRAMPED = {}, {"memory": "1"}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function.__name__.startswith("oracle_") and "spark_session" in metafunc.fixturenames:
        metafunc.fixturenames.append("overflow")
        metafunc.parametrize("overflow", [ROOMY, CRAMPED], ids=["roomy", "cramped"], indirect=True)


@pytest.fixture
def overflow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileJoin, "forced", request.param)
