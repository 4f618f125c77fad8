"""The example of section 2.7 of Viglas et al. (figures 6 to 9), step by step, through the real phases.

A tuple is written as in the paper: its value and the time of its arrival, d10, and for one that was evicted also
the time at which it did, d5-9. The text gives the tuples that matter; the rest of figure 6 is made up so that they come
about: every stream has room for two tuples, and a third lets those two go to disk.

    time  1   2   3   4   5   6   7   8   9   10  11  12  14  15  16  17
    S1    a               d               b   d
    S2        c   d               b                       f
    S3                g       h       i           j   k       f   b   d

So at 14 there are in memory b9 d10 | b7 f14 | k12 and on disk a1-9 d5-9 | c2-7 d3-7 | g4-8 h6-8 i8-12 j11-12.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts, PhaseCounts
from spark_mjoin.engine import arrival, cleanup, overflow, reactive
from spark_mjoin.engine.disk import Disk, Part
from spark_mjoin.engine.feed import Piece
from spark_mjoin.evidence import WorkCounts
from spark_mjoin.flush.protocol import Residents
from spark_mjoin.mjoin.operator import Joining
from spark_mjoin.mjoin.orders import Probing, probe_order
from spark_mjoin.model import InputSpec
from spark_mjoin.plan import Overflow
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.residency import EVERY, Victim
from spark_mjoin.state.store import StateStore

S1, S2, S3 = 0, 1, 2
ROOM = 2  # tuples of a stream in memory
QUERY = """SELECT concat(s1.v, s1.t) AS s1, concat(s2.v, s2.t) AS s2, concat(s3.v, s3.t) AS s3
           FROM s1, s2, s3 WHERE s1.v = s2.v AND s2.v = s3.v"""
SCHEMA = pa.schema([("v", pa.string()), ("t", pa.string())])
BEFORE = [
    (1, S1, "a"),
    (2, S2, "c"),
    (3, S2, "d"),
    (4, S3, "g"),
    (5, S1, "d"),
    (6, S3, "h"),
    (7, S2, "b"),
    (8, S3, "i"),
    (9, S1, "b"),
    (10, S1, "d"),
    (11, S3, "j"),
    (12, S3, "k"),
    (14, S2, "f"),
]


class RoomForTwo:
    """A flush policy: where a stream has more tuples than there is room for, all but the newest go."""

    def victims(self, residents: Sequence[Residents], need: int) -> list[Victim]:
        (residents,) = residents
        full = [(i, of.by_age()[0][-1]) for i, of in enumerate(residents.arrivals) if of.rows > ROOM]
        return [Victim(i, EVERY, int(newest)) for i, newest in full]


class Example:
    def __init__(self, directory: Path) -> None:
        options = Options.parse({"query": QUERY, **{f"source.s{i}.format": "arrow" for i in (1, 2, 3)}})
        self.state = OperatorState.alone(plan_join(options, [SCHEMA] * 3), tracked=True)
        self.store = StateStore(str(directory), 0)
        self.plan = Overflow(1, "room for two", blocking_rows=0, fuel_bytes=1 << 20)
        self.counts = BatchCounts([0, 0, 0])
        self.area = 1 << 20

    def arrive(self, time: int, stream: int, value: str) -> list[str]:
        """The results of an arrival, after which the streams have room again."""
        batch = pa.RecordBatch.from_pydict({"v": [value], "t": [str(time)]}, schema=SCHEMA)
        combinations = arrival.arrive(self.state, stream, Piece.whole(stream, batch), self.counts)
        results = shown(arrival.results(self.state, iter(combinations)))
        alone = PartitionState((S1, S2, S3), 0, {}, [self.state])
        overflow.make_room(alone, self.plan, self.store.draft(1, "attempt"), self.counts)
        return results

    def visit(self, stream: int) -> list[str]:
        """The results of joining a stream's disk part with the others' memory."""
        self._save()
        return [
            result
            for bucket in map(int, np.flatnonzero(self.state.groups.disk[stream]))
            for result in shown(reactive.visit(self._disk(), stream, bucket))
        ]

    def clean_up(self) -> list[str]:
        self._save()
        debt = [int(b) for b in np.flatnonzero(self.state.groups.in_debt())]
        return shown(cleanup.clean(self._disk(), debt)) if debt else []

    def _disk(self) -> Disk:
        return Disk(self.state, self.store, self.area, PhaseCounts(), Probing.unplanned(self.state.spec))

    def memory(self) -> list[str]:
        """The tuples of each stream in memory, in order of arrival."""
        return [" ".join(names(table.spec, table.arrow(0, table.rows))) for table in self.state.tables]

    def disk(self) -> list[str]:
        """The tuples of each stream that are on disk and not in memory."""
        self._save()
        out = []
        for i, resident in enumerate(self.memory()):
            stored = [
                n for batch in Part(i).read(self.state, self.store) for n in names(self.state.spec.inputs[i], batch)
            ]
            gone = [n for n in stored if n not in resident.split()]
            out.append(" ".join(sorted(gone, key=lambda n: int(n[1:]))))
        return out

    def _save(self) -> None:
        for stream in (S1, S2, S3):
            self.store.rows.save(self.state, stream, 1, "attempt")


def names(spec: InputSpec, batch: pa.RecordBatch) -> list[str]:
    """The tuples of a batch of stored columns."""
    ordinals = dict(spec.payload)
    values, times = (batch.column(ordinals[name]).to_pylist() for name in ("v", "t"))
    return [v + t for v, t in zip(values, times, strict=True)]


def shown(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return sorted(" ".join(row.values()) for batch in batches for row in batch.to_pylist())


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    monkeypatch.setitem(flush.REGISTRY, "room for two", f"{__name__}:RoomForTwo")
    example = Example(tmp_path)
    for time, stream, value in BEFORE:
        assert example.arrive(time, stream, value) == []
    return example


def test_the_state_of_figure_6(example: Example) -> None:
    assert example.memory() == ["b9 d10", "b7 f14", "k12"]
    assert example.disk() == ["a1 d5", "c2 d3", "g4 h6 i8 j11"]
    assert not any(example.state.residency.visits)


def test_step_by_step(example: Example) -> None:
    # Figure 7: f15 is only inserted, for S1 has no f.
    assert example.arrive(15, S3, "f") == []
    assert example.memory() == ["b9 d10", "b7 f14", "k12 f15"]

    # Figure 8: b16 gives one result, and S3 overflows.
    assert example.arrive(16, S3, "b") == ["b9 b7 b16"]
    assert example.memory() == ["b9 d10", "b7 f14", "b16"]
    assert example.disk() == ["a1 d5", "c2 d3", "g4 h6 i8 j11 k12 f15"]

    # d17 finds d10 and no d in S2: it is on disk.
    assert example.arrive(17, S3, "d") == []
    assert example.memory() == ["b9 d10", "b7 f14", "b16 d17"]

    # Figure 9: the inputs block; S2's disk part is joined with what S1 and S3 have in memory.
    assert example.visit(S2) == ["d10 d3 d17"]
    assert example.memory() == ["b9 d10", "b7 f14", "b16 d17"]
    assert example.disk() == ["a1 d5", "c2 d3", "g4 h6 i8 j11 k12 f15"]
    assert [len(visits) for visits in example.state.residency.visits] == [0, 2, 0]  # its tuples are in two buckets

    # The end: of the two combinations of d, the one that is emitted is not emitted again.
    assert example.clean_up() == ["d5 d3 d17"]
    assert example.clean_up() == []


def test_a_second_visit_gives_nothing_again(example: Example) -> None:
    for time, value in ((15, "f"), (16, "b"), (17, "d")):
        example.arrive(time, S3, value)
    assert example.visit(S2) == ["d10 d3 d17"]
    assert example.visit(S2) == []
    assert example.visit(S1) == []  # d5 would need d3, which is on disk too


def test_without_the_visit_the_clean_up_gives_both(example: Example) -> None:
    for time, value in ((15, "f"), (16, "b"), (17, "d")):
        example.arrive(time, S3, value)
    assert example.clean_up() == ["d10 d3 d17", "d5 d3 d17"]


@pytest.mark.parametrize(("sizes", "temporary"), [((1, 2, 0), 0), ((2, 1, 0), 1)])
def test_the_probing_order_decides_about_temporary_tuples(
    example: Example, sizes: tuple[int, int, int], temporary: int
) -> None:
    """f15 makes no temporary tuple when it probes S1 first, and {f14, f15} when it begins with S2."""
    batch = pa.RecordBatch.from_pydict({"v": ["f"], "t": ["15"]}, schema=SCHEMA)
    start, end = arrival.insert(example.state, S3, Piece.whole(S3, batch), example.counts)
    order, work = probe_order(example.state.spec, S3, sizes), WorkCounts()
    assert not list(Joining(example.state.spec, example.state.tables, work).produce(order, start, end))
    assert sum(edge.matches for edge in work.edges.values()) == temporary
