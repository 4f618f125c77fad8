"""How many cases generated tests try.

`make test` tries a part of what a test asks for, new ones in every run; `make fuzz` tries many times as much, which
takes a while. SPARK_MJOIN_EXAMPLES is the factor.
"""

import os

from hypothesis import settings

FACTOR = float(os.environ.get("SPARK_MJOIN_EXAMPLES", "0.3"))
LEAST = 10


def examples(count: int) -> settings:
    """A decorator like hypothesis' settings(max_examples=count)."""
    return settings(max_examples=max(min(count, LEAST), round(FACTOR * count)))
