"""A join of DataFrames as Spark sees it: what it evaluates before, what it moves, and what it evaluates after.

    df.alias("o").where("o.amount > 0").select(id, at, lower(o.mail))     ── filters and columns reach the source
      ─> parcels (engine.exchange)                                       ── one row for many
      ─> unionAll, repartitionById(n, target)                            ── the shuffle
      ─> the join: columns `o.id`, `o.at`, `p.amount` …                  ── only those that are used after it
      ─> Spark's joins with tables, if there are any beside streams      ── `doors.tables`
      ─> struct o, struct p                                              ── so that the query's own text finds them
      ─> where("o.at < p.at").select("o.id", "upper(p.name) AS n")

Making structs and taking them apart costs nothing: Spark's optimizer takes both away.

Not covered: parcels, shuffles and what runs in Spark's workers (`doors.stages`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    GeographyType,
    GeometryType,
    MapType,
    StructType,
    UserDefinedType,
    VariantType,
)

from spark_mjoin.config import Options, SourceOptions
from spark_mjoin.doors.stages import StagedJoin, expected_of_inputs
from spark_mjoin.doors.tables import Table, column, with_tables
from spark_mjoin.errors import OptionError, QueryError
from spark_mjoin.model import Call, Col, Expr, JoinSpec, OutputColumn, Settings
from spark_mjoin.query.beside import Attached, Parted, part
from spark_mjoin.query.division import DividedInput, Division, divide, divide_star
from spark_mjoin.query.graph import spec_of
from spark_mjoin.query.sql import Query
from spark_mjoin.schema import canonical_schema

log = logging.getLogger(__name__)

MARK = "is punctuation"  # a column that inputs with punctuations get


@dataclass(frozen=True)
class JoinedFrames:
    """A join of DataFrames, checked and ready to be built."""

    division: Division  # of the whole query
    prepared: tuple[DataFrame, ...]  # of each input but tables beside streams, what the join needs of it
    tables: tuple[Table, ...]
    engine: StagedJoin | None  # what the engine joins; None where there is but one stream beside tables

    @staticmethod
    def of(frames: Mapping[str, DataFrame], given: Mapping[str, str], tables: Collection[str]) -> JoinedFrames:
        """frames: by alias; given: the options of the join, as the format has them; tables: those beside streams."""
        options = Options.parse(given)
        described = {source.alias: source for source in options.sources}
        aliases = sorted(frames)
        columns = [frames[alias].columns for alias in aliases]
        if options.query is not None:
            division = divide(options.query, aliases, columns)
        else:
            division = divide_star(options.on, aliases, columns)
        used = {input.source for input in division.inputs}
        for idle in (alias for number, alias in enumerate(aliases) if number not in used):
            raise OptionError(f"input '{idle}' is not in the query: join it, or leave it out")
        inputs = []
        for divided in division.inputs:
            alias = aliases[divided.source]
            inputs.append(_Input(divided, described.get(alias, SourceOptions(alias, "table", ())), frames[alias]))
        attached = [n for n, divided in enumerate(division.inputs) if aliases[divided.source] in tables]
        if not attached:
            engine = _of_engine(division, inputs, (), options)
            return JoinedFrames(division, engine.inputs, (), engine)
        parted = part(division, _equalities(division, inputs), attached)
        division = _with_keys(division, inputs, parted)
        inputs = [replace(input, divided=d) for input, d in zip(inputs, division.inputs, strict=True)]
        found = tuple(_table(inputs, each) for each in parted.tables)
        streams = [inputs[n] for n in parted.streams]
        if len(streams) == 1:
            return JoinedFrames(division, (_flat(streams[0]),), found, None)
        engine = _of_engine(parted.of_streams(division), streams, parted.implied, options)
        return JoinedFrames(division, engine.inputs, found, engine)

    def dataframe(self) -> DataFrame:
        return self._after(self.prepared[0] if self.engine is None else self.engine.dataframe())

    def _after(self, joined: DataFrame) -> DataFrame:
        joined = with_tables(joined, self.tables)
        structs = [
            F.struct(*[column(_joined_name(i.alias, c)).alias(c) for c in i.payload]).alias(i.alias)
            for i in self.division.inputs
            if i.payload
        ]
        result = joined.select(*structs) if structs else joined
        for condition in self.division.conditions:
            result = result.where(F.expr(condition))
        return result.select(*[F.expr(text).alias(name) for name, text in self.division.output])


@dataclass(frozen=True)
class _Input:
    """One input before the join."""

    divided: DividedInput
    options: SourceOptions
    frame: DataFrame

    @property
    def keys(self) -> list[str]:
        """The names of the columns that have the keys."""
        names, taken = [], {name.lower() for name in self.frame.columns}
        for key in self.divided.keys:
            name = key.column
            if name is None:
                name = key.text
                while name.lower() in taken:
                    name += "'"
                taken.add(name.lower())
            names.append(name)
        return names

    def prepared(self) -> DataFrame:
        """What the join needs of the input: its rows after the filters, with keys, event time and payload."""
        promised = self.options.promised
        frame = self.frame
        if promised.punctuation is not None:
            marked = F.coalesce(F.expr(promised.punctuation), F.lit(False))
            frame = frame.alias(self.options.alias).select("*", marked.alias(MARK))
        frame = frame.alias(self.divided.alias)
        for text in self.divided.filters:
            passes = F.expr(text)
            frame = frame.where(passes if promised.punctuation is None else passes | column(MARK))
        chosen = [column(name) for name in self.frame.columns if name in self._needed()]
        made = [
            F.expr(key.text).alias(name)
            for key, name in zip(self.divided.keys, self.keys, strict=True)
            if key.column is None
        ]
        return frame.select(*chosen, *made, *([column(MARK)] if promised.punctuation is not None else []))

    def _needed(self) -> set[str]:
        """The columns of the input that the join needs as they are."""
        if self.options.promised.punctuation is not None:
            return set(self.frame.columns)  # a punctuation may be about any of them
        promised = self.options.promised
        named = {*promised.unique, *([promised.ordered[0]] if promised.ordered is not None else [])}
        named |= {self.options.timestamp} if self.options.timestamp is not None else set()
        folded = {name.lower() for name in named}
        kept = {*self.divided.payload, *(key.column for key in self.divided.keys if key.column is not None)}
        return kept | {name for name in self.frame.columns if name.lower() in folded}

    def described(self) -> SourceOptions:
        """The input as a source of the engine's join. What Spark evaluates is part of what its state means."""
        promised = self.options.promised
        if promised.punctuation is not None:
            promised = replace(promised, punctuation=f"`{MARK}`")
        evaluated = {
            "filter": " AND ".join(f"({text})" for text in self.divided.filters),
            "keys": ", ".join(key.text for key in self.divided.keys),
            "punctuation": self.options.promised.punctuation or "",
        }
        texts = tuple((name, text) for name, text in evaluated.items() if text)
        return replace(self.options, alias=self.divided.alias, format="stream", options=texts, promised=promised)


def _of_engine(division: Division, inputs: Sequence[_Input], implied: Sequence[Expr], options: Options) -> StagedJoin:
    """The join that the engine does. implied: equalities that the division does not have."""
    prepared = tuple(input.prepared() for input in inputs)
    schemas = [_arrow_schema(input.divided.alias, frame) for input, frame in zip(inputs, prepared, strict=True)]
    query = _engine_query(division, inputs)
    query = replace(query, conjuncts=(*query.conjuncts, *implied))
    described = [input.described() for input in inputs]
    spec = spec_of(query, described, schemas)
    uses = [(input.divided.alias, input.options.alias) for input in inputs]
    settings = replace(options.settings, expected=expected_of_inputs(options.settings.expected, uses))
    return StagedJoin.of(spec, _settings(spec, settings), described, prepared)


def _engine_query(division: Division, inputs: Sequence[_Input]) -> Query:
    """The join that the engine does: equalities of columns, and out come the columns that are used after it."""
    keys = [input.keys for input in inputs]
    conjuncts = [Call("=", tuple(Col(i, keys[i][k]) for i, k in equality)) for equality in division.equalities]
    output = [
        OutputColumn(_joined_name(i.alias, c), Col(n, c)) for n, i in enumerate(division.inputs) for c in i.payload
    ]
    if not output and keys[0]:
        output = [OutputColumn(_joined_name(division.inputs[0].alias, keys[0][0]), Col(0, keys[0][0]))]
    named = tuple((input.alias, number) for number, input in enumerate(division.inputs))
    return Query(named, tuple(conjuncts), tuple(output))


# --- tables beside streams -------------------------------------------------------------------------------------------


def _equalities(division: Division, inputs: Sequence[_Input]) -> JoinSpec:
    """What the equalities of all inputs mean; QueryError where they have none. It is about keys alone."""
    query = replace(_engine_query(division, inputs), output=())
    schemas, plain = [], []
    for input in inputs:
        keys = input.prepared().select(*[column(name) for name in dict.fromkeys(input.keys)])
        schemas.append(_arrow_schema(input.divided.alias, keys))
        plain.append(SourceOptions(input.divided.alias, "stream", ()))
    return spec_of(query, plain, schemas)


def _with_keys(division: Division, inputs: Sequence[_Input], parted: Parted) -> Division:
    """The same, but streams keep the keys that tables are joined by until then."""
    kept = []
    for number, divided in enumerate(division.inputs):
        keys = [inputs[number].keys[key] for key in parted.keys_with_tables(number)]
        is_stream = number in parted.streams
        kept.append(replace(divided, payload=tuple(dict.fromkeys([*divided.payload, *(keys if is_stream else [])]))))
    return replace(division, inputs=tuple(kept))


def _table(inputs: Sequence[_Input], attached: Attached) -> Table:
    sides = [
        [_joined_name(inputs[input].divided.alias, inputs[input].keys[key]) for input, key in equality]
        for equality in attached.equalities
    ]
    return Table(_flat(inputs[attached.input]), tuple((before, own) for before, own in sides))


def _flat(input: _Input) -> DataFrame:
    """An input that the engine does not join, with columns of the names that the engine would give them."""
    frame = input.prepared()
    return frame.toDF(*[_joined_name(input.divided.alias, name) for name in frame.columns])


def _settings(spec: JoinSpec, settings: Settings) -> Settings:
    if spec.counts_rows and settings.partitions > 1:
        log.warning(
            "partitions = %d has no effect: a window in rows counts all rows of an input, so the join runs in one task",
            settings.partitions,
        )
        return replace(settings, partitions=1)
    return settings


def _arrow_schema(alias: str, frame: DataFrame) -> pa.Schema:
    zone: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}  # not in Spark 4.2
    fields = []
    for field in frame.schema:
        refusal = QueryError(
            f"query: column '{field.name}' of input '{alias}' is {field.dataType.simpleString()}, which the join "
            "cannot keep. Leave it out of the query, or CAST it to another type before the join"
        )
        if " collate " in field.dataType.simpleString().lower() or not _comes_back(field.dataType):
            raise refusal  # the engine compares strings by their bytes
        try:
            fields += canonical_schema(to_arrow_schema(StructType([field]), **zone))
        except (PySparkException, TypeError) as e:
            raise refusal from e
    return pa.schema(fields)


def _comes_back(dtype: DataType) -> bool:
    """Whether Arrow has the type itself. Of some it has the parts: a VARIANT would come out of the join as a struct."""
    if isinstance(dtype, ArrayType):
        return _comes_back(dtype.elementType)
    if isinstance(dtype, MapType):
        return _comes_back(dtype.keyType) and _comes_back(dtype.valueType)
    if isinstance(dtype, StructType):
        return all(_comes_back(field.dataType) for field in dtype)
    return not isinstance(dtype, VariantType | UserDefinedType | GeographyType | GeometryType)


def _joined_name(alias: str, column: str) -> str:
    return f"{alias}.{column}"
