"""Measurements in, tables and verdicts out: on the terminal, as results.md and as results.json.

Pure apart from `write`: no engine is started here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.engines import Measurement
from benchmarks.workloads import WORKLOADS

ELSEWHERE = {
    "Flink": {"a": 13.5, "b": 1.5, "c": 15.0, "d": 12.5},
    "Pathway": {"a": 12.7, "b": 5.3, "c": 4.6, "d": 23.0},
}
"""Seconds on 2 cores at full scale, measured elsewhere and not by this program."""

SPARK_BARS = {"a": 10.0, "b": 5.0, "c": 10.0, "d": 10.0}
STREAMS_BARS = {"a": 5.0, "c": 5.0, "d": 5.0, "e": 5.0}
ONE_SHOT_BARS = {"a": 4.0, "c": 4.0, "d": 4.0, "e": 4.0}
ELSEWHERE_BARS = {"a": 3.0, "d": 3.0}
MEMORY_BAR_BYTES = 2_500_000_000
KERNEL_BARS = ("a", "b", "c", "e")

HEADER = (
    "engine",
    "cold s",
    "warm s",
    "runs",
    "x Spark, cold",
    "x Spark",
    "x duckdb",
    "peak MB",
    "micro-batches",
    "rows out",
    "same rows",
)
LEGEND = (
    "cold: the first query of a fresh session. warm: the best of the later ones. x Spark: how many times faster than "
    "Spark's own joins in micro-batches, warm unless it says cold. x duckdb: time over duckdb's one-shot join on 1 "
    "thread from the same files (kernel: on the same tables in memory); below 1 is faster. peak MB: all processes of "
    "the run together, JVM included, in 10^6 bytes. Figures marked * were measured elsewhere on 2 cores."
)


@dataclass(frozen=True)
class Verdict:
    bar: str
    measured: str
    outcome: Literal["met", "MISSED", "not measured"]


class Results:
    """All measurements of one run, by workload and engine."""

    def __init__(self, scale: float, machine: dict[str, Any]) -> None:
        self.scale = scale
        self.machine = machine
        self.measurements: list[Measurement] = []

    def add(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)

    def of(self, workload: str) -> list[Measurement]:
        return [found for found in self.measurements if found.workload == workload]

    def seconds(self, workload: str, engine: str) -> float | None:
        """The best warm time; None where the engine failed or gave wrong rows: such a time must not win a verdict."""
        return next((it.seconds for it in self.sound(workload) if it.engine == engine), None)

    def sound(self, workload: str) -> list[Measurement]:
        return [it for it in self.of(workload) if not it.error and it.same is not False]

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(found.workload for found in self.measurements))

    @property
    def wrong(self) -> list[Measurement]:
        return [found for found in self.measurements if found.same is False]


# ---- tables


def rows(results: Results, workload: str) -> list[tuple[str, ...]]:
    """One table row per engine under HEADER, then the figures from elsewhere."""
    spark = results.seconds(workload, "spark")
    spark_cold = next((it.cold for it in results.sound(workload) if it.engine == "spark"), None)
    found: list[tuple[str, ...]] = []
    for it in results.of(workload):
        rival = results.seconds(workload, "kernel-duckdb" if it.engine.startswith("kernel") else "duckdb-1")
        found.append(
            (
                it.label,
                number(it.cold, 3),
                number(it.seconds, 3),
                str(len(it.times)) if it.times else "",
                ratio(spark_cold, it.cold),
                "" if it.engine.startswith(("kernel", "duckdb")) else ratio(spark, it.seconds),
                ratio(it.seconds, rival),
                "" if it.peak is None else f"{it.peak / 1e6:,.0f}",
                "" if it.micro_batches is None else str(it.micro_batches),
                "" if it.rows is None else f"{it.rows:,}",
                same(it),
            )
        )
    if results.scale == 1.0:
        for name, figures in ELSEWHERE.items():
            if workload in figures:
                seconds = figures[workload]
                found.append((f"{name} *", "", number(seconds, 1), "", "", ratio(spark, seconds), *[""] * 5))
    return found


def same(it: Measurement) -> str:
    if it.same is False:
        return "WRONG"
    if it.error:
        return "failed"
    return "not checked" if it.same is None else "yes"


def number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def ratio(over: float | None, under: float | None) -> str:
    return "" if over is None or under is None else f"{over / under:.2f}"


def failures(results: Results) -> list[str]:
    """What went wrong, in words: wrong results first."""
    lines = [f"({it.workload}) {it.label}: WRONG RESULT, {it.rows} rows, {it.checksum}" for it in results.wrong]
    return lines + [f"({it.workload}) {it.label}: {it.error}" for it in results.measurements if it.error]


# ---- verdicts


def verdicts(results: Results) -> list[Verdict]:
    found = [*_against_spark(results), *_against_elsewhere(results), _memory(results), *_kernel(results)]
    return [*found, *_streams(results)]


def _against_spark(results: Results) -> Iterator[Verdict]:
    for workload, bar in SPARK_BARS.items():
        ours, theirs = results.seconds(workload, "mjoin-batches"), results.seconds(workload, "spark")
        text = f"({workload}) mjoin in micro-batches at least {bar:g} x as fast as Spark's own joins"
        if ours is None or theirs is None:
            yield Verdict(text, "", "not measured")
        else:
            yield _verdict(text, f"{theirs / ours:.2f} x", theirs / ours >= bar)


def _streams(results: Results) -> Iterator[Verdict]:
    """`spark_mjoin.join` against Spark's own joins of the same streams, in micro-batches and in one shot."""
    for kind, bars, ours, theirs in (
        ("micro-batches", STREAMS_BARS, "streams-batches", "spark"),
        ("one shot", ONE_SHOT_BARS, "streams-defaults", "spark-defaults"),
    ):
        for workload, bar in bars.items():
            mine, other = results.seconds(workload, ours), results.seconds(workload, theirs)
            text = f"({workload}) spark_mjoin.join, {kind}, at least {bar:g} x as fast as Spark's own joins"
            if mine is None or other is None:
                yield Verdict(text, "", "not measured")
            else:
                yield _verdict(text, f"{other / mine:.2f} x", other / mine >= bar)
    for workload in STREAMS_BARS:
        peaks = {it.engine: it.peak for it in results.sound(workload)}
        less, more = peaks.get("streams-batches"), peaks.get("spark")
        text = f"({workload}) spark_mjoin.join takes less memory than Spark's own joins, in micro-batches"
        if less is None or more is None:
            yield Verdict(text, "", "not measured")
        else:
            yield _verdict(text, f"{less / 1e6:,.0f} against {more / 1e6:,.0f} MB", less < more)


def _against_elsewhere(results: Results) -> Iterator[Verdict]:
    for workload, bar in ELSEWHERE_BARS.items():
        ours = results.seconds(workload, "mjoin-defaults")
        for name, figures in ELSEWHERE.items():
            theirs = figures[workload]
            text = f"({workload}) mjoin with defaults at least {bar:g} x as fast as {name} ({theirs:g} s, elsewhere)"
            if ours is None or results.scale != 1.0:
                yield Verdict(text, "" if ours is None else "only meant for scale 1", "not measured")
            else:
                yield _verdict(text, f"{theirs / ours:.2f} x", theirs / ours >= bar)


def _memory(results: Results) -> Verdict:
    text = f"(a) peak memory of mjoin, all processes, below {MEMORY_BAR_BYTES / 1e6:,.0f} MB"
    peaks = [it.peak for it in results.sound("a") if it.engine.startswith("mjoin") and it.peak is not None]
    if not peaks or results.scale != 1.0:
        return Verdict(text, "only meant for scale 1" if peaks else "", "not measured")
    return _verdict(text, f"{max(peaks) / 1e6:,.0f} MB", max(peaks) < MEMORY_BAR_BYTES)


def _kernel(results: Results) -> Iterator[Verdict]:
    for workload in KERNEL_BARS:
        ours, theirs = results.seconds(workload, "kernel"), results.seconds(workload, "kernel-duckdb")
        text = f"({workload}) kernel, incremental, needs no more time than duckdb one-shot on 1 thread"
        if ours is None or theirs is None:
            yield Verdict(text, "", "not measured")
        else:
            yield _verdict(text, f"{ours * 1e3:.0f} against {theirs * 1e3:.0f} ms", ours <= theirs)


def _verdict(text: str, measured: str, met: bool) -> Verdict:
    return Verdict(text, measured, "met" if met else "MISSED")


# ---- output


def show(results: Results) -> None:
    """On the terminal: with rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(markdown(results))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)  # a log file has no width: do not fold the tables to 80
    for workload in results.workloads:
        table = Table(*HEADER, title=f"({workload}) {WORKLOADS[workload].title}, scale {results.scale:g}")
        for column in table.columns[1:-1]:
            column.justify = "right"
        for row in rows(results, workload):
            table.add_row(*row)
        console.print(table)
    console.print(LEGEND, "\n", style="dim")
    table = Table("bar", "measured", "verdict", title="verdicts")
    styles = {"met": "green", "MISSED": "red", "not measured": "dim"}
    for verdict in verdicts(results):
        table.add_row(verdict.bar, verdict.measured, verdict.outcome, style=styles[verdict.outcome])
    console.print(table)
    for line in failures(results):
        console.print(line, style="red", markup=False)


def markdown(results: Results) -> str:
    lines = ["# Benchmark results", "", f"Scale {results.scale:g}. {LEGEND}", ""]
    for workload in results.workloads:
        lines += [f"## ({workload}) {WORKLOADS[workload].title}", "", *markdown_table(HEADER, rows(results, workload))]
    judged = [(it.bar, it.measured, it.outcome) for it in verdicts(results)]
    lines += ["## Verdicts", "", *markdown_table(("bar", "measured", "verdict"), judged)]
    if failures(results):
        lines += ["## Failures", "", *(f"- {line}" for line in failures(results)), ""]
    lines += ["## Machine", "", *(f"- {name}: {value}" for name, value in results.machine.items()), ""]
    return "\n".join(lines)


def markdown_table(header: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("*", r"\*") for cell in row] for row in body]
    return [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *cells)] + [""]


def write(results: Results, out: Path) -> None:
    """results.json and results.md; called after every engine, so that an interrupted run keeps what it has."""
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "scale": results.scale,
        "machine": results.machine,
        "elsewhere": ELSEWHERE,
        "measurements": [asdict(it) | {"seconds": it.seconds, "peak": it.peak} for it in results.measurements],
        "verdicts": [asdict(verdict) for verdict in verdicts(results)],
    }
    (out / "results.json").write_text(json.dumps(content, indent=2) + "\n")
    (out / "results.md").write_text(markdown(results))
