"""Adaptive flushing: what it lets go, and what it has to go by."""

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import arrival
from spark_mjoin.engine.feed import Piece
from spark_mjoin.flush.adaptive import Adaptive, expected_results, oldest_rows
from spark_mjoin.flush.protocol import Residents
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.residency import EVERY

SCHEMA = pa.schema([("k", pa.int64())])
KEYS = 200


def three_way() -> OperatorState:
    options = Options.parse(
        {
            "query": "SELECT s1.k FROM s1, s2, s3 WHERE s1.k = s2.k AND s2.k = s3.k",
            **{f"source.s{i}.format": "arrow" for i in (1, 2, 3)},
        }
    )
    return OperatorState.alone(plan_join(options, [SCHEMA] * 3), tracked=True)


def arrive(state: OperatorState, input: int, keys: np.ndarray) -> int:
    """Insert rows one small batch after the other; the number of results."""
    counts, found = BatchCounts([0, 0, 0]), 0
    for part in np.array_split(keys, max(1, keys.size // 10)):
        batch = pa.RecordBatch.from_pydict({"k": part}, schema=SCHEMA)
        combinations = arrival.arrive(state, input, Piece.whole(input, batch), counts)
        found += sum(rows.num_rows for rows in arrival.results(state, iter(combinations)))
    return found


def flush(state: OperatorState, share: float) -> list[int]:
    """Let adaptive flushing free a share of the memory; the buckets that it named."""
    residents = Residents.of(state)
    victims = Adaptive().victims([residents], int(residents.bytes().sum() * share))
    state.saved = [table.rows for table in state.tables]  # as if they were in segments
    state.evict(victims)
    return [victim.bucket for victim in victims]


def test_results_from_before_the_first_flush_say_nothing_about_age() -> None:
    state = three_way()
    keys = np.arange(KEYS)
    arrive(state, 0, keys)  # s1 is complete before the others begin
    arrive(state, 1, keys)
    assert arrive(state, 2, keys) == KEYS
    assert EVERY not in flush(state, 0.2)
    assert EVERY not in flush(state, 0.05)  # a second round of the same flush: still no reason to go by age
    assert state.tables[0].rows > KEYS / 2


def test_that_the_oldest_rows_are_all_of_an_input_counts_as_the_loss_of_all_results() -> None:
    state = three_way()
    keys = np.arange(KEYS)
    arrive(state, 0, keys)  # s1 ends here: a row of it is in every result, and it is small beside the others
    for input in (1, 2):
        arrive(state, input, np.tile(keys, 5))
    flush(state, 0.2)
    for input in (1, 2):
        arrive(state, input, np.tile(keys, 2))
    residents = Residents.of(state)
    whole_input = int(residents.bytes()[0].sum())
    assert whole_input < 0.2 * residents.bytes().sum()
    victims, lost = oldest_rows([residents], whole_input)
    assert victims and lost == pytest.approx(expected_results(residents).sum(), rel=0.01)


def test_the_oldest_rows_go_when_results_are_of_young_ones() -> None:
    state = three_way()
    buckets = []
    for low in range(0, 6 * KEYS, KEYS):  # keys ascend in all inputs together
        for start in range(low, low + KEYS, 20):
            for input in range(3):
                arrive(state, input, np.arange(start, start + 20))
        buckets.append(flush(state, 0.2))
    assert set(buckets[-1]) == {EVERY}
    assert all(table.arrived.min() > 0 for table in state.tables)
