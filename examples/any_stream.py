"""Joins two streams and a table, all of which Spark reads: orders from its rate source, payments from JSON files with a
transformation before the join, and products, a table that is loaded once. Spark evaluates everything but the join of
the streams.
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
    for part in range(2):
        ids = range(part * 10, part * 10 + 10)
        paid = "".join(json.dumps({"order_id": i, "cents": 100 * i + 99}) + "\n" for i in ids)
        (Path(root) / "payments" / f"{part}.json").write_text(paid)

    orders = spark.readStream.format("rate").option("rowsPerSecond", 50).load().where("value < 20")
    orders = orders.selectExpr("value AS id", "value % 3 AS product", "timestamp")
    payments = spark.readStream.schema("order_id BIGINT, cents BIGINT").json(f"{root}/payments")
    products = spark.createDataFrame([(0, "apple"), (1, "pear"), (2, "plum")], "id BIGINT, name STRING")

    paid_for = spark_mjoin.join(
        {
            "orders": orders,
            "payments": Stream(payments.withColumn("amount", F.col("cents") / 100), unique="order_id"),
            "products": products,
        },
        """SELECT o.id, p.amount, initcap(t.name) AS product
           FROM orders o JOIN payments p ON p.order_id = o.id
                         JOIN products t ON t.id = o.product
           WHERE p.amount > 1""",
        partitions=2,
    )
    query = (
        paid_for.writeStream.format("memory")
        .queryName("paid_for")
        .option("checkpointLocation", f"{root}/checkpoint")
        .start()
    )
    while spark.table("paid_for").count() < 19 and query.isActive:  # order 0 cost 99 cents
        query.awaitTermination(1)
    spark.table("paid_for").orderBy("id").show(5)
    print(f"{spark.table('paid_for').count()} orders are paid")
    query.stop()

spark.stop()
