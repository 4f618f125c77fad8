"""Join three related streams before your eyes: `python -m spark_mjoin demo`.

Orders, payments and shipments come from the built-in generator at rates that change, with a stall and with bursts. One
streaming query joins them and writes Parquet. While it runs it shows rows in, results and costs. At the end it prints a
summary, checks the result, and draws results over time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_mjoin.doors.shim import metrics_of

QUERY = """
SELECT o.unique1 AS order_id, o.stringu1 AS customer, p.tenPercent AS payment_method,
       s.twenty AS carrier, p.unique2 AS payment_no, s.unique2 AS shipment_no
FROM orders o JOIN payments p  ON o.unique1 = p.unique1
              JOIN shipments s ON o.unique1 = s.unique1
"""
STREAMS = {  # alias in the query -> (source, rates and interruptions)
    "o": ("orders", {"rates": "0s:{fast}, 5s:{slow}, 10s:{fast}"}),
    "p": ("payments", {"rates": "0s:{slow}, 4s:{fast}", "stalls": "7s-10s"}),
    "s": ("shipments", {"rowsPerSecond": "{medium}", "bursts": "every 6s for 1s x4"}),
}
BLANK = {"results": 0, "memory": 0, **dict.fromkeys(STREAMS, 0)}


@dataclass
class Progress:
    """What the query has reported so far."""

    rows: int
    began: float = field(default_factory=time.monotonic)
    latest: dict[str, int] = field(default_factory=lambda: dict(BLANK))
    history: list[tuple[float, dict[str, int]]] = field(default_factory=lambda: [(0.0, dict(BLANK))])
    phase: str = "starting"
    batches: int = 0

    def update(self, recent: list[Any]) -> None:
        """Add the batches that Spark has reported since the last call.

        The batch's offset has the rows in, and its count the rows out. The metrics have the rest; without the jar they
        may be one batch old.
        """
        self.phase = "waiting for input"
        for batch in recent:
            source = batch["sources"][0]
            offset = json.loads(source["endOffset"] or "null") or {}
            self.latest["memory"] = int(metrics_of(batch).get("memoryUsedBytes", 0))
            if batch["batchId"] < self.batches or "addBatch" not in batch["durationMs"]:
                continue
            self.phase = "memory to memory"
            self.batches = batch["batchId"] + 1
            self.latest["results"] += batch["numInputRows"]
            for alias, (stream, _) in STREAMS.items():
                self.latest[alias] = offset["positions"][stream]["rows"]
            self.history.append((time.monotonic() - self.began, dict(self.latest)))

    @property
    def complete(self) -> bool:
        return all(self.latest[alias] >= self.rows for alias in STREAMS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=60_000, help="rows per stream (default: 60,000)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where to draw (default: out/demo)")


def command(given: argparse.Namespace) -> int:
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as e:
        print(f"the demo draws with rich and matplotlib ({e}): pip install 'spark-mjoin[demo]'", file=sys.stderr)
        return 2
    work = Path(tempfile.mkdtemp(prefix="mjoin-demo-"))
    try:
        return run(given.rows, given.out, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(rows: int, out: Path, work: Path) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    console.print("Starting Spark …")
    spark = start_spark()
    try:
        warm_up(spark)
        query = start_query(spark, rows, work)
        progress = Progress(rows)
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while query.isActive and not progress.complete:
                progress.update(query.recentProgress)
                live.update(display(progress))
                time.sleep(0.2)
        query.stop()
        if query.exception() is not None:
            console.print(f"[red]{query.exception()}[/red]")
            return 1
        results = spark.read.parquet(str(work / "results"))
        counted, orders = results.count(), results.select("order_id").distinct().count()
    finally:
        spark.stop()
    console.print(summary(progress, counted, orders))
    out.mkdir(parents=True, exist_ok=True)
    picture = out / "results-over-time.png"
    draw(progress, picture)
    console.print(f"Results over time: [bold]{picture}[/bold]")
    return 0 if counted == orders == rows else 1


def start_spark() -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("spark_mjoin demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def with_streams(reader: Any, rows: int) -> Any:
    """The options of the join, on `spark.read` or `spark.readStream`."""
    rates = {"fast": rows // 8 + 1, "medium": rows // 18 + 1, "slow": rows // 30 + 1}
    join = reader.format("mjoin").option("query", QUERY)
    for seed, (source, options) in enumerate(STREAMS.values()):
        join = join.option(f"source.{source}.format", "wisconsin").option(f"source.{source}.rows", rows)
        join = join.option(f"source.{source}.seed", seed)
        for name, value in options.items():
            join = join.option(f"source.{source}.{name}", value.format(**rates))
    return join


def warm_up(spark: Any) -> None:
    """A batch join of a few rows: starts the Python workers and compiles the kernels before the clock starts."""
    with_streams(spark.read, 10).load().collect()


def start_query(spark: Any, rows: int, work: Path) -> Any:
    return (
        with_streams(spark.readStream, rows)
        .option("stateLocation", str(work / "state"))
        .load()
        .writeStream.format("parquet")
        .option("path", str(work / "results"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )


def display(progress: Progress) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(title="orders ⋈ payments ⋈ shipments", title_justify="left", box=None, padding=(0, 2))
    table.add_column("stream")
    table.add_column("rows", justify="right")
    table.add_column("", width=40)
    for alias, (source, _) in STREAMS.items():
        table.add_row(
            source, f"{progress.latest[alias]:,}", ProgressBar(progress.rows, progress.latest[alias], width=40)
        )
    table.add_row(
        "[bold]results[/bold]",
        f"[bold]{progress.latest['results']:,}[/bold]",
        ProgressBar(progress.rows, progress.latest["results"], width=40, complete_style="green"),
    )
    seconds = time.monotonic() - progress.began
    memory = progress.latest["memory"] / 2**20
    table.caption = " · ".join(
        [
            f"phase: {progress.phase}",
            f"state in memory: {memory:.1f} MiB",
            f"micro-batches: {progress.batches}",
            f"{seconds:.0f} s",
        ]
    )
    table.caption_justify = "left"
    return table


def summary(progress: Progress, counted: int, orders: int) -> Any:
    from rich.table import Table

    seconds = progress.history[-1][0]
    table = Table(title="Summary", title_justify="left")
    table.add_column("")
    table.add_column("", justify="right")
    for alias, (source, _) in STREAMS.items():
        table.add_row(f"rows in, {source}", f"{progress.latest[alias]:,}")
    table.add_row("results out", f"{counted:,}")
    table.add_row("orders complete, exactly once", "yes" if counted == orders == progress.rows else "NO")
    table.add_row("micro-batches", str(progress.batches))
    table.add_row("state in memory at the end", f"{progress.latest['memory'] / 2**20:.1f} MiB")
    table.add_row("time", f"{seconds:.1f} s")
    return table


def draw(progress: Progress, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = [moment for moment, _ in progress.history]
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for alias, (source, _) in STREAMS.items():
        axes.plot(seconds, [seen[alias] for _, seen in progress.history], label=f"{source} in", linewidth=1.2)
    axes.plot(
        seconds, [seen["results"] for _, seen in progress.history], label="results out", color="black", linewidth=2.4
    )
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows")
    axes.set_title("An order comes out as soon as its payment and its shipment are there", loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
