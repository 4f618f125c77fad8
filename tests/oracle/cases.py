"""Generated joins: schemas, graphs, rows, arrival schedules and faults, as hypothesis strategies."""

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

from tests.harness import ABANDONED, CRASH, LIMITED, OK, TORN, TWICE

TYPES = {
    "i": [pa.int8(), pa.int16(), pa.int32(), pa.int64()],
    "m": [pa.decimal128(5, 1), pa.decimal128(12, 3), pa.decimal128(25, 2)],
    "d": [pa.float64(), pa.float32()],
    "s": [pa.string()],
    "y": [pa.binary()],
    "b": [pa.bool_()],
    "x": [pa.date32()],
    "t": [pa.timestamp("us", "UTC")],
    "u": [pa.timestamp("us")],
}
VALUES = {
    "i": [0, 1, 2, 3, -1, 100],
    "m": [Decimal("0.0"), Decimal("1.0"), Decimal("2.0"), Decimal("2.5"), Decimal("-1.0")],
    "d": [0.0, -0.0, 1.0, 2.0, 2.5, float("nan"), float("inf")],
    "s": ["", "a", "b", "ab", "a longer key than eight bytes", "a longer key than eight bytez"],
    "y": [b"", b"\x00", b"a", b"\xff" * 20],
    "b": [True, False],
    "x": [date(2024, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
    "t": [datetime(2024, 1, 1, tzinfo=UTC), datetime(1960, 5, 5, 1, 2, 3, 4, tzinfo=UTC)],
    "u": [datetime(2024, 1, 1), datetime(1960, 5, 5, 1, 2, 3, 4)],
}
# Columns that may be compared with each other: widths and kinds that SQL widens.
FAMILIES = [["i"], ["i", "m"], ["i", "d"], ["s"], ["y"], ["b"], ["x"], ["t"], ["u"], ["m"], ["d"]]
COLUMNS = list(TYPES)


@dataclass(frozen=True)
class Case:
    """One join: what arrives when, the query, and what goes wrong meanwhile."""

    scripts: dict[str, list[pa.Table]]
    query: str
    partitions: int
    schedule: tuple[str, ...]
    star: bool

    def table(self, alias: str) -> pa.Table:
        return pa.concat_tables(self.scripts[alias])


@st.composite
def tables(draw: st.DrawFn, first_number: int, most_rows: int, null_share: int) -> pa.Table:
    """Rows of one input; column `n` numbers them, so that a multiset of results names its combinations."""
    size = draw(st.sampled_from([most_rows, most_rows, most_rows, most_rows // 2, 1, 0]))
    columns = {"n": pa.array(range(first_number, first_number + size), pa.int64())}
    spread = draw(st.sampled_from([1, 2, 2, 3, 9]))  # distinct values: few make results, many make misses
    for name, types in TYPES.items():
        choices = VALUES[name][:spread]
        value = st.sampled_from(choices)
        maybe = st.one_of(st.none(), *([value] * null_share)) if null_share else value
        values = draw(st.lists(maybe, min_size=size, max_size=size))
        columns[name] = pa.array(values, draw(st.sampled_from(types)))
    columns["l"] = pa.array([[i, None] if i % 3 else None for i in range(size)], pa.list_(pa.int32()))
    return pa.table(columns)


@st.composite
def graphs(draw: st.DrawFn, inputs: int, star: bool) -> list[str]:
    """Equalities that connect all inputs: a star over one column, or a tree; and some more edges."""
    edges, pairs = list[str](), list[tuple[int, int]]()
    extra = draw(st.lists(st.tuples(st.integers(0, inputs - 1), st.integers(0, inputs - 1)), max_size=2))
    if star:
        family = draw(st.sampled_from([f for f in FAMILIES if len(f) == 1]))
        edges = [f"r0.{family[0]} = r{i}.{family[0]}" for i in range(1, inputs)]
    else:
        pairs = [(draw(st.integers(0, i - 1)), i) for i in range(1, inputs)]
    pairs += [(min(a, b), max(a, b)) for a, b in extra if a != b]
    for a, b in pairs:
        for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
            family = draw(st.sampled_from(FAMILIES))
            left, right = draw(st.sampled_from(family)), draw(st.sampled_from(family))
            edges.append(f"r{a}.{left} = r{b}.{right}")
    return edges


@st.composite
def predicates(draw: st.DrawFn, inputs: int) -> list[str]:
    """Filters over one input, and residuals over two or three."""
    any_input = st.integers(0, inputs - 1)
    a, b, c = draw(any_input), draw(any_input), draw(any_input)
    return draw(
        st.lists(
            st.sampled_from(
                [
                    f"r{a}.i < 3",
                    f"r{a}.s IS NOT NULL",
                    f"NOT (r{a}.b OR r{b}.b)",
                    f"r{a}.n + r{b}.n > 3",
                    f"r{a}.x <= r{b}.x",
                    f"r{a}.s <> r{b}.s",
                    f"r{a}.n + r{b}.n <> r{c}.n",
                    f"r{a}.i IN (0, 1, 2)",
                    f"coalesce(r{a}.i, 0) >= coalesce(r{b}.i, 0)",
                ]
            ),
            max_size=draw(st.sampled_from([0, 0, 1, 2])),
        )
    )


@st.composite
def cases(
    draw: st.DrawFn, most_inputs: int = 4, most_rows: int = 8, faults: bool = False, star_only: bool = False
) -> Case:
    inputs = draw(st.integers(2, most_inputs))
    star = star_only or draw(st.booleans())
    null_share = draw(st.sampled_from([0, 9, 9, 3]))
    scripts = {}
    for i in range(inputs):
        whole = draw(tables(0, most_rows, null_share))
        cuts = sorted(draw(st.lists(st.integers(0, whole.num_rows), max_size=4)))
        bounds = [0, *cuts, whole.num_rows]
        scripts[f"r{i}"] = [whole.slice(a, b - a) for a, b in pairwise(bounds)]
    conditions = draw(graphs(inputs, star))
    where = draw(predicates(inputs))
    numbers = ", ".join(f"r{i}.n AS n{i}" for i in range(inputs))
    i = draw(st.integers(0, inputs - 1))
    picked = draw(st.lists(st.sampled_from([*COLUMNS, "l"]), unique=True, max_size=3))
    payload = "".join(f", r{i}.{name} AS p_{name}" for name in picked)
    query = f"SELECT {numbers}{payload}, r0.n * 2 + 1 AS odd FROM " + ", ".join(scripts)
    query += " WHERE " + " AND ".join([*conditions, *where])
    partitions = draw(st.integers(1, 3)) if star else 1
    kinds = [OK, OK, CRASH, TORN, TWICE, ABANDONED, LIMITED] if faults else [OK]
    schedule = tuple(draw(st.lists(st.sampled_from(kinds), max_size=5)))
    return Case(scripts, query, partitions, schedule, star)
