"""A batch of many partitions is planned in little time: what is read of each is little, and is read once.

In time of the processor, which other processes change less. The benchmark itself measures what a clock says.
"""

import time
from pathlib import Path

import pytest

from benchmarks.planning import KINDS, MOST_MS, measure

PARTITIONS = 40
NOISE = 3  # times as long as on a machine with nothing else to do


@pytest.mark.parametrize("kind", KINDS)
def test_the_driver_plans_in_time(tmp_path: Path, kind: str) -> None:
    found = list(measure(tmp_path, kind, PARTITIONS, batches=6, run=12, clock=time.process_time))
    assert min(times.planned for times in found) < NOISE * MOST_MS * PARTITIONS / 200
    assert [times.reported is None for times in found] == [True, False] * 3
