"""Which input gets how much memory, when windows do not fit (Kang 2003, section 4.3), and admission along with it.

The rate of results is, up to a constant, sum_i r_i prod_{j != i} W_j: rows of input i that arrive per second, times the
rows of the others that they meet. Windows are cut so that their bytes fit and the sum is as large as possible.

    fixed rates (VTCA)   for two inputs the sum is linear in each window, so the better one gets all it can use: the
                         slower input, as the paper says, or the one with smaller rows. The other only probes.
    free rates (VTVA)    where processing is limited too, the admitted part of each input is chosen along with it: the
                         window of one input takes the memory, and nearly all rows that there is time for are of the
                         other. Only as much of the first is admitted as its window needs.

For more than two inputs there is no closed form. Memory moves between two inputs at a time, each time by the best
amount, until nothing is gained. The sum is a concave function of that amount. As a whole it is not concave, so the
search begins at several points.

Pure. Not covered: how rows are dropped (engine.retention.shrinking).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from spark_mjoin.driver.admission import LEAST_PARTS, DelayLimit, Load, Parts, admit, shares
from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE, JoinSpec

HORIZON_SECONDS = 600.0  # no longer windows are planned: the admitted part must fill them in this time
ROUNDS = 20
GRID = 16  # steps in which windows are changed
GAIN = 1.0001  # that is worth another round
BETTER = 1.1  # than what is in force: a change drops rows
ASSUMED_BYTES = 100.0  # of a row, before there is one

MemoryParts = tuple[float, ...]  # of the memory, for the window of each input


@dataclass(frozen=True)
class Flexible:
    """Windows that may be shortened, and the memory that they have to fit into."""

    memory_bytes: int
    sizes: tuple[tuple[int, bool], ...]  # of each input's window: microseconds, or rows
    row_bytes: tuple[float, ...]
    rows: tuple[float, ...]  # of each input, that are there

    @staticmethod
    def of(spec: JoinSpec, memory_bytes: int, held: Iterable[Held]) -> Flexible | None:
        """None where some input has no window; bytes of rows are those that the partitions hold."""
        windows = [(i.window.size, i.window.in_rows) for i in spec.inputs if i.window is not None]
        if len(windows) < len(spec.inputs):
            return None
        known = [each for each in held if each.input_bytes]
        bytes_held = [sum(each.input_bytes[i] for each in known) for i in range(len(windows))]
        rows = [sum(each.kept_rows[i] for each in known) for i in range(len(windows))]
        some = sum(bytes_held) / sum(rows) if sum(rows) else ASSUMED_BYTES
        sizes = tuple(b / r if r else some for b, r in zip(bytes_held, rows, strict=True))
        return Flexible(memory_bytes, tuple(windows), sizes, tuple(map(float, rows)))

    def spans(self, rates: Sequence[float]) -> list[float]:
        """The seconds that a row counts for, at such rates of arrival."""
        pairs = zip(self.sizes, rates, strict=True)
        return [size / max(rate, 1e-9) if in_rows else size / 1e6 for (size, in_rows), rate in pairs]


def decide(
    load: Load,
    before: tuple[Parts | None, MemoryParts | None],
    seconds: float | None,
    limit: DelayLimit | None,
    least: Sequence[float],
    flexible: Flexible | None,
) -> tuple[Parts, MemoryParts | None]:
    """How much of each input the next batch admits, and which part of the memory its window gets.

    As driver.admission.admit; without a limit nothing is shed. Where windows must be shortened as well, both are
    chosen together. What is in force stays unless something is BETTER.
    """
    everything = (WHOLE,) * load.inputs
    parts = everything if limit is None else admit(load, before[0], seconds, limit, least)
    if flexible is None:
        return parts, None
    rates = load.rates or load.offered
    if not any(rates):
        return parts, before[1] or (1 / load.inputs,) * load.inputs
    spans, sizes, memory = flexible.spans(rates), flexible.row_bytes, float(flexible.memory_bytes)
    let_in = [rate * part / WHOLE for rate, part in zip(rates, parts, strict=True)]
    coming = [rate * span for rate, span in zip(let_in, spans, strict=True)]
    most = [max(of) for of in zip(coming, flexible.rows, strict=True)]  # one that pauses keeps what others still meet
    windows = divide(let_in, most, sizes, memory)
    short = sum(m * size for m, size in zip(most, sizes, strict=True)) > memory
    if parts != everything and short and not any(2 * c < m for c, m in zip(coming, most, strict=True)):
        let_in, windows = divide_all(rates, sum(let_in), spans, sizes, memory)
    found = results(let_in, [w / size for w, size in zip(windows, sizes, strict=True)])
    if before[1] is not None:
        old = [rate * part / WHOLE for rate, part in zip(rates, before[0] or parts, strict=True)]
        scale = min(1.0, sum(let_in) / sum(old))
        rows = [
            min(part * memory / size, rate * scale * span)
            for part, size, rate, span in zip(before[1], sizes, old, spans, strict=True)
        ]
        if found <= BETTER * results([rate * scale for rate in old], rows):
            return (parts if parts == everything else _parts([r * scale for r in old], rates)), before[1]
    total = sum(windows)
    of_memory = tuple(round(w / total, 4) for w in windows) if total else (1 / load.inputs,) * load.inputs
    return (parts if parts == everything else _parts(let_in, rates)), of_memory


def _parts(let_in: Sequence[float], rates: Sequence[float]) -> Parts:
    pairs = zip(let_in, rates, strict=True)
    return tuple(max(LEAST_PARTS, min(WHOLE, round(WHOLE * a / r))) if r > 0 else WHOLE for a, r in pairs)


def results(rates: Sequence[float], rows: Sequence[float]) -> float:
    """The rate of results, up to a constant: arriving rows times those that they meet."""
    return sum(rate * math.prod(r for j, r in enumerate(rows) if j != i) for i, rate in enumerate(rates))


def divide(rates: Sequence[float], most: Sequence[float], row_bytes: Sequence[float], memory: float) -> list[float]:
    """Bytes for the window of each input, so that most results come: given the rows that each can use at the most."""
    caps = [rows * size for rows, size in zip(most, row_bytes, strict=True)]
    if sum(caps) <= memory:
        return caps
    beginnings = [shares(caps, memory)]
    for first in range(len(rates)) if len(rates) > 2 else ():
        begun = [0.0] * len(rates)
        begun[first] = min(caps[first], memory / 2)
        rest = [0.0 if i == first else cap for i, cap in enumerate(caps)]
        beginnings.append([a + b for a, b in zip(begun, shares(rest, memory - begun[first]), strict=True)])

    division = _Division(rates, caps, row_bytes)
    return max(map(division.improved, beginnings), key=division.value)


@dataclass(frozen=True)
class _Division:
    """Memory that is divided over windows: what each input can use, and the results it gives for that."""

    rates: Sequence[float]
    caps: Sequence[float]  # bytes
    row_bytes: Sequence[float]

    def value(self, of: Sequence[float]) -> float:
        """The rate of results, given the bytes of each window."""
        return results(self.rates, [b / size for b, size in zip(of, self.row_bytes, strict=True)])

    def improved(self, begun: Sequence[float]) -> list[float]:
        """Move memory between two inputs at a time until nothing is gained."""
        out, best = list(begun), self.value(begun)
        for _ in range(ROUNDS):
            for p, q in combinations(range(len(out)), 2):
                both = out[p] + out[q]
                out[p] = self._first_of_two(p, q, out)
                out[q] = both - out[p]
            if self.value(out) <= best * GAIN:
                break
            best = self.value(out)
        return out

    def _first_of_two(self, p: int, q: int, of: Sequence[float]) -> float:
        """The best part of p in what p and q have together: the sum is c + a W_p + b W_q + m W_p W_q."""
        rates, caps, size, both = self.rates, self.caps, self.row_bytes, of[p] + of[q]
        rest = {j: of[j] / size[j] for j in range(len(of)) if j not in (p, q)}
        apart = math.prod(rest.values())
        a, b = rates[q] * apart / size[p], rates[p] * apart / size[q]
        m = sum(rates[i] * math.prod(r for j, r in rest.items() if j != i) for i in rest) / size[p] / size[q]
        low, high = max(0.0, both - caps[q]), min(caps[p], both)
        if m > 0:
            return min(max(both / 2 + (a - b) / (2 * m), low), high)
        return of[p] if a == b else high if a > b else low


def divide_all(
    rates: Sequence[float], capacity: float, spans: Sequence[float], row_bytes: Sequence[float], memory: float
) -> tuple[list[float], list[float]]:
    """Rows per second to admit of each input, and bytes for its window; a row counts for `spans` seconds.

    rates: rows per second that there are; capacity: that there is time for. Given the windows the sum is linear in the
    rates: each input must fill its window, and the rest goes first to those whose rows meet the most (`let_in`). So
    only windows are searched for, over a grid that gets finer.
    """
    spans = [min(span, HORIZON_SECONDS) for span in spans]
    caps = [rate * span * size for rate, span, size in zip(rates, spans, row_bytes, strict=True)]
    memory = min(memory, sum(caps))

    def let_in(windows: Sequence[float]) -> list[float]:
        rows = [w / size for w, size in zip(windows, row_bytes, strict=True)]
        out = [r / span for r, span in zip(rows, spans, strict=True)]
        left = capacity - sum(out)
        for i in sorted(range(len(out)), key=lambda i: rows[i]):
            more = min(rates[i] - out[i], left)
            out[i] += more
            left -= more
        return out

    def value(windows: Sequence[float]) -> float:
        if sum(w / size / span for w, size, span in zip(windows, row_bytes, spans, strict=True)) > capacity:
            return -1.0
        return results(let_in(windows), [w / size for w, size in zip(windows, row_bytes, strict=True)])

    fair = shares(rates, capacity)
    beginnings = [
        shares(caps, memory),
        divide(fair, [rate * span for rate, span in zip(fair, spans, strict=True)], row_bytes, memory),
    ]
    for prober in range(len(rates)):
        beginnings.append(shares([0.0 if i == prober else cap for i, cap in enumerate(caps)], memory))
    best: list[float] = [0.0] * len(rates)
    for begun in beginnings:
        needed = sum(w / size / span for w, size, span in zip(begun, row_bytes, spans, strict=True))
        scale = min(1.0, 0.999 * capacity / needed) if needed else 1.0
        best = max(best, _searched([w * scale for w in begun], caps, memory, value), key=value)
    rows = let_in(best)
    return rows, divide(rows, [rate * span for rate, span in zip(rows, spans, strict=True)], row_bytes, memory)


def _searched(
    begun: Sequence[float], caps: Sequence[float], memory: float, value: Callable[[Sequence[float]], float]
) -> list[float]:
    """Change one window, or move memory between two, until nothing is gained."""
    out, best = list(begun), value(begun)
    moves = [*combinations(range(len(out)), 2), *((i, None) for i in range(len(out)))]
    for width in (memory, memory / GRID, memory / GRID**2):
        for _ in range(ROUNDS):
            before = best
            for p, q in moves:
                both = memory - sum(out) + out[p] if q is None else out[p] + out[q]
                low = max(0.0, 0.0 if q is None else both - caps[q], out[p] - width)
                high = min(caps[p], both, out[p] + width)
                for step in range(GRID + 1) if high > low else ():
                    x = low + (high - low) * step / GRID
                    moved = [x if i == p else both - x if i == q else w for i, w in enumerate(out)]
                    if (gained := value(moved)) > best * GAIN:
                        out, best = moved, gained
            if best <= before * GAIN:
                break
    return out
