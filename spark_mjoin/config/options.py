"""All options as one value. `Options.parse` splits them up, parses each part, and checks what belongs together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_mjoin.config.combinations import check_overflow, check_promises, check_scheduling, check_windows
from spark_mjoin.config.names import OF_THE_JOIN
from spark_mjoin.config.settings import choice, read_expected, read_settings
from spark_mjoin.config.source_options import SourceOptions, parse_window, source_options
from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.model import Settings
from spark_mjoin.quantities import parse_bytes, parse_count
from spark_mjoin.sources.protocol import LIMITS

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
        top, per_source = split_options(options)
        _check_names(top)
        if not per_source:
            raise OptionError(
                "no sources: give each one as option 'source.<alias>.format' with its other options beside it,"
                " such as 'source.orders.format' and 'source.orders.path'"
            )
        default = parse_window(top["window"], "window") if "window" in top else None
        sources = tuple(source_options(alias, per_source[alias], default) for alias in sorted(per_source))
        check_windows(sources)
        query, on = _meaning(top, len(sources))
        settings = read_settings(top, read_expected(top, per_source))
        check_overflow(settings, sources)
        emit = choice(top, "emitPunctuations", ("true", "false"), "false") == "true"
        check_promises(top, sources, settings)
        check_scheduling(sources, settings)
        return cls(sources, query, on, settings, emit, _limits(top))


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
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
    known = {name.lower() for name in OF_THE_JOIN}
    for name in top:
        if name in known or name.startswith("__"):
            continue
        if name in ("path", "paths", "schema", "format"):
            raise OptionError(
                f"option '{name}' belongs to a source, and this join has several: write 'source.<alias>.{name}'"
                + (" instead of load(path)" if name.startswith("path") else "")
            )
        known_names = f"Options are: {listed(OF_THE_JOIN)}, and source.<alias>.*"
        raise OptionError(f"unknown option '{name}'.{nearest(name, OF_THE_JOIN)} {known_names}")


def _limits(top: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    given = {name: top[name.lower()] for name in LIMITS if name.lower() in top}
    for name, value in given.items():
        (parse_bytes if name == "maxBytesPerTrigger" else parse_count)(value, name)
    return tuple(given.items())


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
