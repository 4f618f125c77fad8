"""The planner's process with the jar, which plans the batches of a query.

It is PySpark's own `python_streaming_source_runner` with two differences.

It starts sooner. Spark puts `pyspark.zip` first on the path of all its Python processes. Python compiles modules from a
zip anew each time, and that takes longer than the rest of the start. Where the zip belongs to an installed pyspark that
is also on the path, this process imports the installed modules.

It serves one query after the other (`succession`): the jar keeps a process whose query has ended for the next one.

This module must not import pyspark before it has set the path. Not covered: Spark's other Python processes, which Spark
keeps and uses again.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"


def without_zips(path: Sequence[str]) -> list[str]:
    """The path without Spark's archives, where the same version of pyspark is on it as files too."""
    return [entry for entry in path if not _is_installed(Path(entry), path)]


def _is_installed(archive: Path, path: Sequence[str]) -> bool:
    if archive.name == "pyspark.zip":  # pyspark/python/lib/pyspark.zip, in a directory of packages
        package = archive.parent.parent.parent
        return package.name == "pyspark" and (package / "__init__.py").exists() and str(package.parent) in path
    py4j = re.fullmatch(r"(py4j-[\d.]+)-src\.zip", archive.name)
    return py4j is not None and any((Path(entry) / f"{py4j[1]}.dist-info").is_dir() for entry in path)


if __name__ == "__main__":
    sys.path[:] = without_zips(sys.path)
    from spark_mjoin.doors import succession

    succession.prepare()
    runpy.run_module(RUNNER, run_name="__main__", alter_sys=True)
