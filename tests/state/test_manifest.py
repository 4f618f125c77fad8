"""The codec of manifests: what is written is read, and what is not a manifest is refused by the name of its file."""

import json
import typing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.errors import StateError
from spark_mjoin.model import Tree
from spark_mjoin.state import checked_json
from spark_mjoin.state.directory import Directory
from spark_mjoin.state.manifest import (
    Manifest,
    Manifests,
    OperatorFigures,
    ResidencyFigures,
    Segment,
    Stored,
    manifest_name,
    parsed,
)
from spark_mjoin.state.records import Packed
from tests.examples import examples
from tests.manifests import manifest, operator

WHOLE = st.integers(-(2**62), 2**62)
NUMBER = st.floats(allow_nan=False, allow_infinity=False) | WHOLE
TREES = st.recursive(st.integers(0, 9), lambda below: st.lists(below, min_size=1, max_size=3).map(tuple), max_leaves=6)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
)
PACKED = st.lists(st.integers(-128, 127), max_size=9).flatmap(
    lambda numbers: st.sampled_from("biqd").map(lambda kind: Packed.of(numbers, kind))
)
SCALARS = {int: WHOLE, float: NUMBER, bool: st.booleans(), str: st.text(), bytes: st.binary(), type(None): st.none()}


def values(of: Any) -> st.SearchStrategy[Any]:
    """Any value of a type, as its annotations say."""
    if of == Tree:
        return TREES
    if of is Packed:
        return PACKED
    if of in SCALARS:
        return SCALARS[of]
    if is_dataclass(of):
        make = of if of is not OperatorFigures else operator_of
        hints = typing.get_type_hints(of)
        named = {f.name: TREES if f.name == "tree" else values(hints[f.name]) for f in fields(of) if f.init}
        return st.builds(make, **named)
    if hasattr(of, "_fields"):
        return st.builds(of, **{name: values(kind) for name, kind in typing.get_type_hints(of).items()})
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is tuple:
        several = st.lists(values(args[0]), max_size=3).map(tuple) if args[-1] is Ellipsis else None
        return st.tuples(*map(values, args)) if several is None else several
    if origin is dict:
        return st.dictionaries(st.text(), JSON, max_size=2)
    return st.one_of(*map(values, args))


def operator_of(rows: tuple[int, ...], segments: tuple[Segment, ...], **more: Any) -> OperatorFigures:
    """An operator whose segments are of its members."""
    own = tuple(segment._replace(input=segment.input % len(rows)) for segment in segments if rows)
    return OperatorFigures(rows, own, **more)


@given(values(Manifest))
@examples(40)
def oracle_a_manifest_is_read_as_it_was_written(written: Manifest) -> None:
    text = written.text()
    assert parsed(text, "here") == written
    assert parsed(text, "here").text() == text


@given(st.lists(st.integers(-128, 127)), st.sampled_from("biqd"))
@examples(100)
def oracle_packed_numbers_are_the_same_again(numbers: list[int], kind: str) -> None:
    packed = Packed.of(numbers, kind)
    assert packed.array().tolist() == numbers and packed.size == len(numbers)
    assert packed.array().flags.writeable


def test_a_field_that_has_its_default_takes_no_room() -> None:
    body, _ = parts(manifest((1, 2)))
    assert body["held"] == {} and "learned" not in body and not {"residency", "sample"} & body["operators"][0].keys()


def parts(of: Manifest) -> tuple[Any, bytes]:
    """The head of a manifest, and the pieces after it."""
    head, pieces = of.text().split(b"\n", 1)
    return json.loads(head), pieces


def joined(head: Any, pieces: bytes) -> bytes:
    return json.dumps(head).encode() + b"\n" + pieces


def test_what_only_tasks_need_is_decoded_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = (Segment("rows-1", 1, 0, 7, 0, 100, 1), Segment("rows-2", 1, 7, 9, 0, 60, 1))
    written = manifest((1, 2), operators=(operator((1, 2), segments=segments),))
    decoded = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: decoded.append(text) or loads(text))
    read = parsed(written.text(), "here")
    assert read.root.stored == (Stored(0, 0), Stored(9, 160)) and read.root.rows == (1, 2)
    assert len(decoded) == 1
    for _ in range(2):
        assert read.root.segments == segments
        assert len(decoded) == 2
    assert read == written
    with pytest.raises(AttributeError, match="colour"):
        _ = read.colour


def test_figures_are_plain_numbers() -> None:
    """JSON has no numbers of numpy."""
    with pytest.raises(TypeError):
        manifest((np.int64(1), 2)).text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: body.pop("rows"), "'rows' is missing"),
        (lambda body: body.update(colour="red"), "'colour' is unknown"),
        (lambda body: body["operators"][0].update(colour=1), r"operators\[0\]: 'colour' is unknown"),
        (lambda body: body.update(results="7"), "results: '7' is not a whole number"),
        (lambda body: body.update(results=True), "results: True is not a whole number"),
        (lambda body: body["taken"].update(rows_in=[1, 2.5]), r"taken.rows_in: \[1, 2.5\] is not a list"),
        (lambda body: body["operators"][0].update(stored=[[1]]), r"operators\[0\].stored\[0\]: .* a list of 2"),
        (lambda body: body["operators"][0].update(stored=[[1, None]]), r".*stored\[0\]: None is not a whole number"),
        (lambda body: body["operators"][0].update(segments=[]), r"operators\[0\].segments: \[\] is not a place"),
        (lambda body: body["operators"][0].update(segments=[9, 999]), r".*segments: \[9, 999\] is outside the file"),
        (lambda body: body["operators"][0].update(segments=[-3, 2]), r".*segments: \[-3, 2\] is outside the file"),
        (lambda body: residency(body).update(cleaned=["i", 0, 3]), r".*cleaned: .* is not whole numbers of their kind"),
        (lambda body: residency(body).update(cleaned=["x", 0, 4]), r".*cleaned: .* is not packed numbers"),
        (lambda body: residency(body).update(cleaned=["i", 0, 9999]), r".*cleaned: \[0, 9999\] is outside the file"),
        (lambda body: body.update(held=[]), r"held: \[\] is not an object"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    tracked = operator((1, 2), residency=ResidencyFigures(0, (), (), Packed.of([1, 2], "i")))
    body, pieces = parts(manifest((1, 2), version=7, operators=(tracked,)))
    change(body)
    place = Directory(str(tmp_path)).child("partition-0-of-1")
    checked_json.publish(place, manifest_name(7), "test", joined(body, pieces))
    with pytest.raises(StateError, match=rf"version-000000000007\.json is damaged, or .*: {message}"):
        Manifests(str(tmp_path), 0).manifest(7)


def residency(body: Any) -> Any:
    return body["operators"][0]["residency"]


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ('[["x", 0]]', r"segments\[0\]: .* is not a list of 10"),
        ('[["x", 0, 0, 1, 0, 9, null, null, 0, null]]', r"segments\[0\]: None is not a whole number"),
        ('[["x", 0, 0, 1, 0, 9, 0, ["b", 7, 9999], 0, null]]', r"segments\[0\]: \[7, 9999\] is outside the file"),
    ],
)
def test_what_is_decoded_late_is_refused_by_name_too(segments: str, message: str) -> None:
    body, pieces = parts(manifest((1, 2)))
    body["operators"][0]["segments"] = [len(pieces), len(segments)]
    read = parsed(joined(body, pieces + segments.encode()), "there.json")
    with pytest.raises(StateError, match=rf"there.json is damaged, or .*: {message}"):
        _ = read.root.segments


def test_the_newest_manifest_that_is_not_past_a_version(tmp_path: Path) -> None:
    place = Directory(str(tmp_path)).child("partition-0-of-1")
    for version in (3, 4, 6):
        checked_json.publish(place, manifest_name(version), "test", manifest((1,), version=version).text())
    found = [Manifests(str(tmp_path), 0).newest(version) for version in (0, 2, 4, 5, 9)]
    assert [None if each is None else each.version for each in found] == [None, None, 4, 4, 6]
