"""The examples of these pages run as they stand and print what the pages show."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.spark.driver import QUICK, submitted

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = ("punctuations", "shedding", "windows")
END = "--- the end of a page ---"


def test_the_examples_print_what_the_pages_show(tmp_path: Path) -> None:
    """One after the other in one session, which takes longer to start than any of them to run."""
    blocks = [
        re.findall(r"^```(?:python)?\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
        for page in PAGES
    ]
    program = "".join(f"exec({code!r}, {{}})\nprint({END!r})\n" for code, _ in blocks)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(tmp_path), **submitted(QUICK)}
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for page, (_, shown), printed in zip(PAGES, blocks, run.stdout.split(END), strict=False):
        assert shown in printed, f"{page}: {printed}"
