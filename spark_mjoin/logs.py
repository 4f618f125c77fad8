"""What the package logs inside Spark's processes: warnings, or more where SPARK_MJOIN_LOG names a level, such as INFO.

Spark starts a Python process that plans the batches of a query, and others that run them. `logging` in the application
has no influence on these processes. Spark passes their standard error on to that of the driver's JVM or of the
executor's. So an environment variable of these processes sets the level.

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
