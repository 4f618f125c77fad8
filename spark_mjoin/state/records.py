"""Frozen types as JSON, and back: the one way from a manifest to its text.

A dataclass is an object with its fields by name; a field that has its default is left out. A NamedTuple is a list,
for what there is much of. What is read must be exactly of its type: a field that is missing, unknown or of another
kind is an `Unreadable` that says where. Many numbers are `Packed` into text: whoever reads a manifest and does not ask
for them does not pay for them, and the driver reads one of every partition for every batch.

Decoders are made once for each type, from its annotations, so that reading is about as fast as parsing.
"""

from __future__ import annotations

import types
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache, partial
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from spark_mjoin.model import Array

Decoder = Callable[[Any], Any]


class Packed(str):
    """Numbers of one kind as text: the letter of the kind, and their bytes in base 64. The same for the same."""

    __slots__ = ()

    @staticmethod
    def of(numbers: Any, kind: str) -> Packed:
        """kind: a letter of _KINDS."""
        return Packed(kind + b64encode(np.ascontiguousarray(numbers, _KINDS[kind]).tobytes()).decode())

    @property
    def size(self) -> int:
        padding = 2 if self.endswith("==") else int(self.endswith("="))
        return (3 * ((len(self) - 1) // 4) - padding) // np.dtype(_KINDS[self[0]]).itemsize

    def array(self) -> Array:
        """The numbers, in one dimension, to be written to."""
        return np.frombuffer(b64decode(self[1:]), _KINDS[self[0]]).copy()


_KINDS = {"b": "i1", "i": "<i4", "q": "<i8", "d": "<f8"}


class Unreadable(Exception):
    """What was read is not of its type; `where` in it, the outermost name last."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.where: list[str] = []

    def __str__(self) -> str:
        place = "".join(reversed(self.where)).removeprefix(".")
        return f"{place}: {self.args[0]}" if place else str(self.args[0])


def plain(record: Any) -> Any:
    """A record as json.dumps takes it, which asks again for the records inside."""
    if isinstance(record, bytes):
        return {"bytes": record.hex()}
    kind: Any = type(record)
    values = vars(record)
    return {name: values[name] for name, default in _defaults(kind) if values[name] != default}


@cache
def _defaults(record: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((f.name, _default(f)) for f in fields(record))


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


@cache
def decoder(of: Any) -> Decoder:
    """What turns parsed JSON into a type."""
    if of is Any:
        return lambda value: value
    if of in _SCALARS:
        return _scalar(*_SCALARS[of])
    if of is Packed:
        return _packed
    if is_dataclass(of):
        return _record(of)
    if isinstance(of, type) and issubclass(of, tuple) and hasattr(of, "_fields"):
        return _named_tuple(of)
    origin, args = get_origin(of), get_args(of)
    if origin is tuple:
        return _many(args[0]) if args[-1] is Ellipsis else _several(args)
    if origin is dict:
        return _scalar("an object", dict)
    assert origin in (types.UnionType, Union), of
    return _union(args)


_SCALARS: dict[Any, tuple[Any, ...]] = {
    int: ("a whole number", int),
    float: ("a number", float, int),
    bool: ("true or false", bool),
    str: ("text", str),
    types.NoneType: ("null", types.NoneType),
}


def _scalar(name: str, *kinds: type) -> Decoder:
    allowed = frozenset(kinds)

    def decode(value: Any) -> Any:
        if type(value) not in allowed:
            raise Unreadable(f"{_short(value)} is not {name}")
        return value

    return decode


def _bytes(value: Any) -> bytes:
    if type(value) is not dict or set(value) != {"bytes"}:
        raise Unreadable(f"{_short(value)} is not bytes")
    return bytes.fromhex(value["bytes"])


def _packed(value: Any) -> Packed:
    if type(value) is not str or value[:1] not in _KINDS or len(value) % 4 != 1:
        raise Unreadable(f"{_short(value)} is not packed numbers")
    return Packed(value)


def _record(of: Any) -> Decoder:
    hints = get_type_hints(of)
    known = {f.name: f.metadata.get("decoder") or decoder(hints[f.name]) for f in fields(of)}
    required = {f.name for f in fields(of) if f.default is MISSING and f.default_factory is MISSING}
    template = dict(_defaults(of))

    def decode(body: Any) -> Any:
        if type(body) is not dict:
            raise Unreadable(f"{_short(body)} is not an object")
        if not required <= body.keys():
            raise Unreadable(f"'{min(required - body.keys())}' is missing")
        values = {}
        for name, value in body.items():
            if name not in known:
                raise Unreadable(f"'{name}' is unknown")
            try:
                values[name] = known[name](value)
            except Unreadable as e:
                e.where.append(f".{name}")
                raise
        made = object.__new__(of)
        made.__dict__.update(template)  # as __init__ does it, in the order of the fields, and faster
        made.__dict__.update(values)
        return made

    return decode


def _named_tuple(of: Any) -> Decoder:
    hints = get_type_hints(of)
    return _several(tuple(hints[name] for name in of._fields), of._make)


def _several(kinds: tuple[Any, ...], make: Decoder = tuple) -> Decoder:
    decoders = tuple(decoder(kind) for kind in kinds)
    plain: set[tuple[type, ...]] = set()  # types of values that are right as they are

    def decode(values: Any) -> Any:
        if type(values) is not list or len(values) != len(decoders):
            raise Unreadable(f"{_short(values)} is not a list of {len(decoders)}")
        found = tuple(map(type, values))
        if found in plain:
            return make(values)
        decoded = [one(value) for one, value in zip(decoders, values, strict=True)]
        if all(map(_is, decoded, values)):
            plain.add(found)
        return make(decoded)

    return decode


def _many(kind: Any) -> Decoder:
    if kind in _SCALARS:
        name, *allowed = _SCALARS[kind]
        kinds = frozenset(allowed)

        def decode_scalars(values: Any) -> tuple[Any, ...]:
            if type(values) is not list or not kinds.issuperset(map(type, values)):
                raise Unreadable(f"{_short(values)} is not a list, each of which is {name}")
            return tuple(values)

        return decode_scalars
    one, all_at_once = decoder(kind), _flat_rows(kind)

    def decode(values: Any) -> tuple[Any, ...]:
        if type(values) is not list:
            raise Unreadable(f"{_short(values)} is not a list")
        if all_at_once is not None and (found := all_at_once(values)) is not None:
            return found
        out = []
        try:
            for value in values:
                out.append(one(value))
        except Unreadable as e:
            e.where.append(f"[{len(out)}]")
            raise
        return tuple(out)

    return decode


def _flat_rows(kind: Any) -> Callable[[list[Any]], tuple[Any, ...] | None] | None:
    """For NamedTuples of scalars: many of them, looked at column by column; None where some are not right."""
    if not hasattr(kind, "_fields"):
        return None
    hints = get_type_hints(kind)
    columns = [_types(hints[name]) for name in kind._fields]
    if None in columns:
        return None
    make = partial(tuple.__new__, kind)

    def decode(rows: list[Any]) -> tuple[Any, ...] | None:
        if not {list}.issuperset(map(type, rows)) or not {len(columns)}.issuperset(map(len, rows)):
            return None
        found = zip(columns, zip(*rows, strict=True), strict=False)
        right = all(allowed.issuperset(map(type, column)) for allowed, column in found if allowed is not None)
        return tuple(map(make, rows)) if right else None

    return decode


def _types(of: Any) -> frozenset[type] | None:
    """The types that a scalar, or one that may be null, has in JSON; None for anything else."""
    found = [_SCALARS[kind][1:] if kind in _SCALARS else None for kind in get_args(of) or (of,)]
    return None if None in found else frozenset(kind for some in found if some is not None for kind in some)


def _union(kinds: tuple[Any, ...]) -> Decoder:
    """One of several types, which JSON tells apart."""
    others = [kind for kind in kinds if kind is not types.NoneType]
    if len(others) == 1:
        one = decoder(others[0])
        return lambda value: None if value is None else one(value)
    assert set(kinds) <= {int, bytes, types.NoneType}, kinds
    return lambda value: value if value is None or type(value) is int else _bytes(value)


def _is(one: Any, other: Any) -> bool:
    return one is other and type(one) in _IMMUTABLE


_IMMUTABLE = frozenset((int, float, bool, str, types.NoneType))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
