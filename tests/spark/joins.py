"""A join over directories of files, run by a real Spark: input, options, queries, and what must come out.

    join = FileJoin(tmp_path, "SELECT ... FROM a JOIN b ON a.k = b.k")
    join.add("a", table)                   one more file; its time of change is later than that of all before
    join.run(spark)                        AvailableNow, to its end
    assert join.collected == join.expected()

Results go to a foreachBatch that keeps them by batch id, which is what makes such a sink exactly-once; they are
lost with the object, as a sink is not. `elsewhere` copies checkpoint and state to a new place, for tests that damage
them: no worker process has a state from there in its cache.
"""

import itertools
import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.harness import Rows, duckdb_join, rows

STAR = "SELECT a.k, a.x, b.y, c.z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
CHAIN = "SELECT a.k, a.x, b.y, c.z FROM a JOIN b ON a.k = b.k JOIN c ON b.y = c.z"
PAYLOAD = {"a": "x", "b": "y", "c": "z"}

_clock = itertools.count(1_700_000_000)  # files are taken by age: every file gets a second of its own, long ago


@dataclass
class FileJoin:
    forced: ClassVar[dict[str, str]] = {}  # options that a test runs with besides its own (see conftest)

    root: Path
    query: str = STAR
    options: dict[str, str] = field(default_factory=dict)
    formats: dict[str, dict[str, str]] = field(default_factory=dict)  # alias -> source options besides `path`
    place: str = "first"  # where checkpoint and state are
    batches: dict[int, Rows] = field(default_factory=dict)  # results by batch id
    tables: dict[str, list[pa.Table]] = field(default_factory=dict)  # what was added, by alias

    # --- input ---

    def add(self, alias: str, table: pa.Table, name: str | None = None) -> Path:
        """Let one more file of a source arrive, whole."""
        self.tables.setdefault(alias, []).append(table)
        source = self.formats.setdefault(alias, {"format": "parquet"})
        directory = self.root / "in" / alias
        directory.mkdir(parents=True, exist_ok=True)
        second = next(_clock)
        path = directory / (name or f"{second}.{source['format']}")
        write(table, directory / f".{path.name}", source)
        os.utime(directory / f".{path.name}", (second, second))
        return (directory / f".{path.name}").rename(path)

    def fill(self, files: int, rows: int = 40, keys: int = 25) -> "FileJoin":
        """Add files of a star join (see `arrivals`) to every source, one after the other."""
        for _ in range(files):
            for alias in PAYLOAD:
                self.add(alias, arrivals(alias, len(self.tables.get(alias, [])), rows, keys))
        return self

    # --- options and queries ---

    def all_options(self) -> dict[str, str]:
        given = {"query": self.query, "stateLocation": str(self.state)}
        for alias, source in self.formats.items():
            own = {"path": str(self.root / "in" / alias), **source}
            given |= {f"source.{alias}.{name}": value for name, value in own.items()}
        return {name: value for name, value in (given | self.forced | self.options).items() if value}

    def load(self, spark: SparkSession) -> DataFrame:
        return spark.readStream.format("mjoin").options(**self.all_options()).load()

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("mjoin").options(**self.all_options()).load()

    def start(self, spark: SparkSession, **trigger: Any) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            self.batches[number] = rows(batch.toArrow())

        return self.start_with(self.load(spark).writeStream.foreachBatch(keep), **trigger)

    def start_with(self, writer: Any, **trigger: Any) -> StreamingQuery:
        trigger = trigger or {"availableNow": True}
        return writer.option("checkpointLocation", str(self.checkpoint)).trigger(**trigger).start()

    def run(self, spark: SparkSession, **trigger: Any) -> StreamingQuery:
        query = self.start(spark, **trigger)
        query.awaitTermination()
        return query

    # --- places ---

    @property
    def checkpoint(self) -> Path:
        return self.root / self.place / "checkpoint"

    @property
    def state(self) -> Path:
        return self.root / self.place / "state"

    def elsewhere(self, place: str) -> "FileJoin":
        """The same query, stopped where it is, with copies of its checkpoint, its state and its results so far."""
        shutil.copytree(self.root / self.place, self.root / place)
        return replace(self, place=place, batches=dict(self.batches), tables={a: [*t] for a, t in self.tables.items()})

    def changed(self, query: str | None = None, **options: str) -> "FileJoin":
        """The same query with other options; an empty value takes an option away."""
        return replace(self, query=self.query if query is None else query, options=self.options | options)

    def state_files(self, pattern: str) -> list[Path]:
        return sorted(self.state.glob(f"*/{pattern}"))

    # --- results ---

    @property
    def collected(self) -> Rows:
        return sum(self.batches.values(), Counter())

    def expected(self, query: str | None = None) -> Rows:
        return rows(duckdb_join(query or self.query, self.whole()))

    def whole(self) -> dict[str, pa.Table]:
        """All rows of each source."""
        return {alias: pa.concat_tables(tables) for alias, tables in self.tables.items()}


def arrivals(alias: str, number: int, rows: int = 40, keys: int = 25) -> pa.Table:
    """The rows of one file of `a`, `b` or `c`: keys spread differently per source and file, some of them NULL."""
    step = {"a": 1, "b": 3, "c": 7}[alias]
    values = [(i * step + number * 5) % keys for i in range(rows)]
    keys_ = [None if i % 19 == 18 else v for i, v in enumerate(values)]
    return pa.table({"k": pa.array(keys_, pa.int64()), PAYLOAD[alias]: [number * 1000 + i for i in range(rows)]})


def write(table: pa.Table, path: Path, source: dict[str, str]) -> None:
    if source["format"] == "parquet":
        pq.write_table(table, path)
    elif source["format"] == "csv":
        header = source.get("header") == "true"
        pacsv.write_csv(table, path, pacsv.WriteOptions(include_header=header))
    else:
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()))


def positions(query: StreamingQuery, alias: str) -> list[tuple[int, int]]:
    """(files, rows) of a source at the end of each batch that had input."""
    ends = [json.loads(p["sources"][0]["endOffset"])["positions"][alias] for p in _with_input(query)]
    return [(end["files"], end["rows"]) for end in ends]


def _with_input(query: StreamingQuery) -> list[Any]:
    progress = [p["sources"][0] for p in query.recentProgress]
    moved = [s["startOffset"] != s["endOffset"] for s in progress]
    return [p for p, m in zip(query.recentProgress, moved, strict=True) if m]
