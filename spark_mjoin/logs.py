"""What the package logs inside Spark's processes: warnings, or more where SPARK_MJOIN_LOG names a level, such as INFO.

Plans are made in a Python process that Spark starts for each query, and batches run in others: `logging` in the
application has no influence on them. What they write to standard error Spark passes on, to that of the driver's JVM or
of the executor's. So a variable in the environment in which these are started is the way to ask for more.

Imported by `reader`, which every one of these processes imports.
"""

from __future__ import annotations

import logging
import os

VARIABLE = "SPARK_MJOIN_LOG"


def follow_environment() -> None:
    """Log from the level on that the variable names; to standard error, unless the process logs somewhere already."""
    level = os.environ.get(VARIABLE, "").strip().upper()
    if not level:
        return
    log = logging.getLogger("spark_mjoin")
    known = logging.getLevelNamesMapping()
    if level not in known:
        log.warning("%s is '%s', which is no level of logging; INFO shows changes of plan", VARIABLE, level)
        return
    log.setLevel(known[level])
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        log.addHandler(handler)
