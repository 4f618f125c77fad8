"""Windows in rows give nearly the same results however rows are cut into micro-batches, and at uneven rates."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import task
from tests.harness import run, scripted

QUERY = "SELECT a.n AS an, b.n AS bn FROM a JOIN b ON a.k = b.k"


def results(window: int, a_rows: int, b_rows: int, batches: int, in_step_keys: bool, partitions: int = 1) -> int:
    """How many there are when the same rows come in so many micro-batches."""

    def script(rows: int, seed: int) -> list[pa.Table]:
        random = np.random.default_rng(seed)
        spread = random.integers(0, 2 * window if in_step_keys else 50, rows)
        keys = spread + (np.arange(rows) * a_rows // rows if in_step_keys else 0)  # or alike over the whole stream
        table = pa.table({"k": keys, "n": np.arange(rows)})
        cuts = [rows * b // batches for b in range(batches + 1)]
        return [table.slice(low, high - low) for low, high in pairwise(cuts)]

    task._CACHE.clear()
    scripts = {"a": script(a_rows, 1), "b": script(b_rows, 2)}
    options = scripted(scripts, QUERY, window=f"{window} rows", partitions=str(partitions))
    with tempfile.TemporaryDirectory() as state:
        return sum(table.num_rows for table in run(options, Path(state)))


@pytest.mark.parametrize("in_step_keys", [False, True], ids=["any keys", "keys in step"])
@pytest.mark.parametrize(("a_rows", "b_rows"), [(600, 600), (600, 150)], ids=["even", "uneven"])
@pytest.mark.parametrize("window", [40, 100])
def test_results_do_not_depend_on_the_size_of_micro_batches(
    window: int, a_rows: int, b_rows: int, in_step_keys: bool
) -> None:
    one_by_one = results(window, a_rows, b_rows, b_rows, in_step_keys)
    assert one_by_one > 100
    for batches in (60, 6, 1):
        found = results(window, a_rows, b_rows, batches, in_step_keys)
        assert abs(found - one_by_one) <= 0.02 * one_by_one, (batches, found, one_by_one)
    assert results(window, a_rows, b_rows, 6, in_step_keys, partitions=3) == results(
        window, a_rows, b_rows, 6, in_step_keys
    )
