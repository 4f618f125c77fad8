"""Keys: equal words exactly for values that Spark calls equal, and the way back where columns are shared."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from spark_mjoin.mjoin.keys import SHAREABLE, encode, key_type
from spark_mjoin.model import KeyDomain
from spark_mjoin.state import columns

NAN = float("nan")
UTC = dt.UTC


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1, -1, None, 127], pa.int8()), "integer"),
        (pa.array([1, -(2**31), None], pa.int32()), "integer"),
        (pa.array([2**63 - 1, None], pa.int64()), "integer"),
        (pa.array([True, None, False]), "boolean"),
        (pa.array([dt.date(1969, 12, 31), None, dt.date(2024, 2, 29)]), "date"),
        (pa.array([dt.datetime(1960, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")), "timestamp"),
        (pa.array([dt.datetime(2024, 1, 1, 1, 2, 3, 4), None], pa.timestamp("us")), "timestamp_ntz"),
        (pa.array(["a", None, ""]), "string"),
        (pa.array([b"a", None, b""]), "binary"),
    ],
)
def test_shareable_keys_come_back(array: pa.Array, kind: str) -> None:
    domain = KeyDomain(kind)
    assert kind in SHAREABLE
    for part in (array, array.slice(1), array.slice(0, 0)):
        keys = encode(part, domain)
        assert keys.type == key_type(domain)
        assert keys.null_count == part.null_count
        column = columns.create(keys.type)
        column.append(keys, 0)
        assert column.gather(np.arange(len(part), dtype=np.int32), part.type).equals(part)


def test_words_of_known_values() -> None:
    assert encode(pa.array([True, False]), KeyDomain("boolean")).to_pylist() == [1, 0]
    assert encode(pa.array([dt.date(1970, 1, 2)]), KeyDomain("date")).to_pylist() == [1]
    at = pa.array([dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)], pa.timestamp("us", "UTC"))
    assert encode(at, KeyDomain("timestamp")).to_pylist() == [1_000_000]


def test_doubles_have_one_nan_and_one_zero() -> None:
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    words = encode(pa.array([NAN, other_nan, 0.0, -0.0, None, 1.5]), KeyDomain("double")).to_pylist()
    assert words[0] == words[1] and words[2] == words[3] == 0 and words[4] is None
    assert words[5] == struct.unpack("<q", struct.pack("<d", 1.5))[0]


def test_doubles_of_other_types_agree() -> None:
    domain = KeyDomain("double")
    whole = encode(pa.array([3, 2**53 + 1], pa.int64()), domain).to_pylist()
    assert whole == encode(pa.array([3.0, 2.0**53]), domain).to_pylist()
    assert encode(pa.array([1.5], pa.float32()), domain) == encode(pa.array([Decimal("1.5")]), domain)


@pytest.mark.parametrize("precision", [18, 30])
def test_decimals_and_integers_agree_at_the_scale_of_the_domain(precision: int) -> None:
    domain = KeyDomain("decimal", 3, precision)
    a = encode(pa.array([Decimal("7.00"), None, Decimal("-1.25")], pa.decimal128(5, 2)), domain)
    b = encode(pa.array([7, None, -2], pa.int32()), domain)
    c = encode(pa.array([Decimal("7.000"), None, Decimal("-1.250")], pa.decimal128(10, 3)), domain)
    assert a.equals(c) and a.type == key_type(domain)
    assert a[0] == b[0] and a[2] != b[2] and b[1].as_py() is None
    assert encode(pa.array([7, None, -2], pa.int32()).slice(2), domain)[0] == b[2]
    if domain.is_word:
        assert a.to_pylist() == [7000, None, -1250]
    else:
        assert a[2].as_py() == (-1250).to_bytes(16, "little", signed=True)
