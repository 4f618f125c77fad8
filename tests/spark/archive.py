"""The classes that Spark loads, in a file that JVMs map: `python -m tests.spark.archive` makes it, if it is not there.

Tests start many JVMs, and much of what a short one does is loading and checking classes. The file belongs to the
installed pyspark and lies in its environment. Without it, tests take longer; a JVM that it does not fit ignores it.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FILE = Path(sys.prefix) / f"spark-{pyspark.__version__}.jsa"
STARTUP = Path(__file__).parents[1] / "startup"


def java_options() -> str:
    """For a JVM with a short life on few cores, with the archive if it is there; that it does not fit is no news."""
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={FILE} -Xlog:disable" if FILE.exists() else SHORT_LIVED


def python_path() -> str:
    """For Python processes that need not compile pyspark from Spark's zip of it."""
    return os.pathsep.join([str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])])


def make() -> None:
    """Run what most tests run, and have the JVM keep what it loads."""
    from pyspark.sql import SparkSession

    from tests.spark.joins import FileJoin

    unfinished = FILE.with_suffix(".new")
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    builder = SparkSession.builder.master("local[2]").config("spark.driver.extraJavaOptions", options)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    jvm = spark.sparkContext._gateway.proc
    with tempfile.TemporaryDirectory() as root:
        join = FileJoin(Path(root)).fill(files=2)
        writer = join.load(spark).writeStream.format("parquet").option("path", f"{root}/sink")
        join.start_with(writer).awaitTermination()
        spark.read.parquet(f"{root}/sink").groupBy("k").count().collect()
    spark.stop()
    jvm.stdin.close()  # which ends it
    jvm.wait(120)
    unfinished.replace(FILE)


def main() -> None:
    """Make it in a process of its own, whose messages matter only if it fails; even then there will be tests."""
    print("keeping the classes of Spark, for the JVMs of the tests", flush=True)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": python_path()}
    code = "from tests.spark.archive import make; make()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode:
        print(f"{done.stderr}\nthere is no archive of classes: tests will take longer", file=sys.stderr)


if __name__ == "__main__":
    if not FILE.exists():
        main()
