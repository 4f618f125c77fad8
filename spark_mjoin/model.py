"""The vocabulary of the join, as plain frozen data.

Nothing here computes. Options become these types once (`config`, `query`), and every other layer takes them as they
are. All types can be pickled, since a `JoinSpec` travels to executors in each partition. Types that hold secrets do not
print them.

An input is a use of a source in the query; a self-join has two inputs on one source. Inputs are numbered as the query
names them, and every number called `input` is such an index.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]
Scheme = Literal["hash", "rate", "range"]  # by what rows are divided among partitions: see state/layouts.py
WHOLE = 1 << 16  # parts of an input: a fraction of it is so many of them
STAGE = "stage"  # the format of a source that is the results of an earlier stage (query/stages.py)
NO_SOURCE = 1 << 31  # an index of no source, so that whoever uses it gets an IndexError

# --- expressions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Col:
    """A column of one input, under the source's own spelling of its name."""

    input: int
    name: str


@dataclass(frozen=True)
class Lit:
    """A constant. `value` is what `pa.scalar(value, type)` takes; None is a typed NULL."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True)
class Call:
    """A function or operator, named by an entry of `mjoin.registry.FUNCTIONS`."""

    function: str
    args: tuple[Expr, ...]


@dataclass(frozen=True)
class Cast:
    arg: Expr
    type: pa.DataType


Expr = Col | Lit | Call | Cast

# --- the join --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceSpec:
    """One upstream source: `source.<alias>.*`."""

    alias: str
    format: str
    options: tuple[tuple[str, str], ...] = field(repr=False)  # without the prefix, as the user spells them, by name
    schema: pa.Schema  # canonical types (see `schema.canonical_schema`), all columns of the source


@dataclass(frozen=True)
class KeyDomain:
    """The set of values that the columns of a key class are compared in.

    kind is one of: integer, boolean, date, timestamp, timestamp_ntz, double, decimal, string, binary.
    Within a domain equality is transitive, which is what makes a class of columns one key: 'integer' compares all
    widths as 64-bit, 'decimal' compares integers and decimals exactly at `scale`, 'double' compares in floating point
    with NaN = NaN and -0.0 = 0.0, as Spark does.
    """

    kind: str
    scale: int = 0
    precision: int = 0

    @property
    def is_word(self) -> bool:
        """Whether a key fits one 64-bit word, compared exactly; else it is a byte string."""
        return self.kind not in ("string", "binary") and not (self.kind == "decimal" and self.precision > 18)


@dataclass(frozen=True)
class StoredColumn:
    """One column of an input's state.

    expr is computed over the arriving rows. With `domain` set the column is a key: its values are encoded by
    `mjoin.keys.encode` (NULL keys never reach the state) and `type` is int64 for words and binary or string otherwise.

    Its name is that of the source's column, or made up: then a column of the source may have it too (see `field`).
    """

    name: str
    expr: Expr
    type: pa.DataType
    domain: KeyDomain | None = None
    made_up: bool = False

    @property
    def field(self) -> str:
        """Its name in segments, and wherever else stored columns are found by name."""
        return f"{'made' if self.made_up else 'column'} {self.name}"


@dataclass(frozen=True)
class Window:
    """How far back the rows of an input count, seen from the youngest row of a combination (mjoin/windows.py)."""

    size: int  # microseconds of event time, or rows
    in_rows: bool
    position: int  # ordinal in `InputSpec.stored`: the event time, or the number of the row in its input


@dataclass(frozen=True)
class Pattern:
    """How punctuations speak about one key class: one value, a list, a range, or, where all are NULL, any value."""

    key_class: int
    ordinal: int  # in `InputSpec.stored`: the key
    values: str | None = None  # column with a list
    low: str | None = None  # columns with the ends of a range, inclusive; NULL is open
    high: str | None = None


@dataclass(frozen=True)
class Punctuations:
    """Which rows of an input are no data but say that rows with some keys do not come any more."""

    predicate: Expr
    patterns: tuple[Pattern, ...]
    others: tuple[str, ...] = ()  # columns of keys that do not tell their values apart: one that is set says nothing


@dataclass(frozen=True)
class Joined:
    """What is known of rows that are the results of another join of the plan."""

    schema: pa.Schema  # of the columns that later expressions use
    conditions: tuple[str, ...]  # that they have passed, as SQL over the inputs of the whole join


@dataclass(frozen=True)
class InputSpec:
    alias: str  # the name in the query
    source: int  # index into JoinSpec.sources; NO_SOURCE for results of another join
    columns: tuple[str, ...]  # what is read from the source
    filter: Expr | None  # WHERE conjuncts over this input alone, and equalities implied inside it
    stored: tuple[StoredColumn, ...]
    keys: tuple[tuple[int, int], ...]  # (key class, ordinal in `stored`), sorted by class
    payload: tuple[tuple[str, int], ...]  # (column, ordinal in `stored`): where later expressions find a column
    joined: Joined | None = None  # set where its rows are the results of another join of the plan
    window: Window | None = None  # None: its rows count for ever
    time: int | None = None  # ordinal in `stored` of the event time, where some input has a window in time
    lateness: int = 0  # microseconds that a row may be behind the newest of its input
    number: int | None = None  # ordinal in `stored` of the row's number, where some input has a window in rows
    punctuations: Punctuations | None = None
    unique: tuple[int, ...] = ()  # key classes whose values, taken together, never come twice
    clustered: tuple[int, ...] = ()  # key classes whose values, taken together, come one right after the other
    ordered: tuple[int, bool] | None = None  # (key class, descending)

    @property
    def promising(self) -> bool:
        """Whether the input makes key promises."""
        return bool(self.punctuations or self.unique or self.clustered or self.ordered)

    def promises_by_order(self, verify: str) -> bool:
        """Whether what it promises shows only in all its rows, one after the other: not in those of one task."""
        return bool(self.clustered) or self.ordered is not None or (self.promising and verify != "off")


@dataclass(frozen=True)
class Residual:
    """A predicate over two or more inputs that is no equality of keys; applied as soon as all of them are bound."""

    expr: Expr
    inputs: frozenset[int]


MARK, LOW, HIGH = "punctuation", "punctuationLow", "punctuationHigh"  # columns that tell punctuations from data


@dataclass(frozen=True)
class OutputColumn:
    name: str
    expr: Expr


@dataclass(frozen=True)
class JoinSpec:
    """The meaning of the join: what `query` or `on` says, resolved against the sources' schemas."""

    sources: tuple[SourceSpec, ...]
    inputs: tuple[InputSpec, ...]
    classes: tuple[KeyDomain, ...]  # key class -> its domain
    residuals: tuple[Residual, ...]
    output: tuple[OutputColumn, ...]
    schema: pa.Schema  # of the output, canonical
    passes_on: tuple[tuple[int, int], ...] = ()  # below another join, instead of output: (input, stored column)
    split_by: int | None = None  # of one join of a plan: the key class by which the whole is split over partitions
    gives_punctuations: bool = False  # the last columns of the output tell punctuations from data
    stages: str | None = None  # where it is one of several stages: all of them, as option `plan` has it

    def column_type(self, column: Col) -> pa.DataType:
        """The type that a column of an input has in expressions."""
        of = self.inputs[column.input]
        return (of.joined or self.sources[of.source]).schema.field(column.name).type

    def classes_of(self, input: int) -> frozenset[int]:
        return frozenset(c for c, _ in self.inputs[input].keys)

    @property
    def windowed(self) -> bool:
        """Whether some input has a window."""
        return any(input.window is not None for input in self.inputs)

    def is_stage(self, input: int) -> bool:
        """Whether the rows of an input are the results of an earlier stage."""
        source = self.inputs[input].source
        return source != NO_SOURCE and self.sources[source].format == STAGE

    @property
    def counts_rows(self) -> bool:
        """Whether some input has a window in rows, so that results depend on the order of arrival."""
        return any(input.window is not None and input.window.in_rows for input in self.inputs)

    @property
    def promising(self) -> bool:
        """Whether some input makes key promises, by which the join drops rows of others."""
        return any(input.promising for input in self.inputs)

    @property
    def forgetful(self) -> bool:
        """Whether the join may drop rows."""
        return self.windowed or self.promising

    @property
    def ranged(self) -> frozenset[int]:
        """The key classes of which promises may have ranges."""
        ordered = {i.ordered[0] for i in self.inputs if i.ordered is not None}
        said = [p for i in self.inputs if i.punctuations is not None for p in i.punctuations.patterns]
        return frozenset(ordered | {p.key_class for p in said if p.low is not None})

    def key_column(self, key_class: int) -> str | None:
        """The first output column that is the key of a class, as it is."""
        for output in self.output:
            if isinstance(output.expr, Col):
                input = self.inputs[output.expr.input]
                if any(c == key_class and input.stored[o].expr == output.expr for c, o in input.keys):
                    return output.name
        return None

    @property
    def star_class(self) -> int | None:
        """The key class that every input has, by which the join can be split over partitions; None if there is none.

        A join of a plan may have several such classes, and must be split as all others of the plan are.
        """
        if self.split_by is not None:
            return self.split_by
        common = frozenset.intersection(*(self.classes_of(i) for i in range(len(self.inputs))))
        return min(common) if common else None


CHUNK_ROWS = 1 << 16  # rows that probe together, and pairs that one probe may give at a time


@dataclass(frozen=True)
class ProbeStep:
    """One probe of a probing order: bind `target` through the key classes it shares with what is bound already."""

    target: int
    classes: tuple[int, ...]
    suppliers: tuple[int, ...]  # for each class, a bound input that has its value
    residuals: tuple[int, ...]  # predicates (indexes into JoinSpec.residuals) that can be decided after this step
    scan: bool = False  # a small index of the probing rows is made, and the target's rows are looked up in it


@dataclass(frozen=True)
class ProbeOrder:
    origin: int  # the input whose arrivals probe
    steps: tuple[ProbeStep, ...]


# --- the plan --------------------------------------------------------------------------------------------------

Tree = int | tuple["Tree", ...]
"""A plan: a number is an input of the join, a tuple an MJoin over its members. Operators are numbered in preorder."""

Access = tuple[tuple[int, int], ...]
"""Of one operator, the directions (arriving member, probed member) that scan instead of looking up, sorted."""


@dataclass(frozen=True)
class OperatorSpec:
    """One MJoin of a plan: what it joins, and where its results go."""

    number: int  # in preorder: the root is 0
    spec: JoinSpec  # over its members, which are inputs of the whole join or results of other operators
    leaves: tuple[tuple[int, ...], ...]  # per member, the inputs of the whole join below it
    parent: tuple[int, int] | None  # the operator that takes its results, and as which member; None for the root

    @property
    def inputs(self) -> frozenset[int]:
        """All inputs of the whole join below it."""
        return frozenset(i for leaves in self.leaves for i in leaves)


# --- execution -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """What the user expects of the inputs, by the aliases of sources. The planner uses it before there are counts."""

    rates: tuple[tuple[str, float], ...] = ()  # rows per second
    selectivities: tuple[tuple[str, str, float], ...] = ()  # of two sources, in the order of their names
    hosts: tuple[tuple[str, tuple[str, ...]], ...] = ()  # where the rows of sources are


@dataclass(frozen=True)
class Settings:
    """How the join runs. Nothing but `overflow` changes the result, and only with 'shed' and 'shrink'."""

    partitions: int = 1
    memory_bytes: int | None = None  # budget of the state in memory over all partitions
    state_location: str | None = field(default=None, repr=False)
    overflow: str = "spill"  # what happens when the budget is reached
    flush: str = "adaptive"  # which rows are evicted then
    blocking_rows: int = 10_000  # a batch with fewer rows has time for disk work
    fuel_bytes: int = 256 << 20  # how much disk work one batch does in a partition
    disk_share: float = 0.05  # bytes of disk work for each that arrives, where batches leave no time for more
    compression: str | None = None  # of segments
    expiry: str = "lazy"  # when rows outside their window are dropped: as soon as possible, or many together
    idle_seconds: float | None = None  # how long a source without new rows holds the others back
    plan: str | None = None  # the tree of joins that the user wants
    goal: str = "rate"  # what to optimise: early results, or little memory
    purge_every: int = 100  # punctuations after which useless rows are dropped; 1: at once
    verify: str = "off"  # what happens when a key promise is broken: nothing, it is counted, or it is an error
    access: str | None = None  # how probes find their rows
    max_delay: float | None = None  # the delay limit: seconds that a batch may take
    min_recall: float | None = None  # the fraction of the results that shedding keeps
    stream_scheduling: str = "auto"  # how the inputs of a batch take turns
    tuple_scheduling: str = "auto"  # in which order the rows of a turn come
    quota_rows: int | None = None  # of a turn; None: chosen by the planner
    expected: Expected = Expected()
    shim: bool = False  # whether the jar is there: it asks for metrics when a batch is done, and takes tasks' reports
    shares: tuple[tuple[int, int], ...] = ()  # of key classes, where partitions are cells of a cube (state/layouts.py)
    partitioning: Scheme = "hash"  # by what rows are divided among partitions
    splits_hot_keys: bool = True  # where one key has too many rows for a partition

    @property
    def share_bytes(self) -> int | None:
        """The memory of each partition."""
        return None if self.memory_bytes is None else self.memory_bytes // self.partitions


SLOTS = 4096  # that keys hash to; a partition owns some (state/routing.py)

Position = dict[str, Any]  # how far a source was read: JSON, opaque to all but the source
Range = dict[str, Any]  # rows between two positions: JSON, read by `Source.read`


@dataclass(frozen=True)
class DiskWork:
    """Disk work on some buckets: a pass over all inputs, or a visit of the disk part of one."""

    buckets: tuple[int, ...]  # of the main class for a pass, of the input's own for a visit
    visited: int | None = None  # the input whose disk part is joined with the others' memory; None: a pass
    urgent: bool = False  # to be done even when inputs do not block
    operator: int = 0  # of the plan


LAZY = 3  # rows in memory for each that has arrived, when it is time to look for expired ones


@dataclass(frozen=True)
class Expiry:
    """What is late in a batch and what can be dropped before it."""

    watermarks: tuple[int | None, ...]  # per input, the event time below which a row is late; None: not known yet
    active: bool = False  # rows are dropped as soon as possible, not many together


PROMISES_SHARE = 4  # of `memory`, a quarter at the most is for key promises


@dataclass(frozen=True)
class Purging:
    """When useless rows are dropped, whether key promises are checked, and how many are remembered."""

    every: int  # punctuations
    verify: str = "off"
    room_bytes: int | None = None  # of a partition's memory, for promises; None: no limit


@dataclass(frozen=True)
class Room:
    """The memory of a join that drops rows when memory is full, and evicts none."""

    memory_bytes: int  # of each partition
    parts: tuple[float, ...] | None  # for the rows of each input; None: rows that come when it is full only probe


IN_STEP = "in step"  # rows of a batch count as if they came one by one, in proportion to what each input has


@dataclass(frozen=True)
class Schedule:
    """In which order a batch takes the rows of its inputs (engine/schedule.py)."""

    streams: str = "sequential"  # or "priority", "random", IN_STEP
    order: tuple[int, ...] = ()  # the inputs, that of the highest priority first; empty: as the query names them
    quotas: tuple[int, ...] = ()  # rows of a turn of each input; empty: all that it has
    tuples: str = "sequential"  # of the rows of a turn; or "value": those first that another input waits for
