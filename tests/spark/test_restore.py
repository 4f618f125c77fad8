"""A restore while the application lives, without the jar; tests/jar/scenarios.py has the same with it."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.restoring import removed_in_rounds, restored_in_rounds


def oracle_checkpoint_and_state_are_restored(spark_session: SparkSession, tmp_path: Path) -> None:
    restored_in_rounds(spark_session, tmp_path)


def oracle_manifests_are_removed_and_the_batch_done_again(spark_session: SparkSession, tmp_path: Path) -> None:
    removed_in_rounds(spark_session, tmp_path)
