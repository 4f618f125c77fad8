"""The choice of a tree from what the engine has counted, and from what the user expects."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.inputs import attribute, batch
from benchmarks.paper.trees import Even
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver.costs import Costs, Model, expected_of
from spark_mjoin.driver.decompose import Circumstances, choose
from spark_mjoin.engine import arrival
from spark_mjoin.engine.feed import Piece
from spark_mjoin.mjoin.statistics import Statistics
from spark_mjoin.model import Expected
from spark_mjoin.state.operator import OperatorState
from tests.driver.estimates import chain, star

TABLE_3 = Costs(175.008e-9, 426.518e-9, 49.133e-9)
BATCHES = 20
# Rows of 0 and 1 meet rarely, and 2 has many partners in 1.
INFLATING = chain([10_000.0, 20.0], [40.0, 40.0, 200.0])
UNIQUE = star(4, 2_000.0, [100.0] * 4)


def counted(estimates: Even) -> tuple[Statistics, BatchCounts]:
    """Statistics of a join that has run for 20 seconds, a batch a second."""
    spec = estimates.spec
    state, counts = OperatorState.alone(spec), BatchCounts([0] * len(spec.inputs))
    for n in range(BATCHES):
        for i, own in enumerate(estimates.classes):
            rate = int(estimates.rates[i])
            rows = slice(n * rate, (n + 1) * rate)
            keys = {f"k{c}": attribute(rows.stop, int(estimates.values[c]), 10 * i + c)[rows] for c in own}
            arriving = batch({"id": np.arange(rows.start, rows.stop), **keys})
            for _ in arrival.results(state, arrival.arrive(state, i, Piece.whole(i, arriving), counts)):
                pass
    rows_now = [float(table.rows) for table in state.tables]
    return Statistics.of(spec, rows_now, counts.work().edges, estimates.rates), counts


@pytest.mark.parametrize(("estimates", "tree"), [(INFLATING, ((0, 1), 2)), (UNIQUE, (0, 1, 2, 3))])
def test_counts_lead_to_the_right_tree(estimates: Even, tree: object) -> None:
    statistics, counts = counted(estimates)
    choice = choose(
        estimates.spec, statistics, TABLE_3, Circumstances(horizon=20, current=tuple(range(len(estimates.classes))))
    )
    assert choice.tree == tree, choice.reason
    whole = Model(estimates.spec, statistics, [0.0] * len(statistics.rows), statistics.rows)
    done, expected = counts.work(), whole.tree(tuple(range(len(statistics.rows))))
    assert done.moves == expected.moves
    assert done.hashes == pytest.approx(expected.hashes, rel=0.1)
    assert done.comparisons == pytest.approx(expected.comparisons, rel=0.25)


def test_before_the_first_batch_the_options_decide() -> None:
    spec = INFLATING.spec
    expected = Expected((("s1", 40.0), ("s2", 40.0), ("s3", 200.0)), (("s1", "s2", 1e-4), ("s2", "s3", 0.05)))
    rates, given = expected_of(spec, expected)
    known = Statistics.of(spec, [0.0] * 3, rates=rates, given=given)
    assert choose(spec, known, TABLE_3, Circumstances(horizon=40)).tree == ((0, 1), 2)
    rates_alone = Statistics.of(spec, [0.0] * 3, rates=rates)  # as if keys were unique
    assert choose(spec, rates_alone, TABLE_3, Circumstances(horizon=40)).tree == (0, 1, 2)
    nothing = Statistics.of(spec, [0.0] * 3)
    assert choose(spec, nothing, TABLE_3, Circumstances(horizon=40)).tree == (0, 1, 2)
