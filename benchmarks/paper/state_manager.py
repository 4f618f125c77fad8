"""What PermJoin's figure 2 is about: a pipeline of joins whose upper inputs are blocked while the lower ones go on.

    (((a b) c) d)    all arrive ──> c and d are blocked, a and b send what joins nothing above ──> c and d again

While c and d are blocked, results of a and b find nothing in the joins above: query results can only come from disk
there. The state manager looks from the root down for the operator with more expected results from disk than from memory
(`decide`). The others: disk work of the lowest operator that has some, and none unless all inputs block.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from benchmarks.paper.inputs import MS, Stream, attribute, batch, poisson
from benchmarks.paper.machine import AHEAD
from benchmarks.paper.outcome import Outcome, Panel, at_least, at_most, behind, complete
from benchmarks.paper.pipelines import Disk, Query, run_query

ROW_BYTES = 26  # of memory, per row of the inputs
TIMES, BEHIND = 30.0, 0.013  # bars
BLOCKING = 0.2  # seconds without arrivals
QUERY = (
    "SELECT a.id AS ida, b.id AS idb, c.id AS idc, d.id AS idd FROM a, b, c, d "
    "WHERE a.k = b.k AND b.k = c.k AND c.k = d.k"
)
DISK: dict[Disk, str] = {
    "planned": "state manager, from the root down",
    "leaf first": "leaf first",
    "blocked": "only when all inputs block",
}


def pipeline(scale: float) -> Outcome:
    streams, length = upper_inputs_block(scale)
    memory = ROW_BYTES * sum(stream.seconds.size for stream in streams.values())
    options = {
        "query": QUERY,
        "plan": "(((a b) c) d)",
        "memory": str(memory),
        "diskFuel": "1",
        "blockingThreshold": "1",
    }
    queries = [Query(name, options, disk) for disk, name in DISK.items()]
    managed, *others = runs = [run_query(query, streams, AHEAD, BLOCKING) for query in queries]
    bounds = [0.0, length, 2 * length, managed.arrived]
    blocked = [r.between(length, 2 * length) for r in runs]
    checks = [
        at_least(
            "while C and D are blocked, the state manager gives more results than the others: times",
            blocked[0] / max(1, *blocked[1:]),
            TIMES,
            ", ".join(f"{r.plan} {count:,}" for r, count in zip(runs, blocked, strict=True)),
        ),
        at_most(
            "the state manager is never behind, as a part of what the others have given by then",
            behind(managed, others, managed.arrived),
            BEHIND,
            f"results in all: {managed.total:,}",
        ),
        complete(runs),
    ]
    phases = ("all arrive", "C and D blocked", "C and D again")
    header = ["disk work", *phases, "before clean-up", "all", "rows to and from disk", "virtual seconds"]
    table = [
        [
            r.plan,
            *(r.between(start, end) for start, end in pairwise(bounds)),
            r.before_clean_up,
            r.total,
            r.work.disk_rows,
            f"{r.finished:.1f}",
        ]
        for r in runs
    ]
    panel = Panel("upper inputs blocked between the lines", runs, max(r.ended for r in runs), bounds[1:3])
    return Outcome("pipeline", "PermJoin, figure 2: disk work in a pipeline", [panel], checks, header, table)


def upper_inputs_block(scale: float) -> tuple[dict[str, Stream], float]:
    """The streams, and the length of each of the three phases in seconds.

    In the first, four rows of each key in every stream. In the second, rows of A and B with keys that C and D never
    have. In the third, more rows of C and D with the keys of the first.
    """
    rows = round(20_000 * scale)
    values, length = rows // 4, rows * 5 * MS
    fast = round(length / (2 * MS))
    streams = {}
    for seed, name in enumerate("abcd"):
        keys, seconds = [attribute(rows, values, 300 + seed)], [poisson(rows, 5 * MS, 310 + seed)]
        if name in "ab":
            keys.append(values + attribute(fast, fast, 320 + seed))
            seconds.append(length + poisson(fast, 2 * MS, 330 + seed))
        else:
            keys.append(attribute(rows, values, 340 + seed))
            seconds.append(2 * length + poisson(rows, 5 * MS, 350 + seed))
        k = np.concatenate(keys)
        rows_of = batch({"id": np.arange(k.size, dtype=np.int64), "k": k.astype(np.int64)})
        streams[name] = Stream(rows_of, np.sort(np.concatenate(seconds)))
    return streams, length
