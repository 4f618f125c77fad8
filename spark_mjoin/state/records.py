"""Frozen types as text, and back: the one way from a manifest to its file.

    {"version":7,"rows":[8,9],"cleaned":["i",0,256],"segments":[256,480]}     the head: JSON, on one line
    <256 bytes of numbers>[["rows-...",0,0,8,0,1204,...],...]                 the pieces that it points to

A dataclass is an object with its fields by name; a field that has its default is left out. A NamedTuple is a list,
for what there is much of. What is read must be exactly of its type: a field that is missing, unknown or of another
kind is refused by the name of the file and by the place in it.

The driver reads the manifest of every partition for every batch, and most of it only tasks need. So two kinds of values
are pieces after the head, and whoever does not ask for them does not pay for them. Many numbers are `Packed`. Fields
that are LATE, of a `Patient` record, are JSON of their own, decoded when somebody first asks for them.

Decoders are made once for each type, from its annotations, so that reading is about as fast as parsing.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np

from spark_mjoin.errors import StateError
from spark_mjoin.model import Array


class Pieces(NamedTuple):
    """What follows the head of a file."""

    path: str
    data: memoryview


Decoder = Callable[[Any, Pieces], Any]


# --- what is not in the head ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packed:
    """Numbers of one kind as their bytes. The same for the same."""

    kind: str  # a letter of _KINDS
    data: bytes | memoryview

    @staticmethod
    def of(numbers: Any, kind: str) -> Packed:
        return Packed(kind, np.ascontiguousarray(numbers, _KINDS[kind]).tobytes())

    @staticmethod
    def joined(some: Sequence[Packed]) -> Packed:
        """Numbers of the same kind, one after the other."""
        return Packed(some[0].kind, b"".join(packed.data for packed in some))

    @property
    def size(self) -> int:
        return len(self.data) // _KINDS[self.kind].itemsize

    def array(self) -> Array:
        """The numbers, in one dimension, to be written to."""
        return self.view().copy()

    def view(self) -> Array:
        """The same, to be read."""
        return np.frombuffer(self.data, _KINDS[self.kind])


_KINDS: dict[str, np.dtype[Any]] = {
    "b": np.dtype("i1"),
    "i": np.dtype("<i4"),
    "q": np.dtype("<i8"),
    "f": np.dtype("<f4"),
    "d": np.dtype("<f8"),
}


LATE = {"late": True}  # the metadata of a field of a `Patient` record; if it has a default, then by a factory


def nothing() -> None:
    """The default of a LATE field that may be None: a plain default would be found before the field is decoded."""


class Patient:
    """A record of which some fields may be LATE."""

    if not TYPE_CHECKING:  # whose opinion on what fields there are is asked for

        def __getattr__(self, name: str) -> Any:
            """A field that is not decoded yet."""
            try:
                decode, place, pieces = self.__dict__["_late"][name]
            except KeyError:
                raise AttributeError(name) from None
            value = read(decode, json.loads(bytes(pieces.data[place])), pieces, name)
            self.__dict__[name] = value
            return value


# --- writing -------------------------------------------------------------------------------------------------------


def text_of(record: Any, **more: Any) -> bytes:
    """A record, with more in its head; the same for the same."""
    pieces = bytearray()

    def add(piece: bytes | memoryview) -> list[int]:
        pieces.extend(piece)
        return [len(pieces) - len(piece), len(piece)]

    def plain(value: Any) -> Any:
        """A value as json.dumps takes it, which asks again for those inside."""
        if isinstance(value, Packed):
            return [value.kind, *add(value.data)]
        if isinstance(value, bytes):
            return {"bytes": value.hex()}
        kind: Any = type(value)
        found = ((name, getattr(value, name), default, is_late) for name, default, is_late in _written(kind))
        return {n: add(dumped(v)) if is_late else v for n, v, default, is_late in found if v != default}

    def dumped(value: Any) -> bytes:
        return json.dumps(value, default=plain, sort_keys=True, separators=(",", ":")).encode()

    head = dumped({**more, **plain(record)})
    return b"%s\n%s" % (head, pieces)


@cache
def _written(record: Any) -> tuple[tuple[str, Any, bool], ...]:
    """The fields of a record: names, defaults, whether they are late."""
    return tuple((f.name, _default(f), "late" in f.metadata) for f in fields(record))


def _default(of: Field[Any]) -> Any:
    return of.default if of.default_factory is MISSING else of.default_factory()


# --- reading -------------------------------------------------------------------------------------------------------


class _Unreadable(Exception):
    """What was read is not of its type; `where` in it, the outermost name last."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.where: list[str] = []

    def __str__(self) -> str:
        place = "".join(reversed(self.where)).removeprefix(".")
        return f"{place}: {self.args[0]}" if place else str(self.args[0])


def read(decode: Decoder, value: Any, pieces: Pieces, where: str = "") -> Any:
    """What parsed JSON of a file, or of a place in it, is; StateError where it is not."""
    try:
        return decode(value, pieces)
    except _Unreadable as e:
        e.where.append(where)
        raise StateError(
            f"state file {pieces.path} is damaged, or from another version of spark_mjoin: {e}; restore it, or start "
            "with a new checkpoint"
        ) from None


@cache
def decoder(of: Any) -> Decoder:
    """What turns parsed JSON into a type."""
    if of is Any:
        return lambda value, pieces: value
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

    def decode(value: Any, pieces: Pieces) -> Any:
        if type(value) not in allowed:
            raise _Unreadable(f"{_short(value)} is not {name}")
        return value

    return decode


def _bytes(value: Any) -> bytes:
    if type(value) is not dict or set(value) != {"bytes"}:
        raise _Unreadable(f"{_short(value)} is not bytes")
    return bytes.fromhex(value["bytes"])


def _packed(value: Any, pieces: Pieces) -> Packed:
    if type(value) is not list or len(value) != 3 or type(value[0]) is not str or value[0] not in _KINDS:
        raise _Unreadable(f"{_short(value)} is not packed numbers")
    kind, start, size = value
    found = pieces.data[_stretch(start, size, pieces)]
    if len(found) % _KINDS[kind].itemsize:
        raise _Unreadable(f"{_short(value)} is not whole numbers of their kind")
    return Packed(kind, found)


def _place(value: Any, pieces: Pieces) -> slice:
    """Where a piece is, of which the head says start and size."""
    if type(value) is not list or len(value) != 2:
        raise _Unreadable(f"{_short(value)} is not a place in the file")
    return _stretch(value[0], value[1], pieces)


def _stretch(start: Any, size: Any, pieces: Pieces) -> slice:
    if type(start) is not int or type(size) is not int:
        raise _Unreadable(f"{_short([start, size])} is not a place in the file")
    end = start + size
    if not 0 <= start <= end <= len(pieces.data):
        raise _Unreadable(f"{_short([start, size])} is outside the file")
    return slice(start, end)


def _record(of: Any) -> Decoder:
    hints = get_type_hints(of)
    known = {f.name: f.metadata.get("decoder") or decoder(hints[f.name]) for f in fields(of)}
    required = {f.name for f in fields(of) if f.default is MISSING and f.default_factory is MISSING}
    lately = frozenset(name for name, _, is_late in _written(of) if is_late)
    template = {name: default for name, default, _ in _written(of)}

    def decode(body: Any, pieces: Pieces) -> Any:
        if type(body) is not dict:
            raise _Unreadable(f"{_short(body)} is not an object")
        if not required <= body.keys():
            raise _Unreadable(f"'{min(required - body.keys())}' is missing")
        values = dict(template)  # in the order of the fields
        waiting = {}
        for name, value in body.items():
            if name not in known:
                raise _Unreadable(f"'{name}' is unknown")
            try:
                if name in lately:
                    del values[name]
                    waiting[name] = known[name], _place(value, pieces), pieces
                else:
                    values[name] = known[name](value, pieces)
            except _Unreadable as e:
                e.where.append(f".{name}")
                raise
        if waiting:
            values["_late"] = waiting
        made = object.__new__(of)
        made.__dict__.update(values)  # as __init__ does it, and faster
        return made

    return decode


def _named_tuple(of: Any) -> Decoder:
    hints = get_type_hints(of)
    return _several(tuple(hints[name] for name in of._fields), of._make)


def _several(kinds: tuple[Any, ...], make: Callable[[Any], Any] = tuple) -> Decoder:
    decoders = tuple(decoder(kind) for kind in kinds)

    def decode(values: Any, pieces: Pieces) -> Any:
        if type(values) is not list or len(values) != len(decoders):
            raise _Unreadable(f"{_short(values)} is not a list of {len(decoders)}")
        return make([one(value, pieces) for one, value in zip(decoders, values, strict=True)])

    return decode


def _many(kind: Any) -> Decoder:
    if kind in _SCALARS:
        name, *allowed = _SCALARS[kind]
        kinds = frozenset(allowed)

        def decode_scalars(values: Any, pieces: Pieces) -> tuple[Any, ...]:
            if type(values) is not list or not kinds.issuperset(map(type, values)):
                raise _Unreadable(f"{_short(values)} is not a list, each of which is {name}")
            return tuple(values)

        return decode_scalars
    one, all_at_once = decoder(kind), _flat_rows(kind)

    def decode(values: Any, pieces: Pieces) -> tuple[Any, ...]:
        if type(values) is not list:
            raise _Unreadable(f"{_short(values)} is not a list")
        if all_at_once is not None and (found := all_at_once(values)) is not None:
            return found
        out = []
        try:
            for value in values:
                out.append(one(value, pieces))
        except _Unreadable as e:
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
        return lambda value, pieces: None if value is None else one(value, pieces)
    assert set(kinds) <= {int, bytes, types.NoneType}, kinds
    return lambda value, pieces: value if value is None or type(value) is int else _bytes(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
