"""What options are written in: sizes, counts, durations, numbers and words. OptionError for a text that is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection

from spark_mjoin.errors import OptionError, listed, nearest

MOST = 1 << 60  # microseconds or rows: more would overflow somewhere, and nobody waits that long
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
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
    if match is None or total >= MOST:
        raise OptionError(
            f"option '{option}': '{text}' is not a duration such as '10 minutes' or '1 hour 30 minutes'; units are: "
            + listed([f"{unit}s" for unit in _MICROS])
        )
    return total


def parse_number(text: str, option: str, allowed: Callable[[float], bool], wanted: str) -> float:
    """A finite number for which `allowed` is true; `wanted` says in words which these are."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and allowed(number)):
        raise OptionError(f"option '{option}': '{text.strip()}' is not {wanted}")
    return number


def parse_choice(text: str, option: str, values: Collection[str]) -> str:
    """One of some words; OptionError with the nearest one for anything else."""
    value = text.strip().lower()
    if value not in values:
        raise OptionError(
            f"option '{option}': unknown value '{value}'.{nearest(value, values)} Values are: {listed(values)}"
        )
    return value
