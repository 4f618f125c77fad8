"""Print how a join runs and why, before it runs or from its state: graph, plan, orders, rates, state, policy.

The text has one section per decision, each with the figures behind it, and every figure says where it is from. With
observations, expected and observed figures stand next to each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_mjoin.config import Options
from spark_mjoin.driver import calibrate
from spark_mjoin.driver.loading import load
from spark_mjoin.errors import OptionError
from spark_mjoin.explaining import observed, running, sections
from spark_mjoin.explaining.commands import add_options, options_of, reported
from spark_mjoin.explaining.expected import Expectation, Knowledge
from spark_mjoin.explaining.observed import Observed
from spark_mjoin.query import tree as trees
from spark_mjoin.redaction import Secrets

SECONDS = 3600.0  # that a forecast looks ahead


@dataclass(frozen=True)
class Explanation:
    expectation: Expectation
    observed: Observed | None
    text: str

    @property
    def plan(self) -> str:
        """The tree of joins, as option `plan` has it: the one that runs, or that would be chosen."""
        tree = self.expectation.tree if self.observed is None else self.observed.tree
        return trees.render(tree, sections.names_of(self.expectation.spec))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Explanation of a join of {len(self.expectation.spec.inputs)} inputs, plan {self.plan}>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser)
    parser.add_argument("--state", metavar="DIR", help="of a query that runs or ran: stateLocation, or the checkpoint")
    parser.add_argument("--seconds", type=float, help=f"that the forecast looks ahead (default: {SECONDS:g})")


def command(given: argparse.Namespace) -> int:
    return reported(lambda: explained(options_of(given), given.state, seconds=given.seconds))


def explained(
    options: Mapping[str, Any], state: str | None = None, query: Any = None, seconds: float | None = None
) -> Explanation:
    """How a join with these options runs, and what it has done if its state or the query is given."""
    with Secrets.of([*as_text(options).items(), ("state", state)]).kept():
        return _explained(as_text(options), state, query, ahead(seconds))


def _explained(text_options: Mapping[str, str], state: str | None, query: Any, looking: float) -> Explanation:
    spec, settings = load(text_options)
    requested = Options.parse(text_options).settings.partitions
    seen = None
    if query is not None:
        seen = observed.of_progress(spec, settings, query, state)
    elif state is not None:
        seen = observed.of_state(spec, settings, state)
    costs = calibrate.calibrated()
    expectation = Expectation(spec, settings, costs, Knowledge.given(spec, settings), looking)
    lines = sections.graph(spec)
    lines += sections.foreseen(expectation) if seen is None else running.sections(expectation, seen)
    lines += [*sections.partitioning(spec, settings, requested), *sections.policies(spec, settings)]
    lines += sections.shedding(spec, settings)
    lines += sections.legend(costs)
    return Explanation(expectation, seen, "\n".join(lines).rstrip())


def ahead(seconds: float | None) -> float:
    """How far a forecast looks."""
    if seconds is None:
        return SECONDS
    if not 0 < seconds < float("inf"):
        raise OptionError(f"argument 'seconds' is {seconds}: give how far to look ahead, a number above 0")
    return seconds


def as_text(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as Spark passes them on: `.option("header", True)` is the text true."""
    return {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in options.items() if v is not None}
