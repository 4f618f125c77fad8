"""States that earlier code wrote are still read: golden directories of the state's format.

Until the first release a change of the format writes them anew, by `python -m tests.state.test_golden`. Those whose
names end in `windows` are of a join with windows, from which rows have been dropped; `promises`: by punctuations.
"""

import json
import shutil
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mjoin.engine import cache
from spark_mjoin.state.checked_json import FORMAT
from spark_mjoin.state.manifest import Manifests
from tests.harness import ReadAllAvailable, reader, rows, scripted

GOLDEN = Path(__file__).parent / "golden"
QUERY = """SELECT a.k, a.s AS a_s, b.d, b.l, b.m FROM a JOIN b ON a.k = b.k AND a.s = b.s
           JOIN c ON c.f = b.f WHERE a.k < 100"""
BATCHES = 3  # the golden state has seen all but the last


def batch(number: int) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([number, 7, None], pa.int32()),
            "s": ["x", "a string of more than sixteen bytes", "x"],
            "f": [0.5, float("nan"), -0.0],
            "d": [date(2024, 1, 1 + number), None, date(1969, 12, 31)],
            "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
            "m": [Decimal("1.50"), Decimal("-2.25"), None],
        }
    )


def options(state: Path, kind: str) -> dict[str, str]:
    script = [batch(number) for number in range(BATCHES)]
    if kind == "promises":
        over = [table.append_column("over", pa.array([False] * table.num_rows)) for table in script]
        said = [{"k": n - 1, "over": True} for n in range(BATCHES)]  # of which there was none
        marks = [pa.Table.from_pylist([row], over[0].schema) for row in said]
        a = [over[0].slice(1), *(pa.concat_tables([o, m]) for o, m in zip(over[1:], marks[1:], strict=True))]
        b = [pa.concat_tables([script[0], batch(20)]), *script[1:]]
        given = {"source.a.punctuation": "over", "purge": "immediate"}
        return scripted({"a": a, "b": b, "c": script}, QUERY, stateLocation=str(state), **given)
    if not kind:
        return scripted({"a": script, "b": script, "c": script}, QUERY, stateLocation=str(state))
    times = [pa.array([10 * n, 10 * n + 5, 10 * n + 7], pa.timestamp("us", "UTC")) for n in range(BATCHES)]
    script = [table.append_column("at", at) for table, at in zip(script, times, strict=True)]
    given = {"window": "4 microseconds", "source.c.window": "4 rows", "expiry": "active"}
    for alias in "abc":
        given |= {f"source.{alias}.timestamp": "at", f"source.{alias}.watermark": "2 microseconds"}
    return scripted({"a": script, "b": script, "c": script}, QUERY, stateLocation=str(state), **given)


def step(state: Path, start: dict, kind: str) -> tuple[dict, pa.Table]:
    """One batch from an offset; the next offset and the results."""
    cache.of_worker().clear()
    current = reader(options(state, kind))
    end = current.latestOffset(start, ReadAllAvailable())
    produced = [b for partition in current.partitions(start, end) for b in current.read(partition)]
    return end, pa.Table.from_batches(produced, current.session.spec.schema)


def write(directory: Path, kind: str) -> None:
    """Make a golden directory with today's code."""
    offset = reader(options(directory, kind)).initialOffset()
    for _ in range(BATCHES - 1):
        offset, _ = step(directory, offset, kind)
    (directory / "offset.json").write_text(json.dumps(offset))


def results(directory: Path, kind: str) -> list[pa.Table]:
    """What all batches give, from an empty state."""
    offset, tables = reader(options(directory, kind)).initialOffset(), []
    for _ in range(BATCHES):
        offset, table = step(directory, offset, kind)
        tables.append(table)
    return tables


def test_this_format_has_a_golden_directory() -> None:
    assert (GOLDEN / f"format-{FORMAT}").is_dir()


def test_rows_were_dropped_from_the_golden_state_with_windows() -> None:
    (query,) = GOLDEN.glob("*-windows/*/partition-0-of-1")
    assert any(Manifests(str(query.parent), 0).manifest(BATCHES - 1).dropped)


def test_rows_were_purged_from_the_golden_state_with_promises() -> None:
    (query,) = GOLDEN.glob("*-promises/*/partition-0-of-1")
    manifest = Manifests(str(query.parent), 0).manifest(BATCHES - 1)
    assert any(manifest.dropped) and manifest.root.purged_files


@pytest.mark.parametrize("format", sorted(p.name for p in GOLDEN.iterdir()))
def test_a_golden_state_goes_on(format: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / format, tmp_path / "state")
    offset = json.loads((tmp_path / "state" / "offset.json").read_text())
    kind = "".join(format.split("-")[2:])
    _, last = step(tmp_path / "state", offset, kind)
    assert last.num_rows > 0
    assert rows(last) == rows(results(tmp_path / "fresh", kind)[-1])


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for kind in ("", "windows", "promises"):
        write(GOLDEN / "-".join(filter(None, (f"format-{FORMAT}", kind))), kind)
