"""Figures 9, 10 and 11 of Ding, Rundensteiner and Heineman, "MJoin: A Metadata-Aware Stream Join Operator" (2003).

News items and records of access to them: a news item has a number that comes once, an access record the number of the
item. Ten items are watched at a time; when one is rolled out, a punctuation in the stream of records says that no more
come for it. `ordered`: items come in the order of their numbers, as they are rolled out; `random`: in any order. As in
the paper all rows are there at once, so the processor is the limit, and time is the work that is done.

    MJoin    the numbers of news are unique, records are punctuated; the join drops rows after every 100
             punctuations (figure 11: and after every single one)
    XJoin    the same engine without promises: it keeps all rows, and where memory is short it spills

Where memory is short, the same is shown on a processor ten times faster too: what a spilled row costs next to one that
is looked at depends on how fast the processor is next to the disk, and which of the two plans wins on that. It also
depends on how short memory is, so there is a run with less of it.

What looking through the state costs is counted as it is done: a comparison for each row, a move for each that stays.
The paper gives no sizes. Here an item has five records, which come in the middle of the times of nine others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from benchmarks.paper.inputs import Stream, batch
from benchmarks.paper.machine import AHEAD, LOADED
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least, complete
from benchmarks.paper.plans import Join, Plan, run
from benchmarks.paper.virtual import Run
from spark_mjoin.model import Array

ITEMS, RECORDS, WATCHED = 4_000, 5, 10
QUERY = "SELECT n.sno AS sno, n.keyword AS keyword, a.ipaddr AS ipaddr FROM news n JOIN access a ON n.sno = a.sno"
BYTES, FEW_BYTES = 10.4, 9  # of memory per row of the inputs, where it is short and shorter
FASTER = LOADED // AHEAD
EARLY = {"ordered": 1.04, "random": 1.23}  # bars
SPILT = {"ordered": 1.4}
SPILT_FASTER = {"ordered": 2.5, "random": 1.22}
SPILT_TIGHT = {"ordered": 2.5}
SLICE_ROWS = 12  # taken in at once: two items, and what comes with them


def against_xjoin(scale: float) -> Outcome:
    """Experiment 2, figure 9: the time that results take, in memory, and where memory is short."""
    panels, checks, table = [], list[Check](), list[list[object]]()
    for pattern in ("ordered", "random"):
        streams = news_and_access(scale, pattern)
        rows = sum(s.seconds.size for s in streams.values())
        enough, short, shorter = (_both(memory) for memory in (None, int(BYTES * rows), int(FEW_BYTES * rows)))
        mjoin, xjoin = runs = [_run(plan, streams) for plan in enough]
        kept, spilt = slow = [_run(plan, streams) for plan in short]
        quick_kept, quick_spilt = quick = [_run(plan, streams, AHEAD) for plan in short]
        tight_kept, tight_spilt = tight = [_run(plan, streams, AHEAD) for plan in shorter]
        panels.append(Panel(pattern, runs, max(r.finished for r in runs)))
        panels.append(Panel(f"{pattern}, memory is short", slow, max(r.finished for r in slow)))
        panels.append(Panel(f"{pattern}, short, processor x {FASTER}", quick, max(r.finished for r in quick)))
        named = {
            "enough": runs,
            "short": slow,
            f"short, processor x {FASTER}": quick,
            f"shorter, processor x {FASTER}": tight,
        }
        for name, of in named.items():
            table += [[pattern, name, r.plan, _seconds(r), r.most_rows, r.rows_flushed, _work(r)] for r in of]
        early = mjoin.total // 10
        checks += [
            at_least(
                f"{pattern}: at first MJoin takes more time than XJoin, for looking through the state: times",
                mjoin.after(early) / xjoin.after(early),
                EARLY[pattern],
                f"{early:,} results after {mjoin.after(early):.1f} and {xjoin.after(early):.1f} virtual seconds",
            ),
            at_least(
                f"{pattern}: later XJoin takes more time in memory too, because its state is larger: times",
                xjoin.finished / mjoin.finished,
                1.0,
                f"{mjoin.finished:.1f} and {xjoin.finished:.1f} virtual seconds",
                expected=False,
            ),
            at_least(
                f"{pattern}: where XJoin has to spill, it takes more time than MJoin: times",
                spilt.finished / kept.finished,
                SPILT.get(pattern, 1.0),
                _spilling(kept, spilt),
                expected=pattern in SPILT,
            ),
            at_least(
                f"{pattern}: the same on a processor that is {FASTER} times faster, the disk staying as it is: times",
                quick_spilt.finished / quick_kept.finished,
                SPILT_FASTER[pattern],
                _spilling(quick_kept, quick_spilt),
            ),
            at_least(
                f"{pattern}: the same there with less memory yet: times",
                tight_spilt.finished / tight_kept.finished,
                SPILT_TIGHT.get(pattern, 1.0),
                _spilling(tight_kept, tight_spilt),
                expected=pattern in SPILT_TIGHT,
            ),
            complete([r for of in named.values() for r in of]),
        ]
    header = [
        "pattern",
        "memory",
        "plan",
        "virtual seconds",
        "most rows in memory",
        "rows spilled",
        "comparisons, moves",
    ]
    return Outcome("ding9", "Ding 2003, figure 9: MJoin and XJoin, time", panels, checks, header, table)


def _spilling(kept: Run, spilt: Run) -> str:
    return (
        f"{kept.finished:.1f} and {spilt.finished:.1f} virtual seconds; rows evicted: "
        f"{kept.rows_flushed:,} and {spilt.rows_flushed:,}"
    )


def _seconds(run: Run) -> str:
    return f"{run.finished:.1f}"


def _work(run: Run) -> str:
    return f"{run.work.comparisons:,}, {run.work.moves:,}"


def _held(run: Run, seconds: float) -> int:
    """Rows in memory at a time."""
    return int(run.held[int(np.searchsorted(run.seconds, seconds, side="right")) - 1])


HELD, MORE_SO = {"random": 2.1, "ordered": 40.0}, 1.5  # bars


def memory(scale: float) -> Outcome:
    """Experiment 2, figure 10: rows in memory."""
    panels, checks, table = [], list[Check](), list[list[object]]()
    for pattern in ("random", "ordered"):
        streams = news_and_access(scale, pattern)
        mjoin, xjoin = runs = [_run(plan, streams) for plan in (_mjoin(100), Plan("XJoin", _without_promises()))]
        panels.append(Panel(pattern, runs, max(r.finished for r in runs), what="rows in memory"))
        quarters = [mjoin.finished * q / 4 for q in (1, 2, 3)]
        shares = [_held(mjoin, t) / _held(xjoin, t) for t in quarters]
        table += [[pattern, r.plan, r.most_rows, *(_held(r, t) for t in quarters)] for r in runs]
        checks += [
            at_least(
                f"{pattern}: XJoin holds far more rows than MJoin: times",
                xjoin.most_rows / mjoin.most_rows,
                HELD[pattern],
                f"the most: {mjoin.most_rows:,} and {xjoin.most_rows:,}",
            ),
            at_least(
                f"{pattern}: and the more so the more has come: times from the first quarter to the third",
                shares[0] / shares[2],
                MORE_SO,
                "share of XJoin's rows after each quarter: " + ", ".join(f"{s:.0%}" for s in shares),
            ),
            complete(runs),
        ]
    header = ["pattern", "plan", "most rows in memory", "after a quarter", "after half", "after three quarters"]
    return Outcome("ding10", "Ding 2003, figure 10: MJoin and XJoin, memory", panels, checks, header, table)


def immediate_or_batch(scale: float) -> Outcome:
    """Experiment 3, figure 11: looking through the state after each punctuation, or after a hundred."""
    streams = news_and_access(scale, "random")
    at_once, many = runs = [_run(_mjoin(every), streams) for every in (1, 100)]
    checks = [
        at_least(
            "immediate purging takes more time than batch purging: times",
            at_once.finished / many.finished,
            11.0,
            f"{at_once.finished:.1f} and {many.finished:.1f} virtual seconds",
        ),
        at_least(
            "because of looking through the state: it compares and moves more: times",
            min(at_once.work.comparisons / many.work.comparisons, at_once.work.moves / many.work.moves),
            12.0,
            f"comparisons {at_once.work.comparisons:,} and {many.work.comparisons:,}, moves {at_once.work.moves:,} and "
            f"{many.work.moves:,}",
        ),
        at_least(
            "batch purging needs more memory: times",
            many.most_rows / at_once.most_rows,
            1.09,
            f"the most rows: {at_once.most_rows:,} and {many.most_rows:,}",
        ),
        complete(runs),
    ]
    table = [[r.plan, _seconds(r), r.most_rows, r.work.comparisons, r.work.moves] for r in runs]
    header = ["plan", "virtual seconds", "most rows in memory", "comparisons", "moves"]
    panels = [
        Panel("results", runs, max(r.finished for r in runs)),
        Panel("memory", runs, max(r.finished for r in runs), what="rows in memory"),
    ]
    return Outcome("ding11", "Ding 2003, figure 11: immediate and batch purging", panels, checks, header, table)


# --- inputs and plans ----------------------------------------------------------------------------------------------


def news_and_access(scale: float, pattern: str) -> dict[str, Stream]:
    """The two streams of the experiments, in an arrival pattern."""
    items = round(ITEMS * scale)
    dice = np.random.Generator(np.random.Philox(7))
    numbers = np.arange(items, dtype=np.int64)
    if pattern == "random":
        numbers = dice.permutation(numbers)
    news = batch({"sno": numbers, "keyword": numbers % 97})
    sno, over = _records(items, dice)
    access = pa.RecordBatch.from_pydict(
        {"sno": pa.array(sno), "ipaddr": pa.array(np.where(over, -1, np.arange(sno.size))), "over": pa.array(over)}
    )
    return {"news": _at_once(news), "access": _at_once(access)}


def _records(items: int, dice: np.random.Generator) -> tuple[Array, Array]:
    """Numbers of records, and which of them are punctuations instead: each of an item after all its records."""
    spread = np.repeat(np.arange(items, dtype=np.float64), RECORDS) + dice.random(items * RECORDS) * WATCHED
    when = np.concatenate([spread, np.arange(items) + WATCHED])
    sno = np.concatenate([np.repeat(np.arange(items), RECORDS), np.arange(items)]).astype(np.int64)
    over = np.concatenate([np.zeros(items * RECORDS, np.bool_), np.ones(items, np.bool_)])
    order = np.argsort(when, kind="stable")
    return sno[order], over[order]


def _at_once(rows: pa.RecordBatch) -> Stream:
    """Both streams are there from the beginning; each is taken in at its share of all rows."""
    return Stream(rows, np.linspace(1e-9, 1e-3, rows.num_rows))


def _run(plan: Plan, streams: dict[str, Stream], slower: float = LOADED) -> Run:
    rows = sum(s.seconds.size for s in streams.values())
    return run(plan, streams, slower, slices=rows // SLICE_ROWS)


def _join(options: Sequence[tuple[str, str]]) -> Join:
    return Join("join", QUERY, ("news", "access"), 1, tuple(options))


def _mjoin(every: int, limit: int | None = None) -> Plan:
    options = [("source.news.unique", "sno"), ("source.access.punctuation", "over"), ("purgeEvery", str(every))]
    name = "MJoin, immediate purging" if every == 1 else f"MJoin, batches of {every}"
    return Plan(name, _join(options), "largest", limit)


def _both(memory: int | None) -> tuple[Plan, Plan]:
    """MJoin and XJoin, with so many bytes of memory."""
    return _mjoin(100, memory), Plan("XJoin", _without_promises(), "largest", memory)


def _without_promises() -> Join:
    """Punctuations are no records: the query excludes them."""
    return Join("join", f"{QUERY} WHERE NOT a.over", ("news", "access"), 1)
