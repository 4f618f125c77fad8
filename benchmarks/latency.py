"""Latency under sustained load: `python -m benchmarks.latency`.

Three streams get a small parquet file each every 250 ms (`benchmarks.arrivals`); a join on their key runs into
foreachBatch. The latency of a result is the time from the newest of the three files that it is made of to the moment at
which it is in the sink. This source, with its jar as the README has it, and Spark's own chained stream-stream joins get
the same files in the same run, in turns, at one rate after the other; each goes on until it falls behind.

An engine falls behind when its latency grows without end. So the run is cut into three parts by the time of the files:
it has fallen behind when the median latency of the last part is more than `GROWTH` times that of the first and also
`GROWN_SECONDS` above it, or when results are missing `--patience` seconds after the last file. Medians, so that a
single pause is not taken for a trend; and it has to do so in each of `--tries` runs. A run whose writer was late with a
file says so: the machine was too busy to measure.

Results that are missing in the end count with the time that they had waited by then, which is less than they take.
Neither drops rows from its state: there are no windows and no watermarks. The exit code is 1 when a result comes
twice.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import arrivals, bench, report
from benchmarks.arrivals import Load
from benchmarks.engines import (
    FORKLESS_CHECKPOINTS,
    ON_ROCKSDB,
    REPOSITORY,
    TUNED,
    Engine,
    NoResult,
    in_own_process,
)
from benchmarks.latency_child import START_SECONDS, Observed, Trial

RATES = (1_000, 5_000, 20_000, 60_000, 150_000, 300_000, 600_000)
GROWTH = 1.5
GROWN_SECONDS = 0.5

HEADER = (
    "rows/s per stream",
    "engine",
    "p50 s",
    "p99 s",
    "most s",
    "first third, p50 s",
    "last third, p50 s",
    "results",
    "missing",
    "micro-batches",
    "verdict",
)


@dataclass(frozen=True)
class Latency:
    """One engine under one load."""

    rate: int
    engine: str
    label: str
    p50: float = float("nan")
    p99: float = float("nan")
    most: float = float("nan")
    thirds: tuple[float, ...] = ()
    """The median of each third of the run."""
    results: int = 0
    missing: int = 0
    micro_batches: int = 0
    behind: bool = True
    late: float = 0.0
    """The longest that a file came after its time."""
    once: bool = True
    error: str = ""

    @property
    def verdict(self) -> str:
        if self.error:
            return f"failed: {self.error}"
        if not self.once:
            return "WRONG: a result came twice"
        said = "falls behind" if self.behind else "keeps up"
        return f"{said} (files up to {self.late:.2f} s late)" if self.late > arrivals.MAX_LATE_SECONDS else said


def summarise(rate: int, engine: Engine, seen: Observed, warm_up: float, seconds: float) -> Latency:
    """Of results whose newest file came after the warm-up."""
    blank = Latency(rate, engine.name, engine.label, error=seen.error, late=seen.late, once=seen.once)
    if seen.error:
        return blank
    came = np.array([[moment, at - moment, results] for moment, at, results in seen.out]).reshape(-1, 3)
    waiting = np.array([[moment, seen.ended - moment, results] for moment, results in seen.missing]).reshape(-1, 3)
    moments, waited, results = _measured(np.concatenate([came, waiting]), warm_up)
    missing = int(_measured(waiting, warm_up)[2].sum())
    bounds = warm_up + seconds * np.array([0, 1, 2]) / 3
    third = np.searchsorted(bounds, moments, side="right") - 1
    thirds = tuple(quantile(waited[third == n], results[third == n], 0.5) for n in range(3))
    grown = thirds[2] > GROWTH * thirds[0] and thirds[2] > thirds[0] + GROWN_SECONDS
    return Latency(
        rate,
        engine.name,
        engine.label,
        p50=quantile(waited, results, 0.5),
        p99=quantile(waited, results, 0.99),
        most=float(waited.max()),
        thirds=thirds,
        results=int(results.sum()) - missing,
        missing=missing,
        micro_batches=seen.batches,
        behind=grown or missing > 0,
        late=seen.late,
        once=seen.once,
    )


def _measured(table: Any, warm_up: float) -> tuple[Any, Any, Any]:
    kept = table[table[:, 0] >= warm_up]
    return kept[:, 0], kept[:, 1], kept[:, 2]


def quantile(values: Any, weights: Any, share: float) -> float:
    """The least value that the given share of the weight does not exceed; nan of nothing."""
    if not len(values):
        return float("nan")
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, share * below[-1])])


def climb(
    rates: Sequence[int], chosen: Sequence[Engine], measure: Callable[[int, Engine], Latency], tries: int
) -> Iterable[Latency]:
    """Every engine at every rate until it falls behind. The engines take turns, so that a busy minute hits all."""
    going = list(chosen)
    for rate in rates:
        for engine in list(going):
            found = measure(rate, engine)
            for _ in range(tries - 1):
                if not found.behind:
                    break
                again = measure(rate, engine)
                found = again if not again.behind or found.error else found
            if found.behind:
                going.remove(engine)
            yield found


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    facts, found = bench.machine(), []
    with tempfile.TemporaryDirectory(prefix="mjoin-latency-", dir=options.scratch) as scratch:
        for it in climb(options.rates, chosen_engines(options), _Measure(options, Path(scratch)), options.tries):
            found.append(it)
            write(found, facts, options)
    print("\n".join(report.markdown_table(HEADER, rows(found))))
    print(f"written: {options.output}")
    return 1 if any(not it.once for it in found) else 0


class _Measure:
    """Runs trials. The files of a rate are made once, and are gone when the next rate has its turn."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options, self.scratch = options, scratch
        self.prepared: tuple[int, Path] | None = None

    def __call__(self, rate: int, engine: Engine) -> Latency:
        options = self.options
        load = Load(rate, options.warm_up + options.seconds)
        prepared = self._files(load)
        scratch = Path(tempfile.mkdtemp(prefix=f"{engine.name}-", dir=self.scratch))
        log = options.output.parent / "logs" / f"latency-{rate}-{engine.name}.log"
        trial = Trial(engine, load, str(prepared), str(scratch), options.patience)
        allowed = START_SECONDS + load.seconds + options.patience + 120
        try:
            seen = Observed(**in_own_process("benchmarks.latency_child", trial.to_json(), log, allowed))
        except NoResult as failure:
            seen = Observed(once=True, error=str(failure))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        found = summarise(rate, engine, seen, options.warm_up, options.seconds)
        bench.say(f"  {rate:,} rows/s, {engine.label}: {found.p50:.3f} and {found.p99:.3f} s, {found.verdict}")
        return found

    def _files(self, load: Load) -> Path:
        if self.prepared and self.prepared[0] == load.rate:
            return self.prepared[1]
        if self.prepared:
            shutil.rmtree(self.prepared[1])
        directory = self.scratch / f"rate-{load.rate}"
        arrivals.prepare(load, directory)
        self.prepared = load.rate, directory
        return directory


def chosen_engines(options: argparse.Namespace) -> list[Engine]:
    ours, theirs, forkless = options.mjoin_memory, options.spark_memory, TUNED | FORKLESS_CHECKPOINTS
    known = (
        Engine("mjoin", "mjoin", "mjoin", driver_memory=ours, jar=True),
        Engine("mjoin-no-jar", "mjoin", "mjoin without the jar", driver_memory=ours),
        Engine("spark", "spark", "Spark's own", driver_memory=theirs, conf=TUNED),
        Engine("spark-forkless", "spark", "Spark's own, forkless", driver_memory=theirs, conf=forkless),
        Engine("spark-rocksdb", "spark", "Spark's own, RocksDB", driver_memory=theirs, conf=ON_ROCKSDB),
    )
    by_name = {engine.name: engine for engine in known}
    return [by_name[name] for name in options.engines]


ENGINES = ("mjoin", "mjoin-no-jar", "spark", "spark-forkless", "spark-rocksdb")


def rows(found: Sequence[Latency]) -> list[tuple[str, ...]]:
    """One table row per rate and engine under HEADER."""
    return [
        (
            f"{it.rate:,}",
            it.label,
            *(_seconds(value) for value in (it.p50, it.p99, it.most, *(it.thirds[::2] or (None, None)))),
            f"{it.results:,}",
            f"{it.missing:,}",
            str(it.micro_batches),
            it.verdict,
        )
        for it in found
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.3f}"


def write(found: Sequence[Latency], facts: dict[str, object], options: argparse.Namespace) -> None:
    """After every run, so that an interrupted one keeps what it has."""
    content = {
        "seconds": options.seconds,
        "warm-up": options.warm_up,
        "patience": options.patience,
        "tries": options.tries,
        "machine": facts,
        "latencies": [asdict(it) | {"verdict": it.verdict} for it in found],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(content, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rates", type=_rates, default=list(RATES), help="rows per second and stream, ascending, with commas")
    add("--engines", type=bench.choice(ENGINES), default=["mjoin", "spark"], help=f"among {','.join(ENGINES)}")
    add("--seconds", type=float, default=30.0, help="of each run that are measured")
    add("--warm-up", type=float, default=10.0, help="seconds of the load before that, which are not")
    add("--patience", type=float, default=20.0, help="seconds after the last file for what is missing")
    add("--tries", type=int, default=2, help="an engine has fallen behind when it did so in each of these runs")
    add("--mjoin-memory", default="1g", help="spark.driver.memory for mjoin")
    add("--spark-memory", default="6g", help="spark.driver.memory for Spark's own joins")
    add("--scratch", type=bench.absolute, help="where files and checkpoints go (default: the temporary directory)")
    add("--output", type=bench.absolute, default=REPOSITORY / "out" / "bench" / "latency.json", help="the JSON file")
    return parser


def _rates(text: str) -> list[int]:
    """An argparse type: numbers of rows, at least four, so that every tick has one."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a list of whole numbers") from None
    if found != sorted(set(found)) or found[0] < 4:
        raise argparse.ArgumentTypeError(f"{text}: ascending numbers of at least 4 are needed")
    return found


if __name__ == "__main__":
    sys.exit(main())
