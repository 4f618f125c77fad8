"""The machine of the experiments: what an operation of the engine costs in virtual seconds. All constants are here.

The engine counts its operations; this module says how long they would have taken. No clock is looked at, so a run
repeats exactly.

    hash, move, comparison   the paper's table 3 (ticks of a 1 GHz processor) times a factor
    page                     8 KB of Wisconsin tuples (208 bytes), read or written in 5 ms

The factor: the paper's inputs are milliseconds apart and its figures show plans that fall behind them; section 3.6 puts
the cost of a unit of work at 1.5 ms, where table 3 makes it about a microsecond. With the times of table 3 as they are
the processor would be idle for 99.9 % of every experiment, and without overflow all plans would give the same curve. So
where the processor is the subject (figures 11 and 12) it is a thousand times slower, and table 3 says how much dearer
one operation is than another. Where memory is the subject (figure 15, the star, PermJoin) it is a hundred times slower,
which keeps up with the inputs. The disk is never slowed: 5 ms is about a random access of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_mjoin.evidence import WorkCounts

HASH_SECONDS = 175.008e-9
MOVE_SECONDS = 426.518e-9
COMPARISON_SECONDS = 49.133e-9
LOADED, AHEAD = 1000, 100  # factors: a processor that the inputs overtake, and one that keeps up
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

    def seconds(self, slower: float) -> float:
        """How long it takes on a processor that is so many times slower than the paper's."""
        ticks = self.hashes * HASH_SECONDS + self.moves * MOVE_SECONDS + self.comparisons * COMPARISON_SECONDS
        return ticks * slower + self.disk_rows / PAGE_ROWS * PAGE_SECONDS
