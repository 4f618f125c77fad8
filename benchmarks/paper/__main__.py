"""Run the experiments: `python -m benchmarks.paper [--only fig11,fig15] [--scale 0.1] [--out out/paper]`.

The exit code is 1 when a conclusion does not hold that the documentation says does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.paper.experiments import EXPERIMENTS
from benchmarks.paper.outcome import Outcome


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__)
    parser.add_argument("--only", help=f"experiments, separated by commas; all: {','.join(EXPERIMENTS)}")
    parser.add_argument("--scale", type=float, help="of the papers' cardinalities, 1 being full size")
    parser.add_argument("--out", type=Path, default=Path("out/paper"))
    given = parser.parse_args(arguments)
    names = given.only.split(",") if given.only else list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        parser.error(f"no experiment {', '.join(unknown)}; there are {', '.join(EXPERIMENTS)}")
    failed = 0
    for name in names:
        experiment = EXPERIMENTS[name]
        scale = given.scale or experiment.scale
        began = time.perf_counter()
        outcome = experiment.run(scale)
        outcome.write(given.out)
        show(outcome, scale, time.perf_counter() - began)
        failed += sum(check.expected and not check.holds for check in outcome.checks)
    print(f"CSV and PNG files are in {given.out}; {failed or 'no'} check{'s' if failed != 1 else ''} failed")
    return 1 if failed else 0


def show(outcome: Outcome, scale: float, seconds: float) -> None:
    print(f"\n{outcome.title} (scale {scale:g}, {seconds:.1f} s)")
    if outcome.rows:
        table = [[_text(cell) for cell in row] for row in [outcome.header, *outcome.rows]]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
            print("    " + "  ".join(cells))
    for check in outcome.checks:
        verdict = "OK" if check.holds else "FAILED" if check.expected else "DOES NOT HOLD (see docs/paper.md)"
        against = f"{check.against} ({check.figures})" if check.against else check.figures
        print(f"  {verdict}: {check.claim}: {against}")


def _text(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
