"""Access while a query runs: it follows the rates, is recorded in the offset, and a replay does the same."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mjoin.engine import cache
from spark_mjoin.explaining.explanation import explained
from spark_mjoin.state.table import HashIndex
from tests.explaining.test_explain import section
from tests.harness import ReadAllAvailable, Rows, consume, reader, rows, scripted

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = 4  # batches
FAST, SLOWER = 20, 80  # batches that are long and in which b is fast, and all


@pytest.fixture(autouse=True)
def default_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache.of_worker().clear()


def join(batches: int = SLOWER, **options: str) -> dict[str, str]:
    """Two rows of a in every batch; a thousand of b for some time, and five after that.

    A batch is a second while b is fast, and then a twentieth: a window lasts for many batches.
    """

    def second(batch: int, rows: int) -> pa.Table:
        at = [BEGIN + timedelta(seconds=min(batch, FAST) + max(0, batch - FAST) / 20)] * rows
        return pa.table({"k": [(7 * batch + i) % 50 for i in range(rows)], "at": at, "n": range(rows)})

    scripts = {
        "a": [second(batch, 2) for batch in range(batches)],
        "b": [second(batch, 1000 if batch < FAST else 5) for batch in range(batches)],
    }
    timed = {"window": f"{WINDOW} seconds", **options}
    for alias in "ab":
        timed |= {f"source.{alias}.timestamp": "at", f"source.{alias}.watermark": "0 seconds"}
    query = "SELECT a.at, a.n, b.at AS bat, b.n AS bn FROM a JOIN b ON a.k = b.k"
    return scripted(scripts, query, **timed)


def drive(options: dict[str, str], state: Path) -> tuple[list[dict[str, Any]], Rows, Any]:
    """All offsets, all results, and the reader in the end."""
    current = reader({**options, "stateLocation": str(state)})
    offsets, found = [current.initialOffset()], Rows()
    while (end := current.latestOffset(offsets[-1], ReadAllAvailable())) != offsets[-1]:
        for partition in current.partitions(offsets[-1], end):
            for batch in current.read(partition):
                found += rows(pa.table(batch))
        offsets.append(end)
    return offsets, found, current


def scans(offset: dict[str, Any]) -> set[tuple[int, int]]:
    return {(origin, target) for of in offset.get("plan", {}).get("access", ()) for origin, target in of}


def test_access_follows_the_rates(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spark_mjoin.driver.session"):
        offsets, found, current = drive(join(), tmp_path)
    used = [scans(offset) for offset in offsets[1:]]
    assert (0, 1) in used[FAST - 1]  # the window of b is full, and moves by a quarter with every batch
    assert used[:WINDOW] == [set()] * WINDOW  # before that, nothing leaves: an index is as good
    assert used[-1] == set()
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("access to b: ")]
    assert len(said) == 2
    assert said[0].startswith("access to b: a scans: ") and said[1].startswith("access to b: a looks up: ")
    assert current.reportLatestOffset()["metrics"]["aAccess"] == "b: hash"
    hashed = drive(join(access="hash"), tmp_path / "hash")
    assert hashed[1] == found and not any(map(scans, hashed[0]))


def test_the_metric_says_how_rows_were_found(tmp_path: Path) -> None:
    _, _, current = drive(join(batches=4, access="a>b: scan"), tmp_path)
    metrics = current.reportLatestOffset()["metrics"]
    assert (metrics["aAccess"], metrics["bAccess"]) == ("b: scan", "a: hash")


def test_a_batch_that_is_run_again_scans_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other options, in another process: what the offset says counts, and the same version comes out."""
    options = join(batches=FAST, access="a>b: scan")
    offsets, _, current = drive(options, tmp_path)
    before, last = offsets[-2:]
    again = reader({**options, "access": "hash", "stateLocation": str(tmp_path)})
    results, extend = [], HashIndex.extend
    for reading in (current, again):
        cache.of_worker().clear()
        indexed: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(HashIndex, "extend", lambda index, n, seen=indexed: (seen.append(n), extend(index, n))[1])
            (partition,) = reading.partitions(before, last)
            results.append(rows([pa.table(batch) for batch in reading.read(partition)]))
        assert indexed and max(indexed) < 100, "b's rows went into an index"
    assert results[0] == results[1] and results[0]


def test_a_batch_that_nobody_read_is_made_up_for_as_it_was_planned(tmp_path: Path) -> None:
    """Versions that are missing are rebuilt (task._rebuild) with the plan of the batch before."""
    options = join(batches=8, access="scan")
    current = reader({**options, "stateLocation": str(tmp_path)})
    start, found = current.initialOffset(), Rows()
    for batch in range(8):
        end = current.latestOffset(start, ReadAllAvailable())
        for partition in current.partitions(start, end):
            if batch == 3:
                consume(current.read(partition), 0)
                continue
            found += rows([pa.table(b) for b in current.read(partition)])
        start = end
    whole = drive(options, tmp_path / "whole")[1]
    assert not found - whole
    lost = sum((whole - found).values())
    assert 0 < lost < sum(whole.values()) / 4  # what completed in batch 3, and nothing else


def test_explain_shows_access_with_its_figures(tmp_path: Path) -> None:
    options = join(batches=FAST)
    before = section(explained(options), "ACCESS")
    assert "a        b              auto" in before and "4.5 ns" in before
    drive(options, tmp_path)
    after = section(explained(options, state=str(tmp_path)), "ACCESS")
    assert "a        b              scan     scan" in after and "b        a              hash     hash" in after
    assert "  b: a scans: " in after and " ns per row of b that arrives, a looks up " in after
    plain = scripted(
        {"a": [pa.table({"k": [1]})], "b": [pa.table({"k": [1]})]}, "SELECT a.k FROM a JOIN b ON a.k = b.k"
    )
    assert "ACCESS" not in str(explained(plain))
