"""`make demo`, small: it ends by itself, checks its own result and draws the picture."""

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.driver import QUICK, submitted


def test_demo_shows_a_summary_and_draws_a_picture(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_mjoin.demo", "--rows", "2000", "--out", str(tmp_path)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **submitted(QUICK)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2,000" in done.stdout
    assert "exactly once" in done.stdout
    picture = tmp_path / "results-over-time.png"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
