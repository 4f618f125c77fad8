"""The plan of a batch as data: JSON and back, and what a partition takes of it."""

import json
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.model import WHOLE, DiskWork, Expiry, Purging, Room, Schedule, Settings
from spark_mjoin.plan import Overflow, Plan
from tests.examples import examples

INPUTS = 3
counts = st.integers(0, 2**40)
buckets = st.lists(st.integers(0, 255), unique=True, max_size=5).map(tuple)
work = st.builds(DiskWork, buckets, st.none() | st.integers(0, 2), st.booleans(), st.integers(0, 1))
texts = st.text(max_size=10)


def lists(of: st.SearchStrategy[Any], least: int = 0, most: int = INPUTS) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, min_size=least, max_size=most).map(tuple)


def per_input(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return lists(of, INPUTS)


plans = st.builds(
    Plan,
    tree=st.sampled_from([(0, 1, 2), ((0, 1), 2), (0, (1, 2))]),
    orders=st.just(()) | lists(lists(st.none() | lists(st.integers(0, 2))), 1, 2).filter(lambda o: any(map(any, o))),
    overflow=st.none()
    | st.builds(Overflow, st.none() | counts, texts, counts, counts, lists(lists(work)), lists(texts), counts),
    expiry=st.none() | st.builds(Expiry, per_input(st.none() | st.integers()), st.booleans()),
    purging=st.none() | st.builds(Purging, counts, texts, st.none() | counts),
    access=st.just(()) | lists(lists(st.tuples(st.integers(0, 2), st.integers(0, 2))), 1, 2).filter(any),
    admission=st.none() | per_input(st.integers(1, WHOLE)),
    room=st.none() | st.builds(Room, counts, st.none() | per_input(st.floats(0, 1))),
    schedule=st.builds(Schedule, texts, lists(st.integers(0, 2)), lists(counts), texts),
    alike_since=counts,
)


@given(plans)
@examples(300)
def test_a_plan_comes_back_from_its_json(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json(INPUTS))), INPUTS) == plan


def test_a_plan_with_nothing_out_of_the_ordinary_takes_no_room_in_the_offset() -> None:
    assert Plan((0, 1, 2)).to_json(3) == {}
    assert Plan.from_json({}, 3) == Plan((0, 1, 2))


def test_a_task_carries_the_disk_work_of_its_own_partition_alone() -> None:
    every = tuple((DiskWork(tuple(range(256))),) for _ in range(100))
    limit = Overflow(1000, "adaptive", blocking_rows=1, fuel_bytes=1, work=every, waiting=("a",), earned=3)
    plan = Plan((0, 1), overflow=limit, alike_since=2)
    own = plan.for_partition(7)
    assert own.overflow is not None
    assert own.overflow.work_of(7) == every[7]
    assert not any(own.overflow.work_of(p) for p in range(100) if p != 7)
    assert len(pickle.dumps(own)) < len(pickle.dumps(plan)) / 10
    assert Plan((0, 1), overflow=Overflow(1, "adaptive", 1, 1)).for_partition(3).overflow == Overflow(
        1, "adaptive", 1, 1
    )


def test_the_plan_says_what_each_partition_may_have() -> None:
    assert Overflow.of(Settings(partitions=4, memory_bytes=1000)).memory_bytes == 250
    assert Overflow.of(Settings(partitions=4)).memory_bytes is None
