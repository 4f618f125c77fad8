"""Joins streams of three kinds, all of which Spark reads: orders from its rate source, payments from JSON files with a
transformation before the join, and shipments from CSV files. Spark evaluates everything but the join itself.
"""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_mjoin
from spark_mjoin import Stream

spark = SparkSession.builder.master("local[2]").appName("any stream").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

with tempfile.TemporaryDirectory() as root:
    (Path(root) / "payments").mkdir()
    (Path(root) / "shipments").mkdir()
    for part in range(2):
        ids = range(part * 10, part * 10 + 10)
        paid = "".join(json.dumps({"order_id": i, "cents": 100 * i + 99}) + "\n" for i in ids)
        (Path(root) / "payments" / f"{part}.json").write_text(paid)
        sent = "".join(f"{i},{'post' if i % 2 else 'courier'}\n" for i in ids)
        (Path(root) / "shipments" / f"{part}.csv").write_text(sent)

    orders = spark.readStream.format("rate").option("rowsPerSecond", 50).load().where("value < 20")
    payments = spark.readStream.schema("order_id BIGINT, cents BIGINT").json(f"{root}/payments")
    shipments = spark.readStream.schema("order_id BIGINT, carrier STRING").csv(f"{root}/shipments")

    delivered = spark_mjoin.join(
        {
            "orders": orders.select(F.col("value").alias("id"), "timestamp"),
            "payments": Stream(payments.withColumn("amount", F.col("cents") / 100), unique="order_id"),
            "shipments": shipments,
        },
        """SELECT o.id, p.amount, initcap(s.carrier) AS carrier
           FROM orders o JOIN payments p  ON p.order_id = o.id
                         JOIN shipments s ON s.order_id = o.id
           WHERE p.amount > 1""",
        partitions=2,
    )
    query = (
        delivered.writeStream.format("memory")
        .queryName("delivered")
        .option("checkpointLocation", f"{root}/checkpoint")
        .start()
    )
    while spark.table("delivered").count() < 19 and query.isActive:  # order 0 cost 99 cents
        query.awaitTermination(1)
    spark.table("delivered").orderBy("id").show(5)
    print(f"{spark.table('delivered').count()} orders are paid and sent")
    query.stop()

spark.stop()
