"""Windows: which combinations are results, which rows are late, and which rows can be dropped (Kang 2003, section 2).

A combination is a result if and only if every row of it is inside its own input's window when seen from the youngest
row. Inputs without a window keep all their rows. What is youngest depends on the window's kind:

    in time   the largest event time t of all rows; a row with event time s is inside iff  s > t - size
    in rows   the row that arrived last; another is inside iff it was among the last `size` rows of its input then

So a window of ten minutes leaves out a row that is exactly ten minutes older. Rows are counted as their source delivers
them, before filters, and arrive batch by batch, in a batch input by input. The row that arrived last is inside itself.

    watermark  of an input: its largest event time in earlier batches, minus the lateness it is allowed
    late       a row with an event time below its input's watermark; it is dropped when it arrives
    expired    a row that no row which can still come would find inside its window

Why an expired row is never missed: in a combination that is still to come, one row x comes later, from another input j,
and is not late. In time, the youngest is not older than x, and x not older than the lowest watermark of the others; a
row of input i with s <= min(watermark[j], j != i) - size is outside for it. In rows, a row that `size` others of its
input have followed is outside for all that arrive later. What would join with rows on disk and is still owed is another
matter: `phases.expiry` waits for it.

Seen from some rows of a combination the youngest is not younger than seen from all, so a row that is outside already
ends the probing sequence early, and after the last probe the check is exact.

Not covered: how watermarks move (planner.watermarks), when rows leave the state, and where they are (state.progress).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from spark_mjoin import kernel
from spark_mjoin.model import Array, JoinSpec
from spark_mjoin.state.progress import EARLIEST, Progress
from spark_mjoin.state.table import Table


class Windows:
    """The check of a join's windows."""

    def __init__(self, spec: JoinSpec, progress: Progress) -> None:
        self._inputs = spec.inputs
        self._in_time = [i.window is not None and not i.window.in_rows for i in spec.inputs]
        self._in_rows = [i.window is not None and i.window.in_rows for i in spec.inputs]
        self._counts = [np.array(counts, np.int64).reshape(-1, 2) for counts in progress.counts]

    @staticmethod
    def of(spec: JoinSpec, progress: Progress) -> Windows | None:
        """None where no input has a window."""
        return Windows(spec, progress) if spec.windowed else None

    def inside(self, tables: Sequence[Table], bound: Mapping[int, Array]) -> Array:
        """For some combinations, or beginnings of them, whether every row is inside its window."""
        keep = np.ones(next(iter(bound.values())).size, np.bool_)
        if any(self._in_time):
            times = {i: _values(tables[i].position(self._time(i)), rows) for i, rows in bound.items()}
            youngest = np.maximum.reduce(list(times.values()))
            for i in bound:
                if self._in_time[i]:
                    keep &= _older_by(youngest, times[i]) < np.uint64(self._size(i))
        if any(self._in_rows):
            arrived = {i: _values(tables[i].arrived, rows) for i, rows in bound.items()}
            last = np.maximum.reduce(list(arrived.values()))
            for i, rows in bound.items():
                if self._in_rows[i]:
                    window = self._inputs[i].window
                    assert window is not None
                    numbers = _values(tables[i].position(window.position), rows)
                    keep &= (numbers >= self._read(i, last) - window.size) | (arrived[i] == last)
        return keep

    def _read(self, input: int, events: Array) -> Array:
        """How many rows an input had delivered when rows arrived at some events."""
        counts = self._counts[input]
        if not counts.size:
            return np.zeros(events.size, np.int64)
        at = np.searchsorted(counts[:, 0], events, side="right") - 1
        out: Array = np.where(at < 0, 0, counts[np.maximum(at, 0), 1])
        return out

    def _time(self, input: int) -> int:
        time = self._inputs[input].time
        assert time is not None, "every input of a join with a window in time has an event time"
        return time

    def _size(self, input: int) -> int:
        window = self._inputs[input].window
        assert window is not None
        return window.size


def _older_by(youngest: Array, times: Array) -> Array:
    """How much older some event times are than the youngest of their combinations: of times that are 64 bits apart too.

    None is younger, so the difference is right as an unsigned word, where `youngest - size` may be below all times.
    """
    out: Array = (youngest - times).view(np.uint64)
    return out


def _values(column: Array, rows: Array) -> Array:
    out = np.empty(rows.size, column.dtype)
    kernel.gather(column, rows, out)
    return out


def horizons(spec: JoinSpec, watermarks: Sequence[int | None], read: Sequence[int]) -> list[int | None]:
    """Per input the position at or before which its rows are expired; None where none are."""
    out: list[int | None] = []
    for i, input in enumerate(spec.inputs):
        others = [mark for j, mark in enumerate(watermarks) if j != i]
        if input.window is None:
            out.append(None)
        elif input.window.in_rows:
            out.append(read[i] - input.window.size - 1)
        elif any(mark is None for mark in others):
            out.append(None)
        else:
            horizon = min(mark for mark in others if mark is not None) - input.window.size
            out.append(None if horizon < EARLIEST else horizon)
    return out
