"""The machine of the experiments: what an operation of the engine costs in virtual seconds. All constants are here.

The engine counts its operations; this module says how long they would have taken. No clock is looked at, so a run
repeats exactly.

    hash, move, comparison   the paper's table 3 (ticks of a 1 GHz processor), a thousand times slower
    page                     8 KB of Wisconsin tuples (208 bytes), read or written in 5 ms

A thousand times slower, because the paper's inputs are milliseconds apart and its figures show plans that fall behind
them: section 3.6 puts the cost of one unit of work at 1.5 ms, and table 3 at about a microsecond. With the times of
table 3 as they are, the processor would be idle for 99.9 % of every experiment, and without overflow all plans would
give the same curve. What table 3 is used for is how much dearer one operation is than another. The disk is not slowed:
5 ms is about a random access of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_mjoin.metrics import WorkCounts

SLOWER = 1000
HASH_SECONDS = 175.008e-9 * SLOWER
MOVE_SECONDS = 426.518e-9 * SLOWER
COMPARISON_SECONDS = 49.133e-9 * SLOWER
PAGE_SECONDS = 5e-3
PAGE_ROWS = 8192 // 208


@dataclass(frozen=True)
class Work:
    """What was done, in the paper's terms."""

    hashes: int = 0
    moves: int = 0
    comparisons: int = 0
    probes: int = 0
    disk_rows: int = 0  # written or read

    @staticmethod
    def of(counts: WorkCounts) -> Work:
        return Work(counts.hashes, counts.moves, counts.comparisons, counts.probes)

    def __add__(self, other: Work) -> Work:
        return Work(*(mine + theirs for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def seconds(self) -> float:
        processor = (
            self.hashes * HASH_SECONDS + self.moves * MOVE_SECONDS + self.comparisons * COMPARISON_SECONDS
        )
        return processor + self.disk_rows / PAGE_ROWS * PAGE_SECONDS
