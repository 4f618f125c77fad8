"""Flush policies over a plan of several joins: one budget, and victims wherever they are."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.engine import overflow
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.flush.protocol import Residents
from spark_mjoin.model import Tree
from spark_mjoin.plan import Overflow, Plan
from spark_mjoin.query.graph import plan_join
from spark_mjoin.query.tree import layout
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import Victim
from spark_mjoin.state.store import StateStore

STAR = "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k JOIN d ON a.k = d.k"
SCHEMA = pa.schema([("k", pa.int64())])
PIPELINE: Tree = (((0, 1), 2), 3)
BUSHY: Tree = ((0, 1), (2, 3))
A, B, C, D = range(4)
KEYS = np.arange(400)
ROOMY = Overflow(None, "adaptive", blocking_rows=0, fuel_bytes=1 << 30)


class Joins:
    """A plan over streams, four with a common key, in which nothing is evicted by itself."""

    def __init__(self, tree: Tree, directory: Path, query: str = STAR, schema: pa.Schema = SCHEMA) -> None:
        names = sorted(set(re.findall(r"(?:FROM|JOIN) (\w)", query)))
        options = Options.parse({"query": query, **{f"source.{name}.format": "arrow" for name in names}})
        spec = plan_join(options, [schema] * len(names))
        self.schema = schema
        self.state = PartitionState.empty(tree, layout(spec, tree), {}, tracked=True)
        self.store, self.counts = StateStore(str(directory), 0), BatchCounts([0] * len(names))
        plan = Plan(tree, overflow=ROOMY)
        self.pipeline = Pipeline(self.state, plan, self.store.draft(1, "test"), self.counts, lambda: 0.0)

    def arrive(self, *inputs: int, keys: np.ndarray = KEYS) -> "Joins":
        for input in inputs:
            rows = pa.RecordBatch.from_pydict(dict.fromkeys(self.schema.names, keys), schema=self.schema)
            self.results = sum(b.num_rows for b in self.pipeline.arrivals([Piece.whole(input, rows)]))
        return self

    def make_room(self, policy: str, share: float, busy: int | None = None) -> None:
        """Until no more than a share of the memory is in use, apart from an operator that is busy."""
        room = int(self.state.nbytes() * share / overflow.FLUSH_TO)
        limit = Overflow(room + room // 3, policy, blocking_rows=0, fuel_bytes=1)  # a quarter is for disk work
        spared = () if busy is None else (self.state.operators[busy],)
        overflow.make_room(self.state, limit, self.store.draft(1, "test"), self.counts, spared)

    def residents(self) -> list[Residents]:
        return [Residents.of(o, w) for o, w in zip(self.state.operators, self.state.worth(), strict=True)]

    def rows(self) -> list[int]:
        """In memory, of each operator."""
        return [sum(table.rows for table in operator.tables) for operator in self.state.operators]


def freed(residents: list[Residents], victims: list[Victim]) -> float:
    """Bytes of victims that are whole buckets."""
    sizes = {of.operator: of.bytes() for of in residents}
    assert len(set(victims)) == len(victims)
    return sum(float(sizes[v.operator][v.input, v.bucket]) for v in victims)


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("tree", [PIPELINE, BUSHY], ids=["pipeline", "bushy"])
@pytest.mark.parametrize("share", [0.001, 0.3, 0.8, 1.0, 2.0])
def test_victims_are_as_much_as_is_needed_or_all_there_is(
    policy: str, tree: Tree, share: float, tmp_path: Path
) -> None:
    residents = Joins(tree, tmp_path).arrive(A, B, C, D).residents()
    everything = sum(float(of.bytes().sum()) for of in residents)
    need = int(everything * share)
    victims = flush.policy(policy).victims(residents, need)
    assert freed(residents, victims) >= min(need, everything) * (1 - 1e-9)
    assert freed(residents, victims) <= need + everything / 4, "one candidate more than needed, at the most"
    if share > 0.5:
        assert {v.operator for v in victims} == {0, 1, 2}


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
def test_where_nothing_is_in_memory_nothing_is_named(policy: str, tmp_path: Path) -> None:
    assert flush.policy(policy).victims(Joins(BUSHY, tmp_path).residents(), 1000) == []


def test_largest_looks_for_the_largest_bucket_in_all_operators(tmp_path: Path) -> None:
    joins = Joins(BUSHY, tmp_path).arrive(A, B).arrive(D, keys=np.full(1000, 7))
    (first,) = flush.policy("largest").victims(joins.residents(), 1)
    assert (first.operator, first.input) == (2, 1)  # d in (c d)


def test_random_victims_repeat_in_a_replay_and_not_in_the_next_flush(tmp_path: Path) -> None:
    """Of neighbouring flushes no more victims are the same than chance has it."""
    joins, policy = Joins(BUSHY, tmp_path).arrive(A, B, C, D), flush.policy("random")
    need = int(sum(float(of.bytes().sum()) for of in joins.residents()) / 6)
    named = []
    for _ in range(40):
        victims = policy.victims(joins.residents(), need)
        assert policy.victims(joins.residents(), need) == victims
        named.append(set(victims))
        joins.state.root.residency.events += 7
    same = np.mean([len(one & other) / len(other) for one, other in pairwise(named)])
    assert same == pytest.approx(1 / 6, abs=0.03)


@pytest.mark.parametrize("tree", [PIPELINE, BUSHY], ids=["pipeline", "bushy"])
def test_coordinated_lets_a_bucket_go_in_all_operators(tree: Tree, tmp_path: Path) -> None:
    joins = Joins(tree, tmp_path).arrive(A, B, C, D)
    joins.make_room("coordinated", 0.5)
    disk = np.concatenate([operator.groups.disk for operator in joins.state.operators])
    gone = disk.sum(axis=0) > 0
    assert 0 < gone.sum() < gone.size
    for operator in joins.state.operators:
        assert operator.groups.disk[:, gone].all(), "every key is in every operator here"
        assert not operator.groups.resident[:, gone].any() and not operator.groups.disk[:, ~gone].any()


TWO_STARS = (
    "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k JOIN d ON c.j = d.j JOIN e ON d.l = e.l"
    " JOIN f ON e.l = f.l"
)  # a b c by k, d e f by l; c and d meet by j
SIX = pa.schema([("k", pa.int64()), ("j", pa.int64()), ("l", pa.int64())])
ONE: Tree = (0, 1, 2, 3, 4, 5)
TWO: Tree = ((0, 1, 2), (3, 4, 5))


def stars(tree: Tree, directory: Path) -> Joins:
    return Joins(tree, directory, TWO_STARS, SIX)


def gone(joins: Joins, *members: tuple[int, int]) -> list[np.ndarray]:
    """Of some members of operators, the buckets that have rows on disk."""
    groups = [operator.groups for operator in joins.state.operators]
    return [groups[operator].disk[input] > 0 for operator, input in members]


@pytest.mark.parametrize(
    ("tree", "first", "second"),
    [
        (ONE, [(0, 0), (0, 1), (0, 2)], [(0, 3), (0, 4), (0, 5)]),
        (TWO, [(1, 0), (1, 1), (1, 2)], [(2, 0), (2, 1), (2, 2)]),
    ],
    ids=["one operator", "one for each star"],
)
def test_coordinated_lets_a_bucket_go_in_all_inputs_of_a_star(
    tree: Tree, first: list[tuple[int, int]], second: list[tuple[int, int]], tmp_path: Path
) -> None:
    joins = stars(tree, tmp_path).arrive(0, 1, 2, 3, 4, 5, keys=np.arange(2000))
    joins.make_room("coordinated", 0.5)
    for star in (first, second):
        some, *others = gone(joins, *star)
        assert 0 < some.sum() < some.size, "of each star some buckets go, not all"
        assert all(np.array_equal(some, other) for other in others)
        for operator, input in star:
            assert not joins.state.operators[operator].groups.resident[input, some].any()


def test_coordinated_takes_from_the_star_with_the_most_bytes(tmp_path: Path) -> None:
    joins = stars(ONE, tmp_path).arrive(0, 1, 2, keys=np.arange(4000)).arrive(3, 4, 5, keys=np.arange(1000))
    (of,) = residents = joins.residents()
    sizes = of.bytes().sum(axis=1)
    large, small = float(sizes[:3].sum()), float(sizes[3:].sum())
    some = flush.policy("coordinated").victims(residents, int(0.9 * (large - small)))
    assert {v.input for v in some} == {0, 1, 2}
    most = flush.policy("coordinated").victims(residents, int(large))
    left = [size - freed(residents, [v for v in most if v.input // 3 == n]) for n, size in enumerate((large, small))]
    assert left[0] == pytest.approx(left[1], rel=0.15), "both give once they have the same"


def test_rows_of_buckets_that_are_on_disk_go_first_in_every_star(tmp_path: Path) -> None:
    joins = stars(ONE, tmp_path).arrive(0, 1, 2, 3, 4, 5)
    joins.make_room("coordinated", 0.5)
    before = gone(joins, (0, 0), (0, 3))
    joins.arrive(0, 1, 2, 3, 4, 5)
    new = sum(float(of.bytes()[members][:, on_disk].sum()) for of in joins.residents()
              for members, on_disk in (([0, 1, 2], before[0]), ([3, 4, 5], before[1])))  # fmt: skip
    victims = flush.policy("coordinated").victims(joins.residents(), int(new))
    assert {v.input for v in victims} == set(range(6))
    assert all(before[0 if v.input < 3 else 1][v.bucket] for v in victims)


def test_an_input_of_two_stars_belongs_to_the_larger(tmp_path: Path) -> None:
    """c has k and j, d has j and l: each is flushed with the two others that it shares a key with."""
    (of,) = stars(ONE, tmp_path).residents()
    assert of.classes[0] == of.classes[1] == of.classes[2] != of.classes[3] == of.classes[4] == of.classes[5]


# --- adaptive --------------------------------------------------------------------------------------------------


def test_adaptive_prefers_what_leads_nowhere_among_equal_operators(tmp_path: Path) -> None:
    (root, left, right) = Joins(BUSHY, tmp_path).arrive(A, B, C, D).residents()
    for useless, useful in ((1, 2), (2, 1)):
        same = [replace(left, operator=number, worth=1.0) for number in (1, 2)]
        same[useless - 1] = replace(left, operator=useless, worth=0.01)
        size = int(left.bytes().sum())
        assert {v.operator for v in flush.policy("adaptive").victims(same, size // 2)} == {useless}
        assert {v.operator for v in flush.policy("adaptive").victims(same, size + 1)} == {useless, useful}
    assert root.operator == 0 and right.operator == 2


def test_adaptive_flushes_the_operator_whose_results_find_no_partner(tmp_path: Path) -> None:
    """In the first plan (a b) gave before c and d came, so its results completed nothing; in the second all of them."""
    early, late = Joins(BUSHY, tmp_path / "early").arrive(A, B, C, D), Joins(BUSHY, tmp_path / "late")
    late.arrive(C, D, A, B)
    assert early.state.worth() == [1.0, 0.0, 1.0] and late.state.worth() == [1.0, 1.0, 0.0]
    for joins, useless, useful in ((early, 1, 2), (late, 2, 1)):
        before = joins.rows()
        joins.make_room("adaptive", 0.8)
        after = joins.rows()
        assert after[useless] < before[useless] and after[useful] == before[useful] and after[0] == before[0]


# --- while an operator works on disk ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("busy", [0, 1, 2])
def test_the_rows_of_a_busy_operator_stay(policy: str, busy: int, tmp_path: Path) -> None:
    joins = Joins(PIPELINE, tmp_path).arrive(A, B, C, D)
    before = joins.rows()
    joins.make_room(policy, 0.05, busy)
    assert joins.rows() == [before[n] if n == busy else 0 for n in range(3)]  # all others had to go
    joins.make_room(policy, 0.05, busy)  # and there is an end to it
    joins.make_room(policy, 0.05)
    assert joins.rows()[busy] < before[busy] // 4


def test_what_left_memory_is_joined_all_the_same(tmp_path: Path) -> None:
    joins = Joins(PIPELINE, tmp_path).arrive(A, B, C)
    joins.make_room("random", 0.5)
    joins.arrive(D)
    late = sum(batch.num_rows for batch in joins.pipeline.emit_pending())
    assert 0 < joins.results < KEYS.size and joins.results + late == KEYS.size
