"""An endless run: rows stream through a window, without Spark, and state and time per batch must stay flat.

    python -m benchmarks.endless [--rows 51000000] [--memory 64m] [--expiry active] [--out out/endless]

Three inputs on a common key, with event times out of order by up to two seconds, a window of ten minutes and a
watermark of five seconds. The reader, the tasks and the store are the real ones, driven as Spark drives them. Prints
the figures of each tenth of the run, writes all of them as CSV and PNG, and exits with 1 if the last third of the run
is not like the one before: more than 1.25 times the rows or bytes of state, or 1.5 times the milliseconds per batch,
which other processes on the machine disturb.
"""

from __future__ import annotations

import argparse
import csv
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin import sources
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import Limits, SourceLog
from spark_mjoin.state.manifest import Manifests

ROW_MICROS = 1_000  # of event time from row to row
DISORDER_MICROS = 2_000_000
WINDOW, WATERMARK = "10 minutes", "5 seconds"
KEYS = 1 << 20
ALIASES = ("a", "b", "c")
STATE_BAR, TIME_BAR = 1.25, 1.5

sources.REGISTRY["endless"] = "benchmarks.endless:EndlessSource"


class EndlessSource:
    """Rows without an end: keys and event times are functions of the row's number."""

    OPTIONS = ("seed", "batch")
    LIMITS = ("maxRowsPerTrigger",)

    def __init__(self, alias: str, options: Options) -> None:
        self._seed = int(options.required("seed", "a number"))
        self._batch = int(options.required("batch", "rows per micro-batch"))

    def schema(self) -> pa.Schema:
        return pa.schema([("k", pa.int64()), ("ts", TIMESTAMP), ("v", pa.float64())])

    def assume(self, schema: pa.Schema) -> None:
        """There is only one."""

    def initial(self) -> dict[str, Any]:
        return {"row": 0}

    def latest(self, start: Mapping[str, Any], limits: Limits, log: SourceLog) -> dict[str, Any]:
        return {"row": start["row"] + self._batch}

    def freeze(self, log: SourceLog) -> None:
        """It never ends."""

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any], log: SourceLog) -> list[dict[str, Any]]:
        return [{"from": start["row"], "to": end["row"]}]

    def behind(self, position: Mapping[str, Any], log: SourceLog) -> int:
        return 0

    def read(self, range: Mapping[str, Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        dice = np.random.default_rng((self._seed, range["from"]))
        row = np.arange(range["from"], range["to"], dtype=np.int64)
        late = dice.integers(0, DISORDER_MICROS, row.size)
        values = {
            "k": pa.array(dice.integers(0, KEYS, row.size)),
            "ts": pa.array(row * ROW_MICROS - late).cast(TIMESTAMP),
            "v": pa.array(dice.random(row.size)),
        }
        yield pa.RecordBatch.from_pydict({name: values[name] for name in columns})


Figures = dict[str, float]


def run(rows: int, batch: int, state: Path, **options: str) -> Iterator[Figures]:
    """The figures of every micro-batch, until so many rows have gone through."""
    given = {"stateLocation": str(state), "window": WINDOW, **options}
    for seed, alias in enumerate(ALIASES):
        given |= {f"source.{alias}.format": "endless", f"source.{alias}.seed": str(seed)}
        given |= {f"source.{alias}.batch": str(batch), f"source.{alias}.timestamp": "ts"}
        given[f"source.{alias}.watermark"] = WATERMARK
    given["query"] = "SELECT a.k, a.ts, a.v, b.v AS bv, c.v AS cv FROM a, b, c WHERE a.k = b.k AND a.k = c.k"
    source = MJoinDataSource(CaseInsensitiveDict(given))
    reader = source.streamReader(source.schema())
    start, done = reader.initialOffset(), 0
    while done < rows:
        began = time.perf_counter()
        end = reader.latestOffset(start, ReadAllAvailable())
        results = sum(b.num_rows for partition in reader.partitions(start, end) for b in reader.read(partition))
        spent = time.perf_counter() - began
        done += batch * len(ALIASES)
        manifest = Manifests(f"{state}/{end['query']}", 0).manifest(end["version"])
        yield {
            "rows": done,
            "ms": 1000 * spent,
            "results": results,
            "state_rows": sum(manifest.rows_held),
            "memory_bytes": manifest.held.memory_bytes,
            "disk_bytes": manifest.standing.disk_bytes,
            "files": len(manifest.root.segments),
            "late": manifest.done.dropped.late,
            "purged": manifest.done.dropped.purged,
            "rss_bytes": _resident_bytes(),
        }
        start = end


def _resident_bytes() -> int:
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def is_flat(figures: Sequence[Figures]) -> list[str]:
    """What the last third of a run has more of than the third before it."""
    third = len(figures) // 3
    bars = {"state_rows": STATE_BAR, "memory_bytes": STATE_BAR, "disk_bytes": STATE_BAR, "rss_bytes": STATE_BAR}
    found = []
    for name, bar in {**bars, "ms": TIME_BAR}.items():
        middle, last = (np.mean([f[name] for f in some]) for some in (figures[third:-third], figures[-third:]))
        if last > bar * middle:
            found.append(f"{name}: {middle:,.0f} in the second third, {last:,.0f} in the last")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endless", description=__doc__)
    parser.add_argument("--rows", type=int, default=51_000_000)
    parser.add_argument("--batch", type=int, default=50_000, help="rows of each input per micro-batch")
    parser.add_argument("--memory", help="budget, as the option of that name")
    parser.add_argument("--expiry", default="lazy", choices=("lazy", "active"))
    parser.add_argument("--out", type=Path, default=Path("out/endless"))
    given = parser.parse_args(arguments)
    options = {"expiry": given.expiry} | ({"memory": given.memory} if given.memory else {})
    figures: list[Figures] = []
    print("      rows in    rows/s  ms/batch   state rows   memory MiB  disk MiB  files  RSS MiB    results")
    with tempfile.TemporaryDirectory(prefix="mjoin-endless-") as state:
        shown = 0
        for figure in run(given.rows, given.batch, Path(state), **options):
            figures.append(figure)
            if figure["rows"] >= (shown + 1) * given.rows / 10:
                _show(figures[_before(figures, shown, given.rows) :])
                shown += 1
    _write(figures, given.out)
    problems = is_flat(figures)
    seconds = sum(f["ms"] for f in figures) / 1000
    print(
        f"{int(figures[-1]['rows']):,} rows in {seconds:.1f} s: {figures[-1]['rows'] / seconds:,.0f} rows/s, "
        f"{int(sum(f['results'] for f in figures)):,} results, {int(sum(f['late'] for f in figures)):,} late, "
        f"{int(sum(f['purged'] for f in figures)):,} purged; CSV and PNG in {given.out}"
    )
    print("not flat: " + "; ".join(problems) if problems else "state and time per batch are flat")
    return 1 if problems else 0


def _before(figures: Sequence[Figures], tenth: int, rows: int) -> int:
    """How many batches were over before a tenth of the run began."""
    return sum(f["rows"] <= tenth * rows / 10 for f in figures)


def _show(tenth: Sequence[Figures]) -> None:
    def mean(name: str) -> float:
        return float(np.mean([f[name] for f in tenth]))

    rate = 1000 * (tenth[-1]["rows"] - tenth[0]["rows"]) / max(1e-9, sum(f["ms"] for f in tenth[1:]))
    print(
        f"{int(tenth[-1]['rows']):>13,}{rate:>10,.0f}{mean('ms'):>10.0f}{mean('state_rows'):>13,.0f}"
        f"{mean('memory_bytes') / 2**20:>13.1f}{mean('disk_bytes') / 2**20:>10.1f}{mean('files'):>7.0f}"
        f"{mean('rss_bytes') / 2**20:>9.0f}{sum(f['results'] for f in tenth):>11,.0f}",
        flush=True,
    )


def _write(figures: Sequence[Figures], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "endless.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(figures[0]))
        writer.writeheader()
        writer.writerows(figures)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    at = [f["rows"] / 1e6 for f in figures]
    for axis, names, title in (
        (axes[0], {"ms": "ms"}, "milliseconds per micro-batch"),
        (axes[1], {"state_rows": "rows"}, "rows in the state"),
        (axes[2], {"memory_bytes": "memory", "disk_bytes": "disk", "rss_bytes": "process"}, "bytes"),
    ):
        for name, label in names.items():
            axis.plot(at, [f[name] for f in figures], label=label, linewidth=1.0)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("million rows in")
        axis.set_ylim(bottom=0)
        if len(names) > 1:
            axis.legend(fontsize=8)
    figure.savefig(out / "endless.png", dpi=90)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
