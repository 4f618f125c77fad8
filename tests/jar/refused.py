"""On a Spark that the jar is not made for: `python -m tests.jar.refused`, run by `make test-matrix`.

It is refused in words, and no other format notices it. Needs nothing but that pyspark.
"""

from pyspark.sql import SparkSession

import spark_mjoin

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", spark_mjoin.jar_path())
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "OFF")
    .getOrCreate()
)
assert not spark.version.startswith(("4.2.", "4.3.")), f"Spark {spark.version} is one that the jar is made for"
assert spark.readStream.format("rate").load().schema.names == ["timestamp", "value"]
attempts = {
    "readStream": lambda: spark.readStream.format("mjoin").load(),
    "read": lambda: spark.read.format("mjoin").load(),
    "enable": lambda: spark_mjoin.enable(spark),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except Exception as e:  # noqa: BLE001 - Java's and ours
        assert f"works with Spark 4.2 and 4.3, and this is Spark {spark.version}" in str(e), e
    else:
        raise AssertionError(f"{name} accepted Spark {spark.version}")
print(f"Spark {spark.version} is refused")
spark.stop()
