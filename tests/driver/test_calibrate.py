"""`python -m spark_mjoin calibrate`, small: it measures, it remembers, and what is damaged is not believed."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import pytest

from spark_mjoin.__main__ import main
from spark_mjoin.driver.calibrate import DEFAULTS, FORMAT, cache_path, calibrated, save
from spark_mjoin.driver.costs import Costs


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spark_mjoin" / "costs.json"


def test_the_command_measures_prints_and_remembers(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrated() == DEFAULTS
    began = perf_counter()
    assert main(["calibrate", "--rows", "20000", "--rounds", "2"]) == 0
    assert perf_counter() - began < 60  # seconds of which are compilation, once per machine
    said = capsys.readouterr().out
    body = json.loads(cache.read_text())
    assert body["format"] == FORMAT and {"numba", "numpy", "pyarrow", "spark-mjoin", "python"} == set(body["versions"])
    costs = calibrated()
    assert costs != DEFAULTS and asdict(costs) == body["seconds"]
    for name, seconds in asdict(costs).items():
        assert 0 < seconds < 1e-5, f"{name} takes {seconds}"
        assert name in said and f"{seconds * 1e9:.2f} ns" in said
    assert str(cache) in said


@pytest.mark.parametrize("wrong", [["--rows", "0"], ["--rows", "999"], ["--rows", "-5"], ["--rounds", "0"]])
def test_what_cannot_be_measured_is_refused(wrong: list[str], cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", *wrong])
    assert f"argument {wrong[0]}" in capsys.readouterr().err and not cache.exists()


def test_the_cache_is_in_the_home_directory_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_path() == tmp_path / "home/.cache/spark_mjoin/costs.json"


GOOD = asdict(Costs(1e-9, 2e-9, 3e-9, 4e-9))


@pytest.mark.parametrize(
    "contents",
    [
        "",
        "{",
        "[]",
        '"text"',
        json.dumps({"format": FORMAT + 1, "seconds": GOOD}),
        json.dumps({"format": FORMAT}),
        json.dumps({"format": FORMAT, "seconds": {"hash": 1e-9}}),
        json.dumps({"format": FORMAT, "seconds": GOOD | {"move": -1.0}}),
        json.dumps({"format": FORMAT, "seconds": GOOD | {"move": "fast"}}),
        json.dumps({"format": FORMAT, "seconds": GOOD | {"more": 1e-9}}),
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(
    contents: str | bytes, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache.parent.mkdir()
    cache.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    with caplog.at_level(logging.WARNING):
        assert calibrated() == DEFAULTS
    assert str(cache) in caplog.text and "spark_mjoin calibrate" in caplog.text


def test_what_was_saved_is_read_back_without_a_warning(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert save(Costs(**GOOD)) == cache
    assert calibrated() == Costs(**GOOD)
    assert not caplog.records
    assert [p.name for p in cache.parent.iterdir()] == ["costs.json"]


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "required: command" in capsys.readouterr().err
