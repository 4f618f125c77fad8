"""From what tasks have committed to the plan of the next batch, with the reasons: all of the driver's decisions.

    manifests ──> statistics ──> tree of joins (decompose)  ──> probing orders of each operator (orders)
             │                                                      └──> which probes scan (access)
             ├──> the state manager: disk work, and inputs that wait (manager)
             └──> the order in which rows are taken in (scheduling)

The planner looks for a better tree when the rows have grown by LOOK_AGAIN: a join of seven inputs has thousands of
trees, and a change pays only over a longer time. It does not look before the join has worked PATIENCE times as long as
the search takes. It plans orders for every batch. For joins of more than FEW_INPUTS that takes some time, so there it
waits until the rows have grown by NEWS.

The planner chooses the tree unless option `plan` is set. Before there are rows, the choice rests on what the user
expects (`expectedRowsPerSecond`, `expectedSelectivity`); without that all inputs are in one MJoin. With a budget, the
cost of a tree includes the disk work that its intermediate results cause. Where too many rows are an error, no
intermediate results are stored: their number is only an estimate, and the inputs alone may fit.

Pure, except that it remembers when it last looked for a tree. Rates are parameters. The decision is part of the offset,
so a replay decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_mjoin.driver import access, decompose, manager, scheduling
from spark_mjoin.driver.costs import Costs, expected_of, inside
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.statistics import Counted, Pair, Statistics, of_plan
from spark_mjoin.model import Access, JoinSpec, OperatorSpec, Settings, Tree
from spark_mjoin.plan import Orders, Overflow, Plan
from spark_mjoin.query import tree as trees
from spark_mjoin.state.manifest import Manifest

LOOK_AGAIN = 2.0  # times the rows that there were when the tree was last looked at
PATIENCE = 20.0  # seconds of joining for each that looking at trees takes
LOOKING_SECONDS = {2: 0.0, 3: 0.002, 4: 0.005, 5: 0.02, 6: 0.1, 7: 0.6}  # by inputs, about; more of them take MOST
MOST_LOOKING_SECONDS = 1.2
FEW_INPUTS = 5
NEWS = 0.1
ROWS_SHARE = 0.75  # of the memory, for rows; the rest is for disk work (engine.overflow)
SPARE_USED = 0.5  # of the time that batches leave free, for disk work: input may grow, and disk work may take longer
HORIZON_SECONDS = 600.0  # that a choice is expected to hold

Newest = Sequence[Manifest | None]  # the newest manifest of every partition, None where there is none


@dataclass(frozen=True)
class Planned:
    plan: Plan
    has_disk_work: bool  # there is disk work left: the batch is worth running even without input
    reasons: tuple[str, ...]  # for what has changed


@dataclass
class Planner:
    spec: JoinSpec
    settings: Settings
    costs: Costs
    _arrived: int = field(default=0, init=False)  # rows, since orders were last looked at
    _worked_ms: int = field(default=0, init=False)  # by tasks, since then
    _judged_rows: int = field(default=-1, init=False)  # when the tree was last looked at

    def next_batch(
        self,
        before: Plan,
        committed: Newest,
        moving: Iterable[str],
        rates: Sequence[float],
        ended: bool,
        spare: float = 0.0,
    ) -> Planned:
        """The plan of the next batch.

        before: the plan of the last one; moving: the sources that have new rows; rates: rows per second of each input,
        0.0 where they are not known; ended: no more rows will come; spare: seconds that batches lately left free, for
        each second that arrivals took.
        """
        moving = frozenset(moving)
        # Without new rows there may be no batch at all, and none that another plan would pay for.
        tree, reason = self.tree(before, committed, rates) if moving else (before.tree, "")
        reasons = [f"plan {trees.render(tree, self.aliases)}: {reason}"] if tree != before.tree else []
        planned, choices = before.orders, list[orders.Choice]()
        scans, ways = before.access, list[access.Choice]()
        if tree != before.tree or self._has_news(committed):
            operators = self.counted(tree, committed)
            planned, choices = self.orders(tree, before, operators)
            if moving:
                scans, ways = self.access(tree, replace(before, orders=planned), operators, briefly=True)
        reasons += [f"probing order of {c.reason}" for c in choices if c.changed]
        reasons += [f"access to {way.reason}" for way in ways if way.changed]
        overflow, has_disk_work = self._overflow(tree, before, committed, moving, ended, spare)
        turns = self.schedule(before, rates)
        if turns.schedule != before.schedule:
            reasons.append(f"scheduling {scheduling.render(turns.schedule, self.aliases)}: {turns.reason}")
        return Planned(
            Plan(tree, planned, overflow, access=scans, schedule=turns.schedule), has_disk_work, tuple(reasons)
        )

    @property
    def aliases(self) -> list[str]:
        return [i.alias for i in self.spec.inputs]

    # --- the tree --------------------------------------------------------------------------------------------

    def tree(self, before: Plan, committed: Newest, rates: Sequence[float]) -> tuple[Tree, str]:
        """The tree of the next batch, and why it is this one."""
        if self.spec.forgetful:
            what = "windows" if self.spec.windowed else "punctuations or constraints"
            return trees.single(len(self.spec.inputs)), f"a join with {what} stores no intermediate results"
        if room_of(self.settings) is not None:
            return trees.single(len(self.spec.inputs)), "dropped rows must not stay in stored results"
        if self.settings.plan is not None:
            return trees.parse(self.settings.plan, self.spec), "option 'plan' says so"
        found = [manifest for manifest in committed if manifest is not None]
        rows = sum(sum(manifest.rows) for manifest in found)
        self._worked_ms += sum(manifest.taken.memory_to_memory_ms for manifest in found)
        if rows < LOOK_AGAIN * self._judged_rows:
            return before.tree, "the rows have not grown enough to look again"
        looking = LOOKING_SECONDS.get(len(self.spec.inputs), MOST_LOOKING_SECONDS)
        if found and self._worked_ms < 1000 * PATIENCE * looking:
            return before.tree, "the join has not worked enough for looking at trees to pay"
        statistics = self.statistics(committed, rates)
        if not any(statistics.rates):  # as in the first batch after a restart: this look does not count
            return before.tree, "no rates of arrival are known"
        self._judged_rows, self._worked_ms = rows, 0
        choice = self.choice(before, committed, statistics)
        return choice.tree, choice.reason

    def statistics(self, committed: Newest, rates: Sequence[float]) -> Statistics:
        """What is known about the inputs of the join; the user's rates count while there are no others."""
        expected_rates, given = expected_of(self.spec, self.settings.expected)
        known = list(rates) if any(rates) else expected_rates
        return of_plan(self.spec, [None if m is None else (m, self.layout(m)) for m in committed], known, given)

    def choice(self, before: Plan, committed: Newest, statistics: Statistics) -> decompose.Choice:
        current = before.tree if any(committed) else None
        room, most = self._room(committed, statistics.rows), self._most_stored()
        wanted = None if self.settings.plan is None else trees.parse(self.settings.plan, self.spec)
        given = decompose.Circumstances(HORIZON_SECONDS, current, wanted, most, room)
        return decompose.choose(self.spec, statistics, self.costs, given)

    def _most_stored(self) -> float:
        """How many intermediate rows there may be, over the rows of inputs."""
        spills = self.settings.memory_bytes is None or self.settings.overflow == "spill"
        return decompose.MOST_STORED if spills else 0.0  # more rows than fit are then an error, or are dropped

    def _room(self, committed: Newest, rows: Sequence[float]) -> decompose.Room:
        """How many rows of inputs fit into memory, judged by what those that are there take."""
        budget, found = self.settings.memory_bytes, [m for m in committed if m is not None]
        resident = sum(m.held.rows_resident for m in found)
        if budget is None or not resident or not any(rows):
            return decompose.Room()
        row_bytes = sum(m.held.memory_bytes for m in found) / resident
        return decompose.Room(ROWS_SHARE * budget / max(row_bytes, 1.0), any(m.overflowed for m in found))

    # --- probing orders --------------------------------------------------------------------------------------

    def _has_news(self, committed: Newest) -> bool:
        """Whether it is time to look at orders."""
        found = [manifest for manifest in committed if manifest is not None]
        self._arrived += sum(manifest.taken.rows for manifest in found)
        rows = sum(sum(manifest.rows) for manifest in found)
        if len(self.spec.inputs) > FEW_INPUTS and self._arrived < NEWS * rows:
            return False
        self._arrived = 0
        return True

    def counted(self, tree: Tree, committed: Newest) -> list[Counted]:
        """The operators of a tree, with what the partitions have committed of them that run it already."""
        running = [m.operators for m in committed if m is not None and m.tree == tree]
        return [Counted(p, [each[p.number] for each in running]) for p in trees.layout(self.spec, tree)]

    def orders(self, tree: Tree, before: Plan, operators: Sequence[Counted]) -> tuple[Orders, list[orders.Choice]]:
        """The probing orders of every operator of the tree, as far as anything is known, and how they came to be."""
        planned: list[tuple[orders.Targets | None, ...]] = []
        choices: list[orders.Choice] = []
        rates, given = expected_of(self.spec, self.settings.expected)
        for operator in operators:
            place = operator.place
            none: list[orders.Targets | None] = [None] * len(place.spec.inputs)
            current = before.orders[place.number] if before.tree == tree and before.orders else none
            own, made = none, list[orders.Choice]()
            if operator.figures:
                known = operator.statistics.expecting(between_members(place, given))
                own, made = orders.choose_all(known, known.rows, current)
            elif all(len(leaves) == 1 and rates[leaves[0]] for leaves in place.leaves):  # what the user expects
                own_rates = [rates[leaves[0]] for leaves in place.leaves]
                rows = inside(place.spec, [rate * HORIZON_SECONDS for rate in own_rates], own_rates)
                expected = Statistics.of(place.spec, rows, given=between_members(place, given))
                own, made = orders.choose_all(expected, rows, current)
            planned.append(tuple(own))
            choices += made
        return tuple(planned), choices

    # --- access ----------------------------------------------------------------------------------------------

    def access(
        self, tree: Tree, before: Plan, operators: Sequence[Counted], briefly: bool = False
    ) -> tuple[tuple[Access, ...], list[access.Choice]]:
        """The directions of every operator of the tree that scan, and how they came to be; orders are before.orders."""
        wanted = access.parse(self.settings.access, self.spec)
        planned: list[Access] = []
        choices: list[access.Choice] = []
        for operator in operators:
            place = operator.place
            own, made = access.forced(wanted, place), list[access.Choice]()
            if operator.figures:
                current = before.access[place.number] if before.tree == tree and before.access else ()
                of_orders = before.orders[place.number] if before.orders else ()
                active = self.settings.expiry == "active" or self.settings.overflow == "fail"
                used, rules = access.Used(of_orders, current), access.Rules(wanted, active, briefly)
                own, made = access.plan_access(operator, used, rules, self.costs)
            planned.append(own)
            choices += made
        return tuple(planned), choices

    # --- the order of arrival ----------------------------------------------------------------------------------

    def schedule(self, before: Plan, rates: Sequence[float]) -> scheduling.Choice:
        """How the inputs take turns; the user's rates count while there are no others."""
        known = rates if any(rates) else expected_of(self.spec, self.settings.expected)[0]
        return scheduling.choose(self.spec, self.settings, known, before.schedule)

    # --- memory and disk -------------------------------------------------------------------------------------

    def _overflow(
        self, tree: Tree, before: Plan, committed: Newest, moving: frozenset[str], ended: bool, spare: float
    ) -> tuple[Overflow | None, bool]:
        """How the batch keeps within its memory; None where everything is in memory and stays there."""
        settings, spec = self.settings, self.spec
        budget = settings.memory_bytes if settings.overflow == "spill" else None
        if budget is None and not any(m.spilled for m in committed if m is not None):
            return None, False
        alias_of = [spec.sources[i.source].alias for i in spec.inputs]
        arriving = frozenset(n for n, alias in enumerate(alias_of) if alias in moving)
        share = settings.disk_share
        has_time = bool(share) and SPARE_USED * spare > share
        earned = self._earned(before, committed, SPARE_USED * spare if has_time else share)
        fuel, over = settings.fuel_bytes, ended and not arriving
        decisions = self._decisions(committed, manager.Circumstances(fuel, arriving, over, earned, has_time))
        # A change of plan does all the work that there is.
        stays = [manifest is None or manifest.tree == tree for manifest in committed]
        work = [decision.work if same else () for decision, same in zip(decisions, stays, strict=True)]
        held = before.overflow is not None and bool(before.overflow.waiting)
        waiting = frozenset() if held else frozenset.intersection(*(d.waiting for d in decisions))
        active = {alias for n, alias in enumerate(alias_of) if n not in waiting}
        sources = [s.alias for s in spec.sources if s.alias in moving and s.alias not in active]
        left = int(earned - sum(d.spent for d in decisions) / len(decisions))
        memory = None if budget is None else settings.share_bytes
        planned = replace(
            Overflow.of(settings), memory_bytes=memory, work=tuple(work), waiting=tuple(sources), earned=left
        )
        return planned, any(d.work for d in decisions)

    def _decisions(self, committed: Newest, given: manager.Circumstances) -> list[manager.Decision]:
        """What each partition does on disk."""
        out = [manager.Decision()] * len(committed)
        for tree in {manifest.tree for manifest in committed if manifest is not None}:
            found = [(p, m.operators) for p, m in enumerate(committed) if m is not None and m.tree == tree]
            decisions = manager.decide(trees.layout(self.spec, tree), [operators for _, operators in found], given)
            for (partition, _), decision in zip(found, decisions, strict=True):
                out[partition] = decision
        return out

    def _earned(self, before: Plan, committed: Newest, rate: float) -> float:
        """Bytes of disk work that a partition may do besides new input: the rest of before, and new earnings."""
        found = [m for m in committed if m is not None]
        left = 0 if before.overflow is None else before.overflow.earned
        fresh = sum(manager.earnings(manifest, rate) for manifest in found) / max(len(found), 1)
        return min(left + fresh, self.settings.fuel_bytes)

    def layout(self, manifest: Manifest) -> tuple[OperatorSpec, ...]:
        """The operators of the plan that a manifest was made by."""
        return trees.layout(self.spec, manifest.tree)


def room_of(settings: Settings) -> int | None:
    """The memory of a join that drops rows when memory is full; None where it evicts them, or has no limit."""
    return settings.memory_bytes if settings.overflow in ("shed", "shrink") else None


def between_members(place: OperatorSpec, given: Mapping[Pair, float]) -> dict[Pair, float]:
    """Selectivities of pairs of inputs, as far as both are members of an operator."""
    member = {leaves[0]: m for m, leaves in enumerate(place.leaves) if len(leaves) == 1}
    return {(member[a], member[b]): s for (a, b), s in given.items() if a in member and b in member}
