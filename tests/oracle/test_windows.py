"""Windows against their definition: time and rows, disorder, late rows, partitions, faults, overflow, expiry."""

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from spark_mjoin import flush
from spark_mjoin.engine import cache
from spark_mjoin.model import Array
from spark_mjoin.state.buckets import of_hashes
from spark_mjoin.state.columns import hash_array
from spark_mjoin.state.progress import Progress
from spark_mjoin.state.routing import Routing
from spark_mjoin.state.slots import of_hashes as slots_of
from tests.harness import ABANDONED, ReadAllAvailable, Rows, reader, rows, run, scripted
from tests.oracle.examples import examples
from tests.oracle.windows import EXACT_FAULTS, EXTREME, TIGHT, WindowCase, at_the_ends_of_time, window_cases

POLICIES = sorted(flush.REGISTRY)
ALL_IN_TIME = st.tuples(st.just("time"), st.sampled_from([1, 2, 3, 5]))


def engine_rows(case: WindowCase, **options: str) -> Rows:
    cache.of_worker().clear()
    everything = scripted(case.scripts(), case.query(), **case.options(), **options)
    with tempfile.TemporaryDirectory() as state:
        tables = run(everything, Path(state), case.schedule)
    return rows([t.select([f"n{i}" for i in range(len(case.inputs))]) for t in tables])


@st.composite
def overflow_options(draw: st.DrawFn, case: WindowCase) -> dict[str, str]:
    return {
        "memory": draw(st.sampled_from(["1", "20k", "40k"])),
        "flush": draw(st.sampled_from(POLICIES)),
        "diskFuel": draw(st.sampled_from(["1", "4k", "1g"])),
        "blockingThreshold": draw(st.sampled_from(["1", "3", "1000"])),
    }


@given(window_cases())
@examples(200)
def oracle_windows_are_what_they_are_defined_to_be(case: WindowCase) -> None:
    assert engine_rows(case) == case.results()


@pytest.mark.parametrize("ends", ["low", "high", "both"])
@given(st.data(), window_cases(windows=EXTREME, faults=EXACT_FAULTS))
@examples(60)
def oracle_times_at_the_ends_of_time(ends: str, data: st.DataObject, case: WindowCase) -> None:
    case = at_the_ends_of_time(case, ends)
    overflow = data.draw(overflow_options(case)) if data.draw(st.booleans()) else {}
    assert engine_rows(case, **overflow) == case.results()


@given(window_cases(faults=(*EXACT_FAULTS, ABANDONED)))
@examples(150)
def oracle_faults_with_windows(case: WindowCase) -> None:
    length = max(len(i.batches) for i in case.inputs)
    lost = [b for b, fault in enumerate(case.schedule) if fault == ABANDONED]  # what they would give is nobody's
    assert engine_rows(case) == case.results([b for b in range(length) if b not in lost])


@given(st.data(), window_cases())
@examples(200)
def oracle_windows_under_overflow(data: st.DataObject, case: WindowCase) -> None:
    assert engine_rows(case, **data.draw(overflow_options(case))) == case.results()


@given(st.data(), window_cases(faults=EXACT_FAULTS))
@examples(150)
def oracle_faults_with_windows_under_overflow(data: st.DataObject, case: WindowCase) -> None:
    assert engine_rows(case, **data.draw(overflow_options(case))) == case.results()


@pytest.mark.parametrize("policy", POLICIES)
@given(window_cases(star_only=True))
@examples(40)
def oracle_every_policy_with_windows(policy: str, case: WindowCase) -> None:
    assert engine_rows(case, memory="20k", flush=policy) == case.results()


@given(st.data(), window_cases(star_only=True, windows=TIGHT))
@examples(150)
def oracle_a_row_that_was_dropped_is_never_needed(data: st.DataObject, case: WindowCase) -> None:
    """At every drop, no result that is not out yet has one of the dropped rows, in memory or on disk."""
    options = data.draw(st.one_of(st.just({}), overflow_options(case)))
    emitted: Rows = Counter()
    wanted = case.results()
    keys = [{r.n: r for batch in i.batches for r in batch} for i in case.inputs]
    dropped: list[int] = []
    routing, working = Routing(case.partitions), [0]  # the partition whose task runs

    def check(progress: Progress, input: int, buckets: Array, position: int, event: int) -> None:
        in_time = case.inputs[input].window[0] == "time"
        for combination in wanted - emitted:
            row = keys[input][combination[input]]
            hashes = hash_array(pa.array([row.k]))
            there = routing.slots(working[0]).have(slots_of(hashes))[0] and of_hashes(hashes)[0] in buckets
            gone = there and (row.ts if in_time else row.n) <= position and row.n < progress.read[input]
            assert not gone, f"row {row} of input {input} is dropped, and {combination} is not out yet"
        dropped.append(input)

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as state:
        drop = Progress.drop
        patch.setattr(Progress, "drop", lambda self, *given: (check(self, *given), drop(self, *given)))
        cache.of_worker().clear()
        everything = scripted(case.scripts(), case.query(), stateLocation=state, **case.options(), **options)
        current = reader(everything)
        start = current.initialOffset()
        while (end := current.latestOffset(start, ReadAllAvailable())) != start:
            for partition in current.partitions(start, end):
                working[0] = partition.task.partition
                for batch in current.read(partition):
                    emitted += rows(pa.table(batch.select([f"n{i}" for i in range(len(case.inputs))])))
            start = end
    assert emitted == wanted
    event("rows were dropped" if dropped else "no row was dropped")


@given(window_cases(windows=ALL_IN_TIME))
@examples(100)
def oracle_results_are_not_older_than_the_delay_that_is_documented(case: WindowCase) -> None:
    """docs/windows.md: what `withWatermark` needs downstream, for the event time of each input."""
    case = replace(case, payload=True)
    everything = scripted(case.scripts(), case.query(), **case.options())
    cache.of_worker().clear()
    with tempfile.TemporaryDirectory() as state:
        tables = run(everything, Path(state))
    for i, own in enumerate(case.inputs):
        others = max(j.window[1] + j.lateness for n, j in enumerate(case.inputs) if n != i)
        delay, newest = max(own.lateness, own.window[1] + others), None
        for table in tables:
            times = table.column(f"ts{i}").cast(pa.int64()).to_pylist()
            assert newest is None or all(ts >= newest - delay for ts in times)
            newest = max(times if newest is None else [newest, *times], default=newest)
