"""Makes PySpark find `format("mjoin")` by itself: it looks for `DefaultSource` in every top-level module `pyspark_*`.

Imported whenever any Python data source is looked up, so it imports nothing heavy.
"""

from spark_mjoin.doors.datasource import MJoinDataSource as DefaultSource

__all__ = ["DefaultSource"]
