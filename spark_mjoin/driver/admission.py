"""How much of each input the next batch lets in, when input outruns the join (Kang 2003, section 4.2).

    what batches took, and how long ──> rows that the next one can take ──> shared over the inputs ──> parts of each

Shares. The results of a batch are, up to a constant, the product of the rows that are let in of each input: with
windows of size T the rate of results is sum_i r_i prod_{j != i} r_j T_j = (prod r_j) (sum_i prod_{j != i} T_j), and
without windows the product of all rows. Given their sum, the product is largest when they are equal; an input that has
fewer rows than that gives all, and the others share the rest equally. So for two inputs it is what the paper says, and
neither windows nor selectivities matter.

Time. A batch takes `overhead`, in which no task works, something for every row that is there, since it must be read,
and something for every row that is let in. What these are is fitted to what batches took. A batch may take `maxDelay`;
without it as long as its input took to arrive, or FREE_SECONDS. Then delay does not grow, and what has built up goes
down.

Recall. With `minRecall` the number of rows is raised until no result can be less likely than that: for an arriving row
of any input, its fraction times the least ones that the others have, in the state or from now on. Sharing more rows
equally is also the cheapest way to get there. A batch may take longer then.

Pure: times come from outside. The decision is part of the offset, so a replay asks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE

FREE_SECONDS = 5.0  # that a batch may take before anything is shed, unless `maxDelay` says otherwise
RECOVERY = 0.9  # of the time in which its input arrived, that a batch may take
LEAST_PARTS = WHOLE // 1024  # of an input, that are always let in
LEAST_WORK = 0.1  # of the time that a batch may take, that is left for tasks whatever the overhead
FADING = 0.5  # what is left of older measurements after a batch
FEW_ROWS = 10  # a sample with fewer says little about how many there are
STEADY = 1.05  # fractions stay as they are while they could be raised by less

Parts = tuple[int, ...]


@dataclass
class Load:
    """What batches took, and how long: smoothed, as far as this process has seen it."""

    inputs: int
    rates: list[float] = field(default_factory=list)  # rows per second that arrive, let in or not; empty: not known
    offered: list[float] = field(default_factory=list)  # rows of the last batch, let in or not
    overhead: float = 0.0  # seconds of a batch before tasks begin
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)  # of products, for the fit of `costs`

    @property
    def is_known(self) -> bool:
        """Whether anything is known about how long batches take."""
        return self._sums[1] > 0

    def note(
        self, taken: Sequence[int], parts: Parts, arrived_seconds: float | None, worked: float, overhead: float
    ) -> None:
        """A batch is over: rows of each input that were let in, by which parts, and what it took.

        arrived_seconds: in which its input had arrived; None where nobody knows, as for the first. How long that took
        says little either: processes and caches were cold.
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
        """Seconds that tasks take for each row that is there, and for each that is let in besides: a least-squares fit.

        While everything is let in the two cannot be told apart, and all is laid to the second.
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
        """How many of so many rows can be let in, for a batch to take no longer than that."""
        each, let_in = self.costs()
        left = seconds - self.overhead - each * rows
        return max(left, LEAST_WORK * seconds) / let_in

    def expected(self, seconds: float | None) -> list[float]:
        """Rows of each input in the next batch, which arrived in so many seconds; None: as many as in the last."""
        return self.offered if seconds is None else [rate * seconds for rate in self.rates]


@dataclass(frozen=True)
class DelayLimit:
    """How late results may be, and how many of them may be lost for that."""

    max_delay: float | None = None  # seconds
    min_recall: float | None = None


def admit(load: Load, before: Parts | None, seconds: float | None, limit: DelayLimit, least: Sequence[float]) -> Parts:
    """How much of each input the next batch lets in.

    before: what the last one did; seconds: in which its input arrived, None where nothing arrives any more; least: the
    smallest fraction of each input that is in the state.
    """
    everything = (WHOLE,) * load.inputs
    if seconds is None and limit.max_delay is None:
        return everything  # delay cannot grow
    rows = load.expected(seconds)
    if before is not None and limit.min_recall is not None and not keeps(before, least, limit.min_recall):
        before = None  # it was decided under another limit
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
    """Rows of each input to be let in so that their product is maximal, given how many there are and fit in all."""
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
    """The smallest shares, of more rows than there is time for, that keep to a recall."""
    low, high = capacity, sum(rows)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if keeps(_parts(rows, middle), least, recall) else (middle, high)
    return _parts(rows, high)


def _parts(rows: Sequence[float], capacity: float) -> Parts:
    pairs = zip(shares(rows, capacity), rows, strict=True)
    return tuple(max(LEAST_PARTS, min(WHOLE, math.ceil(WHOLE * s / r))) if r > 0 else WHOLE for s, r in pairs)
