"""How often two inputs match, and how many keys they have, estimated from the first rows of each.

The selectivity of two inputs from two samples needs care. If rows come in no particular order, matches over pairs of
the rows that were read is right on average, however sparse the keys are: each pair of rows is as likely to be read as
any other. But streams that belong together come in about the same order. Then the first rows of one find nearly all
their partners among the first rows of the other, and the ratio of n matches in n x n pairs says 1 / n, whatever the
truth. (To keep the rows whose key has a small hash, which is sound for any order, all rows would have to be read.)

How matches grow tells the two apart. Of the first f of both inputs let there be m matches, and of the first f / 2 there
be h. In no particular order h is m / 4, in the same order m / 2. So a = log2(4 h / m) is 0 or 1, or between where only
part of the matches are close. A selectivity that was found in a fraction f shrinks by f ** a for the whole. That takes
many independent matches. Where one key has most of the rows of one input, all its matches come with the few rows of
that key in the other, and whether those are in the first half says nothing (`_evidence`).

    same order       m / (f^2 A B) * f      =  m / f matches in all: each row keeps its partners
    no order         m / (f^2 A B)          =  m / f^2 matches in all: each row finds more of them

Where a join has windows, what counts is how often rows match that are inside each other's windows. That is seen in the
samples themselves, whatever the order: matches inside over pairs of rows inside. Windows in rows are laid on the same
axis as if all inputs came evenly.

The number of different keys is Chao's estimate, d + singles^2 / (2 doubles), which is right for keys that are equally
frequent and too small for others. Where it doubles from half the rows to all of them, the estimate assumes that new
keys keep coming.

Not covered: keys that only later rows have, and correlations between keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_mjoin.explaining.sampling import Sample
from spark_mjoin.mjoin.statistics import Pair
from spark_mjoin.model import Array, InputSpec, JoinSpec

LEAST_MATCHES = 256  # independent of each other, that are needed to say in which order rows come
IN_ORDER = 0.5  # the least exponent that is taken for one
GROWING = 0.75  # the fraction of a doubling at which new keys keep coming
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Match:
    """How often rows of two inputs match."""

    selectivity: float
    matches: int  # that were found
    basis: str
    pairs: int | None = None  # of rows inside each other's windows, among which they were looked for; None: of all


@dataclass(frozen=True)
class Keys:
    """The values of one key in one input."""

    different: float
    largest: float  # the fraction of rows that have the most frequent value


def matches(spec: JoinSpec, samples: Sequence[Sample]) -> dict[Pair, Match]:
    """How often the rows of every pair of inputs match that shares a key."""
    out = {}
    for a in range(len(samples)):
        for b in range(a + 1, len(samples)):
            classes = sorted(spec.classes_of(a) & spec.classes_of(b))
            if classes and samples[a].kept_rows and samples[b].kept_rows:
                inside = _match_inside(spec, samples, (a, b), classes) if spec.windowed else None
                out[a, b] = inside or _match(samples[a], samples[b], classes)
    return out


def _match_inside(spec: JoinSpec, samples: Sequence[Sample], pair: Pair, classes: Sequence[int]) -> Match | None:
    """How often rows match that are inside each other's windows; None where no two rows of the samples are."""
    at = _positions([samples[i] for i in pair])
    back = [_reach(spec.inputs[i], samples[i]) for i in pair]
    pairs = pairs_inside(at[0], at[1], back)
    if not pairs:
        return None
    hashes = [_combined([samples[i].keys[c] for c in classes]) for i in pair]
    ranks = np.unique(np.concatenate(hashes), return_inverse=True)[1]
    span = max(float(x.max()) for x in at)
    own = at[0] + ranks[: at[0].size] * (2 * span + 2), at[1] + ranks[at[0].size :] * (2 * span + 2)
    found = pairs_inside(*own, [min(reach, span + 1) for reach in back])  # rows of other keys are further away
    few = ", which are few" if found < 20 else ""
    return Match(max(found, 0.5) / pairs, found, few if found else ": less than this", pairs)


def _positions(samples: Sequence[Sample]) -> list[Array]:
    """When rows come: in seconds of event time, or where there is none as if all inputs took the same time."""
    times = [sample.times for sample in samples if sample.times is not None]
    if not times:
        return [np.arange(sample.kept_rows) / sample.population for sample in samples]
    first = min(int(of.min()) for of in times)
    return [(of - first).view(np.uint64) / 1e6 for of in times]  # which may be more than a signed word holds


def _reach(input: InputSpec, sample: Sample) -> float:
    """How long the rows of an input count, in the same terms: how far before the youngest one may be."""
    if input.window is None:
        return math.inf
    if not input.window.in_rows:
        return input.window.size / 1e6
    rows = input.window.size * sample.kept_share
    if sample.times is None:
        return rows / sample.population
    return rows / sample.pace if sample.pace else math.inf


def pairs_inside(a: Array, b: Array, back: Sequence[float]) -> int:
    """Pairs of rows that count for each other: the older of the two is inside its window, seen from the younger."""
    later = np.sort(b)
    lows = np.searchsorted(later, a - back[1], side="right")
    highs = np.searchsorted(later, a + back[0], side="left")
    return int(np.maximum(highs - lows, 0).sum())


def _match(a: Sample, b: Sample, classes: Sequence[int]) -> Match:
    sides = [_combined([each.keys[c] for c in classes]) for each in (a, b)]
    found = equal_pairs(*sides)
    if all(each.kept_rows >= each.population for each in (a, b)):
        return Match(max(found, 0.5) / (sides[0].size * sides[1].size), found, "all rows were read")
    populations = [a.population, b.population]
    shares = [side.size / population for side, population in zip(sides, populations, strict=True)]
    share = min(shares)
    first, half = (
        [side[: round(side.size * part * share / own)] for side, own in zip(sides, shares, strict=True)]
        for part in (1.0, 0.5)
    )
    close = equal_pairs(*first)
    if share < 1 and _evidence(*first) >= LEAST_MATCHES:
        exponent = min(1.0, max(0.0, math.log2(max(4 * equal_pairs(*half) / close, 1.0))))
        if exponent >= IN_ORDER:
            ratio = close / (first[0].size * first[1].size)
            return Match(ratio * share**exponent, close, "both come in about the same order")
    if found:
        few = ", which are few" if found < 20 else ""
        return Match(found / (sides[0].size * sides[1].size), found, f"in no common order{few}")
    most_keys = max(_different(side, population) for side, population in zip(sides, populations, strict=True))
    return Match(min(1 / most_keys, 1 / (sides[0].size * sides[1].size)), 0, "no match was found: less than this")


def keys(samples: Sequence[Sample]) -> list[dict[int, Keys]]:
    """For every input and key class, how many values there are and how frequent the most frequent is."""
    out = []
    for each in samples:
        of_input = {}
        for key_class, hashes in each.keys.items():
            if hashes.size:
                most = int(np.unique(hashes, return_counts=True)[1].max())
                of_input[key_class] = Keys(_different(hashes, each.population), most / hashes.size)
        out.append(of_input)
    return out


def _combined(parts: Sequence[Array]) -> Array:
    """One hash for keys of several columns."""
    whole = parts[0]
    for part in parts[1:]:
        whole = (whole ^ (whole >> np.uint64(29))) * _SPREAD + part
    return whole


def equal_pairs(a: Array, b: Array) -> int:
    """Pairs of equal values."""
    many, more = _shared(a, b)
    return int((many * more).sum())


def _evidence(a: Array, b: Array) -> float:
    """Pairs of equal values, counted as if all rows of a side that have any had equally many: Kish's effective size."""
    many, more = _shared(a, b)
    pairs = float((many * more).sum())
    if not pairs:
        return 0.0
    return min(pairs**2 / float((rows * partners**2).sum()) for rows, partners in ((many, more), (more, many)))


def _shared(a: Array, b: Array) -> tuple[Array, Array]:
    """How many rows of each side have each value that both have."""
    (left, many), (right, more) = (np.unique(side, return_counts=True) for side in (a, b))
    _, at, there = np.intersect1d(left, right, assume_unique=True, return_indices=True)
    return many[at].astype(np.int64), more[there].astype(np.int64)


def _different(hashes: Array, population: float) -> float:
    """Different values in a population that some rows are the beginning of."""
    if hashes.size >= population:
        return float(np.unique(hashes).size)
    half, whole = _chao(hashes[: hashes.size // 2]), _chao(hashes)
    growth = math.log2(whole / half) if half else 1.0
    if growth >= GROWING:
        whole *= population / hashes.size
    return min(whole, population)


def _chao(hashes: Array) -> float:
    frequencies = np.unique(hashes, return_counts=True)[1]
    singles, doubles = int((frequencies == 1).sum()), int((frequencies == 2).sum())
    return float(frequencies.size + singles * (singles - 1) / (2 * (doubles + 1)))
