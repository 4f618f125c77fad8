"""What partitions count of keys: no frequent key is missed, counts are exact from then on, and all fade alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.state import traffic
from spark_mjoin.state.manifest import TrafficFigures
from spark_mjoin.state.slots import of_hashes
from spark_mjoin.state.traffic import KEPT, LEAST, SAMPLED, SHARE, Traffic, quantiles
from tests.examples import examples
from tests.state.test_layouts import SIGN, Given, hash_of

SOME = st.lists(st.integers(0, 30), min_size=1, max_size=60)
DICE = np.random.Generator(np.random.Philox(3))


def keys(values: list[int], input: int = 0) -> Given:
    return Given(input, values, [0] * len(values))


stretches = st.builds(lambda some, often, times: some + [often] * times, SOME, st.integers(0, 5), st.integers(0, 60))


@given(st.lists(stretches, min_size=1, max_size=6))
@examples(150)
def oracle_frequent_keys_of_a_stretch_are_found_and_counted(given_: list[list[int]]) -> None:
    found, noticed, expected = Traffic.empty(1, "hash"), set[int](), dict[int, int]()
    for stretch in given_:
        found.take(keys(stretch))
        values, counts = np.unique(stretch, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            if count >= LEAST and count * SHARE >= len(stretch):
                noticed.add(value)
            if value in noticed:
                expected[value] = expected.get(value, 0) + count
    assert {key: int(of.rows[0]) for key, of in found.frequent.items()} == {hash_of(v): n for v, n in expected.items()}
    assert all(of.order == value + SIGN for value in expected for of in [found.frequent[hash_of(value)]])
    assert found.rows.tolist() == [sum(map(len, given_))]


def test_keys_that_are_watched_are_counted_however_few_they_are() -> None:
    found = Traffic.empty(2, "hash")
    found.take(keys(list(range(1000)), 1), (hash_of(7),))
    assert {key: of.rows.tolist() for key, of in found.frequent.items()} == {hash_of(7): [0, 1]}


def test_figures_fade_and_keys_are_forgotten() -> None:
    found = Traffic.empty(1, "rate")
    found.take(keys([5] * 30 + [6]))
    for _ in range(3):
        found.fade()
    assert found.rows.tolist() == [31 * KEPT**3]
    assert found.frequent[hash_of(5)].rows.tolist() == [30 * KEPT**3]
    assert found.histogram is not None
    assert found.histogram.sum() == pytest.approx(31 * KEPT**3)
    for _ in range(12):
        found.fade()
    assert not found.frequent


def test_of_many_keys_those_with_the_most_rows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MOST", 3)
    found = Traffic.empty(1, "hash")
    found.take(keys([n for n in range(6) for _ in range(n + 20)]))
    found.fade()
    assert set(found.frequent) == {hash_of(n) for n in (3, 4, 5)}


def test_the_sample_divides_rows_into_equal_parts_old_ones_and_new_ones() -> None:
    found = Traffic.empty(1, "range")
    for _ in range(12):
        found.take(keys(DICE.integers(0, 1000, 5000).tolist()))
        found.fade()
    (sampled,) = found.sampled
    assert sampled.size == SAMPLED
    assert np.quantile((sampled - np.uint64(SIGN)).astype(float), [0.25, 0.5, 0.75]) == pytest.approx(
        [250, 500, 750], abs=60
    )
    for _ in range(12):  # the keys go on
        found.take(keys((5000 + DICE.integers(0, 1000, 5000)).tolist()))
        found.fade()
    (sampled,) = found.sampled
    assert (sampled - np.uint64(SIGN) >= 5000).mean() > 0.9


@pytest.mark.parametrize("scheme", ["hash", "rate", "range"])
def test_figures_are_all_of_it(scheme: traffic.Scheme) -> None:
    found = Traffic.empty(2, scheme)
    for input in range(2):
        found.take(keys([*DICE.integers(0, 9, 300).tolist(), *[7] * 100], input))
    found.fade()
    figures = found.figures()
    assert isinstance(figures, TrafficFigures)
    again = Traffic.of(figures)
    assert again.figures() == figures
    again.take(keys([7, 7, 1] * 20))
    found.take(keys([7, 7, 1] * 20))
    again.fade()
    found.fade()
    assert again.figures() == found.figures(), "a state that is loaded goes on as one that was kept"


def test_quantiles_weigh_keys() -> None:
    orders = np.array([10, 20, 30], np.uint64)
    assert quantiles(orders, np.array([8.0, 1.0, 1.0]), 10).tolist() == [10, 10, 20]


def test_small_stretches_cost_little_and_name_no_keys() -> None:
    """A key that is twice in a row of 32 is not frequent."""
    found = Traffic.empty(1, "hash")
    for start in range(0, 20_000, 16):
        found.take(keys([*range(start, start + 16), *range(start, start + 16)]))
    assert not found.frequent


def test_a_partition_with_few_slots_looks_at_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows have few slots, but as many cells of the histogram as those of all."""
    values = [value for value in range(400_000) if of_hashes(np.array([hash_of(value)], np.uint64))[0] < 4][:300]
    found, looked = Traffic.empty(1, "hash"), []
    unique = np.unique
    monkeypatch.setattr(np, "unique", lambda some, **more: (looked.append(some.size), unique(some, **more))[1])
    found.take(keys(values * 30 + [values[0]] * 1000))
    assert set(found.frequent) == {hash_of(values[0])}
    assert 1030 <= sum(looked) < 1300
