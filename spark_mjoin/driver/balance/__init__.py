"""Which layout the next batch has: by what rows are divided among partitions, and which keys are split.

    what partitions have counted ──┐
    option 'partitioning' ─────────┼──> a layout of slots or ranges ──> hot keys ──> the same as now, or a change
    the layout now ────────────────┘                                                 that pays for its move

    hash     equal ranges of slots: rows of different keys come to all partitions alike
    rate     slots where the same input is the fastest are together (PMJoin's rate-based partitioning): their partition
             can run where that input comes from, so that the rows of the others move, which are fewer (driver.places).
             The partitions have equally many rows
    range    keys that follow each other are together, and ranges have equally many rows (its range-based partitioning)

A partition is one MJoin. So PMJoin's plan of a group of slots is one of those that it calls Simple: all of it at the
node of one input. Algorithm 1 gives a group nodes for parts of its join, which here would be stages (driver.staging).

A key with many rows makes one partition slow, however slots are divided. It is hot if the partition that has it would
have SKEWED times the mean of all. Then its rows are spread over those partitions that have the fewest, as many as give
the slowest partition the least to do, and the rows of other inputs with that key are copied (`layouts.Split`). Which
input is spread how far is as in a cube: the larger it is, the further. With it go keys because of which a partition
would have CALM times the mean. A key that was split stays so until its partition would have no more than that.

A change costs that the state is read and written anew (engine.takeover). It is made where the slowest partition saves
more rows within AHEAD batches than it takes over. A key that is hot no more costs only its copies. It goes back after
COOLED versions, if the state is no larger than what comes in AHEAD batches, or with another change. Nothing changes
while fewer than LEAST_ROWS come within a few batches, or within STAY versions of the last change.

Two things show only afterwards. Rows of a hot key that are alike in all columns are not spread by their hash: then the
key is kept whole, in the emptiest partition. And ranges may become uneven at once, as those of keys that only grow:
then they are given up until the query is asked for something else.

Not covered: what one batch does alone. A read of what is there now, and the first batches of a query, divide by hash.
Not for keys: joins whose inputs make key promises, have windows in rows or drop rows (`cubes.obstacle`): copies of a
row would be counted, or kept, each on its own.
Pure: it follows from manifests and options.

rules.py      the figures by which it is decided
seen.py       what partitions have counted, put together
hot_keys.py   which keys are split, and where to
bases.py      by what all other rows are divided
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_mjoin.driver import cubes
from spark_mjoin.driver.balance import rules
from spark_mjoin.driver.balance.bases import base_of, loads_of
from spark_mjoin.driver.balance.hot_keys import Splitting
from spark_mjoin.driver.balance.seen import Seen
from spark_mjoin.errors import OptionError
from spark_mjoin.model import JoinSpec, Scheme, Settings
from spark_mjoin.state.layouts import EVEN, Assigned, Even, Hot, Layout, Ranges, Split
from spark_mjoin.state.manifest import Manifest
from spark_mjoin.state.routing import Routing


@dataclass(frozen=True)
class Choice:
    """A layout that was chosen, with the reason if it is another one than before."""

    layout: Layout
    reason: str = ""


def scheme(spec: JoinSpec, settings: Settings) -> Scheme | None:
    """By what rows are to be divided, if not once and for all."""
    if settings.partitions == 1 or settings.shares or spec.star_class is None:
        return None
    if settings.partitioning == "hash" and not may_split(spec, settings):
        return None
    return settings.partitioning


def may_split(spec: JoinSpec, settings: Settings) -> bool:
    """Whether rows of a key may go to several partitions."""
    return settings.splits_hot_keys and cubes.obstacle(spec, settings) is None


def check(spec: JoinSpec, settings: Settings) -> None:
    """OptionError where a join cannot be divided as option 'partitioning' says."""
    obstacle = cubes.obstacle(spec, settings) if scheme(spec, settings) == "range" else None
    if obstacle is not None:
        raise OptionError(f"option 'partitioning': 'range' is not possible, since {obstacle}. Use 'hash' or 'rate'")


def wanted(
    spec: JoinSpec, settings: Settings, before: Routing, version: int, manifests: Callable[[], Sequence[Manifest]]
) -> tuple[Routing, str]:
    """How the batch after a version should be divided, and why if otherwise than before.

    manifests: those of the version, of all partitions; none where some are behind.
    """
    plain = Routing.wanted(settings)
    by = scheme(spec, settings)
    if by is None or not version:
        return plain, ""
    kept = _allowed(before.layout, by, may_split(spec, settings))
    kept = kept if before.partitions == settings.partitions else EVEN
    age, found = version - before.since, manifests()
    if age < rules.STAY or (kept == EVEN and by == "hash" and not _is_skewed(found)):
        return replace(plain, layout=kept), ""
    seen = Seen.of(found, before.layout, by)
    if seen is None or seen.total < rules.LEAST_ROWS:
        return replace(plain, layout=kept), ""
    chosen = choose(spec, settings, replace(before, layout=kept, partitions=settings.partitions), seen, age)
    return replace(plain, layout=chosen.layout), chosen.reason


def _allowed(layout: Layout, by: Scheme, splits: bool) -> Layout:
    """A layout as far as options still allow it."""
    base = layout.base if isinstance(layout, Split) else layout
    kinds: dict[Scheme, type[Layout]] = {"range": Ranges, "rate": Assigned}
    if base != EVEN and not (isinstance(base, kinds.get(by, Even)) or (by == "range" and isinstance(base, Even))):
        return EVEN
    return replace(layout, base=base) if isinstance(layout, Split) and splits else base


def _is_skewed(manifests: Sequence[Manifest]) -> bool:
    """Whether some partition has so many more rows than others that one must look closer."""
    rows = [float(m.traffic.rows.view().sum()) for m in manifests if m.traffic is not None]
    return bool(rows) and max(rows) * len(rows) > rules.SKEWED * sum(rows)


def choose(spec: JoinSpec, settings: Settings, now: Routing, seen: Seen, age: int) -> Choice:
    """The layout that what was seen asks for. age: for how many versions rows were divided as they are."""
    partitions, running = now.partitions, now.layout
    base = running.base if isinstance(running, Split) else running
    asked, why = base_of(spec, settings, base, seen, partitions, age)
    mean = seen.total / partitions
    same = asked == base and seen.others.size == partitions
    others = seen.others if same else loads_of(asked, seen, partitions)
    splitting = Splitting(asked, others, mean, seen) if may_split(spec, settings) else None
    hot = splitting.chosen(running.hot if isinstance(running, Split) and same else ()) if splitting else ()
    layout: Layout = Split(asked, hot) if hot else asked
    if layout == running:
        return Choice(running)
    expected = splitting.slowest if splitting else float(others.max())
    if why:
        return Choice(layout, why)
    return _worth(Choice(layout), now, seen, expected, age)


def _hot(layout: Layout) -> set[Hot]:
    return set(layout.hot) if isinstance(layout, Split) else set()


def _worth(chosen: Choice, now: Routing, seen: Seen, expected: float, age: int) -> Choice:
    """A change of hot keys, if it pays."""
    mean, slowest = seen.total / now.partitions, seen.slowest
    before, after = set(now.layout.hot_keys), set(chosen.layout.hot_keys)
    figures = f"the slowest partition has {slowest / mean:.2f} times the mean of rows, and then {expected / mean:.2f}"
    if after < before and _hot(chosen.layout) <= _hot(now.layout):
        if age < rules.COOLED or seen.state_rows > seen.total / rules.LATELY * rules.AHEAD:
            return Choice(now.layout)
        return Choice(chosen.layout, f"hot keys ({len(before - after)}) are not hot any more: {figures}")
    worth = expected <= rules.BETTER * slowest and seen.pays(slowest - expected, now.partitions)
    if slowest <= rules.SKEWED * mean or not worth:
        return Choice(now.layout)
    part = sum(float(seen.keys[key].sum()) for key in after if key in seen.keys) / seen.total
    return Choice(chosen.layout, f"hot keys ({len(after)}) have {part:.0%} of all rows: {figures}")
