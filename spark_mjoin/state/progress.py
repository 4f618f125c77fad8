"""How far the inputs of a windowed join have come, and which of their rows were dropped because of it.

    read           rows that an input has delivered to all partitions, before filters
    seen           its largest event time, before filters, of the rows that this partition has got
    rounds         where a window counts rows, which rows came side by side, and what had come before them
    lows           of a stage, the lowest watermark of all inputs in each of the last batches, with the event at which
                   the batch began
    dropped        per input and bucket (position, event): rows at or before the position that arrived before the event
                   are not in the state any more, though a segment may still hold them

    shortened      per input, the last position that was given up for lack of memory (engine.retention.shrinking)

A round is what a batch delivers of inputs that go in step, or else a single delivery of one input. Its sizes are known
when it begins: `mjoin.windows` says what follows from them. Rounds are kept as long as combinations with rows of theirs
may be pending.

What is dropped is a rule and not a list, so a state that is loaded leaves out the same rows as the one that dropped
them. A later rule covers all that an earlier one did: positions and events only grow. `mjoin.windows` says which rows
can be dropped, `engine.retention.windows` when.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spark_mjoin.model import Array
from spark_mjoin.state.buckets import BUCKETS
from spark_mjoin.state.manifest import Low, ProgressFigures, Round
from spark_mjoin.state.records import Packed

EARLIEST = -(2**63)  # the least event time that a row can have
BEFORE_ALL = EARLIEST  # of a bucket of which nothing was dropped: its event, 0, says so


@dataclass
class Progress:
    inputs: int
    read: list[int] = field(default_factory=list)
    seen: list[int | None] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    lows: list[Low] = field(default_factory=list)
    positions: Array = field(default_factory=lambda: np.empty(0, np.int64))
    events: Array = field(default_factory=lambda: np.empty(0, np.int32))
    dropped: list[int] = field(default_factory=list)  # rows that are in the state's total and not in the state
    since: int = 0  # arrivals since rows were last looked through
    shortened: list[int | None] = field(default_factory=list)  # the last position that was given up before its time
    looked: list[int | None] = field(default_factory=list)  # how far rows in memory were last looked through
    held: int = 0  # rows in segments that are outside their window and kept because results are pending
    in_round: bool = False  # whether rows of the last round may still come; not kept
    watermarks: tuple[int | None, ...] = ()  # of the batch that runs; not kept
    horizons: list[int | None] = field(default_factory=list)  # at or before which rows are expired; not kept

    def __post_init__(self) -> None:
        self.read = self.read or [0] * self.inputs
        self.seen = self.seen or [None] * self.inputs
        self.dropped = self.dropped or [0] * self.inputs
        self.shortened = self.shortened or [None] * self.inputs
        self.looked = self.looked or [None] * self.inputs
        self.watermarks = self.watermarks or (None,) * self.inputs
        if not self.positions.size:
            self.positions = np.full((self.inputs, BUCKETS), BEFORE_ALL, np.int64)
            self.events = np.zeros((self.inputs, BUCKETS), np.int32)

    def begin_round(self, sizes: Sequence[int], event: int) -> None:
        """From an event on, and until `end_round`, the inputs deliver so many rows, side by side."""
        self.rounds.append(Round(event, tuple(self.read), tuple(sizes)))
        self.in_round = True

    def end_round(self) -> None:
        self.in_round = False

    def deliver(self, input: int, rows: int, newest: int | None, event: int, counted: bool) -> None:
        """An input has delivered rows, here with such an event time at the most; counted: some window counts rows."""
        if counted and rows and not self.in_round:
            self.begin_round([rows if i == input else 0 for i in range(self.inputs)], event)
            self.end_round()
        self.read[input] += rows
        if newest is not None:
            self.see(input, newest)

    def see(self, input: int, newest: int) -> None:
        """An input has come to an event time, if it was not there before."""
        before = self.seen[input]
        self.seen[input] = newest if before is None else max(before, newest)

    def keep_low(self, event: int, pending_since: int) -> None:
        """A batch begins at an event with its watermarks. All that came before another event is emitted."""
        known = [mark for mark in self.watermarks if mark is not None]
        if len(known) == self.inputs and (not self.lows or self.lows[-1].time < min(known)):
            self.lows.append(Low(event, min(known)))
        last = max((at for at, low in enumerate(self.lows) if low.event <= pending_since), default=0)
        self.lows = self.lows[last:]

    def low(self, event: int) -> int | None:
        """The lowest watermark at an event; None where there was none, or nobody has kept it."""
        return max((low.time for low in self.lows if low.event <= event), default=None)

    def behind_us(self) -> list[int]:
        """Of each input, rows that came before every row that is still to come of any other input.

        In a round an input may have delivered more already: rows of others that come later count as if they had come
        before some of them. The next row of each that has not ended says how many.
        """
        if not self.in_round:
            return list(self.read)
        now, out = self.rounds[-1], list[int]()
        for input, (start, size) in enumerate(zip(now.starts, now.sizes, strict=True)):
            least = size
            for other, whole in enumerate(now.sizes):
                part = self.read[other] - now.starts[other] + 1
                if other != input and part <= whole:
                    least = min(least, max(0, part * size - 1) // whole)
            out.append(min(start + least, self.read[input]))
        return out

    def forget_rounds(self, before: int) -> None:
        """No combination whose youngest row arrived before an event will be looked at any more."""
        last = max((at for at, each in enumerate(self.rounds) if each.event <= before), default=0)
        self.rounds = self.rounds[last:]

    def drop(self, input: int, buckets: Iterable[int] | Array, position: int, event: int) -> None:
        """Rows of some buckets that are at or before a position were dropped."""
        chosen = np.asarray(buckets)
        self.positions[input, chosen] = np.maximum(self.positions[input, chosen], position)
        self.events[input, chosen] = event

    def shorten(self, input: int, position: int) -> None:
        """Rows at or before a position are given up, though they are inside their window."""
        before = self.shortened[input]
        self.shortened[input] = position if before is None else max(before, position)

    def gone(self, input: int, buckets: Array | int, arrived: Array, positions: Array) -> Array:
        """For some rows of an input, whether they were dropped."""
        out: Array = (positions <= self.positions[input][buckets]) & (arrived < self.events[input][buckets])
        return out

    def all_gone(self, input: int, buckets: Iterable[int] | None, newest: int, last: int) -> bool:
        """Whether no row of some buckets is left that is at `newest` or before and arrived at `last` or before."""
        chosen = slice(None) if buckets is None else sorted(set(buckets))
        return bool((self.positions[input, chosen] >= newest).all() and (self.events[input, chosen] > last).all())

    # --- manifests -------------------------------------------------------------------------------------------

    def figures(self) -> ProgressFigures:
        return ProgressFigures(
            tuple(self.read),
            tuple(self.seen),
            tuple(self.rounds),
            tuple(self.lows),
            Packed.of(self.positions, "q"),
            Packed.of(self.events, "i"),
            tuple(self.dropped),
            self.since,
            tuple(self.shortened),
            tuple(self.looked),
            self.held,
        )

    @staticmethod
    def of(kept: ProgressFigures) -> Progress:
        return Progress(
            len(kept.read),
            list(kept.read),
            list(kept.seen),
            list(kept.rounds),
            list(kept.lows),
            kept.positions.array().reshape(-1, BUCKETS),
            kept.events.array().reshape(-1, BUCKETS),
            list(kept.dropped),
            kept.since,
            list(kept.shortened),
            list(kept.looked),
            kept.held,
        )
