"""How long micro-batches with a few rows take: `python -m benchmarks.small_batches [--partitions 2,4]`.

Three streams of small parquet files, one of each per batch, joined by `spark_mjoin.join` on `local[2]` into a noop
sink. The first batches of the query warm up and are left out. Times are Spark's own, `durationMs` of the progress:
`triggerExecution` is all of a batch, the others are its parts. `processor` is what all processes of the session have
spent, in ms per batch, for cores that are shared with others.

Ways: `join` is the door; `format` is `format("mjoin")` on the same files, which has no shuffle; `floor` is the union of
the three streams through a shuffle of as many partitions, without a join and without Python; `spark` is Spark's own
joins. Each has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence

from benchmarks.engines import REPOSITORY, in_own_process

WAYS = ("join", "format", "floor", "spark")
PARTS = ("latestOffset", "getBatch", "queryPlanning", "walCommit", "addBatch", "commitBatch", "commitOffsets")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_batches", description=__doc__.split("\n")[0])
    parser.add_argument("--partitions", default="2,4", help="with commas")
    parser.add_argument("--ways", default="join,format,floor", help=f"with commas: {', '.join(WAYS)}")
    parser.add_argument("--batches", type=int, default=40, help="that are measured")
    parser.add_argument("--rows", type=int, default=5, help="of each input in a batch")
    options = parser.parse_args()
    print("| way | partitions | median ms | p99 ms | processor ms | " + " | ".join(PARTS) + " |")
    print("|---" * (5 + len(PARTS)) + "|")
    for way in options.ways.split(","):
        for partitions in options.partitions.split(","):
            asked = {"way": way, "partitions": int(partitions), "batches": options.batches, "rows": options.rows}
            log = REPOSITORY / "out" / "small-batches" / f"{way}-{partitions}.log"
            found = in_own_process("benchmarks.small_batches_child", json.dumps(asked), log, 600.0)
            print(f"| {way} | {partitions} | {line(found['batches'], found['processor'])} |", flush=True)


def line(batches: Sequence[dict[str, int]], processor: float) -> str:
    """The figures of some batches, by Spark's names for their parts."""
    whole = sorted(batch["triggerExecution"] for batch in batches)
    p99 = whole[min(len(whole) - 1, int(0.99 * len(whole)))]
    parts = [statistics.median(batch.get(part, 0) for batch in batches) for part in PARTS]
    return " | ".join(f"{ms:.0f}" for ms in (statistics.median(whole), p99, processor, *parts))


if __name__ == "__main__":
    main()
