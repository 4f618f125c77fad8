"""What the partitions of a query have committed: read once for a batch, and asked by all who plan or report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.routing import Routing


@dataclass(frozen=True)
class Committed:
    """The newest manifest of every partition that is not past a version; None where there is none."""

    version: int
    partitions: tuple[Manifest | None, ...]
    stores: tuple[Manifests, ...]

    @staticmethod
    def read(location: str, routing: Routing, version: int) -> Committed:
        """Of the query whose state is at a location. Partitions whose task did not finish are behind."""
        query = Directory(location)
        stores = tuple(Manifests(query, partition, routing) for partition in range(routing.partitions))
        return Committed(version, tuple(store.newest(version) for store in stores), stores)

    @cached_property
    def found(self) -> Sequence[Manifest]:
        """Of the partitions that have any."""
        return [manifest for manifest in self.partitions if manifest is not None]

    @property
    def is_complete(self) -> bool:
        """Whether every partition has committed the version."""
        return all(m is not None and m.version == self.version for m in self.partitions)

    @property
    def of_all(self) -> Sequence[Manifest]:
        """The manifests of the version; none where a partition has not committed it."""
        return self.found if self.is_complete else ()

    @cached_property
    def written(self) -> float:
        """When the last partition committed the version, in seconds since 1970."""
        return max(store.written(self.version) for store in self.stores)
