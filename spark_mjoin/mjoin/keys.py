"""Join keys as the kernel compares them: one 64-bit word, or a byte string, equal exactly when Spark says so.

    domain       word                              domain        bytes
    integer      the value                         string        the string itself
    boolean      0, 1                              binary        the bytes
    date         days since 1970                   decimal       over 18 digits: 16 bytes, little-endian,
    timestamp    microseconds since 1970 (UTC)                   of the value at the domain's scale
    double       IEEE bits, one NaN, no -0.0
    decimal      up to 18 digits: the value at the domain's scale

Why it is right: within a domain each encoding is one-to-one on the values that Spark tells apart. The scale of a
decimal domain is the largest of its class and its precision covers every member, so nothing is rounded and nothing
overflows.

Not covered: NULL, which equals nothing and stays NULL here for the caller to drop; and hashing, which is the kernel's.
"""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
import pyarrow as pa

from spark_mjoin.mjoin.casts import cast
from spark_mjoin.model import Array, KeyDomain

SHAREABLE = frozenset({"integer", "boolean", "date", "timestamp", "timestamp_ntz", "string", "binary"})
"""The kinds of domain that lose nothing: a column gathers back what was encoded, in the type it was."""


def key_type(domain: KeyDomain) -> pa.DataType:
    """The Arrow type of encoded keys."""
    if domain.is_word:
        return pa.int64()
    return pa.string() if domain.kind == "string" else pa.binary()


def encode(array: pa.Array, domain: KeyDomain) -> pa.Array:
    """The keys of `domain` for the values of a column, in `key_type(domain)`; NULLs stay NULL."""
    if domain.kind in ("string", "binary"):
        return array
    if domain.kind == "double":
        return _double_words(cast(array, pa.float64()))
    if domain.kind == "decimal":
        return _decimal_keys(cast(array, pa.decimal128(domain.precision, domain.scale)), domain)
    if domain.kind == "date":
        array = array.cast(pa.int32())
    return array.cast(pa.int64())


def decode(keys: pa.Array, domain: KeyDomain, dtype: pa.DataType) -> pa.Array:
    """The values of a column of some type that have these keys; NULL where it has none, which is slow."""
    if domain.kind in ("string", "binary"):
        return keys.cast(pa.binary()).cast(dtype)
    whole = _held(keys, domain, dtype)
    if whole is not None:
        return whole
    each = [_held(keys.slice(at, 1), domain, dtype) for at in range(len(keys))]
    return pa.concat_arrays([pa.nulls(1, dtype) if of is None else of for of in each])


def _held(keys: pa.Array, domain: KeyDomain, dtype: pa.DataType) -> pa.Array | None:
    """The values with these keys; None where a column of the type cannot hold one, or only another that is near it."""
    values = [None if key is None else _value(key, domain) for key in keys.to_pylist()]
    try:
        found = pa.array(values, _value_type(domain)).cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return found if encode(found, domain).to_pylist() == keys.to_pylist() else None


def orders(keys: pa.Array, domain: KeyDomain) -> Array:
    """Words that sort as encoded keys do, without sign. Equal keys have equal words; of bytes only the first count."""
    if not domain.is_word:
        return _first_bytes(keys.cast(pa.binary()), from_end=domain.kind == "decimal")
    words = np.asarray(keys.to_numpy(zero_copy_only=False)).astype(np.int64, copy=False)
    if domain.kind == "double":
        words = np.where(words < 0, ~words ^ _SIGN, words)
    out: Array = (words ^ _SIGN).view(np.uint64)
    return out


_SIGN = np.int64(-(1 << 63))
_WORD_BYTES = 8


def _first_bytes(keys: pa.Array, from_end: bool) -> Array:
    """The first bytes of each key as a word; from its end, those of a signed number whose last byte is the highest."""
    if not len(keys):
        return np.zeros(0, np.uint64)
    offsets = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    lengths, out = np.diff(offsets), np.zeros(len(keys), np.uint64)
    for place in range(_WORD_BYTES):
        has = lengths > place
        at = (offsets[1:] - 1 - place if from_end else offsets[:-1] + place)[has]
        out[has] |= data[at].astype(np.uint64) << np.uint64(8 * (_WORD_BYTES - 1 - place))
    return out ^ np.uint64(1 << 63) if from_end else out


def _value(key: int | bytes, domain: KeyDomain) -> object:
    if domain.kind == "double":
        return float(np.array([key], np.int64).view(np.float64)[0])
    if domain.kind == "decimal":
        unscaled = key if isinstance(key, int) else int.from_bytes(key, "little", signed=True)
        return Decimal(unscaled).scaleb(-domain.scale, Context(prec=76))
    return bool(key) if domain.kind == "boolean" else key


def _value_type(domain: KeyDomain) -> pa.DataType:
    """In which the values of a domain that are no strings can be written."""
    if domain.kind == "decimal":
        return pa.decimal128(domain.precision, domain.scale)
    return {"double": pa.float64(), "boolean": pa.bool_(), "date": pa.int32()}.get(domain.kind, pa.int64())


def _missing(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    return array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None


def _double_words(array: pa.Array) -> pa.Array:
    values = array.fill_null(0.0).to_numpy() + 0.0  # -0.0 + 0.0 is 0.0
    values[np.isnan(values)] = np.nan
    return pa.array(values.view(np.int64), mask=_missing(array))


def _decimal_keys(array: pa.Array, domain: KeyDomain) -> pa.Array:
    if not domain.is_word:
        return array.view(pa.binary(16)).cast(pa.binary())
    # 18 digits fit the low word of the little-endian 128 bits; the high word only repeats the sign.
    words = np.frombuffer(array.buffers()[1] or b"", np.int64)
    low = words[2 * array.offset : 2 * (array.offset + len(array)) : 2]
    return pa.array(low, mask=_missing(array))
