"""Upstream sources: the registry, and how the options of `source.<alias>.` become a `Source`.

Adding a source is one file and one line in `REGISTRY`. The registry holds dotted paths, so that a source's libraries
are imported when it is first used and not before. A class named there

- is called with (alias, options), and raises OptionError for values it cannot use;
- names its own options in `OPTIONS` (`client.*` stands for every name with that prefix) and the limits that make sense
  for it in `LIMITS`; anything else that a user sets is an error that suggests the nearest name.

Not covered here: options that have the prefix of a source but are the join's (`window`, `watermark`, ...). The caller
takes those out first.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Protocol, cast

import pyarrow as pa

from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.model import SourceSpec
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import LIMITS, Limits, Source

REGISTRY: dict[str, str] = {
    "parquet": "spark_mjoin.sources.files:ParquetSource",
    "csv": "spark_mjoin.sources.files:CsvSource",
    "json": "spark_mjoin.sources.files:JsonSource",
    "arrow": "spark_mjoin.sources.files:ArrowSource",
    "wisconsin": "spark_mjoin.sources.wisconsin:WisconsinSource",
}


class _SourceClass(Protocol):
    OPTIONS: tuple[str, ...]
    LIMITS: tuple[str, ...]

    def __call__(self, alias: str, options: Options) -> Source: ...


def formats() -> list[str]:
    """The formats that there are, in order of name."""
    return sorted(REGISTRY)


def create(alias: str, format: str, options: Mapping[str, str], schema: pa.Schema | None = None) -> Source:
    """The source `alias`; OptionError when the format, the name of an option or a value is wrong.

    schema is what an earlier `Source.schema()` gave, where there was one.
    """
    source = _class_of(alias, format)
    read = Options(alias, options)
    for limit in LIMITS:
        if limit in read and limit not in source.LIMITS:
            raise read.error(limit, f"does not apply to format '{format}'; it knows {listed(source.LIMITS)}")
    read.check_known(("format", *source.LIMITS, *source.OPTIONS))
    made = source(alias, read)
    if schema is not None:
        made.assume(schema)
    return made


def known_limits(alias: str, format: str) -> tuple[str, ...]:
    """The limits per trigger that a source's format understands."""
    return _class_of(alias, format).LIMITS


def with_limits(
    alias: str, format: str, options: Iterable[tuple[str, str]], defaults: Iterable[tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """The options of a source, in order of name, with those limits for all sources that it knows and does not set."""
    own = dict(options)
    known, given = known_limits(alias, format), {name.casefold() for name in own}
    added = {name: value for name, value in defaults if name in known and name.casefold() not in given}
    return tuple(sorted((own | added).items()))


def _class_of(alias: str, format: str) -> _SourceClass:
    path = REGISTRY.get(format.strip().casefold())
    if path is None:
        raise OptionError(
            f"option 'source.{alias}.format': there is no format '{format}'.{nearest(format, REGISTRY)} "
            f"Formats: {listed(formats())}."
        )
    module, _, name = path.partition(":")
    return cast(_SourceClass, getattr(importlib.import_module(module), name))


def limits(alias: str, options: Mapping[str, str]) -> Limits:
    """What the options say about how much one micro-batch may take."""
    read = Options(alias, options)
    return Limits(
        max_rows=read.positive_int("maxRowsPerTrigger"),
        max_files=read.positive_int("maxFilesPerTrigger"),
        max_bytes=read.size("maxBytesPerTrigger"),
    )


def open_source(spec: SourceSpec) -> Source:
    """The source of a join that was planned before."""
    return create(spec.alias, spec.format, dict(spec.options), spec.schema)
