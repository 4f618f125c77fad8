"""Sets of keys against sets of Python: ranges that grow together, differences, bytes, keys of several classes."""

from itertools import product

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.mjoin.keys import encode
from spark_mjoin.model import KeyDomain
from spark_mjoin.state.keysets import FIRST, LAST, ByteSet, WordSet, keys_of, ordered, together

SPAN = range(-3, 20)
ENDS = st.one_of(st.none(), st.integers(-2, 18))
PUT = st.lists(st.one_of(st.lists(st.integers(-2, 18), max_size=4), st.tuples(ENDS, ENDS)), max_size=6)


def words(puts: list[object]) -> tuple[WordSet, set[int]]:
    found, wanted = WordSet(), set[int]()
    for put in puts:
        if isinstance(put, list):
            found.add(np.array(put, np.int64))
            wanted |= set(put)
        else:
            low, high = put
            found.add_range(low, high)
            wanted |= {v for v in SPAN if (low is None or v >= low) and (high is None or v <= high)}
    return found, wanted


def listed(of: WordSet) -> set[int]:
    return {v for v in SPAN if bool(of.contains(np.array([v]))[0])}


@given(PUT, PUT)
def oracle_words_are_a_set(a: list[object], b: list[object]) -> None:
    (one, first), (other, second) = words(a), words(b)
    assert listed(one) == first
    assert listed(one.minus(other)) == first - second
    assert listed(one.common(other)) == first & second
    for found in (one, one.minus(other), one.common(other)):
        assert (found.lows <= found.highs).all()
        assert (found.lows[1:] > found.highs[:-1]).all()
    assert (one.lows[1:] - 1 > one.highs[:-1]).all(), "ranges that touch are one"


def test_the_ends_of_all_words() -> None:
    everything = WordSet()
    everything.add_range(None, None)
    assert everything.contains(np.array([FIRST, 0, LAST])).all()
    some = WordSet.of(np.array([FIRST, LAST]))
    rest = everything.minus(some)
    assert (rest.lows.tolist(), rest.highs.tolist()) == ([FIRST + 1], [LAST - 1])
    assert not everything.minus(everything)
    assert everything.common(some).lows.tolist() == [FIRST, LAST]


def test_keys_one_by_one_stay_short() -> None:
    found = WordSet()
    for key in np.random.default_rng(1).permutation(1000):
        found.add(np.array([key]))
    assert (found.lows.tolist(), found.highs.tolist()) == ([0], [999])
    assert found.each().tolist() == list(range(1000))


TEXT = st.text("ab", max_size=3).map(str.encode)
BYTES = st.lists(st.one_of(st.lists(TEXT, max_size=3), st.tuples(st.none() | TEXT, st.none() | TEXT)), max_size=5)
ALL_TEXT = [bytes("".join(t), "ascii") for n in range(4) for t in product("ab", repeat=n)]


def texts(puts: list[object]) -> tuple[ByteSet, set[bytes]]:
    found, wanted = ByteSet(), set[bytes]()
    for put in puts:
        if isinstance(put, list):
            found.add(pa.array(put, pa.large_binary()))
            wanted |= set(put)
        else:
            low, high = put
            found.add_range(low, high)
            wanted |= {t for t in ALL_TEXT if (low is None or t >= low) and (high is None or t <= high)}
    return found, wanted


def listed_texts(of: ByteSet) -> set[bytes]:
    inside = of.contains(pa.array(ALL_TEXT, pa.large_binary()))
    return {t for t, i in zip(ALL_TEXT, inside, strict=True) if i}


@given(BYTES, BYTES)
def oracle_bytes_are_a_set(a: list[object], b: list[object]) -> None:
    (one, first), (other, second) = texts(a), texts(b)
    assert listed_texts(one) == first
    assert listed_texts(one.common(other)) == first & second
    left = one.minus(other)
    assert first - second <= listed_texts(left) <= first, "ranges are not cut"
    assert not one.minus(one)
    both, _ = texts([*a, *b])
    assert not any(r in left.ranges for r in other.ranges) and not one.minus(both).ranges


@given(st.lists(st.tuples(st.integers(0, 2), TEXT, TEXT), min_size=2, max_size=6))
def oracle_keys_of_several_classes_are_distinct(rows: list[tuple[int, bytes, bytes]]) -> None:
    number, one, other = zip(*rows, strict=True)
    keys = together([np.array(number), pa.array(one, pa.large_binary()), pa.array(other, pa.large_binary())])
    assert len(set(keys.to_pylist())) == len(set(rows))


@given(st.lists(st.floats() | st.just(-0.0), min_size=1))
def oracle_doubles_have_the_order_of_their_values(values: list[float]) -> None:
    """As Spark orders them: NaN is larger than all others."""
    domain = KeyDomain("double")
    keys = keys_of(encode(pa.array(values), domain), domain)
    ranks = [(v != v, 0.0 if v != v else v + 0.0) for v in values]
    assert [ranks[i] for i in np.argsort(keys, kind="stable")] == sorted(ranks)
    assert (ordered(ordered(keys, domain), domain) == keys).all()
