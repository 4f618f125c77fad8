"""The example of docs/punctuations.md runs as it stands and prints what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs/punctuations.md"


def test_the_example_prints_what_the_page_shows(tmp_path: Path) -> None:
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert shown in run.stdout, run.stdout
