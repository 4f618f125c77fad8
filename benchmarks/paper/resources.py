"""Figures 8 to 11 of Kang, Naughton and Viglas, "Evaluating Window Joins over Unbounded Streams": scarce resources.

Two streams, A and B, with keys drawn evenly. Both join in the engine itself: `Pipeline` lets in the part of each stream
that a strategy says (state.admitted), and shortens windows to the part of the memory that it says
(engine.retention.shrinking). Time is that of the arrivals: the paper's rate of service is given, and a strategy lets in
no more than that. No clock is looked at, so every run is the same.

    figure 8    rates are limited, windows are fixed      which stream is sampled how much
    figure 9    memory is limited, rates are fixed        which window gets how much memory
    figure 10   both are limited                          five ways to divide both
    figure 11   the same over a grid                      the surface of equation 14

Figures 8 to 10 have the engine's own choice as one more strategy: the controller of a query (driver.allocation.decide,
with driver.admission.Load), which knows none of this. After each batch it gets what the reader gives it in a query: the
rows that were let in, how long they took at the rate of service, and in how much time they had arrived. It begins with
everything let in and memory divided equally, and its batches take as long as the rows that it lets in.

Memory is in rows in the paper, and in accounted bytes here, indexes included. So that the smallest index is not most of
it, figures 9 to 11 have LARGER times the paper's rates, memory and keys, which makes LARGER times the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.paper.inputs import Stream, batch, poisson
from benchmarks.paper.machine import Work
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least, at_most
from benchmarks.paper.virtual import Run, Simulation, scratch
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver.admission import DelayLimit, Load, Parts
from spark_mjoin.driver.allocation import Flexible, MemoryParts, decide
from spark_mjoin.driver.watermarks import advance
from spark_mjoin.engine.feed import Piece
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.evidence import Held
from spark_mjoin.model import WHOLE, Expiry, Room
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.query.graph import plan_join
from spark_mjoin.schema import TIMESTAMP
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore
from spark_mjoin.state.table import index_bytes

LARGER = 20
SLICES = 300  # of a run, each a batch
TRIGGER_SECONDS = 0.5  # from one look at the sources to the next, where a controller has time for it
ROW_BYTES = 3 * 8  # id, key and event time
QUERY = "SELECT a.id AS x, b.id AS y FROM a JOIN b ON a.k = b.k"


@dataclass(frozen=True)
class Strategy:
    name: str
    let_in: tuple[float, float]  # of A and B, parts of 1
    memory: tuple[float, float] | None = None  # for the windows of A and B, parts of 1; None: no limit


def run(
    strategy: Strategy,
    streams: Mapping[str, Stream],
    windows: tuple[float, float],
    memory_bytes: int = 0,
    slices: int | None = None,
) -> Run:
    """Results over time under a strategy, with windows in seconds."""
    with scratch() as directory:
        return _Simulation(strategy, streams, windows, memory_bytes, slices or SLICES, str(directory)).run()


class _Simulation(Simulation):
    def __init__(
        self,
        strategy: Strategy,
        streams: Mapping[str, Stream],
        windows: tuple[float, float],
        memory_bytes: int,
        slices: int,
        directory: str,
    ) -> None:
        super().__init__(strategy.name, streams, 0.0, float("inf"), slices)
        options = {"query": QUERY}
        for name, seconds in zip(streams, windows, strict=True):
            options |= {
                f"source.{name}.format": "arrow",
                f"source.{name}.window": f"{round(seconds * 1e6)} microseconds",
                f"source.{name}.timestamp": "ts",
                f"source.{name}.watermark": "0 seconds",
            }
        parsed = Options.parse(options)
        self._spec = plan_join(parsed, [streams[s.alias].rows.schema for s in parsed.sources])
        tree = trees.single(2)
        state = PartitionState.empty(tree, trees.layout(self._spec, tree), {})
        self._admission = tuple(max(1, min(WHOLE, round(WHOLE * part))) for part in strategy.let_in)
        self._room = None if strategy.memory is None else Room(memory_bytes, strategy.memory)
        counts = BatchCounts([0, 0])
        store = StateStore(directory, 0)
        self._pipeline = Pipeline(state, self._plan(), store.draft(1, "run"), counts, lambda: 0.0)
        self._arriving: list[tuple[int, pa.RecordBatch]] = []
        self.most_bytes = 0

    def _plan(self, marks: tuple[int | None, ...] = (None, None)) -> Plan:
        expiry = Expiry(marks, active=True)
        return Plan(trees.single(2), expiry=expiry, admission=self._admission, room=self._room)

    def arrive(self, stream: str, rows: pa.RecordBatch) -> None:
        self._arriving.append(("ab".index(stream), rows))

    def slice_ended(self) -> None:
        progress = self._pipeline.state.root.progress
        self._pipeline.plan = self._plan(advance(self._spec, progress.watermarks, progress.seen, ()))
        state = self._pipeline.state
        self._pipeline.resume(state)
        pieces = (Piece.whole(number, rows, state.delivered()[number]) for number, rows in self._arriving)
        for results in self._pipeline.arrivals(pieces):
            self.results += results.num_rows
        self._arriving = []
        self.most_bytes = max(self.most_bytes, self._pipeline.state.nbytes())

    def disk_work(self, ended: bool) -> bool:
        return False

    def work(self) -> Work:
        return Work.of(self._pipeline.counts.work())

    def rows_flushed(self) -> int:
        return 0

    def comparisons(self) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True)
class Controlled:
    """What the controller did, besides the results."""

    run: Run
    let_in: tuple[float, ...]  # rows per second of each stream, in the second half of the run
    memory: tuple[float, ...] | None  # the part of the memory that each window had in the end
    changes: int  # of that, over the run


def controlled(
    streams: Mapping[str, Stream], windows: tuple[float, float], service: float | None, memory_bytes: int = 0
) -> Controlled:
    """The engine's controller, on a machine that takes so many rows per second; None: any number."""
    with scratch() as directory:
        last = max(float(stream.seconds[-1]) for stream in streams.values())
        slices = math.ceil(last / TRIGGER_SECONDS)
        simulation = _Controller(streams, windows, service, memory_bytes, slices, str(directory))
        found = simulation.run()
        return Controlled(found, simulation.let_in(), simulation.memory_parts, simulation.changes)


class _Controller(_Simulation):
    """Plans each batch from what it measured of those before, as `driver.session` does."""

    takes_all = True  # a query without limits takes whatever is there

    def __init__(
        self,
        streams: Mapping[str, Stream],
        windows: tuple[float, float],
        service: float | None,
        memory_bytes: int,
        slices: int,
        directory: str,
    ) -> None:
        super().__init__(Strategy("chosen", (1.0, 1.0)), streams, windows, memory_bytes, slices, directory)
        self._service, self._memory_bytes = service, memory_bytes
        self._load, self._least = Load(2), (1.0, 1.0)
        self._looked: float | None = None  # when the sources were last looked at
        self._batch: tuple[list[int], Parts, float | None, float, float] | None = None  # as Load.note wants it
        self.memory_parts: MemoryParts | None = None
        self.changes = 0
        self._taken: list[tuple[float, list[int]]] = []

    def slice_ended(self) -> None:
        arrived = None if self._looked is None else self._now - self._looked
        self._looked = self._now
        if self._batch is not None:
            self._load.note(*self._batch)
        before = self._admission if self._batch is not None and self._admission != _EVERYTHING else None
        limit = None if self._service is None else DelayLimit()
        flexible = Flexible.of(self._spec, self._memory_bytes, self._held()) if self._memory_bytes else None
        found = decide(self._load, (before, self.memory_parts), arrived or 0.0, limit, self._least, flexible)
        self.changes += self.memory_parts is not None and found[1] != self.memory_parts
        self._admission, self.memory_parts = found
        self._room = None if self.memory_parts is None else Room(self._memory_bytes, self.memory_parts)
        rows_before = list(self._pipeline.counts.rows_in)
        super().slice_ended()
        taken = [now - then for now, then in zip(self._pipeline.counts.rows_in, rows_before, strict=True)]
        self._taken.append((self._now, taken))
        worked = 0.0 if self._service is None else sum(taken) / self._service
        self._batch = taken, self._admission, arrived, worked, 0.0

    def _held(self) -> list[Held]:
        """What the manifests of a query say about the state."""
        root = self._pipeline.state.root
        kept = tuple(admitted.rows for admitted in root.admitted)
        held = tuple(table.steady_bytes() for table in root.tables)
        return [Held(input_bytes=held, kept_rows=kept)] if any(kept) else []

    def tick(self) -> None:
        """A batch takes as long as the rows that it lets in."""
        assert self._batch is not None
        super().tick()
        self._now += self._batch[3]

    def let_in(self) -> tuple[float, ...]:
        """Rows per second of each stream, in the second half of the run."""
        half = self._now / 2
        late = [taken for at, taken in self._taken if at >= half]
        return tuple(sum(of) / half for of in zip(*late, strict=True))


_EVERYTHING = (WHOLE, WHOLE)


def _streams(rates: tuple[float, float], keys: tuple[int, int], seconds: float) -> dict[str, Stream]:
    """A and B; the keys of one are among those of the other, so the smaller selectivity is that of the join."""
    out = {}
    for seed, (name, rate, values) in enumerate(zip("ab", rates, keys, strict=True), 80):
        rows = round(rate * seconds)
        at = poisson(rows, 1 / rate, seed)
        columns = {
            "id": np.arange(rows, dtype=np.int64),
            "k": np.random.Generator(np.random.Philox(seed + 10)).integers(0, values, rows),
        }
        times = pa.array((at * 1e6).astype(np.int64)).cast(TIMESTAMP)
        out[name] = Stream(batch(columns).append_column("ts", times), at)
    return out


def memory_of(rows: float) -> int:
    """Accounted bytes of so many rows in one window."""
    return int(rows * ROW_BYTES + index_bytes(round(rows), hashed=False))


def _per_second(run: Run, seconds: float) -> float:
    """Results per second in the second half: windows are full by then, and the controller knows its load."""
    return run.between(seconds / 2, seconds) / (seconds / 2)


def _table(runs: Sequence[Run], expected: Mapping[str, float], seconds: float) -> Iterator[list[object]]:
    for r in runs:
        said = f"{expected[r.plan]:.1f}" if r.plan in expected else ""
        yield [r.plan, r.total, f"{_per_second(r, seconds):.1f}", said]


def _best(runs: Sequence[Run], name: str, claim: str, bar: float) -> Check:
    """That a strategy gives the most of all."""
    totals = {r.plan: r.total for r in runs}
    others = [total for plan, total in totals.items() if plan != name]
    shown = ", ".join(f"{plan} {total:,}" for plan, total in totals.items())
    return at_least(f"{claim}: times the next", totals[name] / max(others), bar, shown)


def _as_good(own: Controlled, runs: Sequence[Run], seconds: float, bar: float) -> Check:
    """That the engine's controller comes near the best strategy, which knows the rates."""
    best = max(_per_second(r, seconds) for r in runs)
    rows = " and ".join(f"{rate:.1f}" for rate in own.let_in)
    parts = "" if own.memory is None else f", parts of the memory {' and '.join(f'{part:g}' for part in own.memory)}"
    return at_least(
        "the engine's controller comes near the best strategy: part of its results in the second half",
        _per_second(own.run, seconds) / best,
        bar,
        f"{_per_second(own.run, seconds):,.1f} of {best:,.1f} per second; lets in {rows} rows per second{parts}",
    )


HEADER = ["strategy", "results", "per second in the second half", "by the paper's equation"]


# --- figure 8: too little time -------------------------------------------------------------------------------------


def admission(scale: float) -> Outcome:
    """Section 4.2: 80 and 20 rows per second, of which ten can be taken."""
    seconds, rates, windows, service = 2000 * scale, (80.0, 20.0), (9.0, 1.0), 10.0
    streams = _streams(rates, (50, 12), seconds)
    regulated = {
        "λ proportional": (8.0, 2.0),
        "λ inverse": (2.0, 8.0),
        "T proportional": (9.0, 1.0),
        "T inverse": (1.0, 9.0),
        "equal": (5.0, 5.0),
    }
    runs = [run(Strategy(name, (a / rates[0], b / rates[1])), streams, windows) for name, (a, b) in regulated.items()]
    expected = {name: 1 / 50 * a * b * sum(windows) for name, (a, b) in regulated.items()}
    totals = {r.plan: r.total for r in runs}
    own = controlled(streams, windows, service)
    checks = [
        _best(runs, "equal", "equal distribution gives the most results", 1.28),
        _as_good(own, runs, seconds, 0.89),
    ]
    for kind in ("λ", "T"):
        a, b = totals[f"{kind} proportional"], totals[f"{kind} inverse"]
        off = abs(a - b) / max(a, b)
        checks.append(at_most(f"{kind} proportional and inverse differ little: by", off, 0.02, f"{a:,} and {b:,}"))
    runs = [*runs, own.run]
    panel = Panel("rates are limited", runs, seconds)
    table = list(_table(runs, expected, seconds))
    return Outcome("kang8", "Kang, figure 8: computing resources", [panel], checks, HEADER, table)


# --- figure 9: too little memory -----------------------------------------------------------------------------------

FOR_EVER = 1e6  # seconds: windows are what memory makes them


def memory(scale: float) -> Outcome:
    """Section 4.3, rates that are fixed: 10 and 50 rows per second, memory for a thousand rows."""
    seconds, rates, rows = 400 * scale, (10.0 * LARGER, 50.0 * LARGER), 1000.0 * LARGER
    keys = (200 * LARGER, 100 * LARGER)
    streams = _streams(rates, keys, seconds)
    parts = {
        "Max A": (1.0, 0.0),
        "Max B": (0.0, 1.0),
        "λ proportional": (1 / 6, 5 / 6),
        "λ inverse": (5 / 6, 1 / 6),
        "equal": (0.5, 0.5),
    }
    held = memory_of(rows)
    runs = [run(Strategy(name, (1.0, 1.0), part), streams, (FOR_EVER, FOR_EVER), held) for name, part in parts.items()]
    expected = {n: rows / keys[0] * (rates[1] * a + rates[0] * b) for n, (a, b) in parts.items()}
    totals = {r.plan: r.total for r in runs}
    own = controlled(streams, (FOR_EVER, FOR_EVER), None, held)
    between = [total for plan, total in totals.items() if plan not in ("Max A", "Max B")]
    checks = [
        _best(runs, "Max A", "all memory to the slower stream gives the most results", 1.04),
        at_least(
            "all memory to the faster stream gives the fewest: the next gives times as many",
            min(between) / totals["Max B"],
            1.3,
            f"Max B {totals['Max B']:,}, others {min(between):,} to {max(between):,}",
        ),
        _as_good(own, runs, seconds, 0.985),
    ]
    runs = [*runs, own.run]
    panel = Panel("memory is limited", runs, seconds)
    table = list(_table(runs, expected, seconds))
    return Outcome("kang9", "Kang, figure 9: memory", [panel], checks, HEADER, table)


# --- figures 10 and 11: too little of both -------------------------------------------------------------------------

SERVICE, ROWS, KEYS = 10.0 * LARGER, 100.0 * LARGER, 100 * LARGER
OFFERED = (20.0 * LARGER, 20.0 * LARGER)
MOST = 0.9  # of the service rate, for the stream that has the most: with all of it the other would stop
SPAN = ROWS / (SERVICE * (1 - MOST))  # seconds of a window: in them the rest of the service rate fills the memory


def _both(x: float, a: float, name: str = "") -> Strategy:
    """A fraction x of the service rate to stream A, and a of the memory to its window."""
    let_in = (SERVICE * x / OFFERED[0], SERVICE * (1 - x) / OFFERED[1])
    return Strategy(name or f"A = {a:g} M", let_in, (a, 1 - a))


def both(scale: float) -> Outcome:
    """Section 4.3, rates and windows that are free: five ways to divide ten rows a second and memory for a hundred."""
    seconds = 400 * scale
    streams = _streams(OFFERED, (KEYS, KEYS), seconds)
    ways = {
        "Max A / Max λa": (MOST, 1.0),
        "Max A / Max λb": (1 - MOST, 1.0),
        "Max B / Max λa": (MOST, 0.0),
        "Max B / Max λb": (1 - MOST, 0.0),
        "equal": (0.5, 0.5),
    }
    held = memory_of(ROWS)
    runs = [run(_both(x, a, name), streams, (SPAN, SPAN), held) for name, (x, a) in ways.items()]
    own = controlled(streams, (SPAN, SPAN), SERVICE, held)
    expected = {name: SERVICE * ROWS / KEYS * (x * (1 - a) + (1 - x) * a) for name, (x, a) in ways.items()}
    totals = {r.plan: r.total for r in runs}
    crossed = [totals["Max A / Max λb"], totals["Max B / Max λa"]]
    same = [totals["Max A / Max λa"], totals["Max B / Max λb"]]
    checks = [
        at_least(
            "the window of one stream and the rate of the other at their largest give the most: times equal shares",
            min(crossed) / totals["equal"],
            1.3,
            f"{crossed[0]:,} and {crossed[1]:,} to {totals['equal']:,}",
        ),
        at_least(
            "the window and the rate of the same stream at their largest give the fewest: equal gives times as many",
            totals["equal"] / max(same),
            2.6,
            f"{same[0]:,} and {same[1]:,}",
        ),
        _as_good(own, runs, seconds, 0.977),
    ]
    runs = [*runs, own.run]
    panel = Panel("rates and memory are limited", runs, seconds)
    table = list(_table(runs, expected, seconds))
    return Outcome("kang10", "Kang, figure 10: computing resources and memory", [panel], checks, HEADER, table)


def surface(scale: float) -> Outcome:
    """Figure 11: the rate of results over the division of rates, x, and that of memory, A."""
    seconds = 200 * scale
    streams = _streams(OFFERED, (KEYS, KEYS), seconds)
    steps, fractions = (0.0, 0.25, 0.5, 0.75, 1.0), (0.1, 0.3, 0.5, 0.7, 0.9)
    held = memory_of(ROWS)
    grid = {x: [run(_both(x, a), streams, (FOR_EVER, FOR_EVER), held, 150) for a in steps] for x in fractions}
    rates = {(x, a): r.between(seconds / 2, seconds) for x, of in grid.items() for a, r in zip(steps, of, strict=True)}
    tops, bottoms = ((0.1, 1.0), (0.9, 0.0)), ((0.1, 0.0), (0.9, 1.0))
    next_best = max(count for at, count in rates.items() if at not in tops)
    next_low = min(count for at, count in rates.items() if at not in bottoms)
    middle = [rates[0.5, a] for a in steps]
    checks = [
        at_least(
            "there are two maxima, where one stream has the memory and the other the rate: times the next",
            min(rates[at] for at in tops) / next_best,
            1.1,
            " and ".join(f"{rates[x, a]:,} at x = {x:g}, A = {a:g} M" for x, a in tops),
        ),
        at_least(
            "and two minima, where one stream has both: the next is times as many",
            next_low / max(rates[at] for at in bottoms),
            1.8,
            " and ".join(f"{rates[x, a]:,} at x = {x:g}, A = {a:g} M" for x, a in bottoms),
        ),
        at_most(
            "with equal rates the division of memory does not matter: it is off by",
            1 - min(middle) / max(middle),
            0.17,
            ", ".join(f"{n:,}" for n in middle),
        ),
    ]
    panels = [Panel(f"x = {x:g} of the rate to A", grid[x], seconds) for x in (0.1, 0.5, 0.9)]
    header = ["x", *(f"A = {a:g} M" for a in steps)]
    table = [[f"{x:g}", *(rates[x, a] for a in steps)] for x in fractions]
    title = "Kang, figure 11: results of the second half over x and A"
    return Outcome("kang11", title, panels, checks, header, table)
