"""The join of the engine as Spark runs it: parcels, shuffles, and one function per stage.

    a ─ parcels ─┬─ union, shuffle ─ stage (a b) ─ parcels ─┬─ union, shuffle ─ stage ((a b) c) ─ results
    b ─ parcels ─┘                          c ─ parcels ─┘

Mostly there is one stage, over all inputs. Where no key is common to all, there are several, or the one is a cube
(driver.staging). Stages run in the same micro-batch. Rows of inputs and results of earlier stages travel alike: as
parcels (engine.exchange).

Each stage of streams is a stateful operator of its own. Spark numbers operators by their place in the plan, so the same
tree of stages has the same numbers after a restart; that it is the same tree, Spark checks by the operators' names, and
the state by its meaning. A cube and one task are the same operator, with a state that is divided otherwise.

Where results may be pending on disk, the first stage also has a stream of the jar's without rows. It asks for a batch
after a restart, so that they are emitted though no new data comes. One batch is a batch of all stages.

The functions that run in Spark's workers are made here and import the engine only there.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from spark_mjoin.config import SourceOptions
from spark_mjoin.doors import shim, worker
from spark_mjoin.doors.node import Joining
from spark_mjoin.driver import balance, staging
from spark_mjoin.driver.intake import Brought
from spark_mjoin.driver.loading import fitting
from spark_mjoin.driver.session import batch_tasks
from spark_mjoin.driver.widths import width
from spark_mjoin.model import Expected, JoinSpec, Settings
from spark_mjoin.query.cubes import is_cube
from spark_mjoin.query.cubes import render as render_cube
from spark_mjoin.query.stages import Stage, only, staged
from spark_mjoin.query.tree import render
from spark_mjoin.state.routing import Routing

log = logging.getLogger(__name__)

PARCELS = "target INT, input TINYINT, rows BINARY"  # `engine.exchange.PARCELS`, to Spark
NODE = "mjoin_join_"  # by this name of its function the jar knows the join: partitions, token and stage follow
UNKNOWN_BYTES = 1e18  # Spark's planner takes what it knows nothing about for larger than that

Function = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class StagedJoin:
    """A join of the engine, in the stages in which it runs."""

    spec: JoinSpec
    inputs: tuple[DataFrame, ...]
    stages: tuple[Stage, ...]
    settings: tuple[Settings, ...]  # of each stage
    asked: Settings  # by the options
    reason: str = "all inputs have a key in common"  # for the stages

    @staticmethod
    def of(
        spec: JoinSpec, settings: Settings, options: Sequence[SourceOptions], inputs: Sequence[DataFrame]
    ) -> StagedJoin:
        """options: of each source; inputs: with the columns that the join needs."""
        frames, reason, own = tuple(inputs), StagedJoin.reason, settings
        if spec.star_class is None:
            expected = staging.Expected.of(spec, settings, _known_rows(inputs, spec), staging.horizon_seconds(spec))
            chosen = staging.choose(spec, settings, expected)
            if chosen.tree is not None:
                each = staging.settings_of(settings, expected.moved(chosen.tree))
                stages = staged(spec, chosen.tree, options)
                for stage, its in zip(stages, each, strict=True):
                    balance.check(stage.spec, its)
                return StagedJoin(spec, frames, stages, tuple(each), settings, chosen.reason)
            reason = chosen.reason
            if chosen.shares:
                own = staging.settings_of_cube(settings, chosen.shares)
                log.info("the join runs as %s, since %s", render_cube(chosen.shares), reason)
            else:
                log.info("the join runs in one task, since %s", reason)
                own = replace(own, plan=None) if is_cube(own.plan or "") else own
        return StagedJoin(spec, frames, only(spec), (fitting(spec, own),), settings, reason)

    @property
    def is_streaming(self) -> bool:
        return self.inputs[0].isStreaming

    def expected(self, seconds: float) -> staging.Expected:
        """What is expected of the inputs: of streams within some seconds, of tables what Spark knows."""
        return staging.Expected.of(self.spec, self.asked, _known_rows(self.inputs, self.spec), seconds)

    def rejected(self) -> list[staging.Candidate]:
        """How a join without a common key could run besides."""
        if self.spec.star_class is not None:
            return []
        expected = self.expected(staging.horizon_seconds(self.spec))
        running = (self.stages[-1].tree if len(self.stages) > 1 else None), self.settings[0].shares
        found = staging.of_stages_and_cube(self.spec, self.asked, expected)
        return [each for each in found if (each.tree, each.shares) != running]

    def dataframe(self) -> DataFrame:
        sent: dict[tuple[int, int], DataFrame] = {}  # results of stages, by the stage and the member that they are for
        tokens = [uuid.uuid4().hex for _ in self.stages]
        for number, (stage, settings) in enumerate(zip(self.stages, self.settings, strict=True)):
            parcels = [
                sent[number, member]
                if (number, member) in sent
                else _sent(self._target(number, member, tokens), settings, self.inputs[leaves[0]])
                for member, leaves in enumerate(stage.leaves)
            ]
            if number == 0 and self.is_streaming and settings.memory_bytes is not None:
                parcels.append(shim.restarts(self.inputs[0].sparkSession))
            divided = reduce(lambda some, more: some.unionAll(more), parcels)
            divided = divided.repartitionById(settings.partitions, "target")
            if stage.onward is not None:
                sent[stage.onward] = divided.mapInArrow(self._joining(number, tokens), PARCELS)
        schema = from_arrow_schema(self.spec.schema, prefer_timestamp_ntz=True)
        return divided.mapInArrow(self._joining(len(self.stages) - 1, tokens), schema)

    def _target(self, number: int, member: int, tokens: Sequence[str]) -> worker.Target:
        """A member of a stage. Of streams the jar says with each batch how its rows are divided."""
        routing = None if self.is_streaming else Routing.wanted(self.settings[number])
        return worker.Target(self.stages[number].spec, member, tokens[number], routing)

    def _joining(self, number: int, tokens: Sequence[str]) -> Function:
        """The function that joins what comes to one partition of a stage. The jar makes a stateful operator of it."""
        stage, settings = self.stages[number], self.settings[number]
        tasks = None if self.is_streaming else batch_tasks(stage.spec, settings, Brought(stage.spec))
        onward = None if stage.onward is None else self._target(*stage.onward, tokens)

        def join(parcels: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from worker.join(parcels, tasks, onward)

        join.__name__ = f"{NODE}{settings.partitions}_{tokens[number]}"
        if len(self.stages) > 1:
            join.__name__ += f" {render(stage.tree, [i.alias for i in self.spec.inputs])}"
        if self.is_streaming:
            join.joining = Joining(stage.spec, settings)  # type: ignore[attr-defined]
        return join


def expected_of_inputs(given: Expected, uses: Sequence[tuple[str, str]]) -> Expected:
    """What somebody expects of sources, for the inputs that use them. uses: alias of the input and of its source."""
    rates, hosts = dict(given.rates), dict(given.hosts)
    selectivities = {(a, b): s for a, b, s in given.selectivities}
    pairs = [(*sorted((one, two)), *sorted((a, b))) for (one, a), (two, b) in combinations(uses, 2)]
    return Expected(
        tuple((alias, rates[source]) for alias, source in uses if source in rates),
        tuple((one, two, selectivities[a, b]) for one, two, a, b in pairs if (a, b) in selectivities),
        tuple((alias, hosts[source]) for alias, source in uses if source in hosts),
    )


def _sent(target: worker.Target, settings: Settings, frame: DataFrame) -> DataFrame:
    """The rows of an input as parcels, divided among partitions."""
    names, whole = frame.columns, target.spec.inputs[target.member].promises_by_order(settings.verify)

    def mjoin_send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # the jar knows it by its name
        named = (batch.rename_columns(names) for batch in batches)
        yield from worker.send(target, named, whole)

    plain = frame.toDF(*[f"c{number}" for number in range(len(names))])  # mapInArrow takes dots in names for fields
    return plain.mapInArrow(mjoin_send, PARCELS)


def _known_rows(frames: Sequence[DataFrame], spec: JoinSpec) -> list[float | None]:
    """How many rows each table has, by Spark's own statistics; None where there are none: of streams, on Connect."""
    found: list[float | None] = []
    for frame, source in zip(frames, spec.sources, strict=True):
        if frame.isStreaming or not hasattr(frame, "_jdf"):
            found.append(None)
            continue
        statistics = frame._jdf.queryExecution().optimizedPlan().stats()
        counted, size = statistics.rowCount(), float(str(statistics.sizeInBytes()))
        by_size = size / sum(width(field.type) for field in source.schema) if size < UNKNOWN_BYTES else None
        found.append(float(str(counted.get())) if counted.isDefined() else by_size)
    return found
