"""Measure what the operations of the cost model take on this machine, and remember it for the planner.

`python -m spark_mjoin calibrate` runs the engine's own tables, indexes and probes over generated rows, takes the best
of some rounds, in seconds of the processor, and writes the figures to `spark_mjoin/costs.json` in the user's cache
directory (XDG_CACHE_HOME, else ~/.cache). `calibrated` reads them there. Without the file it returns DEFAULTS, which
this command measured on the machine that the project was developed on. For plans only the ratios between operations
count.

    hash      put a key into an index, or look up where a probe begins: the mean of both
    move      append a row of four columns (two numbers, a key, a string of 12 bytes) to a table, and write it to a file
    compare   look at one candidate of a probe and bind it if it matches
    gather    copy the four columns of a row into a result
    index     put a row into an index, as rows arrive and as it is built anew: the mean of both
    scan      go over a row of a table, in a scan for a few rows
    scan_wide what that takes more in a scan for a full chunk of rows

The driver imports this module for `calibrated`, so the engine is imported only where it is measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from spark_mjoin.driver.costs import Costs

log = logging.getLogger(__name__)

FORMAT = 2
ROWS, ROUNDS, BATCH_ROWS, FAN_OUT = 400_000, 5, 50_000, 8
LEAST_ROWS = 1_000  # fewer take no time that could be measured
FEW_ROWS = 16  # that scan together
WIDE = 8  # tables long is a column that is scanned
DEFAULTS = Costs(hash=3.5e-9, move=30e-9, compare=6.4e-9, gather=18e-9, index=4.5e-9, scan=1.1e-9, scan_wide=2.5e-9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows, rounds = _at_least(LEAST_ROWS), _at_least(1)
    parser.add_argument("--rows", type=rows, default=ROWS, help=f"rows of a table (default: {ROWS:,})")
    parser.add_argument("--rounds", type=rounds, default=ROUNDS, help=f"of which the best counts (default: {ROUNDS})")


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number of {least:,} or more")
        return int(text)

    return number


def command(given: argparse.Namespace) -> int:
    costs = measure(given.rows, given.rounds)
    path = save(costs)
    print(f"{'operation':<10} {'measured':>12} {'default':>12}")
    for name, seconds in asdict(costs).items():
        print(f"{name:<10} {seconds * 1e9:>9.2f} ns {getattr(DEFAULTS, name) * 1e9:>9.2f} ns")
    print(f"written to {path}")
    return 0


# --- the file ----------------------------------------------------------------------------------------------------


def cache_path() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "spark_mjoin" / "costs.json"


def calibrated() -> Costs:
    """What was measured on this machine; DEFAULTS where nothing was, or where the file cannot be used."""
    path = cache_path()
    try:
        return _parsed(json.loads(path.read_text()))
    except FileNotFoundError:
        return DEFAULTS
    except (OSError, ValueError) as e:
        log.warning("%s is ignored: %s; `python -m spark_mjoin calibrate` writes it anew", path, e)
        return DEFAULTS


def save(costs: Costs) -> Path:
    """Write the file, whole or not at all."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    versions = {name: metadata.version(name) for name in ("spark-mjoin", "numba", "numpy", "pyarrow")}
    body = {
        "format": FORMAT,
        "seconds": asdict(costs),
        "versions": versions | {"python": platform.python_version()},
        "machine": platform.machine(),
    }
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".costs-")
    with os.fdopen(handle, "w") as file:
        json.dump(body, file, indent=2)
    os.replace(name, path)
    return path


def _parsed(body: Any) -> Costs:
    if not isinstance(body, Mapping) or body.get("format") != FORMAT:
        raise ValueError(f"it does not have format {FORMAT}")
    seconds = body.get("seconds")
    names = {field.name for field in fields(Costs)}
    if not isinstance(seconds, Mapping) or set(seconds) != names:
        raise ValueError(f"it does not have just the seconds of {', '.join(sorted(names))}")
    for name, value in seconds.items():
        if not isinstance(value, float) or not 0 < value < 1:
            raise ValueError(f"'{name}' is {value!r}, and not a number of seconds")
    return Costs(**seconds)


# --- measuring ---------------------------------------------------------------------------------------------------


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> Costs:
    """The best of some rounds over tables of so many rows."""
    bench = _Bench(rows)
    bench.round()  # compiles what is not compiled yet
    every = [bench.round() for _ in range(rounds)]
    return Costs(*(min(of) for of in zip(*every, strict=True)))


class _Bench:
    """Two inputs of equal size; every key of the second is there FAN_OUT times, and a fraction of the first probes."""

    def __init__(self, rows: int) -> None:
        import numpy as np
        import pyarrow as pa

        from spark_mjoin.config import Options
        from spark_mjoin.query.graph import plan_join
        from spark_mjoin.sources.wisconsin import permute
        from spark_mjoin.state.columns import FixedColumn
        from spark_mjoin.state.table import Key

        def table(seed: int, cardinality: int) -> list[pa.RecordBatch]:
            passes, index = np.divmod(np.arange(rows, dtype=np.int64), cardinality)
            keys = permute(seed, cardinality, passes, index)
            columns = [pa.array(keys), pa.array(keys % 100), pa.array(keys / 7), pa.array([f"{k:012d}" for k in keys])]
            whole = pa.table(columns, names=["k", "a", "b", "s"]).to_batches(max_chunksize=BATCH_ROWS)
            return list(whole)

        self._batches = [table(1, rows), table(2, max(1, rows // FAN_OUT))]
        query = "SELECT x.a AS xa, x.b AS xb, x.s AS xs, y.k, y.a, y.b, y.s FROM x JOIN y ON x.k = y.k"
        options = Options.parse({"query": query, "source.x.format": "arrow", "source.y.format": "arrow"})
        self._spec = plan_join(options, [batches[0].schema for batches in self._batches])
        self._probing = max(1, rows // FAN_OUT)
        column = FixedColumn(pa.int64())
        column.append(pa.array(permute(3, WIDE * rows, np.zeros(WIDE * rows, np.int64), np.arange(WIDE * rows))), 0)
        self._rows, self._wide = rows, Key((column,))

    def round(self) -> tuple[float, ...]:
        """Seconds of each operation, as Costs has them."""
        import numpy as np

        from spark_mjoin import kernel
        from spark_mjoin.evidence import WorkCounts
        from spark_mjoin.mjoin.bound import pooled
        from spark_mjoin.mjoin.operator import Joining, materialise
        from spark_mjoin.model import CHUNK_ROWS, ProbeOrder, ProbeStep
        from spark_mjoin.state.table import HashIndex, Table

        tables = [Table(input) for input in self._spec.inputs]
        moving = indexing = 0.0
        for table, batches in zip(tables, self._batches, strict=True):
            for batch in batches:
                started = time.process_time()
                self._write(table.arrow(*table.append([batch.column(stored.name) for stored in table.spec.stored])))
                moved = time.process_time()
                table.index((0,))
                indexed = time.process_time()
                moving, indexing = moving + moved - started, indexing + indexed - moved
        rows = sum(table.rows for table in tables)
        index, probing = tables[1].index((0,)), tables[0].key((0,)).values(self._probing)[: self._probing]
        at, row = np.empty(probing.size, np.int32), np.empty(probing.size, np.int32)
        started = time.process_time()
        kernel.heads(index.slots(probing), index.head, at, row)
        looking = (time.process_time() - started) / probing.size
        work = WorkCounts()
        order = ProbeOrder(0, (ProbeStep(1, (0,), (0,), ()),))
        started = time.process_time()
        found = list(Joining(self._spec, tables, work).produce(order, 0, probing.size))
        comparing = time.process_time() - started
        pieces = list(pooled(iter(found)))
        results = sum(int(piece[0].size) for piece in pieces)
        started = time.process_time()
        for piece in pieces:
            list(materialise(self._spec, tables, piece))
        gathering = time.process_time() - started
        compare = max(comparing - looking * probing.size, 0.1 * comparing) / work.comparisons
        hashing = (indexing / rows + looking) / 2
        started = time.process_time()
        for table in tables:
            HashIndex(table.key((0,))).extend(table.rows)
        taking_in = (indexing + time.process_time() - started) / rows / 2
        few, wide = (self._scan(count) for count in (FEW_ROWS, CHUNK_ROWS))
        moved, gather = moving / rows, gathering / results / len(tables)
        return hashing, moved, compare, gather, taking_in, few, max(wide - few, 0.1 * few)

    def _scan(self, count: int) -> float:
        """Seconds per row of a key column that no cache holds, for a scan of it by so many rows that find nothing."""
        import numpy as np

        from spark_mjoin.evidence import WorkCounts
        from spark_mjoin.mjoin.operator import scanned

        probing = -1 - np.arange(count, dtype=np.int64)  # keys are not negative
        rows = WIDE * self._rows
        started = time.process_time()
        for _ in scanned(probing, self._wide, rows, WorkCounts()):
            continue
        return (time.process_time() - started) / rows

    @staticmethod
    def _write(rows: Any) -> None:
        import pyarrow as pa

        with tempfile.TemporaryFile() as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_batch(rows)
