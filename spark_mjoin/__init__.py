"""A symmetric n-way streaming hash join as one Spark source: `spark.readStream.format("mjoin")`."""

from spark_mjoin.shim import enable, jar_path, metrics_of

__all__ = ["enable", "jar_path", "metrics_of"]
__version__ = "0.1.0"
