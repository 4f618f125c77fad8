"""A symmetric n-way streaming hash join as one Spark source: `spark.readStream.format("mjoin")`."""

from spark_mjoin.doors.shim import enable, jar_path, metrics_of
from spark_mjoin.explaining import advise, explain

__all__ = ["advise", "enable", "explain", "jar_path", "metrics_of"]
__version__ = "0.1.0"
