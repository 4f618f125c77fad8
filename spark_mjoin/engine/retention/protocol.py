"""What a batch asks about rows that leave for good: one protocol, whatever makes them leave.

    begin                     before rows arrive
      arriving, admitted      a piece arrives: what of it are rows, and which of them are not too late
      met                     its rows have met the others: which of them are not kept
      leave                   rows have come: those that can go do, and where memory is full those that must
    end                       all rows of the batch have arrived
    after_pass, tidy ...      disk work
    punctuations, floor,      what the batch says at its end
    report

Rows leave through `OperatorState.depart` alone. Where what was found must be emitted before they do, a method is an
iterator that says so (`mjoin.bound`): the caller passes the mark on, and what was found is emitted before the method
resumes.

A retention is about the root of a plan: joins from which rows leave have one operator. Only `met` knows of others.

`engine.retention.retention_of` says which implementations a batch needs. Nobody else names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_mjoin.engine.feed import Piece
from spark_mjoin.mjoin.bound import EmitFirst, Found
from spark_mjoin.model import Array
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.slots import Slots


@dataclass(frozen=True)
class Report:
    """What a manifest says about retention when a batch ends."""

    purge_pending: bool = False  # whether a batch without rows would find rows to drop
    windows: tuple[tuple[int, bool], ...] = ()  # that are in effect, and whether in rows; none: as given


class Retention(Protocol):
    @property
    def keeps_all(self) -> bool:
        """Whether no row ever leaves, so that the state depends on what has arrived alone."""
        ...

    # --- while rows arrive -----------------------------------------------------------------------------------

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        """Rows are about to arrive: drop what the batch has no use for.

        side_by_side: how many of each input count as if they came one by one; empty where they come as they come.
        floors: of inputs that are results of an earlier stage, what that says of results to come (engine.feed).
        """
        ...

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        """The data rows of a piece that arrives. slots: those that this partition owns."""
        ...

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        """Of rows that are about to be stored, given as stored columns, those that are not too late."""
        ...

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        """What a piece finds when it arrives; afterwards, those of its rows leave that need not be kept."""
        ...

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        """After each piece: let rows leave. full: memory is, and rows will be evicted unless some leave."""
        ...

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        """All rows of the batch have arrived. idle: there were none."""
        ...

    def awaited(self, piece: Piece) -> Array | None:
        """Which rows of a piece to come another input waits for, to let rows leave; None where none does."""
        ...

    # --- disk work -------------------------------------------------------------------------------------------

    def after_pass(self, buckets: Iterable[int]) -> None:
        """A pass was over some buckets of the main class: drop what waited for it. All rows are in segments."""
        ...

    def after_no_pass(self, buckets: Array) -> None:
        """The same for buckets in which nothing is pending, when a pass would have been due."""
        ...

    def waits_for_pass(self) -> bool:
        """Whether so many rows wait for pending results that these must be emitted now, whatever was planned."""
        ...

    def tidy(self, has_time: bool) -> None:
        """After all disk work: look through what is on disk and has nothing pending, if there is time."""
        ...

    # --- the end of a batch ----------------------------------------------------------------------------------

    def punctuations(self, slots: Slots, last: bool) -> Iterator[pa.RecordBatch]:
        """Rows of the output that say which results do not come any more. last: nothing comes after this batch."""
        ...

    def floor(self) -> int | None:
        """After all that the batch has emitted: no result to come has an event time below this; None: it may."""
        ...

    def report(self) -> Report:
        """The batch is about to be committed: what its manifest says."""
        ...


class KeepAll(Retention):
    """No row leaves. Implementations say what is different with them."""

    @property
    def keeps_all(self) -> bool:
        return True

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        return

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        return piece.data()

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        return arrays

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        return found

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        return iter(())

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        return iter(())

    def awaited(self, piece: Piece) -> Array | None:
        return None

    def after_pass(self, buckets: Iterable[int]) -> None:
        return

    def after_no_pass(self, buckets: Array) -> None:
        return

    def waits_for_pass(self) -> bool:
        return False

    def tidy(self, has_time: bool) -> None:
        return

    def punctuations(self, slots: Slots, last: bool) -> Iterator[pa.RecordBatch]:
        return iter(())

    def floor(self) -> int | None:
        return None

    def report(self) -> Report:
        return Report()
