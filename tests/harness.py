"""Runs a streaming join without Spark: the real reader, tasks and store, driven as Spark drives them.

Faults are data: a schedule says what happens at each batch.

    OK        the batch runs to its end
    CRASH     the batch runs to its end, then everything in memory is lost before Spark records it: it is run again
    TORN      as CRASH, but the tasks are cut off after their first result
    PARTLY    as CRASH, but every other task has not begun
    TWICE     Spark reads the batch twice, as two actions in one foreachBatch do; only one reading counts
    ABANDONED nothing asks for the batch's rows: no task is run, and Spark goes on
    LIMITED   a downstream LIMIT is content with the first rows: tasks are cut off, and Spark goes on
"""

import atexit
import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle, islice, repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin.doors import offsets
from spark_mjoin.doors.datasource import MJoinDataSource
from spark_mjoin.doors.reader import MJoinStreamReader
from spark_mjoin.driver.clock import SYSTEM, Clock
from spark_mjoin.driver.loading import load
from spark_mjoin.driver.session import Point
from spark_mjoin.engine import batch, cache
from tests.clock import SetClock
from tests.feeds import ALL_ROWS, feed_of
from tests.scripted import SCRIPTS

OK, CRASH, TORN, TWICE, ABANDONED, LIMITED = "ok", "crash", "torn", "twice", "abandoned", "limited"
PARTLY = "partly"

Rows = Counter[tuple[object, ...]]


@functools.cache
def _duckdb() -> Any:
    """One for the process: to make another takes longer than most of what it is asked."""
    import duckdb  # here, or what Spark holds of this module at the end of the process keeps it from being unloaded

    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET TimeZone = 'UTC'")
    atexit.register(_duckdb.cache_clear)  # while there still is a library that closes it
    return connection


def duckdb_join(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """What duckdb gives for a query over these tables."""
    connection = _duckdb()
    for alias, table in tables.items():
        connection.register(alias, table)
    try:
        return connection.sql(query).to_arrow_table()
    finally:
        for alias in tables:
            connection.unregister(alias)


_kind = ALL_ROWS  # of feeds of tasks


@contextmanager
def fed(kind: str) -> Iterator[None]:
    """While this lasts, tasks of fresh readers get what arrives from a kind of feed (tests.feeds)."""
    global _kind
    before, _kind = _kind, kind
    try:
        yield
    finally:
        _kind = before


_clock: Clock = SYSTEM  # of fresh readers


@contextmanager
def at_once() -> Iterator[None]:
    """While this lasts, no time passes for fresh readers, however slow the machine is: none of them finds idle time."""
    global _clock
    before, _clock = _clock, SetClock()
    try:
        yield
    finally:
        _clock = before


def reader(options: Mapping[str, str], clock: Clock | None = None) -> MJoinStreamReader:
    """A fresh stream reader, as after a restart."""
    given, clock = CaseInsensitiveDict(dict(options)), clock or _clock
    source = MJoinDataSource(given)
    made = source.streamReader(source.schema()) if clock is SYSTEM else MJoinStreamReader(*load(given), clock)
    assert isinstance(made, MJoinStreamReader)
    if _kind != ALL_ROWS:
        kind = _kind
        made.read = lambda partition: _read_fed(kind, partition)
    return made


def _read_fed(kind: str, partition: Any) -> Iterator[pa.RecordBatch]:
    task = partition.task
    return batch.run(task, feed_of(kind, task), uuid.uuid4().hex, cache.of_worker())


def point(current: MJoinStreamReader, offset: Mapping[str, Any]) -> Point:
    """What an offset of a query says."""
    return offsets.decode(offset, len(current.session.spec.inputs))


def newest(current: MJoinStreamReader, offset: Mapping[str, Any]) -> list[Any]:
    """The newest manifest of every partition up to an offset."""
    return list(current.session.committed(point(current, offset)).partitions)


def scripted(scripts: Mapping[str, list[pa.Table]], query: str, **options: str) -> dict[str, str]:
    """Options of a join over scripted sources."""
    for alias, script in scripts.items():
        SCRIPTS[alias] = script
        options[f"source.{alias}.format"] = "scripted"
        options[f"source.{alias}.script"] = alias
    return {"query": query, **options}


_partitions: Sequence[int] = ()  # of queries that are started again, where they change


@contextmanager
def rescaled(partitions: Sequence[int]) -> Iterator[None]:
    """While this lasts, queries are started anew before every batch, with these numbers of partitions in turn."""
    global _partitions
    before, _partitions = _partitions, partitions
    try:
        yield
    finally:
        _partitions = before


def is_rescaled() -> bool:
    return bool(_partitions)


def starts(options: Mapping[str, str]) -> Iterator[MJoinStreamReader]:
    """A fresh reader whenever a query starts."""
    for number in cycle(_partitions) if _partitions else repeat(None):
        yield reader(options if number is None else {**options, "partitions": str(number)})


def run(options: Mapping[str, str], state: Path, schedule: Sequence[str] = ()) -> list[pa.Table]:
    """The results of every batch, until the sources have nothing more."""
    options = {"stateLocation": str(state), **options}
    readers = starts(options)
    current = next(readers)
    start = current.initialOffset()
    results = []
    while True:
        current = next(readers) if is_rescaled() and results else current
        end = current.latestOffset(start, ReadAllAvailable())
        if end == start:
            return results
        fault = schedule[len(results)] if len(results) < len(schedule) else OK
        if fault in (CRASH, TORN, LIMITED, PARTLY):
            for partition in current.partitions(start, end)[:: 2 if fault == PARTLY else 1]:
                consume(current.read(partition), None if fault in (CRASH, PARTLY) else 1)
        if fault in (CRASH, TORN, PARTLY):
            cache.of_worker().clear()
            current = next(readers)
            if start["version"] == 0:
                start = current.initialOffset()
        readings = {TWICE: 2, ABANDONED: 0, LIMITED: 0}.get(fault, 1)
        produced: list[pa.RecordBatch] = []
        for _ in range(readings):
            produced = []
            for partition in current.partitions(start, end):
                produced += current.read(partition)
        results.append(pa.Table.from_batches(produced, current.session.spec.schema))
        start = end


def consume(batches: Iterable[pa.RecordBatch], wanted: int | None) -> None:
    """Take some batches of a generator and then let go of it, as a task that is cut off."""
    iterator = iter(batches)
    for _ in islice(iterator, wanted):
        continue
    if wanted is not None and hasattr(iterator, "close"):
        iterator.close()


def rows(tables: Iterable[pa.Table] | pa.Table) -> Rows:
    """The multiset of rows, with values that compare as SQL's DISTINCT does (NaN equals NaN)."""
    tables = [tables] if isinstance(tables, pa.Table) else list(tables)
    counted: Rows = Counter()
    for table in tables:
        columns = [
            map(comparable, column.to_pylist()) if _may_hold_nan(column.type) else column.to_pylist()
            for column in table.columns
        ]
        counted.update(zip(*columns, strict=True))
    return counted


def _may_hold_nan(type: pa.DataType) -> bool:
    return pa.types.is_floating(type) or pa.types.is_nested(type) or pa.types.is_dictionary(type)


def comparable(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if value != value else value + 0.0
    if isinstance(value, list):
        return tuple(map(comparable, value))
    if isinstance(value, dict):
        return tuple((k, comparable(v)) for k, v in value.items())
    return value
