"""Runs scenarios in a Spark session of its own: `python -m tests.jar.child <mode> <directory> [<scenario> ...]`.

A process can have one kind of session, and a jar that was added stays, so sessions with the jar live in processes of
their own. Each scenario gets the session and a new directory. Writes `outcome.json`: the traceback of each scenario, or
null when all it asserts is true.
"""

import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import spark_mjoin
from tests.jar.cube_scenarios import CUBES
from tests.jar.engine_scenarios import ENGINE
from tests.jar.fault_scenarios import FAULTS
from tests.jar.layout_scenarios import LAYOUTS
from tests.jar.oracle_scenarios import ORACLES
from tests.jar.scenarios import SCENARIOS
from tests.jar.stage_scenarios import STAGES
from tests.jar.stream_scenarios import STREAMS
from tests.jar.table_scenarios import TABLES
from tests.spark.driver import CONF

MODES = {  # how the session is made -> its master
    "enable": "local[2,4]",
    "spark.jars": "local[2,4]",
    "connect": "local[2,4]",
    "local-cluster": "local-cluster[2,2,1024]",
    "one-slot": "local-cluster[2,1,1024]",  # one task at a time each: an executor dies while tasks wait for it
}
MORE = {
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.sql.streaming.noDataProgressEventInterval": "200ms",
}


def session(mode: str) -> Any:
    from pyspark.sql import SparkSession

    conf = CONF | MORE
    del conf["spark.sql.streaming.checkpointFileManagerClass"]  # Spark's own, or what `enable` chooses
    if mode == "spark.jars":
        conf |= {"spark.jars": spark_mjoin.jar_path()}
    if MODES[mode].startswith("local-cluster"):
        conf |= {"spark.executor.memory": "512m"}
        conf |= {"spark.executor.extraJavaOptions": conf["spark.driver.extraJavaOptions"]}
        conf |= {"spark.locality.wait": "60s"}  # no partition goes to an executor that has just come
    if mode == "one-slot":
        conf |= {"spark.locality.wait": "0s"}
    builder = SparkSession.builder
    builder = builder.remote(MODES[mode]) if mode == "connect" else builder.master(MODES[mode])
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if mode != "spark.jars":
        assert spark_mjoin.enable(spark)
        assert spark_mjoin.enable(spark), "a second time does no harm"
    return spark


def main(mode: str, root: Path, names: list[str]) -> None:
    spark = session(mode)
    outcome: dict[str, str | None] = {}
    for name in names:
        directory = root / name
        directory.mkdir()
        started = time.monotonic()
        try:
            (SCENARIOS | STREAMS | TABLES | ENGINE | ORACLES | FAULTS | STAGES | CUBES | LAYOUTS)[name].run(
                spark, directory
            )
            outcome[name] = None
        except Exception:  # noqa: BLE001 - the parent shows it
            outcome[name] = traceback.format_exc()
        print(f"{time.monotonic() - started:5.1f} s {name}", flush=True)
        (root / "outcome.json").write_text(json.dumps(outcome))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
