"""The planner's process imports pyspark from files where Spark's zip has nothing else, and no parser of SQL."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
from pyspark.cloudpickle import dumps
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.doors.planner_process import without_zips

PACKAGE = Path(pyspark.__file__).parent
LIBRARY = PACKAGE / "python" / "lib"
ZIPS = sorted(map(str, LIBRARY.glob("*.zip")))
GENERATED = {"format": "wisconsin", "cardinality": "10", "rowsPerSecond": "10"}


def test_zips_of_what_is_installed_go() -> None:
    installed = str(PACKAGE.parent)
    assert len(ZIPS) == 2
    assert without_zips([*ZIPS, "mine.zip", "/mine", installed]) == ["mine.zip", "/mine", installed]


def test_zips_stay_where_nothing_else_has_their_contents(tmp_path: Path) -> None:
    assert without_zips([*ZIPS, "/mine"]) == [*ZIPS, "/mine"]
    home = tmp_path / "spark" / "python" / "lib"  # a Spark that was unpacked, not installed by pip
    home.mkdir(parents=True)
    (home / "pyspark.zip").write_bytes(b"")
    (tmp_path / "spark" / "__init__.py").write_text("")
    path = [str(home / "pyspark.zip"), str(home / "py4j-0.0.1-src.zip"), str(PACKAGE.parent), str(tmp_path)]
    assert without_zips(path) == path


def test_the_process_runs_pysparks_runner_from_files() -> None:
    """Without a connection to Spark it cannot go on, and the traceback says whose code it ran."""
    path = os.pathsep.join([*ZIPS, str(Path(__file__).parent.parent)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHON_WORKER_FACTORY_PORT": "no port"}
    command = [sys.executable, "-m", "spark_mjoin.doors.planner_process"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f'File "{PACKAGE / "sql/streaming/python_streaming_source_runner.py"}"' in done.stderr, done.stderr
    assert "pyspark.zip/pyspark" not in done.stderr


def test_the_process_parses_no_query(tmp_path: Path) -> None:
    options = {"__checkpointLocation": str(tmp_path), "on": "unique1"}
    options |= {f"source.{alias}.{name}": value for alias in "ab" for name, value in GENERATED.items()}
    source = MJoinDataSource(CaseInsensitiveDict(options))
    (tmp_path / "source").write_bytes(dumps(source))
    (tmp_path / "schema").write_bytes(dumps(source.schema()))
    script = (
        "import pickle, sys; from pathlib import Path\n"
        "source, schema = (pickle.loads(Path(sys.argv[1], name).read_bytes()) for name in ('source', 'schema'))\n"
        "reader = source.streamReader(schema); reader.partitions(reader.initialOffset(), reader.initialOffset())\n"
        "print('sqlglot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
