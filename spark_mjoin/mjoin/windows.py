"""Windows: which combinations are results, which rows are late, and which rows can be dropped (Kang 2003, section 2).

A combination is a result if and only if every row of it is inside its own input's window when seen from the youngest
row. Inputs without a window keep all their rows. What is youngest depends on the window's kind:

    in time   the largest event time t of all rows; a row with event time s is inside iff  s > t - size
    in rows   the row that came last; another is inside iff it was among the last `size` rows of its input then

So a window of ten minutes leaves out a row that is exactly ten minutes older. Rows are counted as their source delivers
them, before filters. The row that came last is inside itself.

Which row came last is a matter of definition in a micro-batch, which has rows of all inputs. They count as if they had
come one by one and side by side (`state.progress`, rounds): of an input with s rows in a round, the p-th comes at p / s
of it, and at the same point the rows of inputs that the query names first come first.

    a, 4 rows    1/4  2/4  3/4  4/4
    b, 2 rows         1/2       2/2        a a b a a b

In a combination whose youngest row is in some round, let the last of its rows be the p-th of s rows of input j. Then
input i, with r rows, has delivered p r / s of them, rounded down; if the query names i after j, without one at exactly
that point. This depends on the numbers of rows alone: not on the turns in which rows are really taken, on when a
combination is found, or on where its rows were.

    watermark  of an input: its largest event time in earlier batches, minus the lateness it is allowed
    late       a row with an event time below its input's watermark; it is dropped when it arrives
    expired    a row that no row which can still come would find inside its window

Why an expired row is never missed: in a combination that is still to come, one row x comes later, from another input j,
and is not late. In time, the youngest is not older than x, and x not older than the lowest watermark of the others; a
row of input i with s <= min(watermark[j], j != i) - size is outside for it. In rows, a row that `size` others of its
input have followed, before the next row of every other input, is outside for all that come later. What would join with
rows on disk and is still pending is another matter: `engine.retention.windows` waits for it.

Seen from some rows of a combination the youngest is not younger than seen from all, so a row that is outside already
ends the probing sequence early, and after the last probe the check is exact.

Not covered: how watermarks move (driver.watermarks), when rows are dropped, and where they are (state.progress).
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

    def __init__(self, spec: JoinSpec, progress: Progress, of_arrivals: bool = False) -> None:
        self._inputs = spec.inputs
        self._in_time = [i.window is not None and not i.window.in_rows for i in spec.inputs]
        self._in_rows = [i.window is not None and i.window.in_rows for i in spec.inputs]
        self._rounds = progress.rounds[-1:] if of_arrivals else progress.rounds
        self._events = np.array([each.event for each in self._rounds], np.int64)

    @staticmethod
    def of(spec: JoinSpec, progress: Progress, of_arrivals: bool = False) -> Windows | None:
        """None where no input has a window. of_arrivals: every combination has a row that has just arrived."""
        return Windows(spec, progress, of_arrivals) if spec.windowed else None

    def inside(self, tables: Sequence[Table], bound: Mapping[int, Array]) -> Array:
        """For some combinations, or beginnings of them, whether every row is inside its window."""
        keep = np.ones(next(iter(bound.values())).size, np.bool_)
        if any(self._in_time):
            times = {i: _values(tables[i].position(self._time(i)), rows) for i, rows in bound.items()}
            youngest = np.maximum.reduce(list(times.values()))
            for i in bound:
                if self._in_time[i]:
                    keep &= _older_by(youngest, times[i]) < np.uint64(self._size(i))
        if any(self._in_rows) and self._rounds:
            members = sorted(bound)
            numbers = np.empty(len(members) * keep.size, np.int64)
            for at, i in enumerate(members):
                ordinal = self._inputs[i].number
                assert ordinal is not None, "every input of a join with a window in rows has row numbers"
                kernel.gather(tables[i].position(ordinal), bound[i], numbers[at * keep.size : (at + 1) * keep.size])
            starts = np.array([each.starts[i] for each in self._rounds for i in members], np.int64)
            sizes = np.array([each.sizes[i] for each in self._rounds for i in members], np.int64)
            windows = np.array([self._size(i) if self._in_rows[i] else -1 for i in members], np.int64)
            kernel.inside_rows(numbers, self._found_in(tables, bound), starts, sizes, windows, keep)
        return keep

    def _found_in(self, tables: Sequence[Table], bound: Mapping[int, Array]) -> Array:
        """The round of the youngest row of each combination; nothing where there is one round.

        A beginning whose rows are older than all rounds counts as of the first: what it belongs to is not older.
        """
        if len(self._rounds) == 1:
            return np.empty(0, np.int64)
        youngest = np.maximum.reduce([tables[i].arrivals.of(rows) for i, rows in bound.items()])
        out: Array = np.maximum(np.searchsorted(self._events, youngest, side="right") - 1, 0)
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
    """Per input the position at or before which its rows are expired; None where none are.

    read: how many rows of each input came before all that are still to come of others (`Progress.behind_us`).
    """
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
