"""Every row that arrives is in the state, or has departed through the one way out and was counted by its reason."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from spark_mjoin.counts import BatchCounts, Reason
from spark_mjoin.engine import cache
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore
from tests.harness import ABANDONED, CRASH, TORN, TWICE, run, scripted
from tests.oracle import test_promises, test_windows
from tests.oracle.examples import examples
from tests.oracle.promises import PromiseCase, promise_cases
from tests.oracle.shedding import decisions
from tests.oracle.test_shrinking import EVERYTHING, MEMORY, WINDOWS
from tests.oracle.windows import WindowCase, window_cases

NEVER_CAME_IN = {Reason.LATE, Reason.SHED}
FAULTS = (CRASH, TORN, TWICE, ABANDONED)


def held(state: PartitionState) -> list[int]:
    """Rows of each input, in memory and on disk."""
    return [
        operator.tables[member].rows + (int(operator.groups.disk[member].sum()) if operator.tracked else 0)
        for operator, member in state.inputs()
    ]


@contextmanager
def every_row_accounted_for() -> Iterator[Counter[Reason]]:
    """Check at each commit that rows held before and those that came are held now, or were counted as departed."""
    commit, seen = StateStore.commit, Counter[Reason]()

    def checked(
        self: StateStore, state: PartitionState, version: int, positions: Any, batch: BatchCounts, *rest: Any
    ) -> bool:
        before = sum(self.manifest(state.version).rows_held) if state.version else 0
        departed = sum(rows for reason, rows in batch.departures.items() if reason not in NEVER_CAME_IN)
        assert sum(held(state)) == before + sum(batch.rows_in) - departed
        seen.update(batch.departures)
        out = commit(self, state, version, positions, batch, *rest)
        manifest = self.manifest(version)
        assert not out or list(manifest.rows_held) == held(state)
        assert not out or manifest.done.dropped == batch.departures.dropped()
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateStore, "commit", checked)
        cache.of_worker().clear()
        yield seen


def note(seen: Counter[Reason]) -> None:
    for reason, rows in seen.items():
        if rows:
            event(reason.value)


@given(st.data(), window_cases(faults=FAULTS))
@examples(60)
def oracle_windows(data: st.DataObject, case: WindowCase) -> None:
    options = data.draw(st.one_of(st.just({}), test_windows.overflow_options(case)))
    with every_row_accounted_for() as seen, tempfile.TemporaryDirectory() as state:
        run(scripted(case.scripts(), case.query(), **case.options(), **options), Path(state), case.schedule)
    assert set(seen) <= {Reason.LATE, Reason.EXPIRED}
    note(seen)


@given(st.data(), promise_cases(faults=(CRASH, TORN, TWICE)))
@examples(60)
def oracle_promises(data: st.DataObject, case: PromiseCase) -> None:
    options = data.draw(st.one_of(st.just({}), test_promises.overflow_options(case)))
    with every_row_accounted_for() as seen, tempfile.TemporaryDirectory() as state:
        run(scripted(case.scripts(), case.query(), **case.options(), **options), Path(state), case.schedule)
    assert set(seen) <= {Reason.LATE, Reason.EXPIRED, Reason.PURGED, Reason.UNMATCHED}
    note(seen)


@given(window_cases(faults=FAULTS, windows=WINDOWS), MEMORY, st.sampled_from([(1, 0, 0), (0.2, 0.3, 0.5)]))
@examples(40)
def oracle_windows_that_shrink(case: WindowCase, memory: str, parts: tuple[float, ...]) -> None:
    case = replace(case, partitions=1)
    options = scripted(case.scripts(), case.query(), overflow="shrink", memory=memory, **case.options())
    script = [EVERYTHING[: len(case.inputs)]]
    with every_row_accounted_for() as seen, decisions(script, parts), tempfile.TemporaryDirectory() as state:
        run(options, Path(state), case.schedule)
    assert set(seen) <= {Reason.LATE, Reason.EXPIRED, Reason.SHRUNK}
    note(seen)


def differential_rows_that_are_shed_or_pass_by(tmp_path: Path) -> None:
    import pyarrow as pa

    scripts = {name: [pa.table({"n": range(30), "k": [n % 7 for n in range(30)]})] * 8 for name in "ab"}
    query = "SELECT a.n AS x, b.n AS y FROM a JOIN b ON a.k = b.k"
    with every_row_accounted_for() as seen, decisions([(1 << 15, 1 << 15)]):
        run(scripted(scripts, query, overflow="shed", memory="9k"), tmp_path, [CRASH, TORN, TWICE])
    assert seen[Reason.PASSED] and seen[Reason.SHED] and set(seen) <= {Reason.PASSED, Reason.SHED}
