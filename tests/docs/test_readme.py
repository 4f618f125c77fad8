"""The README's code runs as it stands, and what it refers to is there."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.driver import QUICK, SHORT, submitted

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_quickstart_runs_and_goes_on_with_new_files(tmp_path: Path) -> None:
    block, enabling = blocks(ROOT / "README.md", "python")
    for name in ("orders", "payments", "shipments"):
        (tmp_path / "in" / name).mkdir(parents=True)
    orders = pa.table({"order_id": [1, 2, 3], "customer": ["Ada", "Ben", "Cleo"]})
    pq.write_table(orders, tmp_path / "in/orders/1.parquet")
    payments = [{"order_id": 1, "amount": 40.0}, {"order_id": 2, "amount": 0.0}, {"order_id": 3, "amount": 12.5}]
    (tmp_path / "in/payments/1.json").write_text("".join(json.dumps(p) + "\n" for p in payments))
    (tmp_path / "in/shipments/1.csv").write_text("order_id,carrier\n1,air\n2,rail\n")

    look = "import shutil; shutil.copytree('delivered', 'first'); shutil.move('2.csv', 'in/shipments')\n"
    (tmp_path / "2.csv").write_text("order_id,carrier\n3,road\n")
    run_python(block + look + block, tmp_path, **submitted(QUICK))
    assert delivered(tmp_path / "first") == [(1, "Ada", 40.0, "air")]
    assert delivered(tmp_path / "delivered") == [(1, "Ada", 40.0, "air"), (3, "Cleo", 12.5, "road")]

    for name in ("delivered", "checkpoint", "state"):
        shutil.rmtree(tmp_path / name)
    made = "spark = SparkSession.builder.getOrCreate()\n"
    required = '    .option("stateLocation", "state")\n'
    assert made in block
    assert required in block
    run_python(block.replace(made, made + enabling).replace(required, ""), tmp_path, **submitted(SHORT))
    assert delivered(tmp_path / "delivered") == [(1, "Ada", 40.0, "air"), (3, "Cleo", 12.5, "road")]
    assert not (tmp_path / "state").exists()


def run_python(code: str, directory: Path, **environment: str) -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **environment}
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=directory, env=environment, capture_output=True, text=True, timeout=140
    )
    assert run.returncode == 0, run.stderr[-3000:]


def delivered(directory: Path) -> list[tuple[object, ...]]:
    tables = [pq.read_table(path) for path in directory.glob("*.parquet")]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = set(re.findall(r"`make ([a-z-]+)`", text)) | set(re.findall(r"^make ([a-z-]+)$", text, re.MULTILINE))
    assert named <= targets


def test_the_readme_begins_with_the_two_commands() -> None:
    assert blocks(ROOT / "README.md", "")[0] == "make demo\nmake test\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} is not there"
        if anchor:
            assert anchor in anchors(file), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def test_files_that_the_architecture_page_names_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 10
    places = (ROOT, ROOT / "spark_mjoin", ROOT / "spark_mjoin/planner")
    assert not [name for name in named if not any((place / name).exists() for place in places)]
