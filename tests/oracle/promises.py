"""Joins with punctuations and constraints that hold, generated; and what they mean, in plain Python.

A promise changes no result: the definition is the join of all data rows. What is checked besides is that promises which
are emitted hold, once each, and that all are emitted that must be. It shares no code with the engine.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.harness import CRASH, OK, TORN, TWICE, Rows

STAR, PAIR, CHAIN, CYCLE = "star", "pair", "chain", "cycle"
EXACT_FAULTS = (CRASH, TORN, TWICE)
SPAN = 10  # seconds of event time of a batch
LETTERS = ["", "a", "ab", "b", "ba", "c"]  # in order


@dataclass(frozen=True)
class Data:
    n: int
    k: int | None
    m: int | None
    v: int

    @property
    def keys(self) -> dict[str, int | None]:
        return {"k": self.k, "m": self.m}


@dataclass(frozen=True)
class Punctuation:
    """Per key column None for any value, a number, a list, or a range (low, high) of which an end may be None."""

    k: Any = None
    m: Any = None

    def matches(self, row: Data) -> bool:
        return _matches(self.k, row.k) and _matches(self.m, row.m)


def _matches(pattern: Any, value: int | None) -> bool:
    if pattern is None:
        return True
    if value is None:
        return False
    if isinstance(pattern, tuple):
        low, high = pattern
        return (low is None or value >= low) and (high is None or value <= high)
    return value in (pattern if isinstance(pattern, list) else [pattern])


Row = Data | Punctuation


@dataclass(frozen=True)
class Given:
    batches: tuple[tuple[Row, ...], ...]
    punctuated: bool = False
    unique: bool = False
    clustered: bool = False
    ordered: str = ""  # "asc", "desc"

    def data(self) -> Iterator[tuple[int, Data]]:
        """(batch, row)"""
        for number, batch in enumerate(self.batches):
            yield from ((number, row) for row in batch if isinstance(row, Data))


@dataclass(frozen=True)
class PromiseCase:
    inputs: tuple[Given, ...]
    shape: str
    text: bool  # keys are strings
    filtered: bool
    partitions: int = 1
    schedule: tuple[str, ...] = ()
    every: int = 1
    emit: bool = False
    window: int | None = None  # seconds of event time; every batch has SPAN of them, in any order

    def scripts(self) -> dict[str, list[pa.Table]]:
        return {
            f"r{i}": [self._table(i, number, batch) for number, batch in enumerate(given.batches)]
            for i, given in enumerate(self.inputs)
        }

    @staticmethod
    def time(input: int, batch: int, row: Data) -> int:
        """Seconds; no row is late by more than SPAN."""
        return SPAN * batch + (7 * row.n + 3 * input) % SPAN

    def _table(self, input: int, number: int, batch: Sequence[Row]) -> pa.Table:
        dtype = pa.string() if self.text else pa.int64()

        def key(value: int | None) -> Any:
            return value if value is None or not self.text else LETTERS[value]

        def constant(row: Row, name: str) -> Any:
            value = getattr(row, name)
            return key(value) if not isinstance(value, tuple | list) else None

        def values(row: Row) -> Any:
            pattern = row.k if isinstance(row, Punctuation) else None
            return [key(v) for v in pattern] if isinstance(pattern, list) else None

        def end(row: Row, at: int) -> Any:
            pattern = row.k if isinstance(row, Punctuation) else None
            return key(pattern[at]) if isinstance(pattern, tuple) else None

        return pa.table(
            {
                "n": pa.array([row.n if isinstance(row, Data) else None for row in batch], pa.int64()),
                "k": pa.array([constant(row, "k") for row in batch], dtype),
                "m": pa.array([constant(row, "m") for row in batch], dtype),
                "v": pa.array([row.v if isinstance(row, Data) else None for row in batch], pa.int64()),
                "t": pa.array(
                    [10**6 * self.time(input, number, row) if isinstance(row, Data) else None for row in batch],
                    pa.timestamp("us", "UTC"),
                ),
                "p": pa.array([isinstance(row, Punctuation) for row in batch], pa.bool_()),
                "ks": pa.array([values(row) for row in batch], pa.list_(dtype)),
                "low": pa.array([end(row, 0) for row in batch], dtype),
                "high": pa.array([end(row, 1) for row in batch], dtype),
            }
        )

    @property
    def names(self) -> list[str]:
        return [f"r{i}" for i in range(len(self.inputs))]

    def conditions(self) -> list[tuple[int, str, int, str]]:
        last = len(self.inputs) - 1
        out = [(0, "k", i, "k") for i in range(1, last + 1)]
        if self.shape == PAIR:
            out += [(0, "m", i, "m") for i in range(1, last + 1)]
        if self.shape == CHAIN and last > 1:
            out[-1] = (last - 1, "m", last, "m")
        if self.shape == CYCLE and last > 1:
            out[-1] = (last - 1, "m", last, "m")
            out.append((0, "v", last, "v"))
        return out

    def keys_of(self, input: int) -> set[str]:
        return {c for a, x, b, y in self.conditions() for i, c in ((a, x), (b, y)) if i == input}

    def query(self) -> str:
        wanted = [f"{name}.n AS n{i}" for i, name in enumerate(self.names)] + ["r0.k AS k", "r1.m AS m"]
        conditions = [f"r{a}.{x} = r{b}.{y}" for a, x, b, y in self.conditions()]
        if self.filtered:
            conditions.append("r0.v <> 1")
        return f"SELECT {', '.join(wanted)} FROM {', '.join(self.names)} WHERE {' AND '.join(conditions)}"

    @property
    def ranged(self) -> bool:
        return self.partitions == 1 and self.shape in (STAR, PAIR)

    def options(self) -> dict[str, str]:
        out = {"partitions": str(self.partitions), "purge": "batch", "purgeEvery": str(self.every)}
        if self.window is not None:
            out["window"] = f"{self.window} seconds"
            for name in self.names:
                out |= {f"source.{name}.timestamp": "t", f"source.{name}.watermark": f"{SPAN} seconds"}
        if self.emit:
            out["emitPunctuations"] = "true"
        for i, given in enumerate(self.inputs):
            if given.punctuated:
                out[f"source.r{i}.punctuation"] = "p"
                if "k" in self.keys_of(i):
                    out[f"source.r{i}.punctuationValues"] = "k: ks"
                    out[f"source.r{i}.punctuationRange"] = "k: low, high"
            if "k" not in self.keys_of(i):
                continue
            if given.unique:
                out[f"source.r{i}.unique"] = "k"
            if given.clustered:
                out[f"source.r{i}.clustered"] = "k"
            if given.ordered:
                out[f"source.r{i}.ordered"] = f"k {given.ordered}"
        return out

    # --- the definition --------------------------------------------------------------------------------------

    def members(self) -> list[list[tuple[int, Data]]]:
        out = [list(given.data()) for given in self.inputs]
        if self.filtered:
            out[0] = [(b, r) for b, r in out[0] if r.v != 1]
        return out

    def combinations(self) -> Iterator[tuple[tuple[int, Data], ...]]:
        for combination in product(*self.members()):
            rows = [row for _, row in combination]
            pairs = [(getattr(rows[a], x), getattr(rows[b], y)) for a, x, b, y in self.conditions()]
            times = [self.time(i, batch, row) for i, (batch, row) in enumerate(combination)]
            inside = self.window is None or min(times) > max(times) - self.window
            if inside and all(left is not None and left == right for left, right in pairs):
                yield combination

    def results(self) -> Rows:
        return Counter(tuple(row.n for _, row in combination) for combination in self.combinations())


@st.composite
def promise_cases(
    draw: st.DrawFn,
    shapes: Sequence[str] = (STAR, STAR, PAIR, CHAIN, CYCLE),
    faults: Sequence[str] = (),
    emit: bool | None = None,
    ranges: bool = True,
    most_inputs: int = 3,
) -> PromiseCase:
    inputs, shape = draw(st.integers(2, most_inputs)), draw(st.sampled_from(shapes))
    partitions = draw(st.integers(1, 3)) if shape in (STAR, PAIR) else 1
    emit = (draw(st.booleans()) if emit is None else emit) and shape in (STAR, PAIR)
    ranges = ranges and not (emit and partitions > 1)
    keys = [PromiseCase((Given(()),) * inputs, shape, False, False).keys_of(i) for i in range(inputs)]
    givens = [draw(_given(of, ranges)) for of in keys]
    if not any(g.punctuated or g.unique or g.clustered or g.ordered for g in givens[:2]):
        givens[0] = replace(givens[0], punctuated=True)
    if emit and partitions > 1:
        givens = [replace(g, ordered="") for g in givens]
        if not any(g.punctuated or g.unique or g.clustered for g in givens):
            givens[0] = replace(givens[0], punctuated=True)
    return PromiseCase(
        tuple(givens),
        shape,
        text=draw(st.booleans()),
        filtered=draw(st.booleans()),
        partitions=partitions,
        schedule=tuple(draw(st.lists(st.sampled_from([OK, *faults]), max_size=6))) if faults else (),
        every=draw(st.sampled_from([1, 1, 2, 100])),
        emit=emit and not ranges_of(givens, partitions),
        window=draw(st.sampled_from([None, None, 4, 12, 1000])),
    )


def ranges_of(givens: Sequence[Given], partitions: int) -> bool:
    """Whether punctuations that are ranges keep the join from giving any out."""
    return partitions > 1 and any(g.punctuated or g.ordered for g in givens)


@st.composite
def _given(draw: st.DrawFn, keys_of: set[str], ranges: bool) -> Given:
    """Rows of one input, then the promises that they keep."""
    kind = draw(st.sampled_from(["punctuated", "punctuated", "unique", "clustered", "asc", "desc", "both", "none"]))
    size = draw(st.integers(0, 12))
    key = st.integers(0, 5)
    null = st.sampled_from([None, *([0] * 9)])
    keys: list[int | None] = draw(st.lists(key, min_size=size, max_size=size))
    if kind in ("unique", "both"):
        keys = list(dict.fromkeys(keys))
    elif kind == "clustered":
        order = draw(st.permutations(range(6)))
        keys = sorted(keys, key=order.index)
    elif kind in ("asc", "desc"):
        keys = sorted(keys, reverse=kind == "desc")  # type: ignore[type-var]
    rows: list[Row] = []
    for n, k in enumerate(keys):
        if draw(null) is None:
            k = None
        rows.append(Data(n, k, draw(st.sampled_from([0, 0, 1, None])), draw(st.integers(0, 2))))
    punctuated = kind in ("punctuated", "both")
    if punctuated:
        for _ in range(draw(st.integers(0, 8))):
            said = draw(_punctuation(keys_of, ranges))
            last = max((at for at, row in enumerate(rows) if isinstance(row, Data) and said.matches(row)), default=-1)
            rows.insert(draw(st.integers(last + 1, len(rows))), said)
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    batches = [tuple(rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    return Given(
        tuple(batches),
        punctuated,
        unique=kind in ("unique", "both"),
        clustered=kind == "clustered",
        ordered=kind if kind in ("asc", "desc") else "",
    )


@st.composite
def _punctuation(draw: st.DrawFn, keys_of: set[str], ranges: bool) -> Punctuation:
    """About the columns that are keys of the join: of others nothing is asked."""
    key = st.integers(0, 5)
    patterns = [key, key, key, st.lists(key, min_size=1, max_size=3)]
    if ranges:
        patterns.append(st.tuples(st.none() | key, key) | st.tuples(key, st.none() | key))
    if "m" not in keys_of:
        return Punctuation(draw(st.one_of(*patterns)) if draw(st.integers(0, 19)) else None, None)
    m = draw(st.sampled_from([None, None, 0, 1]))
    return Punctuation(draw(st.one_of(*patterns)) if "k" in keys_of and draw(st.integers(0, 4)) else None, m)
