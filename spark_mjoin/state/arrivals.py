"""When the rows of a table arrived, in runs: rows that came together have one entry, not one each.

    rows      0 ....... 999 | 1000 ....... 1499 | 1500 ..
    arrived        3        |         7         |    12

Rows are appended in order of arrival, so a run is what an arrival has left in memory. With a thousand rows in each, a
run of eight bytes is less than a hundredth of a byte per row. It is the worst case when rows arrive one by one.

Rows may be given in any order: parts of segments that were clustered by bucket are. Then there are more runs, and all
answers are the same. A state that is loaded is put in order at the end (`Table.put_in_order`), so what it keeps in
memory is the same as if it had not been loaded.

Runs do not count towards a memory budget. How many there are depends on the way in which rows came, and what counts
has to be a function of the rows alone: else a state would take other decisions while it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.columns import Buffer

FEW = 16  # rows of a table for each that is asked for, from which on it is faster to look each of them up


class Arrivals:
    def __init__(self) -> None:
        self.rows = 0
        self.runs = 0
        self.in_order = True  # whether none came before one with a smaller number
        self._starts = Buffer(np.int32)  # the first row of each run
        self._events = Buffer(np.int32)  # the events before its arrival

    def append(self, arrived: Array | int, count: int) -> None:
        """Add so many rows; arrived is the number of events before the arrival of each, or of all."""
        if not count:
            return
        if isinstance(arrived, np.ndarray):
            starts = np.flatnonzero(np.concatenate([[True], arrived[1:] != arrived[:-1]]))
            self._add(starts + self.rows, arrived[starts])
        else:
            self._add(np.array([self.rows]), np.array([arrived]))
        self.rows += count

    def keep(self, mask: Array) -> None:
        """Forget the rows for which the mask is false."""
        starts, events = self._starts.array[: self.runs], self._events.array[: self.runs]
        kept = np.add.reduceat(mask, starts, dtype=np.int64) if self.runs else np.empty(0, np.int64)
        ends = np.cumsum(kept)
        some = kept > 0
        self.rows, self.runs, self.in_order = int(kept.sum()), 0, True
        self._starts, self._events = Buffer(np.int32), Buffer(np.int32)
        new = events[some]
        first = np.flatnonzero(np.concatenate([[True], new[1:] != new[:-1]])[: new.size])
        self._add((ends - kept)[some][first], new[first])

    def cut(self, rows: int) -> None:
        """Forget all rows but the first so many."""
        self.runs = int(np.searchsorted(self._starts.array[: self.runs], rows))
        self.rows = min(self.rows, rows)

    def _add(self, starts: Array, events: Array) -> None:
        """Add runs, of which no two neighbours are of the same arrival."""
        if not starts.size:
            return
        if self.runs:
            last = self._events.array[self.runs - 1]
            if events[0] == last:
                starts, events = starts[1:], events[1:]
            self.in_order = self.in_order and bool((events[:1] > last).all())
        self.in_order = self.in_order and bool((events[1:] > events[:-1]).all())
        end = self.runs + starts.size
        self._starts.reserve(end)[self.runs : end] = starts
        self._events.reserve(end)[self.runs : end] = events
        self.runs = end

    def between(self, start: int, end: int) -> Array:
        """Of rows start..end-1 the events before their arrival."""
        starts = self._starts.array[: self.runs]
        low, high = np.searchsorted(starts, start, "right") - 1, np.searchsorted(starts, end)
        if start >= end:
            return np.empty(0, np.int32)
        edges = np.concatenate([[start], starts[low + 1 : high], [end]])
        out: Array = np.repeat(self._events.array[low:high], np.diff(edges))
        return out

    def of(self, rows: Array) -> Array:
        """The same of some rows, given by their numbers."""
        if rows.size * FEW > self.rows:
            everything: Array = self.between(0, self.rows)[rows]
            return everything
        out: Array = self._events.array[np.searchsorted(self._starts.array[: self.runs], rows, "right") - 1]
        return out

    def spread(self, values: Callable[[Array], Array]) -> Array:
        """Of every row a value that depends on its arrival alone: found for each run, not for each row."""
        counts = np.diff(self._starts.array[: self.runs], append=self.rows)
        out: Array = np.repeat(values(self._events.array[: self.runs]), counts)
        return out

    def since(self, event: int, rows: Array) -> Array:
        """Which of some rows arrived after at least so many events."""
        if not self.in_order:
            late: Array = self.of(rows) >= event
            return late
        run = int(np.searchsorted(self._events.array[: self.runs], event))
        first = int(self._starts.array[run]) if run < self.runs else self.rows
        out: Array = rows >= first
        return out

    def by_age(self) -> tuple[Array, Array]:
        """The arrivals, oldest first, and how many rows there are of each; one may be there more than once."""
        events = self._events.array[: self.runs]
        counts = np.diff(self._starts.array[: self.runs], append=self.rows)
        if self.in_order:
            return events, counts
        order = np.argsort(events, kind="stable")
        return events[order], counts[order]


def median(tables: list[Arrivals]) -> int:
    """The median of the events before the arrival of the rows of some tables; 0 where there are none."""
    parts = [arrivals.by_age() for arrivals in tables]
    events = np.concatenate([of for of, _ in parts])
    counts = np.concatenate([of for _, of in parts])
    if not events.size:
        return 0
    order = np.argsort(events, kind="stable")
    upto = np.cumsum(counts[order])
    middle = [(upto[-1] - 1) // 2, upto[-1] // 2]
    return int(events[order][np.searchsorted(upto, middle, "right")].mean())
