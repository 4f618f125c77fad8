"""Three streams, one join: orders that have been paid and shipped."""

import os
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
with tempfile.TemporaryDirectory() as work:
    stream = spark.readStream.format("mjoin").option("on", "order_id").option("stateLocation", f"{work}/state")
    rows = {
        "orders": pa.table({"order_id": [1, 2, 3], "customer": ["Ada", "Ben", "Cleo"]}),
        "payments": pa.table({"order_id": [3, 1], "amount": [12.5, 40.0]}),
        "shipments": pa.table({"order_id": [2, 3, 1], "carrier": ["rail", "road", "air"]}),
    }
    for name, table in rows.items():
        os.mkdir(f"{work}/{name}")
        pq.write_table(table, f"{work}/{name}/1.parquet")
        stream = stream.option(f"source.{name}.format", "parquet").option(f"source.{name}.path", f"{work}/{name}")
    out = stream.load().writeStream.format("memory").queryName("done").trigger(availableNow=True)
    out.option("checkpointLocation", f"{work}/checkpoint").start().awaitTermination()
    spark.table("done").orderBy("order_id").show()
    spark.stop()
