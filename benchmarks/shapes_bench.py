"""Stars and chains of up to ten inputs against Spark's own chained joins: `python -m benchmarks.shapes_bench`.

The same files, the same micro-batches, a noop sink, every engine in a process of its own: as `benchmarks.bench` does
it, whose launcher this is. This source runs three times: with the tree of joins that the planner chooses, as one MJoin,
and as a left-deep tree of binary joins, which is the plan that Spark has. Rows are compared with duckdb's; the exit
code is 1 only when they differ. An engine that takes longer than `--timeout` is shown as such.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from benchmarks import bench, report
from benchmarks.engines import REPOSITORY, Engine, Measurement
from benchmarks.shapes import ROWS, SHAPES, left_deep, one_mjoin
from benchmarks.workloads import Workload, scaled

HEADER = ("engine", "best s", "runs", "input rows/s", "x Spark", "peak MB", "micro-batches", "rows out", "same rows")
LEGEND = (
    "input rows/s: rows of all inputs over the best time. x Spark: how many times faster than Spark's own chained "
    "joins. peak MB: all processes of the run together, JVM included, in 10^6 bytes."
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    found: list[Measurement] = []
    facts = bench.machine()
    for name in options.shapes:
        workload = SHAPES[name]
        for measurement in bench.run_workload(workload, engines(workload, options), options):
            found.append(measurement)
            bench.say(bench.line(measurement))
            write(found, facts, options)
    print(markdown(found, facts, options.scale))
    print(f"written: {options.out / 'shapes.json'}, {options.out / 'shapes.md'}")
    return 1 if any(it.same is False for it in found) else 0


def engines(workload: Workload, options: argparse.Namespace) -> list[Engine]:
    """In the order of the table."""
    common = {} if options.partitions is None else {"partitions": str(options.partitions)}
    plans = {
        "mjoin": ("mjoin, as the planner chooses", {}),
        "one": ("mjoin, one MJoin", {"plan": one_mjoin(workload)}),
        "deep": ("mjoin, left-deep binary joins", {"plan": left_deep(workload)}),
    }
    ours = [
        Engine(name, "mjoin", label, 1, driver_memory=options.mjoin_memory, options=common | plan, jar=options.jar)
        for name, (label, plan) in plans.items()
    ]
    conf = {"spark.sql.shuffle.partitions": "2"}
    theirs = Engine("spark", "spark", "Spark, chained joins", 1, driver_memory=options.spark_memory, conf=conf)
    return [engine for engine in (*ours, theirs) if engine.name in options.only]


def rows(found: list[Measurement], workload: Workload, scale: float) -> list[tuple[str, ...]]:
    """One table row per engine under HEADER. A time with wrong rows, or of a run that failed, is no time."""
    mine = [it for it in found if it.workload == workload.letter]
    input_rows = scaled(ROWS, scale) * len(workload.aliases)
    sound = {it.engine: it.seconds for it in mine if not it.error and it.same is not False}
    out = []
    for it in mine:
        seconds = sound.get(it.engine)
        out.append(
            (
                it.label,
                report.number(it.seconds, 3),
                str(len(it.times)) if it.times else "",
                "" if seconds is None else f"{input_rows / seconds:,.0f}",
                report.ratio(sound.get("spark"), seconds),
                "" if it.peak is None else f"{it.peak / 1e6:,.0f}",
                "" if it.micro_batches is None else str(it.micro_batches),
                "" if it.rows is None else f"{it.rows:,}",
                f"failed: {it.error}" if it.error else report.same(it),
            )
        )
    return out


def markdown(found: list[Measurement], facts: dict[str, object], scale: float) -> str:
    lines = ["# Shapes: stars and chains", "", f"Scale {scale:g}. {LEGEND}", ""]
    for name in dict.fromkeys(it.workload for it in found):
        workload = SHAPES[name]
        lines += [f"## {name}: {workload.title}", "", *report.markdown_table(HEADER, rows(found, workload, scale))]
    return "\n".join([*lines, "## Machine", "", *(f"- {name}: {value}" for name, value in facts.items()), ""])


def write(found: list[Measurement], facts: dict[str, object], options: argparse.Namespace) -> None:
    """After every engine, so that an interrupted run keeps what it has."""
    options.out.mkdir(parents=True, exist_ok=True)
    measurements = [asdict(it) | {"seconds": it.seconds, "peak": it.peak} for it in found]
    content = {"scale": options.scale, "machine": facts, "measurements": measurements}
    (options.out / "shapes.json").write_text(json.dumps(content, indent=2) + "\n")
    (options.out / "shapes.md").write_text(markdown(found, facts, options.scale))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes_bench", description=__doc__.splitlines()[0])
    add, known, directory = parser.add_argument, ["mjoin", "one", "deep", "spark"], bench.absolute
    add("--shapes", type=bench.choice(SHAPES), default=list(SHAPES), help="names, with commas (default: all)")
    add("--only", type=bench.choice(known), default=known, help=f"engines: {','.join(known)}")
    add("--scale", type=float, default=1.0, help=f"share of {ROWS:,} rows per input")
    add("--repeats", type=int, default=2, help="timed runs of each engine; the best counts")
    add("--budget", type=float, default=120.0, help="no further repeat after so many seconds of timed runs")
    add("--timeout", type=float, default=900.0, help="seconds after which one engine on one shape is given up")
    add("--no-verify", dest="verify", action="store_false", help="skip the untimed runs that compare the rows")
    add("--no-jar", dest="jar", action="store_false", help="mjoin in Python alone, without its jar in the session")
    add("--partitions", type=int, help="mjoin's option of that name (default: not set)")
    add("--mjoin-memory", default="1g", help="spark.driver.memory for mjoin")
    add("--spark-memory", default="6g", help="spark.driver.memory for Spark's own joins")
    add(
        "--data",
        type=directory,
        default=REPOSITORY / "out" / "bench-data",
        help="where the parquet files are kept",
    )
    add(
        "--scratch",
        type=directory,
        help="where checkpoints and state go (default: the system's temporary directory)",
    )
    add("--out", type=directory, default=REPOSITORY / "out" / "bench", help="where shapes.json and shapes.md go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
