"""Windows by definition, in plain Python, and generated joins with windows, disorder, late rows and faults.

The definition looks at every combination of rows; nothing in it is incremental, and it shares no code with the engine.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TypeVar

import pyarrow as pa
from hypothesis import strategies as st

from tests.harness import ABANDONED, CRASH, OK, TORN, TWICE, Rows

TIMESTAMP = pa.timestamp("us", "UTC")
STAR, CHAIN = "star", "chain"


@dataclass(frozen=True)
class Row:
    n: int  # its number in its input, from 0
    k: int | None
    m: int | None
    ts: int | None
    v: int


T = TypeVar("T")


def side_by_side(arriving: Sequence[Sequence[T]]) -> Iterator[tuple[int, T]]:
    """(input, row) of the rows that inputs have in a batch, one by one."""
    order = [
        (Fraction(part, len(rows)), number, row)
        for number, rows in enumerate(arriving)
        for part, row in enumerate(rows, 1)
    ]
    for _, number, row in sorted(order, key=lambda one: one[:2]):
        yield number, row


@dataclass(frozen=True)
class Given:
    """One input: its rows batch by batch, and what the options say about it."""

    batches: tuple[tuple[Row, ...], ...]
    window: tuple[str, int] | None  # ("time", microseconds) or ("rows", number)
    lateness: int


@dataclass(frozen=True)
class WindowCase:
    inputs: tuple[Given, ...]
    shape: str
    filtered: bool  # whether a condition over one input leaves rows out
    payload: bool  # whether event times are emitted
    partitions: int = 1
    schedule: tuple[str, ...] = ()
    active: bool = False
    quota: int | None = None  # rows of a turn, on which results do not depend

    @property
    def timed(self) -> bool:
        return any(i.window is not None and i.window[0] == "time" for i in self.inputs)

    def scripts(self) -> dict[str, list[pa.Table]]:
        out = {}
        for i, given in enumerate(self.inputs):
            out[f"r{i}"] = [
                pa.table(
                    {
                        "n": pa.array([r.n for r in batch], pa.int64()),
                        "k": pa.array([r.k for r in batch], pa.int64()),
                        "m": pa.array([r.m for r in batch], pa.int64()),
                        "ts": pa.array([r.ts for r in batch], TIMESTAMP),
                        "v": pa.array([r.v for r in batch], pa.int64()),
                    }
                )
                for batch in given.batches
            ]
        return out

    def query(self) -> str:
        names = [f"r{i}" for i in range(len(self.inputs))]
        wanted = [f"{name}.n AS n{i}" for i, name in enumerate(names)]
        wanted += [f"{name}.ts AS ts{i}" for i, name in enumerate(names) if self.payload]
        conditions = [f"r0.k = {name}.k" for name in names[1:]]
        if self.shape == CHAIN and len(names) > 2:
            conditions[-1] = f"r{len(names) - 2}.m = {names[-1]}.m"
        if self.filtered:
            conditions.append("r0.v <> 1")
        return f"SELECT {', '.join(wanted)} FROM {', '.join(names)} WHERE {' AND '.join(conditions)}"

    def options(self) -> dict[str, str]:
        out = {"partitions": str(self.partitions), "expiry": "active" if self.active else "lazy"}
        if self.quota is not None:
            out["schedulingQuota"] = str(self.quota)
        for i, given in enumerate(self.inputs):
            if given.window is not None:
                kind, size = given.window
                out[f"source.r{i}.window"] = f"{size} {'rows' if kind == 'rows' else 'microseconds'}"
            if self.timed:
                out[f"source.r{i}.timestamp"] = "ts"
                out[f"source.r{i}.watermark"] = f"{given.lateness} microseconds"
        return out

    # --- the definition --------------------------------------------------------------------------------------

    def watermarks(self) -> list[list[int | None]]:
        """Per batch, the watermark of each input: over all rows of earlier batches, less the lateness.

        They stand still after a batch that no task has come to the end of.
        """
        length = max(len(i.batches) for i in self.inputs)
        out: list[list[int | None]] = [[None] * len(self.inputs)]
        for batch in range(1, length):
            if batch <= len(self.schedule) and self.schedule[batch - 1] == ABANDONED:
                out.append(out[-1])
                continue
            marks: list[int | None] = []
            for given in self.inputs:
                seen = [r.ts for rows in given.batches[:batch] for r in rows if r.ts is not None]
                marks.append(max(seen) - given.lateness if seen else None)
            out.append(marks)
        return out

    def arrivals(self) -> Iterator[tuple[int, int, Row]]:
        """(batch, input, row) in the order of arrival.

        Batch by batch, and in a batch by the part of its input that has come with a row; at the same part, those first
        whose input the query names first. Where no window counts rows, the order does not matter.
        """
        for batch in range(max(len(i.batches) for i in self.inputs)):
            arriving = [given.batches[batch] if batch < len(given.batches) else () for given in self.inputs]
            for number, row in side_by_side(arriving):
                yield batch, number, row

    def is_late(self, batch: int, number: int, row: Row) -> bool:
        mark = self.watermarks()[batch][number]
        return self.timed and row.ts is not None and mark is not None and row.ts < mark

    def results(self, batches: Sequence[int] | None = None) -> Rows:
        """All results, or those whose last row came in some batches."""
        order = list(self.arrivals())
        marks = self.watermarks()
        members: list[list[tuple[int, int, Row]]] = [[] for _ in self.inputs]  # (arrival, batch, row)
        for at, (batch, number, row) in enumerate(order):
            if self.timed:
                mark = marks[batch][number]
                if row.ts is None or (mark is not None and row.ts < mark):
                    continue
            if self.filtered and number == 0 and row.v == 1:
                continue
            members[number].append((at, batch, row))
        found: Rows = Counter()
        for combination in product(*members):
            rows = [row for _, _, row in combination]
            last = max(at for at, _, _ in combination)
            if not self._joined(rows) or (batches is not None and order[last][0] not in batches):
                continue
            if all(self._inside(number, at, row, last, rows, order) for number, (at, _, row) in enumerate(combination)):
                found[tuple(r.n for r in rows)] += 1
        return found

    def _joined(self, rows: Sequence[Row]) -> bool:
        pairs = [(rows[0].k, row.k) for row in rows[1:]]
        if self.shape == CHAIN and len(rows) > 2:
            pairs[-1] = (rows[-2].m, rows[-1].m)
        return all(a is not None and a == b for a, b in pairs)

    def _inside(
        self, number: int, at: int, row: Row, last: int, rows: Sequence[Row], order: Sequence[tuple[int, int, Row]]
    ) -> bool:
        window = self.inputs[number].window
        if window is None or (window[0] == "rows" and at == last):
            return True
        if window[0] == "time":
            return row.ts > max(r.ts for r in rows) - window[1]
        after = [one for one in order[at + 1 : last + 1] if one[1] == number]
        return len(after) < window[1]


def sizes(times: Sequence[int]) -> st.SearchStrategy[tuple[str, int] | None]:
    in_time = st.tuples(st.just("time"), st.sampled_from(times))
    return st.one_of(st.none(), in_time, in_time, in_time, st.tuples(st.just("rows"), st.integers(1, 8)))


TIGHT, WIDE = sizes([1, 2, 3, 5]), sizes([1, 5, 10, 20, 40])
EXTREME = sizes([1, 2, 5, 40, 2**59, 2**60 - 1])


@st.composite
def window_cases(
    draw: st.DrawFn,
    most_inputs: int = 3,
    faults: Sequence[str] = (),
    star_only: bool = False,
    windows: st.SearchStrategy[tuple[str, int] | None] | None = None,
) -> WindowCase:
    inputs, shape = draw(st.integers(2, most_inputs)), STAR if star_only else draw(st.sampled_from([STAR, STAR, CHAIN]))
    tight = draw(st.booleans())  # so that rows meet the edges of windows and watermarks
    step = draw(st.sampled_from([1, 2, 4] if tight else [0, 3, 10, 20]))  # from batch to batch, in event time
    disorder = draw(st.sampled_from([0, 1, 2] if tight else [0, 5, 15]))
    windows = (TIGHT if tight else WIDE) if windows is None else windows
    holes = draw(st.sampled_from([0, 0, 0, 9]))
    givens = []
    for _ in range(inputs):
        batches, n = [], 0
        behind = draw(st.sampled_from([0, 1, 3] if tight else [0, 0, 10]))
        for number in range(draw(st.integers(1, 6))):
            rows = []
            for _ in range(draw(st.integers(0, 5))):
                ts: int | None = 100 + number * step - behind + draw(st.integers(-disorder, disorder))
                null = st.sampled_from([None, *([True] * 9)]) if holes else st.just(True)
                rows.append(
                    Row(
                        n,
                        draw(st.sampled_from([0, 0, 0, 1])) if draw(null) else None,
                        draw(st.sampled_from([0, 0, 1])) if draw(null) else None,
                        ts if draw(null) else None,
                        draw(st.integers(0, 2)),
                    )
                )
                n += 1
            batches.append(tuple(rows))
        givens.append(
            Given(
                tuple(batches),
                draw(windows),
                draw(st.sampled_from([0, 0, 1, 2, 1000] if tight else [0, 0, 5, 20, 1000])),
            )
        )
    if not any(g.window for g in givens):
        first = givens[0]
        givens[0] = Given(first.batches, ("time", 10), first.lateness)
    schedule = tuple(draw(st.lists(st.sampled_from([OK, *faults]), max_size=6))) if faults else ()
    return WindowCase(
        tuple(givens),
        shape,
        filtered=draw(st.booleans()),
        payload=draw(st.booleans()),
        partitions=draw(st.integers(1, 3)) if shape == STAR else 1,
        schedule=schedule,
        active=draw(st.booleans()),
        quota=draw(st.sampled_from([None, 1, 2, 3])),
    )


EARLIEST, LATEST = -(2**63), 2**63 - 1


def at_the_ends_of_time(case: WindowCase, ends: str) -> WindowCase:
    """The same rows at the least times there are ("low"), at the largest ("high"), or some here and some there."""
    times = [r.ts for given in case.inputs for batch in given.batches for r in batch if r.ts is not None]

    def moved(row: Row) -> Row:
        if row.ts is None:
            return row
        high = ends == "high" or (ends == "both" and row.v == 2)
        return replace(row, ts=LATEST - max(times) + row.ts if high else EARLIEST - min(times) + row.ts)

    givens = [replace(g, batches=tuple(tuple(map(moved, batch)) for batch in g.batches)) for g in case.inputs]
    return replace(case, inputs=tuple(givens))


EXACT_FAULTS = (CRASH, TORN, TWICE)
