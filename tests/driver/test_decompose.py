"""Which tree is chosen: the cheapest of all by brute force, and only where that is worth it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.paper.trees import Even
from spark_mjoin.driver import decompose
from spark_mjoin.driver.costs import Costs, Model, operators
from spark_mjoin.driver.decompose import GROWTH, MOST_STORED, NEAR, Circumstances, Room, choose, near_future
from spark_mjoin.model import Tree
from spark_mjoin.query.tree import leaves, normal, render
from tests.driver.estimates import chain, every_tree, star
from tests.examples import examples

TABLE_3 = Costs(175.008e-9, 426.518e-9, 49.133e-9)
GATHERING = replace(TABLE_3, gather=300e-9)


def connected(estimates: Even, inputs: frozenset[int]) -> bool:
    reached = {min(inputs)}
    for _ in inputs:
        reached |= {i for i in inputs for j in reached if estimates.classes[i] & estimates.classes[j]}
    return reached == inputs


@st.composite
def joins(draw: st.DrawFn, most: int = 5) -> Even:
    """A random connected join graph of three inputs or more, with keys of few and of many values, after some rows."""
    count = draw(st.integers(3, most))
    classes: list[set[int]] = [set() for _ in range(count)]
    values = []
    for i in range(1, count):  # either a key of its own with an earlier input, or one that an earlier input has
        other = draw(st.integers(0, i - 1))
        if classes[other] and draw(st.booleans()):
            classes[i].add(min(classes[other]))
        else:
            classes[i].add(len(values))
            classes[other].add(len(values))
            values.append(draw(st.sampled_from([1.0, 10.0, 100.0, 1e3, 1e4])))
    rates = [draw(st.sampled_from([1.0, 10.0, 50.0])) for _ in range(count)]
    rows = [draw(st.sampled_from([0.0, 100.0])) for _ in range(count)]
    return Even(tuple(map(frozenset, classes)), tuple(values), tuple(rows), tuple(rates))


@given(joins(), st.sampled_from([TABLE_3, GATHERING]), st.sampled_from([1.0, 20.0]))
@examples(80)
def oracle_the_choice_is_the_cheapest_of_all_trees(estimates: Even, costs: Costs, horizon: float) -> None:
    end, times = near_future(estimates, horizon)
    model = Model(estimates.spec, estimates, estimates.rows, end)
    single: Tree = tuple(range(len(end)))
    possible = [
        t
        for t in every_tree(range(len(end)))
        if all(connected(estimates, frozenset[int]().union(*o)) for o in operators(t))
        and model.stored(t) <= MOST_STORED * sum(end)
    ]
    assert single in possible
    cheapest = min(possible, key=lambda t: costs.seconds(model.tree(t)))
    least, alone = (costs.seconds(model.tree(t)) for t in (cheapest, single))
    choice = choose(estimates.spec, estimates, costs, Circumstances(horizon))
    chosen = costs.seconds(model.tree(choice.tree))
    assert choice.tree == normal(choice.tree) and choice.tree in map(normal, possible)
    assert chosen == pytest.approx(least if least <= (1 - NEAR) * alone else alone)
    assert min(c.seconds for c in choice.candidates) == pytest.approx(least * times)


# Rows of 0 and 1 meet rarely, and 2 has many partners in 1: what 2 finds in 1 it would find again and again.
INFLATING = chain([10_000.0, 5.0], [20.0, 20.0, 100.0])


def test_an_inflating_join_is_split() -> None:
    choice = choose(INFLATING.spec, INFLATING, TABLE_3, Circumstances(horizon=60))
    assert choice.tree == ((0, 1), 2)
    assert "((s1 s2) s3) takes" in choice.reason and "one MJoin takes" in choice.reason
    assert [c.tree for c in choice.candidates[:1]] == [choice.tree]
    assert (0, 1, 2) in [c.tree for c in choice.candidates]


def test_a_join_of_unique_keys_is_one_mjoin() -> None:
    unique = replace(star(4, 10_000, [100.0] * 4), rows=(10_000.0,) * 4)
    assert choose(unique.spec, unique, TABLE_3, Circumstances(horizon=60)).tree == (0, 1, 2, 3)


def test_more_partners_are_not_expected_of_unique_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the rows find a partner in another input, and will when the inputs have grown a hundredfold."""
    unique = replace(star(6, 2_000, [25.0] * 6), rows=(1_000.0,) * 6)
    single: Tree = tuple(range(6))
    assert choose(unique.spec, unique, TABLE_3, Circumstances(horizon=3600, current=single)).tree == single
    monkeypatch.setattr(decompose, "GROWTH", 100)  # 45 partners for each row
    assert (
        choose(unique.spec, unique, TABLE_3, Circumstances(horizon=3600, current=single, most_stored=1e12)).tree
        != single
    )


def test_the_near_future() -> None:
    after = replace(INFLATING, rows=(100.0, 100.0, 200.0))
    end, times = near_future(after, horizon=60)
    assert sum(end) == pytest.approx((1 + GROWTH) * 400) and (sum(end) - 400) * times == pytest.approx(60 * 140)
    assert near_future(INFLATING, horizon=60) == ([1200.0, 1200.0, 6000.0], 1.0)
    assert near_future(after, horizon=0.01)[1] == 1.0


def test_near_ties_go_to_the_single_mjoin(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(INFLATING.spec, INFLATING, TABLE_3, Circumstances(horizon=60)).tree != (0, 1, 2)
    monkeypatch.setattr(decompose, "NEAR", 0.99)
    assert choose(INFLATING.spec, INFLATING, TABLE_3, Circumstances(horizon=60)).tree == (0, 1, 2)


def test_intermediate_results_that_are_too_large_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    free_moves = Costs(1e-9, 1e-12, 1e-6)  # comparisons are all that counts: any tree would do
    inflating = star(3, 3, [50.0] * 3)
    assert choose(inflating.spec, inflating, free_moves, Circumstances(horizon=60)).tree == (0, 1, 2)
    monkeypatch.setattr(decompose, "NEAR", 0.0)
    assert choose(inflating.spec, inflating, free_moves, Circumstances(horizon=60, most_stored=1e9)).tree != (0, 1, 2)


def test_without_room_there_is_one_mjoin_and_the_reason_says_so() -> None:
    why = "one MJoin: there is no room for intermediate results"
    first = choose(INFLATING.spec, INFLATING, TABLE_3, Circumstances(horizon=60, most_stored=0.0))
    assert first.tree == (0, 1, 2) and first.reason == why
    long_since = replace(INFLATING, rows=(2_000.0, 2_000.0, 10_000.0))
    running = choose(
        long_since.spec, long_since, TABLE_3, Circumstances(horizon=60, current=(0, 1, 2), most_stored=0.0)
    )
    assert running.tree == (0, 1, 2) and running.reason == why
    left = choose(long_since.spec, long_since, TABLE_3, Circumstances(horizon=60, current=((0, 1), 2), most_stored=0.0))
    assert left.tree == (0, 1, 2) and "have become too large" in left.reason


def test_a_running_plan_is_changed_only_where_that_pays() -> None:
    long_since = replace(INFLATING, rows=(2_000.0, 2_000.0, 10_000.0))
    stay = choose(long_since.spec, long_since, TABLE_3, Circumstances(horizon=0.01, current=(0, 1, 2)))
    assert stay.tree == (0, 1, 2) and "the change would take" in stay.reason
    change = choose(long_since.spec, long_since, TABLE_3, Circumstances(horizon=60, current=(0, 1, 2)))
    assert change.tree == ((0, 1), 2) and "and the change" in change.reason
    best = next(c for c in change.candidates if c.tree == change.tree)
    current = next(c for c in change.candidates if c.tree == (0, 1, 2))
    assert current.seconds - best.seconds > best.change_seconds > 0 and current.change_seconds == 0
    kept = choose(long_since.spec, long_since, TABLE_3, Circumstances(horizon=60, current=(2, (1, 0))))
    assert kept.tree == ((0, 1), 2) and "is what runs" in kept.reason


def test_a_plan_whose_intermediate_results_have_grown_too_large_is_left() -> None:
    grown = replace(star(3, 3, [1.0] * 3), rows=(1_000.0,) * 3)
    choice = choose(grown.spec, grown, TABLE_3, Circumstances(horizon=10, current=((0, 1), 2)))
    assert choice.tree == (0, 1, 2) and "have become too large" in choice.reason


# --- with a memory budget ----------------------------------------------------------------------------------------

LONG_SINCE = replace(INFLATING, rows=(2_000.0, 2_000.0, 10_000.0))


def test_a_tree_that_saves_much_is_chosen_and_kept_with_rows_on_disk() -> None:
    short = Room(rows=3_000.0, overflowed=True)
    chosen = choose(LONG_SINCE.spec, LONG_SINCE, TABLE_3, Circumstances(horizon=600, current=(0, 1, 2), room=short))
    assert chosen.tree == ((0, 1), 2), chosen.reason
    kept = choose(LONG_SINCE.spec, LONG_SINCE, TABLE_3, Circumstances(horizon=600, current=((0, 1), 2), room=short))
    assert kept.tree == ((0, 1), 2) and "is what runs" in kept.reason


def test_what_does_not_fit_makes_every_tree_dearer_and_the_one_that_stores_more_by_more() -> None:
    def seconds(rows: float) -> dict[Tree, float]:
        found = choose(
            LONG_SINCE.spec,
            LONG_SINCE,
            TABLE_3,
            Circumstances(60, current=(0, 1, 2), room=Room(rows), wanted=(0, (1, 2))),
        )
        return {c.tree: c.seconds for c in found.candidates}

    roomy, tight = seconds(1e9), seconds(5_000.0)
    assert roomy == seconds(math.inf)
    assert all(tight[tree] > roomy[tree] for tree in roomy)
    assert tight[0, (1, 2)] - roomy[0, (1, 2)] > tight[0, 1, 2] - roomy[0, 1, 2], "s2 and s3 have many pairs"


def test_a_change_of_plan_costs_a_pass_where_rows_are_on_disk() -> None:
    def change(overflowed: bool) -> float:
        found = choose(
            LONG_SINCE.spec, LONG_SINCE, TABLE_3, Circumstances(60, current=(0, 1, 2), room=Room(3_000.0, overflowed))
        )
        return next(c.change_seconds for c in found.candidates if c.tree == ((0, 1), 2))

    assert change(True) > 1.3 * change(False) > 0


def test_without_rates_nothing_is_decided() -> None:
    silent = replace(INFLATING, rates=(0.0, 0.0, 0.0), rows=(100.0, 100.0, 100.0))
    assert choose(silent.spec, silent, TABLE_3, Circumstances(60)).tree == (0, 1, 2)
    assert choose(silent.spec, silent, TABLE_3, Circumstances(60, current=((0, 1), 2))).tree == ((0, 1), 2)


def test_two_inputs_have_one_plan() -> None:
    assert choose(star(2, 3).spec, star(2, 3), TABLE_3, Circumstances(60)).tree == (0, 1)


def test_seven_inputs_take_no_time_and_ten_little() -> None:
    for count, seconds in ((7, 5), (10, 5)):
        many = star(count, 50, [10.0] * count)
        began = process_time()  # other processes do not count
        choice = choose(many.spec, many, TABLE_3, Circumstances(horizon=10))
        assert process_time() - began < seconds
        assert leaves(choice.tree) == frozenset(range(count))


def test_beyond_the_exact_search_an_inflating_chain_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """The climb finds what the exact search finds in two out of three such joins, and is never worse than one MJoin."""
    same = 0
    cases = list(product((10_000.0, 20.0), repeat=4))
    for values in cases:
        estimates = chain([*values, 10_000.0], [20.0, 20.0, 100.0, 20.0, 20.0, 20.0])
        exact = choose(estimates.spec, estimates, TABLE_3, Circumstances(horizon=60))
        monkeypatch.setattr(decompose, "EXACT", 2)
        climbed = choose(estimates.spec, estimates, TABLE_3, Circumstances(horizon=60))
        monkeypatch.undo()
        least, reached, alone = (
            next(c.seconds for c in choice.candidates if c.tree == tree)
            for choice, tree in ((exact, exact.tree), (climbed, climbed.tree), (exact, tuple(range(6))))
        )
        assert least <= reached * (1 + 1e-9) and reached <= alone
        same += exact.tree == climbed.tree
    assert same >= len(cases) * 2 // 3


def test_trees_in_words() -> None:
    assert render(((0, 1), 2), ["s1", "s2", "s3"]) == "((s1 s2) s3)"
    assert normal((5, (4, 3), (2, 1, 0))) == ((0, 1, 2), (3, 4), 5)
