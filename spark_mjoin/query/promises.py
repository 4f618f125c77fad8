"""The key promises of sources, in terms of the join's key classes (Ding 2003, section 3.2).

    punctuation = "kind = 'end'"    these rows say which key values do not come any more
    unique, clustered, ordered      columns: each value once; equal values one right after the other; in order

A promise about a column is one about a key class only if the key is that column, and encoded so that other values of
the column are other keys: 2^53 and 2^53 + 1 are one key among doubles, so "no more 2^53" says nothing there. A
punctuation that restricts such a column is ignored. The join reads all columns of a source with punctuations. Otherwise
it would mistake a punctuation about a column that it does not compare for the end of the input.

Where the join emits punctuations, the output has columns that distinguish them from data: `punctuation`, and where
promises have ranges, `punctuationLow` and `punctuationHigh`. The key must be in the projection, as a plain column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_mjoin.config import Promised, SourceOptions
from spark_mjoin.errors import OptionError, QueryError, listed, nearest
from spark_mjoin.mjoin.casts import kind, type_name
from spark_mjoin.mjoin.expressions import columns_of, type_of
from spark_mjoin.mjoin.rendering import render
from spark_mjoin.model import (
    HIGH,
    LOW,
    MARK,
    Col,
    InputSpec,
    JoinSpec,
    KeyDomain,
    Lit,
    OutputColumn,
    Pattern,
    Punctuations,
    SourceSpec,
)
from spark_mjoin.query.sql import parse_predicate

_EXACT_DOUBLES = (pa.float32(), pa.float64(), pa.int8(), pa.int16(), pa.int32())


def tells_apart(domain: KeyDomain, column: pa.DataType) -> bool:
    """Whether different values of a column are different keys of a domain."""
    return domain.kind != "double" or column in _EXACT_DOUBLES


def has_order(domain: KeyDomain) -> bool:
    """Whether keys are ordered as their values are: wide decimals are encoded as bytes, and are not."""
    return domain.is_word or domain.kind in ("string", "binary")


def with_promises(input: InputSpec, source: SourceSpec, promised: Promised) -> InputSpec:
    """An input with the promises of its source, as far as they are about its keys."""
    if not promised:
        return input
    reading = _Reading(input, source)
    punctuations = reading.punctuations(promised) if promised.punctuation is not None else None
    ordered = None
    if promised.ordered is not None:
        (key,) = reading.classes((promised.ordered[0],), "ordered") or (None,)
        if key is not None and has_order(reading.domain(key)):
            ordered = key, promised.ordered[1]
    return replace(
        input,
        columns=input.columns if punctuations is None else tuple(source.schema.names),
        punctuations=punctuations,
        unique=reading.classes(promised.unique, "unique"),
        clustered=reading.classes(promised.clustered, "clustered"),
        ordered=ordered,
    )


def check(spec: JoinSpec, options: Sequence[SourceOptions]) -> None:
    """OptionError for a constraint that no input of its source can use."""
    for number, given in enumerate(options):
        inputs = [i for i in spec.inputs if i.source == number]
        for name in ("unique", "clustered", "ordered"):
            if getattr(given.promised, name) and inputs and not any(getattr(i, name) for i in inputs):
                columns = getattr(given.promised, name)
                columns = columns[:1] if name == "ordered" else columns
                keys = sorted({s.name for i in inputs for s in (i.stored[o] for _, o in i.keys)})
                raise OptionError(
                    f"option 'source.{given.alias}.{name}': {listed(columns)} {'is' if len(columns) == 1 else 'are'} "
                    f"not what the join compares: only columns that are join keys as they are help; the keys of "
                    f"'{given.alias}' are: {listed(keys)}"
                )


@dataclass(frozen=True)
class _Reading:
    input: InputSpec
    source: SourceSpec

    def column(self, name: str, option: str) -> str:
        names: list[str] = self.source.schema.names
        same = [n for n in names if n == name] or [n for n in names if n.lower() == name.lower()]
        if len(same) != 1:
            raise OptionError(
                f"option 'source.{self.source.alias}.{option}': source '{self.source.alias}' has "
                f"{'no' if not same else 'more than one'} column '{name}'.{nearest(name, names)} Its columns are: "
                f"{listed(names)}"
            )
        return same[0]

    def domain(self, key_class: int) -> KeyDomain:
        domain = self.input.stored[dict(self.input.keys)[key_class]].domain
        assert domain is not None
        return domain

    def keys(self) -> Mapping[str, tuple[int, int]]:
        """By column, the key class that it is the key of, and its ordinal."""
        found: dict[str, tuple[int, int]] = {}
        for key_class, ordinal in self.input.keys:
            expr = self.input.stored[ordinal].expr
            if isinstance(expr, Col) and tells_apart(self.domain(key_class), self.source.schema.field(expr.name).type):
                found.setdefault(expr.name, (key_class, ordinal))
        return found

    def classes(self, columns: Sequence[str], option: str) -> tuple[int, ...]:
        """The key classes of some columns; none where not all of them are keys."""
        keys = self.keys()
        names = [self.column(name, option) for name in columns]
        return tuple(sorted(keys[name][0] for name in names)) if all(name in keys for name in names) else ()

    def punctuations(self, promised: Promised) -> Punctuations:
        alias, keys = self.source.alias, self.keys()
        assert promised.punctuation is not None
        option = f"source.{alias}.punctuation"
        try:
            predicate = parse_predicate(promised.punctuation, alias, self.source.schema)
            dtype = type_of(predicate, lambda c: self.source.schema.field(c.name).type)
        except QueryError as e:
            raise OptionError(f"option '{option}': {str(e).removeprefix('query: ')}") from e
        if kind(dtype) != "boolean" or not columns_of(predicate):
            raise OptionError(
                f"option '{option}': `{render(predicate)}` is {type_name(dtype)}, not a condition on rows"
            )
        patterns = []
        lists = self._about(promised.values, "punctuationValues")
        ranges = self._about(promised.range, "punctuationRange")
        for name, (key_class, ordinal) in keys.items():
            pattern = Pattern(key_class, ordinal)
            if name in lists:
                (values,) = lists[name]
                dtype = self.source.schema.field(values).type
                if not pa.types.is_list(dtype) or dtype.value_type != self.source.schema.field(name).type:
                    raise OptionError(
                        f"option 'source.{alias}.punctuationValues': column '{values}' is {type_name(dtype)}, and has "
                        f"to be ARRAY<{type_name(self.source.schema.field(name).type)}>: values of '{name}'"
                    )
                pattern = replace(pattern, values=values)
            if name in ranges:
                for end in ranges[name]:
                    if self.source.schema.field(end).type != self.source.schema.field(name).type:
                        raise OptionError(
                            f"option 'source.{alias}.punctuationRange': column '{end}' is "
                            f"{type_name(self.source.schema.field(end).type)}, and '{name}', whose ends it has, is "
                            f"{type_name(self.source.schema.field(name).type)}"
                        )
                if not has_order(self.domain(key_class)):
                    raise OptionError(
                        f"option 'source.{alias}.punctuationRange': keys of more than 18 decimal digits have no ranges"
                    )
                pattern = replace(pattern, low=ranges[name][0], high=ranges[name][1])
            patterns.append(pattern)
        usable = {p.key_class for p in patterns}
        exprs = [self.input.stored[ordinal].expr for key_class, ordinal in self.input.keys if key_class not in usable]
        others = {c.name for expr in exprs for c in columns_of(expr)} - set(keys)
        return Punctuations(predicate, tuple(patterns), tuple(sorted(others)))

    def _about(self, given: tuple[str | None, ...] | None, option: str) -> dict[str, list[str]]:
        """The columns of an option by the key that they are about."""
        if given is None:
            return {}
        key, *columns = given
        keys = self.keys()
        if key is None and len(self.input.keys) > 1:
            raise OptionError(
                f"option 'source.{self.source.alias}.{option}': which key of '{self.input.alias}' is it about? Write "
                f"'{next(iter(keys), 'key')}: {', '.join(str(c) for c in columns)}'"
            )
        name = next(iter(keys), None) if key is None else self.column(key, option)
        if name is None or name not in keys:
            raise OptionError(
                f"option 'source.{self.source.alias}.{option}': '{key}' is no column that the join compares as it is; "
                f"those are: {listed(keys)}"
            )
        return {name: [self.column(str(c), option) for c in columns]}


# --- the output ----------------------------------------------------------------------------------------------------


def with_punctuations(spec: JoinSpec, partitions: int) -> JoinSpec:
    """The same join with punctuations in its output; OptionError where it cannot have them."""
    promised = sorted({c for i in spec.inputs if i.promising for c in _about_classes(i)})
    for key_class in promised:
        if spec.key_column(key_class) is None:
            names = [f"{i.alias}.{i.stored[o].name}" for i in spec.inputs for c, o in i.keys if c == key_class]
            raise OptionError(
                f"option 'emitPunctuations': punctuations are about a key that is not in the projection: add one of "
                f"{listed(names)} to the SELECT, as it is"
            )
    for name in (MARK, LOW, HIGH):
        if any(o.name.lower() == name.lower() for o in spec.output):
            raise OptionError(f"option 'emitPunctuations': the output has a column '{name}' already; name it otherwise")
    fields = [pa.field(MARK, pa.bool_())]
    output = [OutputColumn(MARK, Lit(False, pa.bool_()))]
    if len(spec.ranged) > 1:
        raise OptionError("option 'emitPunctuations': there are ranges of several keys, and the output has one pair")
    for ranged in spec.ranged:
        if partitions > 1:
            raise OptionError(
                "option 'emitPunctuations': several 'partitions' emit no punctuations that are ranges, because none of "
                "them knows what the others still have; set partitions=1"
            )
        column = spec.key_column(ranged)
        assert column is not None
        dtype = spec.schema.field(column).type
        fields += [pa.field(LOW, dtype), pa.field(HIGH, dtype)]
        output += [OutputColumn(LOW, Lit(None, dtype)), OutputColumn(HIGH, Lit(None, dtype))]
    return replace(
        spec,
        output=(*spec.output, *output),
        schema=pa.schema([*spec.schema, *fields]),
        gives_punctuations=True,
    )


def _about_classes(input: InputSpec) -> set[int]:
    found = {*input.unique, *input.clustered}
    if input.ordered is not None:
        found.add(input.ordered[0])
    if input.punctuations is not None:
        found |= {p.key_class for p in input.punctuations.patterns}
    return found
