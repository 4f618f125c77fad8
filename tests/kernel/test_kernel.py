"""Every kernel against its definition: the fast one and its plain-Python twin pass the same tests."""

import inspect
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import numba as nb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mjoin.kernel import ALL_BITS, fast, slow
from spark_mjoin.model import SLOTS
from spark_mjoin.state.routing import Routing
from tests.examples import examples

TWINS = pytest.mark.parametrize("kernel", [fast, slow], ids=["fast", "slow"])
KERNELS = [name for name, f in vars(slow).items() if inspect.isfunction(f) and not name.startswith("_")]
FEW_BITS = np.uint64(0xC000000000000000)
WORD_HASHES = [0, 625666341681347298, 3931566057281096471]
BYTE_HASHES = [0, 10126467020469440437, 15075452636857179951]
words = st.lists(st.integers(-3, 12) | st.integers(-(2**63), 2**63 - 1), max_size=60)
values = st.lists(st.binary(max_size=40), max_size=40)


def flat(strings: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0] + [len(s) for s in strings]).astype(np.int64)
    data = np.frombuffer(b"".join(strings) + b"\xff" * fast.PADDING, np.uint8)
    return offsets, data


def array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


def word_slots(kernel: ModuleType, numbers: list[int], mask: np.uint64) -> np.ndarray:
    slots = np.empty(len(numbers), np.uint32)
    kernel.slot_words(array(numbers), mask, 60, slots)
    return slots


def test_every_fast_kernel_has_a_twin_with_the_same_signature() -> None:
    compiled = {name for name, f in vars(fast).items() if hasattr(f, "py_func") and not name.startswith("_")}
    assert compiled - {"njit", "inline"} == set(KERNELS)
    for name in KERNELS:
        expected = list(inspect.signature(getattr(fast, name).py_func).parameters)
        assert list(inspect.signature(getattr(slow, name)).parameters) == expected, name


@given(words, values)
def differential_hashes_agree(numbers: list[int], strings: list[bytes]) -> None:
    for mask in (ALL_BITS, FEW_BITS):
        hashed = {}
        for kernel in (fast, slow):
            of_words, of_bytes = np.empty(len(numbers), np.uint64), np.empty(len(strings), np.uint64)
            kernel.hash_words(array(numbers), mask, of_words)
            kernel.hash_bytes(*flat(strings), mask, of_bytes)
            both = of_words[: len(strings)].copy()
            kernel.combine_hashes(of_bytes[: len(both)], mask, both)
            hashed[kernel] = (of_words.tolist(), of_bytes.tolist(), both.tolist())
        assert hashed[fast] == hashed[slow]


def test_hashes_of_words_never_collide_and_fill_the_top_bits() -> None:
    numbers = np.concatenate([np.arange(200_000), np.arange(200_000) << 32, -np.arange(1, 200_000)]).astype(np.int64)
    hashes = np.empty(numbers.size, np.uint64)
    fast.hash_words(numbers, ALL_BITS, hashes)
    assert np.unique(hashes).size == np.unique(numbers).size
    in_slots = np.bincount((hashes >> np.uint64(56)).astype(np.int64), minlength=256)
    assert in_slots.min() > 0.9 * in_slots.mean()


def probe(
    kernel: ModuleType, probing: np.ndarray, slots: np.ndarray, index: tuple, values: np.ndarray, rounds: int, room: int
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """All pairs of equal values: some rounds of `advance`, the rest with `walk` into an output of `room` pairs."""
    head, link = index
    at, row = np.empty(slots.size, np.int32), np.empty(slots.size, np.int32)
    left = kernel.heads(slots, head, at, row)
    yield from follow(kernel, probing, at, row, left, values, link, rounds, room)


def follow(
    kernel: ModuleType,
    probing: np.ndarray,
    at: np.ndarray,
    row: np.ndarray,
    left: int,
    values: np.ndarray,
    link: np.ndarray,
    rounds: int,
    room: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """The pairs of equal values among candidates and what comes after them in their chains."""
    for _ in range(rounds):
        out_at, out_row = np.empty(left, np.int32), np.empty(left, np.int32)
        found, left = kernel.advance(probing, at, row, left, values, link, out_at, out_row)
        yield out_at, out_row, found
    position, cursor = 0, kernel.FRESH
    while position < left:
        out_at, out_row = np.empty(room, np.int32), np.empty(room, np.int32)
        position, cursor, found, _ = kernel.walk(
            probing, at, row, left, position, cursor, values, link, out_at, out_row
        )
        yield out_at, out_row, found


@TWINS
@pytest.mark.parametrize("mask", [ALL_BITS, FEW_BITS], ids=["all-bits", "collisions"])
@given(build=words, probing=words, rounds=st.integers(0, 4), room=st.integers(1, 7), pieces=st.integers(1, 3))
@examples(60)
def oracle_probe_finds_equal_words(
    kernel: ModuleType, mask: np.uint64, build: list[int], probing: list[int], rounds: int, room: int, pieces: int
) -> None:
    head, link = np.full(16, -1, np.int32), np.empty(len(build), np.int32)
    cuts = np.linspace(0, len(build), pieces + 1).astype(int).tolist()
    for start, end in pairwise(cuts):
        kernel.insert(word_slots(kernel, build[start:end], mask), start, head, link)
    slots = word_slots(kernel, probing, mask)
    found: list[tuple[int, int]] = []
    for at, row, count in probe(kernel, array(probing), slots, (head, link), array(build), rounds, room):
        found += zip(at[:count].tolist(), row[:count].tolist(), strict=True)
    expected = [(i, j) for i, a in enumerate(probing) for j, b in enumerate(build) if a == b]
    assert Counter(found) == Counter(expected)
    there = np.empty(len(probing), np.bool_)
    kernel.present(array(probing), slots, head, link, array(build), there)
    assert there.tolist() == [a in build for a in probing]


@TWINS
@pytest.mark.parametrize("mask", [ALL_BITS, FEW_BITS], ids=["all-bits", "collisions"])
@given(build=values, probing=values, rounds=st.integers(0, 2), room=st.integers(1, 7))
@examples(60)
def oracle_probe_and_verify_find_equal_bytes(
    kernel: ModuleType, mask: np.uint64, build: list[bytes], probing: list[bytes], rounds: int, room: int
) -> None:
    hashes, wanted = np.empty(len(build), np.uint64), np.empty(len(probing), np.uint64)
    kernel.hash_bytes(*flat(build), mask, hashes)
    kernel.hash_bytes(*flat(probing), mask, wanted)
    slots, sought = np.empty(len(build), np.uint32), np.empty(len(probing), np.uint32)
    kernel.slot_hashes(hashes, 60, slots)
    kernel.slot_hashes(wanted, 60, sought)
    head, link = np.full(16, -1, np.int32), np.empty(len(build), np.int32)
    kernel.insert(slots, 0, head, link)
    rows = np.arange(len(probing), dtype=np.int32)
    found: list[tuple[int, int]] = []
    for at, row, count in probe(kernel, wanted, sought, (head, link), hashes, rounds, room):
        count = kernel.verify_bytes(at, row, count, rows, *flat(probing), *flat(build))
        found += zip(at[:count].tolist(), row[:count].tolist(), strict=True)
    expected = [(i, j) for i, a in enumerate(probing) for j, b in enumerate(build) if a == b]
    assert Counter(found) == Counter(expected)
    newest = np.empty(len(probing), np.int32)
    kernel.find_bytes(wanted, sought, head, link, hashes, *flat(probing), *flat(build), newest)
    assert newest.tolist() == [max((j for j, b in enumerate(build) if a == b), default=-1) for a in probing]


@TWINS
@pytest.mark.parametrize("dtype", [np.int64, np.uint64], ids=["words", "hashes"])
@given(target=words, probing=words, rounds=st.integers(0, 3), room=st.integers(1, 7), block=st.integers(1, 30))
@examples(60)
def oracle_a_scan_finds_equal_values(
    kernel: ModuleType, dtype: type, target: list[int], probing: list[int], rounds: int, room: int, block: int
) -> None:
    """The target's rows, block by block, through an index of the probing ones: the roles of a probe turned round."""
    values, sought = array(target).astype(dtype), array(probing).astype(dtype)
    slots = np.empty(len(probing), np.uint32)
    kernel.small_slots(sought, 61, slots)
    head, link = np.full(8, -1, np.int32), np.empty(len(probing), np.int32)
    kernel.insert(slots, 0, head, link)
    found: list[tuple[int, int]] = []
    for low in range(0, len(target), block):
        high = min(low + block, len(target))
        at, row = np.empty(high - low, np.int32), np.empty(high - low, np.int32)
        left = kernel.sieve(values, low, high, 61, head, at, row)
        for out_at, out_row, count in follow(kernel, values, at, row, left, sought, link, rounds, room):
            found += zip(out_row[:count].tolist(), out_at[:count].tolist(), strict=True)
    expected = [(i, j) for i, a in enumerate(probing) for j, b in enumerate(target) if a == b]
    assert Counter(found) == Counter(expected)


@TWINS
def test_verify_words_keeps_equal_pairs_in_order(kernel: ModuleType) -> None:
    at, row = np.array([0, 1, 1, 2], np.int32), np.array([2, 0, 1, 2], np.int32)
    probing_rows = np.array([5, 4, 3], np.int32)
    kept = kernel.verify_words(at, row, 4, probing_rows, array([0, 0, 0, 30, 20, 10]), array([20, 99, 30]))
    assert list(zip(at[:kept].tolist(), row[:kept].tolist(), strict=True)) == [(1, 0), (2, 2)]


@TWINS
@given(strings=values, picks=st.lists(st.integers(0, 39), max_size=50))
@examples(60)
def test_gathered_bytes_are_those_of_the_rows(kernel: ModuleType, strings: list[bytes], picks: list[int]) -> None:
    rows = np.array([p % len(strings) for p in picks] if strings else [], np.int32)
    offsets, data = flat(strings)
    out_offsets = np.empty(rows.size + 1, np.int32)
    total = kernel.gather_offsets(offsets, rows, out_offsets)
    out = np.empty(total + fast.PADDING, np.uint8)
    kernel.gather_bytes(offsets, data, rows, out_offsets, out)
    got = [bytes(out[out_offsets[i] : out_offsets[i + 1]]) for i in range(rows.size)]
    assert got == [strings[r] for r in rows]


@TWINS
def test_gather_narrows_words_to_the_type_asked_for(kernel: ModuleType) -> None:
    out = np.empty(3, np.int16)
    kernel.gather(array([7, -2, 300]), np.array([2, 1, 1], np.int32), out)
    assert out.tolist() == [300, -2, -2]


@TWINS
def test_append_offsets_continues_where_the_column_ends(kernel: ModuleType) -> None:
    offsets = np.array([0, 3, 0, 0], np.int64)
    kernel.append_offsets(np.array([10, 14, 15], np.int32), 3, 1, offsets)
    assert offsets.tolist() == [0, 3, 7, 8]


@given(words, st.data())
def differential_buckets_are_bits_of_the_hash(numbers: list[int], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, max(len(numbers) - 1, 0)), max_size=60 if numbers else 0))
    hashes = np.empty(len(numbers), np.uint64)
    fast.hash_words(array(numbers), ALL_BITS, hashes)
    expected = [int(hashes[row] >> np.uint64(32)) & 63 for row in rows]
    for kernel in (fast, slow):
        out = np.empty(len(rows), np.uint8)
        kernel.bucket_words(array(numbers), np.array(rows, np.int32), 32, 63, out)
        assert out.tolist() == expected


@given(words, st.integers(1, 5) | st.just(SLOTS - 1))
def differential_partitions_agree_and_cover_all_rows(numbers: list[int], partitions: int) -> None:
    hashes = np.empty(len(numbers), np.uint64)
    fast.hash_words(array(numbers), ALL_BITS, hashes)
    covered: list[int] = []
    for partition in range(partitions):
        slots, picked = Routing(partitions).slots(partition), {}
        for kernel in (fast, slow):
            out = np.empty(len(numbers), np.int32)
            count = kernel.select_slots(hashes, slots.owned, out)
            picked[kernel] = out[:count].tolist()
        assert picked[fast] == picked[slow]
        covered += picked[fast]
    assert sorted(covered) == list(range(len(numbers)))


I32, I64, U8, U32, U64 = (nb.types.Array(t, 1, "C") for t in (nb.int32, nb.int64, nb.uint8, nb.uint32, nb.uint64))
B = nb.types.Array(nb.bool_, 1, "C")
N, M = nb.int64, nb.uint64
SIGNATURES = {
    "hash_words": (I64, M, U64),
    "hash_bytes": (I64, U8, M, U64),
    "combine_hashes": (U64, M, U64),
    "bucket_words": (I64, I32, N, N, U8),
    "slot_words": (I64, M, N, U32),
    "slot_hashes": (U64, N, U32),
    "insert": (U32, N, I32, I32),
    "heads": (U32, I32, I32, I32),
    "small_slots": (I64, N, U32),
    "sieve": (I64, N, N, N, I32, I32, I32),
    "advance": (I64, I32, I32, N, I64, I32, I32, I32),
    "present": (I64, U32, I32, I32, I64, B),
    "find_bytes": (U64, U32, I32, I32, U64, I64, U8, I64, U8, I32),
    "walk": (I64, I32, I32, N, N, N, I64, I32, I32, I32),
    "verify_words": (I32, I32, N, I32, I64, I64),
    "verify_bytes": (I32, I32, N, I32, I64, U8, I64, U8),
    "gather": (I64, I32, I64),
    "gather_offsets": (I64, I32, I32),
    "gather_bytes": (I64, U8, I32, I32, U8),
    "append_offsets": (I32, N, N, I64),
    "select_slots": (U64, U8, I32),
    "departed": (U8, I32, I32, I32, I32, I32),
    "inside_rows": (I64, I64, I64, I64, I64, B),
}


@pytest.mark.parametrize("name", KERNELS)
def test_every_array_index_is_unsigned(name: str) -> None:
    """A signed index makes numba emit wrap-around code."""
    kernel = nb.njit(boundscheck=False)(getattr(fast, name).py_func)
    kernel.compile(SIGNATURES[name])
    annotation = kernel.overloads[SIGNATURES[name]].type_annotation
    indexes = []
    for node in annotation.calltypes:
        if isinstance(node, nb.core.ir.SetItem) or getattr(node, "op", None) == "getitem":
            indexes.append(annotation.typemap[node.index.name])
    assert indexes
    assert all(not index.signed for index in indexes), f"{name}: {indexes}"


def test_hashes_are_what_states_on_disk_were_placed_by() -> None:
    """Rows are in partitions by these values: another hash is another state format."""
    of_words, of_bytes = np.empty(3, np.uint64), np.empty(3, np.uint64)
    fast.hash_words(array([0, 1, -1]), ALL_BITS, of_words)
    fast.hash_bytes(*flat([b"", b"key", b"a key of more than sixteen bytes"]), ALL_BITS, of_bytes)
    assert of_words.tolist() == WORD_HASHES
    assert of_bytes.tolist() == BYTE_HASHES


@TWINS
@given(data=st.data())
def test_departed_is_the_first_event_that_takes_a_row(kernel: ModuleType, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    events, below = [], []
    for length in lengths:
        events += sorted(data.draw(st.sets(st.integers(1, 50), min_size=length, max_size=length)))
        below += sorted(data.draw(st.sets(st.integers(1, 50), min_size=length, max_size=length)))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), max_size=20))
    buckets, arrived = (np.array([r[k] for r in rows], t) for k, t in ((0, np.uint8), (1, np.int32)))
    out = np.full(len(rows), 99, np.int32)
    kernel.departed(buckets, arrived, starts, np.array(events, np.int32), np.array(below, np.int32), out)
    for (bucket, came), event in zip(rows, out, strict=True):
        taking = [events[e] for e in range(starts[bucket], starts[bucket + 1]) if below[e] > came]
        assert event == (taking[0] if taking else 99)


@given(st.data())
def differential_rows_in_windows_agree(data: st.DataObject) -> None:
    """Rows of this record, and of earlier ones; windows of all sizes, and none."""
    members, records = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    starts, sizes, read = list[int](), list[int](), [0] * members
    for _ in range(records):
        size = data.draw(st.lists(st.integers(0, 9), min_size=members, max_size=members))
        starts, sizes, read = starts + read, sizes + size, [a + b for a, b in zip(read, size, strict=True)]
    combinations = data.draw(st.lists(st.integers(0, records - 1), max_size=8))
    numbers = []
    for j in range(members):
        for record in combinations:
            end = starts[record * members + j] + sizes[record * members + j]
            numbers.append(data.draw(st.integers(0, max(0, end - 1))))
    windows = array(data.draw(st.lists(st.integers(-1, 6), min_size=members, max_size=members)))
    found = []
    for kernel in (fast, slow):
        out = np.ones(len(combinations), np.bool_)
        which = array(combinations if records > 1 else [])
        kernel.inside_rows(array(numbers), which, array(starts), array(sizes), windows, out)
        found.append(out.tolist())
    assert found[0] == found[1]
