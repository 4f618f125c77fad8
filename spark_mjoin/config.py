"""Options of the source, read once: strings come in, `Options` goes out, and no other layer looks at an option again.

Spark hands over a case-insensitive mapping whose keys are lower-cased when it is copied, so every name here matches
without regard to case and aliases are lower-case. Sources are ordered by alias, because that mapping has no order.

Not covered: what is behind `source.<alias>.*` (each source reads its own options), and the meaning of `query`
(the planner).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.model import SLOTS, Expected, Settings

_LIMITS = ("maxRowsPerTrigger", "maxFilesPerTrigger", "maxBytesPerTrigger")
_OVERFLOW = ("flush", "blockingThreshold", "diskFuel", "diskShare", "segmentCompression")
_WINDOWS = ("window", "expiry", "idleTimeout")
_SHEDDING = ("maxDelay", "minRecall")
_PROMISES = ("goal", "purge", "purgeEvery", "verifyConstraints", "emitPunctuations")
_SCHEDULING = ("streamScheduling", "schedulingQuota", "tupleScheduling")
_TOP = ("query", "on", "plan", "access", "partitions", "memory", "overflow", "stateLocation", "stickyPartitions")
_KNOWN = (*_TOP, *_OVERFLOW, *_WINDOWS, *_SHEDDING, *_PROMISES, *_SCHEDULING, *_LIMITS, "expectedSelectivity")
_RATE = "expectedRowsPerSecond"
_OF_INPUTS = ("window", "timestamp", "watermark")
_OF_PROMISES = ("punctuation", "punctuationValues", "punctuationRange", "unique", "clustered", "ordered")
OF_ANY_SOURCE = ("format", *_OF_INPUTS, *_OF_PROMISES, _RATE)  # options under `source.<alias>.` that are read here
_OVERFLOWS = ("spill", "shed", "shrink", "fail")
_POLICIES = ("adaptive", "coordinated", "largest", "random")
_STREAMS = ("auto", "sequential", "priority", "random")
_TUPLES = ("auto", "sequential", "value")
_COMPRESSIONS = ("none", "lz4", "zstd")
_CHECKPOINT = "__checkpointlocation"  # from the jar: the source's own directory in the query's checkpoint
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(?:interval\s+)?((?:\d+\s*[a-z]+\s*)+)", re.IGNORECASE)
_MICROS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
PURGE_EVERY = 100  # punctuations, as in the experiments of Ding 2003
_MOST = 1 << 60  # microseconds or rows: more would overflow somewhere, and nobody waits that long
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclass(frozen=True)
class WindowOption:
    """A window as it is written: `10 minutes` or `10000 rows`."""

    size: int  # microseconds or rows
    in_rows: bool
    option: str  # that it was given by


@dataclass(frozen=True)
class Promised:
    """What a source promises about the rows that it will deliver, as it is written."""

    punctuation: str | None = None  # an SQL predicate: the rows for which it is true are punctuations
    values: tuple[str | None, str] | None = None  # (key column or None for the only one, column with a list of values)
    range: tuple[str | None, str, str] | None = None  # (the same, columns with the least and the largest value)
    unique: tuple[str, ...] = ()
    clustered: tuple[str, ...] = ()
    ordered: tuple[str, bool] | None = None  # (column, descending)

    def __bool__(self) -> bool:
        return self != Promised()


@dataclass(frozen=True)
class SourceOptions:
    """`source.<alias>.*`, without the prefix and without what is read here, sorted by name; and what is read here."""

    alias: str
    format: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    window: WindowOption | None = None
    timestamp: str | None = None  # the column of the event time
    lateness: int | None = None  # microseconds
    promised: Promised = Promised()


@dataclass(frozen=True)
class Options:
    """All options, checked as far as that is possible without looking at data. One of `query` and `on` is set."""

    sources: tuple[SourceOptions, ...]
    query: str | None
    on: tuple[str, ...]
    settings: Settings
    emit_punctuations: bool = False
    limits: tuple[tuple[str, str], ...] = ()  # per trigger, for every source that knows them and sets none of its own

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Options:
        """The options as types; OptionError, with the nearest valid name, for anything that cannot be used."""
        top, per_source = _split(options)
        _check_names(top)
        if not per_source:
            raise OptionError(
                "no sources: give each one as option 'source.<alias>.format' with its other options beside it,"
                " such as 'source.orders.format' and 'source.orders.path'"
            )
        default = parse_window(top["window"], "window") if "window" in top else None
        sources = tuple(_source(alias, per_source[alias], default) for alias in sorted(per_source))
        _check_windows(sources)
        query, on = _meaning(top, len(sources))
        settings = _settings(top, _expected(top, per_source))
        _check_overflow(settings, sources)
        emit = _choice(top, "emitPunctuations", ("true", "false"), "false") == "true"
        _check_promises(top, sources, settings)
        _check_scheduling(sources, settings)
        return cls(sources, query, on, settings, emit, _limits(top))


def parse_bytes(text: str, option: str) -> int:
    """A number of bytes from `1048576`, `64k`, `512m`, `2g` or `1t`, in powers of 1024 as Spark counts."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise OptionError(f"option '{option}': '{text}' is not a size such as 1048576, 64k, 512m or 2g")
    return int(match[1]) << _UNITS[match[2].lower()]


def parse_count(text: str, option: str) -> int:
    """A whole number of at least one."""
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < 1:
        raise OptionError(f"option '{option}': '{text}' is not a whole number of at least 1")
    return int(text)


def parse_duration(text: str, option: str) -> int:
    """Microseconds from `10 minutes`, `1 hour 30 minutes` or `0 seconds`: lengths that are the same on every day."""
    match = _DURATION.fullmatch(text.strip())
    total = 0
    for number, unit in re.findall(r"(\d+)\s*([a-z]+)", match[1].lower()) if match else ():
        if unit.removesuffix("s") not in _MICROS:
            match = None
            break
        total += int(number) * _MICROS[unit.removesuffix("s")]
    if match is None or total >= _MOST:
        raise OptionError(
            f"option '{option}': '{text}' is not a duration such as '10 minutes' or '1 hour 30 minutes'; units are: "
            + listed([f"{unit}s" for unit in _MICROS])
        )
    return total


def parse_window(text: str, option: str) -> WindowOption | None:
    """A window from `10 minutes` or `10000 rows`; None for `none`."""
    if text.strip().lower() == "none":
        return None
    rows = re.fullmatch(r"(\d+)\s*rows?", text.strip().lower())
    try:
        size = int(rows[1]) if rows else parse_duration(text, option)
    except OptionError:
        size = 0
    if not 0 < size < _MOST:
        raise OptionError(
            f"option '{option}': '{text}' is not a window: write a time such as '10 minutes', a number of rows such as "
            "'10000 rows', or 'none'"
        )
    return WindowOption(size, rows is not None, option)


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Top-level options by lower-cased name, and per alias the options under `source.<alias>.`."""
    top: dict[str, str] = {}
    per_source: dict[str, dict[str, str]] = {}
    for name, value in options.items():
        if not name.lower().startswith("source."):
            top[name.lower()] = value
            continue
        alias, dot, option = name[len("source.") :].partition(".")
        if not _IDENTIFIER.fullmatch(alias):
            raise OptionError(
                f"option '{name}': the alias '{alias}' is not an SQL identifier (letters, digits and _,"
                " not beginning with a digit)"
            )
        if not dot or not option:
            raise OptionError(
                f"option '{name}' names no option of source '{alias}': write 'source.{alias}.<option>',"
                f" such as 'source.{alias}.format'"
            )
        per_source.setdefault(alias.lower(), {})[option] = value
    return top, per_source


def _check_names(top: Mapping[str, str]) -> None:
    known = {name.lower() for name in _KNOWN}
    for name in top:
        if name in known or name.startswith("__"):
            continue
        if name in ("path", "paths", "schema", "format"):
            raise OptionError(
                f"option '{name}' belongs to a source, and this join has several: write 'source.<alias>.{name}'"
                + (" instead of load(path)" if name.startswith("path") else "")
            )
        raise OptionError(
            f"unknown option '{name}'.{nearest(name, _KNOWN)} Options are: {listed(_KNOWN)}, and source.<alias>.*"
        )


def _limits(top: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    given = {name: top[name.lower()] for name in _LIMITS if name.lower() in top}
    for name, value in given.items():
        (parse_bytes if name == "maxBytesPerTrigger" else parse_count)(value, name)
    return tuple(given.items())


def _source(alias: str, given: Mapping[str, str], default: WindowOption | None) -> SourceOptions:
    formats = [value.strip() for name, value in given.items() if name.lower() == "format"]
    if not formats or not formats[0]:
        close = nearest("format", (n for n in given if n.lower() != "path"))
        hint = close.replace("Did you mean", "Is it misspelt as") if close else ""
        raise OptionError(f"source '{alias}' has no format: option 'source.{alias}.format' is missing.{hint}")
    taken = {name.lower() for name in OF_ANY_SOURCE}
    kept = {name: value for name, value in given.items() if name.lower() not in taken}
    window, timestamp, watermark = (
        next((value.strip() for n, value in given.items() if n.lower() == name), None) for name in _OF_INPUTS
    )
    return SourceOptions(
        alias,
        formats[0],
        tuple(sorted(kept.items())),
        default if window is None else parse_window(window, f"source.{alias}.window"),
        timestamp.strip("`") if timestamp else None,
        None if watermark is None else parse_duration(watermark, f"source.{alias}.watermark"),
        _promised(alias, {n.lower(): value.strip() for n, value in given.items()}),
    )


def _promised(alias: str, given: Mapping[str, str]) -> Promised:
    """The promises of a source, from its options by lower-cased name."""
    found = {name: given[name.lower()] for name in _OF_PROMISES if name.lower() in given}
    for name, value in found.items():
        if not value:
            raise OptionError(f"option 'source.{alias}.{name}' is empty: give it a value, or leave it out")
    for name in ("punctuationValues", "punctuationRange"):
        if name in found and "punctuation" not in found:
            raise OptionError(
                f"option 'source.{alias}.{name}' is given, but not 'source.{alias}.punctuation', the predicate that "
                "says which rows are punctuations"
            )
    values = bounds = ordered = None
    if "punctuationValues" in found:
        key, (column,) = _of_key(found["punctuationValues"], f"source.{alias}.punctuationValues", ("items",))
        values = key, column
    if "punctuationRange" in found:
        key, (low, high) = _of_key(found["punctuationRange"], f"source.{alias}.punctuationRange", ("low", "high"))
        bounds = key, low, high
    if "ordered" in found:
        words = found["ordered"].split()
        direction = words[1].lower() if len(words) == 2 else "asc"
        if len(words) > 2 or direction not in ("asc", "desc"):
            raise OptionError(
                f"option 'source.{alias}.ordered': '{found['ordered']}' is not one column, with 'desc' behind it where "
                "its values go down"
            )
        ordered = words[0].strip("`"), direction == "desc"
    return Promised(
        found.get("punctuation"),
        values,
        bounds,
        _columns(found.get("unique", ""), f"source.{alias}.unique"),
        _columns(found.get("clustered", ""), f"source.{alias}.clustered"),
        ordered,
    )


def _of_key(text: str, option: str, example: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """`column, column` with the key that they speak about before it, `key: column, column`, where there are several."""
    key, colon, rest = text.rpartition(":")
    columns = tuple(column.strip().strip("`") for column in rest.split(","))
    if len(columns) != len(example) or not all(columns) or (colon and not key.strip()):
        raise OptionError(
            f"option '{option}': '{text}' is not of the form '{', '.join(example)}', or 'id: {', '.join(example)}' "
            "where the source has several keys"
        )
    return key.strip().strip("`") or None, columns


def _columns(text: str, option: str) -> tuple[str, ...]:
    columns = tuple(column.strip().strip("`") for column in text.split(",")) if text else ()
    if not all(columns) or len({c.lower() for c in columns}) < len(columns):
        raise OptionError(f"option '{option}': '{text}' is not a column, or several with commas between them")
    return columns


def _check_promises(top: Mapping[str, str], sources: tuple[SourceOptions, ...], settings: Settings) -> None:
    promising = next((source.alias for source in sources if source.promised), None)
    if promising is not None and settings.overflow in ("shed", "shrink"):
        raise OptionError(
            f"option 'overflow': '{settings.overflow}' leaves out rows, and source '{promising}' promises which rows do"
            " not come: what one lets go cannot be told from what the other does. Take 'spill' or 'fail', or leave out"
            f" the punctuations and constraints of '{promising}'"
        )
    given = [name for name in _PROMISES[1:] if name.lower() in top]
    if given and not any(source.promised for source in sources):
        raise OptionError(
            f"option '{given[0]}' is given, but no source promises anything: set 'source.<alias>.punctuation', "
            "'unique', 'clustered' or 'ordered'"
        )


def _check_windows(sources: tuple[SourceOptions, ...]) -> None:
    """Event time is for all inputs or for none: the youngest row of a combination may be one of any."""
    timed = next((s.window for s in sources if s.window and not s.window.in_rows), None)
    for source in sources:
        at, late = f"source.{source.alias}.timestamp", f"source.{source.alias}.watermark"
        if timed is None and (source.timestamp or source.lateness is not None):
            raise OptionError(
                f"option '{at if source.timestamp else late}' is given, but no window in time: set 'window' or "
                f"'source.{source.alias}.window' to a time such as '10 minutes'"
            )
        if timed is not None and source.timestamp is None:
            raise OptionError(
                f"option '{at}' is missing: option '{timed.option}' is a window in time, so every source needs the "
                "column that holds its event time"
            )
        if timed is not None and source.lateness is None:
            raise OptionError(
                f"option '{late}' is missing: how far a row of '{source.alias}' may be behind the newest one, such as "
                "'1 minute'; '0 seconds' if its rows come in order. Rows that are later than that are dropped"
            )


def _check_overflow(settings: Settings, sources: tuple[SourceOptions, ...]) -> None:
    if settings.overflow == "shrink" and settings.memory_bytes is None:
        raise OptionError("option 'overflow': 'shrink' makes windows fit into memory: set option 'memory' too")
    bare = next((s.alias for s in sources if s.window is None), None)
    if settings.overflow == "shrink" and bare is not None:
        raise OptionError(
            f"option 'overflow': 'shrink' shortens windows, and source '{bare}' has none: set 'source.{bare}.window',"
            " or take 'shed' or 'spill'"
        )
    if settings.min_recall is not None and settings.memory_bytes is not None:
        raise OptionError(
            "options 'minRecall' and 'memory' are both given: when memory is full, rows have to go whatever was"
            " promised. Leave one of them out, or take 'overflow' = 'spill', which loses nothing"
        )


def _check_scheduling(sources: tuple[SourceOptions, ...], settings: Settings) -> None:
    """Windows in rows count the order of arrival, which must not depend on how a join is run."""
    given = {"streamScheduling": settings.stream_scheduling, "tupleScheduling": settings.tuple_scheduling}
    forced = {name: kind for name, kind in given.items() if kind not in ("auto", "sequential")}
    counted = next((s.window for s in sources if s.window and s.window.in_rows), None)
    if counted is not None and forced:
        name, kind = next(iter(forced.items()))
        raise OptionError(
            f"options '{name}' = '{kind}' and '{counted.option}' do not go together: a window in rows counts arrivals, "
            f"which come side by side. Leave '{name}' out, or use a window in time"
        )
    if forced.get("tupleScheduling") and not any(source.promised for source in sources):
        raise OptionError(
            "option 'tupleScheduling' is 'value', but no source promises anything that rows could be awaited for: set "
            "'source.<alias>.punctuation', 'clustered' or 'ordered'"
        )
    if settings.quota_rows is not None and settings.stream_scheduling == "sequential" and not forced:
        raise OptionError(
            "option 'schedulingQuota' is the number of rows of a turn, and with 'streamScheduling' = 'sequential' "
            "there are none: leave one of them out"
        )


def _meaning(top: Mapping[str, str], source_count: int) -> tuple[str | None, tuple[str, ...]]:
    query, on_text = top.get("query", "").strip(), top.get("on", "").strip()
    if query and on_text:
        raise OptionError(
            "options 'query' and 'on' are both given: 'on' is the short form of a query, keep one of them"
        )
    if query:
        return query, ()
    if not on_text:
        raise OptionError(
            "option 'query' is missing: one SELECT over the aliases of the sources; or 'on', the columns that all have"
        )
    columns = tuple(column.strip().strip("`") for column in on_text.split(","))
    if not all(columns):
        raise OptionError(f"option 'on': '{on_text}' is not a column name or a comma-separated list of them")
    if len({c.lower() for c in columns}) < len(columns):
        raise OptionError(f"option 'on': '{on_text}' names a column twice")
    if source_count < 2:
        raise OptionError("option 'on' joins the sources with each other and there is only one: a join needs two")
    return None, columns


def _settings(top: Mapping[str, str], expected: Expected) -> Settings:
    overflow = _choice(top, "overflow", _OVERFLOWS, "spill")
    delay, recall = _promises(top, overflow)
    defaults = Settings()
    memory = top.get("memory", os.environ.get("SPARK_MJOIN_MEMORY"))  # the variable forces overflow where tests want it
    blocking, fuel, share = top.get("blockingthreshold"), top.get("diskfuel"), top.get("diskshare")
    disk_share = defaults.disk_share
    if share is not None:
        disk_share = _number(share, "diskShare", lambda x: x >= 0, "a number from 0 on, such as 0.1")
    compression = _choice(top, "segmentCompression", _COMPRESSIONS, "none")
    _choice(top, "stickyPartitions", ("true", "false"), "true")  # the jar acts on it
    checkpoint, idle, quota = top.get(_CHECKPOINT), top.get("idletimeout"), top.get("schedulingquota")
    goal = _choice(top, "goal", ("rate", "memory"), defaults.goal)
    purge = _choice(top, "purge", ("immediate", "batch"), "batch" if goal == "rate" else "immediate")
    if purge == "immediate" and "purgeevery" in top:
        why = "'purge' is 'immediate'" if "purge" in top else "'goal' is 'memory', which means purge=immediate"
        raise OptionError(f"option 'purgeEvery' has no effect where {why}: leave it out, or set purge=batch")
    return Settings(
        partitions=_partitions(top),
        memory_bytes=None if memory is None else parse_bytes(memory, "memory"),
        state_location=top.get("statelocation", "").strip() or (f"{checkpoint}/state" if checkpoint else None),
        shim=checkpoint is not None,
        expected=expected,
        overflow=overflow,
        flush=_choice(top, "flush", _POLICIES, defaults.flush),
        blocking_rows=defaults.blocking_rows if blocking is None else parse_count(blocking, "blockingThreshold"),
        fuel_bytes=defaults.fuel_bytes if fuel is None else parse_bytes(fuel, "diskFuel"),
        disk_share=disk_share,
        compression=None if compression == "none" else compression,
        expiry=_choice(top, "expiry", ("lazy", "active"), defaults.expiry),
        idle_seconds=None if idle is None else parse_duration(idle, "idleTimeout") / 1e6,
        plan=top.get("plan", "").strip() or None,
        goal=goal,
        purge_every=1 if purge == "immediate" else parse_count(top.get("purgeevery", str(PURGE_EVERY)), "purgeEvery"),
        verify=_choice(top, "verifyConstraints", ("off", "count", "fail"), defaults.verify),
        access=top.get("access", "").strip() or None,
        max_delay=delay,
        min_recall=recall,
        tuple_scheduling=_choice(top, "tupleScheduling", _TUPLES, defaults.tuple_scheduling),
        stream_scheduling=_choice(top, "streamScheduling", _STREAMS, defaults.stream_scheduling),
        quota_rows=None if quota is None else parse_count(quota, "schedulingQuota"),
    )


def _promises(top: Mapping[str, str], overflow: str) -> tuple[float | None, float | None]:
    """What shedding has to keep to: the seconds that a batch may take, or the share of the results that stays."""
    delay, recall = (top.get(name.lower()) for name in _SHEDDING)
    if delay is not None and overflow not in ("shed", "shrink"):
        raise OptionError("option 'maxDelay' is about shedding: it needs option 'overflow' to be 'shed' or 'shrink'")
    if recall is not None and overflow != "shed":
        raise OptionError("option 'minRecall' is about shedding: it needs option 'overflow' to be 'shed'")
    if delay is not None and recall is not None:
        raise OptionError(
            "options 'maxDelay' and 'minRecall' are both given: under overload one of them must give way. Keep the one"
            " that matters more"
        )
    seconds = None if delay is None else parse_duration(delay, "maxDelay") / 1e6
    if seconds == 0:
        raise OptionError(f"option 'maxDelay': '{delay}' is no time at all: a batch takes some, such as '5 seconds'")
    least = None
    if recall is not None:
        least = _number(recall, "minRecall", lambda x: 0 < x <= 1, "a number above 0 and up to 1, such as 0.9")
    return seconds, least


def _expected(top: Mapping[str, str], per_source: Mapping[str, Mapping[str, str]]) -> Expected:
    """What is expected of rates and selectivities; sources are named by their aliases."""
    rates = []
    for alias in sorted(per_source):
        for name, value in per_source[alias].items():
            if name.lower() == _RATE.lower():
                option = f"source.{alias}.{_RATE}"
                rates.append((alias, _number(value, option, lambda x: x > 0, "a number above 0, such as 500")))
    selectivities: dict[tuple[str, str], float] = {}
    option = "expectedSelectivity"
    for entry in filter(None, (e.strip() for e in top.get(option.lower(), "").split(","))):
        pair, colon, value = entry.partition(":")
        sources = [alias.strip().lower() for alias in pair.split(".")]
        if not colon or len(sources) != 2:
            raise OptionError(
                f"option '{option}': '{entry}' is not of the form <alias>.<alias>: <number>, such as"
                " 'orders.payments: 0.001'"
            )
        for alias in sources:
            if alias not in per_source:
                raise OptionError(
                    f"option '{option}': '{entry}' names a source '{alias}' that is not there."
                    f"{nearest(alias, per_source)} Sources are: {listed(sorted(per_source))}"
                )
        first, second = sorted(sources)
        if (first, second) in selectivities:
            raise OptionError(f"option '{option}': '{first}.{second}' is there twice")
        number = _number(value, f"{option}' of '{first}.{second}", lambda x: 0 < x <= 1, "a number above 0 and up to 1")
        selectivities[first, second] = number
    return Expected(tuple(rates), tuple((a, b, s) for (a, b), s in sorted(selectivities.items())))


def _number(text: str, option: str, allowed: Callable[[float], bool], wanted: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and allowed(number)):
        raise OptionError(f"option '{option}': '{text.strip()}' is not {wanted}")
    return number


def _partitions(top: Mapping[str, str]) -> int:
    number = parse_count(top.get("partitions", "1"), "partitions")
    if number > SLOTS:
        raise OptionError(f"option 'partitions': {number} is more than {SLOTS}, the slots that keys are divided into")
    return number


def _choice(top: Mapping[str, str], option: str, values: tuple[str, ...], default: str) -> str:
    """One of some words; OptionError with the nearest one for anything else."""
    value = top.get(option.lower(), default).strip().lower()
    if value not in values:
        raise OptionError(
            f"option '{option}': unknown value '{value}'.{nearest(value, values)} Values are: {listed(values)}"
        )
    return value
