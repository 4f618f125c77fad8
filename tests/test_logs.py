"""What the package logs in processes that Spark starts; that Spark passes it on is in tests/spark/test_kill.py."""

import logging
from collections.abc import Iterator

import pytest

from spark_mjoin import logs


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    log = logging.getLogger("spark_mjoin")
    before = log.level
    yield log
    log.setLevel(before)


def test_the_environment_names_the_level(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(logs.VARIABLE, raising=False)
    logs.follow_environment()
    assert log.level == logging.NOTSET
    monkeypatch.setenv(logs.VARIABLE, " info ")
    logs.follow_environment()
    assert log.level == logging.INFO and logging.getLogger("spark_mjoin.driver.session").isEnabledFor(logging.INFO)


def test_what_is_no_level_is_said_and_ignored(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "loud")
    logs.follow_environment()
    assert log.level == logging.NOTSET
    assert "SPARK_MJOIN_LOG is 'LOUD', which is no level of logging" in caplog.text


def test_standard_error_is_taken_once_where_nothing_else_is(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(logs.VARIABLE, "INFO")
    monkeypatch.setattr(log, "propagate", False)  # from pytest's own handlers
    monkeypatch.setattr(log, "handlers", [])
    logs.follow_environment()
    logs.follow_environment()
    logging.getLogger("spark_mjoin.driver.session").info("plan %s", "(a b)")
    assert capsys.readouterr().err == "INFO spark_mjoin.driver.session: plan (a b)\n"
