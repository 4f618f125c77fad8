"""How much of each input the next batch admits when input outruns the join (Kang 2003, section 4.2).

    rows and times of batches ──> rows that the next one can take ──> divided over the inputs ──> fractions of each

Inputs. The results of a batch are, up to a constant, the product of the admitted rows of each input: with windows of
size T the rate of results is sum_i r_i prod_{j != i} r_j T_j = (prod r_j) (sum_i prod_{j != i} T_j), and without
windows the product of all rows. For a given sum, the product is largest when the numbers are equal. If an input has
fewer rows, all of them are admitted, and the others divide the rest equally. For two inputs this is what the paper
says. Neither windows nor selectivities matter.

Time. A batch takes `overhead`, in which no task works, some time to read each row, and some more for each admitted row.
These times are fitted to the times of earlier batches. A batch may take `maxDelay`; without it, as long as its input
took to arrive, or FREE_SECONDS. Then the delay does not grow, and a backlog shrinks.

Recall. With `minRecall` the number of rows is raised until every result is at least that likely. The probability for an
arriving row is the fraction of its input times the least fractions of the others, in the state or from now on. Dividing
more rows equally is also the cheapest way to raise it. A batch may then take longer.

Pure: times are parameters. The decision is part of the offset, so a replay decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE

FREE_SECONDS = 5.0  # that a batch may take before anything is shed, unless `maxDelay` says otherwise
RECOVERY = 0.9  # of the time in which its input arrived, that a batch may take
LEAST_PARTS = WHOLE // 1024  # of an input, that are always admitted
LEAST_WORK = 0.1  # of the time that a batch may take, that is left for tasks whatever the overhead
FADING = 0.5  # what is left of older measurements after a batch
FEW_ROWS = 10  # a sample with fewer says little about how many there are
STEADY = 1.05  # fractions stay as they are while they could be raised by less

Parts = tuple[int, ...]


@dataclass
class Load:
    """The rows and times of batches, smoothed, as far as this process has seen them."""

    inputs: int
    rates: list[float] = field(default_factory=list)  # rows per second that arrive, admitted or not; empty: not known
    offered: list[float] = field(default_factory=list)  # rows of the last batch, admitted or not
    overhead: float = 0.0  # seconds of a batch before tasks begin
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # of products, for the fit of `costs`

    @property
    def is_known(self) -> bool:
        """Whether anything is known about how long batches take."""
        return self._sums[1] > 0

    def note(
        self, taken: Sequence[int], parts: Parts, arrived_seconds: float | None, worked: float, overhead: float
    ) -> None:
        """Learn from a batch: its admitted rows of each input, the fractions, and the time that it took.

        arrived_seconds: in which its input had arrived; None where it is not known, as for the first batch. The time of
        the first batch says little either: processes and caches were cold.
        """
        before = self.offered or [0.0] * self.inputs
        self.offered = [
            max(rows * WHOLE / part, FADING * old if part < WHOLE and rows < FEW_ROWS else 0.0)
            for rows, part, old in zip(taken, parts, before, strict=True)
        ]
        if arrived_seconds is None or arrived_seconds <= 0:
            return
        seen = [rows / arrived_seconds for rows in self.offered]
        old = self.rates or seen
        self.rates = [FADING * a + (1 - FADING) * b for a, b in zip(old, seen, strict=True)]
        if sum(taken) and worked > 0:
            self.overhead = FADING * self.overhead + (1 - FADING) * overhead if self.is_known else overhead
            n, a = sum(self.offered), sum(taken)
            new = (n * n, a * a, n * a, n * worked, a * worked)
            self._sums = [FADING * x + y for x, y in zip(self._sums, new, strict=True)]

    def costs(self) -> tuple[float, float]:
        """Seconds that tasks take to read each row, and in addition for each admitted row: a least-squares fit.

        While everything is admitted the two cannot be distinguished, and all time counts for the second.
        """
        nn, aa, na, nt, at = self._sums
        determinant = nn * aa - na * na
        if determinant > 1e-6 * nn * aa:
            each, let_in = (nt * aa - at * na) / determinant, (at * nn - nt * na) / determinant
            if each >= 0 and let_in > 0:
                return each, let_in
            if let_in <= 0:  # reading is nearly all
                let_in = LEAST_WORK * at / aa
                return max(0.0, (nt - let_in * na) / nn), let_in
        return 0.0, at / aa

    def capacity(self, rows: float, seconds: float) -> float:
        """How many of these rows a batch can admit without taking longer than that."""
        each, let_in = self.costs()
        left = seconds - self.overhead - each * rows
        return max(left, LEAST_WORK * seconds) / let_in

    def expected(self, seconds: float | None) -> list[float]:
        """Rows of each input in the next batch, which arrived in this many seconds; None: as many as in the last."""
        return self.offered if seconds is None else [rate * seconds for rate in self.rates]


@dataclass(frozen=True)
class DelayLimit:
    """How late results may be, and how many may be lost for that."""

    max_delay: float | None = None  # seconds
    min_recall: float | None = None


def admit(load: Load, before: Parts | None, seconds: float | None, limit: DelayLimit, least: Sequence[float]) -> Parts:
    """How much of each input the next batch admits.

    before: what the last one did; seconds: in which its input arrived, None where nothing arrives any more; least: the
    smallest fraction of each input that is in the state.
    """
    everything = (WHOLE,) * load.inputs
    if seconds is None and limit.max_delay is None:
        return everything  # delay cannot grow
    rows = load.expected(seconds)
    if before is not None and limit.min_recall is not None and not keeps(before, least, limit.min_recall):
        before = None  # the fractions of the last batch had another limit
    if not rows or not load.is_known:
        return before or everything
    may_take = limit.max_delay or max(FREE_SECONDS, RECOVERY * (seconds or 0.0))
    capacity = load.capacity(sum(rows), may_take)
    if sum(rows) <= capacity:
        return everything
    parts = _parts(rows, capacity)
    if limit.min_recall is not None and not keeps(parts, least, limit.min_recall):
        parts = _raised(rows, capacity, least, limit.min_recall)
    if before is not None and all(b <= p <= STEADY * b for b, p in zip(before, parts, strict=True)):
        return before
    return parts


def least_fractions(held: Iterable[Held], inputs: int) -> list[float]:
    """The smallest fraction of each input that is in the state, from what its partitions hold."""
    found = [each.least_fractions for each in held if each.least_fractions]
    return [min((of[i] for of in found), default=1.0) for i in range(inputs)]


def shares(rows: Sequence[float], capacity: float) -> list[float]:
    """Rows of each input to admit so that their product is maximal, from the rows of each and the number that fits."""
    out, left = [0.0] * len(rows), capacity
    for place, i in enumerate(sorted(range(len(rows)), key=lambda i: rows[i])):
        out[i] = min(rows[i], left / (len(rows) - place))
        left -= out[i]
    return out


def keeps(parts: Parts, least: Sequence[float], recall: float) -> bool:
    """Whether no result with a row that arrives now is less likely than `recall`."""
    lowest = [min(p / WHOLE, old) for p, old in zip(parts, least, strict=True)]
    return all(
        part / WHOLE * math.prod(low for j, low in enumerate(lowest) if j != i) >= recall - 1e-9
        for i, part in enumerate(parts)
    )


def _raised(rows: Sequence[float], capacity: float, least: Sequence[float], recall: float) -> Parts:
    """The smallest numbers of rows, beyond what there is time for, that keep a recall."""
    low, high = capacity, sum(rows)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(_parts(rows, middle), least, recall) else (middle, high)
    return _parts(rows, high)


def _parts(rows: Sequence[float], capacity: float) -> Parts:
    pairs = zip(shares(rows, capacity), rows, strict=True)
    return tuple(max(LEAST_PARTS, min(WHOLE, math.ceil(WHOLE * s / r))) if r > 0 else WHOLE for s, r in pairs)
