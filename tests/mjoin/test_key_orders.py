"""Words in the order of keys: equal keys have equal words, and no two keys are the other way round."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.mjoin.keys import encode, orders
from spark_mjoin.model import KeyDomain

VALUES = {
    "integer": (st.integers(-(2**63), 2**63 - 1), pa.int64(), KeyDomain("integer")),
    "double": (st.floats(allow_nan=False), pa.float64(), KeyDomain("double")),
    "string": (st.text(max_size=12), pa.string(), KeyDomain("string")),
    "large string": (st.text(max_size=12), pa.large_string(), KeyDomain("string")),
    "binary": (st.binary(max_size=12), pa.binary(), KeyDomain("binary")),
    "decimal": (st.integers(-(10**18) + 1, 10**18 - 1), pa.decimal128(18, 0), KeyDomain("decimal", 0, 18)),
    "long decimal": (st.integers(-(10**37), 10**37), pa.decimal128(38, 0), KeyDomain("decimal", 0, 38)),
}


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_words_sort_as_keys_do(kind: str, data: st.DataObject) -> None:
    strategy, dtype, domain = VALUES[kind]
    values = data.draw(st.lists(strategy, max_size=20))
    column = pa.array([Decimal(v) if "decimal" in kind else v for v in values], dtype)
    found = orders(encode(column, domain), domain).tolist()
    assert len(found) == len(values)
    by_value = sorted(range(len(values)), key=lambda n: rank(values[n]))
    sorted_words = [found[n] for n in by_value]
    assert sorted_words == sorted(sorted_words)
    for one, of_one in zip(values, found, strict=True):
        assert all(of_one == other for value, other in zip(values, found, strict=True) if value == one)


def rank(value: object) -> object:
    return value.encode() if isinstance(value, str) else value


def test_different_numbers_have_different_words() -> None:
    column = pa.array([-1, 0, 1, 2**62], pa.int64())
    assert len(set(orders(column, KeyDomain("integer")).tolist())) == 4


def test_a_slice_has_its_own_words() -> None:
    whole = pa.array(["a", "bcd", "", "zz"])
    assert orders(whole.slice(1, 2), KeyDomain("string")).tolist() == orders(whole, KeyDomain("string")).tolist()[1:3]
