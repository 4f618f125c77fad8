"""What a query has done so far: from the newest manifests of its state, from Spark's progress, or from both.

    stateLocation/<query>/partition-<p>-of-<n>/version-<v>.json     option stateLocation: one directory for each query
    checkpoint/sources/0/state/<query>/...                          with the jar: the same inside the checkpoint

It only reads. Rates come from the times at which the kept versions were written; those of a progress are better.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_mjoin import metrics
from spark_mjoin.doors.shim import metrics_of
from spark_mjoin.errors import OptionError, StateError
from spark_mjoin.model import JoinSpec, Settings, Tree
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.query.fingerprint import describe, differences
from spark_mjoin.state import meaning
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import Manifest, Manifests
from spark_mjoin.state.routing import ALONE, Routing, in_directories

_IN_CHECKPOINT = "sources/0/state"
_OF_OFFSETS = ("streamScheduling", "tupleScheduling")  # metrics that a state does not have


@dataclass(frozen=True)
class Observed:
    metrics: Mapping[str, str]
    committed: tuple[Manifest | None, ...]  # the newest manifest of every partition, None where there is none
    tree: Tree  # that the query runs
    version: int
    rates: tuple[float, ...] | None = None  # rows per second of each input, in `seconds`
    output_rate: float | None = None  # results per second
    seconds: float | None = None
    location: str | None = None  # where the state is
    others: int = 0  # queries with the same meaning and an older state in the same place

    @property
    def has_manifests(self) -> bool:
        return any(self.committed)

    def figure(self, name: str) -> float:
        return float(self.metrics.get(name, 0))


def of_state(spec: JoinSpec, settings: Settings, where: str | None, query: str | None = None) -> Observed:
    """From the state of a query; the newest state where there are several and `query` does not say which."""
    place = where or settings.state_location
    if place is None:
        raise OptionError("there is no option 'stateLocation': say where the state is, or which checkpoint it is in")
    found = _queries(place)
    if query is not None:
        found = [at for at in found if at.rstrip("/").rsplit("/", 1)[-1] == query]
    if not found:
        raise StateError(f"there is no state of a query in '{place}', nor in '{place}/{_IN_CHECKPOINT}'")
    found.sort(key=_age)
    description, same, problem = describe(spec), list[str](), None
    for at in found:
        try:
            meaning.refuse(differences(meaning.description(at), description))
            same.append(at)
        except StateError as e:
            problem = problem or e
    if not same:
        assert problem is not None
        raise problem
    return _of_location(spec, settings, same[0], len(same) - 1)


def of_progress(spec: JoinSpec, settings: Settings, query: Any, where: str | None = None) -> Observed:
    """From a StreamingQuery or a progress of one; and from its state, if it is known where that is."""
    progress = _progress(query)
    if progress is None:
        raise StateError("the query has no progress yet: wait for its first batch, or give its state")
    source = progress["sources"][0]
    offset = source.get("endOffset")
    offset = json.loads(offset) if isinstance(offset, str) else offset
    if not isinstance(offset, Mapping) or "query" not in offset:
        raise StateError("the query's first source is not a join of this format")
    shown = metrics_of(progress)
    aliases = [i.alias for i in spec.inputs]
    place = where or settings.state_location
    rates = [shown.get(f"{alias}RowsPerSecond") for alias in aliases]
    known = tuple(float(rate) for rate in rates if rate is not None)
    emitted = source.get("processedRowsPerSecond")
    output_rate = None if emitted is None else float(emitted)
    if place is not None:
        state = of_state(spec, settings, place, str(offset["query"]))
        return Observed(
            {**{name: shown[name] for name in _OF_OFFSETS if name in shown}, **state.metrics},
            state.committed,
            state.tree,
            state.version,
            known if len(known) == len(aliases) else state.rates,
            state.output_rate if output_rate is None else output_rate,
            None if len(known) == len(aliases) else state.seconds,
            state.location,
        )
    tree = Plan.from_json(offset.get("plan", {}), len(aliases)).tree
    nothing = (None,) * settings.partitions
    rates_of = known if len(known) == len(aliases) else None
    return Observed(shown, nothing, tree, int(offset["version"]), rates_of, output_rate)


def _progress(query: Any) -> Mapping[str, Any] | None:
    given = query if isinstance(query, Mapping) else getattr(query, "lastProgress", query)
    return given if given is None or isinstance(given, Mapping) else json.loads(given.json)


# --- the state's directory -----------------------------------------------------------------------------------------


def _queries(place: str) -> list[str]:
    """The directories of queries in a place: itself, below it, or in the checkpoint that it is."""
    place = place.rstrip("/")
    if Directory(place).exists(meaning.NAME):
        return [place]
    roots = [place, f"{place}/{_IN_CHECKPOINT}"]
    below = [f"{root}/{name}" for root in roots for name in Directory(root).directories()]
    return [at for at in below if Directory(at).exists(meaning.NAME)]


def _age(location: str) -> tuple[float, str]:
    """Newest first."""
    stores = _stores(location, ALONE)
    newest = [store.written(version) for store in stores for version in store.versions()[-1:]]
    return -max([Directory(location).modified(meaning.NAME), *newest]), location


def _stores(location: str, planned: Routing) -> list[Manifests]:
    """Of all partitions, as the newest version is divided; as planned where there is none."""
    query = Directory(location)
    for routing in reversed(in_directories(query.directories())):
        stores = [Manifests(query, p, routing) for p in range(routing.partitions)]
        if any(store.versions() for store in stores):
            return stores
    return [Manifests(query, p, planned) for p in range(planned.partitions)]


def _of_location(spec: JoinSpec, settings: Settings, location: str, others: int) -> Observed:
    stores = _stores(location, Routing(settings.partitions))
    versions = [store.versions() for store in stores]
    committed = tuple(s.manifest(v[-1]) if v else None for s, v in zip(stores, versions, strict=True))
    found = [manifest for manifest in committed if manifest is not None]
    tree = found[0].tree if found else trees.chosen(settings.plan, spec)
    aliases = [i.alias for i in spec.inputs]
    shown = metrics.report(found, aliases, metrics.Shown(settings.memory_bytes, plan=trees.render(tree, aliases)))
    rates, output_rate, seconds = _rates(stores, versions, len(aliases))
    version = max((v[-1] for v in versions if v), default=0)
    return Observed(shown, committed, tree, version, rates, output_rate, seconds, location, others)


def _rates(
    stores: Sequence[Manifests], versions: Sequence[Sequence[int]], inputs: int
) -> tuple[tuple[float, ...] | None, float | None, float | None]:
    """Rows and results per second between the oldest version that every partition has kept and the newest."""
    common = sorted(set.intersection(*(set(of) for of in versions)))
    if len(common) < 2:
        return None, None, None
    first, last = common[0], common[-1]
    seconds = max(s.written(last) for s in stores) - max(s.written(first) for s in stores)
    if seconds <= 0:
        return None, None, None
    pairs = [(store.manifest(first), store.manifest(last)) for store in stores]
    rows = [sum(new.rows[i] - old.rows[i] for old, new in pairs) for i in range(inputs)]
    results = sum(new.results - old.results for old, new in pairs)
    return tuple(r / seconds for r in rows), results / seconds, seconds
