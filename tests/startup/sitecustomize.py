"""In every Python process that the tests start: pyspark from files, as Spark's zip of it is compiled each time."""

import contextlib
import sys

with contextlib.suppress(ImportError):  # a process that has nothing of ours
    from spark_mjoin.doors.planner_process import without_zips

    sys.path[:] = without_zips(sys.path)
