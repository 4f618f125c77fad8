"""The wheel works by itself: built, unpacked elsewhere, found by PySpark, and joining."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.spark.driver import SHORT, submitted

ROOT = Path(__file__).parent.parent
SCRIPT = """
import spark_mjoin
assert spark_mjoin.__file__.startswith({unpacked!r}), spark_mjoin.__file__
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
join = spark.read.format("mjoin").option("on", "unique1")
for alias in "ab":
    join = join.option(f"source.{{alias}}.format", "wisconsin").option(f"source.{{alias}}.rows", "100")
print("rows:", join.load().count())
print("jar:", spark_mjoin.enable(spark), join.load().count())
"""


def test_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(unpacked)
    assert "spark_mjoin/py.typed" in names
    assert "pyspark_mjoin/__init__.py" in names
    with_jar = "spark_mjoin/jars/spark-mjoin.jar" in names  # needs a JDK
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "examples"))]
    script = tmp_path / "use.py"
    script.write_text(SCRIPT.format(unpacked=str(unpacked)))
    environment = {**os.environ, "PYTHONPATH": str(unpacked), "PYSPARK_PYTHON": sys.executable, **submitted(SHORT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert "rows: 100" in done.stdout, done.stderr
    assert f"jar: {with_jar} 100" in done.stdout, done.stderr
