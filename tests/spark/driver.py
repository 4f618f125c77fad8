"""Runs one streaming query to its end in a process of its own: `python -m tests.spark.driver <request.json>`.

The request is the JSON of a `Request`. Prints nothing; a query that failed ends it with exit code 1 and its message on
stderr, after the given number of restarts in the same session.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import spark_mjoin
from benchmarks.engines import FORKLESS_CHECKPOINTS
from tests.spark.archive import java_options

REPOSITORY = Path(__file__).parents[2]
SHORT = {"spark.driver.extraJavaOptions": java_options()}
CHEAPER = {**FORKLESS_CHECKPOINTS, "spark.python.daemon.module": "warm_daemon"}  # the latter is in tests/startup
QUICK = {  # no process per file that is written, and workers that have the engine when they are forked
    **SHORT,
    "spark.sql.codegen.wholeStage": "false",
    **CHEAPER,
}
CONF = {
    "spark.log.level": "OFF",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    **QUICK,
}


def submitted(conf: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a program that makes a session of its own gets these settings, where it sets none."""
    given = " ".join(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in conf.items())
    return {"PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell"}


@dataclass
class Request:
    options: dict[str, str]
    checkpoint: str
    sink: str
    master: str = "local[2]"
    stock: bool = False  # checkpoints and workers as Spark has them unless a test says otherwise, which takes longer
    restarts: int = 0  # after a failure, in the same session
    streams: bool = False  # whether Spark reads the sources (spark_mjoin.load)
    conf: dict[str, str] = field(default_factory=dict)  # settings besides those of all tests


def launch(request: Request, path: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the driver in a process group of its own."""
    path.write_text(json.dumps(asdict(request)))
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.driver", str(path)],
        cwd=REPOSITORY,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=path.with_suffix(".err").open("a"),
        text=True,
        start_new_session=True,
    )


def main(request: Request) -> int:
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(request.master)
    for name, value in (CONF | request.conf).items():
        if not (request.stock and name in CHEAPER):
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for left in range(request.restarts, -1, -1):
        try:
            if request.streams:
                frame = spark_mjoin.load(spark, request.options)
            else:
                frame = spark.readStream.format("mjoin").options(**request.options).load()
            writer = frame.writeStream.format("parquet").option("path", request.sink)
            query = writer.option("checkpointLocation", request.checkpoint).trigger(availableNow=True).start()
            query.awaitTermination()
            break
        except StreamingQueryException as e:
            if left == 0:
                print(e, file=sys.stderr)
                return 1
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Request(**json.loads(Path(sys.argv[1]).read_text()))))
