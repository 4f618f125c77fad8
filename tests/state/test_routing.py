"""Slots: every key has one, partitions own ranges of them, and rows of one partition are spread as rows of all are."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.config import Options
from spark_mjoin.errors import OptionError
from spark_mjoin.model import SLOTS, Array
from spark_mjoin.state import buckets
from spark_mjoin.state.columns import hash_array, rows_in
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import Slots, of_hashes, of_numbers

KEYS = {
    "counted": pa.array(np.arange(1 << 20)),
    "multiples": pa.array(np.arange(1 << 20) * 4096),
    "times": pa.array(1_700_000_000_000_000 + np.arange(1 << 20) * 60_000_000),
    "words": pa.array([f"customer-{n:07}" for n in range(1 << 18)], pa.large_string()).cast(pa.large_binary()),
}


@given(st.integers(1, 300) | st.integers(1, SLOTS))
def test_partitions_divide_the_slots_evenly(partitions: int) -> None:
    routing = Routing(partitions)
    owned = [routing.slots(partition) for partition in range(partitions)]
    assert (sum(s.owned.astype(int) for s in owned) == 1).all()
    assert all(one.first + one.size == other.first for one, other in itertools.pairwise(owned)), "they are ranges"
    assert max(s.size for s in owned) - min(s.size for s in owned) <= 1
    assert all(routing.holds(partition).common(s) == s.size for partition, s in enumerate(owned))
    assert all(s.is_all == (partitions == 1) for s in owned)


@given(st.integers(0, SLOTS - 1), st.integers(0, SLOTS))
def test_what_is_selected_is_what_is_in_the_slots(first: int, size: int) -> None:
    slots, keys = Slots.between(first, min(SLOTS, first + size)), pa.array(np.arange(3000))
    assert np.array_equal(rows_in(slots, keys), np.flatnonzero(slots.have(of_hashes(hash_array(keys)))))
    assert slots.have(of_numbers(np.arange(SLOTS, 2 * SLOTS))).sum() == slots.size


def spread(found: Array, kinds: int) -> float:
    """Chi-square per degree of freedom: about 1 where the kinds come by chance, each as often as the others."""
    counted, expected = np.bincount(found, minlength=kinds), found.size / kinds
    return float(((counted - expected) ** 2).sum() / expected / (kinds - 1))


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_slots_buckets_and_indexes_do_not_depend_on_each_other(keys: pa.Array) -> None:
    """Else the rows of a partition would be in few buckets, or in a part of their index."""
    hashes = hash_array(keys)
    assert 0.9 < spread(of_hashes(hashes), SLOTS) < 1.1
    for partitions in (2, 3, 4, 64):
        for slots in (Routing(partitions).slots(0), Routing(partitions).slots(partitions - 1)):
            mine = hashes[rows_in(slots, keys)]
            in_index = (mine >> np.uint64(64 - 10)).astype(np.int64)
            assert spread(buckets.of_hashes(mine), buckets.BUCKETS) < 2
            assert spread(buckets.digits_of_hashes(mine, 0), buckets.DIGITS) < 5
            assert 0.7 < spread(in_index, 1 << 10) < 1.3
            assert 0.7 < spread(buckets.of_hashes(mine).astype(np.int64) * 16 + (in_index >> 6), 1 << 10) < 1.3


def test_a_mask_over_hashes_leaves_every_row_in_some_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MJOIN_HASH_BITS", "1")
    keys = pa.array(np.arange(100))
    assert sum(rows_in(Routing(3).slots(p), keys).size for p in range(3)) == 100


def test_there_are_no_more_partitions_than_slots() -> None:
    given = {"query": "SELECT a.k FROM a JOIN b ON a.k = b.k", "source.a.format": "arrow", "source.b.format": "arrow"}
    assert Options.parse({**given, "partitions": "4096"}).settings.partitions == SLOTS
    with pytest.raises(OptionError, match="option 'partitions': 4097 is more than 4096, the slots"):
        Options.parse({**given, "partitions": "4097"})
    assert Routing(1).slots(0).is_all


def test_slots_are_what_states_on_disk_were_divided_by() -> None:
    """Another slot for a key is another state format."""
    words, strings = pa.array([0, 1, -1]), pa.array([b"", b"key"], pa.large_binary())
    assert of_hashes(hash_array(words)).tolist() == [0, 2786, 2839]
    assert of_hashes(hash_array(strings)).tolist() == [0, 4021]
