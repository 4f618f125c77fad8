"""Joins in stages, or as a cube, without Spark: planners and tasks of every stage, and what a shuffle does between."""

import json
import random
import uuid
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_mjoin.config import SourceOptions
from spark_mjoin.doors.node import Joining, NodePlanner
from spark_mjoin.driver.staging import settings_of_cube
from spark_mjoin.engine import batch, cache
from spark_mjoin.engine.delivered import Delivered
from spark_mjoin.engine.exchange import Floor, Sender
from spark_mjoin.model import JoinSpec, Settings, Tree
from spark_mjoin.query import tree as trees
from spark_mjoin.query.stages import classes_of, only, staged
from spark_mjoin.state.routing import Routing
from tests.feeds import brought_to
from tests.harness import CRASH, OK, TORN, TWICE, Rows, rows

Arriving = Mapping[str, pa.Table]  # by alias of the input


def any_stages(spec: JoinSpec, seed: int) -> Tree:
    """A tree that can run in stages, whichever."""
    chance = random.Random(seed)
    members: list[Tree] = list(range(len(spec.inputs)))
    while len(members) > 1:
        able = [
            [m for m in members if key_class in classes_of(spec, trees.inputs_below(m))]
            for key_class in range(len(spec.classes))
        ]
        group = chance.choice([each for each in able if len(each) > 1])
        chosen = chance.sample(group, chance.randint(2, len(group)))
        members = [m for m in members if m not in chosen] + [tuple(chosen)]
    return trees.normal(members[0])


def any_cube(spec: JoinSpec, seed: int, most: int = 8) -> Settings:
    """A cube of a few cells, whichever, or one task."""
    chance, shares = random.Random(seed), dict[int, int]()
    for _ in range(4):
        key_class, share = chance.randrange(len(spec.classes)), chance.choice([1, 2, 2, 3, 4])
        if key_class not in shares and share * prod(shares.values()) <= most:
            shares[key_class] = share
    chosen = tuple(sorted((key_class, share) for key_class, share in shares.items() if share > 1))
    return settings_of_cube(Settings(), chosen)


class StagedJoin:
    """A query of several stages, each with its own state, driven as Spark and the jar do."""

    def __init__(
        self,
        root: Path,
        spec: JoinSpec,
        tree: Tree | None,
        settings: Settings | Sequence[Settings],
        options: Sequence[SourceOptions] | None = None,
    ) -> None:
        """tree: of stages; None: one stage of all inputs, which may be a cube.

        settings: of all stages alike, or of each; options: of each source, where they say more than its rows do."""
        plain = [SourceOptions(source.alias, source.format, source.options) for source in spec.sources]
        self.root, self.stages = root, only(spec) if tree is None else staged(spec, tree, options or plain)
        self.settings = [settings] * len(self.stages) if isinstance(settings, Settings) else list(settings)
        self.version = 0
        self.restart()

    def restart(self) -> None:
        cache.of_worker().clear()
        pairs = zip(self.stages, self.settings, strict=True)
        self.planners = [NodePlanner(Joining(stage.spec, settings)) for stage, settings in pairs]

    def point(self, stage: int, version: int, **more: Any) -> dict[str, Any]:
        operator = len(self.stages) - 1 - stage  # Spark counts from the last one
        return {"state": str(self.root / "state" / str(operator)), "queryId": "some-query", "version": version, **more}

    def batch(self, arriving: Arriving, fault: str = OK, until: int = 0) -> Rows:
        """One micro-batch. A crash comes after stage `until` has run, or while it runs."""
        if fault in (CRASH, TORN):
            self.run(arriving, until % len(self.stages), fault == TORN)
            self.restart()
        for _ in range(2 if fault == TWICE else 1):
            produced = self.run(arriving, len(self.stages) - 1)
        self.version += 1
        return rows(pa.Table.from_batches(produced)) if produced else Rows()

    def run(self, arriving: Arriving, until: int, torn: bool = False) -> list[pa.RecordBatch]:
        """The results of a stage, after all those that it needs; torn: its tasks are cut off."""
        tasks = self.plan(bool(arriving))
        sent: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        for number, stage in enumerate(self.stages[: until + 1]):
            parcels = []
            for member, leaves in enumerate(stage.leaves):
                if (number, member) in sent:
                    parcels += sent[number, member]
                elif stage.spec.inputs[member].alias in arriving and len(leaves) == 1:
                    table = arriving[stage.spec.inputs[member].alias]
                    parcels += self._sent(number, member, table.to_batches())
            results, floors = list[pa.RecordBatch](), list[Floor]()
            for task in tasks[number]:
                found, floor = self._joined(task, parcels, torn and number == until)
                results += found
                floors.append(floor)
            if stage.onward is not None:
                next_, member = stage.onward
                sent[stage.onward] = self._sent(next_, member, results)
                if stage.spec.windowed:
                    said = [floor.parcels(member, self.routing(next_).partitions) for floor in floors]
                    sent[stage.onward] += [one.slice(at, 1) for one in said for at in range(one.num_rows)]
        return results

    def plan(self, arriving: bool = True) -> list[list[Any]]:
        """The tasks of each stage in the next batch. Later stages are planned first."""
        tasks = []
        for number, planner in reversed(list(enumerate(self.planners))):
            after = self.point(number, self.version + 1, arriving=arriving)
            tasks.append([p.task for p in planner.partitions(self.point(number, self.version), after)])
        return tasks[::-1]

    def routing(self, number: int) -> Routing:
        """How the rows of the batch that was planned last are divided among the tasks of a stage."""
        said = self.planners[number].latestOffset({"places": True}, ReadAllAvailable())
        return Routing.from_json(json.loads(said["routing"]))

    def _sent(self, number: int, member: int, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        spec, routing = self.stages[number].spec, self.routing(number)
        whole = spec.inputs[member].promises_by_order(self.settings[number].verify)
        return list(Sender(spec, member, routing, whole).parcels(batches))

    def _joined(self, task: Any, parcels: Sequence[pa.RecordBatch], torn: bool) -> tuple[list[pa.RecordBatch], Floor]:
        """The results of a task, and the floor of those to come."""
        mine = brought_to(task.partition, parcels)
        random.shuffle(mine)
        directory = self.root / uuid.uuid4().hex
        directory.mkdir(parents=True)
        running = batch.run(task, Delivered(task, mine, directory), uuid.uuid4().hex, cache.of_worker())
        found: list[pa.RecordBatch] = []
        while True:
            try:
                found.append(next(running))
            except StopIteration as ended:
                return found, Floor(ended.value.floor)
            if torn:
                running.close()
                return found, Floor(None)

    def metric(self, stage: int, name: str) -> int:
        """Of the last batch of a stage, over all partitions."""
        said = self.planners[stage].reportLatestOffset()
        assert said is not None
        return int(said["metrics"][name])

    def has_more(self) -> bool:
        return any(
            planner.latestOffset(self.point(n, self.version), ReadAllAvailable())["more"]
            for n, planner in enumerate(self.planners)
        )

    def whole(self, batches: Sequence[Arriving], schedule: Sequence[tuple[str, int]] = ()) -> Rows:
        """All results of some batches, and then of ticks while there is something to do."""
        found, faults = Rows(), iter(schedule)
        for arriving in batches:
            found += self.batch(arriving, *next(faults, (OK, 0)))
        for _ in range(100):
            if not self.has_more():
                return found
            found += self.batch({}, *next(faults, (OK, 0)))
        raise AssertionError("there is always more to do")
