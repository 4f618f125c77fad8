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
from spark_mjoin.state.manifest import Manifest, Manifests, manifest_name, parsed
from spark_mjoin.state.records import Packed
from tests.examples import examples
from tests.manifests import manifest

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
        hints = typing.get_type_hints(of)
        named = {f.name: TREES if f.name == "tree" else values(hints[f.name]) for f in fields(of)}
        return st.builds(of, **named)
    if hasattr(of, "_fields"):
        return st.builds(of, **{name: values(kind) for name, kind in typing.get_type_hints(of).items()})
    origin, args = typing.get_origin(of), typing.get_args(of)
    if origin is tuple:
        several = st.lists(values(args[0]), max_size=3).map(tuple) if args[-1] is Ellipsis else None
        return st.tuples(*map(values, args)) if several is None else several
    if origin is dict:
        return st.dictionaries(st.text(), JSON, max_size=2)
    return st.one_of(*map(values, args))


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
    body = json.loads(manifest((1, 2)).text())
    assert body["done"] == {} and "learned" not in body and "residency" not in body["operators"][0]


def test_figures_are_plain_numbers() -> None:
    """A number of numpy would have to be told from a record."""
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
        (lambda body: body["operators"][0].update(segments=[["x", 0]]), r".*segments\[0\]: .* a list of 10"),
        (lambda body: body["operators"][0].update(segments=[["x", 0, 0, 1, 0, 9, None, None, 0, None]]),
         r"operators\[0\].segments\[0\]: None is not a whole number"),
        (lambda body: body.update(held=[]), r"held: \[\] is not an object"),
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused_by_name(change: Any, message: str, tmp_path: Path) -> None:
    body = json.loads(manifest((1, 2), version=7).text())
    change(body)
    place = Directory(str(tmp_path)).child("partition-0-of-1")
    checked_json.publish(place, manifest_name(7), "test", json.dumps(body).encode())
    with pytest.raises(StateError, match=rf"version-000000000007\.json is damaged, or .*: {message}"):
        Manifests(str(tmp_path), 0).manifest(7)


def test_the_newest_manifest_that_is_not_past_a_version(tmp_path: Path) -> None:
    place = Directory(str(tmp_path)).child("partition-0-of-1")
    for version in (3, 4, 6):
        checked_json.publish(place, manifest_name(version), "test", manifest((1,), version=version).text())
    found = [Manifests(str(tmp_path), 0).newest(version) for version in (0, 2, 4, 5, 9)]
    assert [None if each is None else each.version for each in found] == [None, None, 4, 4, 6]
