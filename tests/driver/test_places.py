"""Where partitions run: evenly, as long as possible where they were, and where most of their rows are."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.driver.places import AHEAD, SLOWLY, Places, crossing

HOSTS = ("h1", "h2", "h3")
EXECUTORS = st.dictionaries(st.sampled_from([f"e{n}" for n in range(7)]), st.sampled_from(HOSTS), min_size=1)
BYTES = st.dictionaries(st.sampled_from(HOSTS), st.integers(0, 10**9).map(float))


def even(at: Sequence[str], executors: Mapping[str, str]) -> bool:
    count = Counter(at)
    return max(count.values()) - min(count[name] for name in executors) <= 1


def local(came: Sequence[Mapping[str, float]], at: Sequence[str], executors: Mapping[str, str]) -> float:
    return sum(by_host.get(executors[name], 0.0) for by_host, name in zip(came, at, strict=True))


@given(st.integers(1, 20), st.lists(EXECUTORS, min_size=1, max_size=4), st.data())
def test_partitions_are_spread_evenly_and_stay(
    partitions: int, rounds: list[dict[str, str]], data: st.DataObject
) -> None:
    places, before = Places(), None
    for executors in rounds:
        came = data.draw(st.lists(BYTES, min_size=partitions, max_size=partitions))
        places.measure(came)
        at = places.assign(executors, [1e18] * partitions)  # their state is so large that nothing is worth a move
        assert len(at) == partitions
        assert even(at, executors)
        if before is not None and even(before, executors) and set(before) <= set(executors):
            assert at == before, "nothing has to move"
        before = at


@given(st.integers(2, 20), EXECUTORS, st.data())
def test_moves_save_bytes_and_few_happen_at_once(
    partitions: int, executors: dict[str, str], data: st.DataObject
) -> None:
    places = Places()
    before = places.assign(executors, [0] * partitions)
    came = data.draw(st.lists(BYTES, min_size=partitions, max_size=partitions))
    places.measure(came)
    after = places.assign(executors, [0] * partitions)
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    assert even(after, executors)
    assert moved <= 2 * -(-partitions // SLOWLY)
    if moved:
        assert local(came, after, executors) > local(came, before, executors)


def test_partitions_end_up_where_their_rows_are() -> None:
    """Keys of each partition are at one host, as those of a region; at first the partitions are anywhere."""
    executors = {"e1": "h1", "e2": "h2"}
    came = [{HOSTS[p // 8]: 1e6} for p in range(16)]
    places = Places()
    assert local(came, places.assign(executors, [0] * 16), executors) == 8e6
    for _ in range(8):
        places.measure(came)
        at = places.assign(executors, [1e6] * 16)
    assert local(came, at, executors) == 16e6


def test_new_partitions_begin_where_their_rows_are() -> None:
    places = Places()
    places.measure([{HOSTS[1 - p // 2]: 1e6} for p in range(4)])
    assert places.assign({"e1": "h1", "e2": "h2"}, [0] * 4) == ["e2", "e2", "e1", "e1"]


@pytest.mark.parametrize(("state_bytes", "moves"), [(1e6 * AHEAD * 0.8, True), (1e6 * AHEAD * 1.2, False)])
def test_a_large_state_stays(state_bytes: float, moves: bool) -> None:
    """Two that would change places save two megabytes in each batch."""
    executors, places = {"e1": "h1", "e2": "h2"}, Places()
    before = places.assign(executors, [0, 0])
    places.measure([{"h2": 1e6}, {"h1": 1e6}])
    assert (places.assign(executors, [state_bytes, state_bytes]) != before) == moves


def test_rows_that_come_from_everywhere_move_nothing() -> None:
    executors, places = {f"e{n}": HOSTS[n % 3] for n in range(6)}, Places()
    before = places.assign(executors, [0] * 24)
    for batch in range(10):
        noise = [
            {host: 1e6 * (1 + 0.02 * ((p * 7 + n + batch) % 3)) for n, host in enumerate(HOSTS)} for p in range(24)
        ]
        places.measure(noise)
        assert places.assign(executors, [0] * 24) == before


def test_a_batch_without_rows_says_nothing() -> None:
    places = Places()
    places.measure([{}, {}])
    assert not places.is_informed
    assert places.assign({}, [0, 0]) == [], "the driver is the only executor"


@pytest.mark.parametrize(
    ("executors", "hosts", "part"),
    [
        ({"e1": "h1"}, (), 0.0),
        ({"e1": "h1", "e2": "h1"}, (), 0.0),
        ({"e1": "h1", "e2": "h2"}, (), 0.5),
        ({"e1": "h1", "e2": "h2"}, ("h1",), 0.5),
        ({"e1": "h1", "e2": "h1", "e3": "h2"}, (), 1 - (4 + 1) / 9),
        ({"e1": "h1", "e2": "h1", "e3": "h2"}, ("h1",), 1 / 3),
        ({"e1": "h1", "e2": "h2"}, ("h3",), 1.0),
        ({"e1": "h1", "e2": "h2"}, ("h3", "h1"), 0.75),
    ],
)
def test_what_crosses_the_network_if_keys_are_everywhere(
    executors: dict[str, str], hosts: tuple[str, ...], part: float
) -> None:
    assert crossing(executors, hosts) == pytest.approx(part)
