"""What follows from the figures of buckets, against loops over buckets; and for many partitions at once."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.state.buckets import BUCKETS, main_inputs
from spark_mjoin.state.groups import Groups
from tests.examples import examples
from tests.harness import reader, scripted

CHAIN = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.l = c.l"  # c does not have the main class
ROWS = {alias: [pa.table({"k": [1], "l": [1]})] for alias in "abc"}
SPEC = reader({**scripted(ROWS, CHAIN), "stateLocation": "unused"}).session.spec
MAIN = main_inputs(SPEC)
INPUTS = range(3)


def some(seed: int) -> Groups:
    random = np.random.default_rng(seed)
    groups = Groups.empty(SPEC)
    for numbers in vars(groups).values():
        if isinstance(numbers, np.ndarray):
            numbers[:] = random.integers(0, 30, numbers.shape) * (random.random(numbers.shape) < random.random())
    groups.disk[:] *= random.choice([0, 1], 3)[:, None]
    return groups


def per_bucket(rows: Any, input: int, bucket: int) -> float:
    return float(rows[input, bucket] if input in MAIN else rows[input].sum())


@given(st.integers(0, 2**32))
@examples(100)
def oracle_figures_of_a_partition_bucket_by_bucket(seed: int) -> None:
    groups, pending, possible = some(seed), list[float](), list[float]()
    rows = groups.resident + groups.disk
    whole = groups.results.sum() / max(groups.chances.sum(), 1)
    for b in range(BUCKETS):
        possible.append(math.prod(per_bucket(rows, i, b) for i in INPUTS))
        left = any(groups.disk[i, b] if i in MAIN else groups.disk[i].sum() for i in INPUTS)
        debt = bool(left and groups.waiting[:, b].any() and possible[b])
        assert groups.in_debt()[b] == debt
        own = groups.results[b] / max(groups.chances[b], 1) if groups.results[b] >= 16 else whole
        pending.append(own * max(possible[b] - groups.chances[b], 0) if debt else 0.0)
    assert np.allclose(groups.possible(), possible) and np.allclose(groups.pending()[1], pending)
    for i in INPUTS:
        others = [j for j in INPUTS if j != i]
        met = [math.prod(per_bucket(groups.resident, j, b) for j in others) for b in range(BUCKETS)]
        there = [sum(per_bucket(groups.resident, j, b) for j in others) for b in range(BUCKETS)]
        if i not in MAIN:
            met, there = [float(np.mean(met))] * BUCKETS, [float(np.mean(there))] * BUCKETS
        new = [min(groups.turnover[i, b] / max(there[b], 1), 1) for b in range(BUCKETS)]
        assert np.allclose(groups.unseen(i), [groups.disk[i, b] * met[b] * new[b] for b in range(BUCKETS)])
        assert groups.worth(i) == groups.completed[i] / max(groups.recent[i].sum(), 1)


@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=4))
@examples(60)
def oracle_partitions_that_are_stacked_say_the_same_as_each_alone(seeds: list[int]) -> None:
    alone = [some(seed) for seed in seeds]
    together = Groups.stacked(SPEC, [groups.figures() for groups in alone])
    for number, groups in enumerate(alone):
        for mine, all_of in zip(groups.pending(), together.pending(), strict=True):
            assert (all_of[number] == mine).all()
        assert (together.selectivity()[number] == groups.selectivity()).all()
        for i in INPUTS:
            assert (together.unseen(i)[number] == groups.unseen(i)).all()
            assert together.worth(i)[number] == groups.worth(i)
        assert together.all_results[number] == groups.all_results
