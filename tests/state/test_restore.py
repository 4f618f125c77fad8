"""Checkpoint and state are restored from a copy, or a manifest is removed, while the workers of the query live on.

Spark keeps its Python workers from query to query, and any of them may get a partition's next task. So there are
several caches here, and each task says which of them it runs with. Input that the copy had not seen yet is corrected
before it comes again, with as many rows as before: then versions, positions and counts are the same on both time lines.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.engine import cache
from spark_mjoin.errors import StateError
from tests.examples import examples
from tests.harness import ReadAllAvailable, Rows, duckdb_join, reader, rows, scripted
from tests.scripted import SCRIPTS

BATCHES = 12
ROWS = 9
WORKERS = 3
TWO = "SELECT a.k, a.v AS av, b.v AS bv FROM a JOIN b ON a.k = b.k"
THREE = "SELECT a.k, a.v AS av, b.v AS bv, c.v AS cv FROM a JOIN b ON a.k = b.k JOIN c ON b.k = c.k"
KINDS = {
    "one join": (TWO, {"partitions": "2"}),
    "rows on disk": (TWO, {"memory": "1"}),
    "some rows on disk": (TWO, {"memory": "30k", "partitions": "2"}),
    "a tree": (THREE, {"plan": "((a b) c)"}),
    "windows": (TWO, {"window": "1000 rows"}),
    "promises": (TWO, {"source.a.punctuation": "v < 0", "purge": "immediate"}),
}


@dataclass
class Life:
    """A query, its checkpoint as the list of offsets, its sink as the rows of every batch, and some workers."""

    kind: str
    root: Path
    offsets: list[dict] = field(default_factory=list)
    sink: list[Rows] = field(default_factory=list)
    edition: int = 0
    copy: tuple[list[dict], list[Rows]] | None = None

    def __post_init__(self) -> None:
        self.query, options = KINDS[self.kind]
        self.aliases = "abc" if self.query == THREE else "ab"
        script = {alias: [self._rows(alias, batch) for batch in range(BATCHES)] for alias in self.aliases}
        self.options = scripted(script, self.query, stateLocation=str(self.root / "state"), **options)
        self.workers = [cache.StateCache() for _ in range(WORKERS)]
        self.reader = reader(self.options)
        self.offsets = [self.reader.initialOffset()]

    def _rows(self, alias: str, batch: int) -> pa.Table:
        """Of one file, in the newest edition; what was corrected are payloads, and which of the keys come."""
        shift = self.edition * "abc".index(alias)
        keys = [(i * 5 + batch + shift) % 7 for i in range(ROWS)]
        return pa.table({"k": keys, "v": [10_000 * self.edition + 100 * batch + i for i in range(ROWS)]})

    def batch(self, workers: tuple[int, ...]) -> None:
        end = self.reader.latestOffset(self.offsets[-1], ReadAllAvailable())
        if end != self.offsets[-1]:
            self.offsets.append(end)
            self.sink.append(self._read(workers))

    def again(self, workers: tuple[int, ...]) -> None:
        """The last batch once more."""
        self.sink[-1] = self._read(workers)

    def _read(self, workers: tuple[int, ...]) -> Rows:
        found: Rows = Counter()
        for partition, worker in zip(self.reader.partitions(*self.offsets[-2:]), workers, strict=False):
            with cache.using(self.workers[worker]):
                found += rows(pa.Table.from_batches(self.reader.read(partition), self.reader.session.spec.schema))
        return found

    def back_up(self) -> None:
        shutil.rmtree(self.root / "copy", ignore_errors=True)
        if (self.root / "state").exists():
            shutil.copytree(self.root / "state", self.root / "copy")
            self.copy = [*self.offsets], [*self.sink]

    def restore(self) -> None:
        """The query is stopped, both are restored, and it is started again; what it had not read is corrected."""
        if self.copy is None:
            return
        shutil.rmtree(self.root / "state")
        shutil.copytree(self.root / "copy", self.root / "state")
        self.offsets, self.sink = [*self.copy[0]], [*self.copy[1]]
        self.correct(self.offsets[-1])
        self.reader = reader(self.options)

    def correct(self, since: dict) -> None:
        self.edition += 1
        for alias in self.aliases:
            for batch in range(since["positions"][alias]["batch"], BATCHES):
                SCRIPTS[alias][batch] = self._rows(alias, batch)

    def remove(self, redo: bool) -> None:
        """The newest manifests are removed, and the query is started again.

        Its last batch is done again, without what it had before; or Spark has recorded that batch as done.
        """
        if len(self.offsets) < 2:
            return
        for manifest in (self.root / "state").rglob(f"version-{self.offsets[-1]['version']:012d}.json"):
            manifest.unlink()
        self.reader = reader(self.options)
        if redo:
            if self.copy is not None and len(self.copy[0]) >= len(self.offsets):
                self.copy = None  # it has what is corrected now
            self.correct(self.offsets[-2])
            self.again((0, 0))

    def expected(self) -> Rows:
        tables = {
            alias: pa.concat_tables(
                SCRIPTS[alias][: self.offsets[-1]["positions"][alias]["batch"]] or [self._rows(alias, 0)[:0]]
            )
            for alias in self.aliases
        }
        return rows(duckdb_join(self.query, tables))

    def check(self) -> None:
        """Let the disk work end, and compare."""
        for _ in range(5 * BATCHES):
            self.batch((1, 2))
        assert sum(self.sink, Counter()) == self.expected()


WORKER = st.integers(0, WORKERS - 1)
STEPS = st.one_of(
    st.tuples(st.just("batch"), st.tuples(WORKER, WORKER)),
    st.tuples(st.just("batch"), st.tuples(WORKER, WORKER)),
    st.tuples(st.just("again"), st.tuples(WORKER, WORKER)),
    st.just(("back_up",)),
    st.just(("restore",)),
    st.tuples(st.just("remove"), st.booleans()),
)


@pytest.mark.parametrize("kind", KINDS)
@examples(60)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def oracle_a_restore_while_workers_live(kind: str, steps: list[tuple]) -> None:
    with TemporaryDirectory() as directory:
        life = Life(kind, Path(directory))
        for name, *arguments in steps:
            if name != "again" or life.sink:
                getattr(life, name)(*arguments)
        life.check()


def with_a_batch_since_the_copy(kind: str, root: Path) -> Life:
    """Version 1 is in the copy, and worker 0 holds version 2, of the time line that a restore abandons."""
    life = Life(kind, root)
    life.batch((0, 0))
    life.back_up()
    life.batch((0, 0))
    return life


@contextmanager
def no_state_is_loaded() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_mjoin.engine.loading.load", None)
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("versions", [0, 1, 2, 6])
def test_a_state_of_another_time_line(kind: str, versions: int, tmp_path: Path) -> None:
    """It has the version and the positions of the published one, or is some versions behind.

    The manifest of its version may be gone already; those of later ones say where they come from.
    """
    life = with_a_batch_since_the_copy(kind, tmp_path)
    life.restore()
    for _ in range(1 + versions):
        life.batch((1, 1))
    life.batch((0, 0))
    life.check()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("redo", [True, False], ids=["redone", "recorded"])
def test_a_manifest_that_was_removed(kind: str, redo: bool, tmp_path: Path) -> None:
    life = Life(kind, tmp_path)
    life.batch((0, 0))
    life.batch((1, 1))  # worker 1 holds version 2
    life.remove(redo)
    life.batch((1, 1))
    life.check()


def test_a_state_that_is_published_is_resumed_and_caught_up(tmp_path: Path) -> None:
    """Nothing is read anew that need not be."""
    life = Life("one join", tmp_path)
    for workers in [(0, 1), (2, 2)]:
        life.batch(workers)
        with no_state_is_loaded():
            life.batch((0, 1))
    life.check()


def test_a_batch_that_is_read_twice_leaves_a_state_to_resume_from(tmp_path: Path) -> None:
    """As two actions in a foreachBatch do: the second finds the version of the first, with the same rows."""
    life = Life("one join", tmp_path)
    life.batch((0, 0))
    life.batch((0, 0))
    life.again((0, 0))
    with no_state_is_loaded():
        life.batch((0, 0))
    life.check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_version_with_other_rows_is_not_taken_for_ones_own(kind: str, tmp_path: Path) -> None:
    """A task of the abandoned time line commits after the restore: with as many rows, which are other rows."""
    life = with_a_batch_since_the_copy(kind, tmp_path)
    late = list((tmp_path / "state").rglob("*-000000000002*"))
    kept = {path: path.read_bytes() for path in late}
    life.restore()
    for path, contents in kept.items():
        path.write_bytes(contents)
    with pytest.raises(StateError, match=r"state version 2 in .* is there already, with other rows"):
        life.batch((1, 1))
