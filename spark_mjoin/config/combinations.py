"""Options that are right alone and wrong together; each check raises an OptionError that says which one to change."""

from __future__ import annotations

from collections.abc import Mapping

from spark_mjoin.config.names import PROMISES
from spark_mjoin.config.source_options import SourceOptions
from spark_mjoin.errors import OptionError
from spark_mjoin.model import Settings


def check_promises(top: Mapping[str, str], sources: tuple[SourceOptions, ...], settings: Settings) -> None:
    promising = next((source.alias for source in sources if source.promised), None)
    if promising is not None and settings.overflow in ("shed", "shrink"):
        raise OptionError(
            f"option 'overflow': '{settings.overflow}' sheds or drops rows, and source '{promising}' makes key "
            "promises: the join could not tell a row that was shed from one that never comes. Set 'overflow' to "
            f"'spill' or 'fail', or remove the punctuations and constraints of '{promising}'"
        )
    given = [name for name in PROMISES[1:] if name.lower() in top]
    if given and not any(source.promised for source in sources):
        raise OptionError(
            f"option '{given[0]}' is given, but no source makes key promises: set 'source.<alias>.punctuation', "
            "'unique', 'clustered' or 'ordered'"
        )


def check_windows(sources: tuple[SourceOptions, ...]) -> None:
    """Event time is for all inputs or for none: the youngest row of a combination may be one of any."""
    timed = next((s.window for s in sources if s.window and not s.window.in_rows), None)
    for source in sources:
        at, late = f"source.{source.alias}.timestamp", f"source.{source.alias}.watermark"
        if timed is None and (source.timestamp or source.lateness is not None):
            raise OptionError(
                f"option '{at if source.timestamp else late}' is given, but there is no window in time: set 'window' "
                f"or 'source.{source.alias}.window' to a time such as '10 minutes'"
            )
        if timed is not None and source.timestamp is None:
            raise OptionError(
                f"option '{at}' is missing: option '{timed.option}' is a window in time, so every source needs the "
                "column that holds its event time"
            )
        if timed is not None and source.lateness is None:
            raise OptionError(
                f"option '{late}' is missing: set how far a row of '{source.alias}' may be behind the newest one, such "
                "as '1 minute'; '0 seconds' if its rows come in order. The join drops rows that are later than that"
            )


def check_overflow(settings: Settings, sources: tuple[SourceOptions, ...]) -> None:
    if settings.overflow == "shrink" and settings.memory_bytes is None:
        raise OptionError("option 'overflow': 'shrink' makes windows fit into memory: set option 'memory' too")
    bare = next((s.alias for s in sources if s.window is None), None)
    if settings.overflow == "shrink" and bare is not None:
        raise OptionError(
            f"option 'overflow': 'shrink' shortens windows, and source '{bare}' has none: set 'source.{bare}.window',"
            " or set 'overflow' to 'shed' or 'spill'"
        )
    if settings.min_recall is not None and settings.memory_bytes is not None:
        raise OptionError(
            "options 'minRecall' and 'memory' are both given: when memory is full, the join drops rows whatever the"
            " recall. Remove one of them; without 'minRecall', 'overflow' = 'spill' loses nothing"
        )


def check_scheduling(sources: tuple[SourceOptions, ...], settings: Settings) -> None:
    """Windows in rows count the order of arrival, which must not depend on how a join runs."""
    given = {"streamScheduling": settings.stream_scheduling, "tupleScheduling": settings.tuple_scheduling}
    forced = {name: kind for name, kind in given.items() if kind not in ("auto", "sequential")}
    counted = next((s.window for s in sources if s.window and s.window.in_rows), None)
    if counted is not None and forced:
        name, kind = next(iter(forced.items()))
        raise OptionError(
            f"options '{name}' = '{kind}' and '{counted.option}' cannot be combined: a window in rows counts arrivals, "
            f"which come side by side. Remove '{name}', or use a window in time"
        )
    if forced.get("tupleScheduling") and not any(source.promised for source in sources):
        raise OptionError(
            "option 'tupleScheduling' is 'value', but no source makes key promises, so no row is awaited: set "
            "'source.<alias>.punctuation', 'clustered' or 'ordered'"
        )
    if settings.quota_rows is not None and settings.stream_scheduling == "sequential" and not forced:
        raise OptionError(
            "option 'schedulingQuota' is the number of rows of a turn, and with 'streamScheduling' = 'sequential' "
            "there are none: remove one of them"
        )
