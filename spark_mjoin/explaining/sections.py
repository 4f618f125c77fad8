"""The sections of an explanation: each has one decision, and the figures behind it."""

from __future__ import annotations

from collections.abc import Sequence

from spark_mjoin import flush
from spark_mjoin.driver import access, calibrate, decompose, scheduling
from spark_mjoin.driver.admission import FREE_SECONDS
from spark_mjoin.driver.choice import HORIZON_SECONDS, room_of
from spark_mjoin.driver.costs import Costs
from spark_mjoin.engine.overflow import FLUSH_TO, capacity
from spark_mjoin.errors import listed
from spark_mjoin.explaining import drawing, partitions, sizes
from spark_mjoin.explaining.drawing import INDENT, count, share, size
from spark_mjoin.explaining.expected import ASSUMED, Expectation
from spark_mjoin.mjoin import orders
from spark_mjoin.mjoin.statistics import Pair, Statistics
from spark_mjoin.model import PROMISES_SHARE, JoinSpec, OperatorSpec, Settings, Tree
from spark_mjoin.plan import Overflow
from spark_mjoin.query import tree as trees
from spark_mjoin.state.buckets import bucket_classes

MOST_PAIRS = 15  # of inputs, that are all shown


# --- before it runs ------------------------------------------------------------------------------------------------


def graph(spec: JoinSpec) -> list[str]:
    title = f"JOIN GRAPH: {len(spec.inputs)} inputs, {_plural(len(spec.classes), 'key')}"
    return drawing.titled(title, drawing.graph(spec), drawing.keys(spec), drawing.conditions(spec))


def foreseen(expected: Expectation) -> list[str]:
    """All that is expected of a join."""
    return [
        *inputs(expected),
        *windows(expected),
        *promises(expected),
        *plan(expected),
        *probing(expected),
        *access_by_option(expected),
        *turns(expected),
        *future(expected),
    ]


def windows(expected: Expectation) -> list[str]:
    """How long the rows of each input count, and how many that is; nothing where no input has a window."""
    if not expected.spec.windowed:
        return []
    rows = []
    for n, input in enumerate(expected.spec.inputs):
        window, at = input.window, "" if input.time is None else input.stored[input.time].name
        late = "" if input.time is None else drawing.seconds(input.lateness / 1e6)
        known = expected.rows[n] and (window is None or window.in_rows or expected.paces[n])
        figures = [count(of[n]) if known else "?" for of in (expected.inside, expected.held)]
        if window is not None and window.in_rows and not known:
            figures = [f"up to {window.size:,}", "?"]
        long = "none: its rows stay"
        if window is not None:
            long = f"{window.size:,} rows" if window.in_rows else drawing.seconds(window.size / 1e6)
        rows.append([input.alias, long, at, late, *figures])
    table = drawing.table(["input", "window", "event time", "late after", "rows inside", "rows held"], rows)
    when = (
        f"after {drawing.seconds(expected.seconds)}" if any(r.value for r in expected.knowledge.rates) else "at the end"
    )
    notes = [
        f"{INDENT}inside: that a new row can meet, {when}; held: in the state between micro-batches, with those that",
        f"{INDENT}rows which are not late may still meet, and up to half as many more where 'expiry' is lazy",
    ]
    return drawing.titled("WINDOWS", table, notes)


def promises(expected: Expectation) -> list[str]:
    """The key promises of each input, and when rows are dropped because of them; nothing where there are none."""
    spec, settings = expected.spec, expected.settings
    if not spec.promising:
        return []
    rows = []
    for input in spec.inputs:
        names = {c: input.stored[ordinal].name for c, ordinal in input.keys}
        made = [
            f"{what} {', '.join(names[c] for c in classes)}"
            for what, classes in (("unique", input.unique), ("clustered", input.clustered))
            if classes
        ]
        if input.ordered is not None:
            made.append(f"ordered {names[input.ordered[0]]}{' desc' if input.ordered[1] else ''}")
        if input.punctuations is not None:
            about = [names[p.key_class] for p in input.punctuations.patterns]
            made.append(f"punctuations about {listed(about)}")
        rows.append([input.alias, "; ".join(made) or "nothing: the others keep rows for it"])
    when = "with every batch" if settings.purge_every == 1 else f"after {settings.purge_every} punctuations"
    notes = [f"{INDENT}useless rows are dropped {when}; RATES AND STATE below counts all rows, as if none were"]
    if settings.memory_bytes is not None:
        room = size(settings.memory_bytes / PROMISES_SHARE)
        notes.append(f"{INDENT}key promises may take {room} of 'memory'; beyond that the oldest are forgotten")
    if spec.gives_punctuations:
        notes.append(f"{INDENT}punctuations are emitted")
    return drawing.titled("PROMISES", drawing.table(["input", "promises"], rows), notes)


def inputs(expected: Expectation) -> list[str]:
    """What the planner expects of every input and of every pair."""
    spec, known = expected.spec, expected.knowledge
    widths = known.widths
    rows = []
    for n, input in enumerate(spec.inputs):
        rate = known.rates[n]
        unknown = sizes.assumed(input, widths)
        wide = f"{size(sizes.row_bytes(input, widths))} a row"
        remark = f"{ASSUMED}: {sizes.ASSUMED_BYTES:.0f} bytes in {', '.join(unknown)}" if unknown else "by its types"
        rows.append([input.alias, count(rate.value) if rate.value else "?", rate.origin, wide, remark])
    table = drawing.table(["input", "rows/s", "from", "stored", "from"], rows)
    return drawing.titled("INPUTS", table, _pairs(expected))


def _pairs(expected: Expectation) -> list[str]:
    spec = expected.spec
    every = pairs_of(spec)
    shown = every if len(every) <= MOST_PAIRS else [p for p in every if expected.selectivity(p).origin != ASSUMED]
    rows = []
    for a, b in shown:
        figure, stats = expected.selectivity((a, b)), expected.statistics
        fan_outs = [figure.value * stats.rows[i] if expected.is_known else None for i in (b, a)]
        rows.append([pair_name(spec, (a, b)), share(figure.value) if figure.origin != ASSUMED or expected.is_known
                     else "?", figure.origin if figure.origin != ASSUMED else f"{ASSUMED}: keys are unique",
                     *("?" if f is None else count(f) for f in fan_outs)])  # fmt: skip
    lines = drawing.table(["pair a, b", "selectivity", "from", "b per a", "a per b"], rows)
    if len(shown) < len(every):
        lines.append(f"{INDENT}{len(every) - len(shown)} other pairs: {ASSUMED}: keys are unique")
    return lines


def plan(expected: Expectation) -> list[str]:
    spec, choice = expected.spec, expected.choice
    head = [f"{INDENT}{trees.render(choice.tree, names_of(spec))}", f"{INDENT}because: {choice.reason}"]
    return drawing.titled("PLAN", head, tree_lines(spec, choice.tree), candidates(spec, choice, choice.tree))


def tree_lines(spec: JoinSpec, tree: Tree) -> list[str]:
    """The operators of a plan, those below another indented; nothing where there is one alone."""
    places = trees.layout(spec, tree)
    if len(places) < 2:
        return []
    depth = [0] * len(places)
    lines = []
    for place in places:
        depth[place.number] = 0 if place.parent is None else depth[place.parent[0]] + 1
        members = ", ".join(i.alias for i in place.spec.inputs)
        lines.append(f"{INDENT}{INDENT * depth[place.number]}MJoin {place.number} of {members}")
    return lines


def candidates(spec: JoinSpec, choice: decompose.Choice, running: Tree) -> list[str]:
    """The trees that were compared with each other, with a mark at the one that runs."""
    if not choice.candidates:
        return []
    aliases = names_of(spec)
    rows = [
        [
            trees.render(c.tree, aliases) + (" *" if c.tree == running else ""),
            f"{c.seconds:.3g} s",
            count(c.stored_rows),
            f"{c.change_seconds:.3g} s",
        ]
        for c in choice.candidates
    ]
    exhaustive = len(aliases) <= decompose.EXACT
    return [
        f"{INDENT}considered, over {drawing.seconds(HORIZON_SECONDS)}"
        + ("" if exhaustive else f" (by single changes: more than {decompose.EXACT} inputs)"),
        *drawing.table(["plan", "work", "intermediate rows", "to change"], rows),
        f"{INDENT}* this one; another has to save more than {decompose.NEAR:.0%} of the work, and to store no more than"
        f" {decompose.MOST_STORED:g} times the inputs' rows",
        f"{INDENT}  (less where memory is short)",
    ]


def probing(expected: Expectation) -> list[str]:
    places = len(expected.operators)
    parts = [orders_of(o.place, o.statistics, o.orders, places) for o in expected.operators]
    return drawing.titled("PROBING ORDERS", *parts, [threshold(expected.spec)])


def access_by_option(expected: Expectation) -> list[str]:
    """How probes find their rows, as far as that is known beforehand; nothing without windows or the option."""
    spec, text = expected.spec, expected.settings.access
    if text is None and not spec.windowed:
        return []
    wanted, names = access.parse(text, spec), names_of(spec)
    place = trees.layout(spec, trees.single(len(names)))[0]
    rows = [
        [names[o], names[t], wanted.of(place, o, t)] for o in range(len(names)) for t in range(len(names)) if o != t
    ]
    lines = drawing.table(["rows of", "find those of", "by"], rows)
    return drawing.titled("ACCESS", lines, [access_rule(expected.costs)])


def access_rule(costs: Costs) -> str:
    into, over = (f"{seconds * 1e9:.3g} ns" for seconds in (costs.index, costs.scan))
    return (
        f"{INDENT}auto: by an index, unless scans cost {access.LEAST_GAIN:.0%} less than keeping it, from counts of"
        f" probes.\n{INDENT}A row that goes into an index costs {into}, one that a scan goes over {over}"
    )


def turns(expected: Expectation, runs: str | None = None) -> list[str]:
    """In which order a batch takes its rows; runs: the order of a running query."""
    choice = expected.turns
    chosen = scheduling.render(choice.schedule, names_of(expected.spec))
    lines = [f"{INDENT}{chosen}"]
    if runs is not None:
        lines = [f"{INDENT}runs: {runs}", f"{INDENT}would be chosen now: {chosen}"]
    lines.append(f"{INDENT}because: {choice.reason}")
    if choice.schedule.streams != "sequential":
        lines.append(f"{INDENT}behind each input: the rows of a turn")
    if choice.schedule.tuples == "value":
        lines.append(f"{INDENT}within a turn: rows first that another input waits for")
    return drawing.titled("SCHEDULING", lines)


def threshold(spec: JoinSpec) -> str:
    how = "every order is tried" if len(spec.inputs) <= orders.EXACT_INPUTS else "the next input is that of least cost"
    return (
        f"{INDENT}cost: rows that probe or match, for each arriving row; {how}.\n{INDENT}An order changes after"
        f" {orders.LEAST_PROBES:.0f} probes, for a gain of {orders.LEAST_GAIN:.0%}"
    )


def orders_of(
    place: OperatorSpec, statistics: Statistics, choices: Sequence[orders.Choice], operators: int
) -> list[str]:
    """The orders of one of some operators, with the keys they use, and fan-outs where there are rows."""
    spec = place.spec
    lines = [f"{INDENT}MJoin {place.number}"] if operators > 1 else []
    for origin, choice in enumerate(choices):
        order = orders.order_of(spec, origin, choice.order)
        lines.append(f"{INDENT}{orders.describe(spec, order)}")
        known = all(statistics.rows)
        bound, steps = frozenset((origin,)), []
        for step in order.steps:
            by = "+".join(drawing.key_name(c) for c in step.classes)
            fan_out = f" {count(statistics.fan_out(origin, bound, step.target))}" if known else ""
            steps.append(f"{spec.inputs[step.target].alias} by {by}{fan_out}")
            bound |= {step.target}
        what = "matches per row: " if known else ""
        lines.append(f"{INDENT * 3}{what}{', '.join(steps)}")
        cost = f"; cost {count(orders.cost(statistics, origin, choice.order))}" if known else ""
        lines.append(f"{INDENT * 3}{choice.reason.removeprefix(f'{spec.inputs[origin].alias}: ')}{cost}")
    return lines


def future(expected: Expectation) -> list[str]:
    """Rates and the state, after some time, or of what is there now where rates are not known."""
    unknown = (
        f"{INDENT}rates are not known: set 'source.<alias>.expectedRowsPerSecond', or let spark_mjoin.advise(options)"
        " sample the sources"
    )
    if not expected.is_known:
        return drawing.titled("RATES AND STATE", [unknown])
    if not any(figure.value for figure in expected.knowledge.rates):
        given = f"{INDENT}out: {count(expected.results)} results in all"
        work = f"{INDENT}work: {expected.work_in_all:.3g} s of one core for joining, without reading and writing"
        now = [f"{INDENT}rates are not known: set 'source.<alias>.expectedRowsPerSecond'", given, work]
        return drawing.titled("RATES AND STATE, of what is there now", now, state_table(expected), fits(expected))
    title = f"RATES AND STATE, after {drawing.seconds(expected.seconds)}"
    return drawing.titled(title, rates(expected), state_table(expected), fits(expected))


def rates(expected: Expectation) -> list[str]:
    known = zip(expected.spec.inputs, expected.knowledge.rates, strict=True)
    missing = [input.alias for input, figure in known if not figure.value]
    busy = expected.work_seconds
    late = "; more than the partitions can do" if busy > expected.settings.partitions else ""
    return [
        f"{INDENT}in: {count(expected.input_rate)} rows/s" + (f"; not known of {listed(missing)}" if missing else ""),
        f"{INDENT}out: {count(expected.output_rate)} rows/s; {count(expected.results)} results by then",
        f"{INDENT}work: {busy:.3%} of one core for joining, without reading and writing{late}",
    ]


def state_table(expected: Expectation) -> list[str]:
    rows = [
        [
            member.name,
            "intermediate" if member.joined else "input",
            count(member.rows),
            size(member.row_bytes),
            size(member.state_bytes),
        ]
        for operator in expected.operators
        for member in operator.members
    ]
    total = sum(m.rows for o in expected.operators for m in o.members)
    rows.append(["all", "", count(total), "", size(expected.state_bytes)])
    return drawing.table(["table", "", "rows", "a row", "with indexes"], rows)


def fits(expected: Expectation) -> list[str]:
    """The state against the budget."""
    budget = expected.settings.memory_bytes
    if budget is None:
        return [f"{INDENT}no limit: option 'memory' is not set"]
    room = float(room_of(expected.settings) or expected.settings.partitions * capacity(Overflow.of(expected.settings)))
    if expected.state_bytes <= room:
        return [f"{INDENT}fits: {size(expected.state_bytes)} of the {size(room)} that 'memory' = {size(budget)} has for"
                " rows"]  # fmt: skip
    part = room / expected.state_bytes
    return [f"{INDENT}does not fit: {size(room)} of 'memory' = {size(budget)} are for rows, which is {part:.0%} of it"]


# --- partitions, memory, sources of figures ------------------------------------------------------------------------


def partitioning(spec: JoinSpec, settings: Settings, requested: int) -> list[str]:
    star = spec.star_class
    if star is None:
        ignored = f" ('partitions' = {requested} has no effect)" if requested > 1 else ""
        lines = [f"{INDENT}one partition: no key is common to all inputs{ignored}"]
    else:
        lines = [
            f"{INDENT}{_plural(settings.partitions, 'partition')}, by the {settings.partitioning} of"
            f" {drawing.key_name(star)}, which all inputs have"
        ]
        if settings.partitions == 1:
            lines[0] += "; 'partitions' can be set higher, at any restart"
        lines += partitions.foreseen(spec, settings)
    if settings.partitions > 1 and settings.memory_bytes is not None:
        lines.append(f"{INDENT}each has {size(settings.memory_bytes / settings.partitions)} of 'memory'")
    return drawing.titled("PARTITIONING", lines)


def shedding(spec: JoinSpec, settings: Settings) -> list[str]:
    """What is shed or dropped under overload; nothing where nothing is."""
    if settings.overflow not in ("shed", "shrink"):
        return []
    lines = []
    if settings.max_delay is not None:
        lines.append(f"{INDENT}input that would make a batch take longer than {drawing.seconds(settings.max_delay)}")
    elif settings.overflow == "shed":
        lines.append(
            f"{INDENT}input that takes longer than it took to arrive, once a batch takes"
            f" {drawing.seconds(FREE_SECONDS)}: equal shares of the inputs stay"
        )
    if settings.min_recall is not None:
        lines.append(f"{INDENT}never so much that less than {settings.min_recall:.0%} of the results stay")
    if settings.memory_bytes is not None and all(i.window is not None for i in spec.inputs):
        lines.append(
            f"{INDENT}the oldest rows, when memory of {size(settings.memory_bytes)} is full: windows get shorter, last"
            " those that give the most results"
        )
    elif settings.memory_bytes is not None:
        lines.append(f"{INDENT}rows that come when memory of {size(settings.memory_bytes)} is full: they are not kept")
    return drawing.titled("GIVEN UP UNDER OVERLOAD", lines)


def _stars(spec: JoinSpec) -> list[str]:
    """The inputs that are flushed together, and by which key."""
    classes = bucket_classes(spec)
    members = {c: [i.alias for i, own in zip(spec.inputs, classes, strict=True) if own == c] for c in classes}
    return [f"({' '.join(aliases)}) by {drawing.key_name(c)}" for c, aliases in members.items()]


def policies(spec: JoinSpec, settings: Settings) -> list[str]:
    if settings.overflow in ("shed", "shrink"):
        return []
    lines = [f"{INDENT}apply: {', '.join(flush.REGISTRY)}"]
    if spec.star_class is None:
        lines.append(f"{INDENT}coordinated takes the same bucket of {', '.join(_stars(spec))}")
    if settings.memory_bytes is None:
        lines.append(f"{INDENT}in force: none, since 'memory' is not set; it would be {settings.flush}")
    elif settings.overflow == "fail":
        lines.append(
            f"{INDENT}in force: none, since 'overflow' is fail: the query ends at {size(settings.memory_bytes)}"
        )
    else:
        room = capacity(Overflow.of(settings))
        each = " in each partition" if settings.partitions > 1 else ""
        lines.append(
            f"{INDENT}in force: {settings.flush}, when rows take more than {size(room)}{each}; a flush leaves"
            f" {size(room * FLUSH_TO)}"
        )
        lines.append(
            f"{INDENT}disk work in batches of less than {settings.blocking_rows:,} rows, up to"
            f" {size(settings.fuel_bytes)} a batch"
        )
    return drawing.titled("FLUSH POLICIES", lines)


def legend(costs: Costs) -> list[str]:
    measured = costs is not calibrate.DEFAULTS
    origin = "measured on this machine" if measured else "defaults; `python -m spark_mjoin calibrate` measures them"
    each = ", ".join(f"{name} {getattr(costs, name) * 1e9:.3g}" for name in ("hash", "move", "compare", "gather"))
    return drawing.titled(
        "WHERE FIGURES ARE FROM",
        [
            f"{INDENT}given: by options 'source.<alias>.expectedRowsPerSecond' and 'expectedSelectivity'",
            f"{INDENT}measured: counted by the query; sampled: from the first rows of the sources",
            f"{INDENT}assumed: keys are unique in the larger input, {sizes.ASSUMED_BYTES:.0f} bytes for a string",
            f"{INDENT}costs in ns: {each} ({origin})",
        ],
    )


# --- helpers ---------------------------------------------------------------------------------------------------------


def pairs_of(spec: JoinSpec) -> list[Pair]:
    """The pairs of inputs that share a key."""
    n = len(spec.inputs)
    return [(a, b) for a in range(n) for b in range(a + 1, n) if spec.classes_of(a) & spec.classes_of(b)]


def pair_name(spec: JoinSpec, pair: Pair) -> str:
    shared = sorted(spec.classes_of(pair[0]) & spec.classes_of(pair[1]))
    names = "+".join(map(drawing.key_name, shared))
    return f"{spec.inputs[pair[0]].alias}, {spec.inputs[pair[1]].alias} by {names}"


def names_of(spec: JoinSpec) -> list[str]:
    return [i.alias for i in spec.inputs]


def _plural(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
