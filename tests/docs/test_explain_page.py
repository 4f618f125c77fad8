"""docs/explain.md: the code there prints what stands below it, and the README shows a part of what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_mjoin.explaining.explanation import explained

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", (ROOT / "docs/explain.md").read_text(), re.DOTALL | re.MULTILINE
)


def test_there_are_examples_of_both() -> None:
    used = [re.findall(r"spark_mjoin\.(\w+)\(", code) for code, _ in EXAMPLES]
    assert used == [["explain"], ["advise"], ["explain"]]


@pytest.mark.parametrize(("code", "output"), EXAMPLES, ids=["explain", "advise", "windows"])
def test_the_page_has_what_is_printed(code: str, output: str, tmp_path: Path) -> None:
    for path in [*re.findall(r'\.path": "(.*?)"', code), "in/shows", "in/clicks", "in/orders"]:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_the_readme_shows_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.split("## See what it will do")[1].split("```\n")[1].removesuffix("…\n")
    quickstart = readme.split("```python\n")[1].split("```")[0]
    options = dict(re.findall(r'\.option\("(source\.[^"]*)", "([^"]*)"\)', quickstart)) | {"on": "order_id"}
    monkeypatch.chdir(tmp_path)
    for name in ("orders", "payments", "shipments"):
        (tmp_path / "in" / name).mkdir(parents=True)
    schema = {"source.orders.schema": "order_id BIGINT, customer STRING"}
    assert str(explained(options | schema)).startswith(shown)
