"""The examples run by themselves and print what they promise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.driver import QUICK, submitted

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
PROMISED = {
    "quickstart": ["|       1|     Ada|  40.0|    air|", "|       3|    Cleo|  12.5|   road|"],
    "ad_attribution": ["4 micro-batches", "as computed without Spark: yes", "c > "],
    "sensors": ["humidity arrived, 0 results", "power arrived, 5 results", "power arrived, 11 results", "|ventilate|"],
}


@pytest.mark.parametrize("name", PROMISED)
def test_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    environment = {**os.environ, **submitted(QUICK)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr[-3000:]
    for line in PROMISED[name]:
        assert line in run.stdout, run.stdout
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


def test_every_example_is_tested_and_listed() -> None:
    names = {path.stem for path in EXAMPLES.glob("*.py")}
    assert names == set(PROMISED)
    listed = (EXAMPLES / "README.md").read_text()
    assert not [name for name in names if f"({name}.py)" not in listed]


def test_the_quickstart_stays_short() -> None:
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) < 30
