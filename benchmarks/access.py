"""What scanning costs against looking up, in seconds of the processor: the engine's side of Kang's figures 4 to 6.

    python -m benchmarks.access [--only windows,joins,run,paper] [--rounds 3] [--out out/access]

    windows   the crossover: ten rows a batch probe the window of a fast input, over how many micro-batches long it is
    joins     the four full joins of the paper, hash or scan in each direction, over the rate of the fast input
    run       as in docs/performance.md: ten rows per micro-batch against a window of a million rows
    paper     the paper's own structures, a tuple at a time: weights of this machine, crossovers over the number of keys

Each prints its figures, writes them as CSV and PNG, and checks what should hold. The exit code is 1 if a check fails.
The first three drive the real reader, tasks and store, as Spark does. They take all ways in turn, batch by batch, so
that a disturbance hits all of them, and check that all give the same results. `windows` and `joins` measure the time of
arrivals, which insert and probe. `run` measures whole micro-batches. `python -m benchmarks.paper --only
kang2,kang4,kang5,kang6,kang7` has the paper's figures in virtual time, which repeat exactly; these do not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from benchmarks.endless import EndlessSource
from benchmarks.paper import kang
from benchmarks.paper.__main__ import show
from benchmarks.paper.outcome import Check, Graph, Graphs
from spark_mjoin import sources
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.driver import calibrate
from spark_mjoin.driver.access import Direction, Target, cost
from spark_mjoin.engine import arrival, cache
from spark_mjoin.model import LAZY
from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.sources.options import Options

BATCH_MICROS = 1_000_000  # of event time per micro-batch, in all inputs

sources.REGISTRY["paced"] = "benchmarks.access:PacedSource"


class PacedSource(EndlessSource):
    """Rows without an end; a micro-batch of each input covers the same time, however many rows it has."""

    OPTIONS = ("seed", "batch", "keys")

    def __init__(self, alias: str, options: Options) -> None:
        super().__init__(alias, options)
        self._keys = int(options.required("keys", "distinct keys"))

    def read(self, range: Mapping[str, Any], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        dice = np.random.default_rng((self._seed, range["from"]))
        row = np.arange(range["from"], range["to"], dtype=np.int64)
        values = {
            "k": pa.array(dice.integers(0, self._keys, row.size)),
            "ts": pa.array(row * BATCH_MICROS // self._batch).cast(TIMESTAMP),
            "v": pa.array(dice.random(row.size)),
        }
        yield pa.RecordBatch.from_pydict({name: values[name] for name in columns})


@dataclass
class Arriving:
    """Counts the processor's time in `arrival.arrive`, in whose place it is put."""

    arrive: Callable[..., Iterator[Any]]
    seconds: float = 0.0

    def __call__(self, *given: Any, **named: Any) -> Iterator[Any]:
        bounds = self.arrive(*given, **named)
        while True:
            began = time.process_time()
            bound = next(bounds, None)
            self.seconds += time.process_time() - began
            if bound is None:
                return
            yield bound


arriving = Arriving(arrival.arrive)
arrival.arrive = arriving


def batches(
    rates: Mapping[str, int], window: int, keys: int, access: str, **options: str
) -> Iterator[tuple[float, float, int]]:
    """Per micro-batch: seconds of the processor in all, for arrivals, and results.

    rates: rows of each input per micro-batch; window: micro-batches.
    """
    given = {"window": f"{window * BATCH_MICROS} microseconds", "access": access, **options}
    for seed, (alias, batch) in enumerate(rates.items()):
        own = {"format": "paced", "seed": str(seed), "keys": str(keys), "batch": str(batch)}
        own |= {"timestamp": "ts", "watermark": "0 seconds"}
        given |= {f"source.{alias}.{name}": value for name, value in own.items()}
    given["query"] = "SELECT a.k, a.v, b.v AS bv FROM a JOIN b ON a.k = b.k"
    with tempfile.TemporaryDirectory(prefix="mjoin-access-") as state:
        source = MJoinDataSource(CaseInsensitiveDict({**given, "stateLocation": state}))
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        while True:
            began, arriving.seconds = time.process_time(), 0.0
            end = reader.latestOffset(start, ReadAllAvailable())
            results = sum(b.num_rows for partition in reader.partitions(start, end) for b in reader.read(partition))
            yield time.process_time() - began, arriving.seconds, results
            start = end


def compare(
    rates: Mapping[str, int], window: int, ways: Mapping[str, str], rounds: int, whole: bool = False, **options: str
) -> dict[str, float]:
    """Milliseconds of the processor per micro-batch with full windows, for each way; all give the same results.

    Of arrivals alone, or of the whole batch. It is the best of some rounds, since disturbances only add time. A round
    is as long as it takes to drop expired rows three times.
    """
    cache.of_worker().clear()
    runs = {name: batches(rates, window, KEYS, access, **options) for name, access in ways.items()}
    spent: dict[str, list[float]] = {name: [] for name in ways}
    each = max(window + 1, 8)
    for batch in range(2 * window + 2 + rounds * each):
        results = set()
        for name, run in runs.items():
            all_of_it, of_arrivals, found = next(run)
            results.add(found)
            if batch >= 2 * window + 2:
                spent[name].append(1000 * (all_of_it if whole else of_arrivals))
        assert len(results) == 1, f"the ways differ: {results}"
    for run in runs.values():
        run.close()
    means = {name: [np.mean(of[n : n + each]) for n in range(0, len(of), each)] for name, of in spent.items()}
    return {name: float(min(of)) for name, of in means.items()}


KEYS = 1 << 20
LONG = (2, 4, 8, 12, 16, 24)  # micro-batches
HASH, SCAN = "hash", "a>b: scan, b>a: hash"


def windows(rounds: int) -> Graphs:
    """Kang's figure 5 for this engine: what decides is how many times a window is probed before it has moved on."""
    rates = {"a": 10, "b": 150_000}
    costs = calibrate.measure(rounds=10)
    found, said = [], []
    for window in LONG:
        ms = compare(rates, window, {"hash": HASH, "scan": SCAN}, rounds)
        found.append(ms["hash"] - ms["scan"])
        rows = rates["b"] * window * kang.HELD
        target = Target(rows, rates["b"], (LAZY - 1) * rates["b"] / rows)
        probing = [Direction(0, 1, (0,), rates["a"], 1.0)]
        said.append(1000 * (cost(target, probing, frozenset(), costs) - cost(target, probing, frozenset((0,)), costs)))
    zero = [0.0] * len(LONG)
    crossings = [kang.first_where(LONG, of, zero) for of in (found, said)]
    checks = [
        Check("a short window is scanned for less", found[0] > 0, f"{found[0]:.2f} ms less with {LONG[0]} batches"),
        Check("an index of a long one costs less", found[-1] < 0, f"{-found[-1]:.2f} ms less with {LONG[-1]} batches"),
        Check(
            "the model predicts the crossover within a factor of two",
            0.5 <= crossings[0] / crossings[1] <= 2,
            f"measured {crossings[0]:.0f}, predicted {crossings[1]:.0f} batches",
        ),
    ]
    table = [[str(w), f"{a:.2f}", f"{b:.2f}"] for w, a, b in zip(LONG, found, said, strict=True)]
    curves = {"measured": found, "predicted": said}
    graph = Graph("ten rows a batch probe a window", "micro-batches in the window", "ms per batch that a scan saves",
                  LONG, curves, crossings[:1], frozenset(("predicted",)), below_zero=True)  # fmt: skip
    header = ["micro-batches in the window", "a scan saves, ms", "predicted, ms"]
    return Graphs("access-windows", "The crossover of scan and index", [], checks, header, table, [graph])


def joins(rounds: int) -> Graphs:
    """Kang's figure 6 for this engine: windows of four batches, a thousand rows of A in each."""
    rates = (1_000, 10_000, 25_000, 50_000, 100_000)
    ways = {"HHJ": "hash", "HNJ": "a>b: scan, b>a: hash", "NHJ": "a>b: hash, b>a: scan", "NNJ": "scan", "auto": "auto"}
    curves: dict[str, list[float]] = {name: [] for name in ways}
    for rate in rates:
        for name, ms in compare({"a": 1_000, "b": rate}, 4, ways, rounds).items():
            curves[name].append(ms)
    last = {name: of[-1] for name, of in curves.items()}
    checks = [
        Check(
            "where B is a hundred times faster, joins that scan it take less than those that keep an index of it",
            last["HNJ"] + last["NNJ"] < last["HHJ"] + last["NHJ"],
            ", ".join(f"{name} {ms:.1f} ms" for name, ms in last.items()),
        ),
        Check(
            "the planner's choice is within 15 % of the best then",
            last["auto"] <= 1.15 * min(last.values()),
            f"{last['auto']:.1f} ms",
        ),
    ]
    graph = Graph("windows of 4 batches, 1,000 rows of A in each", "rows of B per batch", "ms per batch", rates, curves)
    table = [[f"{r:,}", *(f"{of[n]:.1f}" for of in curves.values())] for n, r in enumerate(rates)]
    header = ["rows of B per batch", *(f"{name}, ms" for name in ways)]
    return Graphs("access-joins", "Four full joins and the planner's choice", [], checks, header, table, [graph])


def longer_run(rounds: int) -> Graphs:
    """Ten rows per micro-batch against a window of a million rows, which moves by a quarter with each."""
    table, checks = [], []
    for expiry in ("lazy", "active"):
        ways = {"hash": HASH, "scan": SCAN, "auto": "auto"}
        ms = compare({"a": 10, "b": 250_000}, 4, ways, 2 * rounds, whole=True, expiry=expiry)
        saved = 1 - ms["auto"] / ms["hash"]
        table += [[expiry, name, f"{of:.1f}", f"{250_010 / of * 1000:,.0f}"] for name, of in ms.items()]
        checks += [
            Check(
                f"expiry {expiry}: scanning takes less than keeping the index",
                ms["scan"] < ms["hash"],
                f"{ms['scan']:.1f} of {ms['hash']:.1f} ms",
            ),
            Check(
                f"expiry {expiry}: the planner chooses it by itself",
                ms["auto"] < 0.99 * ms["hash"],
                f"{ms['auto']:.1f} ms, {saved:.1%} less",
            ),
        ]
    graph = Graph(
        "10 rows against 1,000,000", "way", "ms per batch", range(6), {"ms": [float(row[2]) for row in table]}
    )
    header = ["expiry", "access", "ms of the processor per batch", "rows per second"]
    return Graphs("access-run", "Ten rows a batch against a million", [], checks, header, table, [graph])


def paper(rounds: int) -> Graphs:
    """Kang's figures 4 and 5 in seconds: the algorithm of benchmarks/paper/kang.py, a tuple at a time."""

    def seconds(run: kang.Run, is_hashed: bool) -> float:
        best = float("inf")
        for _ in range(2 * rounds):
            began = time.process_time()
            run.touches(False, is_hashed, one_way=True)
            best = min(best, time.process_time() - began)
        return best

    def weight(is_hashed: bool) -> float:
        run = kang.Run(100.0, 10)
        scans, hashes, _ = run.touches(False, is_hashed, one_way=True)
        return seconds(run, is_hashed) / int((hashes if is_hashed else scans).sum())

    c_n, c_h = weight(False), weight(True)
    ratio = c_h / c_n
    keys = [10, 20, 30, 40, 50]
    found = []
    for count in keys:

        def of(is_hashed: bool, count: int = count) -> Callable[[float], float]:
            return lambda faster: seconds(kang.Run(kang.RATE_A * faster, count), is_hashed)

        found.append(kang.turning_point(of(False), of(True), 0.2, count, step=0.2))
    said = [kang.crossover(count, ratio) for count in keys]
    off = max(abs(a / b - 1) for a, b in zip(found[1:], said[1:], strict=True))
    checks = [
        Check("a row costs more in a chain than in a scan (1.3 times in the paper)", ratio > 1, f"{ratio:.1f} times"),
        Check("equation 7 predicts the crossovers with it, within a half", off < 0.5, f"{off:.0%} off at the most"),
        Check("more keys, later crossover", 2 * found[0] < found[-1],
              ", ".join(f"{f:.1f}" for f in found)),
    ]  # fmt: skip
    curves = {"measured": found, "equation 7": said}
    graph = Graph(
        f"C_h / C_n = {ratio:.1f}", "keys in B", "rate of B / rate of A", keys, curves, (), frozenset(("equation 7",))
    )
    table = [[str(k), f"{a:.1f}", f"{b:.1f}"] for k, a, b in zip(keys, found, said, strict=True)]
    title = f"The paper's algorithm in seconds: {c_n * 1e9:.2f} ns for a row of NLJ, {c_h * 1e9:.2f} ns for one of HJ"
    return Graphs("access-paper", title, [], checks, ["keys", *curves], table, [graph])


EXPERIMENTS: dict[str, Callable[[int], Graphs]] = {
    "windows": windows,
    "joins": joins,
    "run": longer_run,
    "paper": paper,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.access", description=__doc__)
    parser.add_argument("--only", help=f"separated by commas; all: {','.join(EXPERIMENTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="of which the best counts")
    parser.add_argument("--out", type=Path, default=Path("out/access"))
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(EXPERIMENTS)
    failed = 0
    for name in names:
        began = time.perf_counter()
        outcome = EXPERIMENTS[name](given.rounds)
        outcome.write(given.out)
        show(outcome, 1.0, time.perf_counter() - began)
        failed += sum(check.expected and not check.holds for check in outcome.checks)
    print(f"CSV and PNG files are in {given.out}; {failed or 'no'} check{'s' if failed != 1 else ''} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
