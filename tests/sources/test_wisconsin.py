"""The generator: its rows are the benchmark's, its arrivals a reproducible Poisson process at the rate asked for."""

from __future__ import annotations

import datetime as dt
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.errors import OptionError
from spark_mjoin.sources import create, wisconsin
from spark_mjoin.sources.arrivals import Arrivals, intensity_of
from spark_mjoin.sources.memory_log import MemoryLog
from spark_mjoin.sources.options import Options
from spark_mjoin.sources.protocol import Limits
from spark_mjoin.sources.wisconsin import WisconsinSource, permute


def source(**options: str) -> WisconsinSource:
    made = create("w", "wisconsin", options)
    assert isinstance(made, WisconsinSource)
    return made


def paced(**options: str) -> Arrivals:
    intensity = intensity_of(Options("w", options))
    assert intensity is not None
    return Arrivals(0, intensity)


def table(
    made: WisconsinSource, start: int, end: int, columns: list[str] | None = None, since: float = 0.0
) -> pa.Table:
    names = made.schema().names if columns is None else columns
    return pa.Table.from_batches(made.read({"start": start, "end": end, "since": since}, names))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_700_000_000.0
        monkeypatch.setattr(wisconsin.time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def arrived(made: WisconsinSource, clock: Clock, seconds: float, start: dict[str, Any]) -> int:
    clock.now = start["since"] + seconds
    return int(made.latest(start, Limits(), MemoryLog())["rows"])


# --- rows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cardinality", [1, 2, 3, 5, 8, 100, 1023, 1024, 1025, 70_000])
@pytest.mark.parametrize("seed", [0, 1, -7, 1 << 70])
def test_unique1_is_a_permutation(cardinality: int, seed: int) -> None:
    index = np.arange(cardinality)
    for number in (0, 1, 99):
        values = permute(seed, cardinality, np.array([number]), index)
        assert np.array_equal(np.sort(values), index)
        assert np.array_equal(values, permute(seed, cardinality, np.full(cardinality, number), index))


def test_seeds_and_rounds_differ_and_look_random() -> None:
    index = np.arange(10_000)
    orders = [permute(s, 10_000, np.array([r]), index) for s in (0, 1) for r in (0, 1)]
    for i, one in enumerate(orders):
        assert abs(np.corrcoef(index, one)[0, 1]) < 0.05
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.05
        for other in orders[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.05


def test_columns_follow_the_benchmark() -> None:
    rows = table(source(rows="2000", seed="5"), 0, 2000).to_pylist()
    assert sorted(r["unique1"] for r in rows) == [r["unique2"] for r in rows] == list(range(2000))
    divisors = {
        "two": 2, "four": 4, "ten": 10, "twenty": 20, "onePercent": 100, "tenPercent": 10, "twentyPercent": 5,
        "fiftyPercent": 2,
    }  # fmt: skip
    for row in rows:
        assert all(row[name] == row["unique1"] % divisor for name, divisor in divisors.items())
        assert row["unique3"] == row["unique1"]
        assert (row["evenOnePercent"], row["oddOnePercent"]) == (row["onePercent"] * 2, row["onePercent"] * 2 + 1)
        assert all(len(row[name]) == 52 for name in ("stringu1", "stringu2", "string4"))
    assert rows[27]["stringu2"] == "AAAAABB" + "x" * 45
    assert [r["string4"][:5] for r in rows[:5]] == ["AAAAx", "HHHHx", "OOOOx", "VVVVx", "AAAAx"]
    assert len({r["stringu1"] for r in rows}) == 2000


def test_rows_past_the_cardinality_are_new_rounds() -> None:
    values = table(source(rows="100", cardinality="10"), 0, 100, ["unique1", "unique2"])
    unique1 = values["unique1"].to_pylist()
    assert values["unique2"].to_pylist() == list(range(100))
    rounds = [tuple(unique1[i : i + 10]) for i in range(0, 100, 10)]
    assert all(sorted(r) == list(range(10)) for r in rounds)
    assert len(set(rounds)) > 5
    assert Counter(unique1) == dict.fromkeys(range(10), 10)


def test_rows_do_not_depend_on_the_range_they_are_read_in() -> None:
    made = source(rows="300000", cardinality="1000", rowsPerSecond="5000")
    whole = table(made, 0, 200_000)
    assert whole.slice(65_500, 70_000).equals(table(pickle.loads(pickle.dumps(made)), 65_500, 135_500))


# --- arrivals --------------------------------------------------------------------------------------------------


def test_everything_is_there_at_once_without_a_rate(clock: Clock) -> None:
    made = source(rows="1000")
    assert arrived(made, clock, 0, made.initial()) == 1000


def test_rows_arrive_at_the_rate_and_reproducibly(clock: Clock) -> None:
    made = source(rowsPerSecond="1000")
    start = made.initial()
    times = np.arange(0, 100, 0.37)
    counts = [arrived(made, clock, t, start) for t in times]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert abs(counts[-1] - 1000 * times[-1]) < 5 * (1000 * times[-1]) ** 0.5
    fresh = source(rowsPerSecond="1000")
    assert [arrived(fresh, clock, t, start) for t in times[::-1]] == counts[::-1]
    other = source(rowsPerSecond="1000", seed="1")
    assert [arrived(other, clock, t, start) for t in times] != counts


def test_counts_in_slots_are_poisson() -> None:
    arrivals = paced(rowsPerSecond="300")
    counts = np.diff([arrivals.count(s) for s in range(20_001)])
    assert abs(counts.mean() - 3) < 0.06
    assert abs(counts.var() - 3) < 0.2
    assert abs(np.corrcoef(counts[:-1], counts[1:])[0, 1]) < 0.03


def test_rates_bursts_and_stalls(clock: Clock) -> None:
    made = source(rates="0s:1000, 10s:200, 20s:3000", stalls="5s-8s, 30s-32s")
    start = made.initial()

    def between(one: float, two: float) -> int:
        return arrived(made, clock, two, start) - arrived(made, clock, one, start)

    for (one, two), expected in {
        (0, 5): 5000, (5, 8): 0, (8, 10): 2000, (10, 20): 2000, (20, 30): 30_000, (30, 32): 0, (32, 40): 24_000,
    }.items():  # fmt: skip
        assert abs(between(one, two) - expected) <= 5 * expected**0.5, (one, two)
    made = source(rowsPerSecond="1000", bursts="every 10s for 1s x5", stalls="20s-25s")
    for (one, two), expected in {(0, 1): 5000, (1, 10): 9000, (10, 11): 5000, (20, 25): 0, (25, 30): 5000}.items():
        assert abs(between(one, two) - expected) <= 5 * expected**0.5, (one, two)


def test_the_pace_survives_pickling_and_a_restart(clock: Clock) -> None:
    made = source(rowsPerSecond="100", rows="500")
    start = made.initial()
    clock.now += 2
    middle = made.latest(start, Limits(), MemoryLog())
    assert 100 < middle["rows"] < 320
    again = pickle.loads(pickle.dumps(made))
    assert again.latest(start, Limits(), MemoryLog()) == middle
    assert again.latest(middle, Limits(), MemoryLog()) == middle
    assert again.latest(start, Limits(max_rows=7), MemoryLog())["rows"] == 7
    clock.now -= 100  # a clock that was set back takes nothing away
    assert again.latest(middle, Limits(), MemoryLog()) == middle
    clock.now += 10_000
    assert again.latest(middle, Limits(), MemoryLog())["rows"] == 500


def test_arrival_is_when_the_row_became_available(clock: Clock) -> None:
    made = source(rowsPerSecond="5000", bursts="every 3s for 1s x4", stalls="5s-8s")
    start = made.initial()
    end = arrived(made, clock, 40, start)
    at = (
        table(made, 0, end, ["arrival"], start["since"])["arrival"].to_numpy().astype("datetime64[us]").astype(np.int64)
    )
    assert np.all(np.diff(at) >= 0)
    for seconds in (0.5, 3, 5, 7.77, 12.34, 40):
        limit = round((start["since"] + seconds) * 1e6)
        assert int((at <= limit).sum()) == arrived(made, clock, seconds, start)
    everything = table(source(rows="3"), 0, 3, ["arrival"], 12.5)["arrival"].to_pylist()
    assert everything == [dt.datetime(1970, 1, 1, 0, 0, 12, 500_000, tzinfo=dt.UTC)] * 3


def test_a_far_future_is_cheap_to_count() -> None:
    arrivals = paced(rowsPerSecond="10", bursts="every 1h for 1m x100")
    year = 365 * 86_400
    expected = 10 * year * (1 + 99 / 60)
    assert abs(arrivals.count(year * 100) - expected) < 100 * expected**0.5


def test_freeze(clock: Clock) -> None:
    log = MemoryLog()
    finite, endless = source(rows="1000", rowsPerSecond="1"), source(rowsPerSecond="1000")
    start = endless.initial()
    clock.now += 2
    finite.freeze(log)
    endless.freeze(log)
    assert finite.latest(finite.initial(), Limits(), log)["rows"] == 1000
    taken = endless.latest(start, Limits(), log)["rows"]
    assert 1700 < taken < 2300
    clock.now += 100
    assert endless.latest(start, Limits(), log)["rows"] == taken


# --- options ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "rows"),
        ({"rows": "0"}, "rows"),
        ({"rows": "5", "cardinality": "-1"}, "cardinality"),
        ({"rows": str(1 << 63)}, "rows"),
        ({"rows": "5", "seed": "x"}, "seed"),
        ({"rowsPerSecond": "0"}, "rowsPerSecond"),
        ({"rowsPerSecond": "inf"}, "rowsPerSecond"),
        ({"rowsPerSecond": "5", "rates": "0s:5"}, "rates"),
        ({"rates": "0s=5"}, "rates"),
        ({"rates": "10s:5, 5s:6"}, "rates"),
        ({"rates": "0s:5, 9s:0"}, "rates"),
        ({"rates": "0 fortnights:5"}, "rates"),
        ({"rows": "5", "bursts": "every 10s for 1s x5"}, "bursts"),
        ({"rowsPerSecond": "5", "bursts": "sometimes"}, "bursts"),
        ({"rowsPerSecond": "5", "bursts": "every 1s for 2s x5"}, "bursts"),
        ({"rowsPerSecond": "5", "stalls": "8s-5s"}, "stalls"),
        ({"rowsPerSecond": "5", "stalls": "8s"}, "stalls"),
        ({"rows": "5", "maxFilesPerTrigger": "1"}, "maxFilesPerTrigger"),
        ({"rows": "5", "maxBytesPerTrigger": "1"}, "maxBytesPerTrigger"),
        ({"rows": "5", "rowPerSecond": "1"}, "rowPerSecond"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], option: str) -> None:
    with pytest.raises(OptionError, match=rf"source\.w\.{option}'"):
        create("w", "wisconsin", options)
