"""The cost of another number of partitions is measured on a state that is what the table says it is."""

import time

import pytest

from benchmarks.rescale import SMALL, measure


@pytest.mark.parametrize("spills", [False, True], ids=["in memory", "on disk"])
def test_all_rows_are_taken_over_and_written_once(spills: bool) -> None:
    rows = 30 * SMALL
    same, other = measure(rows, (1, 3), spills, time.process_time)
    assert same.taken_over == 0 and other.taken_over == rows
    assert same.pending == 0.0 and (other.pending > 0) == spills
    assert 0 < same.written_bytes < other.written_bytes
