"""The endless run at a small scale: flat, at the command line, and able to tell when it is not."""

from pathlib import Path

import pytest

from benchmarks import endless


def test_a_short_run_is_flat_under_a_budget(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endless, "WINDOW", "10 seconds")
    monkeypatch.setattr(endless, "TIME_BAR", 10.0)  # the machine may have other things to do
    arguments = ["--rows", "540000", "--batch", "3000", "--memory", "2m", "--out", str(tmp_path)]
    assert endless.main(arguments) == 0
    said = capsys.readouterr().out
    assert "state and time per batch are flat" in said and "540,000 rows in " in said
    assert (tmp_path / "endless.png").stat().st_size > 5_000
    header, *lines = (tmp_path / "endless.csv").read_text().splitlines()
    assert header.startswith("rows,ms,results,state_rows") and len(lines) == 60


def test_growth_is_noticed() -> None:
    flat = {"state_rows": 100.0, "memory_bytes": 100.0, "disk_bytes": 100.0, "rss_bytes": 100.0, "ms": 10.0}
    assert endless.is_flat([flat] * 30) == []
    growing = [{**flat, "disk_bytes": 100.0 + 5 * n} for n in range(30)]
    (problem,) = endless.is_flat(growing)
    assert problem.startswith("disk_bytes: ")
