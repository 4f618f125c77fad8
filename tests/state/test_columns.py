"""Columns give back what was put in, in the type asked for, whatever the chunks and the NULLs."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.state import columns

SAMPLES = {
    pa.bool_(): [True, False],
    pa.int8(): [-128, 127],
    pa.int16(): [-1, 300],
    pa.int32(): [2**31 - 1, -5],
    pa.int64(): [2**63 - 1, -(2**63)],
    pa.float32(): [1.5, -0.0],
    pa.float64(): [float("inf"), 1e-300],
    pa.decimal128(38, 4): [Decimal("12345678901234567890123456789.1234"), Decimal("-0.0001")],
    pa.date32(): [date(1900, 1, 1), date(2100, 12, 31)],
    pa.timestamp("us", "UTC"): [datetime(1960, 1, 1, tzinfo=UTC), datetime(2040, 1, 1, 1, 2, 3, 4, tzinfo=UTC)],
    pa.timestamp("us"): [datetime(2024, 1, 1)],
    pa.duration("us"): [timedelta(days=-1), timedelta(microseconds=3)],
    pa.string(): ["", "ä", "x" * 100],
    pa.binary(): [b"", b"\x00\xff", b"y" * 33],
    pa.list_(pa.int32()): [[], [1, None], [7] * 9],
    pa.struct([("a", pa.int32()), ("b", pa.string())]): [{"a": 1, "b": None}, {"a": None, "b": "z"}],
    pa.map_(pa.string(), pa.int64()): [[("k", 1)], []],
    pa.null(): [None],
}


@pytest.mark.parametrize("dtype", SAMPLES, ids=str)
@given(data=st.data())
def test_values_come_back(dtype: pa.DataType, data: st.DataObject) -> None:
    value = st.sampled_from(SAMPLES[dtype])
    chunks = data.draw(st.lists(st.lists(st.none() | value if data.draw(st.booleans()) else value, max_size=9)))
    column, values = columns.create(dtype), []
    for chunk in chunks:
        padded = pa.array([*SAMPLES[dtype][:1], *chunk], dtype).slice(1)  # an offset, as slices of batches have
        column.append(padded, len(values))
        values += chunk
    start = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(start, len(values)))
    assert column.arrow(start, end).to_pylist() == pa.array(values[start:end], dtype).to_pylist()
    picks = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20)) if values else []
    gathered = column.gather(np.array(picks, np.int32), dtype)
    gathered.validate(full=True)
    assert gathered.type == dtype
    assert gathered.to_pylist() == pa.array([values[p] for p in picks], dtype).to_pylist()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(pa.int8(), -7), (pa.int16(), 300), (pa.int32(), -(2**31)), (pa.bool_(), True), (pa.date32(), date(1969, 12, 31))],
    ids=str,
)
def test_a_word_comes_back_as_the_type_it_was(dtype: pa.DataType, value: object) -> None:
    column = columns.create(pa.int64())
    column.append(pa.array([value], dtype).cast(pa.int32() if dtype == pa.date32() else dtype).cast(pa.int64()), 0)
    assert column.gather(np.array([0, 0], np.int32), dtype).to_pylist() == [value, value]


def test_gathering_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_GATHERED_BYTES", 10)
    column = columns.create(pa.string())
    column.append(pa.array(["123456", "a longer one than the limit"]), 0)
    with pytest.raises(columns.GatherTooLarge):
        column.gather(np.array([0, 0], np.int32), pa.string())
    assert column.gather(np.array([1], np.int32), pa.string()).to_pylist() == ["a longer one than the limit"]


def test_accounted_bytes_follow_the_rows() -> None:
    fixed, text = columns.create(pa.int32()), columns.create(pa.string())
    fixed.append(pa.array([1, 2, None]), 0)
    text.append(pa.array(["abc", "de"]), 0)
    assert fixed.nbytes(3) == 3 * 4 + 3
    assert text.nbytes(2) == 2 * 8 + 5
