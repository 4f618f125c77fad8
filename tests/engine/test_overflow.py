"""What overflow does to memory, disk and time, on states that are large enough to tell: all without Spark."""

import resource
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin import flush, metrics
from spark_mjoin.driver.clock import SYSTEM, Clock
from spark_mjoin.engine import cache, cleanup, disk, overflow
from spark_mjoin.engine.disk import Part
from spark_mjoin.errors import MemoryBudgetError, StateError
from spark_mjoin.state.garbage import KEPT_VERSIONS
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.segments import FAN_OUT
from tests.harness import ReadAllAvailable, Rows, duckdb_join, point, reader, rows, scripted

STAR = "SELECT a.k, a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
CHAIN = "SELECT a.k, a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON b.v = c.v"
MEMORY = 256 << 10
BATCH_BYTES = 64 << 10  # more than a batch of these tests takes in memory


def arrivals(seed: int, batches: int, size: int, keys: int, hot: float = 0.0) -> list[pa.Table]:
    """Batches of rows with random keys; a share of them has one key."""
    dice = np.random.default_rng(seed)
    out = []
    for _ in range(batches):
        k = dice.integers(0, keys, size)
        k[dice.random(size) < hot] = 7
        out.append(pa.table({"k": k, "v": dice.integers(0, keys, size), "s": [f"text {i:08d}" for i in k]}))
    return out


def scripts(batches: int = 8, size: int = 600, keys: int = 5000, hot: float = 0.0) -> dict[str, list[pa.Table]]:
    return {alias: arrivals(seed, batches, size, keys, hot) for seed, alias in enumerate("abc")}


@pytest.fixture(autouse=True)
def larger_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 500)


class Run:
    """A query driven batch by batch: its results and the counts of every batch."""

    def __init__(
        self, given: dict[str, list[pa.Table]], query: str, state: Path, clock: Clock = SYSTEM, **options: str
    ) -> None:
        cache.of_worker().clear()
        self.clock = clock
        self.tables = {alias: pa.concat_tables(script) for alias, script in given.items()}
        self.query = query
        self.options = scripted(given, query, stateLocation=str(state), **options)
        self.current = reader(self.options, self.clock)
        self.offset = self.current.initialOffset()
        self.results: list[pa.Table] = []
        self.counts: list[dict[str, Any]] = []

    def restart(self, **changed: str) -> None:
        cache.of_worker().clear()
        self.options |= changed
        self.options = {name: value for name, value in self.options.items() if value}
        self.current = reader(self.options, self.clock)

    def steps(self) -> Iterator[dict[str, Any]]:
        """One batch after the other, until there is nothing to do; the counts of each, summed over partitions."""
        while True:
            end = self.current.latestOffset(self.offset, ReadAllAvailable())
            if end == self.offset:
                return
            produced = [b for p in self.current.partitions(self.offset, end) for b in self.current.read(p)]
            self.results.append(pa.Table.from_batches(produced, self.current.session.spec.schema))
            self.offset = end
            aliases = [i.alias for i in self.current.session.spec.inputs]
            self.counts.append(metrics.summable(metrics.report(self.manifests(), aliases)))
            yield self.counts[-1]

    def to_the_end(self) -> "Run":
        for _ in self.steps():
            continue
        return self

    def manifests(self) -> list[Manifest]:
        at = point(self.current, self.offset)
        location, routing = self.current.session.location(at), at.plan.routing
        return [Manifests(location, p, routing).manifest(at.version) for p in range(routing.partitions)]

    def check(self) -> None:
        """The results are those of duckdb. Says how many are not, rather than which: there are many."""
        found, expected = counted(pa.concat_tables(self.results)), counted(self.expected())
        if not found.equals(expected):
            of_ours, of_duckdb = tally(found), tally(expected)
            twice, missing = (of_ours - of_duckdb).total(), (of_duckdb - of_ours).total()
            assert (twice, missing) == (0, 0), f"{twice} rows too many, {missing} missing of {of_duckdb.total()}"

    def expected(self) -> pa.Table:
        return duckdb_join(self.query, self.tables)


def counted(table: pa.Table) -> pa.Table:
    """Different rows, in order, and how often each is there: quicker to compare than the rows of `harness.rows`."""
    names = table.column_names
    counts = table.group_by(names, use_threads=False).aggregate([([], "count_all")])
    return counts.sort_by([(name, "ascending") for name in names]).combine_chunks()


def tally(counts: pa.Table) -> Rows:
    """The same as a multiset."""
    *values, count = (column.to_pylist() for column in counts.columns)
    return Counter(dict(zip(zip(*values, strict=True), count, strict=True)))


@pytest.mark.parametrize("policy", sorted(flush.REGISTRY))
@pytest.mark.parametrize("partitions", ["1", "2"])
def test_memory_stays_within_its_budget_and_one_batch(tmp_path: Path, policy: str, partitions: str) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY), flush=policy, partitions=partitions).to_the_end()
    run.check()
    assert all(c["memoryPeakBytes"] <= MEMORY + int(partitions) * BATCH_BYTES for c in run.counts)
    assert max(c["memoryUsedBytes"] for c in run.counts) > MEMORY // 4, "the budget must be used, too"
    assert sum(c["flushes"] for c in run.counts) > 3
    assert run.counts[-1]["deferredRows"] == 0
    assert run.counts[-1]["numRowsInMemory"] < sum(t.num_rows for t in run.tables.values())


@pytest.mark.parametrize("policy", ["adaptive", "largest", "random"])
def test_a_chain_overflows_as_well(tmp_path: Path, policy: str) -> None:
    run = Run(scripts(), CHAIN, tmp_path, memory=str(MEMORY), flush=policy).to_the_end()
    run.check()
    assert all(c["memoryPeakBytes"] <= MEMORY + BATCH_BYTES for c in run.counts)


def test_each_phase_gives_results_and_says_so(tmp_path: Path) -> None:
    given = scripts(batches=12, keys=1500)
    run = Run(given, STAR, tmp_path, memory="500k", diskFuel="20k", flush="random", blockingThreshold="1")
    run.to_the_end()
    run.check()
    for phase in ("memoryToMemory", "diskToMemory", "diskToDisk"):
        assert sum(c[f"{phase}Rows"] for c in run.counts) > 0, phase
        assert sum(c[f"{phase}Probes"] for c in run.counts) > 0, phase
    per_batch = [c["memoryToMemoryRows"] + c["diskToMemoryRows"] + c["diskToDiskRows"] for c in run.counts]
    assert per_batch == [t.num_rows for t in run.results]


def test_new_input_goes_first_and_little_input_leaves_time_for_the_disk(tmp_path: Path) -> None:
    given = scripts(batches=10, keys=800)
    for script in given.values():
        script[5] = script[5].slice(0, 2)  # a lull
    run = Run(given, STAR, tmp_path, memory=str(MEMORY), blockingThreshold="100").to_the_end()
    disk = [c["diskToMemoryRows"] + c["diskToDiskRows"] for c in run.counts]
    assert [bool(rows) for rows in disk[:10]] == [n == 5 for n in range(10)]
    assert any(disk[10:])
    run.check()


def test_fuel_bounds_the_disk_work_of_a_batch(tmp_path: Path) -> None:
    few = Run(scripts(), STAR, tmp_path / "few", memory=str(MEMORY), diskFuel="1k").to_the_end()
    much = Run(scripts(), STAR, tmp_path / "much", memory=str(MEMORY), diskFuel="1g").to_the_end()
    assert len(much.counts) == 8 + 1
    assert len(few.counts) > 8 + 20
    few.check()
    much.check()


def pieces_of_passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Part, ...]]:
    """A list to which every piece that a pass joins is added."""
    seen: list[tuple[Part, ...]] = []

    def divide(*args: Any) -> Iterator[tuple[Part, ...]]:
        for parts in disk.divide(*args):
            seen.append(parts)
            yield parts

    monkeypatch.setattr(cleanup, "divide", divide)
    return seen


def test_a_bucket_larger_than_the_work_area_is_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", 24 << 10)
    pieces = pieces_of_passes(monkeypatch)
    given = scripts(batches=4, size=4000, keys=100_000)
    run = Run(given, STAR, tmp_path, memory="96k", flush="coordinated").to_the_end()
    run.check()
    assert all(any(part.digits for part in parts) for parts in pieces)
    assert not any(part.block for parts in pieces for part in parts)
    assert run.counts[-1]["memoryPeakBytes"] < (96 << 10) + (24 << 10)


def test_a_key_larger_than_the_work_area_is_joined_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "LEAST_AREA", 24 << 10)
    pieces = pieces_of_passes(monkeypatch)
    given = {alias: arrivals(n, 3, 300, 5000, hot=0.5) for n, alias in enumerate("ab")}
    given["c"] = arrivals(2, 3, 300, 5000, hot=0.01)
    run = Run(given, STAR, tmp_path, memory="32k").to_the_end()
    run.check()
    assert sum(t.num_rows for t in run.results) > 400 * 400 * 2, "the hot key must be hot"
    assert any(part.block for parts in pieces for part in parts)
    assert run.counts[-1]["memoryPeakBytes"] < (32 << 10) + (24 << 10)


def test_overflow_fail_stops_with_the_state_intact(tmp_path: Path) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY), overflow="fail")
    with pytest.raises(MemoryBudgetError, match="Give more 'memory'"):
        run.to_the_end()
    before = len(run.results)
    assert before > 0
    run.restart(overflow="spill")
    run.to_the_end()
    run.check()


def test_what_is_pending_from_disk_comes_although_overflow_is_an_error_by_now(tmp_path: Path) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY))
    steps = run.steps()
    for _ in range(4):
        next(steps)
    assert sum(c["rowsFlushed"] for c in run.counts) > 0
    run.restart(overflow="fail", memory="64m")
    run.to_the_end()
    run.check()


def test_coordinated_flushes_the_stars_of_a_chain(tmp_path: Path) -> None:
    """a and b have a key in common, by which c has none: c goes by its own."""
    run = Run(scripts(), CHAIN, tmp_path, memory=str(MEMORY), flush="coordinated").to_the_end()
    run.check()
    (manifest,) = run.manifests()
    departures = [set(of.array()[1::3].tolist()) for of in manifest.root.residency.departures]
    assert departures[0] == departures[1] and departures[2], "all have left, and a and b the same buckets"


@pytest.mark.parametrize("change", ["64k", "1m", ""], ids=["less", "more", "none"])
@pytest.mark.parametrize("query", [STAR, CHAIN], ids=["star", "chain"])
def test_a_restart_may_change_the_memory(tmp_path: Path, query: str, change: str) -> None:
    run = Run(scripts(), query, tmp_path, memory=str(MEMORY))
    steps = run.steps()
    for _ in range(4):
        next(steps)
    run.restart(memory=change)
    run.to_the_end()
    run.check()
    if change == "64k":
        assert all(c["memoryPeakBytes"] <= (64 << 10) + BATCH_BYTES for c in run.counts[4:])


def test_a_state_without_budget_gets_one(tmp_path: Path) -> None:
    run = Run(scripts(), STAR, tmp_path)
    steps = run.steps()
    for _ in range(5):
        next(steps)
    run.restart(memory="64k")
    run.to_the_end()
    run.check()
    assert all(c["memoryPeakBytes"] <= (64 << 10) + BATCH_BYTES for c in run.counts[5:])


def test_a_replay_with_another_memory_gives_the_same_rows(tmp_path: Path) -> None:
    """The budget is in the offset: what a crashed batch gave is what its replay gives, whatever the options are now."""
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY))
    steps = run.steps()
    for _ in range(4):
        next(steps)
    end = run.current.latestOffset(run.offset, ReadAllAvailable())
    first = [b for p in run.current.partitions(run.offset, end) for b in run.current.read(p)]
    run.restart(memory="1m", flush="largest")
    again = [b for p in run.current.partitions(run.offset, end) for b in run.current.read(p)]
    schema = run.current.session.spec.schema
    found, expected = (rows(pa.Table.from_batches(batches, schema)) for batches in (again, first))
    assert not (found - expected or expected - found)


def test_files_stay_few_under_overflow(tmp_path: Path) -> None:
    run = Run(scripts(batches=100, size=60), STAR, tmp_path, memory="64k", diskFuel="50k").to_the_end()
    run.check()
    (partition,) = tmp_path.glob("*/partition-0-of-1")
    names = [p.name for p in partition.iterdir()]
    assert len([n for n in names if n.startswith("rows-")]) <= 3 * (4 * FAN_OUT + KEPT_VERSIONS)
    assert not [n for n in names if n.startswith(".")]
    needed = {s.name for v in Manifests(str(partition.parent), 0).versions()
              for s in Manifests(str(partition.parent), 0).manifest(v).root.segments}  # fmt: skip
    assert {n for n in names if n.startswith("rows-")} == needed


def test_records_of_departures_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that never block would pile them up: from some number on a pass is due nevertheless."""
    monkeypatch.setattr("spark_mjoin.driver.disk_work.MOST_RECORDS", 100)
    run = Run(scripts(batches=40, size=100), STAR, tmp_path, memory="32k", flush="random", blockingThreshold="1")
    most = 0
    for _ in run.steps():
        (manifest,) = run.manifests()
        most = max(most, sum(of.size // 3 for of in manifest.root.residency.departures))
    assert 100 < most < 600
    run.check()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_segments_can_be_compressed(tmp_path: Path, compression: str) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY), segmentCompression=compression).to_the_end()
    run.check()
    plain = Run(scripts(), STAR, tmp_path / "plain", memory=str(MEMORY)).to_the_end()
    smaller = run.counts[-1]["diskUsedBytes"] < plain.counts[-1]["diskUsedBytes"]
    assert smaller == (compression != "none")


def test_a_damaged_segment_is_named_when_a_pass_reads_it(tmp_path: Path) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY), blockingThreshold="1")
    steps = run.steps()
    for _ in range(8):
        next(steps)
    (manifest,) = run.manifests()
    (victim,) = tmp_path.glob(f"*/partition-0-of-1/{manifest.root.segments[-1].name}")
    healthy = victim.read_bytes()
    victim.write_bytes(healthy[:1000] + bytes([healthy[1000] ^ 1]) + healthy[1001:])
    with pytest.raises(StateError, match=victim.name):
        run.to_the_end()
    victim.write_bytes(healthy)
    run.to_the_end()
    run.check()


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Let no file grow beyond a size: the kernel refuses the write, as it does when a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_stops_the_query_and_it_goes_on_when_there_is_space(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    run = Run(scripts(), STAR, tmp_path, memory=str(MEMORY))
    steps = run.steps()
    for _ in range(3):
        next(steps)
    small_disk(20_000)
    with pytest.raises(StateError, match=r"cannot write state file .*rows-.*last version is intact"):
        next(steps)
    small_disk(resource.RLIM_INFINITY)
    run.restart()
    run.to_the_end()
    run.check()


def test_a_batch_read_spills_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict

    from spark_mjoin.doors.datasource import MJoinDataSource

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    given = scripts()
    options = scripted(given, STAR, memory=str(MEMORY), partitions="2")
    source = MJoinDataSource(CaseInsensitiveDict(options))
    batch = source.reader(source.schema())
    used, produced = 0, []
    for partition in batch.partitions():
        for results in batch.read(partition):
            used = max(used, sum(p.stat().st_size for p in tmp_path.rglob("rows-*")))
            produced.append(results)
    run = Run(given, STAR, tmp_path / "state")
    run.results = [pa.Table.from_batches(produced)]
    run.check()
    assert used > 0
    assert not list(tmp_path.glob("mjoin-*"))
