"""What `explain` says of partitions that a query has counted, against the rows that were there."""

import re
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest

from spark_mjoin.evidence import Taken
from spark_mjoin.explaining.partitions import observed
from spark_mjoin.state.layouts import EVEN, Hot, Layout, Split
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.traffic import Traffic
from tests.state.test_layouts import Given, hash_of

PARTITIONS = 8


@dataclass(frozen=True)
class Partition:
    """What is asked of a manifest."""

    traffic: Any
    taken: Taken


@pytest.mark.parametrize("layout", [EVEN, Split(EVEN, (Hot(hash_of(1), (8, 1), tuple(range(8))),))], ids=str)
def test_the_most_frequent_key_and_the_fullest_partition_are_as_they_were(layout: Layout) -> None:
    dice, routing = np.random.Generator(np.random.Philox(2)), Routing(PARTITIONS, layout=layout)
    keys = [dice.integers(100, 9000, 20_000), dice.integers(100, 9000, 5000)]
    keys[0][dice.random(20_000) < 0.25] = 1
    keys[1][:50] = 1
    found, there = [], np.zeros(PARTITIONS)
    for partition in range(PARTITIONS):
        traffic = Traffic.empty(2, "hash")
        for input, values in enumerate(keys):
            rows = Given(input, values.tolist(), list(range(values.size)))
            mine = rows.taken(routing.numbers_of(rows, partition))
            traffic.take(mine, layout.hot_keys)
            there[partition] += mine.count
        found.append(cast(Manifest, Partition(traffic.figures(), Taken((int(there[partition]), 0)))))
    fullest, frequent = observed(found, ["orders", "payments"])
    assert f"the fullest of 8 partitions had {there.max() / there.mean():.2f} times the mean" in fullest
    said = re.search(r"the most frequent key of orders had ([\d.]+)% of its rows", frequent)
    assert said is not None and float(said[1]) == pytest.approx(100 * (keys[0] == 1).mean(), abs=0.1)


def test_one_partition_is_nothing_to_speak_of() -> None:
    assert observed([cast(Manifest, Partition(None, Taken((5, 5))))], ["a", "b"]) == []
