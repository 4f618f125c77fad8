"""The jar: where it is, how it gets into a Spark session, and how to read metrics with it and without.

The jar (jvm-shim/) adds what a Python data source cannot do by itself. Everything else works without it.

It imports nothing heavy, so that `import spark_mjoin` stays light. It recognises kinds of sessions by their methods.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from spark_mjoin.errors import JarError

SPARK_VERSIONS = ("4.2", "4.3")  # as in jvm-shim/src/sparkmjoin/SparkVersions.java
_NODE = "mjoin-node"  # as in jvm-shim/src/sparkmjoin/NodeProvider.java
_CHECKPOINTS = "spark.sql.streaming.checkpointFileManagerClass"
_WITH_NODE: WeakSet[Any] = WeakSet()  # sessions that plan joins of streams
_MILLIONTHS = "Millionths"  # behind the name of a metric that is a fraction, as in JoinMetrics.java
JAR = Path(__file__).parent.parent / "jars" / "spark-mjoin.jar"


def jar_path() -> str:
    """The path of the jar, for `spark.jars` or `--jars`; JarError when this installation has none."""
    if not JAR.exists():
        raise JarError(
            f"the jar of spark_mjoin is not there ({JAR}): the package was built without a JDK. Install a JDK 17 and "
            "build it again (pip install, or `make install` in a checkout), or do without the jar: set option "
            "'stateLocation'"
        )
    return str(JAR)


def enable(spark: Any, *, fast_checkpoints: bool | None = None) -> bool:
    """Add the jar to a running session, classic or Connect: metrics in the progress, state in the checkpoint.

    With `fast_checkpoints`, all queries of the session write checkpoints on a local disk without starting a process for
    each file; checkpoints elsewhere are written as before. The default is True where the master is `local` and the
    session has no class for checkpoint files.

    Returns whether the jar is there. Without it, `enable` logs a warning, and everything works as before. A Spark
    version that the jar does not support raises a JarError.
    """
    _check_version(spark, "or do without the jar: set option 'stateLocation'")
    try:
        path = jar_path()
    except JarError as e:
        warnings.warn(str(e), stacklevel=2)
        return False
    if "connect" in type(spark).__module__:
        spark.addArtifacts(path)
    else:
        spark.sql(f"ADD JAR '{plain_path(path)}'")
    if fast_checkpoints is None:
        master, chosen = (str(spark.conf.get(name, "")) for name in ("spark.master", _CHECKPOINTS))
        fast_checkpoints = bool(re.match(r"local(\[.*)?$", master)) and not chosen
    if fast_checkpoints:
        spark.conf.set(_CHECKPOINTS, "sparkmjoin.CheckpointFiles")
    return True


def install_node(spark: Any) -> None:
    """Let a session plan joins of streams as stateful operators. Adds the jar, if that was not done here before."""
    if spark not in _WITH_NODE:
        _check_version(spark, 'or join files with format("mjoin"), which needs no jar; join takes tables without it')
        if not JAR.exists():
            raise JarError(
                f"a join of streams is a stateful operator of the jar, and this installation has none ({JAR}): the "
                "package was built without a JDK. Install a JDK 17 and build it again (pip install, or `make install` "
                'in a checkout), or join files with format("mjoin"), which needs no jar; join takes tables without it'
            )
        enable(spark)
        spark.read.format(_NODE).load().schema  # noqa: B018 - asking for the schema installs it
        _WITH_NODE.add(spark)


def restarts(spark: Any) -> Any:
    """A stream of parcels without one, which asks for a batch after a restart. The session has the node by then."""
    return spark.readStream.format(_NODE).load()


def _check_version(spark: Any, remedy: str) -> None:
    version = str(spark.version)
    if ".".join(version.split(".")[:2]) not in SPARK_VERSIONS:
        raise JarError(
            f"the jar of spark_mjoin works with Spark {' and '.join(SPARK_VERSIONS)}, and this is Spark {version}: use "
            f"one of these, {remedy}"
        )


def plain_path(path: str) -> str:
    """A path to the same file that Spark's ADD JAR understands. ADD JAR reads a blank or a % as part of a URI."""
    if re.fullmatch(r"[\w./+-]+", path, re.ASCII):
        return path
    directory = tempfile.mkdtemp(prefix="spark-mjoin-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return shutil.copy(path, directory)


def metrics_of(progress: Any) -> dict[str, str]:
    """The join's metrics in a progress of a query: a StreamingQueryProgress, or the dict of `query.lastProgress`.

    With the jar they are those of that batch, without it those of the batch before. The result is empty where there are
    none. Of `spark_mjoin.join` there are those that are numbers; of a join in stages, those of the last one.
    """
    given: Any = progress if isinstance(progress, Mapping) else json.loads(progress.json)
    for operator in given.get("stateOperators", ()):
        if operator["operatorName"].partition(" ")[0] == "mjoin":  # behind it, what a stage joins
            return dict(_as_they_were(name, value) for name, value in operator["customMetrics"].items())
    source = given["sources"][0]
    if source.get("metrics"):
        return dict(source["metrics"])
    latest = source.get("latestOffset")
    if isinstance(latest, str):
        latest = json.loads(latest)
    return dict((latest or {}).get("metrics") or {})


def _as_they_were(name: str, value: int) -> tuple[str, str]:
    """A metric from a progress, which has whole numbers only."""
    return (name.removesuffix(_MILLIONTHS), str(value / 10**6)) if name.endswith(_MILLIONTHS) else (name, str(value))


def executors(spark: Any) -> dict[str, str]:
    """The hosts of a session's executors, by their names; none on Connect, where nobody says, and in local mode."""
    if not hasattr(spark, "_jvm"):
        return {}
    known = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    named = {str(known.apply(n).id()): str(known.apply(n).hostPort()) for n in range(known.size())}
    return {name: address.rpartition(":")[0] for name, address in named.items() if name != "driver"}
