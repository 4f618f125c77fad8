"""`spark_mjoin.join`: any DataFrames in, one DataFrame out, divided among machines by Spark's own shuffle.

    orders   ─ filter, keys, columns ─ parcels ─┐
    payments ─ filter, keys, columns ─ parcels ─┼─ union ─ shuffle ─ the join, a task per partition ─ conditions, SELECT
    shipments─ filter, keys, columns ─ parcels ─┘                    (engine.batch, on a feed of own rows)
    └──────────── Spark ────────────┘                                └── the engine ──────────────┘ └──── Spark ────┘

Spark evaluates everything but the equality of keys: what is before the join reaches its sources as filters and columns,
and every function works that Spark has, in its session's time zone and ANSI mode. `query.division` divides the text.

To Spark a streaming join is a stateful operator of the jar's, with the number of the batch as version of its state
(`doors.node`). If all inputs are tables, the result is one too: it is an ordinary mapInArrow then, and needs no jar.
Tables beside streams are joined by Spark with what the streams give (`doors.tables`).

`doors.frames` has what Spark does before and after; this module has the call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from spark_mjoin.doors import shim
from spark_mjoin.errors import OptionError, listed, nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_mjoin.doors.frames import JoinedFrames

FILES = ("parquet", "orc", "json", "csv", "text", "avro", "xml")  # formats of files that carry or suggest a schema
LIMITS = ("maxFilesPerTrigger", "maxBytesPerTrigger")  # of Spark's streams of files
MOST_INPUTS = 10
MOST_PARTITIONS = 16  # that are chosen without being asked for
_DELAY = "spark.watermarkDelayMs"  # in the metadata of a column with a watermark
_CASE = "spark.sql.caseSensitive"
_ALIAS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Stream:
    """An input of `join` with what the join should know about it; the names are those of `source.<alias>.*`."""

    df: DataFrame
    timestamp: str | None = None  # the column with the event time; by default that of the DataFrame's watermark
    watermark: str | None = None  # how far a row may be behind the newest; by default that of the DataFrame
    window: str | None = None  # "10 minutes", "10000 rows": how long its rows count
    unique: str | None = None  # columns whose values never come twice
    clustered: str | None = None  # refused: Spark's shuffle does not keep the order that it is about
    ordered: str | None = None  # a column whose values only go up, or down with "desc" behind it
    punctuation: str | None = None  # an SQL predicate: rows for which it holds say which keys do not come any more
    punctuationValues: str | None = None
    punctuationRange: str | None = None
    expectedRowsPerSecond: float | None = None
    hosts: str | None = None  # where its rows are, with commas between: partitions run where most of theirs are


if TYPE_CHECKING:
    Input = DataFrame | Stream


class JoinOptions(TypedDict, total=False):
    """The options of `join`, by the names of `format("mjoin")`; docs/options.md explains them."""

    partitions: int
    partitioning: str
    splitHotKeys: bool
    memory: str
    overflow: str
    flush: str
    window: str
    plan: str
    access: str
    stateLocation: str
    blockingThreshold: int
    diskFuel: str
    diskShare: float
    segmentCompression: str
    expiry: str
    idleTimeout: str
    maxDelay: str
    minRecall: float
    goal: str
    purge: str
    purgeEvery: int
    verifyConstraints: str
    streamScheduling: str
    schedulingQuota: int
    tupleScheduling: str
    expectedSelectivity: str


def join(
    inputs: Mapping[str, DataFrame | Stream],
    query: str | None = None,
    *,
    on: str | Sequence[str] | None = None,
    **options: Unpack[JoinOptions],
) -> DataFrame:
    """The inner join of two to ten DataFrames, by alias, as one DataFrame.

    `query` is a SELECT over the aliases; or `on` has the columns that all of them share. With streams the result is a
    stream, and needs the jar, which is added to the session if it is not there. With tables alone it is a table. Tables
    beside streams are loaded once.

        joined = spark_mjoin.join(
            {"orders": orders, "payments": payments},
            "SELECT o.id, p.amount FROM orders o JOIN payments p ON o.id = p.order_id",
            partitions=8,
        )

    OptionError and QueryError say what is wrong with options and query; nothing has run then.
    """
    joined = planned(inputs, query, on, options)
    if joined.engine is not None and joined.engine.is_streaming:
        shim.install_node(joined.prepared[0].sparkSession)
    return joined.dataframe()


def planned(
    inputs: Mapping[str, DataFrame | Stream],
    query: str | None,
    on: str | Sequence[str] | None,
    options: JoinOptions,
) -> JoinedFrames:
    """The join of `join` with these arguments, checked and not built yet."""
    from spark_mjoin.doors.frames import JoinedFrames

    streams = _streams(inputs)
    spark = next(iter(streams.values())).df.sparkSession
    tables = [alias for alias, stream in streams.items() if not stream.df.isStreaming]
    tables = tables if len(tables) < len(streams) else []
    _check_tables(streams, tables, options)
    _check_session(spark)
    if len(streams) - len(tables) > 1:
        described = {alias: stream for alias, stream in streams.items() if alias not in tables}
        given = _given(described, query, on, options)
        given.setdefault("partitions", str(_default_partitions(spark)))
    else:
        given = _given(streams, query, on, {})
    return JoinedFrames.of({alias: stream.df for alias, stream in streams.items()}, given, tables)


def load(spark: SparkSession, options: Mapping[str, str], *, streaming: bool = True) -> DataFrame:
    """The join that options of `format("mjoin")` describe, with sources that Spark reads itself.

    `source.<alias>.format`, `.path`, `.schema` and whatever the source knows go to `spark.readStream`, or with
    `source.<alias>.static` = 'true' or `streaming=False` to `spark.read`; the rest is as in `join`.
    """
    from spark_mjoin.config.options import split_options

    top, per_source = split_options(options)
    names = {name.lower(): name for name in (*JoinOptions.__annotations__, *LIMITS, "query", "on")}
    given: Any = {names.get(name, name): value for name, value in top.items()}
    limits = {name: given.pop(name) for name in LIMITS if name in given}
    inputs = {}
    for alias, of_source in per_source.items():
        is_stream = not _is_static(alias, of_source) and streaming
        inputs[alias] = _read(spark, alias, {**limits, **of_source} if is_stream else of_source, is_stream)
    query, on = given.pop("query", None), given.pop("on", None)
    return join(inputs, query, on=on, **given)


def _read(spark: SparkSession, alias: str, given: Mapping[str, str], streaming: bool) -> Stream:
    """A source that Spark reads, with what the join should know about it."""
    known = {each.name.lower(): each.name for each in fields(Stream) if each.name != "df"}
    described = {known[name.lower()]: value for name, value in given.items() if name.lower() in known}
    rest = {name: value for name, value in given.items() if name.lower() not in known}
    format = _taken(rest, "format")
    if not format:
        raise OptionError(f"source '{alias}' has no format: option 'source.{alias}.format' is missing")
    schema: Any = _taken(rest, "schema")
    reader = (spark.readStream if streaming else spark.read).format(format)
    if schema is None and streaming and format.lower() in FILES:
        # Spark's streams of files are not given a schema by their files, unless a setting asks for that
        schema = spark.read.format(format).options(**_without_limits(rest)).load().schema
    if schema is not None:
        reader = reader.schema(schema)
    return Stream(reader.options(**rest).load(), **described)  # type: ignore[arg-type]


def _is_static(alias: str, options: dict[str, str]) -> bool:
    """Whether a source is a table, also beside streams. The option is taken out of the others."""
    given = (_taken(options, "static") or "false").lower()
    if given not in ("true", "false"):
        raise OptionError(f"option 'source.{alias}.static': '{given}' is neither 'true' nor 'false'")
    return given == "true"


def _taken(options: dict[str, str], name: str) -> str | None:
    """The value of an option, which is taken out of the others."""
    found = next((given for given in options if given.lower() == name), None)
    return None if found is None else options.pop(found).strip()


def _without_limits(options: Mapping[str, str]) -> dict[str, str]:
    limits = {limit.lower() for limit in LIMITS}
    return {name: value for name, value in options.items() if name.lower() not in limits}


# --- what the call says ----------------------------------------------------------------------------------------------


def _streams(inputs: Mapping[str, DataFrame | Stream]) -> dict[str, Stream]:
    """The inputs by their aliases, in lower case."""
    if not 2 <= len(inputs) <= MOST_INPUTS:
        raise OptionError(f"join takes two to {MOST_INPUTS} inputs by alias, and there are {len(inputs)}")
    streams: dict[str, Stream] = {}
    for alias, given in inputs.items():
        stream = given if isinstance(given, Stream) else Stream(given)
        if not _ALIAS.fullmatch(alias):
            raise OptionError(
                f"the alias '{alias}' is not an SQL identifier (letters, digits and _, not beginning with a digit)"
            )
        if not hasattr(stream.df, "isStreaming"):
            raise OptionError(f"input '{alias}' is {type(stream.df).__name__}, and not a DataFrame or a Stream of one")
        if alias.lower() in streams:
            raise OptionError(f"two inputs have the alias '{alias}': case does not matter in it")
        if stream.clustered is not None:
            raise OptionError(
                f"'clustered' of input '{alias}' is about the order of rows, and Spark's shuffle does not keep it. Use "
                "'unique', 'ordered' or punctuations, or read the source with format(\"mjoin\")"
            )
        streams[alias.lower()] = stream
    return streams


def _check_tables(streams: Mapping[str, Stream], tables: Sequence[str], options: JoinOptions) -> None:
    """A table beside streams has no state, and neither has a single stream beside tables: no options are about it."""
    given = {
        alias: [each.name for each in fields(stream) if each.name != "df" and getattr(stream, each.name) is not None]
        for alias, stream in streams.items()
    }
    for alias in tables:
        for name in given[alias]:
            raise OptionError(
                f"'{name}' of input '{alias}': it is a table beside streams, of which the join keeps no rows. Leave "
                f"'{name}' out, or read '{alias}' as a stream (spark.readStream)"
            )
    alone = [alias for alias in streams if alias not in tables]
    for name in [*given[alone[0]], *options] if tables and len(alone) == 1 else ():
        raise OptionError(
            f"'{name}' has no effect: '{alone[0]}' is the only stream, so Spark joins it with the tables, and no rows "
            f"are kept. Leave '{name}' out"
        )


def _check_session(spark: Any) -> None:
    if str(spark.conf.get(_CASE, "false")).lower() == "true":
        raise OptionError(
            f"'{_CASE}' is true, and the join does not tell names apart by case: it would take one column for another. "
            f"Set it to false (spark.conf.set('{_CASE}', 'false')), and rename columns that differ by case only"
        )


def _given(
    streams: Mapping[str, Stream], query: str | None, on: str | Sequence[str] | None, options: JoinOptions
) -> dict[str, str]:
    """The same as options of the format."""
    for name in options:
        if name.lower() == "emitpunctuations":
            raise OptionError(
                "'emitPunctuations' is refused: behind the join Spark evaluates conditions and the SELECT list, to "
                "which a punctuation is no row, and it may put rows into another order. Leave it out, or read the "
                'sources with format("mjoin")'
            )
        if name not in JoinOptions.__annotations__:
            known = list(JoinOptions.__annotations__)
            raise OptionError(f"unknown option '{name}'.{nearest(name, known)} Options are: {listed(known)}")
    given = {name: _text(value) for name, value in options.items() if value is not None}
    if query is not None:
        given["query"] = query
    if on is not None:
        given["on"] = on if isinstance(on, str) else ",".join(on)
    windows = any("window" in given or (s.window or "none").lower() != "none" for s in streams.values())
    for alias, stream in streams.items():
        given[f"source.{alias}.format"] = "stream"
        stream = _with_watermark(stream) if windows else stream
        for each in fields(stream):
            value = getattr(stream, each.name)
            if each.name != "df" and value is not None:
                given[f"source.{alias}.{each.name}"] = _text(value)
    return given


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_watermark(stream: Stream) -> Stream:
    """A stream with the watermark that its DataFrame has, as far as it says nothing else."""
    marked = {field.name: field.metadata[_DELAY] for field in stream.df.schema if _DELAY in (field.metadata or {})}
    name = stream.timestamp or next(iter(marked), None)
    delay = next((ms for column, ms in marked.items() if name and column.lower() == name.lower()), None)
    watermark = stream.watermark or (None if delay is None else f"{delay} milliseconds")
    return replace(stream, timestamp=name, watermark=watermark)


def _default_partitions(spark: Any) -> int:
    """As many as the shuffles of the session have, and not very many: a partition costs a task in every batch."""
    return min(int(spark.conf.get("spark.sql.shuffle.partitions")), MOST_PARTITIONS)
