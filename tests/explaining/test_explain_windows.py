"""`explain` and `advise` of joins with windows: what is inside, what the state holds, what comes out, against runs."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.driver.loading import load
from spark_mjoin.engine import cache
from spark_mjoin.explaining import matching
from spark_mjoin.explaining.advice import advised
from spark_mjoin.explaining.explanation import explained
from spark_mjoin.model import Array
from spark_mjoin.plan import Plan
from tests.explaining.test_advise import close
from tests.explaining.test_explain import section
from tests.harness import reader, run, scripted

NOON, SECONDS = 1_767_268_800, 400
PACES = {"a": 40, "b": 20, "c": 10}  # rows per second of event time
QUERY = "SELECT a.n AS an, b.n AS bn, c.n AS cn FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tests.scripted.CHUNK_ROWS", 1000)
    cache.of_worker().clear()


def stream(alias: str, near: bool, batches: int = 100) -> list[pa.Table]:
    """Rows out of order by up to two seconds; near: those with equal keys are within ten seconds of each other."""
    random = np.random.Generator(np.random.Philox(ord(alias)))
    count = PACES[alias] * SECONDS
    came = np.sort(random.uniform(0, SECONDS, count))
    keys = (came // 10).astype(np.int64) * 50 + random.integers(0, 50, count) if near else random.integers(0, 60, count)
    times = (1e6 * (NOON + came - random.uniform(0, 2, count))).astype(np.int64)
    whole = pa.table({"n": np.arange(count), "k": keys, "at": pa.array(times, pa.timestamp("us", "UTC"))})
    cuts = np.searchsorted(came, np.linspace(0, SECONDS, batches + 1))
    return [whole.slice(start, end - start) for start, end in pairwise(cuts)]


def timed(near: bool = False, **options: str) -> dict[str, str]:
    given = {f"source.{alias}.timestamp": "at" for alias in PACES}
    given |= {f"source.{alias}.watermark": "5 seconds" for alias in PACES}
    return scripted({alias: stream(alias, near) for alias in PACES}, QUERY, **{**given, **options})


@pytest.mark.parametrize("near", [False, True], ids=["keys in no order", "equal keys come together"])
def test_advice_on_windows_in_time_is_what_a_run_shows(near: bool, tmp_path: Path) -> None:
    options = timed(near, **{"window": "1 minute", "source.b.window": "30 seconds", "expiry": "active"})
    made = advised(options, sample_rows=4000).expectation
    assert made.inside == pytest.approx((2400, 600, 600), rel=0.05)
    results = sum(table.num_rows for table in run(options, tmp_path))
    seen = explained(options, state=str(tmp_path)).observed
    assert seen is not None
    # A source that cannot tell how much it has counts with what was read.
    made = advised(options).expectation
    assert results > 10_000 and close(made.results, results)
    assert close(sum(made.held), seen.figure("numRowsTotal"))
    assert close(made.state_bytes, seen.figure("memoryUsedBytes"), 1.5)


def test_lazy_expiry_holds_no_more_than_is_said(tmp_path: Path) -> None:
    options = timed(window="20 seconds")
    run(options, tmp_path)
    made, seen = advised(options).expectation, explained(options, state=str(tmp_path)).observed
    assert seen is not None
    assert sum(made.inside) < seen.figure("numRowsTotal") < 1.1 * sum(made.held)


def test_advice_on_windows_in_rows(tmp_path: Path) -> None:
    scripts = {alias: stream(alias, False) for alias in PACES}
    options = scripted(scripts, f"{QUERY} WHERE a.n % 2 = 0", **{"window": "600 rows", "source.a.window": "none"})
    made = advised(options)
    assert made.expectation.inside == pytest.approx((8_000, 600, 600)), "all of a that pass its filter"
    assert close(made.expectation.results, sum(table.num_rows for table in run(options, tmp_path)))
    assert "pairs of rows inside the windows" in section(made, "SAMPLED KEYS")
    assert re.search(r"b +600 rows +600 +900\n", section(made, "WINDOWS"))


def test_times_are_sampled() -> None:
    made = advised(timed(window="1 minute"))
    text = section(made, "SAMPLED TIMES")
    for alias, pace in PACES.items():
        assert re.search(rf"{alias} +{pace} +1\.\d+ s +(1.9\d*|2) s +0.000%\n", text)
    assert "A WINDOW would" not in str(made)
    strict = advised(timed(**{"window": "1 minute", "source.a.watermark": "1 second"}))
    (late,) = re.findall(r"a .* (\S+)%\n", section(strict, "SAMPLED TIMES"))
    truth = _behind(stream("a", False)) > 1e6
    assert float(late) == pytest.approx(100 * truth.mean(), abs=0.01)


def _behind(tables: list[pa.Table]) -> Array:
    times = pa.concat_tables(tables)["at"].cast(pa.int64()).to_numpy()
    return np.maximum.accumulate(times) - times


def oracle_pairs_inside_are_those_that_a_window_lets_through() -> None:
    random = np.random.Generator(np.random.Philox(5))
    for reach in ([3.0, 5.0], [0.5, 100.0], [np.inf, 1.0]):
        a, b = random.uniform(0, 20, 80), random.uniform(0, 20, 60)
        truth = sum(y > x - reach[1] if y <= x else x > y - reach[0] for x in a for y in b)
        assert matching.pairs_inside(a, b, reach) == truth


RATES = {"source.a.expectedRowsPerSecond": "100", "source.b.expectedRowsPerSecond": "10"}
PAIR = "SELECT a.n FROM a JOIN b ON a.k = b.k"


def pair(**options: str) -> dict[str, str]:
    given = {f"source.{alias}.timestamp": "at" for alias in "ab"} | {
        f"source.{alias}.watermark": "0 seconds" for alias in "ab"
    }
    return scripted({alias: stream(alias, False, 1) for alias in "ab"}, PAIR, **given, **RATES, **options)


def test_rates_and_state_with_windows_are_steady() -> None:
    options = pair(
        window="10 seconds", expectedSelectivity="a.b: 0.01", expiry="active", **{"source.b.window": "1 minute"}
    )
    made = explained(options, seconds=3600)
    # An arrival of a meets the last minute of b, and one of b the last ten seconds of a.
    rate = 0.01 * (100 * 10 * 60 + 10 * 100 * 10)
    assert made.expectation.output_rate == pytest.approx(rate)
    filling = 0.01 * (100 * 10 * 60**2 / 2 + 10 * 100 * 10**2 / 2)
    later = 0.01 * (100 * 600 * (3600 - 60) + 10 * 1000 * (3600 - 10))
    assert made.expectation.results == pytest.approx(filling + later)
    assert made.expectation.held == (1000, 600)
    text = section(made, "RATES AND STATE, after 1 h")
    assert f"out: {rate:,.0f} rows/s" in text and re.search(r"all +1,600 ", text)
    later_still = explained(options, seconds=36_000).expectation
    assert later_still.state_bytes == made.expectation.state_bytes
    assert later_still.output_rate == pytest.approx(rate)


def test_unique_keys_give_as_many_results_as_the_slower_input_has_rows() -> None:
    made = explained(pair(window="10 seconds", **{"source.b.window": "1 minute"})).expectation
    assert made.output_rate == pytest.approx(10.0)


def test_before_the_first_row_orders_go_by_what_is_inside() -> None:
    """c is slow and stays long; b is fast, and few of its rows count."""
    given = {
        f"source.{alias}.expectedRowsPerSecond": str(rate) for alias, rate in {"a": 100, "b": 1000, "c": 10}.items()
    }
    options = timed(window="1 hour", expectedSelectivity="a.b: 0.001, a.c: 0.001, b.c: 0.001", **given)

    def first(**more: str) -> object:
        current = reader({**options, **more, "stateLocation": "unused"})
        plan = current.session.planner.next_batch(Plan((0, 1, 2)), [None], PACES, [0.0] * 3, False).plan
        return plan.orders[0][0]

    assert first() == (2, 1)
    assert first(**{"source.b.window": "1 second"}) == (1, 2)
    assert load(options)[0].windowed


def test_a_query_that_runs_is_compared_with_what_its_windows_come_to(tmp_path: Path) -> None:
    expected = {f"source.{alias}.expectedRowsPerSecond": str(pace) for alias, pace in PACES.items()}
    selectivity = {"expectedSelectivity": f"a.b: {1 / 60}, a.c: {1 / 60}, b.c: {1 / 60}"}
    options = timed(window="20 seconds", expiry="active", **expected, **selectivity)
    run(options, tmp_path)
    made = explained(options, state=str(tmp_path))
    assert made.observed is not None
    text = section(made, "RESULTS AND STATE")
    figures = dict(re.findall(r"^ +(\S.*?)  +(.*)$", text, re.MULTILINE))
    rows, seen = (float(n.replace(",", "")) for n in figures["rows in the state"].split())
    assert close(rows, seen) and rows == pytest.approx(sum(made.expectation.held), abs=1)
    assert "expected after 1 h" in text and "outside their window, dropped in the last batch" in figures
    assert re.search(r"a, b by k1 +0.0167 +given +0.0\d+ +measured", section(made, "OBSERVED"))
    assert "rows inside" in section(made, "WINDOWS")
    unknown = {name: value for name, value in options.items() if "expected" not in name}
    blank = section(explained(unknown, state=str(tmp_path)), "RESULTS AND STATE")
    assert re.search(r"rows in the state +\? +[\d,]+\n", blank)
