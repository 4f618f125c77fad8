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


GIB = 1 << 30


def gibibyte() -> pa.Array:
    """One list that is accounted with so much; its memory is never touched."""
    entries = pa.Array.from_buffers(pa.bool_(), GIB, [None, pa.py_buffer(np.zeros(GIB // 8, np.uint8))])
    return pa.ListArray.from_arrays(pa.array([0, GIB], pa.int32()), entries)


def test_nested_columns_hold_more_than_the_offsets_of_arrow_reach() -> None:
    column, large = columns.create(pa.list_(pa.bool_())), gibibyte()
    for row in range(3):
        column.append(large, row)
    column.append(pa.array([[True], None, [False, True]], pa.list_(pa.bool_())), 3)
    assert column.gather(np.array([5, 3, 4], np.int32), column.type).to_pylist() == [[False, True], [True], None]
    assert column.arrow(3, 5).to_pylist() == [[True], None]
    for asked in ([0, 1], [0, 5], [2, 2]):
        with pytest.raises(columns.GatherTooLarge):
            column.gather(np.array(asked, np.int32), column.type)
    with pytest.raises(columns.GatherTooLarge):
        column.arrow(1, 4)
    column.keep(np.array([False, False, False, True, False, True]))
    assert column.arrow(0, 2).to_pylist() == [[True], [False, True]]
    assert column.nbytes(2) == 2 * 8 + 3


NESTED = pa.list_(pa.struct([("a", pa.string()), ("b", pa.list_(pa.int32()))]))


@given(
    st.lists(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), max_size=9)),
    st.data(),
)
def test_chunks_of_nested_columns_do_not_show(chunks: list[list[list[int | None] | None]], data: st.DataObject) -> None:
    """Rows leave, are forgotten and come, with chunks of any size; the same rows always count the same bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_GATHERED_BYTES", 100)  # of a chunk; larger gathers are not asked for
        column, values = columns.create(NESTED), []
        for chunk in chunks:
            some = [v and [{"a": None if i is None else "x" * i, "b": [1, i]} for i in v] for v in chunk]
            column.append(pa.array(some, NESTED), len(values))
            values += some
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_)
        column.keep(mask)
        values = [v for v, kept in zip(values, mask, strict=True) if kept]
        rest = data.draw(st.integers(0, len(values)))
        column.cut(rest)
        values = values[:rest]
    assert column.arrow(0, rest).to_pylist() == values
    picks = data.draw(st.lists(st.integers(0, rest - 1), max_size=20)) if rest else []
    gathered = column.gather(np.array(picks, np.int32), NESTED)
    gathered.validate(full=True)
    assert gathered.to_pylist() == [values[p] for p in picks]
    anew = columns.create(NESTED)
    anew.append(pa.array(values, NESTED), 0)
    assert anew.nbytes(rest) == column.nbytes(rest)
