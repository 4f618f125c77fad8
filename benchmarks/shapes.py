"""Joins of more inputs than three, in two shapes: what is joined. `python -m benchmarks.shapes_bench` runs them.

    star of n     s1.k = s2.k, s1.k = s3.k, ...          every key once in each input: as many results as rows
    chain of n    s1.k1 = s2.k1, s2.k2 = s3.k2, ...      keys drawn from as many values as there are rows: one expected
                                                         partner in each direction, and about as many results as rows

Both leave out what would favour one engine: results do not inflate, so neither do intermediate ones, and inputs are of
equal size and rate, so no order of joins is better than another by much.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.workloads import Tables, Workload, payload, scaled

ROWS = 40_000  # of each input
FILES = 5  # of each input, one per micro-batch
STARS, CHAINS = (3, 5, 10), (3, 5, 8)


def star_tables(inputs: int, scale: float) -> Tables:
    rows = scaled(ROWS, scale)
    tables: Tables = {}
    for number, alias in enumerate(_aliases(inputs)):
        rng = np.random.default_rng([inputs, number, 1])
        tables[alias] = pa.table({"k": pa.array(rng.permutation(rows))} | payload(alias, rows, rng))
    return tables


def chain_tables(inputs: int, scale: float) -> Tables:
    """Input i has the keys that it shares with the one before and the one after: k<i-1> and k<i>."""
    rows = scaled(ROWS, scale)
    tables: Tables = {}
    for number, alias in enumerate(_aliases(inputs)):
        rng = np.random.default_rng([inputs, number, 2])
        keys = [f"k{key}" for key in (number, number + 1) if 1 <= key < inputs]
        tables[alias] = pa.table(
            {key: pa.array(rng.integers(0, rows, rows)) for key in keys} | payload(alias, rows, rng)
        )
    return tables


def chain_results(inputs: int, scale: float) -> int:
    """How many results a chain has: paths are counted from one end to the other, key by key."""
    tables = chain_tables(inputs, scale)
    rows = scaled(ROWS, scale)
    paths = np.bincount(tables["s1"]["k1"].to_numpy(), minlength=rows)  # per value of the key: that end in it
    for number in range(2, inputs):
        before, after = (tables[f"s{number}"][f"k{key}"].to_numpy() for key in (number - 1, number))
        paths = np.bincount(after, weights=paths[before], minlength=rows)
    return int(paths[tables[f"s{inputs}"][f"k{inputs - 1}"].to_numpy()].sum())


def _aliases(inputs: int) -> tuple[str, ...]:
    return tuple(f"s{number + 1}" for number in range(inputs))


def _star(inputs: int) -> Workload:
    aliases = _aliases(inputs)
    return Workload(
        f"star{inputs}",
        f"star, {inputs} x {ROWS:,} unique keys",
        " ".join([aliases[0], *(f"JOIN {alias} ON s1.k = {alias}.k" for alias in aliases[1:])]),
        ("s1.k", *_columns(aliases)),
        FILES,
        partial(star_tables, inputs),
        partial(scaled, ROWS),
        aliases,
    )


def chain(inputs: int) -> Workload:
    aliases = _aliases(inputs)
    joins = [f"JOIN s{i + 1} ON s{i}.k{i} = s{i + 1}.k{i}" for i in range(1, inputs)]
    return Workload(
        f"chain{inputs}",
        f"chain, {inputs} x {ROWS:,} rows",
        " ".join([aliases[0], *joins]),
        (*(f"s{i}.k{i}" for i in range(1, inputs)), *_columns(aliases)),
        FILES,
        partial(chain_tables, inputs),
        partial(chain_results, inputs),
        aliases,
    )


def _columns(aliases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{alias}.{alias}_{column}" for alias in aliases for column in ("x", "y", "text"))


SHAPES = {workload.letter: workload for workload in (*map(_star, STARS), *map(chain, CHAINS))}


def one_mjoin(workload: Workload) -> str:
    """Option `plan`: all inputs in one operator."""
    return f"({' '.join(workload.aliases)})"


def left_deep(workload: Workload) -> str:
    """Option `plan`: binary joins in the order of the query, as Spark chains them."""
    plan = workload.aliases[0]
    for alias in workload.aliases[1:]:
        plan = f"({plan} {alias})"
    return plan
