"""How the commands `explain` and `advise` take the options of a join, and how they fail."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from spark_mjoin.errors import MJoinError, OptionError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the join, such as source.orders.format=parquet; as often as there are options",
    )
    parser.add_argument("--options", dest="file", metavar="FILE", help="a JSON object of options; - is standard input")


def options_of(given: argparse.Namespace) -> dict[str, object]:
    """The options of the file, and those of the command line, which win."""
    options: dict[str, object] = {}
    if given.file is not None:
        text = sys.stdin.read() if given.file == "-" else Path(given.file).read_text()
        try:
            options = json.loads(text)
        except ValueError as e:
            raise OptionError(f"--options {given.file}: it is not JSON: {e}") from e
        if not isinstance(options, dict):
            raise OptionError(f"--options {given.file}: it is not an object of names and values")
    for argument in given.option:
        name, equals, value = argument.partition("=")
        if not equals or not name:
            raise OptionError(
                f"--option {argument} is not of the form name=value, such as source.orders.format=parquet"
            )
        options[name] = value
    return options


def reported(make: Callable[[], object]) -> int:
    """Print what is made; an error of the options, the sources or the state is one line, and exit code 2."""
    try:
        print(make())
    except (MJoinError, OSError) as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    return 0
