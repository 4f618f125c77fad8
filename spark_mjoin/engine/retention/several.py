"""Several reasons for rows to leave, one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.retention.protocol import Report, Retention
from spark_mjoin.mjoin.bound import EmitFirst, Found
from spark_mjoin.model import Array
from spark_mjoin.state.operator import OperatorState
from spark_mjoin.state.slots import Slots


@dataclass(frozen=True)
class Several(Retention):
    parts: tuple[Retention, ...]

    @property
    def keeps_all(self) -> bool:
        return all(part.keeps_all for part in self.parts)

    def begin(self, side_by_side: Sequence[int], floors: Mapping[int, int]) -> None:
        for part in self.parts:
            part.begin(side_by_side, floors)

    def arriving(self, member: int, piece: Piece, slots: Slots) -> pa.RecordBatch:
        rows = piece.data()
        for part in self.parts:
            rows = part.arriving(member, piece, slots)  # all find the same data rows
        return rows

    def admitted(self, member: int, arrays: list[pa.Array]) -> list[pa.Array]:
        for part in self.parts:
            arrays = part.admitted(member, arrays)
        return arrays

    def met(self, operator: OperatorState, member: int, piece: Piece, found: Iterator[Found]) -> Iterator[Found]:
        for part in self.parts:
            found = part.met(operator, member, piece, found)
        return found

    def leave(self, full: bool) -> Iterator[EmitFirst]:
        for part in self.parts:
            yield from part.leave(full)

    def end(self, idle: bool) -> Iterator[EmitFirst]:
        for part in self.parts:
            yield from part.end(idle)

    def awaited(self, piece: Piece) -> Array | None:
        return next((found for part in self.parts if (found := part.awaited(piece)) is not None), None)

    def after_pass(self, buckets: Iterable[int]) -> None:
        some = list(buckets)
        for part in self.parts:
            part.after_pass(some)

    def after_no_pass(self, buckets: Array) -> None:
        for part in self.parts:
            part.after_no_pass(buckets)

    def waits_for_pass(self) -> bool:
        return any(part.waits_for_pass() for part in self.parts)

    def tidy(self, has_time: bool) -> None:
        for part in self.parts:
            part.tidy(has_time)

    def punctuations(self, slots: Slots, last: bool) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            yield from part.punctuations(slots, last)

    def floor(self) -> int | None:
        return next((found for part in self.parts if (found := part.floor()) is not None), None)

    def report(self) -> Report:
        found = [part.report() for part in self.parts]
        windows = next((report.windows for report in found if report.windows), ())
        return Report(any(report.purge_pending for report in found), windows)
