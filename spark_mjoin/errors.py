"""Every error that a user of the source can meet.

Each message names the option and the alias, says what is wrong, and says what to do. Tests and callers tell errors
apart by their classes. Users read only the message, since Spark shows nothing else.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MJoinError(Exception):
    """The root of all errors that are raised on purpose."""


class OptionError(MJoinError):
    """An option is missing, unknown, or has a value that cannot be used."""


class QueryError(MJoinError):
    """The `query` (or `on`) cannot be turned into a join: syntax, unknown columns, types, connectivity."""


class SourceError(MJoinError):
    """An upstream source cannot be listed or read."""


class StateError(MJoinError):
    """The durable state is missing, damaged, or belongs to a join with another meaning."""


class MemoryBudgetError(MJoinError):
    """The state in memory does not fit `memory`, and `overflow` is `fail`."""


class PromiseError(MJoinError):
    """A source has delivered a row that it had promised not to deliver, and `verifyConstraints` is `fail`."""


class PlacementError(MJoinError):
    """No placement can be planned: nothing connects some streams, or there are more than a search can take."""


class JarError(MJoinError):
    """The jar is not there, or not made for this Spark."""


def not_read(version: int) -> StateError:
    """Of a join whose input cannot be asked for again."""
    return StateError(
        f"some partition of the join has no version {version} of its state, though Spark has recorded the batch that "
        "makes it as done, and its input cannot be asked for again. The checkpoint and the state are not of the same "
        "time: restore both, or start with a new checkpoint"
    )


def nearest(name: str, candidates: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest candidate, or an empty string when none is close."""
    by_fold = {c.casefold(): c for c in candidates}
    close = difflib.get_close_matches(name.casefold(), by_fold, n=1, cutoff=0.6)
    return f" Did you mean '{by_fold[close[0]]}'?" if close else ""


def listed(names: Iterable[str]) -> str:
    """A comma-separated list for a message; 'none' when there is nothing to list."""
    return ", ".join(names) or "none"
