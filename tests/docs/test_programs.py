"""The README's code, the examples, the pages' examples and the demo run as they stand, with the wheel alone."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_mjoin.doors import shim
from tests.docs.programs import Outcome, Program
from tests.jar.test_build import build_wheel
from tests.spark.archive import STARTUP
from tests.spark.driver import QUICK, submitted
from tests.spark.processes import run_with_children

ROOT = Path(__file__).parents[2]
PAGES = ("punctuations", "shedding", "windows")
PROMISED = {  # by the examples
    "quickstart": ["|       1|     Ada|  40.0|    air|", "|       3|    Cleo|  12.5|   road|"],
    "ad_attribution": ["4 micro-batches", "as computed without Spark: yes", "c > "],
    "any_stream": ["|  1|  1.99|   Pear|", "19 orders are paid"],
    "sensors": ["humidity arrived, 0 results", "power arrived, 5 results", "power arrived, 11 results", "|ventilate|"],
}


WITH_JAR = ("any_stream",)
needs_jar = pytest.mark.skipif(not shim.JAR.exists(), reason="the jar is not built: there is no JDK")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an installation of the wheel consists of, unpacked away from the repository."""
    place = tmp_path_factory.mktemp("wheel")
    build_wheel(ROOT, place)[0].extractall(place / "unpacked")
    return place / "unpacked"


class Runs:
    """The programs, in the directory in which they are run, and what came of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.work.mkdir()
        self.programs: list[Program] = []
        self.outcomes: dict[str, Outcome] = {}

    def add(self, name: str, code: str, *arguments: str) -> None:
        """One more program, to be run after those before it."""
        self.programs.append(Program(name, code, arguments))

    def run(self, environment: dict[str, str]) -> None:
        requests, outcomes, log = (self.root / name for name in ("requests.json", "outcomes.json", "log"))
        requests.write_text(json.dumps([asdict(program) for program in self.programs]))
        command = [sys.executable, str(Path(__file__).with_name("programs.py")), str(requests), str(outcomes)]
        run_with_children(command, log, environment, self.work)
        assert outcomes.exists(), log.read_text()[-3000:]
        self.outcomes = {name: Outcome(**found) for name, found in json.loads(outcomes.read_text()).items()}

    def printed(self, name: str) -> str:
        outcome = self.outcomes.get(name)
        assert outcome is not None, f"the process ended before; it had finished {sorted(self.outcomes)}"
        assert outcome.failure is None, outcome.failure
        return outcome.printed

    def delivered(self, name: str) -> list[tuple[object, ...]]:
        """What the README's query has written."""
        tables = [pq.read_table(path) for path in (self.work / name).glob("*.parquet")]
        return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


@pytest.fixture(scope="module")
def runs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    runs = Runs(tmp_path_factory.mktemp("programs"))
    runs.add("where", "import spark_mjoin; print(spark_mjoin.__file__)")
    for page in PAGES:
        runs.add(page, blocks(f"docs/{page}.md", "python")[0])
    add_readme(runs)
    for name in (name for name in PROMISED if name not in WITH_JAR):
        runs.add(name, (ROOT / f"examples/{name}.py").read_text())
    demo = "import runpy; runpy.run_module('spark_mjoin', run_name='__main__')"
    runs.add("demo", demo, "demo", "--rows", "2000", "--out", ".")
    add_readme_with_the_jar(runs)  # last: a jar that was added stays
    add_readme_with_streams(runs)
    for name in WITH_JAR:
        runs.add(name, (ROOT / f"examples/{name}.py").read_text())
    paths = os.pathsep.join([str(wheel), str(STARTUP)])
    runs.run({**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable, **submitted(QUICK)})
    yield runs
    shutil.rmtree(runs.root)


def add_readme(runs: Runs) -> None:
    """The quickstart, and once more when a file has come."""
    quickstart, _, _ = blocks("README.md", "python")
    place = runs.work
    for name in ("orders", "payments", "shipments"):
        (place / "in" / name).mkdir(parents=True)
    orders = pa.table({"order_id": [1, 2, 3], "customer": ["Ada", "Ben", "Cleo"]})
    pq.write_table(orders, place / "in/orders/1.parquet")
    payments = [{"order_id": 1, "amount": 40.0}, {"order_id": 2, "amount": 0.0}, {"order_id": 3, "amount": 12.5}]
    (place / "in/payments/1.json").write_text("".join(json.dumps(p) + "\n" for p in payments))
    (place / "in/shipments/1.csv").write_text("order_id,carrier\n1,air\n2,rail\n")
    (place / "2.csv").write_text("order_id,carrier\n3,road\n")
    runs.add("readme", quickstart)
    look = "import shutil; shutil.copytree('delivered', 'first'); shutil.move('2.csv', 'in/shipments')\n"
    runs.add("readme, again", look + quickstart)


def add_readme_with_the_jar(runs: Runs) -> None:
    """As the README says further down: the state is in the checkpoint then."""
    quickstart, _, enabling = blocks("README.md", "python")
    made = "spark = SparkSession.builder.getOrCreate()\n"
    required = '    .option("stateLocation", "state")\n'
    assert made in quickstart
    assert required in quickstart
    anew = "import os\nfor name in ('delivered', 'checkpoint', 'state'):\n    os.rename(name, f'{name} before')\n"
    with_jar = quickstart.replace(made, made + enabling).replace(required, "")
    runs.add("readme, with the jar", anew + with_jar)


def add_readme_with_streams(runs: Runs) -> None:
    """The README's join of DataFrames, over the quickstart's files."""
    _, joining, _ = blocks("README.md", "python")
    streams = """
from pyspark.sql import SparkSession
import spark_mjoin
spark = SparkSession.builder.getOrCreate()
orders = spark.readStream.schema("order_id BIGINT, customer STRING").parquet("in/orders")
payments = spark.readStream.schema("order_id BIGINT, amount DOUBLE").json("in/payments")
shipments = spark.readStream.schema("order_id BIGINT, carrier STRING").option("header", True).csv("in/shipments")
"""
    started = """
writer = joined.writeStream.format("parquet").option("path", "streamed").option("checkpointLocation", "streams")
writer.trigger(availableNow=True).start().awaitTermination()
"""
    runs.add("readme, streams", streams + joining + started)


@needs_jar
def test_the_readme_joins_dataframes(runs: Runs) -> None:
    runs.printed("readme, streams")
    assert runs.delivered("streamed") == [(1, "ADA", 40.0, "air"), (3, "CLEO", 12.5, "road")]


def test_the_wheel_has_what_it_needs_and_nothing_else(wheel: Path) -> None:
    names = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if "__pycache__" not in path.parts}
    assert {"spark_mjoin/py.typed", "pyspark_mjoin/__init__.py"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "examples"))]
    assert ("spark_mjoin/jars/spark-mjoin.jar" in names) == shim.JAR.exists()  # needs a JDK


def test_the_programs_use_the_wheel(runs: Runs, wheel: Path) -> None:
    assert runs.printed("where").startswith(str(wheel))


@pytest.mark.parametrize("page", PAGES)
def test_pages_show_what_their_examples_print(runs: Runs, page: str) -> None:
    _, shown = blocks(f"docs/{page}.md", "(?:python)?")
    assert shown in runs.printed(page)


def test_the_quickstart_of_the_readme_continues_with_new_files(runs: Runs) -> None:
    runs.printed("readme")
    runs.printed("readme, again")
    assert runs.delivered("first") == [(1, "Ada", 40.0, "air")]
    assert runs.delivered("delivered before") == [(1, "Ada", 40.0, "air"), (3, "Cleo", 12.5, "road")]


@pytest.mark.skipif(not shim.JAR.exists(), reason="the jar is not built: there is no JDK")
def test_the_quickstart_of_the_readme_with_the_jar(runs: Runs) -> None:
    runs.printed("readme, with the jar")
    assert runs.delivered("delivered") == [(1, "Ada", 40.0, "air"), (3, "Cleo", 12.5, "road")]
    assert not (runs.work / "state").exists()


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs_jar) if n in WITH_JAR else n for n in PROMISED])
def test_examples_print_what_they_promise(runs: Runs, name: str) -> None:
    for line in PROMISED[name]:
        assert line in runs.printed(name)
    assert runs.outcomes[name].left == [], "an example leaves nothing behind"


def test_the_demo_shows_a_summary_and_draws_a_picture(runs: Runs) -> None:
    shown = runs.printed("demo")
    assert "2,000" in shown
    assert "exactly once" in shown
    assert (runs.work / "results-over-time.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
