"""Promises that stay, against lists of Python: what is in them, how old it is, and what a log of them gives back."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_mjoin.mjoin.keys import encode
from spark_mjoin.model import JoinSpec, KeyDomain
from spark_mjoin.state import promises
from spark_mjoin.state.keysets import ByteSet, KeySet, WordSet
from spark_mjoin.state.promises import OUTPUT, Promises
from tests.examples import examples
from tests.harness import reader, scripted

KEYS = 8
LETTERS = [chr(ord("a") + i) for i in range(KEYS)]
WORDS, BYTES = (0,), (1,)
QUERY = "SELECT a.n FROM a JOIN b ON a.k = b.k AND a.s = b.s"


def spec_of_two_keys() -> JoinSpec:
    """Key class 0 has words, 1 has strings."""
    given = pa.table({"n": [1], "k": [1], "s": ["a"], "p": [False]})
    options = {"source.a.punctuation": "p", "source.b.punctuation": "p", "stateLocation": "nowhere"}
    spec: JoinSpec = reader(scripted({"a": [given], "b": [given]}, QUERY, **options)).session.spec
    assert [domain.is_word for domain in spec.classes] == [True, False]
    return spec


SPEC = spec_of_two_keys()


def keys_for(classes: tuple[int, ...], numbers: list[int]) -> Any:
    if classes == WORDS:
        return np.array(numbers, np.int64)
    return encode(pa.array([LETTERS[n] for n in numbers], pa.string()), KeyDomain("string")).cast(pa.large_binary())


def end_for(classes: tuple[int, ...], number: int | None) -> Any:
    return number if number is None or classes == WORDS else LETTERS[number].encode()


def set_for(classes: tuple[int, ...], numbers: list[int]) -> KeySet:
    found = keys_for(classes, numbers)
    return WordSet.of(found) if classes == WORDS else ByteSet.of(found)


def inside(of: Promises, input: int, classes: tuple[int, ...]) -> set[int]:
    sets = of.given if input == OUTPUT else of.of[input].sets
    if classes not in sets:
        return set()
    return set(np.flatnonzero(sets[classes].contains(keys_for(classes, list(range(KEYS))))).tolist())


def content(of: Promises) -> list[Any]:
    """All sets with their entries in the order in which they are forgotten, and all ages."""
    found: list[Any] = [of.figures()]
    for input, sets in [*((i, p.sets) for i, p in enumerate(of.of)), (OUTPUT, of.given)]:
        for classes, each in sorted(sets.items()):
            ages, sizes = each.ages()
            entries = (
                [each.lows.tolist(), each.highs.tolist()]
                if isinstance(each, WordSet)
                else [each.values.to_pylist(), each.ranges]
            )
            found.append((input, classes, entries, ages.tolist(), sizes.tolist(), each.nbytes()))
    return found


KEY = st.integers(0, KEYS - 1)
NUMBERS = st.lists(KEY, min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("add"), NUMBERS),
    st.tuples(st.just("range"), st.tuples(st.none() | KEY, KEY)),
    st.tuples(st.just("forget"), NUMBERS),
    st.tuples(st.just("announced"), NUMBERS),
    st.tuples(st.just("oldest"), st.sampled_from([0, 50, 100, 4200, 8300])),
    st.just(("end", None)),
)
COMMIT = st.tuples(st.just("commit"), st.booleans())
KINDS = st.sampled_from([(WORDS,), (BYTES,), (WORDS, BYTES)])


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Steps of one or two inputs, mostly about keys of one kind, with many commits."""
    step = st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from(draw(KINDS)), STEP)
    return draw(st.lists(st.one_of(step, step, st.tuples(st.just(0), st.just(WORDS), COMMIT)), min_size=6, max_size=40))


RANGE_THAT_IS_CUT_AGAIN = [
    (0, WORDS, ("range", (None, 0))),
    (0, WORDS, ("commit", False)),
    (0, WORDS, ("range", (None, 1))),
    (0, WORDS, ("forget", [0])),
    (0, WORDS, ("commit", False)),
]  # what is left of it was written before, and is younger by now


@example(RANGE_THAT_IS_CUT_AGAIN, 100)
@given(histories(), st.sampled_from([0, 5, 100]))
@examples(300)
def oracle_a_log_gives_back_what_was_written(steps: list[Any], stale: int) -> None:
    """Whatever was promised, announced and forgotten between commits; with a log that begins anew soon, or late."""
    held, records, log = Promises(SPEC), 0, list[pa.RecordBatch]()
    behind, has = Promises(SPEC), 0  # another worker, which reads only what it does not have yet
    model: dict[tuple[int, tuple[int, ...]], set[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promises, "STALE", stale)
        patch.setattr(promises, "FORGET_TO", 1.0)
        for input, classes, (what, value) in steps:
            known = model.setdefault((input, classes), set())
            if held.of[input].ended and what in ("add", "range"):
                continue
            if what == "add":
                held.add(input, classes, keys_for(classes, value))
                known |= set(value)
            elif what == "range":
                low, high = value
                held.add_range(input, classes[0], end_for(classes, low), end_for(classes, high))
                known |= {n for n in range(KEYS) if (low is None or n >= low) and n <= high}
            elif what == "forget":
                before = inside(held, input, classes)
                held.forget(input, classes, set_for(classes, value))
                left = inside(held, input, classes)
                assert before - set(value) <= left <= before, "ranges of strings are not cut"
                assert left == before - set(value) or classes == BYTES
                model[input, classes] = left
            elif what == "announced":
                held.add_given(classes, set_for(classes, value))
            elif what == "end":
                held.end(input)
                for each in (WORDS, BYTES):
                    model[input, each] = set()
            elif what == "oldest":
                ages = np.concatenate([[0], *(s.ages()[0] for p in held.of for s in p.sets.values())])
                forgotten = held.forget_oldest(value)
                assert held.nbytes() <= value
                left_ages = np.concatenate([[2**62], *(s.ages()[0] for p in held.of for s in p.sets.values())])
                assert forgotten == ages.size - left_ages.size
                assert left_ages.min() >= np.sort(ages)[forgotten], "the oldest go first"
                for name in model:
                    assert inside(held, *name) <= model[name]
                    model[name] = inside(held, *name)
            else:
                if held.is_stale(records):
                    log, records = held.everything(), 0
                else:
                    log += held.changes_since_commit()
                records = sum(batch.num_rows for batch in log)
                held.committed()
                loaded = Promises(SPEC)
                loaded.take(held.figures())
                loaded.read(iter(log))
                assert content(loaded) == content(held)
                if value:
                    if behind.logs != held.logs:
                        behind, has = Promises(SPEC), 0
                    behind.take(held.figures())
                    behind.read(pa.Table.from_batches(log, promises.LOG).slice(has).to_batches())
                    has = records
                    assert content(behind) == content(held)
                    held, behind = behind, held  # the other one goes on
            assert inside(held, input, classes) == model[input, classes]


def test_a_key_that_comes_again_keeps_its_age() -> None:
    held = Promises(SPEC)
    for classes in (WORDS, BYTES):
        held.add(0, classes, keys_for(classes, [1, 3, 5]))
        held.add(0, classes, keys_for(classes, [7, 1, 5]))
        numbers, _ = held.of[0].sets[classes].ages()
        assert np.unique(numbers, return_counts=True)[1].tolist() == [3, 1]


@pytest.mark.parametrize("classes", [WORDS, BYTES])
def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch, classes: tuple[int, ...]) -> None:
    monkeypatch.setattr(promises, "FORGET_TO", 1.0)
    held = Promises(SPEC)
    for number in (6, 0, 4, 2):
        held.add(number % 4 // 2, classes, keys_for(classes, [number]))  # 6 and 2 of one input, 0 and 4 of the other
    one = held.nbytes() // 4 if classes == WORDS else 30
    assert held.forget_oldest(held.nbytes() - one - 1) == 2
    assert [inside(held, input, classes) for input in (0, 1)] == [{4}, {2}]
    held.add(0, classes, keys_for(classes, [6]))
    assert held.forget_oldest(held.nbytes() - 1) == 1
    assert [inside(held, input, classes) for input in (0, 1)] == [{6}, {2}]


def test_the_bytes_that_are_accounted_for_are_those_that_it_takes() -> None:
    """In a process of its own, which has nothing else that grows; with keys that come a thousand at a time."""
    found = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    for line in found.stdout.splitlines():
        width, accounted, taken = map(int, line.split())
        assert 0.75 <= accounted / taken <= 1.25, f"keys of {width} bytes: {accounted:,} for {taken:,}"
    assert len(found.stdout.splitlines()) == 3


MEASURE = """
import numpy as np, pyarrow as pa
from spark_mjoin.engine.overflow import give_back
from spark_mjoin.state.remembered import RememberedBytes, RememberedWords

def resident():
    give_back()
    with open("/proc/self/statm") as figures:
        return int(figures.read().split()[1]) * 4096

def filled(width, thousands):
    of = RememberedBytes() if width > 8 else RememberedWords()
    for number in range(thousands):
        words = np.random.default_rng(number).integers(-2**62, 2**62, 1000 * width // 8)
        if width > 8:
            offsets = pa.py_buffer(np.arange(1001) * width)
            words = pa.Array.from_buffers(pa.large_binary(), 1000, [None, offsets, pa.py_buffer(words)])
        of.add(words, number)
    return of

for width in (8, 16, 40):
    of = filled(width, 20)
    of = None
    before = resident()
    of = filled(width, 700)
    print(width, of.nbytes(), resident() - before)
"""
