"""A symmetric n-way streaming hash join as one Spark source: `spark.readStream.format("mjoin")`."""

__version__ = "0.1.0"
