"""How a probe finds its rows: by an index of the probed input, or by scanning it (Kang 2003, sections 3 and 4.1).

A direction is an arriving input and one that its rows probe. Looking rows up is quick, but the index needs an entry for
every row that arrives, and has to be built anew when rows were evicted or dropped. A scan needs no index, but reads all
rows for each chunk of rows that probe together. So a slow input should scan the window of a fast one.

    index  = (arrivals + rows * purges) * Costs.index            once, if any direction looks up
    lookup = probes * Costs.hash                                 for each direction that does
    scan   = chunks * rows * Costs.scan + probes * Costs.hash    for each direction that does: its small index

all in the same unit of time, as in the paper's equation 1; `purges` counts how often rows are evicted or dropped. Its
equations are the special case in which every row is a chunk of its own (`tests/driver/test_access.py`): (2), with scan
= C_n, and (3), where rows expire one by one and each costs the look at a bucket. Both ways have to find matches, append
and drop rows; the model omits that, as (7) does.

An index is brought up to date when a probe asks for it. Changes between two probes cost nothing, so both terms of
`index` are bounded by the chunks that look up, times the rows.

Rates come from the counts of probes (`evidence.Edge`), which fade. After a restart they are known at once, and a change
shows within a few batches. The unit of time is that of the counts.

Inputs that only grow. Sooner or later an index needs all their rows, so scanning saves nothing now, unless scans stay
cheaper for long: until the input has GROWTH times its rows. An input with a window counts as growing until it has
dropped rows.

Pure. Not covered: a worker that loads a state has to build its indexes anew; and if an input suddenly probes in many
more chunks, that batch scans for each of them before the next batch looks up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_mjoin.driver.costs import Costs
from spark_mjoin.errors import OptionError, listed, nearest
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.statistics import Counted, Statistics
from spark_mjoin.model import CHUNK_ROWS, LAZY, Access, JoinSpec, OperatorSpec, ProbeOrder
from spark_mjoin.plan import Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.state.manifest import OperatorFigures

AUTO, HASH, SCAN = "auto", "hash", "scan"
GROWTH = 16.0  # as often must the rows of an input that grows be scanned for less, to begin with it
LEAST_GAIN = 0.3  # of the time that the present way takes, to scan instead of looking up
LEAST_GAIN_BACK = 0.05  # the same, to look up again
LEAST_SHARE = 0.01  # of the time that it takes to store what arrives at all inputs: less is not worth a change
LEAST_ROWS = 100.0  # that have arrived at the probed input
FLUSHED = 0.22  # of the rows in memory are evicted in a flush, about

_DIRECTION = re.compile(r"\s*([^>\s:]+)\s*>\s*([^>\s:]+)\s*:\s*(\w+)\s*")


# --- the option --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What option `access` says, for all directions and for single ones, as inputs of the join."""

    default: str = AUTO
    directions: tuple[tuple[tuple[int, int], str], ...] = ()

    def of(self, place: OperatorSpec, origin: int, target: int) -> str:
        """What it says about a direction between members of an operator.

        Rows of a member that is a result are arrivals of all inputs below it.
        """
        named = {
            how
            for (arriving, probed), how in self.directions
            if arriving in place.leaves[origin] and (probed,) == place.leaves[target]
        }
        return named.pop() if len(named) == 1 else self.default


def parse(text: str | None, spec: JoinSpec) -> Wanted:
    """Option `access`: `auto`, `hash` or `scan`, and directions such as `a>b: scan`, separated by commas."""
    default, directions = AUTO, dict[tuple[int, int], str]()
    aliases = [i.alias for i in spec.inputs]
    for entry in filter(None, (e.strip() for e in (text or "").split(","))):
        match = _DIRECTION.fullmatch(entry)
        how = (match[3] if match else entry).lower()
        if how not in (AUTO, HASH, SCAN):
            raise OptionError(
                f"option 'access': '{entry}' is not auto, hash or scan, nor a direction such as "
                f"'{aliases[0]}>{aliases[-1]}: scan'"
            )
        if match is None:
            default = how
            continue
        origin, target = (_input(name, aliases) for name in (match[1], match[2]))
        if origin == target:
            raise OptionError(f"option 'access': '{entry}': rows of an input do not probe the input itself")
        if (origin, target) in directions:
            raise OptionError(f"option 'access': '{aliases[origin]}>{aliases[target]}' is there twice")
        directions[origin, target] = how
    return Wanted(default, tuple(directions.items()))


def _input(name: str, aliases: Sequence[str]) -> int:
    found = [i for i, alias in enumerate(aliases) if alias.lower() == name.lower()]
    if not found:
        raise OptionError(
            f"option 'access': '{name}' is not an input of the query.{nearest(name, aliases)} Inputs are: "
            f"{listed(aliases)}"
        )
    return found[0]


def forced(wanted: Wanted, place: OperatorSpec) -> Access:
    """The directions of an operator that scan whatever the model says."""
    members = range(len(place.leaves))
    return tuple((o, t) for o in members for t in members if o != t and wanted.of(place, o, t) == SCAN)


# --- the model ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Direction:
    """Rows of one input that probe another, per unit of time."""

    origin: int
    target: int
    classes: tuple[int, ...]
    probes: float  # combinations that probe
    chunks: float  # times that some of them do, together


@dataclass(frozen=True)
class Target:
    """A probed input: its rows in memory, and what changes them per unit of time."""

    rows: float
    arrivals: float
    purges: float  # times that rows are evicted or dropped, after which an index is built anew
    grows: bool = False  # nothing is evicted or dropped: an index will need all rows sooner or later


def indexing(target: Target, lookups: float, costs: Costs) -> float:
    """Keep an index that so many chunks look rows up in."""
    taken_in = min(target.arrivals, lookups * target.rows)
    built_anew = min(target.purges, lookups) * target.rows
    return (taken_in + built_anew) * costs.index


def looking_up(direction: Direction, costs: Costs) -> float:
    return direction.probes * costs.hash


def scanning(target: Target, direction: Direction, costs: Costs) -> float:
    width = direction.probes / direction.chunks / CHUNK_ROWS if direction.chunks else 0.0
    per_row = costs.scan + costs.scan_wide * math.sqrt(min(1.0, width))  # as it is measured: caches, and empty slots
    return direction.chunks * target.rows * per_row + direction.probes * costs.hash


def cost(target: Target, directions: Sequence[Direction], scans: frozenset[int], costs: Costs) -> float:
    """Of all directions that share an index of a target, if those from some origins scan."""
    looking = [d for d in directions if d.origin not in scans]
    total = indexing(target, sum(d.chunks for d in looking), costs) if looking else 0.0
    total += sum(looking_up(d, costs) for d in looking)
    return total + sum(scanning(target, d, costs) for d in directions if d.origin in scans)


@dataclass(frozen=True)
class Choice:
    """How some directions reach one target, which they could share an index of, and why."""

    target: int
    directions: tuple[Direction, ...]
    scans: frozenset[int]  # origins
    changed: bool
    seconds: float  # per unit of time
    others: float  # the seconds of what there was before, or if that stays, of the best other way
    reason: str


@dataclass(frozen=True)
class Group:
    """Directions to one target by the same key classes, which could share an index of it."""

    target: Target
    directions: Sequence[Direction]
    said: Mapping[int, str]  # per origin, what option `access` says
    current: frozenset[int] = frozenset()  # origins that scan now


def choose(spec: JoinSpec, group: Group, costs: Costs, least: float = 0.0) -> Choice:
    """The origins that scan a target; least: seconds that are worth a change."""
    target, directions, said = group.target, group.directions, group.said
    number = directions[0].target
    alias = spec.inputs[number].alias
    always = frozenset(o for o, how in said.items() if how == SCAN)
    free = [d for d in directions if said[d.origin] == AUTO]
    now = always | (group.current & {d.origin for d in free})
    if not free:
        return Choice(number, tuple(directions), always, False, 0.0, 0.0, f"{alias}: option 'access' says so")
    if target.arrivals < LEAST_ROWS or not any(d.chunks for d in directions):
        reason = f"{alias}: too few rows have come to judge by"
        return Choice(number, tuple(directions), now, False, 0.0, 0.0, reason)
    free.sort(key=lambda d: (scanning(target, d, costs) - looking_up(d, costs), d.origin))
    ways = [always | {d.origin for d in free[:n]} for n in range(len(free) + 1)]
    judged = Target(target.rows * GROWTH, target.arrivals, target.purges) if target.grows else target
    free_to_choose = [d for d in directions if d.origin not in always]
    seconds = {way: cost(judged, free_to_choose, way, costs) for way in (now, *ways)}
    best = min(ways, key=lambda way: (seconds[way], len(way)))
    share = LEAST_GAIN if len(best) > len(now) else LEAST_GAIN_BACK
    changed = best != now and seconds[now] - seconds[best] > max(least, share * seconds[now])
    taken = best if changed else now
    other = now if changed else min((way for way in ways if way != now), key=lambda way: (seconds[way], len(way)))
    shown = f"{_named(spec, directions, taken)}: {_nanos(seconds[taken], target)} per row of {alias} that arrives"
    reason = f"{alias}: {shown}, {_named(spec, directions, other)} {_nanos(seconds[other], target)}"
    return Choice(number, tuple(directions), taken, changed, seconds[taken], seconds[other], reason)


def _named(spec: JoinSpec, directions: Sequence[Direction], scans: frozenset[int]) -> str:
    """`a scans, c and d look up`."""
    parts = []
    for verb, origins in (("scan", scans), ("look", {d.origin for d in directions} - scans)):
        names = [spec.inputs[o].alias for o in sorted(origins)]
        if names:
            up = " up" if verb == "look" else ""
            parts.append(f"{' and '.join(names)} {verb}{'s' if len(names) == 1 else ''}{up}")
    return ", ".join(parts)


def _nanos(seconds: float, target: Target) -> str:
    return f"{1e9 * seconds / target.arrivals:,.3g} ns"


# --- from counts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Used:
    """How the probes of an operator have run so far."""

    orders: Sequence[orders.Targets | None] = ()  # none: they were not planned
    scans: Access = ()


@dataclass(frozen=True)
class Rules:
    """What a plan of access keeps to."""

    wanted: Wanted = Wanted()
    active: bool = False  # rows are dropped before every batch
    briefly: bool = False  # no reasons are needed where it is plain that nothing will scan


def plan_access(operator: Counted, used: Used, rules: Rules, costs: Costs) -> tuple[Access, list[Choice]]:
    """The directions of one operator that scan."""
    place, figures, statistics = operator.place, operator.figures, operator.statistics
    spec = place.spec
    counted = [_arrivals(statistics, m, len(figures)) for m in range(len(spec.inputs))]
    targets = _targets(spec, statistics, figures, counted, rules.active)
    if (
        rules.briefly
        and not used.scans
        and rules.wanted == Wanted()
        and not any(
            _may_be_scanned(target, [c for o, (_, c) in enumerate(counted) if o != m and c], costs)
            for m, target in enumerate(targets)
        )
    ):
        return (), []
    groups: dict[tuple[int, tuple[int, ...]], list[Direction]] = {}
    for origin in range(len(spec.inputs)):
        chosen = used.orders[origin] if used.orders else None
        visited = orders.smallest_first(spec, origin, statistics.rows) if chosen is None else chosen
        for direction in _directions(statistics, orders.order_of(spec, origin, visited), *counted[origin]):
            groups.setdefault((direction.target, direction.classes), []).append(direction)
    least = LEAST_SHARE * costs.move * sum(rows for rows, _ in counted)
    choices = []
    for (target, _), directions in sorted(groups.items()):
        said = {d.origin: rules.wanted.of(place, d.origin, target) for d in directions}
        scanning_now = frozenset(o for o, t in used.scans if t == target)
        choices.append(choose(spec, Group(targets[target], directions, said, scanning_now), costs, least))
    return tuple(sorted((o, c.target) for c in choices for o in c.scans)), choices


def _arrivals(statistics: Statistics, member: int, partitions: int) -> tuple[float, float]:
    """Rows of a member that came, and chunks in which they did, per partition: every one reads all."""
    first = [c for (origin, bound, _), c in statistics.edges.items() if bound == {member} and origin == member]
    return sum(c.probes for c in first), sum(c.chunks for c in first) / partitions


def _targets(
    spec: JoinSpec,
    statistics: Statistics,
    figures: Sequence[OperatorFigures],
    counted: Sequence[tuple[float, float]],
    active: bool,
) -> list[Target]:
    in_memory, arriving = max(1.0, sum(statistics.rows)), sum(rows for rows, _ in counted)
    chunks = [of for _, of in counted if of]
    # Lazily, rows are dropped when a third of those in memory have come since; then an index is built anew.
    expiring = (min(chunks) if active else (LAZY - 1) * arriving / in_memory) if chunks else 0.0
    flushed = any(f.overflowed for f in figures)
    flushing = arriving / (FLUSHED * in_memory) if flushed else 0.0
    out = []
    for m, (rows, (arrivals, _)) in enumerate(zip(statistics.rows, counted, strict=True)):
        dropped = sum(f.progress.dropped[m] for f in figures if f.progress is not None)
        purges = flushing + (expiring if dropped else 0.0)
        out.append(Target(rows, arrivals, purges, grows=not purges))
    return out


def _may_be_scanned(target: Target, chunks: Sequence[float], costs: Costs) -> bool:
    """Whether a scan by the input that comes in the fewest chunks is cheaper than an index for all.

    Steps after the first may have fewer chunks still; they are looked at when one of the first may scan.
    """
    judged = target.rows * (GROWTH if target.grows else 1.0)
    whole = indexing(target, sum(chunks), costs)
    return bool(chunks) and min(chunks) * judged * costs.scan < (1 - LEAST_GAIN) * whole


def _directions(statistics: Statistics, order: ProbeOrder, rows: float, chunks: float) -> list[Direction]:
    """The directions of one order, for so many arrivals of its origin in so many chunks."""
    expected = orders.along(statistics, order.origin, tuple(step.target for step in order.steps))
    out, bound = [], frozenset((order.origin,))
    for step in order.steps:
        combinations = expected[bound]
        each = combinations * rows / chunks if chunks else 0.0  # that the rows of one chunk have become
        times = chunks * (each if each < 1 else max(1.0, each / CHUNK_ROWS))
        out.append(Direction(order.origin, step.target, step.classes, combinations * rows, times))
        bound |= {step.target}
    return out


# --- for people --------------------------------------------------------------------------------------------------


def describe(spec: JoinSpec, plan: Plan) -> dict[str, str]:
    """For each input of the join, how its rows reach the others of its operator: `b: scan, c: hash`."""
    out = {}
    for place in trees.layout(spec, plan.tree):
        scans = plan.access[place.number] if plan.access else ()
        for origin, leaves in enumerate(place.leaves):
            if len(leaves) == 1:
                names = [i.alias for i in place.spec.inputs]
                hows = [(t, SCAN if (origin, t) in scans else HASH) for t in range(len(names)) if t != origin]
                out[names[origin]] = ", ".join(f"{names[t]}: {how}" for t, how in hows)
    return out
