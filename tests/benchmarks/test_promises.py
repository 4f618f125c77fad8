"""Many promises at a small scale: at the command line, and able to tell when a batch writes too much."""

import pytest

from benchmarks import promises

SMALL = ["--promised", "20000", "--batches", "10"]


def test_a_batch_writes_in_proportion_to_what_is_new(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promises, "TIME_BAR_MS", 1000.0)  # the machine may have other things to do
    assert promises.main(SMALL) == 0
    assert "forgotten: 0" in capsys.readouterr().out
    monkeypatch.setattr(promises, "WRITTEN_BAR", 0.9)
    assert promises.main(SMALL) == 1


def test_with_a_budget_some_are_forgotten(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "TIME_BAR_MS", 1000.0)
    assert promises.main([*SMALL, "--memory", "2m"]) == 0
    forgotten = capsys.readouterr().out.partition("forgotten: ")[2]
    assert int(forgotten.replace(",", "")) > 15_000
