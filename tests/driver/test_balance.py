"""Which layout is chosen by what was counted: hot keys, ranges, slots by rates; when it changes, and when not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest

from spark_mjoin.driver import balance
from spark_mjoin.driver.balance.bases import by_rates, cut, shipped, telling, typical
from spark_mjoin.driver.balance.hot_keys import shares_of
from spark_mjoin.driver.balance.rules import CALM, LEAST_ROWS, SKEWED, STAY
from spark_mjoin.driver.balance.seen import Seen
from spark_mjoin.driver.loading import load
from spark_mjoin.errors import OptionError
from spark_mjoin.model import SLOTS, Array, JoinSpec, Scheme, Settings
from spark_mjoin.state.layouts import EVEN, Assigned, Hot, Ranges, Split
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.traffic import KEPT, Traffic
from tests.harness import scripted
from tests.state.test_layouts import SIGN, Given, hash_of

QUERY = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
PARTITIONS = 16


@dataclass(frozen=True)
class Partition:
    """What is asked of a manifest."""

    traffic: Any
    rows_held: tuple[int, ...]


def join(**options: str) -> tuple[JoinSpec, Settings]:
    import pyarrow as pa

    empty = pa.table({"k": pa.array([], pa.int64()), "ts": pa.array([], pa.timestamp("us", "UTC"))})
    given = scripted({alias: [empty] for alias in "abc"}, QUERY, partitions=str(PARTITIONS), **options)
    return load(given)


def counted(routing: Routing, scheme: Scheme, batches: Sequence[Sequence[Array]], held: int = 0) -> list[Manifest]:
    """What the partitions have counted after some batches of keys of each input."""
    found = [Traffic.empty(len(batches[0]), scheme) for _ in range(routing.partitions)]
    for batch in batches:
        for input, values in enumerate(batch):
            rows = Given(input, values.tolist(), list(range(values.size)))
            for partition, traffic in enumerate(found):
                mine = rows.taken(routing.numbers_of(rows, partition))
                traffic.take(mine, routing.layout.hot_keys)
        for traffic in found:
            traffic.fade()
    return [cast(Manifest, Partition(of.figures(), (held // routing.partitions,))) for of in found]


def loads(routing: Routing, batch: Sequence[Array]) -> Array:
    """Rows of each partition, of all inputs."""
    out = np.zeros(routing.partitions)
    for input, values in enumerate(batch):
        rows = Given(input, values.tolist(), list(range(values.size)))
        out += [routing.numbers_of(rows, partition).size for partition in range(routing.partitions)]
    return out


def zipf(rows: int, part: float, hot: int = 1, seed: int = 5) -> Array:
    """Keys of which one has a part of all rows, and the others are Zipf's."""
    dice = np.random.Generator(np.random.Philox(seed))
    found = 100 + np.minimum(dice.zipf(1.1, rows), 10**6)
    found[dice.random(rows) < part] = hot
    return found


def uniform(rows: int, seed: int) -> Array:
    return np.random.Generator(np.random.Philox(seed)).integers(0, 5000, rows)


def wanted(
    found: tuple[JoinSpec, Settings], before: Routing, version: int, manifests: Callable[[], Sequence[Manifest]]
) -> Routing:
    return balance.wanted(*found, before, version, manifests)[0]


# --- hot keys --------------------------------------------------------------------------------------------------------


def test_a_key_with_30_percent_of_a_stream_does_not_slow_a_partition_down() -> None:
    found, even = join(), Routing(PARTITIONS)
    batch = [zipf(20_000, 0.3), uniform(4000, 1), uniform(4000, 2)]
    before = loads(even, batch)
    assert before.max() > 3 * before.mean(), "it does, as long as nothing is done about it"
    routing, why = balance.wanted(*found, even, 9, lambda: counted(even, "hash", [batch] * 4))
    assert isinstance(routing.layout, Split) and hash_of(1) in routing.layout.hot_keys
    assert "of all rows: the slowest partition has" in why
    after = loads(routing, batch)
    assert after.max() < 1.5 * before.mean()
    assert after.sum() < 1.02 * before.sum(), "few rows are copied"


def test_a_hot_key_stays_split_until_it_cools_down() -> None:
    found, even = join(), Routing(PARTITIONS)
    hot = [zipf(20_000, 0.3), uniform(4000, 1), uniform(4000, 2)]
    split = wanted(found, even, 9, lambda: counted(even, "hash", [hot] * 4))
    split = replace(split, since=10)
    again = wanted(found, split, 20, lambda: counted(split, "hash", [hot] * 8))
    assert again.layout == split.layout, "it would be split in the same way"
    cold = [uniform(20_000, 3), uniform(4000, 1), uniform(4000, 2)]
    routing, why = balance.wanted(*found, split, 40, lambda: counted(split, "hash", [*[hot] * 4, *[cold] * 16]))
    assert routing.layout == EVEN and "not hot any more" in why


def test_between_calm_and_skewed_nothing_changes_either_way() -> None:
    found, even = join(), Routing(PARTITIONS)
    part = (CALM + SKEWED) / 2
    batch = [uniform(30_000, 3), uniform(30_000, 4), uniform(100, 2)]
    keys = Given(0, list(range(5000)), [0] * 5000)
    home = int(even.divide(keys).targets[1])
    mean = 60_100 / PARTITIONS
    own = loads(even, batch)[home]
    extra = np.full(round((part * mean - own) / (1 - part / PARTITIONS)), 1)
    batch[0] = np.concatenate([batch[0], extra])
    assert wanted(found, even, 9, lambda: counted(even, "hash", [batch] * 6)).layout == EVEN
    hot = [np.concatenate([batch[0], np.full(20_000, 1)]), *batch[1:]]
    split = replace(wanted(found, even, 9, lambda: counted(even, "hash", [hot] * 6)), since=10)
    assert split.layout != EVEN
    assert wanted(found, split, 30, lambda: counted(split, "hash", [batch] * 20)).layout == split.layout


def test_a_change_that_does_not_pay_is_not_made() -> None:
    found, even = join(), Routing(PARTITIONS)
    batch = [zipf(20_000, 0.3), uniform(4000, 1), uniform(4000, 2)]
    seen = counted(even, "hash", [batch] * 4, held=500 * 28_000 * PARTITIONS)
    assert wanted(found, even, 9, lambda: seen).layout == EVEN


@pytest.mark.parametrize(("rows", "since"), [(LEAST_ROWS // 8, 1), (LEAST_ROWS, 9 - STAY + 1)])
def test_nothing_changes_at_once(rows: int, since: int) -> None:
    found, even = join(), Routing(PARTITIONS, since=since)
    batch = [zipf(rows, 0.4), uniform(10, 1), uniform(10, 2)]
    assert wanted(found, even, 9, lambda: counted(even, "hash", [batch] * 4)).layout == EVEN
    assert wanted(found, even, 9, list).layout == EVEN, "some partition is behind"
    assert wanted(found, even, 0, list).layout == EVEN


def test_keys_that_are_hot_in_two_inputs_are_spread_along_both() -> None:
    found, even = join(), Routing(PARTITIONS)
    batch = [zipf(20_000, 0.5), zipf(20_000, 0.5, seed=6), uniform(4000, 2)]
    routing = wanted(found, even, 9, lambda: counted(even, "hash", [batch] * 4))
    assert isinstance(routing.layout, Split)
    (hot,) = [each for each in routing.layout.hot if each.key == hash_of(1)]
    assert hot.shares[0] > 1 and hot.shares[1] > 1 and hot.shares[2] == 1
    assert loads(routing, batch).max() < 0.6 * loads(even, batch).max()


def test_each_prime_goes_where_most_rows_are_left() -> None:
    assert shares_of(np.array([1000.0, 1.0, 1.0]), 12) == (12, 1, 1)
    assert shares_of(np.array([100.0, 100.0, 1.0]), 12) == (3, 4, 1)
    assert shares_of(np.array([5.0, 7.0]), 1) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"source.a.unique": "k"},
        {"source.a.window": "10 rows", "source.b.window": "10 rows", "source.c.window": "10 rows"},
        {"overflow": "shed", "memory": "1m"},
    ],
    ids=str,
)
def test_no_key_is_split_where_copies_would_count(options: dict[str, str]) -> None:
    found, even = join(**options), Routing(PARTITIONS)
    assert balance.scheme(*found) is None
    batch = [zipf(20_000, 0.3), uniform(4000, 1), uniform(4000, 2)]
    assert wanted(found, even, 9, lambda: counted(even, "hash", [batch] * 4)).layout == EVEN


# --- ranges and rates ------------------------------------------------------------------------------------------------


def test_ranges_have_equally_many_rows_of_keys_that_follow_each_other() -> None:
    found, even = join(partitioning="range"), Routing(PARTITIONS)
    dice = np.random.Generator(np.random.Philox(4))
    batch = [dice.normal(10**6, 10**4, 20_000).astype(np.int64), uniform(4000, 1), uniform(4000, 2)]
    routing = wanted(found, even, 9, lambda: counted(even, "range", [batch] * 4))
    assert isinstance(routing.layout, Ranges)
    there = loads(routing, batch)
    assert there.max() < 1.25 * there.mean()
    keys = Given(0, sorted(batch[0].tolist()), [0] * 20_000)
    at = routing.divide(keys).targets
    assert (np.diff(at) >= 0).all()
    moved = [batch[0] + 10**7, uniform(4000, 1), uniform(4000, 2)]
    routing = replace(routing, since=10)
    again = wanted(found, routing, 40, lambda: counted(routing, "range", [moved] * 20))
    assert again.layout != routing.layout and loads(again, moved).max() < 1.25 * there.mean()
    assert loads(routing, moved).max() > 5 * there.mean()


def test_a_hot_key_in_a_range_is_split_and_the_others_are_divided_without_it() -> None:
    found, even = join(partitioning="range"), Routing(PARTITIONS)
    batch = [zipf(20_000, 0.4, hot=2500), uniform(8000, 1), uniform(8000, 2)]
    routing = wanted(found, even, 9, lambda: counted(even, "range", [batch] * 4))
    assert isinstance(routing.layout, Split) and isinstance(routing.layout.base, Ranges)
    there = loads(routing, batch)
    assert there.max() < 1.1 * SKEWED * 36_000 / PARTITIONS


def test_slots_where_another_input_is_fast_go_to_other_partitions() -> None:
    found, even = join(partitioning="rate"), Routing(PARTITIONS)
    dice = np.random.Generator(np.random.Philox(4))
    fast = dice.integers(0, 3000, 60_000)  # keys of which one input has nearly all rows, by their last digit
    batch = [fast[(fast % 3 == i) | (dice.random(60_000) < 0.1)] for i in range(3)]
    routing, why = balance.wanted(*found, even, 9, lambda: counted(even, "rate", [batch] * 4))
    assert isinstance(routing.layout, Assigned) and "bytes need not move" in why
    there = loads(routing, batch)
    assert there.max() < 1.3 * there.mean(), "partitions have equally many rows"
    rows = np.zeros((3, PARTITIONS))
    for input, values in enumerate(batch):
        rows[input] = np.bincount(routing.divide(Given(input, values.tolist(), [0] * values.size)).targets)
    foreign = (rows.sum(axis=0) - rows.max(axis=0)).sum() / rows.sum()
    evenly = np.zeros((3, PARTITIONS))
    for input, values in enumerate(batch):
        evenly[input] = np.bincount(even.divide(Given(input, values.tolist(), [0] * values.size)).targets)
    assert foreign < 0.6 * (evenly.sum(axis=0) - evenly.max(axis=0)).sum() / evenly.sum()
    routing = replace(routing, since=10)
    assert wanted(found, routing, 30, lambda: counted(routing, "rate", [batch] * 4)).layout == routing.layout


def test_rates_that_differ_by_chance_are_no_reason() -> None:
    found, even = join(partitioning="rate"), Routing(PARTITIONS)
    batch = [uniform(20_000, seed) for seed in range(3)]
    assert wanted(found, even, 9, lambda: counted(even, "rate", [batch] * 4)).layout == EVEN
    dice, rows = np.random.Generator(np.random.Philox(1)), np.zeros((3, SLOTS))
    for _ in range(20):
        rows = KEPT * (rows + dice.poisson(7, (3, SLOTS)))
    assert telling(rows).mean() < 0.02
    rows[1, 5] *= 3
    assert telling(rows)[5]
    changed = typical(rows, ~telling(rows))
    assert changed[1, 5] == rows[1, 5] and changed.sum() == pytest.approx(rows.sum())
    assert (np.abs(changed[0] / changed.sum(axis=0) - 1 / 3) < 0.01).mean() > 0.9


def test_each_partition_has_a_slot_though_one_slot_has_all_rows() -> None:
    rates = np.zeros((2, SLOTS))
    rates[:, 17] = 10**6
    layout = by_rates(rates, np.ones(SLOTS, np.bool_), ["x", "y"], rates.sum(axis=0), 300)
    assert (np.bincount(layout.partition_of, minlength=300) > 0).all()


def test_slots_that_say_nothing_fill_up_partitions_so_that_few_have_slots_of_two_hosts() -> None:
    rows = np.ones((2, SLOTS))
    rows[0, :900], rows[1, 900:2000] = 9, 9
    known = np.arange(SLOTS) < 2000
    layout = by_rates(typical(rows, ~known), known, ["x", "y"], rows.sum(axis=0), 8)
    mixed = [p for p in range(8) for at in [layout.partition_of[:2000] == p] if at[:900].any() and at[900:].any()]
    assert not mixed
    loads = np.bincount(layout.partition_of, rows.sum(axis=0))
    assert loads.max() < 1.05 * loads.mean()


def test_what_moves_is_what_is_not_from_where_most_is() -> None:
    rates = np.array([[8.0, 0.0, 1.0], [2.0, 5.0, 1.0], [1.0, 0.0, 0.0]])
    assert shipped(rates, ["x", "y", "z"], np.array([0, 1, 1])) == 3 + 1
    assert shipped(rates, ["x", "y", "x"], np.array([0, 1, 1])) == 2 + 1


def test_few_keys_make_few_ranges() -> None:
    orders = np.array([5, 6], np.uint64) + np.uint64(SIGN)
    ranges = cut([(orders, np.array([10.0, 10.0])), (orders[:0], np.zeros(0))], 4)
    assert len(ranges.ends) == 3 and list(ranges.ends) == sorted(ranges.ends)


def test_another_scheme_begins_evenly_and_another_number_of_partitions_too() -> None:
    found = join()
    for layout in (Ranges(tuple(range(PARTITIONS - 1))), Assigned.of(np.arange(SLOTS) % PARTITIONS)):
        before = Routing(PARTITIONS, since=3, layout=layout)
        assert wanted(found, before, 9, list).layout == EVEN
        ranged = join(partitioning="range")
        assert wanted(ranged, replace(before, partitions=8), 9, list) == Routing(PARTITIONS)


def test_other_counts_than_are_asked_for_say_nothing() -> None:
    even = Routing(PARTITIONS)
    batch = [uniform(20_000, seed) for seed in range(3)]
    seen = counted(even, "rate", [batch] * 4)
    assert Seen.of(seen, EVEN, "range") is None
    assert Seen.of([], EVEN, "rate") is None
    assert Seen.of(seen, EVEN, "rate") is not None


def test_ranges_are_refused_where_copies_would_count() -> None:
    with pytest.raises(OptionError, match=r"'partitioning': 'range' is not possible, since inputs make key promises"):
        join(partitioning="range", **{"source.a.unique": "k"})
    assert join(partitioning="rate", **{"source.a.unique": "k"})[1].partitioning == "rate"
    with pytest.raises(OptionError, match="partitioning"):
        join(partitioning="ranges")


# --- over many versions ----------------------------------------------------------------------------------------------


def simulated(
    found: tuple[JoinSpec, Settings],
    scheme: Scheme,
    batches: Sequence[Sequence[Array]],
    held: float = 0.0,
    others: Callable[[int, int], list[int]] = lambda _, size: list(range(size)),
) -> tuple[list[str], list[float]]:
    """The layouts of a query that takes in some batches, and how uneven each batch was.

    held: rows in the state for each row that comes in a batch. others: what rows have besides their keys.
    """
    routing, names, skews = Routing(PARTITIONS), list[str](), list[float]()
    traffics = [Traffic.empty(3, scheme) for _ in range(PARTITIONS)]
    for version, batch in enumerate(batches, 1):
        there = np.zeros(PARTITIONS)
        for input, values in enumerate(batch):
            rows = Given(input, values.tolist(), others(version, values.size))
            for partition, traffic in enumerate(traffics):
                mine = rows.taken(routing.numbers_of(rows, partition))
                traffic.take(mine, routing.layout.hot_keys)
                there[partition] += mine.count
        for traffic in traffics:
            traffic.fade()
        skews.append(float(there.max() / there.mean()))
        state = round(held * sum(of.size for of in batch) / PARTITIONS)
        manifests = [cast(Manifest, Partition(of.figures(), (state,))) for of in traffics]
        wanted_next = balance.wanted(*found, routing, version, lambda: manifests)[0]  # noqa: B023
        if not wanted_next.divides_as(routing):
            routing = replace(wanted_next, since=version + 1)
            traffics = [Traffic.empty(3, scheme) for _ in range(PARTITIONS)]
            names.append(str(routing.layout))
    return names, skews


def test_keys_that_only_grow_are_not_divided_by_range_again_and_again() -> None:
    dice = np.random.Generator(np.random.Philox(8))
    batches = [[dice.integers(5000 * n, 5000 * (n + 1), 6000) for _ in range(3)] for n in range(40)]
    names, skews = simulated(join(partitioning="range"), "range", batches)
    assert names == ["range", "hash, since ranges did not last"]
    assert max(skews[12:]) < 1.3


def test_keys_that_begin_alike_are_not_divided_by_range() -> None:
    """Of a string the first eight bytes are compared."""
    found = join(partitioning="range")
    orders, rows = np.full(500, SIGN, np.uint64), np.ones(500)
    seen = Seen(
        np.full((3, PARTITIONS), 1000.0), {}, {}, {}, np.full(PARTITIONS, 3000.0), 0, None, ((orders, rows),) * 3
    )
    assert balance.choose(*found, Routing(PARTITIONS), seen, 9).layout == EVEN


def test_rows_of_a_hot_key_that_are_all_alike_are_kept_together_in_the_emptiest_partition() -> None:
    batches = [[zipf(20_000, 0.3, seed=n), uniform(4000, n), uniform(4000, n + 99)] for n in range(30)]
    names, skews = simulated(join(), "hash", batches, others=lambda _, size: [7] * size)
    assert len(names) <= 3, "it is tried once, and then kept"
    assert max(skews[-9:]) <= max(skews[:5]) + 0.1, "no worse than before"


def test_a_key_that_is_hot_now_and_then_does_not_move_the_state_all_the_time() -> None:
    hot = [[zipf(20_000, 0.3, seed=n), uniform(4000, n), uniform(4000, n + 99)] for n in range(10)]
    cold = [[uniform(20_000, n + 7), uniform(4000, n), uniform(4000, n + 99)] for n in range(10)]
    names, _ = simulated(join(), "hash", [*hot, *cold] * 3, held=20)
    assert len(names) <= 4
    names, _ = simulated(join(), "hash", [*hot, *cold] * 3, held=10**6)
    assert names == [], "it does not pay"


def test_slots_that_cannot_be_divided_better_are_not_divided_again() -> None:
    dice = np.random.Generator(np.random.Philox(4))
    heavy = [key for key in range(400_000) if hash_of(key) % SLOTS == 9][:90]  # many keys of one slot
    batches = []
    for _ in range(40):
        fast = dice.integers(0, 3000, 30_000)
        parts = [fast[(fast % 3 == i) | (dice.random(fast.size) < 0.1)] for i in range(3)]
        batches.append([np.concatenate([part, dice.choice(heavy, 3000)]) for part in parts])
    names, _ = simulated(join(partitioning="rate"), "rate", batches)
    assert 1 <= len(names) <= 2


@pytest.mark.parametrize("scheme", ["hash", "rate"])
def test_what_options_forbid_goes_at_once(scheme: Scheme) -> None:
    hot = Split(EVEN, (Hot(1, (2, 1, 1), (0, 1)),))
    ranges = Ranges(tuple(range(PARTITIONS - 1)))
    for layout in (hot, Split(ranges, hot.hot), ranges):
        for options in ({"splitHotKeys": "false"}, {"overflow": "shed"}):
            before = Routing(PARTITIONS, since=8, layout=layout)
            assert wanted(join(partitioning=scheme, **options), before, 9, list).layout == EVEN


def test_fewer_rows_than_partitions_and_inputs_without_any() -> None:
    for scheme in ("hash", "rate", "range"):
        found, nothing = join(partitioning=scheme), np.zeros(0, np.int64)
        for batch in (
            [nothing] * 3,
            [uniform(40_000, 1), nothing, nothing],
            [np.zeros(40_000, np.int64), nothing, nothing],
        ):
            seen = counted(Routing(PARTITIONS), cast(Scheme, scheme), [batch] * 4)
            routing = wanted(found, Routing(PARTITIONS), 9, lambda: seen)  # noqa: B023
            assert routing.partitions == PARTITIONS
