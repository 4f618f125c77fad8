"""A symmetric n-way streaming hash join for Spark: `spark_mjoin.join` and `spark.readStream.format("mjoin")`."""

from spark_mjoin.doors.shim import enable, jar_path, metrics_of
from spark_mjoin.doors.streams import Stream, join, load
from spark_mjoin.explaining import advise, explain

__all__ = ["Stream", "advise", "enable", "explain", "jar_path", "join", "load", "metrics_of"]
__version__ = "0.1.0"
