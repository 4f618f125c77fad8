"""Windows in time and key promises over stages, against their definitions: budgets, ticks, faults, disorder."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from spark_mjoin import flush
from spark_mjoin.config import Options, SourceOptions
from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.tree import parse
from tests.doors.test_stages import FAULTS, batches_of
from tests.examples import examples
from tests.harness import Rows, reader, scripted
from tests.oracle.promises import PromiseCase, promise_cases
from tests.oracle.windows import WindowCase, at_the_ends_of_time, window_cases
from tests.staged import StagedJoin, any_stages

IN_TIME = st.tuples(st.just("time"), st.sampled_from([1, 2, 3, 5, 10, 20, 40]))
EXTREME_IN_TIME = st.tuples(st.just("time"), st.sampled_from([1, 2, 5, 40, 2**59, 2**60 - 1]))

TIMES = pa.timestamp("us", "UTC")
TIMED = {"timestamp": "t", "watermark": "0 seconds"}


def described(given: dict[str, str]) -> tuple[JoinSpec, list[SourceOptions]]:
    """A join by its options, and what they say of each source."""
    spec = reader({**given, "stateLocation": "unused"}).session.spec
    by_alias = {source.alias: source for source in Options.parse(given).sources}
    return spec, [by_alias[source.alias] for source in spec.sources]


@st.composite
def settings_of(draw: st.DrawFn) -> Settings:
    return Settings(
        draw(st.integers(1, 3)),
        draw(st.sampled_from([None, None, 1, 3000, 20000])),
        flush=draw(st.sampled_from(sorted(flush.REGISTRY))),
        blocking_rows=draw(st.sampled_from([1, 3, 1000])),
        fuel_bytes=draw(st.sampled_from([1, 4000, 1 << 28])),
        disk_share=draw(st.sampled_from([0.0, 0.05])),
        expiry=draw(st.sampled_from(["lazy", "active"])),
    )


def found(case: WindowCase | PromiseCase, seed: int, settings: Settings, faults: list[tuple[str, int]]) -> Rows:
    with tempfile.TemporaryDirectory() as root:
        spec, options = described(scripted(case.scripts(), case.query(), **case.options()))
        join = StagedJoin(Path(root), spec, any_stages(spec, seed), settings, options)
        whole = join.whole(batches_of(case.scripts()), faults)
    out = Rows()
    for row, times in whole.items():
        out[row[: len(case.inputs)]] += times
    return out


@given(window_cases(most_inputs=4, windows=IN_TIME), st.integers(0, 999), settings_of(), FAULTS)
@examples(300)
def oracle_windows_over_any_stages(
    case: WindowCase, seed: int, settings: Settings, faults: list[tuple[str, int]]
) -> None:
    assert found(case, seed, settings, faults) == case.results()


@given(window_cases(most_inputs=4, windows=IN_TIME), st.integers(0, 999), settings_of(), st.integers(1, 3))
@examples(60)
def oracle_windows_over_stages_with_another_number_of_partitions(
    case: WindowCase, seed: int, settings: Settings, then: int
) -> None:
    spec, options = described(scripted(case.scripts(), replace(case, payload=False).query(), **case.options()))
    batches = batches_of(case.scripts())
    half = len(batches) // 2
    with tempfile.TemporaryDirectory() as root:
        join = StagedJoin(Path(root), spec, any_stages(spec, seed), settings, options)
        results = sum((join.batch(arriving) for arriving in batches[:half]), Rows())
        join.settings = [replace(each, partitions=then) for each in join.settings]
        join.restart()
        assert results + join.whole(batches[half:]) == case.results()


@given(
    window_cases(most_inputs=4, windows=EXTREME_IN_TIME),
    st.sampled_from(["low", "high", "both"]),
    st.integers(0, 999),
    settings_of(),
)
@examples(60)
def oracle_windows_over_stages_at_the_ends_of_time(case: WindowCase, ends: str, seed: int, settings: Settings) -> None:
    case = replace(at_the_ends_of_time(case, ends), payload=False)  # Python has no such times
    assert found(case, seed, settings, []) == case.results()


@given(promise_cases(emit=False, most_inputs=4), st.integers(0, 999), settings_of(), st.integers(1, 3), FAULTS)
@examples(300)
def oracle_promises_over_any_stages(
    case: PromiseCase, seed: int, settings: Settings, every: int, faults: list[tuple[str, int]]
) -> None:
    inputs = tuple(replace(given, clustered=False) for given in case.inputs)  # of which a shuffle keeps nothing
    case = replace(case, inputs=inputs, every=every)
    assume(any(name.endswith((".punctuation", ".unique", ".ordered")) for name in case.options()))
    assert found(case, seed, replace(settings, purge_every=every), faults) == case.results()


def at(seconds: int, **columns: list[int]) -> pa.Table:
    size = len(next(iter(columns.values())))
    times = pa.array([10**6 * seconds] * size, pa.int64()).cast(TIMES)
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()} | {"t": times})


def test_rows_wait_for_results_that_the_earlier_stage_has_on_disk(tmp_path: Path) -> None:
    """Results of the first seconds come when watermarks are far past them, and find their partners."""
    later = [{"a": at(s, k=[-s]), "b": at(s, k=[-s - 1], m=[-s]), "c": at(s, m=[-s - 1])} for s in (200, 300, 400)]
    batches = [{"a": at(100, k=list(range(50)))}, {"b": at(101, k=list(range(50)), m=[7] * 50), "c": at(101, m=[7])}]
    batches += later
    query = "SELECT a.k, c.m FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    given = scripted({alias: [later[0][alias]] for alias in "abc"}, query, window="10 seconds")
    given |= {f"source.{alias}.{name}": value for alias in "abc" for name, value in TIMED.items()}
    never = Settings(1, 1, blocking_rows=0, fuel_bytes=1, disk_share=0.0)  # no disk work unless it is asked for
    roomy = Settings(1, None, expiry="active")
    spec, options = described(given)
    join = StagedJoin(tmp_path, spec, parse("((a b) c)", spec), [never, roomy], options)
    found = sum((join.batch(arriving) for arriving in batches), Rows())
    assert found.total() < 50, "some are pending"
    join.settings[0] = Settings(1, 1)
    join.restart()
    found += join.whole([])
    assert found == Rows({(k, 7): 1 for k in range(50)})


def test_rows_leave_a_later_stage_when_results_have_passed_them(tmp_path: Path) -> None:
    batches = [{"a": at(s, k=[s]), "b": at(s, k=[s], m=[s]), "c": at(s, m=[s])} for s in range(100, 1000, 100)]
    query = "SELECT a.k, c.m FROM a JOIN b ON a.k = b.k JOIN c ON b.m = c.m"
    given = scripted({alias: [batches[0][alias]] for alias in "abc"}, query, window="10 seconds")
    given |= {f"source.{alias}.{name}": value for alias in "abc" for name, value in TIMED.items()}
    spec, options = described(given)
    join = StagedJoin(tmp_path, spec, parse("((a b) c)", spec), Settings(2, expiry="active"), options)
    assert join.whole(batches) == Rows({(s, s): 1 for s in range(100, 1000, 100)})
    for number in (0, 1):
        assert 0 < join.metric(number, "numRowsTotal") <= 8, "of eighteen rows"
