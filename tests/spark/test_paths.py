"""A path means to the source what it means to `spark.read`: every spelling, in a classic session and over Connect."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.spark.processes import run_with_children
from tests.spark.spellings import lay_out

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["classic", "connect"])
def differential_paths_mean_what_they_mean_to_spark(mode: str, tmp_path: Path) -> None:
    root = tmp_path / "files"
    lay_out(root)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    outcome = tmp_path / "outcome.json"
    command = [sys.executable, "-m", "tests.spark.spellings", mode, str(outcome)]
    run_with_children(command, tmp_path / "log", environment, root)
    assert outcome.exists(), (tmp_path / "log").read_text()[-5000:]
    said = json.loads(outcome.read_text())

    different = {path: pair for path, pair in said["found"].items() if pair[0] != pair[1]}
    assert not different, {path: [readable(each) for each in pair] for path, pair in different.items()}
    assert sum(theirs is not None for theirs, _ in said["found"].values()) > 150, "most spellings find something"

    paths, rows = said["inside"]
    assert rows == [[said["found"].get(path, said["found"].get(path.lstrip("./")))[0][0] for path in paths]]

    assert f"'{root}/nothere%41' does not exist" in said["missing"]["nothere%41"]
    assert f"'{root}/nothere#1' does not exist" in said["missing"][f"file:{root}/nothere#1"]
    assert "a relative path" in said["missing"]["file:nothere#1"]


def readable(found: list[str] | None) -> list[str] | None:
    return None if found is None else [bytes.fromhex(name).decode() for name in found]
