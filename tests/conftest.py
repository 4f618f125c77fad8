"""What all tests share: where their files are, how hypothesis works here, which Python Spark's workers run, and what
xdist keeps together."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.spark.archive import java_options, python_path

MEMORY = Path("/dev/shm")  # Linux's files in memory, where that has room: tests write many small ones and sync them all
if "TMPDIR" not in os.environ and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

os.environ["PYTHONPATH"] = python_path()
os.environ["SPARK_MJOIN_CACHE"] = ""  # no copies that outlive tests, except where a test says where
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The session of pytest-spark has many short queries, on few cores."""
    config.getini("spark_options").append(f"spark.driver.extraJavaOptions: {java_options()}")


settings.register_profile(
    "default",
    deadline=None,  # the first call of a kernel compiles it
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")


LONG = ("tests/jar/", "tests/spark/", "tests/docs/")  # they start JVMs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, so that with `-n` no process is left with one at the end while the others have nothing."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, any process may take any test, except that those that share a JVM of their own stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            shared = re.search(r"::test_with_the_jar\[(\w+)-([\w.-]+)-\w+\]", nodeid)  # door, mode, scenario
            if shared and shared[2] == "connect":
                return "connect"  # of both doors: there is one port for its server
            if shared:
                return f"{shared[1]}, {shared[2]}"
            module = nodeid.partition("::")[0]
            return module if module == "tests/docs/test_programs.py" else nodeid

    return Scheduler(config, log)
