"""What all tests share: how hypothesis works here, and which Python Spark's workers run."""

import os
import sys

from hypothesis import HealthCheck, settings

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

settings.register_profile(
    "default",
    deadline=None,  # the first call of a kernel compiles it
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("default")
