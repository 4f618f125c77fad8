"""The options of one source, read into types: `source.<alias>.<name>`.

Spark lower-cases option names on their way, so names are looked up without regard to case; messages spell them as they
are declared. Every reader raises an OptionError that names the whole option and shows a value that would do, and no
secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.quantities import parse_bytes, parse_count
from spark_mjoin.redaction import Secrets

_TIME_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)", re.IGNORECASE)


class Options:
    """A case-insensitive view of `source.<alias>.*`, without the prefix."""

    def __init__(self, alias: str, values: Mapping[str, str]) -> None:
        self.alias = alias
        self._values = {name.casefold(): (name, str(value)) for name, value in values.items()}
        self.secrets = Secrets.of(self._values.values())

    def name(self, option: str) -> str:
        """The whole name, for messages."""
        return f"source.{self.alias}.{option}"

    def error(self, option: str, problem: str) -> OptionError:
        return OptionError(f"option '{self.name(option)}': {self.secrets.hide(problem)}")

    def __contains__(self, option: str) -> bool:
        return option.casefold() in self._values

    def text(self, option: str) -> str | None:
        found = self._values.get(option.casefold())
        return None if found is None else found[1]

    def required(self, option: str, example: str) -> str:
        value = self.text(option)
        if value is None or not value.strip():
            raise self.error(option, f"is required, for example {example}")
        return value

    def flag(self, option: str, default: bool) -> bool:
        value = self.text(option)
        if value is None:
            return default
        if value.strip().casefold() in ("true", "false"):
            return value.strip().casefold() == "true"
        raise self.error(option, f"'{value}' is neither true nor false")

    def character(self, option: str, default: str | None, none: bool = False) -> str | None:
        """One character; `\\t` is a tab. An empty value is None where `none` allows it."""
        value = self.text(option)
        if value is None:
            return default
        value = {"\\t": "\t", "\\\\": "\\"}.get(value, value)
        if value == "" and none:
            return None
        if len(value.encode()) != 1:
            raise self.error(option, f"'{value}' must be a single ASCII character")
        return value

    def positive_int(self, option: str) -> int | None:
        value = self.text(option)
        if value is None:
            return None
        return parse_count(value, self.name(option))

    def integer(self, option: str, default: int) -> int:
        value = self.text(option)
        if value is None:
            return default
        if not re.fullmatch(r"-?[0-9]+", value.strip()):
            raise self.error(option, f"'{value}' is not a whole number")
        return int(value)

    def positive_float(self, option: str) -> float | None:
        value = self.text(option)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise self.error(option, f"'{value}' is not a positive number")
        return number

    def size(self, option: str) -> int | None:
        """Bytes: `1048576`, `64m`, `1g`."""
        value = self.text(option)
        if value is None:
            return None
        return parse_bytes(value, self.name(option))

    def seconds(self, option: str, text: str) -> float:
        """A duration inside the value of an option: `250ms`, `10s`, `2m`, `1h`; a bare number is seconds."""
        match = _TIME.fullmatch(text.strip())
        if not match or match[2].lower() not in _TIME_UNITS:
            raise self.error(option, f"'{text.strip()}' is not a duration such as 250ms, 10s or 2m")
        return float(match[1]) * _TIME_UNITS[match[2].lower()]

    def check_known(self, known: Iterable[str]) -> None:
        """OptionError for the first option, in order of name, that is not among `known`; `client.*` is a prefix."""
        names = list(known)
        exact = {n.casefold() for n in names}
        prefixes = tuple(n[:-1].casefold() for n in names if n.endswith("*"))
        for folded, (spelled, _) in sorted(self._values.items()):
            if folded not in exact and not (prefixes and folded.startswith(prefixes)):
                raise OptionError(
                    f"unknown option '{self.name(spelled)}'.{nearest(spelled, names)} "
                    f"Options of this source: {listed(sorted(names))}."
                )
