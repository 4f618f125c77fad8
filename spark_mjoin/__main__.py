"""`python -m spark_mjoin <command>`. A command is a module with `add_arguments(parser)` and `command(given)`, which
returns the exit code; the first line of its docstring is its help. One line in COMMANDS adds it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spark_mjoin.doors import demo
from spark_mjoin.driver import calibrate
from spark_mjoin.explaining import advice, explanation

COMMANDS = {"demo": demo, "explain": explanation, "advise": advice, "calibrate": calibrate}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m spark_mjoin", description="Tools around the mjoin source.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, module in COMMANDS.items():
        help = (module.__doc__ or "").split("\n")[0]
        module.add_arguments(commands.add_parser(name, help=help, description=help))
    given = parser.parse_args(arguments)
    return int(COMMANDS[given.command].command(given))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
