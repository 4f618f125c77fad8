"""Which shares a cube has: for each key class, into how many parts its keys are divided.

    a.i = b.i, b.j = c.j, 8 cells     i=2, j=4     a row of a goes to 4 cells, one of b to 1, one of c to 2
                                      bytes = 4 a + b + 2 c, and a cell takes in an eighth of that

A cell takes in, of each input, its bytes divided by the shares of the classes that it has. So larger shares never make
a cell's part larger, and what is to be chosen is where they help the most (Afrati and Ullman, "Optimizing joins in a
map-reduce environment", EDBT 2010). There they solve it for real numbers; whole ones are few enough to be looked at.

The search takes one class after the other and tries every share that there is room for. It leaves out what cannot win:
shares after which even the best that is possible with the room that is left, as if every further class had all of it,
is no better than what was found. A class whose inputs all have another class, too, is left out: the other one divides
the same inputs and more. For more than EXACT classes or MOST_CELLS cells, shares grow step by step instead, by the
prime that lowers a cell's part the most for its size.

Of shares with the same part for a cell those with the fewest bytes in all are taken, then those whose largest share is
the smallest: a frequent key puts its rows on one coordinate of its own axis, and leaves the others to spread them. Then
the first by class.

Not in a cube:
- windows in rows: they count the rows of an input, and no task knows of all of them.
- key promises: what inputs promise is known of whole inputs, and rows that leave are counted.
- shedding and windows that shrink: each copy of a row would be dropped, or not, on its own.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

from spark_mjoin.model import JoinSpec, Settings
from spark_mjoin.query.cubes import Shares

EXACT = 10  # key classes
MOST_CELLS = 1024
PRIMES = (2, 3, 5, 7)  # by which shares grow where not all are looked at


@dataclass(frozen=True)
class Costs:
    """What decides between two cubes, the lower first."""

    spec: JoinSpec
    bytes: tuple[float, ...]  # of each input

    def copies(self, shares: Mapping[int, int]) -> list[int]:
        """Of each input, into how many cells a row goes."""
        classes = [self.spec.classes_of(i) for i in range(len(self.bytes))]
        return [prod(share for c, share in shares.items() if c not in has) for has in classes]

    def moved(self, shares: Mapping[int, int]) -> float:
        """The bytes of all copies."""
        return sum(size * copies for size, copies in zip(self.bytes, self.copies(shares), strict=True))

    def of_cell(self, shares: Mapping[int, int]) -> float:
        """The bytes that a cell takes in."""
        return self.moved(shares) / prod(shares.values())


def obstacle(spec: JoinSpec, settings: Settings) -> str | None:
    """Why a join cannot run as a cube; None where it can."""
    if spec.counts_rows:
        return "it has windows in rows"
    if spec.promising:
        return "inputs make key promises"
    if settings.overflow in ("shed", "shrink") or settings.max_delay is not None:
        return f"option 'overflow' is '{settings.overflow}'"
    if settings.partitions == 1:
        return "there is one partition"
    return None


def best(costs: Costs, cells: int) -> Shares:
    """The shares of least bytes for so many cells at the most."""
    classes = _useful(costs.spec)
    found = _Search(costs, classes, cells).best() if len(classes) <= EXACT and cells <= MOST_CELLS else None
    shares = found or step_by_step(costs, classes, cells)
    return tuple((key_class, share) for key_class, share in sorted(shares.items()) if share > 1)


def _useful(spec: JoinSpec) -> list[int]:
    """The classes without those whose inputs all have another one, too."""
    having = [
        frozenset(i for i in range(len(spec.inputs)) if c in spec.classes_of(i)) for c in range(len(spec.classes))
    ]
    return [
        c
        for c, inputs in enumerate(having)
        if not any(inputs < other or (inputs == other and d < c) for d, other in enumerate(having) if d != c)
    ]


class _Search:
    def __init__(self, costs: Costs, classes: Sequence[int], cells: int) -> None:
        self._costs, self._classes, self._cells = costs, classes, cells
        has = [costs.spec.classes_of(i) for i in range(len(costs.bytes))]
        self._has = [[i for i, those in enumerate(has) if c in those] for c in classes]
        rest = [set(classes[at:]) for at in range(len(classes) + 1)]
        self._later = [[bool(those & rest[at]) for those in has] for at in range(len(classes) + 1)]
        self._found: tuple[tuple[float, float, int, tuple[int, ...]], tuple[int, ...]] | None = None

    def best(self) -> dict[int, int]:
        self._try((), list(self._costs.bytes), self._cells)
        assert self._found is not None
        return dict(zip(self._classes, self._found[1], strict=True))

    def _try(self, chosen: tuple[int, ...], parts: list[float], room: int) -> None:
        """parts: the bytes of each input in a cell, so far."""
        at = len(chosen)
        if at == len(self._classes):
            cells, part = prod(chosen), sum(parts)
            rank = (_rounded(part), _rounded(part * cells), max(chosen), tuple(-share for share in chosen))
            if self._found is None or rank < self._found[0]:
                self._found = rank, chosen
            return
        least = sum(part / room if later else part for part, later in zip(parts, self._later[at], strict=True))
        if self._found is not None and _rounded(least) > self._found[0][0]:
            return
        last = at + 1 == len(self._classes)
        for share in range(room, room - 1 if last else 0, -1):
            fewer = list(parts)
            for input in self._has[at]:
                fewer[input] /= share
            self._try((*chosen, share), fewer, room // share)


def step_by_step(costs: Costs, classes: Sequence[int], cells: int) -> dict[int, int]:
    shares = dict.fromkeys(classes, 1)
    while True:
        now, best, chosen = costs.of_cell(shares), inf, None
        for key_class in classes:
            for factor in PRIMES:
                if prod(shares.values()) * factor <= cells:
                    then = costs.of_cell({**shares, key_class: shares[key_class] * factor})
                    if now and (then / now) ** (1 / (factor - 1)) < best:  # for each further part
                        best, chosen = (then / now) ** (1 / (factor - 1)), (key_class, factor)
        if chosen is None:
            return shares
        shares[chosen[0]] *= chosen[1]


def _rounded(number: float) -> float:
    """So that sums in another order are equal."""
    return float(f"{number:.9g}")
