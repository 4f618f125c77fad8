"""Ding 2003, figure 8: stream and tuple scheduling, results over time for two arrival patterns.

The streams of `punctuations`: NewsGeneral, the one side, has a row for each serial number; AccessRecord, the many side,
has five, and a punctuation when a news item is rolled out. In the ordered pattern both arrive with ascending serial
numbers, in the random one NewsGeneral arrives in any order. The input queues never run empty, purging is immediate, and
punctuations are passed on.

The engine's own schedules, promises and purging, on one partition, all rows in one micro-batch. Time is virtual:
hashes, stored rows and comparisons as in `machine`, and for each punctuation a comparison with every row of the news in
memory, which is the scan that the paper speaks of; the engine scans once for all punctuations of an Arrow batch, and
that is not charged to its advantage. A row that is dropped on the fly is not charged as stored, as in the paper; the
engine appends it and takes it back.

The paper takes single tuples by chance; here it is five rows at a time. It does not give its quotas. Here they are a
hundred rows: equal ones, and in step with the rates of the inputs. The planner's choice for goal = memory is among
them: in step where news are declared to be ordered, all news first where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.paper.machine import LOADED, Work
from benchmarks.paper.outcome import Check, Outcome, Panel, at_least
from benchmarks.paper.punctuations import ITEMS, QUERY, RECORDS, news_and_access
from benchmarks.paper.virtual import Run, scratch
from spark_mjoin.config import Options
from spark_mjoin.counts import BatchCounts
from spark_mjoin.driver.scheduling import choose
from spark_mjoin.engine.feed import Piece, numbered
from spark_mjoin.engine.pipeline import Pipeline
from spark_mjoin.engine.schedule import Turns
from spark_mjoin.model import Array, JoinSpec, Purging, Schedule
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.query.graph import plan_join
from spark_mjoin.state.keysets import KeySet, WordSet
from spark_mjoin.state.partition import PartitionState
from spark_mjoin.state.store import StateStore

QUOTA = 100
AHEAD, FEWER_ROWS = 2.1, 7.0  # bars
OPTIONS = {
    "query": QUERY,
    "source.news.format": "arrow",
    "source.news.unique": "sno",
    "source.access.format": "arrow",
    "source.access.punctuation": "over",
    "emitPunctuations": "true",
    "goal": "memory",
    "schedulingQuota": str(QUOTA),
}
CHOSEN, OURS, THEIRS = "chosen by the planner", "equal turns, value", "random, sequential"
PLANS = {  # inputs: news, access
    OURS: Schedule("priority", (0, 1), (QUOTA, QUOTA), "value"),
    "in step, sequential": Schedule("priority", (0, 1), (QUOTA // (1 + RECORDS) + 1, QUOTA)),
    "equal turns, sequential": Schedule("priority", (0, 1), (QUOTA, QUOTA)),
    "news first, sequential": Schedule("priority", (0, 1), (ITEMS, QUOTA)),
    THEIRS: Schedule("random", (), (5, 5)),
}


@dataclass(frozen=True)
class _Seen:
    run: Run
    passed_on: Array  # punctuations passed on by then

    @property
    def mean_rows(self) -> float:
        """Over the time."""
        return float((self.run.held[1:] * np.diff(self.run.seconds)).sum() / self.run.finished)

    @property
    def half_passed_on(self) -> float:
        """When half of the punctuations were passed on."""
        return float(self.run.seconds[np.searchsorted(self.passed_on, self.passed_on[-1] / 2)])

    def when(self, share: float) -> float:
        """When a share of the results was out."""
        return self.run.after(round(share * self.run.total))


def figure_8(scale: float) -> Outcome:
    """Section 6.2, experiment 1."""
    seen: dict[str, dict[str, _Seen]] = {}
    for pattern, promised in {"ordered": {"source.news.ordered": "sno"}, "random": {}}.items():
        options = Options.parse({**OPTIONS, **promised})
        inputs = {name: stream.rows for name, stream in news_and_access(scale, pattern).items()}
        spec = plan_join(options, [inputs[source.alias].schema for source in options.sources])
        plans = {CHOSEN: choose(spec, options.settings, [1.0, 1.0 + RECORDS]).schedule, **PLANS}
        seen[pattern] = {name: _run(name, plan, spec, inputs) for name, plan in plans.items()}
    checks, table = [], []
    shares = (0.1, 0.25, 0.5, 0.75, 1.0)
    for pattern, of in seen.items():
        theirs = of[THEIRS]
        for name, words in ((OURS, "priority-driven, value-oriented"), (CHOSEN, "the chosen schedule")):
            leads = [theirs.when(s / 10) / of[name].when(s / 10) for s in range(1, 11)]
            checks.append(
                at_least(
                    f"{pattern}: {words} is ahead of random, sequential throughout: times as fast, at the least",
                    min(leads),
                    AHEAD if pattern == "ordered" and name == CHOSEN else 1.0,
                    "seconds until 10, 25, 50, 75, 100 % of the results: "
                    + " and ".join("/".join(f"{one.when(s):.1f}" for s in shares) for one in (of[name], theirs)),
                    expected=pattern == "ordered" and name == CHOSEN,
                )
            )
        for name, one in of.items():
            table.append(
                [pattern, name, *(f"{one.when(s):.1f}" for s in shares), f"{one.half_passed_on:.1f}", one.run.most_rows,
                 round(one.mean_rows), one.run.work.moves, one.run.work.comparisons]
            )  # fmt: skip
    ours, theirs = seen["ordered"][CHOSEN], seen["ordered"][THEIRS]
    checks.append(
        at_least(
            "ordered: random, sequential needs more rows in memory than the chosen schedule: times",
            theirs.mean_rows / ours.mean_rows,
            FEWER_ROWS,
            f"on average {ours.mean_rows:.0f} and {theirs.mean_rows:.0f}, at most {ours.run.most_rows} and "
            f"{theirs.run.most_rows}",
        )
    )
    totals = {one.run.total for of in seen.values() for one in of.values()}
    checks.append(Check("all schedules give the same number of results", len(totals) == 1, f"{totals}"))
    header = ["pattern", "schedule", *(f"{s:.0%} after s" for s in shares), "half of the punctuations", "most rows",
              "mean rows", "stored", "comparisons"]  # fmt: skip
    panels = [
        Panel(pattern, [one.run for one in of.values()], max(one.run.finished for one in of.values()))
        for pattern, of in seen.items()
    ]
    return Outcome("ding8", "Ding 2003, figure 8: scheduling", panels, checks, header, table)


def _size(keys: KeySet, news: int) -> int:
    """Serial numbers that a punctuation is about; one that says that an input has ended is about none."""
    if not isinstance(keys, WordSet):
        return 0
    return int((np.clip(keys.highs, -1, news - 1) - np.clip(keys.lows, 0, news) + 1).sum())


def _run(name: str, plan: Schedule, spec: JoinSpec, by_source: Mapping[str, pa.RecordBatch]) -> _Seen:
    tree = trees.single(2)
    state = PartitionState.empty(tree, trees.layout(spec, tree), {}, tracked=True)
    root, counts, scanned, samples = state.root, BatchCounts([0, 0]), [0], [(0.0, 0, 0, 0, 0)]

    def work() -> Work:
        done = Work.of(counts.memory_to_memory.work)
        stored, compared = done.moves - counts.dropped.unmatched, done.comparisons + scanned[0]
        return Work(done.hashes, stored, compared, done.probes)

    def arriving() -> Iterator[Piece]:
        inputs = [numbered(spec, n, [by_source[spec.sources[i.source].alias]]) for n, i in enumerate(spec.inputs)]
        for piece in pipeline.taking_turns(Turns(plan, inputs, 1)):
            before, news_rows = counts.promised.punctuations, root.tables[0].rows
            yield piece
            scanned[0] += (counts.promised.punctuations - before) * news_rows
            held = sum(table.rows for table in root.tables)
            spent = work()
            passed_on = sum(_size(keys, by_source["news"].num_rows) for _, keys in root.promises.to_emit)
            samples.append((spent.seconds(LOADED), root.results, spent.comparisons, held, passed_on))

    with scratch() as place:
        batch = Plan(tree, purging=Purging(1), schedule=plan)
        pipeline = Pipeline(state, batch, StateStore(str(place), 0).draft(1, "run"), counts, lambda: 0.0)
        results = sum(rows.num_rows for rows in pipeline.arrivals(arriving()))
    seconds, given, compared, rows, passed_on = map(np.array, zip(*samples, strict=True))
    given[-1] = results
    end = float(seconds[-1])
    run = Run(name, seconds, given, end, 0.0, work(), 0, (), compared, int(rows.max()), rows)
    return _Seen(run, passed_on)
