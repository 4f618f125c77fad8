"""The examples of these pages run as they stand and print what the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.driver import QUICK, submitted

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("page", ["windows", "punctuations", "shedding"])
def test_the_example_prints_what_the_page_shows(page: str, tmp_path: Path) -> None:
    code, shown = re.findall(
        r"^```(?:python)?\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE
    )
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path), **submitted(QUICK)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert shown in run.stdout, run.stdout
