"""What the tasks of a query have committed, as the driver sees it: the manifests of all partitions, read once.

A version that a partition has not committed, because its task was cut off, is stood in for by its newest one before.
What follows from time (`worked`) and what must not change in between (driver.session) asks for the version itself.
"""

from __future__ import annotations

from functools import cached_property

from spark_mjoin.driver.clock import Worked
from spark_mjoin.evidence import rows_in
from spark_mjoin.state.manifest import Manifest, Manifests


class Committed:
    """The manifests of all partitions up to a version, each read once, when it is first asked for."""

    def __init__(self, location: str, version: int, partitions: int) -> None:
        self.version = version
        self._stores = [Manifests(location, p) for p in range(partitions)]

    @cached_property
    def newest(self) -> list[Manifest | None]:
        """The newest manifest of every partition that is not past the version."""
        found: list[Manifest | None] = []
        for store in self._stores:
            version = self.version
            if version and not store.has(version):
                version = max((v for v in store.versions() if v <= version), default=0)
            found.append(store.manifest(version) if version else None)
        return found

    @property
    def found(self) -> list[Manifest]:
        """The same, without partitions that have none."""
        return [m for m in self.newest if m is not None]

    @property
    def whole(self) -> list[Manifest]:
        """The manifests of the version itself; none where a partition has not committed it."""
        found = [m for m in self.found if m.version == self.version]
        return found if len(found) == len(self.newest) else []

    @property
    def worked(self) -> Worked:
        """How the batch went that every partition has committed."""
        taken = [m.taken for m in self.whole]
        return Worked(
            tuple(rows_in(taken)),
            min(each.began for each in taken),
            max(store.written(self.version) for store in self._stores),
            max(each.disk_ms for each in taken) / 1000,
        )
