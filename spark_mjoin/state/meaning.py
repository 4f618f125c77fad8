"""What the rows of a state mean, so that a query with other options does not read them as something else.

Written once, when a query begins, next to its state; checked whenever the query starts again. Says nothing about
options that do not touch the state: memory, limits per trigger, the projection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_mjoin.errors import StateError
from spark_mjoin.model import Position
from spark_mjoin.redaction import public_value
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory

NAME = "meaning.json"


def record(location: str, description: Mapping[str, Any], initial: Mapping[str, Position], attempt: str) -> None:
    """Write down what the state of a new query means and where its sources begin."""
    body = {"description": dict(description), "initial": dict(initial)}
    checked_json.publish(Directory(location), NAME, attempt, checked_json.text_of(body))


def initial_positions(location: str) -> dict[str, Position]:
    """Where the sources began."""
    return dict(_read(location)["initial"])


def description(location: str) -> dict[str, Any]:
    """What the state means."""
    return dict(_read(location)["description"])


def refuse(differences: Sequence[str]) -> None:
    """StateError that names the differences, if there are any, between what the state means and what options say."""
    if differences:
        raise StateError(
            "the options have changed in a way that the saved state does not allow: "
            + "; ".join(differences)
            + ". Use the options the query was started with, or start with a new checkpoint"
        )


def _read(location: str) -> dict[str, Any]:
    try:
        return checked_json.read(Directory(location), NAME)
    except FileNotFoundError:
        raise StateError(
            f"the checkpoint refers to a state in {public_value(location)} that is not there. Option 'stateLocation' "
            "must be as before, with its contents, in a place that all executors reach; or start with a new checkpoint"
        ) from None
