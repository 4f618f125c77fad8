"""The benchmark of latency at a small size: its files, its writer, its verdicts, and one short run on Spark."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import arrivals, latency
from benchmarks.arrivals import SPREAD, Delivered, Delivery, Load
from benchmarks.engines import Engine
from benchmarks.latency import Latency
from benchmarks.latency_child import Observed, Trial, observe, observed
from benchmarks.workloads import ALIASES

MJOIN, SPARK = Engine("mjoin", "mjoin", "ours"), Engine("spark", "spark", "theirs")


def test_every_key_is_once_in_each_stream_and_its_rows_are_close(tmp_path: Path) -> None:
    load = Load(rate=400, seconds=2.0)
    arrivals.prepare(load, tmp_path)
    ticks = []
    for alias in ALIASES:
        files = sorted((tmp_path / alias).iterdir())
        assert len(files) == load.ticks == SPREAD + 8
        read = [pq.read_table(file) for file in files]
        for number, table in enumerate(read):
            assert table.num_rows == 100 and set(table.column(f"{alias}_tick").to_pylist()) == {number}
        keys = np.concatenate([table.column("id").to_numpy() for table in read])
        assert sorted(keys) == list(range(load.rows))
        ticks.append(np.repeat(np.arange(load.ticks), 100)[np.argsort(keys)])
    apart = np.max(ticks, axis=0) - np.min(ticks, axis=0)
    assert 0 < apart.max() < SPREAD and (apart > 0).mean() > 0.5  # so that joins have rows to keep


def test_the_writer_keeps_time_and_says_when_files_came(tmp_path: Path) -> None:
    load = Load(rate=400, seconds=0.5, interval=0.05)
    arrivals.prepare(load, tmp_path / "made")
    before = time.time()
    found = arrivals.deliver(Delivery(str(tmp_path / "made"), str(tmp_path / "in"), 2, 8, 0.05))
    assert time.time() - before >= 0.25
    assert sorted(file.name for file in (tmp_path / "in" / "r").iterdir()) == [f"{n:06d}.parquet" for n in range(2, 8)]
    assert len(found.came) == 6 and all(len(moments) == len(ALIASES) for moments in found.came)
    for number, moments in enumerate(found.came):
        assert number * 0.05 <= moments[0] <= number * 0.05 + found.late
    for alias in ALIASES:  # streams of files take them by this time
        stamps = [file.stat().st_mtime for file in sorted((tmp_path / "in" / alias).iterdir())]
        assert stamps == sorted(stamps) and stamps[0] >= before - 0.01


def test_a_result_counts_from_the_newest_of_its_files() -> None:
    load = Load(rate=8, seconds=1.0)
    table = _joined(load)
    late = [[number * 0.25 + lag for lag in (0.0, 0.01, 0.1)] for number in range(load.ticks - SPREAD)]
    rest = Delivered(start=1000.0, came=late, late=0.1)
    out = table.slice(0, 12), table.slice(12, 2)
    seen = observed(load, [(1000.5, out[0]), (1003.0, out[1]), (1009.0, table.slice(14))], rest, ended=1008.0)
    assert seen.once and seen.batches == 2 and seen.ended == 8.0
    expected = []
    for at, part in ((0.5, out[0]), (3.0, out[1])):
        for row in part.to_pylist():
            moments = [late[row[f"{a}_tick"] - SPREAD][n] for n, a in enumerate(ALIASES) if row[f"{a}_tick"] >= SPREAD]
            if moments:
                expected.append((max(moments), at))
    assert sorted((m, at) for m, at, count in seen.out for _ in range(int(count))) == sorted(expected)
    assert sum(count for _, count in seen.missing) == load.rows - 14  # what came after the end has not come
    twice = observed(load, [(1000.5, table), (1000.6, out[1])], rest, ended=1008.0)
    assert not twice.once and not twice.missing


def _joined(load: Load):
    r, s, t = (table.sort_by("id") for table in arrivals.tables(load).values())
    return r.append_column("s_tick", s.column("s_tick")).append_column("t_tick", t.column("t_tick"))


def steady(seconds: float, wait: float = 0.2, per_second: float = 0.0) -> Observed:
    """Ten results of every file, which wait longer and longer."""
    moments = np.arange(0, seconds, 0.25)
    out = [[moment, moment + wait + per_second * moment, 10] for moment in moments]
    return Observed(out=out, ended=seconds + 5, batches=len(out), once=True)


@pytest.mark.parametrize(
    ("seen", "behind"),
    [
        (steady(40), False),
        (steady(40, per_second=0.004), False),  # a state that grows, and not a queue
        (steady(40, per_second=0.05), True),
        (steady(40, wait=3.0), False),  # slow, and yet no slower all the time
        (steady(40, wait=3.0, per_second=0.3), True),
        (replace(steady(40), missing=[[39.0, 1]]), True),
        (replace(steady(40), out=[[m, at + (4 if 33 < m < 36 else 0), n] for m, at, n in steady(40).out]), False),
    ],
    ids=["steady", "creeping", "growing", "slow", "slow and growing", "missing", "one pause at the end"],
)
def test_what_falls_behind(seen: Observed, behind: bool) -> None:
    found = latency.summarise(1000, MJOIN, seen, warm_up=10.0, seconds=30.0)
    assert found.behind is behind
    assert found.verdict == ("falls behind" if behind else "keeps up")


def test_quantiles_are_over_results_after_the_warm_up() -> None:
    out = [[1.0, 9.0, 1000], [10.0, 10.1, 98], [20.0, 20.5, 1], [39.0, 41.0, 1]]
    found = latency.summarise(1000, MJOIN, Observed(out=out, ended=45.0, once=True), 10.0, 30.0)
    assert (found.p50, found.p99, found.most) == pytest.approx((0.1, 0.5, 2.0))
    assert found.results == 100 and found.missing == 0
    waiting = Observed(out=out, missing=[[40.0, 50]], ended=45.0, once=True)
    found = latency.summarise(1000, MJOIN, waiting, 10.0, 30.0)
    assert found.p99 == pytest.approx(5.0) and found.results == 100 and found.missing == 50
    assert "0.30 s late" in latency.summarise(1000, MJOIN, replace(waiting, late=0.3), 10.0, 30.0).verdict
    assert latency.summarise(1000, MJOIN, Observed(error="gone"), 10.0, 30.0).verdict == "failed: gone"


def test_each_engine_climbs_until_it_falls_behind() -> None:
    runs: list[tuple[int, str]] = []
    verdicts = {("spark", 20): [True, False], ("spark", 30): [True, True], ("mjoin", 40): [True, True, True]}

    def measure(rate: int, engine: Engine) -> Latency:
        runs.append((rate, engine.name))
        left = verdicts.get((engine.name, rate), [])
        return Latency(rate, engine.name, engine.label, behind=left.pop(0) if left else False)

    found = list(latency.climb([10, 20, 30, 40, 50], [MJOIN, SPARK], measure, tries=2))
    assert [(it.rate, it.engine, it.behind) for it in found] == [
        (10, "mjoin", False),
        (10, "spark", False),
        (20, "mjoin", False),
        (20, "spark", False),  # at the second try
        (30, "mjoin", False),
        (30, "spark", True),
        (40, "mjoin", True),
    ]
    assert runs.count((20, "spark")) == 2 and runs.count((20, "mjoin")) == 1


def test_what_the_command_takes_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = latency._parser().parse_args(["--output", str(tmp_path / "deep" / "l.json"), "--rates", "100,200"])
    assert [engine.name for engine in latency.chosen_engines(options)] == ["mjoin", "spark"]
    assert latency.chosen_engines(options)[0].jar and options.rates == [100, 200]
    found = [Latency(100, "mjoin", "ours", 0.1, 0.2, 0.3, (0.1, 0.1, 0.1), 7, 0, 3, behind=False)]
    latency.write(found, {"cores": 2}, options)
    written = json.loads((tmp_path / "deep" / "l.json").read_text())
    assert written["latencies"][0]["verdict"] == "keeps up" and written["latencies"][0]["p99"] == 0.2
    (row,) = latency.rows(found)
    assert len(row) == len(latency.HEADER) and row[:4] == ("100", "ours", "0.100", "0.200")
    for wrong in ("200,100", "1", "x"):
        with pytest.raises(SystemExit):
            latency._parser().parse_args(["--rates", wrong])
        assert "--rates" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        latency._parser().parse_args(["--engines", "flink"])


@pytest.mark.parametrize("engine", [MJOIN, SPARK], ids=lambda engine: engine.name)
def test_a_short_run_on_spark(engine: Engine, spark_session: SparkSession, tmp_path: Path) -> None:
    load = Load(rate=200, seconds=2.0)
    arrivals.prepare(load, tmp_path / "made")
    seen = observe(spark_session, Trial(engine, load, str(tmp_path / "made"), str(tmp_path), patience=60.0))
    assert seen.once and not seen.missing and seen.batches > 0
    found = latency.summarise(load.rate, engine, seen, warm_up=0.0, seconds=load.seconds)
    assert 0 < found.p50 <= found.p99 <= found.most < 60
    known = np.max(
        [np.argsort(table.column("id").to_numpy()) // 50 for table in arrivals.tables(load).values()], axis=0
    )
    assert found.results == np.count_nonzero(known >= SPREAD)
