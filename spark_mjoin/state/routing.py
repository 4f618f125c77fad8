"""Which partitions a row is in, and since when.

    key ──hash──> slot 0..4095 ──layout──> partition

             |  slots 0..1365  |  1366..2730  |  2731..4095  |
                 partition 0      partition 1     partition 2       an even layout of three partitions

The number of partitions, and the layout, may change. A routing says since which version rows are divided as it says,
and how they were divided before. Each routing has directories of its own, so the files of two never mix. It is part of
the plan of a batch: a batch that is run again has the partitions that it had, whatever the options say by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_mjoin.model import Array, Settings
from spark_mjoin.state.layouts import EVEN, Cube, Divided, Keys, Layout, read_layout
from spark_mjoin.state.slots import Slots

_DIRECTORY = re.compile(r"partition-\d+-of-(\d+)(?:-since-(\d+))?")


@dataclass(frozen=True)
class Routing:
    """How rows are divided among partitions, and since when."""

    partitions: int = 1
    since: int = 1  # the first version of the state that is divided like this
    before: Routing | None = None  # how the version before that one was divided; None where there was none
    layout: Layout = EVEN

    @staticmethod
    def wanted(settings: Settings) -> Routing:
        """What the options of a join ask for."""
        return Routing(settings.partitions, layout=Cube(settings.shares) if settings.shares else EVEN)

    def followed_by(self, wanted: Routing, version: int) -> Routing:
        """Partitions and layout of another one, from a version on."""
        return replace(wanted, since=version, before=replace(self, before=None))

    def divides_as(self, other: Routing) -> bool:
        """Whether two divide rows in the same way, since whenever."""
        return (self.partitions, self.layout) == (other.partitions, other.layout)

    def __str__(self) -> str:
        return f"{self.partitions}{'' if self.layout == EVEN else f' ({self.layout})'}"

    def slots(self, partition: int) -> Slots:
        return self.layout.slots(partition, self.partitions)

    def holds(self, partition: int) -> Slots:
        return self.layout.holds(partition, self.partitions)

    def divide(self, keys: Keys) -> Divided:
        return self.layout.divide(keys, self.partitions)

    def numbers_of(self, keys: Keys, partition: int) -> Array:
        """The numbers of those rows that a partition has."""
        return self.divide(keys).numbers(partition)

    def directory(self, partition: int) -> str:
        """The name of the directory of a partition."""
        later = f"-since-{self.since}" if self.since > 1 else ""
        return f"partition-{partition}-of-{self.partitions}{later}"

    # --- JSON ------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        earlier = {} if self.before is None else {"before": self.before.to_json()}
        layout = {} if self.layout == EVEN else {"layout": self.layout.to_json()}
        return {"partitions": self.partitions, "since": self.since, **layout, **earlier}

    @staticmethod
    def from_json(body: Mapping[str, Any]) -> Routing:
        before = Routing.from_json(body["before"]) if "before" in body else None
        layout = read_layout(body["layout"]) if "layout" in body else EVEN
        return Routing(body["partitions"], body["since"], before, layout)


ALONE = Routing()


def in_directories(names: Iterable[str]) -> list[Routing]:
    """The routings whose directories are among some names, the oldest first."""
    found = (_DIRECTORY.fullmatch(name) for name in names)
    known = {(int(each[2] or 1), int(each[1])) for each in found if each is not None}
    return [Routing(partitions, since) for since, partitions in sorted(known)]
