"""Windows against their definition: time and rows, disorder, late rows, partitions, faults, overflow, expiry."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mjoin import flush, task
from tests.harness import ABANDONED, Rows, rows, run, scripted
from tests.oracle.windows import EXACT_FAULTS, STAR, WindowCase, window_cases

POLICIES = sorted(flush.REGISTRY)


def engine_rows(case: WindowCase, **options: str) -> Rows:
    task._CACHE.clear()
    everything = scripted(case.scripts(), case.query(), **case.options(), **options)
    with tempfile.TemporaryDirectory() as state:
        tables = run(everything, Path(state), case.schedule)
    return rows([t.select([f"n{i}" for i in range(len(case.inputs))]) for t in tables])


@st.composite
def overflow_options(draw: st.DrawFn, case: WindowCase) -> dict[str, str]:
    return {
        "memory": draw(st.sampled_from(["1", "20k", "40k"])),
        "flush": draw(st.sampled_from([p for p in POLICIES if case.shape == STAR or p != "coordinated"])),
        "diskFuel": draw(st.sampled_from(["1", "4k", "1g"])),
        "blockingThreshold": draw(st.sampled_from(["1", "3", "1000"])),
    }


@given(window_cases())
@settings(max_examples=300)
def oracle_windows_are_what_they_are_defined_to_be(case: WindowCase) -> None:
    assert engine_rows(case) == case.results()


@given(window_cases(faults=(*EXACT_FAULTS, ABANDONED)))
@settings(max_examples=150)
def oracle_faults_with_windows(case: WindowCase) -> None:
    length = max(len(i.batches) for i in case.inputs)
    lost = [b for b, fault in enumerate(case.schedule) if fault == ABANDONED]  # what they would give is nobody's
    assert engine_rows(case) == case.results([b for b in range(length) if b not in lost])


@given(st.data(), window_cases())
@settings(max_examples=200)
def oracle_windows_under_overflow(data: st.DataObject, case: WindowCase) -> None:
    assert engine_rows(case, **data.draw(overflow_options(case))) == case.results()


@given(st.data(), window_cases(faults=EXACT_FAULTS))
@settings(max_examples=150)
def oracle_faults_with_windows_under_overflow(data: st.DataObject, case: WindowCase) -> None:
    assert engine_rows(case, **data.draw(overflow_options(case))) == case.results()


@pytest.mark.parametrize("policy", POLICIES)
@given(window_cases(star_only=True))
@settings(max_examples=40)
def oracle_every_policy_with_windows(policy: str, case: WindowCase) -> None:
    assert engine_rows(case, memory="20k", flush=policy) == case.results()
