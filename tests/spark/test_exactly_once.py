"""Nothing is lost and nothing comes twice: re-read batches, abandoned batches, retries, restarts, damage."""

import multiprocessing
import os
import re
import shutil
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin.engine import cache
from spark_mjoin.state.manifest import parsed
from tests.harness import Rows, consume, reader, rows
from tests.spark.joins import STAR, FileJoin, arrivals

# --- one batch, read more than once, or not to its end -------------------------------------------------------------


def test_two_actions_in_one_batch_see_the_same_rows(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"}).fill(files=3)
    counts = []

    def act_twice(batch: DataFrame, number: int) -> None:
        counts.append(batch.count())
        batch.write.mode("overwrite").parquet(str(tmp_path / "sink" / f"batch={number}"))

    join.start_with(join.load(spark_session).writeStream.foreachBatch(act_twice)).awaitTermination()
    written = spark_session.read.parquet(str(tmp_path / "sink"))
    assert counts == [written.where(f"batch = {number}").count() for number in range(3)]
    assert rows(written.drop("batch").toArrow()) == join.expected()


@pytest.mark.parametrize("glance", ["limit", "is empty", "take", "nothing"])
def test_batches_that_are_not_read_to_the_end_cost_later_ones_nothing(
    spark_session: SparkSession, tmp_path: Path, glance: str
) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"}).fill(files=4)
    looked: list[object] = []

    def look(batch: DataFrame, number: int) -> None:
        if number == 3:
            join.batches[number] = rows(batch.toArrow())
        elif glance == "limit":
            looked.append(batch.limit(2).count() == 2)
        elif glance == "is empty":
            looked.append(not batch.isEmpty())
        elif glance == "take":
            looked.append(len(batch.take(1)) == 1)

    join.start_with(join.load(spark_session).writeStream.foreachBatch(look)).awaitTermination()
    assert looked == ([] if glance == "nothing" else [True] * 3)
    assert join.batches[3] == join.expected() - expected_of(join, files=3)


def expected_of(join: FileJoin, files: int) -> Rows:
    """What the first files of every source give."""
    part = FileJoin(join.root, join.query, tables={alias: tables[:files] for alias, tables in join.tables.items()})
    return part.expected()


def test_limit_on_the_stream(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"}).fill(files=3)
    writer = join.load(spark_session).limit(3).writeStream.format("memory").queryName("limited")
    join.start_with(writer).awaitTermination()
    limited = rows(spark_session.table("limited").toArrow())
    assert limited.total() == 3
    assert limited <= join.expected()


# --- attempts (retries are in test_kill) -----------------------------------------------------------------------------


def attempt(options: dict[str, str], part: object, barrier: object, answers: object) -> None:
    """One attempt at a partition's task, in a process of its own, at the same time as another."""
    current = reader(options)
    barrier.wait()  # type: ignore[attr-defined]
    answers.put(list(rows(pa.Table.from_batches(current.read(part), current.session.spec.schema)).items()))  # type: ignore


def test_two_attempts_at_once_agree_and_leave_one_version(tmp_path: Path) -> None:
    """Speculation: the same partition of the same batch runs in two processes together."""
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1"}).fill(files=2, rows=400, keys=100)
    options = join.all_options()
    spawn = multiprocessing.get_context("spawn")
    current = reader(options)
    start, found = current.initialOffset(), Counter()
    for version in range(1, 3):
        end = current.latestOffset(start, current.getDefaultReadLimit())
        (part,) = current.partitions(start, end)
        barrier, answers = spawn.Barrier(2), spawn.Queue()
        racers = [spawn.Process(target=attempt, args=(options, part, barrier, answers)) for _ in range(2)]
        for racer in racers:
            racer.start()
        first, second = (answers.get(timeout=120) for _ in racers)
        for racer in racers:
            racer.join(60)
            assert racer.exitcode == 0
        assert Counter(dict(first)) == Counter(dict(second))
        found += Counter(dict(first))
        newest = join.state_files("partition-0-*/version-*")[-1]
        manifest = parsed(newest.read_bytes().partition(b" ")[2], newest.name)
        assert manifest.version == version
        named = {s.name for operator in manifest.operators for s in operator.segments}
        assert named == {p.name for p in join.state_files("partition-0-*/rows-*")}
        start = end
    assert found == join.expected()
    assert current.latestOffset(start, ReadAllAvailable()) == start


def test_a_task_that_is_cut_off_is_no_trace_in_the_next(tmp_path: Path) -> None:
    """An attempt that emitted rows and then died, in a process whose cache the next attempt shares."""
    join = FileJoin(tmp_path).fill(files=1)
    current = reader(join.all_options())
    start = current.initialOffset()
    (part,) = current.partitions(start, end := current.latestOffset(start, ReadAllAvailable()))
    consume(current.read(part), 1)
    assert rows(list(map(pa.Table.from_batches, [[b] for b in current.read(part)]))) == join.expected()
    assert end["version"] == 1


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_restart_goes_on(spark_session: SparkSession, tmp_path: Path) -> None:
    join = FileJoin(tmp_path, options={"partitions": "2"}).fill(files=2)
    join.run(spark_session)
    moved = join.elsewhere("moved").fill(files=1)  # the state is read from its files, not from a worker's cache
    moved.run(spark_session)
    assert moved.collected == moved.expected()
    assert moved.batches[1] == moved.expected() - join.expected()


REFUSED = {
    "other source": (
        {"source.b.path": "{root}/in/c", "source.b.schema": "k BIGINT, y BIGINT"},
        "source b: option path",
    ),
    "other key": (
        {"query": "SELECT a.k, a.x, b.y, c.z FROM a JOIN b ON a.x = b.y JOIN c ON a.x = c.z"},
        "input a: key was k (integer as BIGINT), is now x (integer as BIGINT)",
    ),
    "other filter": ({"query": f"{STAR} WHERE b.y > 0"}, "input b: filter was not given, is now"),
    "one source less": (
        {"query": "SELECT a.k, a.x, b.y FROM a JOIN b ON a.k = b.k", "source.c.format": "", "source.c.path": ""},
        "input c is no longer there",
    ),
    "other columns": ({"query": STAR.replace("a.x,", "")}, "input a: column x is stored no longer"),
}


@pytest.fixture(scope="module")
def stopped(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> FileJoin:
    """A star join that has run over two files of each source; one more is waiting. Tests work on copies of it."""
    join = FileJoin(tmp_path_factory.mktemp("stopped"), options={"maxFilesPerTrigger": "1"}).fill(files=2)
    join.run(spark_session)
    assert join.collected == join.expected()
    return join.fill(files=1)


@pytest.mark.parametrize("change", REFUSED)
def test_a_restart_with_another_meaning_is_refused(spark_session: SparkSession, stopped: FileJoin, change: str) -> None:
    options, message = REFUSED[change]
    join = stopped.elsewhere(f"refused {change}")
    other = join.changed(**{name: value.format(root=join.root) for name, value in options.items()})
    with pytest.raises(Exception, match="options have changed in a way that the saved state does not allow") as error:
        other.run(spark_session)
    assert message in str(error.value)
    assert "new checkpoint" in str(error.value)
    if change == "other columns":  # one is enough: the state is as it was
        join.run(spark_session)
        assert join.collected == join.expected()


def test_a_restart_with_another_projection_goes_on(spark_session: SparkSession, stopped: FileJoin) -> None:
    join = stopped.elsewhere("projected")
    other = (
        "SELECT a.x + b.y + c.z AS s, a.k AS key, a.x * b.y AS p, c.z FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"
    )
    before = set(join.batches)
    projected = join.changed(query=other)
    projected.run(spark_session)
    added = sum((found for number, found in projected.batches.items() if number not in before), Counter())
    assert added == projected.expected() - expected_of(projected, files=2)
    assert added


def test_a_new_checkpoint_over_the_same_state_location_starts_over(
    spark_session: SparkSession, stopped: FileJoin
) -> None:
    join = stopped.elsewhere("over")
    shutil.rmtree(join.checkpoint)
    join.batches = {}
    join.run(spark_session)
    assert len(join.batches) == 3
    assert join.collected == join.expected()
    assert len(list(join.state.iterdir())) == 2


# --- damage ----------------------------------------------------------------------------------------------------------

MANIFEST = "partition-0-*/version-*2.json"
SEGMENT = "partition-0-*/rows-000000000001-1-*.arrow"
DAMAGED = [
    (MANIFEST, "truncated"),
    (MANIFEST, "flipped"),
    (SEGMENT, "truncated"),
    (SEGMENT, "flipped"),
    (SEGMENT, "missing"),
    ("meaning.json", "flipped"),
    ("sources/0/entries-*.json", "truncated"),
]


@pytest.mark.parametrize(("file", "damage"), DAMAGED)
def test_damaged_state_is_named_and_not_read(
    spark_session: SparkSession, stopped: FileJoin, file: str, damage: str
) -> None:
    join = stopped.elsewhere(f"{damage} {re.sub(r'[^a-z0-9]+', ' ', file)}")
    (path, *_) = join.state_files(file)
    contents = path.read_bytes()
    middle = len(contents) // 2
    flipped = contents[:middle] + bytes([contents[middle] ^ 4]) + contents[middle + 1 :]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(flipped if damage == "flipped" else contents[:middle])
    with pytest.raises(Exception, match="missing" if damage == "missing" else "damaged") as error:
        join.run(spark_session)
    assert path.name in str(error.value)
    assert join.batches == stopped.batches
    path.write_bytes(contents)
    join.run(spark_session)
    assert join.collected == join.expected()


def test_a_lost_version_is_made_again_from_the_one_before(spark_session: SparkSession, stopped: FileJoin) -> None:
    join = stopped.elsewhere("lost")
    join.state_files(MANIFEST)[0].unlink()
    join.run(spark_session)
    assert join.collected == join.expected()


# --- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repair", ["corrected", "removed"])
def test_a_bad_row_stops_the_query_and_leaves_it_repairable(
    spark_session: SparkSession, tmp_path: Path, repair: str
) -> None:
    join = FileJoin(tmp_path, options={"maxFilesPerTrigger": "1", "partitions": "2"})
    join.formats["b"] = {"format": "csv", "schema": "k BIGINT, y BIGINT"}
    join.fill(files=2)
    bad = join.add("b", arrivals("b", 2))
    lines = bad.read_text().splitlines()
    bad.write_text("\n".join([*lines[:5], "4,many", *lines[5:]]))
    os.utime(bad, (time.time() - 10,) * 2)
    join.add("a", arrivals("a", 2))
    with pytest.raises(Exception, match="many") as error:
        join.run(spark_session)
    assert "source 'b'" in str(error.value)
    assert bad.name in str(error.value)
    assert join.collected == expected_of(join, files=2)

    join.options["source.b.failOnDataLoss"] = "false"
    if repair == "corrected":
        bad.write_text("\n".join(lines))
    else:
        bad.unlink()
        join.tables["b"].pop()
    join.run(spark_session)
    join.fill(files=1)
    join.run(spark_session)
    assert join.collected == join.expected()


@pytest.fixture(autouse=True)
def no_state_of_other_tests() -> None:
    cache.of_worker().clear()
