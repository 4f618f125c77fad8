"""Plain-Python twins of the kernels in `fast.py`: the same signatures, written to be obviously right.

For tests only. Each twin is the definition of what the fast one computes; nothing here is meant to be quick.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

FRESH = -2
_ALL = (1 << 64) - 1


def _mix(x: int) -> int:
    x &= _ALL
    x = ((x ^ (x >> 32)) * 0xBF58476D1CE4E5B9) & _ALL
    x = ((x ^ (x >> 29)) * 0x94D049BB133111EB) & _ALL
    return x ^ (x >> 32)


def _bytes(offsets: Any, data: Any, row: int) -> bytes:
    return bytes(data[int(offsets[row]) : int(offsets[row + 1])])


def hash_words(words: Any, mask: Any, out: Any) -> None:
    for i, word in enumerate(words):
        out[i] = _mix(int(word)) & int(mask)


def hash_bytes(offsets: Any, data: Any, mask: Any, out: Any) -> None:
    for i in range(len(out)):
        value = _bytes(offsets, data, i)
        h = (len(value) * 0x9E3779B97F4A7C15) & _ALL
        whole = len(value) - len(value) % 8
        for at in range(0, whole, 8):
            h = ((h ^ int.from_bytes(value[at : at + 8], "little")) * 0xBF58476D1CE4E5B9) & _ALL
            h ^= h >> 29
        if tail := value[whole:]:
            h = ((h ^ int.from_bytes(tail, "little")) * 0x94D049BB133111EB) & _ALL
            h ^= h >> 32
        out[i] = _mix(h) & int(mask)


def combine_hashes(more: Any, mask: Any, out: Any) -> None:
    for i in range(len(out)):
        out[i] = _mix(int(out[i]) * 0x9E3779B97F4A7C15 + int(more[i])) & int(mask)


def bucket_words(words: Any, rows: Any, shift: int, mask: int, out: Any) -> None:
    for i, row in enumerate(rows):
        out[i] = (_mix(int(words[row])) >> shift) & mask


def slot_words(words: Any, mask: Any, shift: int, out: Any) -> None:
    for i, word in enumerate(words):
        out[i] = (_mix(int(word)) & int(mask)) >> shift


def slot_hashes(hashes: Any, shift: int, out: Any) -> None:
    for i, h in enumerate(hashes):
        out[i] = int(h) >> shift


def insert(slots: Any, start: int, head: Any, link: Any) -> None:
    for i, slot in enumerate(slots):
        link[start + i], head[slot] = head[slot], start + i


def heads(slots: Any, head: Any, out_at: Any, out_row: Any) -> int:
    first = [(i, head[slot]) for i, slot in enumerate(slots) if head[slot] >= 0]
    return _write(out_at, out_row, first)


def advance(
    probing: Any, at: Any, row: Any, count: int, values: Any, link: Any, out_at: Any, out_row: Any
) -> tuple[int, int]:
    candidates = [(int(at[i]), int(row[i])) for i in range(count)]
    found = _write(out_at, out_row, [(a, r) for a, r in candidates if values[r] == probing[a]])
    return found, _write(at, row, [(a, int(link[r])) for a, r in candidates if link[r] >= 0])


def walk(
    probing: Any,
    at: Any,
    row: Any,
    count: int,
    position: int,
    cursor: int,
    values: Any,
    link: Any,
    out_at: Any,
    out_row: Any,
) -> tuple[int, int, int, int]:
    written = compared = 0
    for i in range(position, count):
        r = int(cursor if cursor != FRESH else row[i])
        cursor = FRESH
        while r >= 0:
            if values[r] == probing[at[i]]:
                if written == len(out_at):
                    return i, r, written, compared
                out_at[written], out_row[written] = at[i], r
                written += 1
            compared += 1
            r = int(link[r])
    return count, FRESH, written, compared


def present(probing: Any, slots: Any, head: Any, link: Any, values: Any, out: Any) -> None:
    for i, slot in enumerate(slots):
        row = int(head[slot])
        while row >= 0 and values[row] != probing[i]:
            row = int(link[row])
        out[i] = row >= 0


def find_bytes(
    probing: Any,
    slots: Any,
    head: Any,
    link: Any,
    values: Any,
    probing_offsets: Any,
    probing_data: Any,
    offsets: Any,
    data: Any,
    out: Any,
) -> None:
    for i, slot in enumerate(slots):
        row = int(head[slot])
        while row >= 0 and _bytes(offsets, data, row) != _bytes(probing_offsets, probing_data, i):
            row = int(link[row])
        out[i] = row


def small_slots(values: Any, shift: int, out: Any) -> None:
    for i, value in enumerate(values):
        out[i] = ((int(value) * 0x9E3779B97F4A7C15) & _ALL) >> shift


def sieve(values: Any, start: int, end: int, shift: int, head: Any, out_at: Any, out_row: Any) -> int:
    slots = [0] * (end - start)
    small_slots(values[start:end], shift, slots)
    first = [(start + i, head[slot]) for i, slot in enumerate(slots) if head[slot] >= 0]
    return _write(out_at, out_row, first)


def verify_words(at: Any, row: Any, count: int, probing_rows: Any, probing_words: Any, words: Any) -> int:
    pairs = [(at[p], row[p]) for p in range(count)]
    return _write(at, row, [(a, r) for a, r in pairs if probing_words[probing_rows[a]] == words[r]])


def verify_bytes(
    at: Any, row: Any, count: int, probing_rows: Any, probing_offsets: Any, probing_data: Any, offsets: Any, data: Any
) -> int:
    kept = []
    for a, r in [(at[p], row[p]) for p in range(count)]:
        if _bytes(probing_offsets, probing_data, probing_rows[a]) == _bytes(offsets, data, r):
            kept.append((a, r))
    return _write(at, row, kept)


def _write(at: Any, row: Any, pairs: list[tuple[int, int]]) -> int:
    for p, (a, r) in enumerate(pairs):
        at[p], row[p] = a, r
    return len(pairs)


def gather(source: Any, rows: Any, out: Any) -> None:
    for i, row in enumerate(rows):
        out[i] = source[row]


def gather_offsets(offsets: Any, rows: Any, out: Any) -> int:
    total = 0
    out[0] = 0
    for i, row in enumerate(rows):
        total += int(offsets[row + 1]) - int(offsets[row])
        out[i + 1] = total
    return total


def gather_bytes(offsets: Any, data: Any, rows: Any, out_offsets: Any, out: Any) -> None:
    for i, row in enumerate(rows):
        out[int(out_offsets[i]) : int(out_offsets[i + 1])] = data[int(offsets[row]) : int(offsets[row + 1])]


def append_offsets(incoming: Any, base: int, start: int, offsets: Any) -> None:
    for i in range(1, len(incoming)):
        offsets[start + i] = int(incoming[i]) - int(incoming[0]) + base


def select_slots(hashes: Any, owned: Any, out: Any) -> int:
    mine = [i for i, h in enumerate(hashes) if owned[int(h) % owned.size]]
    out[: len(mine)] = mine
    return len(mine)


def departed(buckets: Any, arrived: Any, starts: Any, events: Any, below: Any, out: Any) -> None:
    for i, (bucket, came) in enumerate(zip(buckets, arrived, strict=True)):
        left = [events[e] for e in range(starts[bucket], starts[bucket + 1]) if below[e] > came]
        if left:
            out[i] = left[0]


def inside_rows(numbers: Any, rounds: Any, starts: Any, sizes: Any, windows: Any, out: Any) -> None:
    members = range(len(windows))
    for c in range(len(out)):
        base = int(rounds[c]) * len(windows) if len(rounds) else 0
        own = [int(numbers[j * len(out) + c]) for j in members]
        began, length = [int(starts[base + j]) for j in members], [int(sizes[base + j]) for j in members]
        rows = [(Fraction(number, size), j) for j, size in enumerate(length) for number in range(1, size + 1)]
        passed = {j: min(own[j] - began[j] + 1, length[j]) for j in members}
        youngest = max(((Fraction(p, length[j]), j) for j, p in passed.items() if p > 0), default=(Fraction(0), -1))
        for j in members:
            come = began[j] + sum(1 for at in rows if at[1] == j and at <= youngest)
            if windows[j] >= 0 and own[j] < come - windows[j]:
                out[c] = False
