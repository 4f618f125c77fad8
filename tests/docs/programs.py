"""Runs programs of the documentation one after the other: `python programs.py <requests.json> <outcomes.json>`.

As a user would run each, except that they share a JVM, which takes longer to start than most of them to run; a program
that stops its session makes the next one start another. A request is the JSON of a `Program`; an outcome says what it
printed, its traceback if it failed, and which files are in the directory that were not there before.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Program:
    name: str
    code: str
    arguments: tuple[str, ...] = ()


@dataclass
class Outcome:
    printed: str
    failure: str | None
    left: list[str]


def run(program: Program) -> Outcome:
    before = set(os.listdir())
    sys.argv = [program.name, *program.arguments]
    failure = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            exec(compile(program.code, program.name, "exec"), {"__name__": "__main__", "__file__": program.name})
        except SystemExit as end:
            failure = f"it ended with {end.code!r}" if end.code else None
        except Exception:  # noqa: BLE001 - the test shows it
            failure = traceback.format_exc()
    return Outcome(printed.getvalue(), failure, sorted(set(os.listdir()) - before))


def main(requests: Path, outcomes: Path) -> None:
    found = {}
    for request in json.loads(requests.read_text()):
        found[request["name"]] = vars(run(Program(**request)))
        outcomes.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
