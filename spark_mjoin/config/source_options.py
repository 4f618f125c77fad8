"""What the join needs to know about one source: its window, event time and key promises (`source.<alias>.*`).

Not covered: the options that the source reads itself. It gets them as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_mjoin.config.names import OF_ANY_SOURCE, OF_PROMISES, OF_WINDOWS
from spark_mjoin.errors import OptionError, nearest
from spark_mjoin.quantities import MOST, parse_duration


@dataclass(frozen=True)
class WindowOption:
    """A window as the option has it: `10 minutes` or `10000 rows`."""

    size: int  # microseconds or rows
    in_rows: bool
    option: str  # the option that sets it


@dataclass(frozen=True)
class Promised:
    """The key promises of a source, as its options have them."""

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


def parse_window(text: str, option: str) -> WindowOption | None:
    """A window from `10 minutes` or `10000 rows`; None for `none`."""
    if text.strip().lower() == "none":
        return None
    rows = re.fullmatch(r"(\d+)\s*rows?", text.strip().lower())
    try:
        size = int(rows[1]) if rows else parse_duration(text, option)
    except OptionError:
        size = 0
    if not 0 < size < MOST:
        raise OptionError(
            f"option '{option}': '{text}' is not a window: write a time such as '10 minutes', a number of rows such as "
            "'10000 rows', or 'none'"
        )
    return WindowOption(size, rows is not None, option)


def source_options(alias: str, given: Mapping[str, str], default: WindowOption | None) -> SourceOptions:
    """The options of one source; `default` is the window for all that set none."""
    formats = [value.strip() for name, value in given.items() if name.lower() == "format"]
    if not formats or not formats[0]:
        close = nearest("format", (n for n in given if n.lower() != "path"))
        hint = close.replace("Did you mean", "Is it misspelt as") if close else ""
        raise OptionError(f"source '{alias}' has no format: option 'source.{alias}.format' is missing.{hint}")
    taken = {name.lower() for name in OF_ANY_SOURCE}
    kept = {name: value for name, value in given.items() if name.lower() not in taken}
    window, timestamp, watermark = (
        next((value.strip() for n, value in given.items() if n.lower() == name), None) for name in OF_WINDOWS
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
    """The key promises of a source, from its options by lower-cased name."""
    found = {name: given[name.lower()] for name in OF_PROMISES if name.lower() in given}
    for name, value in found.items():
        if not value:
            raise OptionError(f"option 'source.{alias}.{name}' is empty: set a value, or remove it")
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
